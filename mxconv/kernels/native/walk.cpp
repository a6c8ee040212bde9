#include "walk.hpp"

#include <algorithm>
#include <map>

namespace mxconv {

SliceWalk::SliceWalk(const Walk& w, int64_t place, int64_t count, int64_t token)
    : walk(&w), begins(place == w.length), start(begins ? w.first : place), token(token), num_tokens(count) {
    for (int64_t at = start; at < std::min(w.stop, place + count); ++at) {
        const auto step = static_cast<int64_t>(steps.size());
        steps.push_back({at, at < w.length ? -1 : token + at - place, step - 1, 0, 0});
    }
    num_running = static_cast<int64_t>(steps.size());
    num_settled = std::min(std::max<int64_t>(w.length - start, 0), num_running);
    branch();
}

// A row gets a copy of the state above it; the last one below that state takes the state itself.
void SliceWalk::branch() {
    std::map<int64_t, int64_t> children, step_of;
    for (const PlacePair& each : walk->branches) ++children[each.other];
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

}  // namespace mxconv
