// What several parts make of the same rows, added up before it is added to them: for a norm of the sum.
#pragma once

#include "parts.hpp"

namespace mxconv {

struct Joined final : Part {
    struct Addend {
        std::shared_ptr<const Part> part;
        Norm norm;  // of what it makes
    };

    int64_t hidden_size;
    std::vector<Addend> addends;

    Demands demands() const override { return {hidden_size}; }
    int forms() const override;
    void lay_out(Room& room, const Slice& slice) const override { memory(room, slice); }
    void add_to_rows(Step& step, const Activations& taken, const Sum& sum) const override;

  private:
    float* memory(Room& room, const Slice& slice) const;
};

}  // namespace mxconv
