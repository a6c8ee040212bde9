#include "pairs.hpp"

#include <algorithm>

#include "step.hpp"

namespace mxconv {

Demands Pairs::demands() const {
    Demands demands = part->demands();
    demands.layer_input = layer_input;
    demands.layer_input_size = demands.taken_size = demands.hidden_size;
    return demands;
}

// Every thread's own, after the memory that the part uses.
Pairs::Memory Pairs::memory(Room& room, const Slice& slice) const {
    Room theirs;
    part->lay_out(theirs, slice);
    room.own.take<std::byte>(theirs.own.num_bytes());
    room.shared.take<std::byte>(theirs.shared.num_bytes());
    const int64_t columns = 2 * part->demands().hidden_size;
    uint8_t* const finite = room.own.take<uint8_t>(slice.num_tokens);
    return {room.own.activations(slice.num_tokens, columns, part->forms(), finite), room.own.take<float>(columns)};
}

void Pairs::add_to_rows(Step& step, const Activations&, const Sum& sum) const {
    Room room = step.room();
    Memory m = memory(room, step.slice);
    const int64_t hidden = step.hidden_size;
    const Pass& pass = *step.slice.pass;
    const float* embedded = pass.layer_inputs + (layer_input * pass.num_tokens + step.slice.first) * hidden;
    for (int64_t token = 0; token < step.slice.num_tokens; ++token, embedded += hidden) {
        std::copy_n(embedded, hidden, m.row);
        norm.put(step.kernels.rowwise, step.slice.x + token * hidden, hidden, m.row + hidden);
        if (m.taken.finite != nullptr) m.taken.finite[token] = 1;
        step.kernels.prepare(m.row, token, 0, 2 * hidden, part->forms(), m.taken);
    }
    part->add_to_rows(step, m.taken, sum);
}

}  // namespace mxconv
