#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bound_pages.hpp"

#include <utility>

namespace mxconv {

namespace {

template <class Number>
MutableArray<Number> slab_of(nb::handle handle) {
    MutableArray<Number> slab;
    if (!nb::try_cast(handle, slab, false))
        throw nb::type_error("slabs must be arrays of the pages' dtype, to write to");
    return slab;
}

// Where the pages of some numbers lie.
template <class Number>
std::vector<CachePage> pages_of(const std::vector<MutableArray<Number>>& slabs, const Array<int32_t>& numbers,
                                const DecoderParts& decoder) {
    const int64_t heads = decoder.num_key_value_heads, head_dim = decoder.head_dim;
    for (const auto& slab : slabs) {
        require(slab, "slab", {decoder.num_caches, 2, heads, -1, kPagePositions, head_dim});
    }
    const int64_t length = kPagePositions * head_dim;
    std::vector<CachePage> pages;
    for (size_t i = 0; i < numbers.shape(0); ++i) {
        int64_t number = numbers.data()[i];
        auto slab = slabs.begin();
        for (; slab != slabs.end() && number >= static_cast<int64_t>(slab->shape(3)); ++slab) {
            number -= static_cast<int64_t>(slab->shape(3));
        }
        if (number < 0 || slab == slabs.end()) throw nb::value_error("a page that there is not");
        pages.push_back({slab->data() + number * length, static_cast<int64_t>(slab->shape(3)) * length});
    }
    return pages;
}

}  // namespace

CacheDtype cache_dtype_of(const std::string& name) {
    const char* const names[kNumCacheDtypes] = {"fp32", "bf16", "fp16"};
    for (int i = 0; i < kNumCacheDtypes; ++i) {
        if (name == names[i]) return static_cast<CacheDtype>(i);
    }
    throw nb::value_error("dtype must be fp32, bf16 or fp16");
}

BoundPages::BoundPages(const std::string& dtype, const std::vector<nb::object>& slabs, Array<int32_t> numbers)
    : dtype_(cache_dtype_of(dtype)), numbers_(numbers) {
    for (const nb::object& slab : slabs) {
        if (dtype_ == CacheDtype::kFp32) {
            wide_.push_back(slab_of<float>(slab));
        } else {
            narrow_.push_back(slab_of<uint16_t>(slab));
        }
    }
}

CachePages BoundPages::checked(const DecoderParts& decoder) const {
    require(numbers_, "numbers", {-1});
    std::vector<CachePage> pages =
        dtype_ == CacheDtype::kFp32 ? pages_of(wide_, numbers_, decoder) : pages_of(narrow_, numbers_, decoder);
    return {dtype_, std::move(pages), decoder.num_key_value_heads, decoder.head_dim};
}

void bind_pages(nb::module_& module) {
    nb::class_<BoundPages>(module, "Pages",
                           "The pages of a sequence by their numbers in slabs (layers, 2, heads, pages, positions of a "
                           "page, head_dim), keys before values: float32, or uint16 patterns of bf16 or fp16.")
        .def(nb::init<const std::string&, const std::vector<nb::object>&, Array<int32_t>>(), nb::arg("dtype"),
             nb::arg("slabs"), nb::arg("numbers").noconvert());
}

}  // namespace mxconv
