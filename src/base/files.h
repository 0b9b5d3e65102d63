// The one door to the file system: files read whole or in places, written atomically and durably. Every failure names
// the file, the operation and the cause.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/bytes.h"
#include "plimsoll/error.h"

namespace plimsoll {

// The content of a file; throws Error(invalid_input) when it is not there or cannot be read, also when it is larger
// than `limit`.
std::string read_file(const std::filesystem::path& file, Bytes limit = Bytes{int64_t{2} << 30});

// What `read` makes of a file's content; the Errors that it throws name the file.
template <class Read>
auto read_named(const std::filesystem::path& file, const Read& read) {
  const std::string content = read_file(file);
  try {
    return read(content);
  } catch (const Error& error) {
    throw Error(error.code(), file.string() + ": " + error.what());
  }
}

// As read_file, for a file that may be compressed by gzip. `limit` counts uncompressed bytes. Throws Error(corrupt_file)
// where the compressed data is damaged or ends early.
std::string read_gzip_file(const std::filesystem::path& file, Bytes limit = Bytes{int64_t{2} << 30});
std::string inflate_gzip(std::string_view compressed, const std::string& file_name,
                         Bytes limit = Bytes{int64_t{2} << 30});

// A file open for reading at any place. Safe to read from several threads. What is no regular file (a pipe, a socket, a
// device) is refused by name: nothing that is read here waits for another process.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& file);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const { return size_; }
  // Throws Error(corrupt_file) where the file ends before.
  void read(int64_t offset, std::span<std::byte> into) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// Replaces a file in one step. Writes go to a temporary file beside it; commit() makes that durable and gives it the
// name. Until then, and on any failure, the old file stays whole and the temporary is removed. A process that is killed
// leaves at most one temporary, which the next write of the same file reuses.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& file);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Replaces what was written already.
  void write_at(int64_t offset, std::string_view text);
  void commit();

 private:
  void flush();
  [[noreturn]] void fail(std::string_view operation, int error);

  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  bool committed_ = false;
  std::vector<std::byte> buffer_;
};

void write_file_atomically(const std::filesystem::path& file, std::string_view content);

// For tests: while one lives, the nth (from 1) operation of this kind, in this thread, fails with this errno.
enum class FileOperation : uint8_t { open, write, sync, rename, sync_folder };
class FileFault {
 public:
  FileFault(FileOperation operation, int nth, int error);
  ~FileFault();
  FileFault(const FileFault&) = delete;
  FileFault& operator=(const FileFault&) = delete;
  bool struck() const;  // it happened
};

// The file that this code is in: the program, or the Python package's module.
std::filesystem::path own_file();
// Where a module of ours lies: beside own_file() or the program, else where a library of it is installed; empty: nowhere.
std::filesystem::path find_module(const std::string& name);

}  // namespace plimsoll
