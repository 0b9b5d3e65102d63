#include "base/files.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr size_t kBufferBytes = 256 << 10;

struct Fault {
  FileOperation operation;
  int remaining;
  int error;
  bool struck = false;
};
thread_local std::optional<Fault> fault;

// The error that a test asked for at this operation, else 0.
int injected(FileOperation operation) {
  if (!fault || fault->operation != operation || --fault->remaining != 0) return 0;
  fault->struck = true;
  return fault->error;
}

// What the user can set right (a wrong path, a missing permission) is told from a failing system.
ErrorCode code_of(int error) {
  switch (error) {
    case ENOENT:
    case EACCES:
    case EPERM:
    case EISDIR:
    case ENOTDIR:
    case EROFS:
    case ENAMETOOLONG:
    case ELOOP: return ErrorCode::invalid_input;
    default: return ErrorCode::device_failure;
  }
}

[[noreturn]] void throw_failure(const std::filesystem::path& file, std::string_view operation, int error) {
  throw Error(code_of(error), fmt::format("{}: cannot {}: {}", file.string(), operation, std::strerror(error)));
}

[[noreturn]] void throw_irregular(const std::filesystem::path& file, std::string_view operation, mode_t mode) {
  throw Error(ErrorCode::invalid_input,
              fmt::format("{}: cannot {}: it is a {}, not a regular file", file.string(), operation,
                          S_ISFIFO(mode)   ? "pipe"
                          : S_ISSOCK(mode) ? "socket"
                          : S_ISDIR(mode)  ? "folder"
                                           : "device"));
}

int open_again(const char* path, int flags, mode_t mode = 0) {
  int fd = -1;
  do {
    fd = ::open(path, flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

// Writes all of it; returns 0 or the errno.
int write_all(int fd, const std::byte* bytes, size_t count, int64_t offset) {
  while (count > 0) {
    if (const int error = injected(FileOperation::write)) return error;
    const ssize_t written = offset < 0 ? ::write(fd, bytes, count) : ::pwrite(fd, bytes, count, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : ENOSPC;
    bytes += written;
    count -= written;
    if (offset >= 0) offset += written;
  }
  return 0;
}

int sync_descriptor(int fd, FileOperation operation) {
  if (const int error = injected(operation)) return error;
  int result = 0;
  do {
    result = ::fsync(fd);
  } while (result < 0 && errno == EINTR);
  return result < 0 ? errno : 0;
}

std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

// Makes a rename in this folder survive a power cut. File systems that cannot sync a folder do not need it.
int sync_folder(const std::filesystem::path& folder) {
  const int fd = open_again(folder.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd < 0) return errno;
  const int error = sync_descriptor(fd, FileOperation::sync_folder);
  ::close(fd);
  return error == EINVAL || error == EROFS ? 0 : error;
}

// The file behind symbolic links, so that a replaced file keeps its place.
std::filesystem::path behind_links(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::is_symlink(file, ignored)) return file;
  const std::filesystem::path target = std::filesystem::canonical(file, ignored);
  return ignored ? file : target;
}

}  // namespace

FileFault::FileFault(FileOperation operation, int nth, int error) { fault = Fault{operation, nth, error}; }
FileFault::~FileFault() { fault.reset(); }
bool FileFault::struck() const { return fault && fault->struck; }

// A pipe, a socket or a device may keep its reader waiting for ever, and has no size.
InputFile::InputFile(const std::filesystem::path& file) : path_(file) {
  const int error = injected(FileOperation::open);
  if (error == 0) fd_ = open_again(file.c_str(), O_RDONLY | O_NONBLOCK);
  if (fd_ < 0 && error == 0 && errno == ENXIO) throw_irregular(file, "read", S_IFSOCK);
  if (fd_ < 0) throw_failure(file, "open for reading", error != 0 ? error : errno);
  struct stat status {};
  const int stat_error = ::fstat(fd_, &status) < 0 ? errno : S_ISDIR(status.st_mode) ? EISDIR : 0;
  if (stat_error == 0 && S_ISREG(status.st_mode)) {
    size_ = status.st_size;
    return;
  }
  ::close(fd_);
  if (stat_error != 0) throw_failure(file, "read", stat_error);
  throw_irregular(file, "read", status.st_mode);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void InputFile::read(int64_t offset, std::span<std::byte> into) const {
  size_t done = 0;
  while (done < into.size()) {
    const ssize_t count = ::pread(fd_, into.data() + done, into.size() - done, offset + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_failure(path_, fmt::format("read at byte {}", offset), errno);
    if (count == 0) {
      throw Error(ErrorCode::corrupt_file,
                  fmt::format("{}: ends at byte {}; expected {} bytes at byte {}", path_.string(),
                              offset + static_cast<int64_t>(done), into.size(), offset));
    }
    done += count;
  }
}

std::string read_file(const std::filesystem::path& file, Bytes limit) {
  const InputFile input(file);
  if (input.size() > limit.count) {
    throw Error(ErrorCode::invalid_input, fmt::format("{}: is {}; at most {} is expected", file.string(),
                                                      to_string(Bytes{input.size()}), to_string(limit)));
  }
  std::string content(input.size(), '\0');
  input.read(0, std::as_writable_bytes(std::span(content)));
  return content;
}

std::string inflate_gzip(std::string_view compressed, const std::string& file_name, Bytes limit) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) throw Error(ErrorCode::device_failure, "zlib: inflateInit2 failed");
  struct End {
    z_stream* stream;
    ~End() { inflateEnd(stream); }
  } const end{&stream};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
  std::string content;
  std::vector<char> piece(64 << 10);
  size_t input_left = compressed.size();
  int status = Z_OK;
  while (true) {
    if (stream.avail_in == 0) {
      const size_t count = std::min<size_t>(input_left, 1 << 30);
      stream.avail_in = static_cast<uInt>(count);
      input_left -= count;
    }
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    status = inflate(&stream, Z_NO_FLUSH);
    const size_t made = piece.size() - stream.avail_out;
    if (static_cast<int64_t>(content.size() + made) > limit.count) {
      throw Error(ErrorCode::corrupt_file,
                  fmt::format("{}: holds more than {} uncompressed", file_name, to_string(limit)));
    }
    content.append(piece.data(), made);
    const bool at_end = stream.avail_in == 0 && input_left == 0;
    if (status == Z_STREAM_END) {
      if (at_end) return content;
      inflateReset(&stream);  // a gzip file may be several one after the other
      continue;
    }
    if (status != Z_OK && status != Z_BUF_ERROR) break;
    if (at_end && made == 0) break;
  }
  const size_t place = compressed.size() - input_left - stream.avail_in;
  throw Error(ErrorCode::corrupt_file, fmt::format("{}: gzip data damaged at byte {}: {}", file_name, place,
                                                   status == Z_OK || status == Z_BUF_ERROR ? "it ends early"
                                                   : stream.msg != nullptr                 ? stream.msg
                                                                                           : "not gzip"));
}

std::string read_gzip_file(const std::filesystem::path& file, Bytes limit) {
  std::string content = read_file(file, limit);
  if (content.size() < 2 || content[0] != '\x1f' || content[1] != '\x8b') return content;
  return inflate_gzip(content, file.string(), limit);
}

AtomicFile::AtomicFile(const std::filesystem::path& file) : path_(behind_links(file)) {
  if (!path_.has_filename())
    throw Error(ErrorCode::invalid_input, fmt::format("'{}' does not name a file", path_.string()));
  temporary_ = folder_of(path_) / fmt::format(".{}.partial", path_.filename().string());
  struct stat old {};
  const bool exists = ::stat(path_.c_str(), &old) == 0;
  if (exists && !S_ISREG(old.st_mode)) throw_irregular(path_, "write", old.st_mode);
  // The lock keeps two writers apart. Whoever gets it must see that the name still means this file: the writer before
  // may have given it its final name meanwhile.
  while (fd_ < 0) {
    if (const int error = injected(FileOperation::open)) throw_failure(temporary_, "create", error);
    fd_ = open_again(temporary_.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd_ < 0 && errno == ENAMETOOLONG) {
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("{}: cannot write: the name is too long, as it is first written under the name {}; choose "
                      "a shorter one",
                      path_.string(), temporary_.filename().string()));
    }
    if (fd_ < 0 && errno == ENXIO) throw_irregular(temporary_, "write", S_IFIFO);
    if (fd_ < 0) throw_failure(temporary_, "create", errno);
    struct stat mine {
    }, named{};
    if (::fstat(fd_, &mine) == 0 && !S_ISREG(mine.st_mode)) {
      ::close(fd_);
      throw_irregular(temporary_, "write", mine.st_mode);
    }
    if (::flock(fd_, LOCK_EX | LOCK_NB) < 0) {
      const int error = errno;
      ::close(fd_);
      throw Error(ErrorCode::device_failure,
                  fmt::format("{}: cannot write: {}", path_.string(),
                              error == EWOULDBLOCK ? "another process is writing it" : std::strerror(error)));
    }
    if (::stat(temporary_.c_str(), &named) < 0 || mine.st_ino != named.st_ino || mine.st_dev != named.st_dev) {
      ::close(fd_);
      fd_ = -1;
    }
  }
  if (::ftruncate(fd_, 0) < 0) fail("truncate", errno);
  if (exists) (void)::fchmod(fd_, old.st_mode & 07777);
  buffer_.reserve(kBufferBytes);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  if (!committed_) ::unlink(temporary_.c_str());
  ::close(fd_);
}

void AtomicFile::fail(std::string_view operation, int error) {
  ::unlink(temporary_.c_str());
  ::close(fd_);
  fd_ = -1;
  throw_failure(path_, operation, error);
}

void AtomicFile::flush() {
  if (const int error = write_all(fd_, buffer_.data(), buffer_.size(), -1)) fail("write", error);
  buffer_.clear();
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (fd_ < 0) throw Error(ErrorCode::internal, fmt::format("{}: written after it failed", path_.string()));
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes) {
    if (const int error = write_all(fd_, bytes.data(), bytes.size(), -1)) fail("write", error);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::write_at(int64_t offset, std::string_view text) {
  if (fd_ < 0) throw Error(ErrorCode::internal, fmt::format("{}: written after it failed", path_.string()));
  flush();
  const auto bytes = std::as_bytes(std::span(text));
  if (const int error = write_all(fd_, bytes.data(), bytes.size(), offset)) fail("write", error);
}

void AtomicFile::commit() {
  if (fd_ < 0) throw Error(ErrorCode::internal, fmt::format("{}: committed after it failed", path_.string()));
  flush();
  if (const int error = sync_descriptor(fd_, FileOperation::sync)) fail("sync", error);
  int error = injected(FileOperation::rename);
  if (error == 0 && ::rename(temporary_.c_str(), path_.c_str()) < 0) error = errno;
  if (error != 0) fail("rename the temporary file", error);
  committed_ = true;
  ::close(fd_);
  fd_ = -1;
  // From here the new file is there; only whether it survives a power cut is open.
  if (const int folder_error = sync_folder(folder_of(path_))) throw_failure(path_, "sync its folder", folder_error);
}

void write_file_atomically(const std::filesystem::path& file, std::string_view content) {
  AtomicFile output(file);
  output.write(content);
  output.commit();
}

std::filesystem::path own_file() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_file), &info) == 0 || info.dli_fname == nullptr) return {};
  return info.dli_fname;
}

std::filesystem::path find_module(const std::string& name) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const auto& place : {own_file().parent_path() / name, folder / name, folder.parent_path() / "lib" / name,
                            folder.parent_path() / "lib" / "plimsoll" / name, folder.parent_path() / name}) {
    if (std::filesystem::exists(place, error)) return place;
  }
  return {};
}

}  // namespace plimsoll
