// A folder of a test's own, removed with everything in it.
#pragma once

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>

namespace plimsoll {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "plimsoll-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::system_error(errno, std::generic_category(), pattern);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  bool empty() const { return std::filesystem::is_empty(path_); }
  size_t files() const {
    namespace fs = std::filesystem;
    return std::distance(fs::directory_iterator(path_), fs::directory_iterator());
  }

 private:
  std::filesystem::path path_;
};

}  // namespace plimsoll
