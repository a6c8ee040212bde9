#include "head_screen.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "step.hpp"

namespace mxconv {

namespace {

constexpr int64_t kTilesAtOnce = 256;  // of a token's row tiles, in a piece

}  // namespace

HeadScreen::Memory HeadScreen::memory(Room& room, const Matrix& head, int64_t num_tokens) const {
    const int64_t tiles = head.row_tiles(), rank = projection.rows();
    Memory m{};
    m.projected = room.shared.take<float>(num_tokens * rank);
    m.highest = room.shared.take<float>(num_tokens * tiles);
    m.least = room.shared.take<float>(num_tokens);
    if (projection.exists()) {
        m.taken = room.own.activations(num_tokens, rank, scores.form(), room.own.take<uint8_t>(num_tokens));
    }
    m.row = room.own.activations(1, head.columns, form_of(head.kind, head.format), room.own.take<uint8_t>(1));
    m.patterns = room.own.take<uint16_t>(kTileRows * head.columns);
    m.order = room.own.take<float>(tiles);
    return m;
}

void HeadScreen::predict(Step& step, const Norm& norm, const Matrix& head) const {
    const std::vector<int64_t>& predicted = step.slice.predicted;
    const auto num_tokens = static_cast<int64_t>(predicted.size());
    const int64_t tiles = head.row_tiles(), rank = projection.rows();
    Room room = step.room();
    Memory m = memory(room, head, num_tokens);
    float* const logits = step.slice.logits;

    step.take_in(norm, forms(), step.own.taken, &predicted);
    if (projection.exists()) {
        step.multiply({{&projection, &step.own.taken, m.projected, rank}});
        for (int64_t token = 0; token < num_tokens; ++token) {
            if (m.taken.finite != nullptr) m.taken.finite[token] = 1;
            step.kernels.prepare(m.projected + token * rank, token, 0, rank, scores.form(), m.taken);
        }
    }
    step.multiply({{&scores, projection.exists() ? &m.taken : &step.own.taken, logits, head.rows}},
                  [&](int64_t, int64_t token, int64_t row, int64_t count, const float* values) {
                      float* highest = m.highest + token * tiles + row / kTileRows;
                      for (int64_t i = 0; i < count; i += kTileRows) {
                          float most = -std::numeric_limits<float>::infinity();  // and stays before a NaN
                          const int64_t end = std::min(i + kTileRows, count);
                          for (int64_t j = i; j < end; ++j) most = values[j] > most ? values[j] : most;
                          *highest++ = most;
                      }
                  });
    for (int64_t token = step.own.thread; token < num_tokens; token += step.num_threads()) {
        m.least[token] = least_score(m.highest + token * tiles, tiles, m.order);
    }
    step.barrier();

    const int64_t pieces = ceil_divide(tiles, kTilesAtOnce);
    int64_t prepared = -1;
    step.share(num_tokens * pieces, [&](int64_t i) {
        const int64_t token = i / pieces, first = i % pieces * kTilesAtOnce;
        if (token != prepared) {
            const std::vector<int64_t> one{predicted[static_cast<size_t>(token)]};
            step.take_in(norm, form_of(head.kind, head.format), m.row, &one);
            prepared = token;
        }
        rescore(step, head, m, token, first, std::min(first + kTilesAtOnce, tiles));
    });
}

float HeadScreen::least_score(const float* highest, int64_t count, float* order) const {
    if (num_candidates >= count) return -std::numeric_limits<float>::infinity();
    std::copy(highest, highest + count, order);
    float* const wanted = order + num_candidates - 1;
    std::nth_element(order, wanted, order + count, std::greater<float>());
    return *wanted;
}

// Row tiles [first, last) of a token: candidates of a dense head are gathered; of others whole tiles are multiplied.
void HeadScreen::rescore(Step& step, const Matrix& head, const Memory& m, int64_t token, int64_t first,
                         int64_t last) const {
    const float least = m.least[token];
    const float* highest = m.highest + token * head.row_tiles();
    float* const logits = step.slice.logits + token * head.rows;
    int64_t tiles[kTilesAtOnce], rows[kTilesAtOnce * kTileRows], num_tiles = 0, num_rows = 0;
    for (int64_t tile = first; tile < last; ++tile) {  // without branches, which nothing would predict
        tiles[num_tiles] = tile;
        num_tiles += highest[tile] >= least;
    }
    if (head.kind != MatrixKind::kDense) {
        for (int64_t i = 0; i < num_tiles; ++i) {
            step.kernels.linear(head, m.row, tiles[i], tiles[i] + 1, logits, head.rows);
        }
        return;
    }
    for (int64_t i = 0; i < num_tiles; ++i) __builtin_prefetch(logits + tiles[i] * kTileRows);
    for (int64_t i = 0; i < num_tiles; ++i) {
        const int64_t end = std::min((tiles[i] + 1) * kTileRows, head.rows);
        for (int64_t row = tiles[i] * kTileRows; row < end; ++row) {
            rows[num_rows] = row;
            num_rows += logits[row] >= least;
        }
    }
    Matrix gathered = head;
    gathered.patterns = m.patterns;
    gathered.rows = kTileRows;
    const auto num_bytes = static_cast<size_t>(head.columns) * sizeof(uint16_t);
    const auto ask = [&](int64_t i) {
        const auto* row = reinterpret_cast<const char*>(head.patterns + rows[i] * head.columns);
        for (size_t at = 0; at < num_bytes; at += kLineBytes) __builtin_prefetch(row + at, 0, 2);
    };
    for (int64_t i = 0; i < std::min(kTileRows, num_rows); ++i) ask(i);
    for (int64_t i = 0; i < num_rows; i += kTileRows) {
        const int64_t count = std::min(kTileRows, num_rows - i);
        for (int64_t j = 0; j < count; ++j) {
            std::memmove(m.patterns + j * head.columns, head.patterns + rows[i + j] * head.columns, num_bytes);
            if (i + kTileRows + j < num_rows) ask(i + kTileRows + j);
        }
        float products[kTileRows];
        step.kernels.linear(gathered, m.row, 0, 1, products, kTileRows);
        for (int64_t j = 0; j < count; ++j) logits[rows[i + j]] = products[j];
    }
}

}  // namespace mxconv
