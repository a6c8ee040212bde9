// The encoders of all AVX2 files.

#include "fit_cuts.inl"

const Encoders kEncoders{encode_mxfp4_avx2,   encode_bsfp_avx2, sum_of_squares_plainly,
                         squares_nearly_avx2, count_patterns,   fit_cuts,
                         draft_values};
