// Arrays from Python as they are: no dtype is converted, nothing is copied, anything unexpected is a TypeError.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <initializer_list>
#include <string>

namespace mxconv {

namespace nb = nanobind;

template <class T>
using Array = nb::ndarray<const T, nb::device::cpu>;

template <class T>
using MutableArray = nb::ndarray<T, nb::device::cpu>;

inline void require_that(bool holds, const char* what) {
    if (!holds) throw nb::value_error(what);
}

// The member of an enumeration that has this name; `names` are in the order of its members.
template <class Enum, size_t kCount>
Enum named(const char* what, const std::string& name, const char* const (&names)[kCount]) {
    std::string all;
    for (size_t i = 0; i < kCount; ++i) {
        if (name == names[i]) return static_cast<Enum>(i);
        all += (i == 0 ? "" : i + 1 < kCount ? ", " : " or ") + std::string(names[i]);
    }
    throw nb::value_error((std::string(what) + " must be " + all).c_str());
}

// Require C order, a shape (-1: any length) and natural alignment of what kernels will read.
template <class T>
void require(const nb::ndarray<T, nb::device::cpu>& array, const char* name, std::initializer_list<int64_t> shape) {
    std::string wanted;
    bool fits = array.ndim() == shape.size();
    size_t axis = 0;
    for (int64_t length : shape) {
        if (fits && length >= 0 && static_cast<int64_t>(array.shape(axis)) != length) fits = false;
        wanted += (axis++ ? ", " : "") + (length < 0 ? std::string("any") : std::to_string(length));
    }
    std::string found;
    int64_t stride = 1;
    bool contiguous = true;
    for (size_t i = array.ndim(); i-- > 0;) {
        found = std::to_string(array.shape(i)) + (found.empty() ? "" : ", ") + found;
        if (array.shape(i) != 1 && array.stride(i) != stride) contiguous = false;
        stride *= static_cast<int64_t>(array.shape(i));
    }
    if (!fits) {
        throw nb::type_error((std::string(name) + ": shape (" + found + "); (" + wanted + ") is required").c_str());
    }
    if (!contiguous && stride) {
        throw nb::type_error((std::string(name) + ": strides of another order; C-contiguous is required").c_str());
    }
    if (reinterpret_cast<uintptr_t>(array.data()) % alignof(T)) {
        throw nb::type_error((std::string(name) + ": data not aligned to its elements").c_str());
    }
}

}  // namespace mxconv
