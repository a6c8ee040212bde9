// Rows that are gathered by expert go through the experts that have any.
#include <algorithm>

#include "mixture.hpp"
#include "step.hpp"

namespace mxconv {

// An operator whose pieces are some of the row tiles of one expert: work(expert, its first entry, how many, first, last).
template <class Work>
void Mixture::share(Step& step, int64_t num_active, const Memory& m, const Matrix& matrix, int64_t tiles,
                    int64_t multiple, Work work) const {
    const int64_t at_once = step.tiles_at_once(matrix, tiles * num_active, multiple);
    const int64_t pieces = ceil_divide(tiles, at_once);
    step.share(num_active * pieces, [&](int64_t piece) {
        const int64_t number = m.active[piece / pieces], begin = m.first[number];
        const int64_t first = piece % pieces * at_once, last = std::min(first + at_once, tiles);
        work(experts[static_cast<size_t>(number)], begin, m.first[number + 1] - begin, first, last);
    });
}

// Pieces are tiles of gates with their ups; each fills whole blocks of 32 columns of what comes out. Where ups begin within
// a tile of the gates' matrix, all are multiplied first.
void Mixture::go_in(Step& step, int64_t num_active, const Memory& m) const {
    const Expert& one = experts.front();
    const int64_t stride = 2 * size;
    const bool begins_with_a_tile = one.up.exists() || is_interleaved || size % kTileRows == 0;
    if (!begins_with_a_tile) {
        share(step, num_active, m, *one.gate.matrix, one.gate.matrix->row_tiles(), 1,
              [&](const Expert& expert, int64_t begin, int64_t count, int64_t first, int64_t last) {
                  const Activations taken = part_of(m.taken, begin, count);
                  step.kernels.linear(*expert.gate.matrix, taken, first, last, m.gates + begin * stride, stride);
              });
    }
    share(step, num_active, m, *one.gate.matrix, ceil_divide(size, kTileRows), kBlock / kTileRows,
          [&](const Expert& expert, int64_t begin, int64_t count, int64_t first, int64_t last) {
              const Activations inner = part_of(m.inner, begin, count);
              float* gates = m.gates + begin * stride;
              if (begins_with_a_tile) multiply(step, expert, part_of(m.taken, begin, count), first, last, gates);
              const int64_t row = first * kTileRows, rows = std::min(last * kTileRows, size) - row;
              for (int64_t i = 0; i < count; ++i) {
                  activate(step, expert, row, rows, gates + i * stride, m);
                  step.kernels.prepare(m.row, i, row, rows, one.down.form(), inner);
              }
          });
}

// Tiles [first, last) of an expert's gates, and their ups.
void Mixture::multiply(Step& step, const Expert& expert, const Activations& taken, int64_t first, int64_t last,
                       float* gates) const {
    const auto linear = [&](const Matrix& matrix, const Activations& x, int64_t begin, int64_t end, float* out) {
        step.kernels.linear(matrix, x, begin, end, out, 2 * size);
    };
    const Matrix& gate = *expert.gate.matrix;
    const int64_t tiles = size / kTileRows;
    if (is_interleaved) return linear(gate, taken, 2 * first, std::min(2 * last, gate.row_tiles()), gates);
    linear(gate, taken, first, last, gates);
    if (expert.up.exists()) {
        linear(*expert.up.matrix, taken, first, last, gates + size);
    } else {
        linear(gate, taken, tiles + first, tiles + last, gates);
    }
}

// Columns [row, row + count) of what the matrix behind takes in, into `m.row`; `gates` are those of one entry.
void Mixture::activate(const Step& step, const Expert& expert, int64_t row, int64_t count, float* gates,
                       const Memory& m) const {
    const Rowwise& rowwise = step.kernels.rowwise;
    const float *gate_bias = expert.gate.bias, *up_bias = expert.up.bias;
    float *gate = gates + row, *up = gates + size + row;
    if (is_interleaved) {
        float* turns = gates + 2 * row;
        if (gate_bias != nullptr) rowwise.add(gate_bias + 2 * row, 2 * count, turns);
        gate = m.pair, up = m.pair + size;
        for (int64_t i = 0; i < count; ++i) gate[i] = turns[2 * i], up[i] = turns[2 * i + 1];
    } else {
        if (gate_bias != nullptr && !expert.up.exists()) up_bias = gate_bias + size;
        if (gate_bias != nullptr) rowwise.add(gate_bias + row, count, gate);
        if (up_bias != nullptr) rowwise.add(up_bias + row, count, up);
    }
    if (clamped) {
        rowwise.clamped_gates(gate, up, clamped->slope, clamped->limit, count, m.row);
    } else {
        rowwise.activate[static_cast<int>(activation)](gate, up, count, m.row);
    }
}

void Mixture::come_out(Step& step, int64_t num_active, const Memory& m) const {
    share(step, num_active, m, *experts.front().down.matrix, ceil_divide(hidden_size, kTileRows), 1,
          [&](const Expert& expert, int64_t begin, int64_t count, int64_t first, int64_t last) {
              const Activations inner = part_of(m.inner, begin, count);
              float* products = m.products + begin * hidden_size;
              step.kernels.linear(*expert.down.matrix, inner, first, last, products, hidden_size);
              if (expert.down.bias == nullptr) return;
              const int64_t row = first * kTileRows, rows = std::min(last * kTileRows, hidden_size) - row;
              for (int64_t i = 0; i < count; ++i) {
                  step.kernels.rowwise.add(expert.down.bias + row, rows, products + i * hidden_size + row);
              }
          });
}

}  // namespace mxconv
