#include "decoder.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

namespace mxconv {

namespace {

constexpr int64_t kWeightsAtOnce = 1 << 16;  // in a piece: long enough to stream, short enough to end together
constexpr int64_t kFewestWeights = 1 << 12;  // under which taking a piece costs more than it
constexpr int64_t kPiecesPerThread = 4;
constexpr int kOperatorsPerLayer = 5;

int form_of(const Matrix* matrix) { return mxconv::form_of(matrix->kind, matrix->format); }

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class Work>
void take(Pieces& pieces, int64_t count, int thread, Work work) {
    for (int64_t i; (i = pieces.take(count, thread)) >= 0;) work(i);
}

// Before the pieces of a row are prepared: finite, until one is not.
void assume_finite(const Activations& activations, int forms) {
    if (forms & kInt8) std::memset(activations.finite, 1, static_cast<size_t>(activations.num_tokens));
}

template <class Buffer>
void grow(Buffer& buffer, int64_t length) {
    if (buffer.size() < static_cast<size_t>(length)) buffer.resize(static_cast<size_t>(length));
}

}  // namespace

struct Decoder::Workspace {
    explicit Workspace(int number) : thread(number) {}

    const int thread;
    ActivationBuffer buffer;
    Activations normed{};
    Lines<float> row;             // one of hidden_size, or a piece of one, or pieces of some
    Lines<float> shares;          // of the visible positions
    std::vector<int32_t> others;  // that tokens see beside a run of positions, most_others_ each
};

Decoder::Decoder(Engine& engine, DecoderWeights weights) : engine_(engine), weights_(std::move(weights)) {
    for (size_t i = 0; i < weights_.layers.size() * kOperatorsPerLayer + 1; ++i)
        pieces_.emplace_back(engine.team->size());
    normed_forms_ = form_of(weights_.head);
    for (const DecoderLayer& layer : weights_.layers) {
        for (const Projection* p : {&layer.query, &layer.key, &layer.value, &layer.gate, &layer.up}) {
            normed_forms_ |= form_of(p->matrix);
        }
        mixed_forms_ |= form_of(layer.output.matrix);
        inner_forms_ |= form_of(layer.down.matrix);
        most_sinks_ = std::max(most_sinks_, layer.sink);
    }
    for (int thread = 0; thread < engine.team->size(); ++thread) {
        workspaces_.push_back(std::make_unique<Workspace>(thread));
    }
}

Decoder::~Decoder() = default;

void Decoder::forward(const Pass& pass) {
    std::lock_guard one_at_a_time(callers_);
    const DecoderWeights& w = weights_;
    tokens_.clear();
    for (const SequenceTokens& sequence : pass.sequences) {
        for (int64_t i = 0; i < sequence.num_tokens; ++i) tokens_.push_back({&sequence, sequence.length + i});
    }
    const auto num_tokens = static_cast<int64_t>(tokens_.size());
    Slice slice{};
    slice.logits = pass.logits;
    for (int64_t begin = 0; begin < num_tokens; begin += kTokensAtOnce) {
        slice.num_tokens = std::min(kTokensAtOnce, num_tokens - begin);
        slice.tokens = tokens_.data() + begin;
        slice.x = pass.x + begin * w.hidden_size;
        slice.cosines = pass.cosines + begin * (w.head_dim / 2);
        slice.sines = pass.sines + begin * (w.head_dim / 2);
        slice.copies_states = false;
        slice.predicted.clear();
        for (int64_t i = 0; i < slice.num_tokens; ++i) {
            const SequenceTokens& sequence = *slice.tokens[i].sequence;
            const int64_t num_before = slice.tokens[i].place - sequence.length;
            if (num_before >= sequence.num_tokens - sequence.num_logits) slice.predicted.push_back(i);
            slice.copies_states |= !sequence.stages.empty();
        }
        run(slice);
        slice.logits += static_cast<int64_t>(slice.predicted.size()) * w.head->rows;
    }
}

void Decoder::run(const Slice& slice) {
    const DecoderWeights& w = weights_;
    const int64_t tokens = slice.num_tokens;
    const int64_t heads = w.num_heads * w.head_dim, kv_heads = w.num_key_value_heads * w.head_dim;
    int64_t most_visible = 0;
    for (int64_t i = 0; i < tokens; ++i) most_visible = std::max(most_visible, slice.tokens[i].place + 1);
    most_others_ = kTokensAtOnce + std::min(most_sinks_, most_visible);
    grow(queries_, tokens * heads);
    grow(keys_, tokens * kv_heads);
    grow(values_, tokens * kv_heads);
    grow(gates_, tokens * w.intermediate_size);
    grow(ups_, tokens * w.intermediate_size);
    grow(products_, tokens * w.hidden_size);
    mixed_ = mixed_buffer_.reserve(tokens, heads, mixed_forms_);
    inner_ = inner_buffer_.reserve(tokens, w.intermediate_size, inner_forms_);
    assume_finite(mixed_, mixed_forms_);
    assume_finite(inner_, inner_forms_);
    for (auto& own : workspaces_) {
        own->normed = own->buffer.reserve(tokens, w.hidden_size, normed_forms_);
        grow(own->row, std::max({w.hidden_size, w.intermediate_size, tokens_together() * heads}));
        grow(own->shares, kAttentionRows * (most_visible + kAttentionChunk));
        grow(own->others, tokens_together() * most_others_);
    }
    for (Pieces& pieces : pieces_) pieces.reset();
    engine_.team->run([&](int thread) { work(slice, thread); });
}

void Decoder::work(const Slice& slice, int thread) {
    Workspace& own = *workspaces_[static_cast<size_t>(thread)];
    Team& team = *engine_.team;
    Pieces* pieces = pieces_.data();
    for (size_t index = 0; index < weights_.layers.size(); ++index, pieces += kOperatorsPerLayer) {
        const DecoderLayer& layer = weights_.layers[index];
        const auto number = static_cast<int64_t>(index);
        if (slice.copies_states) copy_states(slice, number, thread);
        if (!layer.skips_attention) {
            const int forms = form_of(layer.query.matrix) | form_of(layer.key.matrix) | form_of(layer.value.matrix);
            normalize(slice, layer.input_norm, nullptr, forms, own);
            project_heads(slice, number, pieces[0], own);
            team.barrier();
            // behind the barrier that ended its last use; without attention a row that lost its flag is NaN anyway
            if (thread == 0) assume_finite(inner_, inner_forms_);
            attend(slice, number, pieces[1], own);
            team.barrier();
            add_product(slice, layer.output, mixed_, pieces[2], own);
            team.barrier();
            if (thread == 0) assume_finite(mixed_, mixed_forms_);
        }
        if (!layer.skips_mlp) {
            normalize(slice, layer.mlp_norm, nullptr, form_of(layer.gate.matrix) | form_of(layer.up.matrix), own);
            gate(slice, number, pieces[3], own);
            team.barrier();
            add_product(slice, layer.down, inner_, pieces[4], own);
            team.barrier();
        }
    }
    if (slice.copies_states) {
        const auto last = static_cast<int64_t>(weights_.layers.size());
        for (const int64_t stage : {last, last + 1}) copy_states(slice, stage, thread);
    }
    if (!slice.predicted.empty()) predict(slice, *pieces, own);
}

// All tokens, or those given, normalized and in the forms that the next matrices take.
void Decoder::normalize(const Slice& slice, const float* weight, const std::vector<int64_t>* tokens, int forms,
                        Workspace& own) {
    const int64_t hidden = weights_.hidden_size;
    own.normed.num_tokens = tokens != nullptr ? static_cast<int64_t>(tokens->size()) : slice.num_tokens;
    for (int64_t i = 0; i < own.normed.num_tokens; ++i) {
        const float* x = slice.x + (tokens != nullptr ? (*tokens)[static_cast<size_t>(i)] : i) * hidden;
        engine_.kernels->rowwise.rms_norm(x, weight, hidden, weights_.rms_norm_eps, own.row.data());
        if (forms & kInt8) own.normed.finite[i] = 1;
        engine_.kernels->prepare(own.row.data(), i, 0, own.normed.columns, forms, own.normed);
    }
}

// Tokens in turn by thread: x was last written before a barrier, and will be next behind another.
void Decoder::copy_states(const Slice& slice, int64_t stage, int thread) {
    const int64_t hidden = weights_.hidden_size;
    for (int64_t i = thread; i < slice.num_tokens; i += engine_.team->size()) {
        const SequenceTokens& sequence = *slice.tokens[i].sequence;
        const float* x = slice.x + i * hidden;
        float* to = sequence.states + (slice.tokens[i].place - sequence.length) * hidden;
        for (const int64_t wanted : sequence.stages) {
            if (wanted == stage && stage > static_cast<int64_t>(weights_.layers.size())) {
                engine_.kernels->rowwise.rms_norm(x, weights_.norm, hidden, weights_.rms_norm_eps, to);
            } else if (wanted == stage) {
                std::memcpy(to, x, static_cast<size_t>(hidden) * sizeof(float));
            }
            to += sequence.num_tokens * hidden;
        }
    }
}

// Queries, keys and values as one operator. Pieces are whole heads, so that whoever multiplied them can rotate them.
void Decoder::project_heads(const Slice& slice, int64_t layer, Pieces& pieces, Workspace& own) {
    const DecoderLayer& l = weights_.layers[static_cast<size_t>(layer)];
    const Matrix* matrices[3] = {l.query.matrix, l.key.matrix, l.value.matrix};
    float* outputs[3] = {queries_.data(), keys_.data(), values_.data()};
    int64_t counts[3], at_once[3];
    for (int which = 0; which < 3; ++which) {
        at_once[which] = tiles_at_once(*matrices[which], std::lcm(weights_.head_dim, kTileRows) / kTileRows);
        counts[which] = ceil_divide(matrices[which]->row_tiles(), at_once[which]);
    }
    take(pieces, counts[0] + counts[1] + counts[2], own.thread, [&](int64_t i) {
        int which = 0;
        while (i >= counts[which]) i -= counts[which++];
        const Matrix& matrix = *matrices[which];
        const int64_t first = i * at_once[which];
        const int64_t last = std::min(first + at_once[which], matrix.row_tiles());
        engine_.kernels->linear(matrix, own.normed, first, last, outputs[which], matrix.rows);
        finish_heads(slice, layer, which, first * kTileRows, std::min(last * kTileRows, matrix.rows));
    });
}

// Bias, norm and rotation of some rows of queries (0), keys (1) or values (2); the latter two go into the cache.
void Decoder::finish_heads(const Slice& slice, int64_t layer, int which, int64_t first_row, int64_t last_row) {
    const DecoderLayer& l = weights_.layers[static_cast<size_t>(layer)];
    const Rowwise& rowwise = engine_.kernels->rowwise;
    const int64_t head_dim = weights_.head_dim, half = head_dim / 2;
    const Projection& projection = which == 0 ? l.query : which == 1 ? l.key : l.value;
    const float* norm = which == 0 ? l.query_norm : which == 1 ? l.key_norm : nullptr;
    const float factor = which == 0 ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim))) : 1.0f;
    float* rows = which == 0 ? queries_.data() : which == 1 ? keys_.data() : values_.data();
    for (int64_t token = 0; token < slice.num_tokens; ++token) {
        float* row = rows + token * projection.matrix->rows;
        if (projection.bias != nullptr) rowwise.add(projection.bias + first_row, last_row - first_row, row + first_row);
        for (int64_t head = first_row / head_dim; head < last_row / head_dim; ++head) {
            float* values = row + head * head_dim;
            if (norm != nullptr) rowwise.rms_norm(values, norm, head_dim, weights_.rms_norm_eps, values);
            if (which != 2)
                rowwise.rotate(slice.cosines + token * half, slice.sines + token * half, half, factor, values);
            if (which == 0) continue;
            const auto& [sequence, place] = slice.tokens[token];
            float* cache = which == 1 ? sequence->keys : sequence->values;
            const int64_t at = (layer * weights_.num_key_value_heads + head) * sequence->capacity + place;
            std::memcpy(cache + at * head_dim, values, static_cast<size_t>(head_dim) * sizeof(float));
        }
    }
}

// The positions that a token sees; `others` has room for 64, and for the sinks behind them.
Visible Decoder::visible(const Token& token, const DecoderLayer& layer, int32_t* others) {
    const SequenceTokens& sequence = *token.sequence;
    Visible seen{0, token.place + 1, others, 0};
    if (sequence.masks != nullptr) {
        seen.num_run = sequence.mask_start;
        for (uint64_t mask = sequence.masks[token.place - sequence.length]; mask != 0; mask &= mask - 1) {
            others[seen.num_others++] = static_cast<int32_t>(sequence.mask_start + __builtin_ctzll(mask));
        }
    }
    const int64_t run = seen.num_run, total = run + seen.num_others;
    int64_t hidden = layer.window ? std::max<int64_t>(0, total - layer.window) : 0;
    const int64_t old = layer.recent ? std::max<int64_t>(0, total - layer.recent) : 0;
    if (old > std::max(layer.sink, hidden)) {  // there is something between the sinks and what is recent
        for (int64_t i = hidden; i < layer.sink; ++i) {
            others[seen.num_others++] = static_cast<int32_t>(i < run ? i : others[i - run]);
        }
        hidden = old;
    }
    const int64_t hidden_others = std::max<int64_t>(0, hidden - run);
    seen.start = hidden - hidden_others;
    seen.num_run -= hidden - hidden_others;
    seen.others += hidden_others;
    seen.num_others -= hidden_others;
    return seen;
}

// Attention by tokens and heads. A unit of heads fills whole blocks of 32 columns, so that it can be prepared at once, and
// where that leaves every thread enough units it has all heads that share keys and values, for some tokens whose positions
// begin together: keys and values are read once for all of them.
void Decoder::attend(const Slice& slice, int64_t layer, Pieces& pieces, Workspace& own) {
    const DecoderLayer& l = weights_.layers[static_cast<size_t>(layer)];
    const int64_t head_dim = weights_.head_dim, heads = weights_.num_heads, kv_heads = weights_.num_key_value_heads;
    const int64_t num_tokens = slice.num_tokens, group = heads / kv_heads, enough = 2 * engine_.team->size();
    const int64_t fewest = kBlock / std::gcd(head_dim, kBlock), grouped = std::lcm(fewest, group);
    const int64_t unit = ceil_divide(heads, grouped) * num_tokens >= enough ? grouped : fewest;
    const int64_t units = ceil_divide(heads, unit);
    const int64_t together = std::max<int64_t>(1, std::min(tokens_together(), num_tokens * units / enough));
    const int64_t tiles = ceil_divide(num_tokens, together);
    take(pieces, units * tiles, own.thread, [&](int64_t i) {
        const int64_t first = i / tiles * unit, last = std::min(first + unit, heads),
                      columns = (last - first) * head_dim;
        const int64_t end = std::min((i % tiles + 1) * together, num_tokens);
        for (int64_t token = i % tiles * together, next; token < end; token = next) {
            const SequenceTokens& sequence = *slice.tokens[token].sequence;
            Visible seen[kAttentionRows];
            for (next = token; next < end && slice.tokens[next].sequence == &sequence; ++next) {
                int32_t* others = own.others.data() + (next - token) * most_others_;
                seen[next - token] = visible(slice.tokens[next], l, others);
                if (seen[next - token].start != seen[0].start) break;
            }
            for (int64_t head = first, other; head < last; head = other) {
                other = std::min((head / group + 1) * group, last);
                const int64_t at = (layer * kv_heads + head / group) * sequence.capacity * head_dim;
                const float* queries = queries_.data() + (token * heads + head) * head_dim;
                engine_.kernels->rowwise.attend({queries, next - token, other - head, heads * head_dim, columns},
                                                sequence.keys + at, sequence.values + at, head_dim, seen,
                                                own.shares.data(), own.row.data() + (head - first) * head_dim);
            }
            for (int64_t t = token; t < next; ++t) {
                engine_.kernels->prepare(own.row.data() + (t - token) * columns, t, first * head_dim, columns,
                                         form_of(l.output.matrix), mixed_);
            }
        }
    });
}

// How many tokens share a reading of keys and values, at most.
int64_t Decoder::tokens_together() const {
    return std::max<int64_t>(1, kAttentionRows * weights_.num_key_value_heads / weights_.num_heads);
}

// silu(gate) * up. A piece is the same rows of both matrices, and fills whole blocks of 32 columns.
void Decoder::gate(const Slice& slice, int64_t layer, Pieces& pieces, Workspace& own) {
    const DecoderLayer& l = weights_.layers[static_cast<size_t>(layer)];
    const Kernels& kernels = *engine_.kernels;
    const int64_t inner = weights_.intermediate_size, tiles = l.gate.matrix->row_tiles();
    const int64_t at_once = tiles_at_once(*l.gate.matrix, kBlock / kTileRows);
    take(pieces, ceil_divide(tiles, at_once), own.thread, [&](int64_t i) {
        const int64_t first = i * at_once, last = std::min(first + at_once, tiles);
        const int64_t row = first * kTileRows, count = std::min(last * kTileRows, inner) - row;
        kernels.linear(*l.gate.matrix, own.normed, first, last, gates_.data(), inner);
        kernels.linear(*l.up.matrix, own.normed, first, last, ups_.data(), inner);
        for (int64_t token = 0; token < slice.num_tokens; ++token) {
            float* gates = gates_.data() + token * inner + row;
            float* ups = ups_.data() + token * inner + row;
            if (l.gate.bias != nullptr) kernels.rowwise.add(l.gate.bias + row, count, gates);
            if (l.up.bias != nullptr) kernels.rowwise.add(l.up.bias + row, count, ups);
            kernels.rowwise.silu_multiply(gates, ups, count, own.row.data());
            kernels.prepare(own.row.data(), token, row, count, form_of(l.down.matrix), inner_);
        }
    });
}

// x += inputs times a matrix.
void Decoder::add_product(const Slice& slice, const Projection& projection, const Activations& inputs, Pieces& pieces,
                          const Workspace& own) {
    const Kernels& kernels = *engine_.kernels;
    const Matrix& matrix = *projection.matrix;
    const int64_t hidden = weights_.hidden_size, at_once = tiles_at_once(matrix, 1);
    take(pieces, ceil_divide(matrix.row_tiles(), at_once), own.thread, [&](int64_t i) {
        const int64_t first = i * at_once, last = std::min(first + at_once, matrix.row_tiles());
        const int64_t row = first * kTileRows, count = std::min(last * kTileRows, hidden) - row;
        kernels.linear(matrix, inputs, first, last, products_.data(), hidden);
        for (int64_t token = 0; token < slice.num_tokens; ++token) {
            float* product = products_.data() + token * hidden + row;
            if (projection.bias != nullptr) kernels.rowwise.add(projection.bias + row, count, product);
            kernels.rowwise.add(product, count, slice.x + token * hidden + row);
        }
    });
}

void Decoder::predict(const Slice& slice, Pieces& pieces, Workspace& own) {
    const Matrix& head = *weights_.head;
    normalize(slice, weights_.norm, &slice.predicted, form_of(&head), own);
    const int64_t at_once = tiles_at_once(head, 1);
    take(pieces, ceil_divide(head.row_tiles(), at_once), own.thread, [&](int64_t i) {
        const int64_t first = i * at_once, last = std::min(first + at_once, head.row_tiles());
        engine_.kernels->linear(head, own.normed, first, last, slice.logits, head.rows);
    });
}

// How many row tiles of a matrix a thread takes, a multiple of `multiple`.
int64_t Decoder::tiles_at_once(const Matrix& matrix, int64_t multiple) const {
    const int64_t tile = kTileRows * matrix.columns;
    const int64_t shared = matrix.row_tiles() / (kPiecesPerThread * engine_.team->size());
    const int64_t wanted = std::max(std::min(kWeightsAtOnce / tile, shared), kFewestWeights / tile);
    return std::max<int64_t>(wanted / multiple, 1) * multiple;
}

}  // namespace mxconv
