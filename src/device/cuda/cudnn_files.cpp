#include "device/cuda/cudnn_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <vector>

namespace plimsoll::cuda {

std::string why_cudnn_is_mixed(std::span<const std::string> loaded, const std::string& version,
                               const std::string& built_with) {
  std::map<std::string, std::vector<std::string>> names;  // by folder
  for (const std::string& file : loaded) {
    const std::filesystem::path path(file);
    if (path.filename().string().starts_with("libcudnn")) {
      names[path.parent_path().string()].push_back(path.filename().string());
    }
  }
  if (names.size() < 2) return {};
  std::vector<std::string> folders;
  std::string whole;  // the folder of what everything else is loaded by
  for (const auto& [folder, files] : names) {
    folders.push_back(fmt::format("{} ({})", folder, fmt::join(files, ", ")));
    for (const std::string& file : files) {
      if (file.starts_with("libcudnn.so")) whole = folder;
    }
  }
  return fmt::format(
      "parts of cuDNN are loaded from {}: set LD_LIBRARY_PATH={} or to another folder with all of one cuDNN "
      "9 (it says that it is {}; this program was built with {})",
      fmt::join(folders, " and from "), whole.empty() ? names.begin()->first : whole, version, built_with);
}

}  // namespace plimsoll::cuda
