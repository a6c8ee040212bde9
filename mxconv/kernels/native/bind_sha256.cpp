// SHA-256 for Python, where the processor has instructions for it.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bindings.hpp"
#include "sha256.hpp"

namespace mxconv {

namespace {

// What a stream's user holds; several threads may not update one stream at the same time.
std::string hexdigest(const Sha256& stream) {
    constexpr char kDigits[] = "0123456789abcdef";
    uint8_t digest[32];
    sha256_digest(stream, digest);
    std::string text;
    for (const uint8_t byte : digest) {
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

void update(const std::vector<Sha256*>& streams, const std::vector<Array<uint8_t>>& pieces) {
    require_that(streams.size() == pieces.size(), "a piece for each stream is required");
    std::vector<const uint8_t*> bytes;
    std::vector<int64_t> lengths;
    for (size_t i = 0; i < streams.size(); ++i) {
        for (size_t k = 0; k < i; ++k) require_that(streams[k] != streams[i], "a stream occurs twice");
        require(pieces[i], "pieces", {-1});
        bytes.push_back(pieces[i].data());
        lengths.push_back(static_cast<int64_t>(pieces[i].shape(0)));
    }
    nb::gil_scoped_release unlocked;
    sha256_update(streams.data(), bytes.data(), lengths.data(), static_cast<int64_t>(streams.size()));
}

}  // namespace

void bind_sha256(nb::module_& module) {
    module.def("has_sha256", &has_sha256, "Whether this processor has instructions for SHA-256.");
    nb::class_<Sha256>(module, "Sha256", "One stream of bytes.")
        .def("__init__",
             [](Sha256* self) {
                 require_that(has_sha256(), "this processor has no instructions for SHA-256");
                 new (self) Sha256();
             })
        .def("hexdigest", &hexdigest, "The SHA-256 of what went in so far.");
    module.def("sha256_update", &update, nb::arg("streams"), nb::arg("pieces"),
               "Hash pieces[i] (bytes as uint8 arrays) into streams[i], all at once.");
}

}  // namespace mxconv
