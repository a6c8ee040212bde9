#include "dispatch.hpp"

#include "cpuid.hpp"
#if defined(__aarch64__)
#include "arm_features.hpp"
#endif

namespace mxconv {

const std::vector<const Kernels*>& available() {
    static const std::vector<const Kernels*> found = [] {
        std::vector<const Kernels*> list;
#if defined(__x86_64__)
        const CpuFeatures& has = cpu_features();
        const bool has_avx2 = has.avx2 && has.fma && has.f16c && has.bmi && has.bmi2;
        const bool has_avx512 =
            has_avx2 && has.avx512f && has.avx512bw && has.avx512vl && has.avx512dq && has.avx512vnni;
        const bool has_bf16 = has_avx512 && has.avx512bf16;
        if (has_bf16 && !has.slow_bf16) list.push_back(&kAvx512Bf16);
        if (has_avx512) list.push_back(&kAvx512Vnni);
        if (has_bf16 && has.slow_bf16) list.push_back(&kAvx512Bf16);
#if defined(MXCONV_HAS_AVXVNNIINT8)
        if (has_avx2 && has.avxvnniint8) list.push_back(&kAvxVnniInt8);
#endif
        if (has_avx2 && has.avxvnni) list.push_back(&kAvxVnni);
        if (has_avx2) list.push_back(&kAvx2);
#elif defined(__aarch64__)
        const ArmFeatures features = arm_features();
        const bool has_i8mm = features.dot_products && features.int8_matrices;
        if (has_i8mm && features.bf16) list.push_back(&kNeonBf16);
        if (has_i8mm) list.push_back(&kNeonI8mm);
        if (features.dot_products) list.push_back(&kNeon);
#endif
        list.push_back(&kPortable);
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
