// What passes of a target multiply by and no memory keeps: planes of matrices, read in the order of a pass and ahead of it into
// buffers that take turns. A plane is an array of a matrix that may hold any bytes: the patterns of a dense one; residuals and
// upper bytes of escapes of a BSFP one. Between passes matrices point to where their planes are mapped.
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
    // have chosen them; tables are looked up in files. Arrays that lie in no file have no planes.
    PlaneReader(std::vector<std::unique_ptr<PlaneFile>> files, const std::vector<Matrices>& stages, const Matrix* head,
                const std::vector<Matrices>& experts, Matrices tables);
    ~PlaneReader();
    PlaneReader(const PlaneReader&) = delete;
    PlaneReader& operator=(const PlaneReader&) = delete;

    // Bytes of memory that each stage takes, those of parts of the head at the end.
    std::vector<int64_t> stage_bytes() const;
    std::vector<int64_t> expert_bytes() const;  // of each layer

    // Read the first stages, and the experts of the first layers, for good; the others through buffers of equal lengths from
    // now on, and memory for the experts of one layer. Once. Memory begins at a sector. Raises ReadError.
    void start(int64_t num_kept, int64_t num_kept_experts, uint8_t* kept, const std::vector<uint8_t*>& buffers,
               uint8_t* experts);

    const std::deque<HeadPart>& head() const { return head_; }

    // One pass at a time: what a caller holds for it.
    std::unique_lock<std::mutex> hold() { return std::unique_lock(passes_); }

    // On every thread: wait until a stage can be multiplied by, after which what came before it cannot. False: it cannot be
    // read, on any thread; `end` says why.
    bool wait(int64_t stage);

    // On one thread: read what is chosen of a layer's experts, whose bytes are any where they cannot be read.
    void fetch(const std::vector<const Matrix*>& chosen);

    // After the threads of a pass: go on with the next one's first stages. Raises ReadError where something could not be
    // read.
    void end();

  private:
    struct Plane {
        void* pointer;  // of a matrix, to the plane
        const void* mapped;
        int64_t at;  // in the memory of its stage
    };

    struct Chunk {
        const PlaneFile* file;
        int64_t offset, num_bytes, at;
    };

    struct Stage {
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

    void add(Stage& stage, Matrix& matrix);
    const PlaneFile* file_of(const void* array) const;
    void add_head(const Matrix& head, int64_t most_bytes);
    static void place(const Stage& stage, const uint8_t* memory);  // null: where planes are mapped
    bool drop_front();
    Buffer* next_to_read();
    void read();

    const std::vector<std::unique_ptr<PlaneFile>> files_;
    const Matrices tables_;
    std::deque<HeadPart> head_;  // whose matrices stay where they are
    std::vector<Stage> stages_;
    std::vector<std::map<const Matrix*, Stage>> experts_;  // of each layer; empty where they are kept
    std::map<const Matrix*, Stage> kept_experts_;
    size_t num_kept_ = 0;

    std::mutex passes_, mutex_;
    std::condition_variable more_to_read_, was_read_;
    std::vector<Buffer> buffers_;
    std::vector<Buffer*> free_;
    std::deque<Buffer> fetched_;  // experts
    uint8_t* expert_memory_ = nullptr;
    std::string expert_error_;
    std::deque<Buffer*> filled_;  // or being filled, in the order of passes
    size_t next_ = 0;             // the stage that is read after these
    bool is_closing_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace mxconv
