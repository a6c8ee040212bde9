// The tokens of a sequence in a pass, the pages of its cache and the states of its mixers, as Python hands them over.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "bindings.hpp"

namespace mxconv {

CacheDtype cache_dtype_of(const std::string& name) {
    return named<CacheDtype>("dtype", name, {"fp32", "bf16", "fp16"});
}

namespace {

// Where the pages of some numbers lie.
template <class Number>
std::vector<CachePage> pages_of(const BoundPages& bound, const DecoderParts& decoder) {
    const int64_t length = kPagePositions * decoder.head_dim;
    std::vector<MutableArray<Number>> slabs(bound.slabs.size());
    for (size_t i = 0; i < slabs.size(); ++i) {
        if (!nb::try_cast(bound.slabs[i], slabs[i], false)) {
            throw nb::type_error("slabs must be arrays of the pages' dtype, to write to");
        }
        const int64_t heads = decoder.num_key_value_heads;
        require(slabs[i], "slab", {decoder.num_caches, 2, heads, -1, kPagePositions, decoder.head_dim});
    }
    std::vector<CachePage> pages;
    for (size_t i = 0; i < bound.numbers.shape(0); ++i) {
        int64_t number = bound.numbers.data()[i];
        auto slab = slabs.begin();
        for (; slab != slabs.end() && number >= static_cast<int64_t>(slab->shape(3)); ++slab) {
            number -= static_cast<int64_t>(slab->shape(3));
        }
        require_that(number >= 0 && slab != slabs.end(), "a page that there is not");
        pages.push_back({slab->data() + number * length, static_cast<int64_t>(slab->shape(3)) * length});
    }
    return pages;
}

// ---- walks: what they read and write lies in arrays ----

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
                    const Rows& kept, int64_t source, int64_t first, int64_t stop, int64_t length,
                    const std::vector<PlacePair>& saves, const std::vector<PlacePair>& branches) {
    const Walk walk{0, nullptr, nullptr, rows_of(inputs), rows_of(kept), source, first, stop, length, saves, branches};
    return {windows, memories, std::get<1>(inputs), std::get<1>(kept), walk};
}

void check_places(const Walk& walk, int64_t num_tokens, int64_t num_slots) {
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
void check_branches(const Walk& walk, int64_t num_tokens) {
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

// Raises where a walk does not fit a decoder, or the rows of a sequence.
Walk walk_of(const BoundWalk& bound, const DecoderParts& decoder, int64_t num_tokens) {
    const auto& [windows, memories, inputs, kept, walk] = bound;
    const StateSizes& sizes = decoder.state;
    require(windows, "windows", {-1, decoder.num_states, sizes.kernel_size - 1, sizes.num_channels});
    const auto num_slots = static_cast<int64_t>(windows.shape(0));
    require(memories, "memories", {num_slots, decoder.num_states, sizes.heads, sizes.rows, sizes.columns});
    require(inputs, "inputs", {decoder.num_states, -1, sizes.input()});
    require(kept, "kept", {decoder.num_states, -1, sizes.input()});
    check_places(walk, num_tokens, num_slots);
    check_branches(walk, num_tokens);
    Walk made = walk;
    made.num_layers = decoder.num_states;
    made.windows = windows.data();
    made.memories = memories.data();
    made.inputs.values = inputs.data();
    made.kept.values = kept.data();
    return made;
}

}  // namespace

SequenceTokens BoundSequence::checked(const DecoderParts& decoder) const {
    SequenceTokens sequence{};
    require(pages.numbers, "numbers", {-1});
    const CacheDtype dtype = cache_dtype_of(pages.dtype);
    sequence.cache = {dtype,
                      dtype == CacheDtype::kFp32 ? pages_of<float>(pages, decoder) : pages_of<uint16_t>(pages, decoder),
                      decoder.num_key_value_heads, decoder.head_dim};
    const auto capacity = static_cast<int64_t>(sequence.cache.pages.size()) * kPagePositions;
    require_that(length >= 0 && num_tokens >= 1 && num_tokens <= capacity && length <= capacity - num_tokens &&
                     capacity <= INT32_MAX,
                 "the tokens do not fit into the cache");
    require_that(num_logits >= 0 && num_logits <= num_tokens, "more logits than tokens");
    require_that(num_left_out >= 0 && num_left_out <= INT32_MAX, "num_left_out must be 0 or more");
    sequence.num_tokens = num_tokens;
    sequence.num_logits = num_logits;
    sequence.length = length;
    sequence.num_left_out = num_left_out;
    if (masks) {
        require(*masks, "masks", {num_tokens});
        require_that(mask_start >= 0 && mask_start <= length && length + num_tokens - mask_start <= kTreeTokens,
                     "masks reach over the newest 64 positions");
        for (int64_t token = 0; token < num_tokens; ++token) {
            const int64_t itself = length + token - mask_start;
            require_that(masks->data()[token] >> itself == 1, "a token sees itself and nothing after");
        }
        sequence.masks = masks->data();
        sequence.mask_start = mask_start;
    }
    require_that(states.has_value() != stages.empty(), "states and their stages go together");
    if (states) {
        require(*states, "states", {static_cast<int64_t>(stages.size()), num_tokens, decoder.hidden_size});
        const auto [least, most] = std::minmax_element(stages.begin(), stages.end());
        require_that(*least >= 0 && *most <= static_cast<int64_t>(decoder.layers.size()) + 1,
                     "a stage that there is not");
        sequence.stages = stages;
        sequence.states = states->data();
    }
    if (decoder.retrieves) {
        require_that(key_ranges.has_value(), "ranges of keys are missing");
        require(*key_ranges, "key_ranges", {decoder.num_caches, decoder.num_key_value_heads, 2, decoder.head_dim, -1});
        sequence.key_ranges = {key_ranges->data(), static_cast<int64_t>(key_ranges->shape(4)), num_ranges};
        require_that(capacity <= sequence.key_ranges.room * kPagePositions, "no room for the ranges of keys");
        require_that(num_ranges >= 0 && num_ranges <= length / kPagePositions, "ranges of pages that are not whole");
    }
    if (decoder.num_states > 0) {
        require_that(walk && walk->walk.length == length, "a walk through the states is missing");
        sequence.walk = walk_of(*walk, decoder, num_tokens);
    }
    return sequence;
}

void bind_sequences(nb::module_& module) {
    nb::class_<BoundPages>(module, "Pages",
                           "The pages of a sequence by their numbers in slabs (layers, 2, heads, pages, positions of a "
                           "page, head_dim), keys before values: float32, or uint16 patterns of bf16 or fp16.")
        .def(nb::init<std::string, std::vector<nb::object>, Array<int32_t>>(), nb::arg("dtype"), nb::arg("slabs"),
             nb::arg("numbers").noconvert());
    nb::class_<BoundWalk> walk(module, "Walk", "States of a sequence, and the way of a pass through them.");
    define_init(
        walk, &make_walk,
        {"windows", "memories", "inputs", "kept", "source", "first", "stop", "length", "saves", "branches"},
        nb::kw_only(),
        "From the state of slot `source`, which has seen `first` rows, through rows first .. stop - 1 by the "
        "running state of slot 0, whose copies after some numbers of rows are saved, (rows, slot), then through "
        "branches, (row, parent). Inputs are those of rows from a number on, (number, (layers, rows, numbers)); "
        "those of the new rows, from `length` on, go to `kept`.");
    nb::class_<BoundSequence>(module, "SequenceTokens", "The tokens of one sequence in a pass.")
        .def(nb::init<BoundPages, int64_t, int64_t, int64_t, std::optional<Array<uint64_t>>, int64_t,
                      std::vector<int64_t>, std::optional<MutableArray<float>>, int64_t, std::optional<BoundWalk>,
                      std::optional<MutableArray<float>>, int64_t>(),
             nb::arg("pages"), nb::arg("length"), nb::arg("num_tokens"), nb::arg("num_logits"),
             nb::arg("masks").noconvert() = nb::none(), nb::arg("mask_start") = 0,
             nb::arg("stages") = std::vector<int64_t>{}, nb::arg("states").noconvert() = nb::none(),
             nb::arg("num_left_out") = 0, nb::arg("walk") = nb::none(), nb::arg("key_ranges").noconvert() = nb::none(),
             nb::arg("num_ranges") = 0,
             "Tokens after `length` positions, where their keys and values are written; the last num_logits of them "
             "get logits. With masks, token i sees the positions before mask_start and mask_start + b for each bit b. "
             "states (stages, num_tokens, hidden_size) receives x before the layers of those numbers; one more than "
             "the last layer's is what they all give, two more that after the norm. num_left_out positions of the text "
             "before these are in no place. key_ranges (layers, heads, 2, head_dim, pages) holds the greatest and the "
             "least of the keys of the first num_ranges pages, and receives those of pages that the pass fills.");
}

}  // namespace mxconv
