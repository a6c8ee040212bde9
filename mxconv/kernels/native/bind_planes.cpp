// The reader of planes as Python makes it: of mapped files, over memory that Python gives.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "plane_reader.hpp"

namespace mxconv {

namespace {

using Files = std::vector<std::pair<std::string, Array<uint8_t>>>;

void make_reader(PlaneReader* self, const Files& mapped, const std::vector<PlaneReader::Matrices>& stages,
                 const Matrix* head, const std::vector<PlaneReader::Matrices>& experts,
                 const PlaneReader::Matrices& tables) {
    std::vector<std::unique_ptr<PlaneFile>> files;
    for (const auto& [path, bytes] : mapped) {
        require(bytes, "bytes", {-1});
        files.push_back(std::make_unique<PlaneFile>(path, bytes.data(), static_cast<int64_t>(bytes.shape(0))));
    }
    new (self) PlaneReader(std::move(files), stages, head, experts, tables);
}

uint8_t* memory_of(const MutableArray<uint8_t>& memory, int64_t num_bytes) {
    require(memory, "memory", {-1});
    require_that(static_cast<int64_t>(memory.shape(0)) >= num_bytes, "memory for whole stages is required");
    require_that(reinterpret_cast<uintptr_t>(memory.data()) % PlaneFile::kSector == 0, "memory begins at a sector");
    return memory.data();
}

int64_t sum(const std::vector<int64_t>& numbers, int64_t count) {
    require_that(count >= 0 && count <= static_cast<int64_t>(numbers.size()), "stages that there are not");
    return std::accumulate(numbers.begin(), numbers.begin() + count, int64_t{0});
}

int64_t most_after(const std::vector<int64_t>& numbers, int64_t count) {
    return count == static_cast<int64_t>(numbers.size()) ? 0
                                                         : *std::max_element(numbers.begin() + count, numbers.end());
}

void start(PlaneReader& self, int64_t num_kept, int64_t num_kept_experts, const MutableArray<uint8_t>& kept,
           const std::vector<MutableArray<uint8_t>>& buffers, const MutableArray<uint8_t>& experts) {
    const std::vector<int64_t> stages = self.stage_bytes(), layers = self.expert_bytes();
    uint8_t* const first = memory_of(kept, sum(stages, num_kept) + sum(layers, num_kept_experts));
    require_that(num_kept == static_cast<int64_t>(stages.size()) || !buffers.empty(), "a buffer is required");
    std::vector<uint8_t*> memories;
    for (const auto& buffer : buffers) memories.push_back(memory_of(buffer, most_after(stages, num_kept)));
    uint8_t* const of_experts = memory_of(experts, most_after(layers, num_kept_experts));
    nb::gil_scoped_release unlocked;
    self.start(num_kept, num_kept_experts, first, memories, of_experts);
}

}  // namespace

void bind_planes(nb::module_& module) {
    nb::exception<ReadError>(module, "ReadError");
    nb::class_<PlaneReader>(module, "PlaneReader", "Reads what passes of a target multiply by, ahead of them.")
        .def("__init__", &make_reader, nb::arg("files"), nb::arg("stages"), nb::arg("head").none(), nb::arg("experts"),
             nb::arg("tables"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(),
             nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>(),
             "Of files, each a path and all that is mapped of it; of matrices by stages, and of an output head at last "
             "(None: it is in memory); of experts by layers; of tables that rows are looked up in.")
        .def_prop_ro("stage_bytes", &PlaneReader::stage_bytes, "Bytes that each stage takes, parts of the head last.")
        .def_prop_ro("expert_bytes", &PlaneReader::expert_bytes, "Bytes that the experts of each layer take.")
        .def("start", &start, nb::arg("num_kept"), nb::arg("num_kept_experts"), nb::arg("kept").noconvert(),
             nb::arg("buffers"), nb::arg("experts").noconvert(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(),
             nb::keep_alive<1, 6>(),
             "Read the first stages and the first layers' experts into memory for good, other stages through buffers "
             "from now on, and other experts when they are chosen. Memory begins at a sector of 4096 bytes. Call it "
             "once.");
}

}  // namespace mxconv
