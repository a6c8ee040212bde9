#include "plane_file.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>

#ifndef _WIN32
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace mxconv {

int64_t PlaneFile::offset_of(const void* array) const {
    const int64_t offset = static_cast<const uint8_t*>(array) - mapped_;
    return offset >= 0 && offset < num_bytes_ ? offset : -1;
}

void PlaneFile::fail(const std::string& found) const {
    throw ReadError(path_ + ": " + found +
                    "; a file that passes read must stay as it was opened. Put it back, and load the package again.");
}

#ifdef _WIN32

PlaneFile::~PlaneFile() = default;
void PlaneFile::open() { fail("is not read in passes on Windows"); }
void PlaneFile::read(int64_t, int64_t, uint8_t*) const {}
void PlaneFile::check() const {}

#else

#ifndef O_DIRECT
#define O_DIRECT 0
#endif
#ifdef __APPLE__
#define st_mtim st_mtimespec
#endif

namespace {

int64_t written_at(const struct stat& status) {
    return int64_t{status.st_mtim.tv_sec} * 1000000000 + status.st_mtim.tv_nsec;
}

}  // namespace

void PlaneFile::open() {
    if (buffered_ >= 0) return;
    buffered_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (buffered_ < 0) fail("cannot be opened (" + std::generic_category().message(errno) + ")");
#ifdef POSIX_FADV_RANDOM
    posix_fadvise(buffered_, 0, 0, POSIX_FADV_RANDOM);  // rows that are looked up
    posix_fadvise(buffered_, 0, 0, POSIX_FADV_DONTNEED);
#endif
    direct_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);  // which some file systems refuse
#ifdef F_NOCACHE
    fcntl(buffered_, F_NOCACHE, 1);
#endif
    struct stat status{};
    fstat(buffered_, &status);
    written_ = written_at(status);
}

PlaneFile::~PlaneFile() {
    for (const int each : {direct_, buffered_}) {
        if (each >= 0) close(each);
    }
}

void PlaneFile::check() const {
    struct stat status{};
    if (fstat(buffered_, &status) != 0 || status.st_size != num_bytes_ || written_at(status) != written_) {
        fail("was changed, and has " + std::to_string(status.st_size) + " bytes of " + std::to_string(num_bytes_));
    }
}

void PlaneFile::read(int64_t offset, int64_t count, uint8_t* to) const {
    for (const int64_t end = std::min(offset + count, num_bytes_); offset < end;) {
        const auto size = static_cast<size_t>(count);
        ssize_t num_read = direct_ < 0 || offset % kSector != 0 ? -1 : pread(direct_, to, size, offset);
        if (num_read < 0) {
            num_read = pread(buffered_, to, size, offset);
#ifdef POSIX_FADV_DONTNEED
            posix_fadvise(buffered_, offset, count, POSIX_FADV_DONTNEED);
#endif
        }
        if (num_read < 0) fail("cannot be read (" + std::generic_category().message(errno) + ")");
        if (num_read == 0) fail("ends at byte " + std::to_string(offset) + " of " + std::to_string(num_bytes_));
        offset += num_read, count -= num_read, to += num_read;
    }
    check();
}

#endif

}  // namespace mxconv
