#include "recurrent.hpp"

#include <nanobind/stl/optional.h>

#include <algorithm>

#include "step.hpp"

namespace mxconv {

StateSizes with_memory(const std::tuple<int64_t, int64_t, int64_t>& memory, int64_t gates) {
    constexpr int64_t kMost = 1 << 20;
    StateSizes sizes{};
    std::tie(sizes.heads, sizes.rows, sizes.columns) = memory;
    for (const int64_t each : {sizes.heads, sizes.rows, sizes.columns}) {
        require_that(each >= 1 && each <= kMost, "a memory of impossible sizes");
    }
    sizes.num_gates = gates * sizes.heads;
    return sizes;
}

void Recurrent::begin(const BoundConvolution& bound, const StateSizes& given) {
    constexpr int64_t kMost = 1 << 16;
    require_that(bound.layer >= 0 && bound.layer < kMost, "a layer of an impossible number");
    layer = bound.layer;
    sizes = given;
    require(bound.taps, "taps", {-1, sizes.num_channels});
    sizes.kernel_size = static_cast<int64_t>(bound.taps.shape(0));
    if (sizes.kernel_size < 1) throw nb::value_error("a convolution needs a tap");
    convolution = {bound.taps.data(), vector_of(bound.bias, "bias", sizes.num_channels)};
}

Demands Recurrent::demands() const {
    Demands demands{output.rows()};
    demands.num_states = layer + 1;
    demands.state = sizes;
    return demands;
}

Recurrent::Way Recurrent::way(Room& room, const Slice& slice) const {
    int64_t num_copies = 0, num_windows = 0;
    for (const SliceWalk& walk : slice.walks) {
        num_copies = std::max(num_copies, walk.num_copies);
        num_windows = std::max(num_windows, LayerWalk::num_windows(walk));
    }
    Way way{};
    way.mixed = room.shared.activations(slice.num_tokens, output.matrix->columns, output.form());
    way.products = room.shared.take<float>(slice.num_tokens * output.rows());
    way.seen = room.own.take<const float*>(sizes.kernel_size);
    way.copies = room.own.take<float>(num_copies * sizes.head());
    way.windows = room.own.take<float>(num_windows * sizes.window());
    return way;
}

LayerWalk Recurrent::walk_of(const SliceWalk& walk, const float* inputs, int64_t stride) const {
    return {walk, sizes, layer, inputs, stride};
}

void Recurrent::convolve(const Step& step, const LayerWalk& walk, int64_t number, int64_t first, int64_t count,
                         const Way& way, float* out) const {
    walk.see(number, way.seen);
    const ConvolutionTaps taps{convolution.taps, convolution.bias, sizes.kernel_size, sizes.num_channels};
    step.kernels.rowwise.convolve(way.seen, taps, first, count, out);
}

void Recurrent::keep(Step& step, const float* inputs, int64_t stride, const Way& way) const {
    const std::vector<SliceWalk>& walks = step.slice.walks;
    for (auto i = static_cast<size_t>(step.own.thread); i < walks.size();
         i += static_cast<size_t>(step.num_threads())) {
        walk_of(walks[i], inputs, stride).keep(way.windows);
    }
}

void bind_recurrent(nb::module_& module) {
    nb::class_<BoundConvolution> convolution(module, "Convolution",
                                             "A convolution of the layer with a state of that number.");
    define_members<Array<float>, MaybeVector, int64_t>(convolution, {"taps", "bias", "layer"});
}

}  // namespace mxconv
