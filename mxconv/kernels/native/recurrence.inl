// What moves the states of mixers on, a row at a time. Included by rowwise.inl. Columns of a state lie in lanes, and what goes
// over its rows is added up row after row, so that a number's bits follow from its own column.

// The natural logarithm of what is at least 1, within 2 units in the last place; of an infinity some large number.
inline Floats logarithm(Floats x) {
    // x = 2^e (1 + r), r from sqrt(1/2) - 1 to sqrt(2) - 1
    const Words bits = with_bits<Words>(x) + (0x3F800000u - 0x3F3504F3u);
    const Ints exponent = with_bits<Ints>(bits >> 23) - 127;
    const Floats r = with_bits<Floats>((bits & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
    const Floats e = __builtin_convertvector(exponent, Floats), square = r * r;
    Floats p = all_lanes(7.0376836292e-2f);  // log(1 + r) = r - r^2 / 2 + r^3 p(r), minimax (Cephes, logf)
    p = fused(p, r, all_lanes(-1.1514610310e-1f));
    p = fused(p, r, all_lanes(1.1676998740e-1f));
    p = fused(p, r, all_lanes(-1.2420140846e-1f));
    p = fused(p, r, all_lanes(1.4249322787e-1f));
    p = fused(p, r, all_lanes(-1.6668057665e-1f));
    p = fused(p, r, all_lanes(2.0000714765e-1f));
    p = fused(p, r, all_lanes(-2.4999993993e-1f));
    p = fused(p, r, all_lanes(3.3333331174e-1f));
    p = p * r * square + e * -2.12194440e-4f - square * 0.5f;
    return r + p + e * 0.693359375f;
}

// log(1 + e^x). What 1 + e^x loses in rounding is made good by the quotient of e^x and what is left of it (Kahan).
inline Floats softplus(Floats x) {
    const Floats limit = all_lanes(20.0f), one = all_lanes(1.0f);
    const Floats power = exponential(select(x > limit, limit, x)), sum = power + 1.0f;
    const Floats part = sum - 1.0f;
    const Floats near = select(part == Floats{}, power, logarithm(sum) * (power / select(part == Floats{}, one, part)));
    return select(x > limit, x, near);
}

// Of one number: the first lane's.
inline float softplus(float x) { return softplus(all_lanes(x))[0]; }
inline float exponential(float x) { return exponential(all_lanes(x))[0]; }

void convolve(const float* const* rows, const ConvolutionTaps& taps, int64_t first, int64_t count, float* out) {
    each_vector(count, [&](int64_t i, const auto& load, const auto& store) kInlined {
        Floats sum = taps.bias == nullptr ? Floats{} : load(taps.bias + first + i);
        for (int64_t k = 0; k < taps.kernel_size; ++k) {
            sum = fused(load(rows[k] + first + i), load(taps.weights + k * taps.num_channels + first + i), sum);
        }
        store(out + i, sum);
    });
}

// Some vectors of columns of a memory, by the delta rule. It is read twice: what the row misses needs all of a column.
template <int kVectors, class Load, class Store>
inline void correct_columns(const DeltaRow& row, const MemoryStep& memory, int64_t column, float decay, float beta,
                            const Load& load, const Store& store, float* out) {
    const float* from = memory.from + column;
    float* to = memory.to + column;
    Floats missed[kVectors] = {}, read[kVectors] = {};
    for (int64_t r = 0; r < memory.rows; ++r) {
        const Floats key = all_lanes(row.key[r]);
        each<kVectors>(
            [&](auto v) kInlined { missed[v] = fused(load(from + r * memory.columns + v * kVector), key, missed[v]); });
    }
    each<kVectors>([&](auto v)
                       kInlined { missed[v] = (load(row.value + column + v * kVector) - missed[v] * decay) * beta; });
    for (int64_t r = 0; r < memory.rows; ++r) {
        const Floats key = all_lanes(row.key[r]), query = all_lanes(row.query[r]);
        each<kVectors>([&](auto v) kInlined {
            const int64_t at = r * memory.columns + v * kVector;
            const Floats state = fused(missed[v], key, load(from + at) * decay);
            store(to + at, state);
            read[v] = fused(state, query, read[v]);
        });
    }
    each<kVectors>([&](auto v) kInlined { store(out + column + v * kVector, read[v]); });
}

void correct(const DeltaRow& row, const MemoryStep& memory, float* out) {
    constexpr int kTogether = 4;
    const float decay = exponential(row.rate * softplus(row.decay)), beta = 1.0f / (exponential(-row.beta) + 1.0f);
    int64_t column = 0;
    for (; column + kTogether * kVector <= memory.columns; column += kTogether * kVector) {
        correct_columns<kTogether>(
            row, memory, column, decay, beta, [](const float* from) kInlined { return load_floats(from); },
            [](float* to, Floats value) kInlined { store_floats(to, value); }, out);
    }
    each_vector(memory.columns - column, [&](int64_t i, const auto& load, const auto& store) kInlined {
        correct_columns<1>(row, memory, column + i, decay, beta, load, store, out);
    });
}

// Some rows of a state space: what they read goes over columns, vector after vector.
template <int kRows>
inline void space_rows(const SpaceRow& row, const MemoryStep& memory, int64_t first, float step, float decay,
                       float* out) {
    Floats given[kRows], sums[4] = {};
    each<kRows>([&](auto r) kInlined { given[r] = all_lanes(step * row.x[first + r]); });
    each_vector(memory.columns, [&](int64_t i, const auto& load, const auto& store) kInlined {
        const Floats b = load(row.b + i), c = load(row.c + i);
        each<kRows>([&](auto r) kInlined {
            const int64_t at = (first + r) * memory.columns + i;
            const Floats state = fused(given[r], b, load(memory.from + at) * decay);
            store(memory.to + at, state);
            sums[r] = fused(state, c, sums[r]);
        });
    });
    float read[4];
    four_sums(sums, read);
    each<kRows>([&](auto r) kInlined { out[first + r] = read[r] + row.skip * row.x[first + r]; });
}

void go_through_space(const SpaceRow& row, const MemoryStep& memory, float* out) {
    const float wanted = softplus(row.step), least = wanted < row.least_step ? row.least_step : wanted;
    const float step = least > row.most_step ? row.most_step : least, decay = exponential(step * row.rate);
    int64_t first = 0;
    for (; first + 4 <= memory.rows; first += 4) space_rows<4>(row, memory, first, step, decay, out);
    for (; first < memory.rows; ++first) space_rows<1>(row, memory, first, step, decay, out);
}
