#include "joined.hpp"

#include <algorithm>

#include "step.hpp"

namespace mxconv {

int Joined::forms() const {
    int forms = 0;
    for (const Addend& addend : addends) forms |= addend.part->forms();
    return forms;
}

// The rows of the sum, (tokens, hidden_size), after the memory that its parts use one after another.
float* Joined::memory(Room& room, const Slice& slice) const {
    int64_t shared = 0, own = 0;
    for (const Addend& addend : addends) {
        Room theirs;
        addend.part->lay_out(theirs, slice);
        shared = std::max(shared, theirs.shared.num_bytes());
        own = std::max(own, theirs.own.num_bytes());
    }
    room.shared.take<std::byte>(shared);
    room.own.take<std::byte>(own);
    return room.shared.take<float>(slice.num_tokens * hidden_size);
}

void Joined::add_to_rows(Step& step, const Activations& taken, const Sum& sum) const {
    Room room = step.room();
    float* rows = memory(room, step.slice);
    step.each_token([&](int64_t token) { std::fill_n(rows + token * hidden_size, hidden_size, 0.0f); });
    step.barrier();
    for (const Addend& addend : addends) addend.part->add_to_rows(step, taken, {addend.norm, 1.0f, nullptr, rows});
    step.add_rows(rows, sum);
}

}  // namespace mxconv
