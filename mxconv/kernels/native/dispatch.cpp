#include "dispatch.hpp"

#include <functional>

#include "runnable.hpp"

namespace mxconv {

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
