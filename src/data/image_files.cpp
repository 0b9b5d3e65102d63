#include "data/image_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/files.h"
#include "data/decode.h"
#include "data/prepare.h"
#include "data/sources.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

bool is_image_name(const fs::path& path) {
  std::string ending = path.extension().string();
  for (char& c : ending) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with("."); }

void add_folder(const fs::path& folder, std::vector<std::string>& files) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const bool is_folder = it->is_directory(ignored);
    if (is_hidden(it->path())) {
      if (is_folder) it.disable_recursion_pending();
    } else if (!is_folder && is_image_name(it->path())) {
      found.push_back(it->path().string());
    }
  }
  if (error) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("{}: cannot list the folder: {}", folder.string(), error.message()));
  }
  if (found.empty())
    throw Error(ErrorCode::invalid_input, fmt::format("{}: has no JPEG or PNG image", folder.string()));
  std::sort(found.begin(), found.end());
  files.insert(files.end(), found.begin(), found.end());
}

}  // namespace

DataInfo imagenet_info(const DataOptions& options) {
  DataInfo info{.name = "images",
                .channels = 3,
                .height = kImagenetSide,
                .width = kImagenetSide,
                .mean = {0.485F, 0.456F, 0.406F},
                .stddev = {0.229F, 0.224F, 0.225F},
                .augmentation = {.flip = true, .resized_crop = true}};
  fit_to_network(info, options);
  return info;
}

std::vector<std::string> list_image_files(const std::vector<std::string>& files_and_folders) {
  std::vector<std::string> files;
  for (const std::string& name : files_and_folders) {
    std::error_code ignored;
    if (fs::is_directory(name, ignored)) {
      add_folder(name, files);
    } else {
      files.push_back(name);
    }
  }
  return files;
}

std::string read_image_file(const std::string& file, const DataInfo& info, std::span<float> into, int64_t most_pixels) {
  try {
    PrepareScratch scratch;
    decode_image_file(file, smallest_side(info, Split::test), scratch.image, most_pixels);
    prepare(scratch.image, info, nullptr, {}, scratch, into);
    return {};
  } catch (const Error& error) {
    const std::string why = error.what();
    return why.find(file) == std::string::npos ? fmt::format("{}: {}", file, why) : why;
  }
}

}  // namespace plimsoll
