// States of sequences as Python hands them over: what a walk reads and writes lies in its arrays.
#include "bound_walk.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "bindings.hpp"
#include "define.hpp"
#include "pass.hpp"

namespace mxconv {

namespace {

using Pairs = std::vector<std::pair<int64_t, int64_t>>;

std::vector<PlacePair> pairs_of(const Pairs& pairs) {
    std::vector<PlacePair> made;
    for (const auto& [place, other] : pairs) made.push_back({place, other});
    return made;
}

void require_that(bool holds, const char* what) {
    if (!holds) throw nb::value_error(what);
}

bool has(const KeptInputs& inputs, int64_t first, int64_t stop) {
    return first >= stop || (first >= inputs.origin && stop - inputs.origin <= inputs.room);
}

using Rows = std::tuple<int64_t, MutableArray<float>>;

KeptInputs rows_of(const Rows& bound) {
    const auto& [origin, values] = bound;
    require_that(values.ndim() == 3 && origin >= 0, "inputs are (layers, rows, numbers)");
    return {nullptr, origin, static_cast<int64_t>(values.shape(1))};
}

BoundWalk make_walk(const MutableArray<float>& windows, const MutableArray<float>& memories, const Rows& inputs,
                    const Rows& kept, int64_t source, int64_t first, int64_t stop, int64_t length, const Pairs& saves,
                    const Pairs& branches) {
    Walk walk{};
    walk.inputs = rows_of(inputs);
    walk.kept = rows_of(kept);
    std::tie(walk.source, walk.first, walk.stop, walk.length) = std::tie(source, first, stop, length);
    walk.saves = pairs_of(saves);
    walk.branches = pairs_of(branches);
    return {windows, memories, std::get<1>(inputs), std::get<1>(kept), walk};
}

}  // namespace

Walk BoundWalk::checked(const DecoderParts& decoder, int64_t num_tokens) const {
    const StateSizes& sizes = decoder.state;
    require(windows, "windows", {-1, decoder.num_states, sizes.kernel_size - 1, sizes.num_channels});
    const auto num_slots = static_cast<int64_t>(windows.shape(0));
    require(memories, "memories", {num_slots, decoder.num_states, sizes.heads, sizes.rows, sizes.columns});
    require(inputs, "inputs", {decoder.num_states, -1, sizes.input()});
    require(kept, "kept", {decoder.num_states, -1, sizes.input()});
    check_places(num_tokens, num_slots);
    check_branches(num_tokens);
    Walk made = walk;
    made.num_layers = decoder.num_states;
    made.windows = windows.data();
    made.memories = memories.data();
    made.inputs.values = inputs.data();
    made.kept.values = kept.data();
    return made;
}

void BoundWalk::check_places(int64_t num_tokens, int64_t num_slots) const {
    const int64_t end = walk.length + num_tokens, settled = std::min(walk.stop, walk.length);
    require_that(walk.source >= 0 && walk.source < num_slots, "a walk from a slot that there is not");
    require_that(walk.first >= 0 && walk.first <= settled && walk.stop <= end, "a walk that begins after its end");
    require_that(has(walk.inputs, walk.first, settled), "a walk over inputs that are gone");
    require_that(has(walk.kept, std::max(walk.length, walk.kept.origin), end), "no room for inputs");
    require_that(walk.saves.size() < static_cast<size_t>(num_slots), "more saves than slots");
    for (const auto& [place, slot] : walk.saves) {
        require_that(slot > kTip && slot < num_slots, "a save in a slot that there is not");
        require_that(place >= walk.first && place <= walk.stop, "a save of what the walk does not reach");
    }
}

// New rows are walked by the running state up to `stop`, and those after it by branches, each once and in their order.
void BoundWalk::check_branches(int64_t num_tokens) const {
    require_that(walk.branches.size() <= static_cast<size_t>(kTreeTokens), "more branches than a tree has rows");
    std::set<int64_t> known{walk.stop - 1};
    int64_t last = walk.stop - 1, num_new = 0;
    for (const auto& [place, parent] : walk.branches) {
        require_that(place > last && place < walk.length + num_tokens, "branches that do not ascend");
        require_that(known.count(parent) == 1, "a branch below a row that is not walked");
        if (place < walk.length) require_that(has(walk.inputs, place, place + 1), "a walk over inputs that are gone");
        num_new += place >= walk.length;
        known.insert(last = place);
    }
    const int64_t wanted = walk.length + num_tokens - std::max(walk.stop, walk.length);
    require_that(num_new == wanted, "new rows that are not walked");
}

void bind_walk(nb::module_& module) {
    nb::class_<BoundWalk> walk(module, "Walk", "States of a sequence, and the way of a pass through them.");
    define_init(
        walk, &make_walk,
        {"windows", "memories", "inputs", "kept", "source", "first", "stop", "length", "saves", "branches"},
        nb::kw_only(),
        "From the state of slot `source`, which has seen `first` rows, through rows first .. stop - 1 by the "
        "running state of slot 0, whose copies after some numbers of rows are saved, (rows, slot), then through "
        "branches, (row, parent). Inputs are those of rows from a number on, (number, (layers, rows, numbers)); "
        "those of the new rows, from `length` on, go to `kept`.");
}

}  // namespace mxconv
