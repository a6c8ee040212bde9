#include "plane_file.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#ifdef _WIN32
#include <fstream>
#else
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
                    "; weights that are read while a model decodes must stay as they were opened. "
                    "Put the file back, or convert again, and load the package again.");
}

void PlaneFile::read(int64_t offset, int64_t count, uint8_t* to) const {
    const int64_t end = std::min(offset + count, num_bytes_);
    while (offset < end) {
        const int64_t num_read = read_some(offset, count, to);
        if (num_read == 0) fail("ends at byte " + std::to_string(offset) + " of " + std::to_string(num_bytes_));
        offset += num_read, count -= num_read, to += num_read;
    }
}

#ifdef _WIN32

PlaneFile::PlaneFile(std::string path, const uint8_t* mapped, int64_t num_bytes)
    : path_(std::move(path)), mapped_(mapped), num_bytes_(num_bytes) {}

PlaneFile::~PlaneFile() = default;

int64_t PlaneFile::read_some(int64_t offset, int64_t count, uint8_t* to) const {
    std::ifstream file(path_, std::ios::binary);
    if (!file.seekg(offset)) fail("cannot be read");
    file.read(reinterpret_cast<char*>(to), std::min(count, num_bytes_ - offset));
    return file.gcount();
}

#else

namespace {

int64_t nanoseconds_of(const struct stat& status) {
#ifdef __APPLE__
    const timespec& time = status.st_mtimespec;
#else
    const timespec& time = status.st_mtim;
#endif
    return static_cast<int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
}

}  // namespace

PlaneFile::PlaneFile(std::string path, const uint8_t* mapped, int64_t num_bytes)
    : path_(std::move(path)), mapped_(mapped), num_bytes_(num_bytes) {
    buffered_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status{};
    if (buffered_ < 0 || fstat(buffered_, &status) != 0) {
        const std::string reason = std::generic_category().message(errno);
        if (buffered_ >= 0) close(buffered_);
        fail("cannot be opened (" + reason + ")");
    }
    changed_at_ = nanoseconds_of(status);
    if (status.st_size != num_bytes_) {
        close(buffered_);
        fail(std::to_string(status.st_size) + " bytes, and it was opened with " + std::to_string(num_bytes_));
    }
#if defined(O_DIRECT)
    direct_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);  // some file systems refuse
#elif defined(F_NOCACHE)
    fcntl(buffered_, F_NOCACHE, 1);
#endif
}

PlaneFile::~PlaneFile() {
    if (direct_ >= 0) close(direct_);
    close(buffered_);
}

int64_t PlaneFile::read_some(int64_t offset, int64_t count, uint8_t* to) const {
    const auto size = static_cast<size_t>(count);
    ssize_t num_read = -1;
    if (direct_ >= 0 && offset % kSector == 0) num_read = pread(direct_, to, size, offset);
    if (num_read < 0 && (direct_ < 0 || offset % kSector != 0 || errno == EINVAL)) {
        num_read = pread(buffered_, to, size, offset);
#if defined(POSIX_FADV_DONTNEED)
        posix_fadvise(buffered_, offset, count, POSIX_FADV_DONTNEED);
#endif
    }
    if (num_read < 0) {
        if (errno == EINTR) return read_some(offset, count, to);
        fail("cannot be read at byte " + std::to_string(offset) + " (" + std::generic_category().message(errno) + ")");
    }
    struct stat status{};
    if (fstat(buffered_, &status) != 0 || nanoseconds_of(status) != changed_at_ || status.st_size != num_bytes_) {
        fail("changed to " + std::to_string(status.st_size) + " bytes while it was read");
    }
    return num_read;
}

#endif

}  // namespace mxconv
