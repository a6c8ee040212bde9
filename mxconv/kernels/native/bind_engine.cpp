// Engine: which kernels, how many threads; and what the machine can do at best, for benchmarks.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "bindings.hpp"

namespace mxconv {

namespace {

Engine make_engine(const std::string& name, int num_threads) {
    const Kernels* kernels = find(name);
    require_that(kernels != nullptr, ("no implementation " + name + " on this machine").c_str());
    require_that(num_threads >= 1 && num_threads <= 1024, "num_threads must be 1 to 1024");
    return {kernels, std::make_unique<Team>(num_threads)};
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
    require_that(kind != kFloat || form == "float", "form must be int8, bf16 or float");
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
    nb::class_<Engine> engine(module, "Engine");
    define_init(engine, &make_engine, {"name", "num_threads"});
    engine.def_prop_ro("name", [](const Engine& self) { return std::string(self.kernels->name); })
        .def_prop_ro("num_threads", [](const Engine& self) { return self.team->size(); })
        .def("read", &read_array, nb::arg("bytes").noconvert(),
             "Read a byte array at memory speed with all threads, whole pieces of 256 KB; returns a checksum.")
        .def("multiply_adds", &multiply_adds, nb::arg("form"), nb::arg("iterations"),
             "Multiply-add as fast as registers allow, on all threads; returns how many were done.");
}

}  // namespace mxconv
