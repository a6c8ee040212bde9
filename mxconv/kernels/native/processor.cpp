#include "processor.hpp"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#include <initializer_list>
#elif defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace mxconv {

namespace {

#if defined(__x86_64__)
struct Leaf {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;

    Leaf(unsigned number, unsigned part) { __get_cpuid_count(number, part, &eax, &ebx, &ecx, &edx); }
};

// Whether all of some bits are set.
bool has(unsigned word, std::initializer_list<int> bits) {
    for (const int bit : bits) {
        if ((word >> bit & 1) == 0) return false;
    }
    return true;
}

// Which registers the system saves: XCR0.
uint64_t saved_registers() {
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t{high} << 32 | low;
}

// Golden Cove and its successors in servers: Sapphire, Emerald and Granite Rapids, and Alder Lake where AVX-512 is left on.
// 83 giga multiply-adds a second of BF16 were measured there against 150 to 165 of FP32; on Zen 4 and 5 BF16 is faster.
constexpr bool has_slow_bf16(bool is_intel, unsigned family, unsigned model) {
    return is_intel && family == 6 &&
           (model == 0x8F || model == 0xCF || model == 0xAD || model == 0xAE || model == 0x97 || model == 0x9A);
}

static_assert(has_slow_bf16(true, 6, 0x8F) && has_slow_bf16(true, 6, 0xCF));
static_assert(!has_slow_bf16(true, 6, 0x55) && !has_slow_bf16(false, 25, 0x11));  // Cooper Lake, Zen 4

// Zen 5: 0.80 of bandwidth with eight rows and 0.85 with four, at 3 to 8 tokens of BF16. Zen 4 gains by eight, which share
// what they load of the activations: its registers of 512 bits are filled in two halves.
constexpr bool has_few_streams(bool is_amd, unsigned family) { return is_amd && family >= 0x1A; }

static_assert(has_few_streams(true, 26) && !has_few_streams(true, 25) && !has_few_streams(false, 26));

// Intel SDM volume 2A, CPUID.
CpuFeatures ask() {
    const Leaf vendor(0, 0), basic(1, 0), extended(7, 0), more(7, 1);
    const uint64_t saved = has(basic.ecx, {27}) ? saved_registers() : 0;
    const bool has_avx = (saved & 0x06) == 0x06 && has(basic.ecx, {28});
    CpuFeatures found{};
    found.sha = has_avx && has(extended.ebx, {29});
    found.avx2 = has_avx && has(basic.ecx, {12, 29}) && has(extended.ebx, {3, 5, 8});  // FMA, F16C; BMI, AVX2, BMI2
    found.avxvnni = found.avx2 && has(more.eax, {4});
    found.avxvnniint8 = found.avx2 && has(more.edx, {4});
    found.avx512vnni = found.avx2 && (saved & 0xE6) == 0xE6 && has(extended.ebx, {16, 17, 30, 31}) &&
                       has(extended.ecx, {11});  // F, DQ, BW, VL; VNNI
    found.avx512bf16 = found.avx512vnni && has(more.eax, {5});
    const unsigned family = basic.eax >> 8 & 0xF, model = (basic.eax >> 4 & 0xF) | (basic.eax >> 12 & 0xF0);
    const bool is_intel = vendor.ebx == 0x756E6547, is_amd = vendor.ebx == 0x68747541;  // "Genu", "Auth"
    const unsigned whole_family = family == 0xF ? family + (basic.eax >> 20 & 0xFF) : family;
    found.slow_bf16 = has_slow_bf16(is_intel, whole_family, model);
    found.few_streams = has_few_streams(is_amd, whole_family);
    return found;
}
#else
CpuFeatures ask() { return {}; }
#endif

#if defined(__aarch64__)
// What the processor can do beyond the base of ARMv8, as the operating system says; nothing on others than Linux and macOS.
struct ArmFeatures {
    bool dot_products, int8_matrices, bf16;  // FEAT_DotProd, FEAT_I8MM, FEAT_BF16
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

#endif

}  // namespace

const CpuFeatures& cpu_features() {
    static const CpuFeatures found = ask();
    return found;
}

std::vector<std::string_view> runnable() {
    std::vector<std::string_view> names;
#if defined(__x86_64__)
    const CpuFeatures& has = cpu_features();
    if (has.avx512bf16 && !has.slow_bf16) names.push_back("avx512bf16");
    if (has.avx512vnni) names.push_back("avx512vnni");
    if (has.avx512bf16 && has.slow_bf16) names.push_back("avx512bf16");
    if (has.avxvnniint8) names.push_back("avxvnniint8");
    if (has.avxvnni) names.push_back("avxvnni");
    if (has.avx2) names.push_back("avx2");
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
