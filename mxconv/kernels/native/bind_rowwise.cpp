// The row-wise kernels one by one, on the calling thread: a forward pass calls them itself, tests compare them here.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "bindings.hpp"

namespace mxconv {

Activation activation_of(const std::string& name) {
    return named<Activation>("activation", name, {"silu", "gelu", "gelu_tanh", "relu2", "sigmoid"});
}

namespace {

void norm(const Engine& engine, const Array<float>& x, const Norm& norm, const MutableArray<float>& out) {
    require(x, "x", {-1, norm.length});
    const auto rows = static_cast<int64_t>(x.shape(0));
    require(out, "out", {rows, norm.length});
    for (int64_t row = 0; row < rows; ++row) {
        norm.apply(engine.kernels->rowwise, x.data() + row * norm.length, out.data() + row * norm.length);
    }
}

void activate(const Engine& engine, const std::string& activation, const Array<float>& x, const MaybeVector& y,
              const MutableArray<float>& out) {
    require(x, "x", {-1});
    const auto length = static_cast<int64_t>(x.shape(0));
    if (y) require(*y, "y", {length});
    require(out, "out", {length});
    const auto function = engine.kernels->rowwise.activate[static_cast<int>(activation_of(activation))];
    function(x.data(), y ? y->data() : nullptr, length, out.data());
}

void clamped_gates(const Engine& engine, const Array<float>& x, const Array<float>& y, double slope, double limit,
                   const MutableArray<float>& out) {
    require(x, "x", {-1});
    const auto length = static_cast<int64_t>(x.shape(0));
    require(y, "y", {length});
    require(out, "out", {length});
    engine.kernels->rowwise.clamped_gates(x.data(), y.data(), static_cast<float>(slope), static_cast<float>(limit),
                                          length, out.data());
}

void cap(const Engine& engine, double cap, const MutableArray<float>& x) {
    require(x, "x", {-1});
    engine.kernels->rowwise.cap(static_cast<float>(cap), static_cast<int64_t>(x.shape(0)), x.data());
}

// An array of rows as pages of one run.
template <class Number>
std::vector<CachePage> pages_of(const Array<Number>& rows, int64_t num_rows, int64_t length) {
    std::vector<CachePage> pages;
    for (int64_t row = 0; row < num_rows; row += kPagePositions)
        pages.push_back({const_cast<Number*>(rows.data() + row * length), 0});
    return pages;
}

template <class Number>
void attend(const Engine& engine, const Array<float>& queries, const Array<Number>& keys, const Array<Number>& values,
            const Array<int32_t>& runs, const Array<int32_t>& positions, double cap, const MutableArray<float>& out,
            const MaybeVector& sinks, const std::string& dtype_name) {
    const CacheDtype dtype = cache_dtype_of(dtype_name);
    if ((dtype == CacheDtype::kFp32) != std::is_same_v<Number, float>) throw nb::type_error("keys of another dtype");
    require(queries, "queries", {-1, -1, -1});
    const auto num_tokens = static_cast<int64_t>(queries.shape(0)), num_heads = static_cast<int64_t>(queries.shape(1));
    const auto head_dim = static_cast<int64_t>(queries.shape(2));
    require(keys, "keys", {-1, head_dim});
    const auto num_positions = static_cast<int64_t>(keys.shape(0));
    require(values, "values", {num_positions, head_dim});
    require(runs, "runs", {num_tokens});
    require(positions, "positions", {num_tokens, -1});
    require(out, "out", {num_tokens, num_heads, head_dim});
    if (sinks) require(*sinks, "sinks", {num_heads});
    const auto num_others = static_cast<int64_t>(positions.shape(1));
    std::vector<Visible> visible;
    int64_t most = 0;
    for (int64_t t = 0; t < num_tokens; ++t) {
        const int64_t run = runs.data()[t];
        require_that(run >= 0 && run <= num_positions && run + num_others >= 1, "no visible position");
        visible.push_back({0, run, positions.data() + t * num_others, num_others});
        most = std::max(most, run + num_others);
    }
    for (size_t i = 0; i < positions.size(); ++i) {
        const int32_t position = positions.data()[i];
        require_that(position >= 0 && position < num_positions, "a position outside the keys");
    }
    Lines<float> shares(static_cast<size_t>(kAttentionRows * (most + kAttentionChunk)));
    const int64_t stride = num_heads * head_dim;
    const auto key_pages = pages_of(keys, num_positions, head_dim),
               value_pages = pages_of(values, num_positions, head_dim);
    engine.kernels->rowwise.attend[static_cast<int>(dtype)](
        {queries.data(), num_tokens, num_heads, stride, head_dim, stride, sinks ? sinks->data() : nullptr},
        {key_pages.data(), 0, value_pages.data(), 0, head_dim}, head_dim, static_cast<float>(cap), visible.data(),
        shares.data(), out.data());
}

void round_for_cache(const Array<float>& values, const std::string& dtype, const MutableArray<uint16_t>& out) {
    require(values, "values", {-1});
    require(out, "out", {static_cast<int64_t>(values.shape(0))});
    require_that(dtype != "fp32", "fp32 is not rounded");
    round_into(cache_dtype_of(dtype), values.data(), static_cast<int64_t>(values.shape(0)), out.data());
}

template <class Number>
void bind_attend(nb::module_& module) {
    module.def("attend", &attend<Number>, nb::arg("engine"), nb::arg("queries").noconvert(),
               nb::arg("keys").noconvert(), nb::arg("values").noconvert(), nb::arg("runs").noconvert(),
               nb::arg("positions").noconvert(), nb::arg("cap"), nb::arg("out").noconvert(),
               nb::arg("sinks").noconvert() = nb::none(), nb::arg("dtype") = "fp32",
               "Attention of scaled queries (tokens, heads, head_dim) to keys (n, head_dim): each token's to the first "
               "of them, as many as `runs` says, then to its `positions` (tokens, m). A cap other than 0 is put on "
               "scores. Sinks (heads,) are scores of no position. Keys and values are float32, or patterns of bf16 or "
               "fp16.");
}

}  // namespace

void bind_rowwise(nb::module_& module) {
    define(module, "norm", &norm, {"engine", "x", "norm", "out"}, "A norm of each row of x (rows, n).");
    define(module, "activate", &activate, {"engine", "activation", "x", "y", "out"},
           "out = activated(x), times y where there is one, each (n,).");
    define(module, "clamped_gates", &clamped_gates, {"engine", "x", "y", "slope", "limit", "out"},
           "out = (y + 1) * x * sigmoid(slope * x), each (n,), x at most `limit` and y within it.");
    define(module, "cap", &cap, {"engine", "cap", "x"}, "x (n,) becomes cap * tanh(x / cap).");
    bind_attend<float>(module);
    bind_attend<uint16_t>(module);
    define(module, "round_for_cache", &round_for_cache, {"values", "dtype", "out"},
           "The bf16 or fp16 patterns of values (n,), to nearest, ties to even.");
}

}  // namespace mxconv
