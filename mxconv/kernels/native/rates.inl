// The rate of multiply-adds, for benchmarks: chains of an instruction set's multiply_add<form>, each call kProducts<form> of
// them, in its Register.

// The value is in a register here, and no compiler knows it.
inline void make_unknown(Register& value) {
#if defined(MXCONV_NEON)
    asm volatile("" : "+w"(value));
#else
    asm volatile("" : "+v"(value));
#endif
}

template <Form kForm>
int64_t multiply_add_chains(int64_t iterations) {
    Register sums[kChains] = {}, weights, x;
    std::memset(&weights, 1, sizeof weights);
    std::memset(&x, 1, sizeof x);
    each<kChains>([&](auto k) kInlined { make_unknown(sums[k]); });  // nor that all are equal
    for (int64_t i = 0; i < iterations; ++i) {
        make_unknown(weights);
        make_unknown(x);
        each<kChains>([&](auto k) kInlined { sums[k] = multiply_add<kForm>(sums[k], weights, x); });
    }
    each<kChains>([&](auto k) kInlined { make_unknown(sums[k]); });
    return iterations * kChains * kProducts<kForm>;
}

int64_t multiply_adds(Form form, int64_t iterations) {
    if (form == kInt8) return multiply_add_chains<kInt8>(iterations);
    if (form == kRoundedBf16) return multiply_add_chains<kRoundedBf16>(iterations);
    return multiply_add_chains<kFloat>(iterations);
}
