#include "engine.hpp"

#include <functional>

#include "processor.hpp"

namespace mxconv {

void Kernels::linear(const Matrix& matrix, const Activations& activations, int64_t first, int64_t last, float* out,
                     int64_t stride) const {
    const bool is_of_integers = form_of(matrix.kind, matrix.format) == kInt8;
    (is_of_integers ? linear_of_integers : family.linear_of_floats)(matrix, activations, first, last, out, stride);
}

const std::vector<const Kernels*>& available() {
    static const std::vector<const Kernels*> found = [] {
        const std::reference_wrapper<const Kernels> built[] = {MXCONV_BUILT};  // CMakeLists.txt lists them
        std::vector<const Kernels*> list;
        for (const std::string_view name : runnable()) {
            for (const Kernels& kernels : built) {
                if (name == kernels.name) list.push_back(&kernels);
            }
        }
        return list;
    }();
    return found;
}

const Kernels* find(std::string_view name) {
    for (const Kernels* kernels : available()) {
        if (name == kernels->name) return kernels;
    }
    return nullptr;
}

}  // namespace mxconv
