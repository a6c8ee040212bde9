// What stands between the matrices of an MLP, and the hyperbolic tangent. Included by rowwise.inl. All go by whole vectors,
// at the end of a row by one that is filled up: a value's bits are the same wherever it stands.

// Lanes of `chosen` where `choice` is set, of `other` elsewhere.
inline Floats select(Ints choice, Floats chosen, Floats other) { return choice ? chosen : other; }

inline Floats magnitude(Floats x) { return with_bits<Floats>(with_bits<Words>(x) & 0x7FFFFFFFu); }

inline Floats with_sign_of(Floats x, Floats of) {
    return with_bits<Floats>(with_bits<Words>(x) | (with_bits<Words>(of) & 0x80000000u));
}

// Within 4 units in the last place: a polynomial near zero, where the quotient after it would lose digits.
inline Floats hyperbolic_tangent(Floats x) {
    const Floats size = magnitude(x), square = x * x;
    Floats p = all_lanes(-5.70498872745e-3f);  // tanh x = x + x^3 p(x^2), minimax on |x| < 0.625 (Cephes, tanhf)
    p = fused(p, square, all_lanes(2.06390887954e-2f));
    p = fused(p, square, all_lanes(-5.37397155531e-2f));
    p = fused(p, square, all_lanes(1.33314422036e-1f));
    p = fused(p, square, all_lanes(-3.33332819422e-1f));
    const Floats near = fused(p * square, size, size);
    const Floats far = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
    return with_sign_of(select(size < all_lanes(0.625f), near, far), x);  // a NaN is not under it, and stays
}

struct Silu {
    static Floats of(Floats x) { return x / (exponential(-x) + 1.0f); }
};

struct Sigmoid {
    static Floats of(Floats x) { return 1.0f / (exponential(-x) + 1.0f); }
};

// x times the normal distribution's mass below x, within 1e-6 times the magnitude of x. erf by Abramowitz and Stegun, formula
// 7.1.26, as mxconv/engine/activations.py has it.
struct Gelu {
    static Floats of(Floats x) {
        const Floats size = magnitude(x) * 0.707106781f;
        const Floats t = 1.0f / (size * 0.3275911f + 1.0f);
        Floats p = all_lanes(1.061405429f);
        p = fused(p, t, all_lanes(-1.453152027f));
        p = fused(p, t, all_lanes(1.421413741f));
        p = fused(p, t, all_lanes(-0.284496736f));
        p = fused(p, t, all_lanes(0.254829592f));
        const Floats tail = p * t * 0.5f * exponential(-size * size);  // of the distribution, beyond |x|
        return x * select(x < all_lanes(0.0f), tail, 1.0f - tail);
    }
};

// By a hyperbolic tangent: (1 + tanh u) / 2 is the logistic function of 2 u.
struct GeluTanh {
    static Floats of(Floats x) {
        const Floats twice = (x + x * x * x * 0.044715f) * 1.59576912f;
        return x / (exponential(-twice) + 1.0f);
    }
};

struct Relu2 {
    static Floats of(Floats x) {
        const Floats kept = select(x < all_lanes(0.0f), Floats{}, x);
        return kept * kept;
    }
};

template <class Function>
void activate(const float* x, const float* y, int64_t length, float* out) {
    each_vector(length, [&](int64_t i, const auto& load, const auto& store) kInlined {
        const Floats activated = Function::of(load(x + i));
        store(out + i, y == nullptr ? activated : activated * load(y + i));
    });
}

void clamped_gates(const float* x, const float* y, float slope, float limit, int64_t length, float* out) {
    const Floats most = all_lanes(limit);
    each_vector(length, [&](int64_t i, const auto& load, const auto& store) kInlined {
        Floats gate = load(x + i), up = load(y + i);
        gate = select(gate > most, most, gate);  // a NaN is not above, and stays
        up = select(up > most, most, select(up < -most, -most, up));
        store(out + i, (up + 1.0f) * (gate / (exponential(-slope * gate) + 1.0f)));
    });
}

// Not inlined: its constants would take the registers of attention.
[[gnu::noinline]] void put_cap(float cap, int64_t length, float* x) {
    each_vector(length, [&](int64_t i, const auto& load, const auto& store)
                            kInlined { store(x + i, hyperbolic_tangent(load(x + i) / cap) * cap); });
}
