#include "sha256.hpp"

#include <cstring>

#include "processor.hpp"

namespace mxconv {

constexpr int64_t kBlockBytes = 64;
constexpr int kLanes = 4;

bool has_sha256() { return cpu_features().avx && cpu_features().sha; }

void sha256_update(Sha256* const* streams, const uint8_t* const* bytes, const int64_t* num_bytes, int64_t count) {
    for (int64_t begin = 0; begin < count; begin += kLanes) {
        const int lanes = static_cast<int>(count - begin < kLanes ? count - begin : kLanes);
        const uint8_t* from[kLanes];
        int64_t left[kLanes];
        for (int i = 0; i < lanes; ++i) {
            Sha256& stream = *streams[begin + i];
            from[i] = bytes[begin + i];
            left[i] = num_bytes[begin + i];
            const auto filled = static_cast<int64_t>(stream.num_bytes % kBlockBytes);
            stream.num_bytes += static_cast<uint64_t>(left[i]);
            if (filled == 0) continue;
            const int64_t taken = left[i] < kBlockBytes - filled ? left[i] : kBlockBytes - filled;
            std::memcpy(stream.rest + filled, from[i], static_cast<size_t>(taken));
            from[i] += taken;
            left[i] -= taken;
            if (filled + taken == kBlockBytes) {
                Sha256* const one = &stream;
                const uint8_t* const rest = stream.rest;
                sha256_blocks(&one, &rest, 1, 1);
            }
        }
        for (;;) {  // as many streams as still have whole blocks, as far as the shortest goes
            Sha256* active[kLanes];
            const uint8_t* places[kLanes];
            int indices[kLanes], num_active = 0;
            int64_t blocks = INT64_MAX;
            for (int i = 0; i < lanes; ++i) {
                const int64_t whole = left[i] / kBlockBytes;
                if (whole == 0) continue;
                active[num_active] = streams[begin + i];
                places[num_active] = from[i];
                indices[num_active++] = i;
                blocks = whole < blocks ? whole : blocks;
            }
            if (num_active == 0) break;
            sha256_blocks(active, places, blocks, num_active);
            for (int k = 0; k < num_active; ++k) {
                from[indices[k]] += blocks * kBlockBytes;
                left[indices[k]] -= blocks * kBlockBytes;
            }
        }
        for (int i = 0; i < lanes; ++i) {
            if (left[i] > 0) std::memcpy(streams[begin + i]->rest, from[i], static_cast<size_t>(left[i]));
        }
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

#if !defined(__x86_64__)
void sha256_blocks(Sha256* const*, const uint8_t* const*, int64_t, int) { __builtin_trap(); }
#endif

}  // namespace mxconv
