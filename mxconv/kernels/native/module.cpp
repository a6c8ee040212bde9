// The extension module: checks arrays, keeps them alive, and calls the kernels without the interpreter's lock.
#include "bindings.hpp"

NB_MODULE(_native, module) {
    nanobind::set_leak_warnings(false);  // engines are kept until the process ends, and their threads with them
    module.doc() = "Native kernels of mxconv; see mxconv/kernels/native/kernels.hpp.";
    mxconv::bind_engine(module);
    mxconv::bind_matrices(module);
    mxconv::bind_parts(module);
    mxconv::bind_attention(module);
    mxconv::bind_latent(module);
    mxconv::bind_mixture(module);
    mxconv::bind_mlp(module);
    mxconv::bind_recurrent(module);
    mxconv::bind_walk(module);
    mxconv::bind_decoder(module);
    mxconv::bind_rowwise(module);
    mxconv::bind_codecs(module);
    mxconv::bind_sha256(module);
}
