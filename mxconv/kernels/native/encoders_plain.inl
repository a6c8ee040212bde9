// The encoders of an instruction set that has none of its own.

#include "fit_cuts.inl"

const Encoders kEncoders{
    encode_mxfp4_plainly, encode_bsfp_plainly, sum_of_squares_plainly, nullptr, count_patterns, fit_cuts, draft_values};
