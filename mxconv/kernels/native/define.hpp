// Functions for Python by the names of their parameters alone: what is optional may be None, and arrays are taken as they
// are. What makes an object lets it point into its arguments: it keeps them alive.
#pragma once

#include <optional>
#include <utility>

#include "arrays.hpp"

namespace mxconv {

template <class T>
constexpr bool kIsOptional = false;
template <class T>
constexpr bool kIsOptional<std::optional<T>> = true;

template <class T>
constexpr bool kIsArray = false;
template <class... Traits>
constexpr bool kIsArray<nb::ndarray<Traits...>> = true;
template <class T>
constexpr bool kIsArray<std::optional<T>> = kIsArray<T>;

template <class T>
auto parameter(const char* name) {
    using Value = std::decay_t<T>;
    if constexpr (kIsArray<Value> && kIsOptional<Value>) {
        return nb::arg(name).noconvert().none();
    } else if constexpr (kIsArray<Value>) {
        return nb::arg(name).noconvert();
    } else if constexpr (kIsOptional<Value>) {
        return nb::arg(name).none();
    } else {
        return nb::arg(name);
    }
}

template <size_t kCount>
using Names = const char* const (&)[kCount];

// `more`: a doc string, or nb::kw_only() before it. kOwner is 0 for a result and 1 for `self`, as in nb::keep_alive; -1: the
// arguments are not kept.
template <int kOwner, class Scope, class Function, size_t... kIndex, class... Types, size_t kCount, class... More>
void define_by(Scope& scope, const char* name, const Function& function, std::index_sequence<kIndex...>,
               void (*)(Types...), Names<kCount> names, const More&... more) {
    static_assert(sizeof...(Types) == kCount, "a name for each parameter");
    if constexpr (kOwner < 0) {
        scope.def(name, function, more..., parameter<Types>(names[kIndex])...);
    } else {
        scope.def(name, function, more..., parameter<Types>(names[kIndex])...,
                  nb::keep_alive<kOwner, kOwner + 1 + kIndex>()...);
    }
}

// A function; with kOwner 0 one that makes an object.
template <int kOwner = -1, class Result, class... Types, size_t kCount, class... More>
void define(nb::module_& module, const char* name, Result (*function)(Types...), Names<kCount> names,
            const More&... more) {
    define_by<kOwner>(module, name, function, std::make_index_sequence<kCount>(),
                      static_cast<void (*)(Types...)>(nullptr), names, more...);
}

// A constructor, by a function that makes what it constructs.
template <class T, class... Types, size_t kCount, class... More>
void define_init(nb::class_<T>& type, T (*make)(Types...), Names<kCount> names, const More&... more) {
    const auto construct = [make](T* self, Types... values) { new (self) T(make(std::forward<Types>(values)...)); };
    define_by<1>(type, "__init__", construct, std::make_index_sequence<kCount>(),
                 static_cast<void (*)(Types...)>(nullptr), names, more...);
}

// A constructor from the members of a struct, which have these types.
template <class... Types, class T, size_t kCount, class... More>
void define_members(nb::class_<T>& type, Names<kCount> names, const More&... more) {
    define_init(type, +[](Types... values) { return T{std::move(values)...}; }, names, more...);
}

template <class T, class Result, class... Types, size_t kCount, class... More>
void define_method(nb::class_<T>& type, const char* name, Result (*function)(const T&, Types...), Names<kCount> names,
                   const More&... more) {
    define_by<-1>(type, name, function, std::make_index_sequence<kCount>(), static_cast<void (*)(Types...)>(nullptr),
                  names, more...);
}

}  // namespace mxconv
