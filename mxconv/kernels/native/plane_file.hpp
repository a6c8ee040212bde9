// A file of weights that are read as passes need them, past the system's cache of files where the system lets programs.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace mxconv {

// What is wrong with a file, in words for people.
struct ReadError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class PlaneFile {
  public:
    static constexpr int64_t kSector = 4096;  // what offsets, lengths and memory are multiples of

    // The file is mapped already; all of it. Raises ReadError where it cannot be opened, or has another length.
    PlaneFile(std::string path, const uint8_t* mapped, int64_t num_bytes);
    ~PlaneFile();
    PlaneFile(const PlaneFile&) = delete;
    PlaneFile& operator=(const PlaneFile&) = delete;

    // Where in the file an array lies that is a view of its mapping; -1: it is none.
    int64_t offset_of(const void* array) const;

    // Read whole sectors, up to the end of the file; other threads may read, too. Raises ReadError where the system refuses, or
    // the file has changed since it was opened.
    void read(int64_t offset, int64_t count, uint8_t* to) const;

  private:
    int64_t read_some(int64_t offset, int64_t count, uint8_t* to) const;
    [[noreturn]] void fail(const std::string& found) const;

    const std::string path_;
    const uint8_t* const mapped_;
    const int64_t num_bytes_;
    int direct_ = -1, buffered_ = -1;  // descriptors
    int64_t changed_at_ = 0;           // nanoseconds
};

}  // namespace mxconv
