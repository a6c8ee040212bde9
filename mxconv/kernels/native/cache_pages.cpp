// Numbers on their way into a cache: rounded as mxconv/codecs/float16.py rounds them; a NaN stays one.
#include <cstddef>
#include <cstring>

#include "pass.hpp"

namespace mxconv {

namespace {

uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

uint16_t bf16_of(float value) {
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((bits >> 16 & 0x8000) | 0x7FC0);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

uint16_t f16_of(float value) {
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) {
        magnitude = 0x7E00 | (magnitude >> 13 & 0x3FF);
    } else if (magnitude >= 0x477FF000) {  // 65520 and above
        magnitude = 0x7C00;
    } else if (magnitude < 0x38800000) {  // below 2^-14: the last place of 0.5 is that of what is subnormal here
        magnitude = bits_of((value < 0.0f ? -value : value) + 0.5f) - 0x3F000000;
    } else {
        magnitude = (magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13;
    }
    return static_cast<uint16_t>(sign | magnitude);
}

}  // namespace

void round_into(CacheDtype dtype, const float* values, int64_t count, void* to) {
    auto* patterns = static_cast<uint16_t*>(to);
    switch (dtype) {
        case CacheDtype::kFp32: std::memcpy(to, values, static_cast<size_t>(count) * sizeof(float)); break;
        case CacheDtype::kBf16:
            for (int64_t i = 0; i < count; ++i) patterns[i] = bf16_of(values[i]);
            break;
        case CacheDtype::kFp16:
            for (int64_t i = 0; i < count; ++i) patterns[i] = f16_of(values[i]);
            break;
    }
}

void CachePages::write(int64_t layer, bool is_value, int64_t head, int64_t position, const float* values,
                       int64_t count) const {
    const CachePage& page = pages[static_cast<size_t>(position / kPagePositions)];
    const int64_t at = run(layer, is_value, head) * page.step + position % kPagePositions * head_dim;
    const auto num_bytes = static_cast<int64_t>(dtype == CacheDtype::kFp32 ? sizeof(float) : sizeof(uint16_t));
    round_into(dtype, values, count, static_cast<std::byte*>(page.first) + at * num_bytes);
}

}  // namespace mxconv
