// Engine: which kernels, how many threads; and what the machine can do at best, for benchmarks.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "arrays.hpp"
#include "bindings.hpp"
#include "dispatch.hpp"

namespace mxconv {

namespace {

std::unique_ptr<Engine> make_engine(const std::string& name, int num_threads) {
    const Kernels* kernels = find(name);
    if (kernels == nullptr) throw nb::value_error(("no implementation " + name + " on this machine").c_str());
    if (num_threads < 1 || num_threads > 1024) throw nb::value_error("num_threads must be 1 to 1024");
    auto engine = std::make_unique<Engine>();
    engine->kernels = kernels;
    engine->team = std::make_unique<Team>(num_threads);
    return engine;
}

// Read an array once, each thread an equal share; the checksum keeps the compiler honest.
uint64_t read_array(Engine& engine, const Array<uint8_t>& bytes) {
    require(bytes, "bytes", {-1});
    const uint8_t* data = bytes.data();
    const int64_t piece = int64_t{1} << 18;
    const int64_t num_pieces = static_cast<int64_t>(bytes.shape(0)) / piece;
    std::atomic<uint64_t> total{0};
    Pieces pieces(engine.team->size());
    nb::gil_scoped_release unlocked;
    engine.team->run([&](int thread) {
        uint64_t sum = 0;
        for (int64_t i; (i = pieces.take(num_pieces, thread)) >= 0;) {
            sum ^= engine.kernels->family.read(data + i * piece, piece);
        }
        total ^= sum;
    });
    return total;
}

int64_t multiply_adds(Engine& engine, const std::string& form, int64_t iterations) {
    const Form kind = form == "int8" ? kInt8 : form == "bf16" ? kRoundedBf16 : kFloat;
    if (kind == kFloat && form != "float") throw nb::value_error("form must be int8, bf16 or float");
    std::atomic<int64_t> total{0};
    nb::gil_scoped_release unlocked;
    engine.team->run([&](int) { total += engine.kernels->multiply_adds(kind, iterations); });
    return total;
}

}  // namespace

void bind_engine(nb::module_& module) {
    module.def(
        "available",
        [] {
            std::vector<std::string> names;
            for (const Kernels* kernels : available()) names.emplace_back(kernels->name);
            return names;
        },
        "Implementations that this processor runs, best first.");
    module.def("compiler", [] { return std::string(__VERSION__); }, "The compiler that built this module.");
    nb::class_<Engine>(module, "Engine")
        .def(
            "__init__",
            [](Engine* self, const std::string& name, int num_threads) {
                new (self) Engine(std::move(*make_engine(name, num_threads)));
            },
            nb::arg("name"), nb::arg("num_threads"))
        .def_prop_ro("name", [](const Engine& self) { return std::string(self.kernels->name); })
        .def_prop_ro("num_threads", [](const Engine& self) { return self.team->size(); })
        .def("read", &read_array, nb::arg("bytes").noconvert(),
             "Read a byte array at memory speed with all threads, whole pieces of 256 KB; returns a checksum.")
        .def("multiply_adds", &multiply_adds, nb::arg("form"), nb::arg("iterations"),
             "Multiply-add as fast as registers allow, on all threads; returns how many were done.");
}

}  // namespace mxconv
