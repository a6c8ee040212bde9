#include "walk.hpp"

#include <algorithm>
#include <cstring>
#include <map>

namespace mxconv {

SliceWalk::SliceWalk(const Walk& w, int64_t place, int64_t count, int64_t token)
    : walk(&w), begins(place == w.length), start(begins ? w.first : place), token(token), num_tokens(count) {
    for (int64_t at = start; at < std::min(w.stop, place + count); ++at) {
        const auto step = static_cast<int64_t>(steps.size());
        steps.push_back({at, at < w.length ? -1 : token + at - place, step - 1, 0, 0});
    }
    num_running = static_cast<int64_t>(steps.size());
    branch();
}

// A row gets a copy of the state above it; the last one below that state takes the state itself.
void SliceWalk::branch() {
    std::map<int64_t, int64_t> children, step_of;
    for (const PlacePair& each : walk->branches) ++children[each.second];
    std::vector<int64_t> unused;
    for (const auto& [place, parent] : walk->branches) {
        const bool is_of_running = parent == walk->stop - 1;
        const int64_t before = is_of_running ? num_running - 1 : step_of.at(parent);
        const int64_t from = is_of_running ? 0 : steps[static_cast<size_t>(before)].to;
        int64_t to = from;
        if (--children[parent] > 0 || is_of_running) {
            if (unused.empty()) unused.push_back(++num_copies);
            to = unused.back();
            unused.pop_back();
        }
        if (children.count(place) == 0) unused.push_back(to);  // nobody goes on from it
        step_of[place] = static_cast<int64_t>(steps.size());
        steps.push_back({place, place < walk->length ? -1 : token + place - walk->length, before, from, to});
    }
}

namespace {

void copy(const float* from, int64_t count, float* to) {
    if (count > 0 && from != to) std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

}  // namespace

const float* LayerWalk::input(int64_t number) const {
    const WalkStep& at = step(number);
    if (at.token >= 0) return inputs_ + at.token * stride_;
    const KeptInputs& there = walk_.walk->inputs;
    return there.values + (layer_ * there.room + at.place - there.origin) * sizes_.input();
}

void LayerWalk::see(int64_t number, const float** rows) const {
    const float* before = window(walk_.begins ? walk_.walk->source : kTip) + sizes_.window();
    for (int64_t i = sizes_.kernel_size - 1; i >= 0; --i) {
        if (number >= 0) {
            rows[i] = input(number);
            number = step(number).before;
        } else {
            rows[i] = before -= sizes_.num_channels;
        }
    }
}

void LayerWalk::begin(int64_t head) const {
    if (!walk_.begins) return;
    copy(memory(walk_.walk->source, head), sizes_.head(), memory(kTip, head));
    save(head, walk_.start);
}

int64_t LayerWalk::run_end(int64_t first, int64_t count) const {
    if (first >= walk_.num_running) return count;
    return std::min({first + kStepsAtOnce, walk_.num_running, count});
}

void LayerWalk::save(int64_t head, int64_t place) const {
    for (const auto& [wanted, slot] : walk_.walk->saves) {
        if (wanted == place) copy(memory(kTip, head), sizes_.head(), memory(slot, head));
    }
}

// All windows are made before one is written: a save may take the slot of the source.
void LayerWalk::keep(float* windows) const {
    const Walk& w = *walk_.walk;
    const int64_t num_seen = sizes_.kernel_size - 1, channels = sizes_.num_channels;
    const auto each = [&](const auto& work) {  // (which, slot, steps that its state has seen)
        work(0, kTip, walk_.num_running);
        for (size_t i = 0; i < w.saves.size(); ++i) {
            const int64_t seen = w.saves[i].first - walk_.start;
            if (seen >= (walk_.begins ? 0 : 1) && seen <= walk_.num_running) {
                work(static_cast<int64_t>(i) + 1, w.saves[i].second, seen);
            }
        }
    };
    const float* before = window(walk_.begins ? w.source : kTip);
    each([&](int64_t which, int64_t, int64_t seen) {
        for (int64_t row = 0; row < num_seen; ++row) {
            const int64_t number = seen - num_seen + row;
            const float* from = number >= 0 ? input(number) : before + (num_seen + number) * channels;
            copy(from, channels, windows + which * sizes_.window() + row * channels);
        }
    });
    each([&](int64_t which, int64_t slot, int64_t) {
        copy(windows + which * sizes_.window(), sizes_.window(), window(slot));
    });
    for (const WalkStep& at : walk_.steps) {
        if (at.token < 0 || at.place < w.kept.origin) continue;
        float* to = w.kept.values + (layer_ * w.kept.room + at.place - w.kept.origin) * sizes_.input();
        copy(inputs_ + at.token * stride_, sizes_.input(), to);
    }
}

float* LayerWalk::memory(int64_t slot, int64_t head) const {
    const Walk& w = *walk_.walk;
    return w.memories + ((slot * w.num_layers + layer_) * sizes_.heads + head) * sizes_.head();
}

float* LayerWalk::window(int64_t slot) const {
    const Walk& w = *walk_.walk;
    return w.windows + (slot * w.num_layers + layer_) * sizes_.window();
}

}  // namespace mxconv
