#include "cpuid.hpp"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#endif

namespace mxconv {

#if defined(__x86_64__)
namespace {

struct Leaf {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;

    Leaf(unsigned number, unsigned part) { __get_cpuid_count(number, part, &eax, &ebx, &ecx, &edx); }
};

inline bool bit(unsigned word, int index) { return (word >> index & 1) != 0; }

// Which registers the system saves: XCR0.
uint64_t saved_registers() {
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t{high} << 32 | low;
}

// Intel SDM volume 2A, CPUID.
CpuFeatures ask() {
    const Leaf vendor(0, 0), basic(1, 0), extended(7, 0), more(7, 1);
    const uint64_t saved = bit(basic.ecx, 27) ? saved_registers() : 0;
    const bool ymm = (saved & 0x06) == 0x06, zmm = (saved & 0xE6) == 0xE6;
    CpuFeatures found{};
    found.avx = ymm && bit(basic.ecx, 28);
    found.fma = found.avx && bit(basic.ecx, 12);
    found.f16c = found.avx && bit(basic.ecx, 29);
    found.avx2 = found.avx && bit(extended.ebx, 5);
    found.bmi = bit(extended.ebx, 3);
    found.bmi2 = bit(extended.ebx, 8);
    found.sha = bit(extended.ebx, 29);
    found.avxvnni = found.avx2 && bit(more.eax, 4);
    found.avxvnniint8 = found.avx2 && bit(more.edx, 4);
    found.avx512f = zmm && bit(extended.ebx, 16);
    found.avx512dq = found.avx512f && bit(extended.ebx, 17);
    found.avx512bw = found.avx512f && bit(extended.ebx, 30);
    found.avx512vl = found.avx512f && bit(extended.ebx, 31);
    found.avx512vnni = found.avx512f && bit(extended.ecx, 11);
    found.avx512bf16 = found.avx512f && bit(more.eax, 5);
    const unsigned family = basic.eax >> 8 & 0xF, model = (basic.eax >> 4 & 0xF) | (basic.eax >> 12 & 0xF0);
    const bool is_intel = vendor.ebx == 0x756E6547, is_amd = vendor.ebx == 0x68747541;  // "Genu", "Auth"
    const unsigned whole_family = family == 0xF ? family + (basic.eax >> 20 & 0xFF) : family;
    found.slow_bf16 = has_slow_bf16(is_intel, whole_family, model);
    found.few_streams = has_few_streams(is_amd, whole_family);
    return found;
}

}  // namespace
#else
static CpuFeatures ask() { return {}; }
#endif

const CpuFeatures& cpu_features() {
    static const CpuFeatures found = ask();
    return found;
}

}  // namespace mxconv
