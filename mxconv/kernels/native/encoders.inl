// The encoders of an instruction set with vectors. Included inside a namespace of its own, since vectors have other names in
// rowwise.inl.

#include "encode_mxfp4.inl"
#include "encode_bsfp.inl"
#include "fit_cuts.inl"
#include "encode_vectors.inl"
#include "encode_mxfp4_vectors.inl"
#include "encode_bsfp_vectors.inl"

constexpr Encoders kAll{encode_mxfp4, encode_bsfp, sum_of_squares_plainly, squares_nearly, count_patterns,
                        fit_cuts,     draft_values};
