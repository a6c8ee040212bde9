// Memory that begins with a line of the cache, so that no register's load needs two.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace mxconv {

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

}  // namespace mxconv
