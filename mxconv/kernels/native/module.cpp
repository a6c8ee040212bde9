// The extension module: checks arrays, keeps them alive, and calls the kernels without the interpreter's lock.
#include "bindings.hpp"

NB_MODULE(_native, module) {
    nanobind::set_leak_warnings(false);  // engines are kept until the process ends, and their threads with them
    module.doc() = "Native kernels of mxconv; see mxconv/kernels/native/kernels.hpp.";
    for (const auto bind :
         {mxconv::bind_engine, mxconv::bind_matrices, mxconv::bind_parts, mxconv::bind_attention, mxconv::bind_latent,
          mxconv::bind_mlp, mxconv::bind_routing, mxconv::bind_mixture, mxconv::bind_recurrent,
          mxconv::bind_short_convolution, mxconv::bind_delta_net, mxconv::bind_mamba2, mxconv::bind_composed,
          mxconv::bind_sequences, mxconv::bind_decoder, mxconv::bind_rowwise, mxconv::bind_codecs}) {
        bind(module);
    }
}
