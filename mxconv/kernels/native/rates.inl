// The rate of multiply-adds, for benchmarks: chains of an instruction set's multiply_add<form>, each call kProducts<form> of them, in
// its Register.

#if defined(MXCONV_NEON)
#define MXCONV_REGISTER "w"
#else
#define MXCONV_REGISTER "v"
#endif

template <Form kForm>
int64_t multiply_add_chains(int64_t iterations) {
    Register sums[kChains] = {}, weights, x;
    std::memset(&weights, 1, sizeof weights);
    std::memset(&x, 1, sizeof x);
    each<kChains>([&](auto k) kInlined { asm volatile("" : "+" MXCONV_REGISTER(sums[k])); });  // not known to be equal
    for (int64_t i = 0; i < iterations; ++i) {
        asm volatile("" : "+" MXCONV_REGISTER(weights), "+" MXCONV_REGISTER(x));  // no product is known beforehand
        each<kChains>([&](auto k) kInlined { sums[k] = multiply_add<kForm>(sums[k], weights, x); });
    }
    each<kChains>([&](auto k) kInlined { asm volatile("" : : MXCONV_REGISTER(sums[k])); });
    return iterations * kChains * kProducts<kForm>;
}

int64_t multiply_adds(Form form, int64_t iterations) {
    if (form == kInt8) return multiply_add_chains<kInt8>(iterations);
    if (form == kRoundedBf16) return multiply_add_chains<kRoundedBf16>(iterations);
    return multiply_add_chains<kFloat>(iterations);
}
