// A forward pass: some tokens of one sequence, or of several, through all layers, by a thread team that stays together.
// Five barriers a layer of attention and an MLP; one more for each norm after a part, and for norms of whole rows of heads.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "engine.hpp"
#include "head_screen.hpp"
#include "parts.hpp"
#include "pass.hpp"
#include "plane_reader.hpp"
#include "step.hpp"

namespace mxconv {

class Decoder {
  public:
    // A screen that does not exist leaves every row of the head to be read.
    Decoder(Engine& engine, DecoderParts parts, const HeadScreen& screen);

    const DecoderParts& parts() const { return parts_; }

    // Weights that are not in memory are read as passes go; `stages` are those of the layers. Before the first pass.
    void read_ahead(PlaneReader& planes, std::vector<int64_t> stages);

    // Calls from several threads take turns. Raises ReadError where weights cannot be read.
    void forward(const Pass& pass);

  private:
    int64_t slice_end(const Pass& pass, int64_t first) const;
    void walk(Slice& slice) const;
    void run(const Slice& slice);
    void work(const Slice& slice, Workspace& own);
    void evaluate(const Layer& layer, Step& step) const;
    void copy_states(Step& step, int64_t stage) const;
    void predict(Step& step) const;

    Engine& engine_;
    const DecoderParts parts_;
    const HeadScreen screen_;
    PlaneReader* planes_ = nullptr;  // null: all weights are in memory
    std::vector<int64_t> stages_;
    int forms_;                 // that anything asks for that takes in rows
    bool is_parallel_ = false;  // any branch
    std::mutex callers_;
    std::vector<Token> tokens_;  // of a pass
    std::vector<std::unique_ptr<Workspace>> workspaces_;
    std::vector<Pieces> pieces_;
    ScratchMemory memory_;
    std::vector<uint8_t> finite_;
};

}  // namespace mxconv
