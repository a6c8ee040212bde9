#include "routing.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace mxconv {

namespace {

constexpr float kLeastSum = 1e-20f;  // below which scores are not divided by their sum
constexpr float kNever = -std::numeric_limits<float>::infinity();

// The place of the greatest of values that are not taken yet; of equal ones the first.
template <class IsTaken>
int64_t greatest(const float* values, int64_t count, IsTaken is_taken) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; ++i) {
        if (!is_taken(i) && (best < 0 || values[i] > values[best])) best = i;
    }
    return best;
}

void softmax(float* values, int64_t count) {
    const float most = *std::max_element(values, values + count);
    float sum = 0.0f;
    for (int64_t i = 0; i < count; ++i) sum += values[i] = std::exp(values[i] - most);
    for (int64_t i = 0; i < count; ++i) values[i] /= sum;
}

BoundRouting make_routing(const Projection& router, int64_t num_chosen, const std::string& score, bool is_normalized,
                          const MaybeVector& correction, std::tuple<int64_t, int64_t> groups, double multiplier,
                          const MaybeVector& multipliers) {
    const int64_t count = router.rows();
    const auto [num_groups, num_chosen_groups] = groups;
    const bool has_groups = num_groups >= 1 && count % num_groups == 0 && num_chosen_groups >= 1 &&
                            num_chosen_groups <= num_groups && num_chosen <= num_chosen_groups * (count / num_groups) &&
                            (num_groups == 1 || (count / num_groups >= 2 && correction));
    require_that(num_chosen >= 1 && num_chosen <= count && has_groups, "experts that cannot be chosen");
    Routing made{};
    made.num_experts = count;
    made.num_chosen = num_chosen;
    made.score = named<Routing::Score>("score", score, {"softmax", "softmax_of_chosen", "sigmoid"});
    made.is_normalized = is_normalized;
    made.correction = vector_of(correction, "correction", count);
    made.num_groups = num_groups;
    made.num_chosen_groups = num_chosen_groups;
    made.multiplier = static_cast<float>(multiplier);
    made.multipliers = vector_of(multipliers, "multipliers", count);
    return {made, router};
}

}  // namespace

void Routing::choose(const float* logits, float* scores, int32_t* chosen, float* shares) const {
    float* const ranked = scores + num_experts;  // by which they are chosen
    std::copy(logits, logits + num_experts, scores);
    std::copy(logits, logits + num_experts, ranked);
    if (score == Score::kSoftmax) softmax(scores, num_experts);
    if (score == Score::kSigmoid) {
        for (int64_t i = 0; i < num_experts; ++i) scores[i] = 1.0f / (1.0f + std::exp(-logits[i]));
    }
    if (correction != nullptr) correct(scores, ranked);
    for (int64_t n = 0; n < num_chosen; ++n) {
        const auto taken = [&](int64_t i) {
            return std::find(chosen, chosen + n, static_cast<int32_t>(i)) != chosen + n;
        };
        chosen[n] = static_cast<int32_t>(greatest(ranked, num_experts, taken));
        shares[n] = scores[chosen[n]];
    }
    if (score == Score::kSoftmaxOfChosen) softmax(shares, num_chosen);
    float sum = kLeastSum;
    for (int64_t n = 0; n < num_chosen; ++n) sum += shares[n];
    for (int64_t n = 0; n < num_chosen; ++n) {
        if (is_normalized) shares[n] /= sum;
        shares[n] *= multiplier;
        if (multipliers != nullptr) shares[n] *= multipliers[chosen[n]];
    }
    for (int64_t n = 1; n < num_chosen; ++n) {
        for (int64_t i = n; i > 0 && chosen[i] < chosen[i - 1]; --i) {
            std::swap(chosen[i], chosen[i - 1]);
            std::swap(shares[i], shares[i - 1]);
        }
    }
}

// Scores with the correction, and nothing of groups that are not among the best by the sum of their two best scores.
void Routing::correct(float* scores, float* corrected) const {
    for (int64_t i = 0; i < num_experts; ++i) corrected[i] = scores[i] + correction[i];
    const int64_t length = num_experts / num_groups;
    for (int64_t excess = num_groups - num_chosen_groups; excess > 0;
         --excess) {  // the worst goes; of equal ones the last
        int64_t worst = -1;
        float least = 0.0f;
        for (int64_t g = 0; g < num_groups; ++g) {
            const float* values = corrected + g * length;
            const int64_t best = greatest(values, length, [](int64_t) { return false; });
            if (values[best] == kNever) continue;
            const int64_t next = greatest(values, length, [&](int64_t i) { return i == best; });
            const float sum = values[best] + values[next];
            if (worst < 0 || sum <= least) worst = g, least = sum;
        }
        if (worst < 0) return;
        std::fill(corrected + worst * length, corrected + (worst + 1) * length, kNever);
    }
}

void bind_routing(nb::module_& module) {
    nb::class_<BoundRouting> routing(module, "Routing", "How rows choose their experts.");
    define_init(routing, &make_routing,
                {"router", "num_chosen", "score", "is_normalized", "correction", "groups", "multiplier", "multipliers"},
                nb::kw_only());
}

}  // namespace mxconv
