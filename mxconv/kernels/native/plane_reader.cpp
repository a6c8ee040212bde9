#include "plane_reader.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <utility>

#ifndef _WIN32
#include <sys/mman.h>
#endif
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace mxconv {

namespace {

constexpr size_t kThreads = 4;                     // that wait for the disk
constexpr int64_t kChunkBytes = int64_t{1} << 22;  // that each asks for at a time
constexpr int64_t kLeastHeadBytes = int64_t{1} << 20;
// Bytes that the heap gives back to the system when they are freed.
[[maybe_unused]] constexpr int kGivenBack = 1 << 20;

constexpr int64_t down(int64_t bytes) { return bytes / PlaneFile::kSector * PlaneFile::kSector; }
constexpr int64_t up(int64_t bytes) { return down(bytes + PlaneFile::kSector - 1); }

// The arrays of a matrix that files may hold: visit(field that points to it, its bytes, whether it is a plane).
template <class Visit>
void each_array(Matrix& m, const Visit& visit) {
    if (m.kind == MatrixKind::kDense) return visit(&m.patterns, 2 * m.rows * m.columns, true);
    const int64_t tiles = m.row_tiles() * m.column_tiles();
    visit(&m.codes, tiles * (m.kind == MatrixKind::kMxint8 ? 128 : 64), false);
    if (m.kind != MatrixKind::kBsfp) {
        const int64_t groups = m.row_tiles() * ((m.column_tiles() + 15) / 16);
        return visit(&m.scales, m.scale_format == ScaleFormat::kE8m0 ? tiles * 4 : groups * 32, false);
    }
    visit(&m.residual_low, tiles * 128, true);
    if (m.residual_planes > 0) visit(&m.residual_high, tiles * 16 * m.residual_planes, true);
    visit(&m.escape_counts, tiles, false);
    if (const int64_t num_escapes = m.escape_offsets[m.row_tiles()]) {
        visit(&m.escape_positions, num_escapes, false);
        visit(&m.escape_high, num_escapes, true);
    }
}

void point(void* field, const void* to) { std::memcpy(field, &to, sizeof to); }

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
    each_array(one, [&](auto** field, int64_t num_bytes, bool) {
        const int64_t offset = matrix.file->offset_of(*field);
        if (offset < 0) return;
        std::vector<uint8_t>& memory = read.emplace_back(static_cast<size_t>(num_bytes));
        matrix.file->read(offset, num_bytes, memory.data());
        point(field, memory.data());
    });
    family.patterns(one, 0, 1, out);
}

PlaneReader::PlaneReader(std::vector<std::unique_ptr<PlaneFile>> files, const std::vector<Matrices>& stages,
                         Matrix* head, const std::vector<Matrices>& experts, Matrices tables, const Matrices& made)
    : files_(std::move(files)), tables_(std::move(tables)), whole_head_(head) {
    std::set<const Matrix*> streamed;
    const auto add_stages = [&](const std::vector<Matrices>& all) {
        for (const Matrices& matrices : all) {
            Stage& stage = stages_.emplace_back();
            for (Matrix* matrix : matrices) add(stage, *matrix, true, false);
            streamed.insert(matrices.begin(), matrices.end());
        }
    };
    add_stages(stages);
    if (head != nullptr) add_head();
    num_stages_ = stages_.size();
    add_stages(experts);
    Stage& of_tables = stages_.emplace_back();
    for (Matrix* table : tables_) {
        add(of_tables, *table, true, true);
        each_array(*table, [&](auto** field, int64_t, bool) {
            if (const PlaneFile* file = file_of(*field)) table->file = file;
        });
    }
    for (Matrix* matrix : made) {
        const bool is_head = matrix == head, is_table = std::count(tables_.begin(), tables_.end(), matrix) > 0;
        const bool keeps_planes = !is_head && streamed.count(matrix) == 0;
        if (is_head || !is_table) add(resident_, *matrix, keeps_planes, true);
    }
#ifdef __GLIBC__
    malloc_trim(0);                         // of reading a large tokenizer 40 MB are left that nothing uses
    mallopt(M_MMAP_THRESHOLD, kGivenBack);  // else what is freed is kept for larger and larger arrays
    mallopt(M_TRIM_THRESHOLD, kGivenBack);
#endif
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
    for (const Stage* stage : {&chosen_, &resident_}) place(*stage, nullptr);
}

// ---- planes and where they lie ----

void PlaneReader::place(const Stage& stage, const uint8_t* memory) {
    for (const Plane& plane : stage.planes) {
        point(plane.field, memory == nullptr ? plane.mapped : memory + plane.at);
    }
}

void PlaneReader::add(Stage& stage, Matrix& matrix, bool adds_planes, bool adds_others) const {
    each_array(matrix, [&](auto** field, int64_t num_bytes, bool is_plane) {
        const PlaneFile* file = (is_plane ? adds_planes : adds_others) ? file_of(*field) : nullptr;
        if (file == nullptr) return;
        const int64_t offset = file->offset_of(*field), begin = down(offset), end = up(offset + num_bytes);
        const auto [found, is_new] = stage.places.emplace(*field, stage.num_bytes + offset - begin);
        stage.planes.push_back({field, *field, found->second});
        if (!is_new) return;  // codes of a target are those of a draft
        for (int64_t from = begin; from < end; from += kChunkBytes) {
            stage.chunks.push_back({file, from, std::min(kChunkBytes, end - from), stage.num_bytes + from - begin});
        }
        stage.num_bytes += end - begin;
    });
}

const PlaneFile* PlaneReader::file_of(const void* array) const {
    for (const auto& file : files_) {
        if (file->offset_of(array) >= 0) return file->open(), file.get();
    }
    return nullptr;
}

void PlaneReader::add_head() {
    const Matrix& head = *whole_head_;
    int64_t most_bytes = kLeastHeadBytes;
    for (const Stage& stage : stages_) most_bytes = std::max(most_bytes, stage.num_bytes);
    const int64_t tiles = head.row_tiles(), columns = head.column_tiles();
    const int64_t row_bytes = head.kind == MatrixKind::kDense ? 2 * head.columns : 10 * columns;
    const int64_t at_once = std::max<int64_t>(1, most_bytes / (kTileRows * row_bytes));
    for (int64_t first = 0; first < tiles; first += at_once) {
        HeadPart& part = head_.emplace_back(HeadPart{{}, first * kTileRows, static_cast<int64_t>(stages_.size()), {}});
        part.matrix = tiles_of(head, first, std::min(first + at_once, tiles), part.escape_offsets);
        add(stages_.emplace_back(), part.matrix, true, false);
    }
}

std::vector<int64_t> PlaneReader::stage_bytes() const {
    std::vector<int64_t> all;
    for (const Stage& stage : stages_) all.push_back(stage.num_bytes);
    return all;
}

// ---- reading ----

// Memory that begins at a large page, in such pages where the system has them.
uint8_t* PlaneReader::take(int64_t num_bytes) {
    constexpr uintptr_t kLargePage = uintptr_t{1} << 21;
    memory_.emplace_back(new uint8_t[static_cast<size_t>(num_bytes) + kLargePage]);
    uint8_t* const begin = memory_.back().get() + -reinterpret_cast<uintptr_t>(memory_.back().get()) % kLargePage;
#ifdef MADV_HUGEPAGE
    madvise(begin, static_cast<size_t>(num_bytes), MADV_HUGEPAGE);
#endif
    return begin;
}

// Raises ReadError, after which bytes are any.
void PlaneReader::read_now(const Stage& stage, uint8_t* memory, std::unique_lock<std::mutex> lock) {
    while (threads_.size() < kThreads) threads_.emplace_back([this] { read(); });
    now_ = {memory, &stage};
    more_to_read_.notify_all();
    was_read_.wait(lock, [&] { return now_.is_complete(); });
    place(stage, memory);
    if (!now_.error.empty()) throw ReadError(now_.error);
}

double PlaneReader::measure() {
    const auto by_bytes = [](const Stage& one, const Stage& other) { return one.num_bytes < other.num_bytes; };
    const Stage& largest = *std::max_element(stages_.begin(), stages_.end() - 1, by_bytes);
    uint8_t* memory = take(largest.num_bytes);
    const auto begin = std::chrono::steady_clock::now();
    read_now(largest, memory, std::unique_lock(mutex_));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    place(largest, nullptr);
    memory_.clear();
    return static_cast<double>(largest.num_bytes) / seconds.count();
}

void PlaneReader::start(int64_t num_kept, int64_t num_buffers) {
    num_kept_ = next_ = static_cast<size_t>(num_kept);
    int64_t num_bytes = resident_.num_bytes, most_bytes[] = {0, 0};  // the latter of a stage and of a layer's experts
    const size_t num_read = stages_.size() - 1;                      // without tables
    for (size_t i = 0; i < stages_.size(); ++i) {
        if (i < num_kept_) num_bytes += stages_[i].num_bytes;
        if (i < num_kept_ || i == num_read) continue;
        int64_t& most = most_bytes[i >= num_stages_];
        most = std::max(most, stages_[i].num_bytes);
    }
    uint8_t* memory = take(num_bytes);
    read_now(resident_, memory, std::unique_lock(mutex_));
    memory += resident_.num_bytes;
    for (HeadPart& part : head_) {  // of what has moved
        const int64_t tile = part.first_row / kTileRows, end = tile + part.matrix.row_tiles();
        part.escape_offsets.clear();
        part.matrix = tiles_of(*whole_head_, tile, end, part.escape_offsets);
    }
    for (size_t i = 0; i < num_kept_; ++i) {
        read_now(stages_[i], memory, std::unique_lock(mutex_));
        memory += stages_[i].num_bytes;
    }
    for (Matrix* table : tables_) {
        if (num_kept_ > num_read) table->file = nullptr;
    }
    expert_memory_ = take(most_bytes[1]);
    std::lock_guard lock(mutex_);
    for (int64_t i = 0; i < num_buffers; ++i) buffers_.push_back({take(most_bytes[0])});
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
    place(chosen_, nullptr);
    chosen_ = {};
    for (const Matrix* matrix : chosen)
        add(chosen_, const_cast<Matrix&>(*matrix), true, false);  // but for what is kept
    try {
        read_now(chosen_, expert_memory_, std::move(lock));
    } catch (const ReadError& error) {  // which `end` raises: the team goes on with any bytes
        if (expert_error_.empty()) expert_error_ = error.what();
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
    if (now_.has_more()) return &now_;
    for (Buffer* buffer : filled_) {
        if (!buffer->is_dropped && !buffer->error.empty()) return nullptr;
        if (buffer->has_more()) return buffer;
    }
    if (free_.empty() || next_ >= num_stages_) return nullptr;
    Buffer* buffer = free_.back();
    free_.pop_back();
    *buffer = {buffer->memory, &stages_[next_]};
    filled_.push_back(buffer);
    if (++next_ == num_stages_) next_ = num_kept_;
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
