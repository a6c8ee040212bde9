#include "plane_reader.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mxconv {

namespace {

constexpr int kThreads = 4;                        // that wait for the disk
constexpr int64_t kChunkBytes = int64_t{1} << 22;  // that each asks for at a time
constexpr int64_t kLeastHeadBytes = int64_t{1} << 20;

constexpr int64_t down(int64_t bytes) { return bytes / PlaneFile::kSector * PlaneFile::kSector; }
constexpr int64_t up(int64_t bytes) { return down(bytes + PlaneFile::kSector - 1); }

// The planes of a matrix: visit(pointer to the plane, its bytes).
template <class Visit>
void each_plane(Matrix& matrix, const Visit& visit) {
    if (matrix.kind == MatrixKind::kDense) visit(&matrix.patterns, 2 * matrix.rows * matrix.columns);
    if (matrix.kind != MatrixKind::kBsfp) return;
    const int64_t tiles = matrix.row_tiles() * matrix.column_tiles();
    visit(&matrix.residual_low, tiles * 128);
    if (matrix.residual_planes > 0) visit(&matrix.residual_high, tiles * 16 * matrix.residual_planes);
    if (const int64_t num_escapes = matrix.escape_offsets[matrix.row_tiles()]) visit(&matrix.escape_high, num_escapes);
}

void point(void* pointer, const void* to) { std::memcpy(pointer, &to, sizeof to); }

// Row tiles [first, last) of a dense or BSFP matrix, whose escapes count from its own first one.
Matrix tiles_of(const Matrix& matrix, int64_t first, int64_t last, std::vector<int64_t>& escape_offsets) {
    Matrix m = matrix;
    const int64_t row = first * kTileRows, columns = matrix.column_tiles();
    m.rows = std::min(last * kTileRows, matrix.rows) - row;
    if (matrix.kind == MatrixKind::kDense) {
        m.patterns += row * matrix.columns;
        return m;
    }
    const int64_t* offsets = matrix.escape_offsets;
    for (int64_t tile = first; tile <= last; ++tile) escape_offsets.push_back(offsets[tile] - offsets[first]);
    m.codes += first * columns * 64;
    m.residual_low += first * columns * 128;
    m.residual_high += first * columns * 16 * matrix.residual_planes;
    m.starts += row * 8;
    m.escape_counts += first * columns;
    m.escape_offsets = escape_offsets.data();
    m.escape_positions += offsets[first];
    m.escape_high += offsets[first];
    return m;
}

}  // namespace

void restore_tile(const Family& family, const Matrix& matrix, int64_t tile, uint16_t* out) {
    if (matrix.file == nullptr) return family.patterns(matrix, tile, tile + 1, out);
    std::vector<int64_t> escape_offsets;
    Matrix one = tiles_of(matrix, tile, tile + 1, escape_offsets);
    std::deque<std::vector<uint8_t>> read;
    each_plane(one, [&](auto** pointer, int64_t num_bytes) {
        const int64_t offset = matrix.file->offset_of(*pointer);
        if (offset < 0) return;
        std::vector<uint8_t>& memory = read.emplace_back(static_cast<size_t>(num_bytes));
        matrix.file->read(offset, num_bytes, memory.data());
        point(pointer, memory.data());
    });
    family.patterns(one, 0, 1, out);
}

PlaneReader::PlaneReader(std::vector<std::unique_ptr<PlaneFile>> files, const std::vector<Matrices>& stages,
                         const Matrix* head, const std::vector<Matrices>& experts, Matrices tables)
    : files_(std::move(files)), tables_(std::move(tables)) {
    for (Matrix* table : tables_) {
        each_plane(*table, [&](auto** pointer, int64_t) { table->file = file_of(*pointer); });
    }
    int64_t most_bytes = kLeastHeadBytes;
    for (const Matrices& matrices : stages) {
        Stage& stage = stages_.emplace_back();
        for (Matrix* matrix : matrices) add(stage, *matrix);
        most_bytes = std::max(most_bytes, stage.num_bytes);
    }
    if (head != nullptr) add_head(*head, most_bytes);
    for (const Matrices& matrices : experts) {
        auto& stages = experts_.emplace_back();
        for (Matrix* matrix : matrices) add(stages[matrix], *matrix);
    }
}

PlaneReader::~PlaneReader() {
    {
        std::lock_guard lock(mutex_);
        is_closing_ = true;
    }
    more_to_read_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    for (Matrix* table : tables_) table->file = nullptr;
    for (const Stage& stage : stages_) place(stage, nullptr);
    for (const auto& each : kept_experts_) place(each.second, nullptr);
    for (const Buffer& buffer : fetched_) place(*buffer.stage, nullptr);
}

// ---- planes and where they lie ----

void PlaneReader::place(const Stage& stage, const uint8_t* memory) {
    for (const Plane& plane : stage.planes) {
        point(plane.pointer, memory == nullptr ? plane.mapped : memory + plane.at);
    }
}

void PlaneReader::add(Stage& stage, Matrix& matrix) {
    each_plane(matrix, [&](auto** pointer, int64_t num_bytes) {
        const PlaneFile* file = file_of(*pointer);
        if (file == nullptr) return;
        const int64_t offset = file->offset_of(*pointer), at = stage.num_bytes;
        const int64_t begin = down(offset), end = up(offset + num_bytes);
        stage.planes.push_back({pointer, *pointer, at + offset - begin});
        for (int64_t from = begin; from < end; from += kChunkBytes) {
            stage.chunks.push_back({file, from, std::min(kChunkBytes, end - from), at + from - begin});
        }
        stage.num_bytes += end - begin;
    });
}

const PlaneFile* PlaneReader::file_of(const void* array) const {
    for (const auto& file : files_) {
        if (file->offset_of(array) >= 0) return file.get();
    }
    return nullptr;
}

void PlaneReader::add_head(const Matrix& head, int64_t most_bytes) {
    const int64_t tiles = head.row_tiles(), columns = head.column_tiles();
    const int64_t row_bytes = head.kind == MatrixKind::kDense ? 2 * head.columns : 10 * columns;
    const int64_t at_once = std::max<int64_t>(1, most_bytes / (kTileRows * row_bytes));
    for (int64_t first = 0; first < tiles; first += at_once) {
        HeadPart& part = head_.emplace_back(HeadPart{{}, first * kTileRows, static_cast<int64_t>(stages_.size()), {}});
        part.matrix = tiles_of(head, first, std::min(first + at_once, tiles), part.escape_offsets);
        add(stages_.emplace_back(), part.matrix);
    }
}

std::vector<int64_t> PlaneReader::stage_bytes() const {
    std::vector<int64_t> all;
    for (const Stage& stage : stages_) all.push_back(stage.num_bytes);
    return all;
}

std::vector<int64_t> PlaneReader::expert_bytes() const {
    std::vector<int64_t> all;
    for (const auto& layer : experts_) {
        all.push_back(0);
        for (const auto& each : layer) all.back() += each.second.num_bytes;
    }
    return all;
}

// ---- reading ----

void PlaneReader::start(int64_t num_kept, int64_t num_kept_experts, uint8_t* kept, const std::vector<uint8_t*>& buffers,
                        uint8_t* experts) {
    num_kept_ = next_ = static_cast<size_t>(num_kept);
    expert_memory_ = experts;
    std::vector<const Stage*> stages;
    for (size_t stage = 0; stage < num_kept_; ++stage) stages.push_back(&stages_[stage]);
    for (size_t layer = 0; layer < static_cast<size_t>(num_kept_experts); ++layer) {
        for (const auto& each : experts_[layer]) stages.push_back(&each.second);
    }
    for (const Stage* stage : stages) {  // each in memory of its own
        buffers_.push_back({kept, stage});
        kept += stage->num_bytes;
    }
    for (Buffer& buffer : buffers_) filled_.push_back(&buffer);
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { read(); });
    std::unique_lock lock(mutex_);
    for (const Buffer& buffer : buffers_) {
        was_read_.wait(lock, [&] { return buffer.is_complete(); });
        if (!buffer.error.empty()) throw ReadError(buffer.error);
        place(*buffer.stage, buffer.memory);
    }
    for (auto layer = experts_.begin(); num_kept_experts > 0; --num_kept_experts, ++layer) kept_experts_.merge(*layer);
    filled_.clear();
    buffers_.clear();
    for (uint8_t* memory : buffers) buffers_.push_back({memory});
    for (Buffer& buffer : buffers_) free_.push_back(&buffer);
    more_to_read_.notify_all();
}

bool PlaneReader::wait(int64_t wanted) {
    if (wanted < static_cast<int64_t>(num_kept_)) return true;
    const Stage* stage = &stages_[static_cast<size_t>(wanted)];
    const auto is_wanted = [&](const Buffer* buffer) { return buffer->stage == stage && !buffer->is_dropped; };
    std::unique_lock lock(mutex_);
    for (;; was_read_.wait(lock)) {
        if (std::none_of(filled_.begin(), filled_.end(), is_wanted)) next_ = static_cast<size_t>(wanted);
        while (!filled_.empty() && !is_wanted(filled_.front()) && drop_front()) {
        }
        more_to_read_.notify_all();
        if (filled_.empty() || !is_wanted(filled_.front()) || !filled_.front()->is_complete()) continue;
        Buffer& front = *filled_.front();
        if (front.error.empty() && !front.is_used) place(*stage, front.memory);
        front.is_used = true;
        return front.error.empty();
    }
}

void PlaneReader::fetch(const std::vector<const Matrix*>& chosen) {
    std::unique_lock lock(mutex_);
    for (const Buffer& buffer : fetched_) place(*buffer.stage, nullptr);
    fetched_.clear();
    uint8_t* memory = expert_memory_;
    for (const auto& layer : experts_) {
        for (const Matrix* matrix : chosen) {
            const auto found = layer.find(matrix);
            if (found == layer.end()) continue;
            fetched_.push_back({memory, &found->second});
            memory += found->second.num_bytes;
        }
    }
    more_to_read_.notify_all();
    for (const Buffer& buffer : fetched_) {
        was_read_.wait(lock, [&] { return buffer.is_complete(); });
        place(*buffer.stage, buffer.memory);
        if (expert_error_.empty()) expert_error_ = buffer.error;
    }
}

void PlaneReader::end() {
    std::lock_guard lock(mutex_);
    std::string error = std::exchange(expert_error_, {});
    if (!filled_.empty() && filled_.front()->is_used) {
        if (error.empty()) error = filled_.front()->error;
        drop_front();
        more_to_read_.notify_all();
    }
    if (!error.empty()) throw ReadError(error);
}

// Whether it is gone; while somebody reads into it, it waits for them.
bool PlaneReader::drop_front() {
    Buffer& front = *filled_.front();
    front.is_dropped = true;
    if (!front.is_complete()) return false;
    if (front.is_used) place(*front.stage, nullptr);
    filled_.pop_front();
    free_.push_back(&front);
    return true;
}

// The first buffer that wants a chunk, or a free one for the next stage; null: there is nothing to do. After an error nothing
// more is read until a pass has met it.
PlaneReader::Buffer* PlaneReader::next_to_read() {
    for (Buffer& buffer : fetched_) {
        if (buffer.has_more()) return &buffer;
    }
    for (Buffer* buffer : filled_) {
        if (!buffer->is_dropped && !buffer->error.empty()) return nullptr;
        if (buffer->has_more()) return buffer;
    }
    if (free_.empty() || next_ == stages_.size()) return nullptr;
    Buffer* buffer = free_.back();
    free_.pop_back();
    *buffer = {buffer->memory, &stages_[next_]};
    filled_.push_back(buffer);
    if (++next_ == stages_.size()) next_ = num_kept_;
    return buffer;
}

void PlaneReader::read() {
    std::unique_lock lock(mutex_);
    while (!is_closing_) {
        Buffer* buffer = next_to_read();
        if (buffer == nullptr || !buffer->has_more()) {  // nothing, or a stage without planes
            if (buffer != nullptr)
                was_read_.notify_all();
            else
                more_to_read_.wait(lock);
            continue;
        }
        const Chunk& chunk = buffer->stage->chunks[buffer->num_begun++];
        std::string error;
        lock.unlock();
        try {
            chunk.file->read(chunk.offset, chunk.num_bytes, buffer->memory + chunk.at);
        } catch (const ReadError& caught) {
            error = caught.what();
        }
        lock.lock();
        ++buffer->num_done;
        if (buffer->error.empty()) buffer->error = error;
        if (buffer->is_complete()) was_read_.notify_all();
    }
}

}  // namespace mxconv
