// Which kernels a processor can run. An x86 processor is asked itself: Clang 14 knows neither F16C nor AVX-VNNI by name, and
// Clang on Windows links no table of features. Registers of AVX and AVX-512 count only where the system saves them.
#pragma once

#include <string_view>
#include <vector>

namespace mxconv {

// Of x86; all that kernels of these names need.
struct CpuFeatures {
    bool avx2, avxvnni, avxvnniint8, avx512vnni, avx512bf16;
    bool sha;          // and AVX
    bool slow_bf16;    // vdpbf16ps at half the rate of FP32 multiply-adds
    bool few_streams;  // eight rows of weights come slower from memory than four
};

// Nothing at all on other processors.
const CpuFeatures& cpu_features();

// Names of the kernels that this processor can run, best first, whether they were built or not; the last is `portable`.
std::vector<std::string_view> runnable();

}  // namespace mxconv
