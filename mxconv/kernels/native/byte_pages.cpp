#include "byte_pages.hpp"

#include <cmath>
#include <cstring>
#include <limits>

namespace mxconv {

namespace {

#include "numbers.inl"

constexpr float kMostSteps = 127.0f;

float step_of(float range) { return range > 0.0f && std::isfinite(range) ? range / kMostSteps : 0.0f; }

// By which numbers are divided: a step of 0 leaves nothing of them.
float divisor_of(float step) { return step > 0.0f ? step : std::numeric_limits<float>::infinity(); }

int8_t steps_in(float value, float divisor) {
    constexpr float kWhole = 0x1.8p23f;  // added, it leaves no digits behind the point
    const float steps = value / divisor + kWhole - kWhole;
    const float most = steps > kMostSteps ? kMostSteps : steps;
    return static_cast<int8_t>(static_cast<int32_t>(most >= -kMostSteps ? most : 0.0f));  // a NaN is 0
}

template <class Element, class Value>
void put_keys(const Element* keys, int64_t head_dim, int64_t stride, const Value& value, const BytePage& page) {
    float *least = page.least(), *steps = page.steps();
    for (int64_t i = 0; i < head_dim; ++i) least[i] = steps[i] = value(keys[i]);
    for (int64_t position = 1; position < kPagePositions; ++position) {
        for (int64_t i = 0; i < head_dim; ++i) {
            const float number = value(keys[position * stride + i]);
            least[i] = number < least[i] ? number : least[i];
            steps[i] = number > steps[i] ? number : steps[i];
        }
    }
    float divisors[kMostByteColumns];
    for (int64_t i = 0; i < head_dim; ++i) {
        steps[i] = step_of(steps[i] - least[i]);
        divisors[i] = divisor_of(steps[i]);
    }
    int8_t row[kMostByteColumns] = {};
    for (int64_t position = 0; position < kPagePositions; ++position) {
        for (int64_t i = 0; i < head_dim; ++i) {
            row[i] = steps_in(value(keys[position * stride + i]) - least[i], divisors[i]);
        }
        for (int64_t i = 0; i < head_dim; i += 4) {
            std::memcpy(page.bytes() + (i * kPagePositions + 4 * position), row + i, 4);
        }
    }
}

template <class Element, class Value>
void put_values(const Element* values, int64_t head_dim, int64_t stride, const Value& value, const BytePage& page) {
    for (int64_t position = 0; position < kPagePositions; ++position, values += stride) {
        float largest = 0.0f;
        for (int64_t i = 0; i < head_dim; ++i) {
            const float size = std::fabs(value(values[i]));
            largest = size > largest ? size : largest;
        }
        const float divisor = divisor_of(page.steps()[position] = step_of(largest));
        int8_t row[kMostByteColumns];
        for (int64_t i = 0; i < head_dim; ++i) row[i] = steps_in(value(values[i]), divisor);
        int8_t* to = page.bytes() + position / 4 * page.columns * 4 + position % 4;
        for (int64_t i = 0; i < head_dim; ++i) to[4 * i] = row[i];
    }
}

}  // namespace

void put_byte_page(const SequenceTokens& sequence, int64_t layer, int64_t head, int64_t head_dim, int64_t page) {
    const CachePages& cache = sequence.cache;
    const CachePage& place = cache.pages[static_cast<size_t>(page)];
    const auto put = [&](const auto* first, const auto& value) {
        for (const bool is_value : {false, true}) {
            const BytePage to = sequence.byte_pages.of(cache, layer, is_value, head, head_dim).after(page);
            const auto* from = first + cache.run(layer, is_value, head) * place.step;
            std::memset(to.first, 0, static_cast<size_t>(to.num_bytes()));
            if (is_value) {
                put_values(from, head_dim, cache.head_dim, value, to);
            } else {
                put_keys(from, head_dim, cache.head_dim, value, to);
            }
        }
    };
    switch (cache.dtype) {
        case CacheDtype::kFp32: put(static_cast<const float*>(place.first), [](float x) { return x; }); break;
        case CacheDtype::kBf16: put(static_cast<const uint16_t*>(place.first), bf16_value); break;
        case CacheDtype::kFp16: put(static_cast<const uint16_t*>(place.first), f16_value); break;
    }
}

}  // namespace mxconv
