// What an x86 processor has, asked of the processor itself: Clang 14 knows neither F16C nor AVX-VNNI by name, and Clang
// on Windows links no table of features. Registers of AVX and AVX-512 count only where the system saves them.
#pragma once

namespace mxconv {

struct CpuFeatures {
    bool avx, avx2, fma, f16c, bmi, bmi2;
    bool avx512f, avx512bw, avx512vl, avx512dq, avx512vnni, avx512bf16;
    bool avxvnni, sha;
};

// Nothing at all on other processors.
const CpuFeatures& cpu_features();

}  // namespace mxconv
