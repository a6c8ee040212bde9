// The encoders of all NEON files.

#include "fit_cuts.inl"

const Encoders kEncoders{encode_mxfp4_neon,   encode_bsfp_neon, sum_of_squares_plainly,
                         squares_nearly_neon, count_patterns,   fit_cuts,
                         draft_values};
