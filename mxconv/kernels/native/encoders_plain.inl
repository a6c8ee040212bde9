// The encoders of an instruction set that has none of its own.

const Encoders kEncoders{encode_mxfp4_plainly, encode_bsfp_plainly, sum_of_squares_plainly, nullptr,
                         count_patterns,       draft_values};
