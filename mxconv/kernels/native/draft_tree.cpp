#include "draft_tree.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace mxconv {

namespace {

#include "numbers.inl"

constexpr double kNegligible = -16.0;  // a logarithm: 50,000 such shares change a chance by half a percent
constexpr int64_t kCompared = 16;      // logits of which only the greatest are compared first
constexpr float kLowest = -std::numeric_limits<float>::infinity();

typedef float Lanes __attribute__((vector_size(16)));

Lanes load(const float* from) {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
}

Lanes greater(Lanes a, Lanes b) {
#if defined(__SSE2__)
    return static_cast<Lanes>(_mm_max_ps(static_cast<__m128>(a), static_cast<__m128>(b)));
#else
    return a > b ? a : b;
#endif
}

bool any_at_least(Lanes lanes, float least) {
#if defined(__SSE2__)
    return _mm_movemask_ps(_mm_cmpge_ps(static_cast<__m128>(lanes), _mm_set1_ps(least))) != 0;
#else
    return lanes[0] >= least || lanes[1] >= least || lanes[2] >= least || lanes[3] >= least;
#endif
}

}  // namespace

std::vector<std::pair<int32_t, double>> likeliest(const float* logits, int64_t count, double sharpness, int64_t most) {
    thread_local std::vector<Lanes> room;
    std::vector<Lanes>& maxima = room;  // of whole blocks, lane by lane
    maxima.resize(static_cast<size_t>(count / kCompared));
    Lanes all = Lanes{} + kLowest;
    for (size_t block = 0; block < maxima.size(); ++block) {
        const float* from = logits + static_cast<int64_t>(block) * kCompared;
        maxima[block] = greater(greater(load(from), load(from + 4)), greater(load(from + 8), load(from + 12)));
        all = greater(maxima[block], all);
    }
    float highest = std::max(std::max(all[0], all[1]), std::max(all[2], all[3]));
    const int64_t whole = count / kCompared * kCompared;
    for (int64_t i = whole; i < count; ++i) highest = std::max(highest, logits[i]);
    std::vector<std::pair<int32_t, double>> best;
    if (!std::isfinite(highest) || most < 1) return best;

    const auto least = static_cast<float>(highest + kNegligible / sharpness);
    double total = 0.0;
    const auto look_at = [&](int64_t token) {
        const float logit = logits[token];
        if (!(logit >= least)) return;
        const double weight = std::exp(static_cast<float>((logit - highest) * sharpness));
        total += weight;
        const bool is_full = static_cast<int64_t>(best.size()) == most;
        if (is_full && logit <= logits[best.back().first]) return;
        if (is_full) best.pop_back();
        const auto place =
            std::find_if(best.begin(), best.end(), [&](const auto& one) { return logits[one.first] < logit; });
        best.insert(place, {static_cast<int32_t>(token), weight});
    };
    for (size_t block = 0; block < maxima.size(); ++block) {
        if (!any_at_least(maxima[block], least)) continue;
        for (int64_t i = 0; i < kCompared; ++i) look_at(static_cast<int64_t>(block) * kCompared + i);
    }
    for (int64_t i = whole; i < count; ++i) look_at(i);
    for (auto& [token, share] : best) share /= total;
    return best;
}

void look_up(const Kernels& kernels, const Matrix& embedding, float multiplier, const std::vector<int64_t>& ids,
             float* x) {
    std::vector<uint16_t> tile(static_cast<size_t>(kTileRows * embedding.columns));
    for (const int64_t id : ids) {
        kernels.family.patterns(embedding, id / kTileRows, id / kTileRows + 1, tile.data());
        const uint16_t* row = tile.data() + id % kTileRows * embedding.columns;
        for (int64_t i = 0; i < embedding.columns; ++i) {
            const float value = embedding.format == FloatFormat::kBf16 ? bf16_value(row[i]) : f16_value(row[i]);
            *x++ = multiplier == 1.0f ? value : value * multiplier;
        }
    }
}

void DraftTree::add_guesses(const float* logits, int64_t stride, int64_t count) {
    const std::vector<int64_t> parents =
        rows_.empty() ? std::vector<int64_t>{-1} : std::vector<int64_t>(rows_.end() - num_last_, rows_.end());
    const int64_t first = static_cast<int64_t>(nodes_.size());
    const int64_t most = std::min(limits_.most_siblings, static_cast<int64_t>(limits_.floors.size()));
    for (size_t i = 0; i < parents.size(); ++i) {
        const double along = parents[i] < 0 ? 1.0 : nodes_[static_cast<size_t>(parents[i])].chance;
        const double least = limits_.floors.front() / std::max(along, 1e-300);
        for (const auto& [token, own] :
             likeliest(logits + static_cast<int64_t>(i) * stride, count, limits_.sharpness, most)) {
            if (own > 0.0 && own >= least) nodes_.push_back({token, parents[i], own, along * own});
        }
    }
    row_of_.resize(nodes_.size(), -1);
    num_last_ = 0;
    for (const int64_t node : able(first)) {
        if (static_cast<int64_t>(rows_.size()) == limits_.most_rows || num_last_ == limits_.most_in_frontier) break;
        rows_.push_back(node);
        ++num_last_;
    }
}

// Those of the nodes from `first` on that could still have a child that is kept, the likeliest first.
std::vector<int64_t> DraftTree::able(int64_t first) const {
    std::vector<int64_t> ranked(nodes_.size()), found;
    std::iota(ranked.begin(), ranked.end(), 0);
    const auto is_likelier = [&](int64_t a, int64_t b) {
        return nodes_[static_cast<size_t>(a)].chance > nodes_[static_cast<size_t>(b)].chance;
    };
    std::stable_sort(ranked.begin(), ranked.end(), is_likelier);
    for (size_t rank = 0; rank + 1 < limits_.floors.size() && rank < ranked.size(); ++rank) {
        const int64_t node = ranked[rank];
        if (node >= first && nodes_[static_cast<size_t>(node)].chance >= limits_.floors[rank + 1])
            found.push_back(node);
    }
    return found;
}

int64_t DraftTree::go_on() {
    const auto begin = rows_.end() - num_last_;
    double most_own = 0.0, sum = 0.0;
    for (auto row = begin; row != rows_.end(); ++row) {
        most_own = std::max(most_own, nodes_[static_cast<size_t>(*row)].own);
        sum += nodes_[static_cast<size_t>(*row)].chance;
    }
    if (++depth_ >= limits_.most_depth || num_last_ == 0 || most_own < limits_.least_own || sum < limits_.least_sum) {
        rows_.erase(begin, rows_.end());
        return num_last_ = 0;
    }
    first_of_last_ = begin - rows_.begin();
    masks_.clear();
    for (auto row = begin; row != rows_.end(); ++row) {
        const auto node = static_cast<size_t>(*row);
        row_of_[node] = row - rows_.begin();
        const int64_t parent = nodes_[node].parent;
        const uint64_t above = parent < 0 ? 0 : all_masks_[static_cast<size_t>(row_of_[static_cast<size_t>(parent)])];
        all_masks_.push_back(above | uint64_t{1} << row_of_[node]);
        masks_.push_back(all_masks_.back());
    }
    return num_last_;
}

}  // namespace mxconv
