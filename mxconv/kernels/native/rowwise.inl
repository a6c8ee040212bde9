// What a forward pass does beside its matrices: norms, sums, rotations; activations and attention are in files of their
// own. Included inside an anonymous namespace by every instruction set. Elementwise loops are plain; sums go over vectors of
// this instruction set's width, in an order that follows from their length alone.

typedef float Floats __attribute__((vector_size(kVector * sizeof(float))));
typedef int32_t Ints __attribute__((vector_size(kVector * sizeof(int32_t))));
typedef uint32_t Words __attribute__((vector_size(kVector * sizeof(uint32_t))));

inline Floats load_floats(const float* from) {
    Floats vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// All bits set in the first `count` lanes.
inline __m256i first_lanes(int64_t count) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
}
#endif

// The first `count`, zeros after them.
inline Floats load_floats(const float* from, int64_t count) {
#if defined(__AVX512F__)
    return static_cast<Floats>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from));
#elif defined(__AVX2__)
    return static_cast<Floats>(_mm256_maskload_ps(from, first_lanes(count)));
#else
    float padded[kVector] = {};
    for (int64_t i = 0; i < count; ++i) padded[i] = from[i];
    return load_floats(padded);
#endif
}

inline void store_floats(float* to, Floats vector) { std::memcpy(to, &vector, sizeof vector); }

inline void store_floats(float* to, Floats vector, int64_t count) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), static_cast<__m512>(vector));
#elif defined(__AVX2__)
    _mm256_maskstore_ps(to, first_lanes(count), static_cast<__m256>(vector));
#else
    float padded[kVector];
    store_floats(padded, vector);
    for (int64_t i = 0; i < count; ++i) to[i] = padded[i];
#endif
}

// Vectors of `count` numbers, the last one perhaps not full: work(i, load, store), by which it reads and writes at i.
template <class Work>
inline void each_vector(int64_t count, const Work& work) {
    int64_t i = 0;
    for (; i + kVector <= count; i += kVector) {
        work(
            i, [](const float* from) kInlined { return load_floats(from); },
            [](float* to, Floats value) kInlined { store_floats(to, value); });
    }
    if (const int64_t last = count - i; last > 0) {
        work(
            i, [=](const float* from) kInlined { return load_floats(from, last); },
            [=](float* to, Floats value) kInlined { store_floats(to, value, last); });
    }
}

inline Floats all_lanes(float value) { return Floats{} + value; }

// a * b + c, rounded once where the instruction set can.
inline Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return static_cast<Floats>(_mm512_fmadd_ps(static_cast<__m512>(a), static_cast<__m512>(b), static_cast<__m512>(c)));
#elif defined(__AVX2__) && defined(__FMA__)
    return static_cast<Floats>(_mm256_fmadd_ps(static_cast<__m256>(a), static_cast<__m256>(b), static_cast<__m256>(c)));
#elif defined(MXCONV_NEON)
    return static_cast<Floats>(
        vfmaq_f32(static_cast<float32x4_t>(c), static_cast<float32x4_t>(a), static_cast<float32x4_t>(b)));
#else
    return a * b + c;
#endif
}

#if defined(__AVX2__)
// Lanes added up to four, halves onto halves.
inline __m128 half_sum(Floats vector) {
#if defined(__AVX512F__)
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(static_cast<__m512>(vector)),
                                       _mm512_extractf32x8_ps(static_cast<__m512>(vector), 1));
#else
    const auto eight = static_cast<__m256>(vector);
#endif
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}
#endif

// The sum of all lanes.
inline float lane_sum(Floats vector) {
#if defined(__AVX2__)
    const __m128 four = half_sum(vector);
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#elif defined(MXCONV_NEON)
    return vaddvq_f32(static_cast<float32x4_t>(vector));  // two pairwise additions
#else
    return (vector[0] + vector[2]) + (vector[1] + vector[3]);
#endif
}

// e^x, within 2 units in the last place; infinities, NaNs and results below 2^-126 come out as IEEE has them.
inline Floats exponential(Floats x) {
    x = x > all_lanes(89.5f) ? all_lanes(89.5f) : x;  // infinite from 88.73 on; a NaN is not above, and stays
    x = x < all_lanes(-105.0f) ? all_lanes(-105.0f) : x;
    // x = n ln 2 + r: adding 1.5 * 2^23 leaves the nearest integer in the low bits
    const Floats shifted = x * 1.44269504f + 12582912.0f;
    const Floats n = shifted - 12582912.0f;
    Floats r = x - n * 0.693359375f;  // ln 2 in two parts, the first so short that its product is exact
    r = r - n * -2.12194440e-4f;
    Floats p = all_lanes(1.9875691500e-4f);  // e^r = 1 + r + r^2 p(r), minimax on |r| <= ln 2 / 2
    p = fused(p, r, all_lanes(1.3981999507e-3f));
    p = fused(p, r, all_lanes(8.3334519073e-3f));
    p = fused(p, r, all_lanes(4.1665795894e-2f));
    p = fused(p, r, all_lanes(1.6666665459e-1f));
    p = fused(p, r, all_lanes(5.0000001201e-1f));
    p = fused(p, r * r, r) + 1.0f;
    // 2^n in two steps: n reaches from -152 to 130, and only the second step may round
    const auto exponent = with_bits<Ints>(with_bits<Words>(shifted) - 0x4B400000u);
    const auto half = with_bits<Words>(exponent >> 1);
    return p * with_bits<Floats>((half + 127u) << 23) *
           with_bits<Floats>((with_bits<Words>(exponent) - half + 127u) << 23);
}

// Sums over four vectors side by side, added up by pairs: of add(part, sum).
template <class Add>
inline float sum_of(const float* x, int64_t length, const Add& add) {
    Floats sums[4] = {};
    int64_t i = 0;
    for (; i + 4 * kVector <= length; i += 4 * kVector) {
        for (int64_t k = 0; k < 4; ++k) {
            const Floats part = load_floats(x + i + k * kVector);
            sums[k] = add(part, sums[k]);
        }
    }
    for (int64_t k = 0; i < length; i += kVector, ++k) {
        const Floats part = load_floats(x + i, least(kVector, length - i));
        sums[k] = add(part, sums[k]);
    }
    return lane_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

inline float square_sum(const float* x, int64_t length) {
    return sum_of(x, length, [](Floats part, Floats sum) kInlined { return fused(part, part, sum); });
}

void rms_norm(const float* x, const float* weight, int64_t length, float eps, float* out) {
    const float inverse = 1.0f / __builtin_sqrtf(square_sum(x, length) / static_cast<float>(length) + eps);
    for (int64_t i = 0; i < length; ++i) out[i] = x[i] * inverse * weight[i];
}

void layer_norm(const float* x, const float* weight, const float* bias, int64_t length, float eps, float* out) {
    const float sum = sum_of(x, length, [](Floats part, Floats before) kInlined { return before + part; });
    const float mean = sum / static_cast<float>(length);
    for (int64_t i = 0; i < length; ++i) out[i] = x[i] - mean;
    rms_norm(out, weight, length, eps, out);
    if (bias == nullptr) return;
    for (int64_t i = 0; i < length; ++i) out[i] += bias[i];
}

void add(const float* x, int64_t length, float* out) {
    for (int64_t i = 0; i < length; ++i) out[i] += x[i];
}

void add_scaled(const float* x, float factor, int64_t length, float* out) {
    for (int64_t i = 0; i < length; ++i) out[i] += x[i] * factor;
}

void scale(float factor, int64_t length, float* x) {
    for (int64_t i = 0; i < length; ++i) x[i] *= factor;
}

void clip(float limit, int64_t length, float* x) {
    for (int64_t i = 0; i < length; ++i) x[i] = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];  // a NaN stays
}

void rotate(const float* cosines, const float* sines, int64_t half, float factor, float* head) {
    for (int64_t i = 0; i < half; ++i) {
        const float first = head[i], second = head[half + i];
        head[i] = (first * cosines[i] - second * sines[i]) * factor;
        head[half + i] = (second * cosines[i] + first * sines[i]) * factor;
    }
}

void rotate_neighbours(const float* cosines, const float* sines, int64_t half, float factor, float* head) {
    for (int64_t i = 0; i < half; ++i) {
        const float first = head[2 * i], second = head[2 * i + 1];
        head[2 * i] = (first * cosines[i] - second * sines[i]) * factor;
        head[2 * i + 1] = (second * cosines[i] + first * sines[i]) * factor;
    }
}

#include "activations.inl"
#include "cache_elements.inl"
#include "attention.inl"
#include "recurrence.inl"

constexpr Rowwise kRowwise{rms_norm,
                           layer_norm,
                           add,
                           add_scaled,
                           scale,
                           put_cap,
                           rotate,
                           rotate_neighbours,
                           dot<float>,
                           {activate<Silu>, activate<Gelu>, activate<GeluTanh>, activate<Relu2>, activate<Sigmoid>},
                           clamped_gates,
                           clip,
                           {attend<float>, attend<KeptBf16>, attend<KeptF16>},
                           convolve,
                           correct,
                           go_through_space};
