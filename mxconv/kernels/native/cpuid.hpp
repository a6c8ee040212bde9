// What an x86 processor has, asked of the processor itself: Clang 14 knows neither F16C nor AVX-VNNI by name, and Clang
// on Windows links no table of features. Registers of AVX and AVX-512 count only where the system saves them.
#pragma once

namespace mxconv {

struct CpuFeatures {
    bool avx, avx2, fma, f16c, bmi, bmi2;
    bool avx512f, avx512bw, avx512vl, avx512dq, avx512vnni, avx512bf16;
    bool avxvnni, avxvnniint8, sha;
    bool slow_bf16;    // vdpbf16ps at half the rate of FP32 multiply-adds
    bool few_streams;  // eight rows of weights come slower from memory than four
};

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

// Nothing at all on other processors.
const CpuFeatures& cpu_features();

}  // namespace mxconv
