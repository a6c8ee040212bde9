#include "recurrent.hpp"

#include <algorithm>

#include "step.hpp"

namespace mxconv {

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
    if (!only_follows) {
        way.mixed = room.shared.activations(slice.num_tokens, output.matrix->columns, output.form());
        way.products = room.shared.take<float>(slice.num_tokens * output.rows());
    }
    way.seen = room.own.take<const float*>(sizes.kernel_size);
    way.copies = room.own.take<float>(num_copies * sizes.head());
    way.windows = room.own.take<float>(num_windows * sizes.window());
    return way;
}

int64_t Recurrent::num_steps(const SliceWalk& walk) const {
    return only_follows ? walk.num_settled : static_cast<int64_t>(walk.steps.size());
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
        walk_of(walks[i], inputs, stride).keep(only_follows ? walks[i].num_settled : walks[i].num_running, way.windows);
    }
}

}  // namespace mxconv
