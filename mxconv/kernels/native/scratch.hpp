// Memory for what lives no longer than a part of a layer: laid out once on nothing, to learn how much it takes, and then,
// the same way, by every thread that uses it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.hpp"
#include "lines.hpp"

namespace mxconv {

class Scratch {
  public:
    explicit Scratch(std::byte* memory = nullptr) : memory_(memory) {}

    // Each array begins with a line of the cache. Null where there is no memory yet.
    template <class Element>
    Element* take(int64_t count) {
        constexpr int64_t kLine = kLineBytes;
        const int64_t begin = num_bytes_;
        num_bytes_ += (count * static_cast<int64_t>(sizeof(Element)) + kLine - 1) / kLine * kLine;
        return memory_ == nullptr ? nullptr : reinterpret_cast<Element*>(memory_ + begin);
    }

    // Room for the forms of some rows. Whoever prepares them brings `finite`.
    Activations activations(int64_t num_tokens, int64_t columns, int forms, uint8_t* finite = nullptr) {
        Activations a{};
        a.num_tokens = num_tokens;
        a.columns = columns;
        a.padded = (columns + kBlock - 1) / kBlock * kBlock;
        if (forms & kFloat) a.values = take<float>(num_tokens * a.padded);
        if (forms & kRoundedBf16) {
            a.bf16 = take<uint16_t>(num_tokens * a.padded);
            a.split = take<float>(num_tokens * a.padded);
        }
        if (forms & kInt8) {
            a.codes = take<int8_t>(num_tokens * a.padded);
            a.scales = take<float>(num_tokens * (a.padded / kBlock));
            a.offsets = take<int32_t>(num_tokens * (a.padded / kBlock));
            a.finite = finite;
        }
        return a;
    }

    int64_t num_bytes() const { return num_bytes_; }

  private:
    std::byte* memory_;
    int64_t num_bytes_ = 0;
};

// Room for one layout at a time; grows, never shrinks.
class ScratchMemory {
  public:
    void reserve(int64_t num_bytes) {
        if (bytes_.size() < static_cast<size_t>(num_bytes)) bytes_.resize(static_cast<size_t>(num_bytes));
    }
    Scratch scratch() { return Scratch(bytes_.data()); }

  private:
    Lines<std::byte> bytes_;
};

}  // namespace mxconv
