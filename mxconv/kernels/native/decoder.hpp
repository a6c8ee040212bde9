// A forward pass: some tokens of one sequence, or of several, through all layers, by a thread team that stays together.
//
// Five barriers a layer. Between them threads take pieces of weight rows, or heads of attention, from one counter an
// operator; whatever a result needs beside its own piece (the norm of a token's row) every thread computes for itself.
// No result depends on who computed it or on what other tokens there are, of its own sequence or of others.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "bindings.hpp"

namespace mxconv {

constexpr int64_t kTokensAtOnce = 64;  // more go through in slices

struct Projection {
    const Matrix* matrix;
    const float* bias;  // (rows), or null
};

struct DecoderLayer {
    bool skips_attention, skips_mlp;  // a draft's: what is skipped leaves x, and the cache, as they are
    int64_t window;                   // how many positions a token sees, itself included; 0 is all
    int64_t sink, recent;             // a draft's: it attends to the first and the last so many; recent 0 is all
    const float* input_norm;
    const float* mlp_norm;
    const float* query_norm;  // (head_dim) before the rotation, or null; as is key_norm
    const float* key_norm;
    Projection query, key, value, output, gate, up, down;
};

struct DecoderWeights {
    int64_t hidden_size;
    int64_t num_heads;
    int64_t num_key_value_heads;
    int64_t head_dim;
    int64_t intermediate_size;
    float rms_norm_eps;
    std::vector<DecoderLayer> layers;
    const float* norm;
    const Matrix* head;
};

// The tokens of one sequence in a pass, and the cache that they continue.
struct SequenceTokens {
    int64_t num_tokens;
    int64_t num_logits;  // of how many tokens, the last ones
    float* keys;         // (layers, num_key_value_heads, capacity, head_dim), as are the values
    float* values;
    int64_t capacity;
    int64_t length;  // positions that hold the tokens before; the new ones are written behind them

    // Null, or for each token the positions it sees beside those before mask_start: bit b is mask_start + b.
    const uint64_t* masks;
    int64_t mask_start;

    // Which states are copied: x before layer i for i up to the number of layers, behind the last; one more is that
    // behind the final norm.
    std::vector<int64_t> stages;
    float* states;  // (stages, num_tokens, hidden_size)
};

// One call: where the tokens come from and where their logits go, those of a sequence behind those of the one before.
struct Pass {
    std::vector<SequenceTokens> sequences;  // no two of one cache
    float* x;                               // (tokens, hidden_size) embeddings; overwritten
    const float* cosines;                   // (tokens, head_dim / 2), as are the sines
    const float* sines;
    float* logits;  // (sum of num_logits, vocabulary)
};

class Decoder {
  public:
    Decoder(Engine& engine, DecoderWeights weights);
    ~Decoder();

    // Calls from several threads take turns.
    void forward(const Pass& pass);

  private:
    struct Workspace;  // what a thread has to itself

    struct Token {
        const SequenceTokens* sequence;
        int64_t place;  // in its cache
    };

    // The tokens of a pass that go through the layers together.
    struct Slice {
        int64_t num_tokens;
        const Token* tokens;
        float* x;
        const float* cosines;
        const float* sines;
        std::vector<int64_t> predicted;  // which tokens want logits
        float* logits;                   // (predicted, vocabulary)
        bool copies_states;              // of any token
    };

    void run(const Slice& slice);
    void work(const Slice& slice, int thread);
    void normalize(const Slice& slice, const float* weight, const std::vector<int64_t>* tokens, int forms,
                   Workspace& own);
    void copy_states(const Slice& slice, int64_t stage, int thread);
    void project_heads(const Slice& slice, int64_t layer, Pieces& pieces, Workspace& own);
    void finish_heads(const Slice& slice, int64_t layer, int which, int64_t first_row, int64_t last_row);
    void attend(const Slice& slice, int64_t layer, Pieces& pieces, Workspace& own);
    void gate(const Slice& slice, int64_t layer, Pieces& pieces, Workspace& own);
    void add_product(const Slice& slice, const Projection& projection, const Activations& inputs, Pieces& pieces,
                     const Workspace& own);
    void predict(const Slice& slice, Pieces& pieces, Workspace& own);
    static Visible visible(const Token& token, const DecoderLayer& layer, int32_t* others);
    int64_t tiles_at_once(const Matrix& matrix, int64_t multiple) const;
    int64_t tokens_together() const;

    Engine& engine_;
    const DecoderWeights weights_;
    int normed_forms_ = 0, mixed_forms_ = 0, inner_forms_ = 0;  // that any layer's matrices ask for
    int64_t most_sinks_ = 0, most_others_ = 0;
    std::mutex callers_;
    std::vector<std::unique_ptr<Workspace>> workspaces_;
    std::vector<Pieces> pieces_;
    std::vector<Token> tokens_;             // of a pass
    Lines<float> queries_, keys_, values_;  // (tokens, heads * head_dim)
    Lines<float> gates_, ups_;              // (tokens, intermediate_size)
    Lines<float> products_;                 // (tokens, hidden_size)
    ActivationBuffer mixed_buffer_, inner_buffer_;
    Activations mixed_{}, inner_{};  // what attention and SiLU hand to the next matrix
};

}  // namespace mxconv
