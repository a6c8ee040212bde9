#include "decoder.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mxconv {

Decoder::Decoder(Engine& engine, DecoderParts parts, const HeadScreen& screen)
    : engine_(engine), parts_(std::move(parts)), screen_(screen), finite_(static_cast<size_t>(kTokensAtOnce)) {
    forms_ = form_of(parts_.head->kind, parts_.head->format) | screen_.forms();
    for (const Layer& layer : parts_.layers) {
        for (const Branch& branch : layer.branches) {
            forms_ |= branch.part->forms();
            is_parallel_ |= branch.is_parallel;
        }
    }
    for (int operators = 0; operators < 2; ++operators) pieces_.emplace_back(engine.team->size());
    for (int thread = 0; thread < engine.team->size(); ++thread) {
        workspaces_.push_back(std::make_unique<Workspace>(thread));
    }
}

void Decoder::read_ahead(PlaneReader& planes, std::vector<int64_t> stages) {
    planes_ = &planes;
    stages_ = std::move(stages);
}

void Decoder::forward(const Pass& pass) {
    std::lock_guard one_at_a_time(callers_);
    const auto reading = planes_ != nullptr ? planes_->hold() : std::unique_lock<std::mutex>();
    tokens_.clear();
    for (const SequenceTokens& sequence : pass.sequences) {
        for (int64_t i = 0; i < sequence.num_tokens; ++i) tokens_.push_back({&sequence, sequence.length + i});
    }
    Slice slice{};
    slice.pass = &pass;
    slice.logits = pass.logits;
    for (slice.first = 0; slice.first < pass.num_tokens; slice.first += slice.num_tokens) {
        slice.num_tokens = slice_end(pass, slice.first) - slice.first;
        slice.tokens = tokens_.data() + slice.first;
        slice.x = pass.x + slice.first * parts_.hidden_size;
        slice.copies_states = false;
        slice.most_visible = 0;
        slice.predicted.clear();
        for (int64_t i = 0; i < slice.num_tokens; ++i) {
            const auto& [sequence, place] = slice.tokens[i];
            const int64_t num_before = place - sequence->length;
            if (num_before >= sequence->num_tokens - sequence->num_logits) slice.predicted.push_back(i);
            slice.copies_states |= !sequence->stages.empty();
            slice.most_visible = std::max(slice.most_visible, place + 1);
        }
        walk(slice);
        run(slice);
        if (planes_ != nullptr) planes_->end();
        slice.logits += static_cast<int64_t>(slice.predicted.size()) * parts_.head->rows;
    }
}

// Branches of states are copies that no slice hands on: a tree of a sequence with states stays whole.
int64_t Decoder::slice_end(const Pass& pass, int64_t first) const {
    const int64_t end = std::min(first + kTokensAtOnce, pass.num_tokens);
    if (end == pass.num_tokens) return end;
    const auto& [sequence, place] = tokens_[static_cast<size_t>(end)];
    const bool is_tree = sequence->walk && !sequence->walk->branches.empty();
    return is_tree ? end - (place - sequence->length) : end;
}

void Decoder::walk(Slice& slice) const {
    slice.walks.clear();
    for (int64_t token = 0, next; token < slice.num_tokens; token = next) {
        const auto& [sequence, place] = slice.tokens[token];
        for (next = token; next < slice.num_tokens && slice.tokens[next].sequence == sequence;) ++next;
        if (sequence->walk) slice.walks.emplace_back(*sequence->walk, place, next - token, token);
    }
}

void Decoder::run(const Slice& slice) {
    Room most;
    for (const Layer& layer : parts_.layers) {
        for (const Branch& branch : layer.branches) most.fit([&](Room& room) { branch.part->lay_out(room, slice); });
    }
    if (screen_.exists()) {
        const auto num_tokens = static_cast<int64_t>(slice.predicted.size());
        most.fit([&](Room& room) { screen_.lay_out(room, *parts_.head, num_tokens); });
    }
    memory_.reserve(most.shared.num_bytes());
    for (auto& own : workspaces_) {
        own->memory.reserve(most.own.num_bytes());
        own->taken = own->taken_buffer.reserve(slice.num_tokens, parts_.hidden_size, forms_);
        if (is_parallel_) own->beside = own->beside_buffer.reserve(slice.num_tokens, parts_.hidden_size, forms_);
        own->row.resize(static_cast<size_t>(std::max(parts_.hidden_size, parts_.head_dim)));
        own->operators = 0;
    }
    std::fill(finite_.begin(), finite_.end(), uint8_t{1});
    for (Pieces& pieces : pieces_) pieces.reset();
    engine_.team->run([&](int thread) { work(slice, *workspaces_[static_cast<size_t>(thread)]); });
}

void Decoder::work(const Slice& slice, Workspace& own) {
    Step step{slice,  parts_.hidden_size, *engine_.kernels, *engine_.team, pieces_.data(), memory_, finite_.data(), own,
              planes_};
    int64_t stage = 0;
    for (const Layer& layer : parts_.layers) {
        if (planes_ != nullptr && !planes_->wait(stages_[static_cast<size_t>(stage)])) return;
        if (slice.copies_states) copy_states(step, stage);
        evaluate(layer, step);
        ++stage;
    }
    if (slice.copies_states) {
        copy_states(step, stage);
        copy_states(step, stage + 1);
    }
    if (!slice.predicted.empty()) predict(step);
}

void Decoder::evaluate(const Layer& layer, Step& step) const {
    bool was_taken = false;
    for (size_t i = 0; i < layer.branches.size(); ++i) {
        const Branch& branch = layer.branches[i];
        const Activations& taken = was_taken ? step.own.beside : step.own.taken;
        if (!was_taken) step.take_in(branch.norm, branch.part->forms(), step.own.taken);
        was_taken = i + 1 < layer.branches.size() && layer.branches[i + 1].is_parallel;
        if (was_taken) {  // before this branch adds to the rows
            const Branch& next = layer.branches[i + 1];
            step.take_in(next.norm, next.part->forms(), step.own.beside);
        }
        branch.part->add_to_rows(step, taken, branch.sum);
    }
    if (layer.scalar != 1.0f) {
        step.each_token([&](int64_t token) {
            step.kernels.rowwise.scale(layer.scalar, parts_.hidden_size, step.slice.x + token * parts_.hidden_size);
        });
        step.barrier();
    }
}

// x was last written before a barrier, and will be next after another.
void Decoder::copy_states(Step& step, int64_t stage) const {
    const int64_t hidden = parts_.hidden_size;
    const bool is_normed = stage > static_cast<int64_t>(parts_.layers.size());
    step.each_token([&](int64_t token) {
        const auto& [sequence, place] = step.slice.tokens[token];
        const float* x = step.slice.x + token * hidden;
        float* to = sequence->states + (place - sequence->length) * hidden;
        for (const int64_t wanted : sequence->stages) {
            if (wanted == stage && is_normed) {
                parts_.norm.apply(step.kernels.rowwise, x, to);
            } else if (wanted == stage) {
                std::memcpy(to, x, static_cast<size_t>(hidden) * sizeof(float));
            }
            to += sequence->num_tokens * hidden;
        }
    });
}

void Decoder::predict(Step& step) const {
    const auto finish = [&](int64_t count, float* logits) {
        if (parts_.logit_multiplier != 1.0f) step.kernels.rowwise.scale(parts_.logit_multiplier, count, logits);
        if (parts_.logit_cap != 0.0f) step.kernels.rowwise.cap(parts_.logit_cap, count, logits);
    };
    const int64_t vocabulary = parts_.head->rows;
    if (screen_.exists()) {
        screen_.predict(step, parts_.norm, *parts_.head);
        const auto num_tokens = static_cast<int64_t>(step.slice.predicted.size());
        return step.share(num_tokens, [&](int64_t i) { finish(vocabulary, step.slice.logits + i * vocabulary); });
    }
    Activations& taken = step.own.taken;
    step.take_in(parts_.norm, form_of(parts_.head->kind, parts_.head->format), taken, &step.slice.predicted);
    const auto multiply = [&](const Matrix& head, int64_t first_row) {
        const Projection projection{&head, nullptr};
        step.multiply({{&projection, &taken, step.slice.logits + first_row, vocabulary}},
                      [&](int64_t, int64_t, int64_t, int64_t count, float* logits) { finish(count, logits); });
    };
    if (planes_ == nullptr || planes_->head().empty()) return multiply(*parts_.head, 0);
    for (const PlaneReader::HeadPart& part : planes_->head()) {
        if (!planes_->wait(part.stage)) return;
        multiply(part.matrix, part.first_row);
    }
}

}  // namespace mxconv
