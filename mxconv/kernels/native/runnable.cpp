#include "runnable.hpp"

#if defined(__x86_64__)
#include "cpuid.hpp"
#elif defined(__aarch64__)
#include "arm_features.hpp"
#endif

namespace mxconv {

std::vector<std::string_view> runnable() {
    std::vector<std::string_view> names;
#if defined(__x86_64__)
    const CpuFeatures& has = cpu_features();
    const bool has_avx2 = has.avx2 && has.fma && has.f16c && has.bmi && has.bmi2;
    const bool has_avx512 = has_avx2 && has.avx512f && has.avx512bw && has.avx512vl && has.avx512dq && has.avx512vnni;
    const bool has_bf16 = has_avx512 && has.avx512bf16;
    if (has_bf16 && !has.slow_bf16) names.push_back("avx512bf16");
    if (has_avx512) names.push_back("avx512vnni");
    if (has_bf16 && has.slow_bf16) names.push_back("avx512bf16");
    if (has_avx2 && has.avxvnniint8) names.push_back("avxvnniint8");
    if (has_avx2 && has.avxvnni) names.push_back("avxvnni");
    if (has_avx2) names.push_back("avx2");
#elif defined(__aarch64__)
    const ArmFeatures features = arm_features();
    const bool has_i8mm = features.dot_products && features.int8_matrices;
    if (has_i8mm && features.bf16) names.push_back("neonbf16");
    if (has_i8mm) names.push_back("neoni8mm");
    if (features.dot_products) names.push_back("neon");
#endif
    names.push_back("portable");
    return names;
}

}  // namespace mxconv

#if defined(MXCONV_PROBE)  // a program that CMake runs where MXCONV_KERNELS is `native`
#include <cstdio>

int main() {
    for (const std::string_view name : mxconv::runnable()) std::printf("%.*s;", int(name.size()), name.data());
}
#endif
