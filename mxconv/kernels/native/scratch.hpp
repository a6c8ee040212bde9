// Memory for what lives no longer than a part of a layer: laid out once on nothing, to learn how much it takes, and then,
// the same way, by every thread that uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "kernels.hpp"

namespace mxconv {

// Arrays begin with a line of the cache, so that no register's load needs two.
constexpr std::size_t kLineBytes = 64;

template <class Element>
struct LineAllocator {
    using value_type = Element;

    LineAllocator() = default;
    template <class Other>
    LineAllocator(const LineAllocator<Other>&) {}

    Element* allocate(std::size_t count) {
        return static_cast<Element*>(::operator new(count * sizeof(Element), std::align_val_t{kLineBytes}));
    }
    void deallocate(Element* elements, std::size_t) { ::operator delete(elements, std::align_val_t{kLineBytes}); }

    friend bool operator==(const LineAllocator&, const LineAllocator&) { return true; }
    friend bool operator!=(const LineAllocator&, const LineAllocator&) { return false; }
};

template <class Element>
using Lines = std::vector<Element, LineAllocator<Element>>;

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
    void fit(const Scratch& other) { num_bytes_ = num_bytes_ < other.num_bytes_ ? other.num_bytes_ : num_bytes_; }

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

// Memory for the forms of some activation rows; grows, never shrinks.
class ActivationBuffer {
  public:
    Activations& reserve(int64_t num_tokens, int64_t columns, int forms) {
        Scratch needed;
        needed.activations(num_tokens, columns, forms);
        memory_.reserve(needed.num_bytes());
        if (finite_.size() < static_cast<size_t>(num_tokens)) finite_.resize(static_cast<size_t>(num_tokens));
        return activations_ = memory_.scratch().activations(num_tokens, columns, forms, finite_.data());
    }

  private:
    ScratchMemory memory_;
    Lines<uint8_t> finite_;
    Activations activations_{};
};

}  // namespace mxconv
