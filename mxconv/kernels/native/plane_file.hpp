// A file of weights that are read as passes need them, past the system's cache of files where the system lets programs.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace mxconv {

// What is wrong with a file, in words for people.
struct ReadError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class PlaneFile {
  public:
    static constexpr int64_t kSector = 4096;  // what offsets, lengths and memory are multiples of

    // All of the file is mapped already.
    PlaneFile(std::string path, const uint8_t* mapped, int64_t num_bytes)
        : path_(std::move(path)), mapped_(mapped), num_bytes_(num_bytes) {}
    ~PlaneFile();
    PlaneFile(const PlaneFile&) = delete;
    PlaneFile& operator=(const PlaneFile&) = delete;

    // Once, before anything is read; nothing of it stays in the system's cache. Raises ReadError where it cannot be opened.
    void open();

    // Where in the file a view of its mapping lies; -1: the array is none.
    int64_t offset_of(const void* array) const;

    // Read whole sectors, up to the end of the file; from any thread. Raises ReadError where the system refuses.
    void read(int64_t offset, int64_t count, uint8_t* to) const;

    // Raises ReadError where the file has changed since it was opened.
    void check() const;

  private:
    [[noreturn]] void fail(const std::string& found) const;

    const std::string path_;
    const uint8_t* const mapped_;
    const int64_t num_bytes_;
    [[maybe_unused]] int direct_ = -1, buffered_ = -1;  // descriptors
    [[maybe_unused]] int64_t written_ = 0;              // when, in nanoseconds
};

}  // namespace mxconv
