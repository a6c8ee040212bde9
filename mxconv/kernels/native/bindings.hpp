// What the parts of the extension module offer to each other.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "lines.hpp"
#include "scratch.hpp"
#include "team.hpp"

namespace mxconv {

// An implementation with a thread team: what everything native runs on.
struct Engine {
    const Kernels* kernels;
    std::unique_ptr<Team> team;
};

// A weight matrix and the arrays it points into.
struct BoundMatrix {
    Matrix matrix{};
    std::vector<nanobind::object> owners;
};

// Raises where there is no such activation.
Activation activation_of(const std::string& name);

// Memory for the forms of some activation rows.
class ActivationBuffer {
  public:
    // Room for rows of `columns`; grows, never shrinks.
    Activations& reserve(int64_t num_tokens, int64_t columns, int forms);

  private:
    ScratchMemory memory_;
    Lines<uint8_t> finite_;
    Activations activations_{};
};

void bind_attention(nanobind::module_& module);
void bind_latent(nanobind::module_& module);
void bind_mixture(nanobind::module_& module);
void bind_mlp(nanobind::module_& module);
void bind_parts(nanobind::module_& module);
void bind_recurrent(nanobind::module_& module);
void bind_walk(nanobind::module_& module);
void bind_decoder(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_matrices(nanobind::module_& module);
void bind_rowwise(nanobind::module_& module);
void bind_codecs(nanobind::module_& module);
void bind_sha256(nanobind::module_& module);

}  // namespace mxconv
