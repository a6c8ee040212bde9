// Products of integers: by four_bit_int8, many_int8 and mxint8 of the instruction set.

void linear_of_integers(const Matrix& matrix, const Activations& a, int64_t first, int64_t last, float* out,
                        int64_t stride) {
    if (matrix.kind == MatrixKind::kMxint8) return draft_linear(matrix, a, first, last, out, stride, mxint8, no_many);
    draft_linear(matrix, a, first, last, out, stride, four_bit_int8, many_int8);
}
