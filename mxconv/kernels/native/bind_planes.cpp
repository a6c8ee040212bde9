// The reader of planes as Python makes it, of mapped files.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "plane_reader.hpp"

namespace mxconv {

namespace {

using Matrices = PlaneReader::Matrices;

void make_reader(PlaneReader* self, const std::vector<std::pair<std::string, Array<uint8_t>>>& mapped,
                 const std::vector<Matrices>& stages, Matrix* head, const std::vector<Matrices>& experts,
                 const Matrices& tables, const Matrices& made) {
    std::vector<std::unique_ptr<PlaneFile>> files;
    for (const auto& [path, bytes] : mapped) {
        require(bytes, "bytes", {-1});
        files.push_back(std::make_unique<PlaneFile>(path, bytes.data(), static_cast<int64_t>(bytes.shape(0))));
    }
    new (self) PlaneReader(std::move(files), stages, head, experts, tables, made);
}

void start(PlaneReader& self, int64_t num_kept, int64_t num_buffers) {
    require_that(num_kept >= 0 && num_kept <= static_cast<int64_t>(self.stage_bytes().size()), "no such stages");
    require_that(num_buffers >= 1, "a buffer is required");
    nb::gil_scoped_release unlocked;
    self.start(num_kept, num_buffers);
}

}  // namespace

void bind_planes(nb::module_& module) {
    nb::exception<ReadError>(module, "ReadError");
    nb::class_<PlaneReader>(module, "PlaneReader",
                            "Reads weights into memory, or what passes multiply by ahead of them.")
        .def("__init__", &make_reader, nb::arg("files"), nb::arg("stages"), nb::arg("head").none(), nb::arg("experts"),
             nb::arg("tables"), nb::arg("made"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(),
             "Of files, each a path and all that is mapped of it; of matrices by stages, and of an output head at last "
             "(None: it is in memory); of experts by layers; of tables that rows are looked up in; of all that was "
             "made.")
        .def_prop_ro("resident_bytes", &PlaneReader::resident_bytes, "Bytes of what is read for good.")
        .def_prop_ro("stage_bytes", &PlaneReader::stage_bytes,
                     "Bytes that each stage takes, parts of the head after the others, then each layer's experts.")
        .def_prop_ro("num_stages", &PlaneReader::num_stages, "Number of stages of a pass, without experts.")
        .def("start", &start, nb::arg("num_kept"), nb::arg("num_buffers"),
             "Read for good what is resident and the first stages, other stages through buffers from now on, and other "
             "experts when they are chosen. Call it once.");
}

}  // namespace mxconv
