#include "sha256.hpp"

#include <algorithm>
#include <cstring>

#include "processor.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mxconv {

namespace {

constexpr int64_t kBlockBytes = 64;
constexpr int kLanes = 4;

#if defined(__x86_64__)
#define MXCONV_SHA __attribute__((target("avx,sha")))  // instructions of these functions alone

alignas(64) constexpr uint32_t kRoundConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

MXCONV_SHA inline __m128i* at(const void* bytes) { return static_cast<__m128i*>(const_cast<void*>(bytes)); }

// The instructions keep the state as the words a b e f and c d g h.
template <int kStreams>
MXCONV_SHA void compress(Sha256* const* streams, const uint8_t* const* bytes, int64_t count) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i abef[kStreams], cdgh[kStreams];
    for (int s = 0; s < kStreams; ++s) {
        const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(at(streams[s]->state)), 0xB1);
        const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(at(streams[s]->state + 4)), 0x1B);
        abef[s] = _mm_alignr_epi8(cdab, efgh, 8);
        cdgh[s] = _mm_blend_epi16(efgh, cdab, 0xF0);
    }
    for (int64_t block = 0; block < count; ++block) {
        __m128i words[kStreams][4], abef_before[kStreams], cdgh_before[kStreams];
        for (int s = 0; s < kStreams; ++s) {
            abef_before[s] = abef[s];
            cdgh_before[s] = cdgh[s];
            for (int i = 0; i < 4; ++i) {
                words[s][i] = _mm_shuffle_epi8(_mm_loadu_si128(at(bytes[s] + 64 * block + 16 * i)), big_endian);
            }
        }
#pragma GCC unroll 16
        for (int group = 0; group < 16; ++group) {  // of four rounds
            const __m128i constants = _mm_load_si128(at(kRoundConstants + 4 * group));
            for (int s = 0; s < kStreams; ++s) {
                __m128i* w = words[s];
                const __m128i sum = _mm_add_epi32(w[group % 4], constants);
                cdgh[s] = _mm_sha256rnds2_epu32(cdgh[s], abef[s], sum);
                abef[s] = _mm_sha256rnds2_epu32(abef[s], cdgh[s], _mm_shuffle_epi32(sum, 0x0E));
                if (group < 12) {  // words 16 further on
                    const __m128i last = w[(group + 3) % 4];
                    const __m128i seven_back = _mm_alignr_epi8(last, w[(group + 2) % 4], 4);
                    const __m128i partial =
                        _mm_add_epi32(_mm_sha256msg1_epu32(w[group % 4], w[(group + 1) % 4]), seven_back);
                    w[group % 4] = _mm_sha256msg2_epu32(partial, last);
                }
            }
        }
        for (int s = 0; s < kStreams; ++s) {
            abef[s] = _mm_add_epi32(abef[s], abef_before[s]);
            cdgh[s] = _mm_add_epi32(cdgh[s], cdgh_before[s]);
        }
    }
    for (int s = 0; s < kStreams; ++s) {
        const __m128i feba = _mm_shuffle_epi32(abef[s], 0x1B);
        const __m128i dchg = _mm_shuffle_epi32(cdgh[s], 0xB1);
        _mm_storeu_si128(at(streams[s]->state), _mm_blend_epi16(feba, dchg, 0xF0));
        _mm_storeu_si128(at(streams[s]->state + 4), _mm_alignr_epi8(dchg, feba, 8));
    }
}

// `count` blocks of 64 bytes of each of `lanes` (1 to 4) streams.
void compress(Sha256* const* streams, const uint8_t* const* bytes, int64_t count, int lanes) {
    switch (lanes) {
        case 1: return compress<1>(streams, bytes, count);
        case 2: return compress<2>(streams, bytes, count);
        case 3: return compress<3>(streams, bytes, count);
        default: return compress<4>(streams, bytes, count);
    }
}
#else
void compress(Sha256* const*, const uint8_t* const*, int64_t, int) { __builtin_trap(); }
#endif

// Hash the next bytes of up to kLanes streams.
void update(Sha256* const* streams, const uint8_t* const* bytes, const int64_t* num_bytes, int lanes) {
    const uint8_t* from[kLanes];
    int64_t left[kLanes];
    for (int i = 0; i < lanes; ++i) {
        Sha256& stream = *streams[i];
        from[i] = bytes[i];
        left[i] = num_bytes[i];
        const auto filled = static_cast<int64_t>(stream.num_bytes % kBlockBytes);
        stream.num_bytes += static_cast<uint64_t>(left[i]);
        if (filled == 0) continue;
        const int64_t taken = std::min(left[i], kBlockBytes - filled);
        std::memcpy(stream.rest + filled, from[i], static_cast<size_t>(taken));
        from[i] += taken;
        left[i] -= taken;
        const uint8_t* const rest = stream.rest;
        if (filled + taken == kBlockBytes) compress(streams + i, &rest, 1, 1);
    }
    for (;;) {  // as many streams as still have whole blocks, as far as the shortest goes
        Sha256* active[kLanes];
        const uint8_t* places[kLanes];
        int num_active = 0;
        int64_t blocks = INT64_MAX;
        for (int i = 0; i < lanes; ++i) {
            if (left[i] < kBlockBytes) continue;
            active[num_active] = streams[i];
            places[num_active++] = from[i];
            blocks = std::min(blocks, left[i] / kBlockBytes);
        }
        if (num_active == 0) break;
        compress(active, places, blocks, num_active);
        for (int i = 0; i < lanes; ++i) {
            if (left[i] < kBlockBytes) continue;
            from[i] += blocks * kBlockBytes;
            left[i] -= blocks * kBlockBytes;
        }
    }
    for (int i = 0; i < lanes; ++i) {
        if (left[i] > 0) std::memcpy(streams[i]->rest, from[i], static_cast<size_t>(left[i]));
    }
}

}  // namespace

bool has_sha256() { return cpu_features().sha; }

void sha256_update(Sha256* const* streams, const uint8_t* const* bytes, const int64_t* num_bytes, int64_t count) {
    for (int64_t i = 0; i < count; i += kLanes) {
        update(streams + i, bytes + i, num_bytes + i, static_cast<int>(std::min<int64_t>(count - i, kLanes)));
    }
}

void sha256_digest(const Sha256& stream, uint8_t* out) {
    Sha256 last = stream;
    uint8_t padding[2 * kBlockBytes] = {0x80};
    const uint64_t filled = stream.num_bytes % kBlockBytes;
    const uint64_t length = (filled < 56 ? 56 : 120) - filled;
    for (int i = 0; i < 8; ++i) padding[length + i] = static_cast<uint8_t>(stream.num_bytes * 8 >> (56 - 8 * i));
    Sha256* const streams = &last;
    const uint8_t* const bytes = padding;
    const auto num_bytes = static_cast<int64_t>(length + 8);
    sha256_update(&streams, &bytes, &num_bytes, 1);
    for (int i = 0; i < 32; ++i) out[i] = static_cast<uint8_t>(last.state[i / 4] >> (24 - 8 * (i % 4)));
}

}  // namespace mxconv
