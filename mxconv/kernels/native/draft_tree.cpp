#include "draft_tree.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "plane_reader.hpp"

namespace mxconv {

namespace {

#include "numbers.inl"

constexpr double kNegligible = -16.0;  // a logarithm: 50,000 such shares change a chance by half a percent
constexpr int64_t kCompared = 16;      // logits of which only the greatest are compared first
constexpr double kLn2 = 0.6931471805599453;
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

// Calls `take(token, highest)` for the tokens whose logits are at most `range` below the highest, in order; none where that is
// infinite.
template <class Take>
void each_near(const float* logits, int64_t count, double range, const Take& take) {
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
    if (!std::isfinite(highest)) return;

    const auto least = static_cast<float>(std::max(highest - range, double{std::numeric_limits<float>::lowest()}));
    const auto look_at = [&](int64_t token) {
        if (logits[token] >= least) take(static_cast<int32_t>(token), highest);
    };
    for (size_t block = 0; block < maxima.size(); ++block) {
        if (!any_at_least(maxima[block], least)) continue;
        for (int64_t i = 0; i < kCompared; ++i) look_at(static_cast<int64_t>(block) * kCompared + i);
    }
    for (int64_t i = whole; i < count; ++i) look_at(i);
}

using Guesses = std::vector<std::pair<int32_t, double>>;  // tokens and their chances, the likeliest first

// Put a token with its score into a list of at most so many, the greatest first and of equal ones the earlier.
void insert(Guesses& best, int32_t token, double score, int64_t most) {
    if (static_cast<int64_t>(best.size()) == most) {
        if (score <= best.back().second) return;
        best.pop_back();
    }
    const auto place = std::find_if(best.begin(), best.end(), [&](const auto& one) { return one.second < score; });
    best.insert(place, {token, score});
}

__extension__ typedef unsigned __int128 Wide;

// Keep the tokens that may be drawn, of those near the highest with the logarithms of their weights; the highest weighs 1.
void keep_likely(Guesses& near, const Draws& draws) {
    const auto is_likelier = [](const auto& a, const auto& b) { return a.second > b.second; };
    if (draws.top_k > 0 && near.size() > static_cast<size_t>(draws.top_k)) {
        std::nth_element(near.begin(), near.begin() + (draws.top_k - 1), near.end(), is_likelier);
        near.resize(static_cast<size_t>(draws.top_k));
    }
    if (draws.top_p < 1.0) {
        constexpr int kSteps = 8;  // of a unit of the logarithm: sorted are tokens up to the step that reaches top_p
        std::vector<double> sums(static_cast<size_t>(-kNegligible * kSteps) + 2);
        const auto step = [](const auto& one) { return static_cast<size_t>(-one.second * kSteps); };
        double total = 0.0, sum = 0.0;
        for (const auto& one : near) sums[std::min(step(one), sums.size() - 1)] += std::exp(one.second);
        for (const double each : sums) total += each;
        size_t last = 0;
        for (sum = sums[0]; last + 1 < sums.size() && sum < draws.top_p * total; sum += sums[last]) ++last;
        const auto is_beyond = [&](const auto& one) { return step(one) > last; };
        near.erase(std::remove_if(near.begin(), near.end(), is_beyond), near.end());
        std::stable_sort(near.begin(), near.end(), is_likelier);
        size_t kept = 0;
        for (sum = 0.0; kept < near.size() && (kept == 0 || sum < draws.top_p * total); ++kept) {
            sum += std::exp(near[kept].second);
        }
        near.resize(kept);
    }
    const double least = std::log(draws.min_p);
    const auto is_unlikely = [&](const auto& one) { return one.second < least; };
    near.erase(std::remove_if(near.begin(), near.end(), is_unlikely), near.end());
}

// The likeliest tokens of logits, at most so many, and their shares of the softmax of sharper logits, the likeliest first and of
// equal ones the lower token. None where the greatest logit is infinite.
Guesses likeliest(const float* logits, int64_t count, double sharpness, int64_t most) {
    Guesses best;
    double total = 0.0;
    float first = 0.0f;
    each_near(logits, most < 1 ? 0 : count, -kNegligible / sharpness, [&](int32_t token, float highest) {
        total += std::exp(static_cast<float>((logits[token] - highest) * sharpness));
        insert(best, token, logits[token], most);
        first = highest;
    });
    for (auto& [token, share] : best) {
        share = std::exp(static_cast<float>((static_cast<float>(share) - first) * sharpness)) / total;
    }
    return best;
}

// The tokens that draws with some noise put first, and their shares of the softmax of sharper scores. `ids` are the tokens that
// logits are of, in order; nullptr: all from 0 on.
Guesses drawn(const float* logits, int64_t count, const Draws& draws, Noise& noise, double sharpness, int64_t most,
              const int64_t* ids) {
    Guesses near, best;
    each_near(logits, most < 1 ? 0 : count, -kNegligible * draws.temperature, [&](int32_t token, float highest) {
        near.emplace_back(token, (double{logits[token]} - highest) / draws.temperature);
    });
    keep_likely(near, draws);
    std::vector<double> scores;  // but for those that are negligible beside the best, and not among it
    for (const auto& [token, weight] : near) {
        const double number = noise.of(ids ? ids[token] : token);
        int exponent = 0;
        std::frexp(1.0 - number, &exponent);  // the noise is at most -log(1 - number)
        const bool is_full = static_cast<int64_t>(best.size()) == most;
        if (is_full && weight + (1 - exponent) * kLn2 <
                           std::min(best.back().second, best.front().second + kNegligible / sharpness)) {
            continue;
        }
        scores.push_back(weight - std::log(-std::log(number)));
        insert(best, token, scores.back(), most);
    }
    const double first = best.empty() ? 0.0 : best.front().second;
    double total = 0.0;
    for (const double score : scores) total += std::exp((score - first) * sharpness);
    for (auto& [token, share] : best) share = std::exp((share - first) * sharpness) / total;
    return best;
}

}  // namespace

void Noise::begin(uint64_t seed, uint64_t position, int64_t num_tokens) {
    seed_ = seed;
    position_ = position;
    numbers_.assign(static_cast<size_t>(num_tokens + 3) / 4 * 4, -1.0);
}

// Philox4x64-10, four numbers a block: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3".
double Noise::of(int64_t token) {
    const auto place = static_cast<size_t>(token);
    if (numbers_[place] >= 0.0) return numbers_[place];
    uint64_t counter[4] = {place / 4 + 1, 0, 0, 0}, key[2] = {seed_, position_};
    for (int round = 0; round < 10; ++round) {
        const Wide even = Wide{0xD2E7470EE14C6C93} * counter[0], odd = Wide{0xCA5A826395121157} * counter[2];
        counter[0] = static_cast<uint64_t>(odd >> 64) ^ counter[1] ^ key[0];
        counter[2] = static_cast<uint64_t>(even >> 64) ^ counter[3] ^ key[1];
        counter[1] = static_cast<uint64_t>(odd);
        counter[3] = static_cast<uint64_t>(even);
        key[0] += 0x9E3779B97F4A7C15;
        key[1] += 0xBB67AE8584CAA73B;
    }
    for (size_t i = 0; i < 4; ++i) numbers_[place / 4 * 4 + i] = static_cast<double>(counter[i] >> 11) * 0x1p-53;
    return numbers_[place];
}

void look_up(const Kernels& kernels, const Matrix& embedding, float multiplier, const std::vector<int64_t>& ids,
             float* x) {
    std::vector<uint16_t> tile(static_cast<size_t>(kTileRows * embedding.columns));
    for (const int64_t id : ids) {
        restore_tile(kernels.family, embedding, id / kTileRows, tile.data());
        const uint16_t* row = tile.data() + id % kTileRows * embedding.columns;
        for (int64_t i = 0; i < embedding.columns; ++i) {
            const float value = embedding.format == FloatFormat::kBf16 ? bf16_value(row[i]) : f16_value(row[i]);
            *x++ = multiplier == 1.0f ? value : value * multiplier;
        }
    }
}

void Penalties::apply(float* logits, int64_t count, const std::vector<int64_t>& path) const {
    const auto penalized = [&](float logit, int32_t num_in_text, int32_t num_in_answer) {
        if (num_in_text > 0) logit = logit < 0.0f ? logit * repetition : logit / repetition;
        logit -= frequency * static_cast<float>(num_in_answer);
        return logit - (num_in_answer > 0 ? presence : 0.0f);
    };
    for (const auto& [token, added] : bias) {
        if (token < count) logits[token] += added;
    }
    std::vector<float> before;
    for (const int64_t token : path) before.push_back(logits[token]);
    for (size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] < count) logits[tokens[i]] = penalized(logits[tokens[i]], in_text[i], in_answer[i]);
    }
    for (size_t i = 0; i < path.size(); ++i) {
        const auto place = static_cast<size_t>(std::find(tokens.begin(), tokens.end(), path[i]) - tokens.begin());
        const auto more = static_cast<int32_t>(std::count(path.begin(), path.end(), path[i]));
        const bool is_new = place == tokens.size();
        logits[path[i]] =
            penalized(before[i], more + (is_new ? 0 : in_text[place]), more + (is_new ? 0 : in_answer[place]));
    }
}

std::vector<int64_t> DraftTree::path(int64_t node) const {
    std::vector<int64_t> tokens;
    for (; node >= 0; node = nodes_[static_cast<size_t>(node)].parent) {
        tokens.push_back(nodes_[static_cast<size_t>(node)].token);
    }
    return tokens;
}

void DraftTree::add_guesses(float* logits, int64_t stride, int64_t count, const int64_t* ids) {
    const std::vector<int64_t> parents =
        rows_.empty() ? std::vector<int64_t>{-1} : std::vector<int64_t>(rows_.end() - num_last_, rows_.end());
    const int64_t first = static_cast<int64_t>(nodes_.size());
    const int64_t most = std::min(limits_.most_siblings, static_cast<int64_t>(limits_.floors.size()));
    if (limits_.draws) {
        const uint64_t position = limits_.draws->position + static_cast<uint64_t>(depth_);
        noise_.begin(limits_.draws->seed, position, ids ? *std::max_element(ids, ids + count) + 1 : count);
    }
    for (size_t i = 0; i < parents.size(); ++i) {
        const double along = parents[i] < 0 ? 1.0 : nodes_[static_cast<size_t>(parents[i])].chance;
        const double least = limits_.floors.front() / std::max(along, 1e-300);
        float* row = logits + static_cast<int64_t>(i) * stride;
        if (limits_.penalties) limits_.penalties->apply(row, count, path(parents[i]));
        const double sharpness = limits_.sharpness;
        for (const auto& [token, own] : limits_.draws ? drawn(row, count, *limits_.draws, noise_, sharpness, most, ids)
                                                      : likeliest(row, count, sharpness, most)) {
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
