// SHA-256 (FIPS 180-4) of several streams at once. One stream waits for its own last step most of the time, so a
// processor with SHA instructions hashes up to four in the time of one: a file, and the tensor in it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mxconv {

struct Sha256 {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t rest[64];  // the bytes of a block that is not full yet
    uint64_t num_bytes = 0;
};

// Whether this processor has the instructions; nothing below may be called where it has not.
bool has_sha256();

// Hash the next num_bytes[i] bytes at bytes[i] into streams[i], for all i; no stream may occur twice.
void sha256_update(Sha256* const* streams, const uint8_t* const* bytes, const int64_t* num_bytes, int64_t count);

// The hash of what went in so far, 32 bytes.
void sha256_digest(const Sha256& stream, uint8_t* out);

}  // namespace mxconv
