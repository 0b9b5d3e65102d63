#include <fmt/format.h>

#include <cstdlib>

#include "base/files.h"
#include "data/sources.h"
#include "plimsoll/error.h"

namespace plimsoll {

std::filesystem::path bundled_file(const std::string& name, [[maybe_unused]] const std::string& data) {
  if (const char* folder = std::getenv("PLIMSOLL_DATA")) return std::filesystem::path(folder) / name;
  std::vector<std::filesystem::path> starts;
  std::error_code ignored;
  starts.push_back(std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path());
  starts.push_back(std::filesystem::absolute(own_file(), ignored).parent_path());
  for (std::filesystem::path folder : starts) {
    for (int level = 0; level < 4 && !folder.empty(); ++level, folder = folder.parent_path()) {
      for (const char* inside : {"data", "share/plimsoll"}) {
        const std::filesystem::path file = folder / inside / name;
        if (std::filesystem::is_regular_file(file, ignored)) return file;
      }
    }
  }
#ifdef PLIMSOLL_SOURCE_DATA
  return std::filesystem::path(PLIMSOLL_SOURCE_DATA) / name;
#else
  throw Error(ErrorCode::invalid_input,
              fmt::format("data '{}': {} is not beside the program; name its folder in PLIMSOLL_DATA", data, name));
#endif
}

}  // namespace plimsoll
