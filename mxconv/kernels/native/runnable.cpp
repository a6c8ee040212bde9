#include "runnable.hpp"

#if defined(__x86_64__)
#include "cpuid.hpp"
#elif defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif

namespace mxconv {

#if defined(__aarch64__)
namespace {

// What the processor can do beyond the base of ARMv8, as the operating system says; nothing on others than Linux and macOS.
struct ArmFeatures {
    bool dot_products;   // FEAT_DotProd
    bool int8_matrices;  // FEAT_I8MM
    bool bf16;           // FEAT_BF16
};

#if defined(__linux__)
ArmFeatures arm_features() {
    // Documentation/arm64/elf_hwcaps.rst of Linux; older headers lack the names
    const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    return {(first >> 20 & 1) != 0, (second >> 13 & 1) != 0, (second >> 14 & 1) != 0};
}
#elif defined(__APPLE__)
bool has(const char* name) {
    int value = 0;
    size_t num_bytes = sizeof value;
    return sysctlbyname(name, &value, &num_bytes, nullptr, 0) == 0 && value != 0;
}

ArmFeatures arm_features() {
    return {has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_I8MM"), has("hw.optional.arm.FEAT_BF16")};
}
#else
ArmFeatures arm_features() { return {false, false, false}; }
#endif

}  // namespace
#endif

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
