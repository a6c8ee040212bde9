// The rate of multiply-adds with NEON, for benchmarks.

// One multiply-add of registers, in the widest way that this instruction set has for the form.
template <Form kForm>
inline int32x4_t multiply_add(int32x4_t sum, int32x4_t weights, int32x4_t x) {
    if constexpr (kForm == kInt8) {
#ifdef __ARM_FEATURE_MATMUL_INT8
        return vmmlaq_s32(sum, vreinterpretq_s8_s32(weights), vreinterpretq_s8_s32(x));
#else
        return vdotq_s32(sum, vreinterpretq_s8_s32(weights), vreinterpretq_s8_s32(x));
#endif
    }
    const float32x4_t floats = vreinterpretq_f32_s32(sum);
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    if constexpr (kForm == kRoundedBf16) {
        return vreinterpretq_s32_f32(vbfmmlaq_f32(floats, vreinterpretq_bf16_s32(weights), vreinterpretq_bf16_s32(x)));
    }
#endif
    return vreinterpretq_s32_f32(vfmaq_f32(floats, vreinterpretq_f32_s32(weights), vreinterpretq_f32_s32(x)));
}

template <Form kForm>
int64_t multiply_add_chains(int64_t iterations, int64_t a_register) {
    constexpr int kChains = 16;
    int32x4_t sums[kChains];
    for (int32x4_t& sum : sums) sum = vdupq_n_s32(0);
    int32x4_t weights = vdupq_n_s32(0x01010101), x = vdupq_n_s32(0x01010101);
    for (int k = 0; k < kChains; ++k) asm volatile("" : "+w"(sums[k]));  // chains that are not known to be equal
    for (int64_t i = 0; i < iterations; ++i) {
        asm volatile("" : "+w"(weights), "+w"(x));  // no product is known beforehand
#pragma GCC unroll 16
        for (int k = 0; k < kChains; ++k) sums[k] = multiply_add<kForm>(sums[k], weights, x);
    }
    for (int k = 0; k < kChains; ++k) asm volatile("" : : "w"(sums[k]));
    return iterations * kChains * a_register;
}

int64_t multiply_adds(Form form, int64_t iterations) {
#ifdef __ARM_FEATURE_MATMUL_INT8
    if (form == kInt8) return multiply_add_chains<kInt8>(iterations, 32);
#else
    if (form == kInt8) return multiply_add_chains<kInt8>(iterations, 16);
#endif
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    if (form == kRoundedBf16) return multiply_add_chains<kRoundedBf16>(iterations, 16);
#endif
    return multiply_add_chains<kFloat>(iterations, 4);
}
