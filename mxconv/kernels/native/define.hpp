// Functions for Python by the names of their parameters alone: what is optional may be None, and arrays are taken as they
// are. A constructor is a function that makes what it constructs.
#pragma once

#include <optional>
#include <type_traits>
#include <utility>

#include "arrays.hpp"

namespace mxconv {

template <class T>
struct IsOptional : std::false_type {
    using Value = T;
};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {
    using Value = T;
};

template <class T>
struct IsArray : std::false_type {};
template <class... Traits>
struct IsArray<nb::ndarray<Traits...>> : std::true_type {};

template <class T>
auto parameter(const char* name) {
    using Optional = IsOptional<std::decay_t<T>>;
    if constexpr (Optional::value && IsArray<typename Optional::Value>::value) {
        return nb::arg(name).noconvert().none();
    } else if constexpr (Optional::value) {
        return nb::arg(name).none();
    } else if constexpr (IsArray<typename Optional::Value>::value) {
        return nb::arg(name).noconvert();
    } else {
        return nb::arg(name);
    }
}

template <size_t kCount>
using Names = const char* const (&)[kCount];

// `more`: a doc string, or nb::kw_only() before it.
template <class Scope, class Function, size_t... kIndex, class... Types, size_t kCount, class... More>
void define_by(Scope& scope, const char* name, const Function& function, std::index_sequence<kIndex...>,
               void (*)(Types...), Names<kCount> names, const More&... more) {
    static_assert(sizeof...(Types) == kCount, "a name for each parameter");
    scope.def(name, function, more..., parameter<Types>(names[kIndex])...);
}

template <class Result, class... Types, size_t kCount, class... More>
void define(nb::module_& module, const char* name, Result (*function)(Types...), Names<kCount> names,
            const More&... more) {
    define_by(module, name, function, std::make_index_sequence<kCount>(), static_cast<void (*)(Types...)>(nullptr),
              names, more...);
}

template <class T, class... Types, size_t kCount, class... More>
void define_init(nb::class_<T>& type, T (*make)(Types...), Names<kCount> names, const More&... more) {
    const auto construct = [make](T* self, Types... values) { new (self) T(make(std::forward<Types>(values)...)); };
    define_by(type, "__init__", construct, std::make_index_sequence<kCount>(), static_cast<void (*)(Types...)>(nullptr),
              names, more...);
}

template <class T, class Result, class... Types, size_t kCount, class... More>
void define_method(nb::class_<T>& type, const char* name, Result (*function)(const T&, Types...), Names<kCount> names,
                   const More&... more) {
    define_by(type, name, function, std::make_index_sequence<kCount>(), static_cast<void (*)(Types...)>(nullptr), names,
              more...);
}

}  // namespace mxconv
