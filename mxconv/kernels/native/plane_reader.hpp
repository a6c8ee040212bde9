// Weights that are read from files: for good, or those of a target that no memory keeps in the order of a pass and ahead of it
// into buffers that take turns. The latter are planes, arrays that may hold any bytes: the patterns of a dense matrix; residuals
// and upper bytes of escapes of a BSFP one. Between passes matrices point to where their planes are mapped.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels.hpp"
#include "plane_file.hpp"

namespace mxconv {

// The 16-bit patterns of a row tile, (rows, columns), by the file of the matrix where it has one. Raises ReadError.
void restore_tile(const Family& family, const Matrix& matrix, int64_t tile, uint16_t* out);

class PlaneReader {
  public:
    using Matrices = std::vector<Matrix*>;

    // Row tiles of the output head, which a pass multiplies by one after another.
    struct HeadPart {
        Matrix matrix;
        int64_t first_row, stage;
        std::vector<int64_t> escape_offsets;  // that count its own escapes
    };

    // Matrices by stages of a pass, then an output head, or null: it is in memory. Experts, by layers, are read when rows
    // have chosen them; tables are looked up in files, unless they are kept too. All other arrays of what was `made` are
    // resident, if they lie in files.
    PlaneReader(std::vector<std::unique_ptr<PlaneFile>> files, const std::vector<Matrices>& stages, Matrix* head,
                const std::vector<Matrices>& experts, Matrices tables, const Matrices& made);
    ~PlaneReader();
    PlaneReader(const PlaneReader&) = delete;
    PlaneReader& operator=(const PlaneReader&) = delete;

    // Bytes of memory that is taken: by what is resident; by each stage, those of parts of the head after the others, and those
    // of each layer's experts and of all tables, which are no stages of a pass, at the end.
    int64_t resident_bytes() const { return resident_.num_bytes; }
    std::vector<int64_t> stage_bytes() const;
    int64_t num_stages() const { return static_cast<int64_t>(num_stages_); }  // of a pass

    // Bytes a second that the disk gives of the largest stage. Before `start`; raises ReadError.
    double measure();

    // Read for good what is resident and the first stages; the others of a pass through buffers from now on. Once. Raises
    // ReadError.
    void start(int64_t num_kept, int64_t num_buffers);

    const std::deque<HeadPart>& head() const { return head_; }

    // One pass at a time: what a caller holds for it.
    std::unique_lock<std::mutex> hold() { return std::unique_lock(passes_); }

    // On every thread: wait until a stage can be multiplied by, after which what came before it cannot. False: it cannot be
    // read, on any thread; `end` says why.
    bool wait(int64_t stage);

    // On one thread: read the planes of chosen experts, whose bytes are any where they cannot be read.
    void fetch(const std::vector<const Matrix*>& chosen);

    // After the threads of a pass: go on with the next one's first stages. Raises ReadError where something could not be
    // read.
    void end();

  private:
    struct Plane {
        void* field;  // of a matrix, which points to the plane
        const void* mapped;
        int64_t at;  // in the memory of its stage
    };

    struct Chunk {
        const PlaneFile* file;
        int64_t offset, num_bytes, at;
    };

    struct Stage {
        std::map<const void*, int64_t> places;  // of arrays in its memory
        std::vector<Plane> planes;
        std::vector<Chunk> chunks;
        int64_t num_bytes = 0;
    };

    struct Buffer {
        uint8_t* memory;
        const Stage* stage = nullptr;
        size_t num_begun = 0, num_done = 0;  // chunks
        bool is_dropped = false, is_used = false;
        std::string error{};

        bool is_complete() const {
            return num_done == num_begun && (is_dropped || !error.empty() || num_begun == stage->chunks.size());
        }
        bool has_more() const { return !is_dropped && error.empty() && num_begun < stage->chunks.size(); }
    };

    void add(Stage& stage, Matrix& matrix, bool adds_planes, bool adds_others) const;
    const PlaneFile* file_of(const void* array) const;
    void add_head();
    uint8_t* take(int64_t num_bytes);
    void read_now(const Stage& stage, uint8_t* memory, std::unique_lock<std::mutex> lock);
    static void place(const Stage& stage, const uint8_t* memory);  // null: where planes are mapped
    bool drop_front();
    Buffer* next_to_read();
    void read();

    const std::vector<std::unique_ptr<PlaneFile>> files_;
    const Matrices tables_;
    Matrix* const whole_head_;
    std::deque<HeadPart> head_;  // whose matrices stay where they are
    Stage resident_, chosen_;
    std::vector<Stage> stages_;
    size_t num_stages_ = 0, num_kept_ = 0;  // the former without experts
    std::vector<std::unique_ptr<uint8_t[]>> memory_;

    std::mutex passes_, mutex_;
    std::condition_variable more_to_read_, was_read_;
    std::vector<Buffer> buffers_;
    std::vector<Buffer*> free_;
    Buffer now_{nullptr, &chosen_};  // that somebody waits for
    uint8_t* expert_memory_ = nullptr;
    std::string expert_error_;
    std::deque<Buffer*> filled_;  // or being filled, in the order of passes
    size_t next_ = 0;             // the stage that is read after these
    bool is_closing_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace mxconv
