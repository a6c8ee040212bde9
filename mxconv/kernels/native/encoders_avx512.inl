// The encoders of both AVX-512 files.

#include "fit_cuts.inl"

const Encoders kEncoders{encode_mxfp4_avx512,   encode_bsfp_avx512, sum_of_squares_plainly,
                         squares_nearly_avx512, count_patterns,     fit_cuts,
                         draft_values};
