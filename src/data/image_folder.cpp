// A folder of images, sorted into classes by folders, as torchvision's ImageFolder reads it:
//
//   DIR/train/cat/1.jpg  DIR/val/cat/7.jpg     or test/ for val/
//   DIR/cat/1.jpg                              then four of five are for training, in a fixed order
//
// Classes are the folders' names, sorted; images may lie deeper. Names that begin with a dot are left out.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>

#include "base/files.h"
#include "data/decode.h"
#include "data/image_files.h"
#include "data/sources.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

constexpr size_t kDeepestFolder = 32;

// A million paths in one piece of memory.
struct Listing {
  std::string names;  // one after another, below `root`
  std::vector<size_t> ends;
  std::vector<int32_t> labels;

  void add(const std::string& name, int32_t label) {
    names += name;
    ends.push_back(names.size());
    labels.push_back(label);
  }
  std::string name(size_t i) const {
    const size_t begin = i == 0 ? 0 : ends[i - 1];
    return names.substr(begin, ends[i] - begin);
  }
  int64_t count() const { return static_cast<int64_t>(ends.size()); }
  int64_t bytes() const {
    return static_cast<int64_t>(names.capacity() + ends.capacity() * sizeof(size_t) +
                                labels.capacity() * sizeof(int32_t));
  }
};

bool hidden(const fs::path& path) { return path.filename().string().starts_with("."); }

std::vector<fs::directory_entry> sorted_entries(const fs::path& folder) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (!hidden(it->path())) entries.push_back(*it);
  }
  if (error)
    throw Error(ErrorCode::invalid_input,
                fmt::format("{}: cannot list the folder: {}", folder.string(), error.message()));
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool is_folder(const fs::directory_entry& entry) {
  std::error_code error;
  const bool folder = entry.is_directory(error);
  if (error == std::errc::too_many_symbolic_link_levels) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("{}: is a link that leads back to itself; remove it", entry.path().string()));
  }
  return folder;
}

std::vector<std::string> class_folders(const fs::path& root) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : sorted_entries(root)) {
    if (is_folder(entry)) names.push_back(entry.path().filename().string());
  }
  return names;
}

enum class FileKind : uint8_t { image, other, unreadable_image };

FileKind kind_of(const fs::path& path) {
  std::string ending = path.extension().string();
  for (char& c : ending) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* known : {".jpg", ".jpeg", ".png"}) {
    if (ending == known) return FileKind::image;
  }
  for (const char* known : {".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}) {
    if (ending == known) return FileKind::unreadable_image;
  }
  return FileKind::other;
}

void check_regular(const fs::directory_entry& entry) {
  std::error_code error;
  if (entry.is_regular_file(error)) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("{}: {}; remove it, or name it without the ending of an image", entry.path().string(),
                          entry.is_symlink() ? "is a link to what is no file"
                                             : "is no regular file but a pipe, a socket or a device"));
}

// Of a folder, wherever links lead.
using FolderId = std::pair<dev_t, ino_t>;
FolderId folder_id(const fs::path& folder) {
  struct stat status {};
  return ::stat(folder.c_str(), &status) == 0 ? FolderId{status.st_dev, status.st_ino} : FolderId{};
}

// `above`: the folders that this one lies in, itself included.
void add_images(Listing& listing, const fs::path& root, const std::string& below, int32_t label,
                std::vector<FolderId>& above) {
  for (const fs::directory_entry& entry : sorted_entries(root / below)) {
    const std::string name = below + "/" + entry.path().filename().string();
    if (is_folder(entry)) {
      const FolderId id = folder_id(entry.path());
      if (std::find(above.begin(), above.end(), id) != above.end()) {
        throw Error(ErrorCode::invalid_input,
                    fmt::format("{}: is a link to a folder that it lies in; remove it", entry.path().string()));
      }
      if (above.size() > kDeepestFolder)
        throw Error(ErrorCode::invalid_input, fmt::format("{}: folders lie too deep", entry.path().string()));
      above.push_back(id);
      add_images(listing, root, name, label, above);
      above.pop_back();
    } else if (kind_of(entry.path()) == FileKind::image) {
      check_regular(entry);
      listing.add(name, label);
    } else if (kind_of(entry.path()) == FileKind::unreadable_image) {
      throw Error(ErrorCode::unsupported, fmt::format("{}: only JPEG and PNG images are read", entry.path().string()));
    }
  }
}

// Every image under root, in the classes given; a folder that is none of them is an error.
Listing list_images(const fs::path& root, const std::vector<std::string>& classes) {
  Listing listing;
  for (const std::string& name : class_folders(root)) {
    const auto found = std::lower_bound(classes.begin(), classes.end(), name);
    if (found == classes.end() || *found != name) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{}: is a class that the training images do not have", (root / name).string()));
    }
    const int64_t before = listing.count();
    std::vector<FolderId> above{folder_id(root), folder_id(root / name)};
    add_images(listing, root, name, static_cast<int32_t>(found - classes.begin()), above);
    if (listing.count() == before) {
      throw Error(ErrorCode::invalid_input, fmt::format("{}: has no JPEG or PNG image", (root / name).string()));
    }
  }
  return listing;
}

class ImageFolder : public DataSet {
 public:
  ImageFolder(const fs::path& folder, const DataOptions& options) {
    std::error_code ignored;
    const bool has_train = fs::is_directory(folder / "train", ignored);
    train_root_ = has_train ? folder / "train" : folder;
    info_ = imagenet_info({});
    info_.class_names = class_folders(train_root_);
    if (info_.class_names.size() < 2) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{}: has {} class folders; expected at least 2, each with its images",
                              train_root_.string(), info_.class_names.size()));
    }
    train_ = list_images(train_root_, info_.class_names);
    if (has_train) {
      test_root_ = fs::is_directory(folder / "val", ignored) ? folder / "val" : folder / "test";
      if (!fs::is_directory(test_root_, ignored)) {
        throw Error(ErrorCode::invalid_input,
                    fmt::format("{}: has train/ but neither val/ nor test/", folder.string()));
      }
      test_ = list_images(test_root_, info_.class_names);
      info_.train_count = train_.count();
      info_.test_count = test_.count();
    } else {
      order_ = split_order(train_.count());
      info_.train_count = split_train_count(train_.count());
      info_.test_count = train_.count() - info_.train_count;
    }
    info_.classes = static_cast<int64_t>(info_.class_names.size());
    fit_to_network(info_, options);
  }

  const DataInfo& info() const override { return info_; }
  Bytes memory() const override {
    return {train_.bytes() + test_.bytes() + static_cast<int64_t>(order_.size() * sizeof(int32_t))};
  }
  void read(Split split, int64_t index, int64_t smallest_side, Image& image) const override {
    const bool own_test = split == Split::test && order_.empty();
    const Listing& listing = own_test ? test_ : train_;
    size_t i = index;
    if (!order_.empty()) i = order_[split == Split::train ? i : i + info_.train_count];
    const fs::path file = (own_test ? test_root_ : train_root_) / listing.name(i);
    decode_image_file(file, smallest_side, image);
    image.label = listing.labels[i];
  }

 private:
  DataInfo info_;
  fs::path train_root_, test_root_;
  Listing train_, test_;
  std::vector<int32_t> order_;  // training samples first, where the folder has no split
};

}  // namespace

std::shared_ptr<const DataSet> open_image_folder(const fs::path& folder, const DataOptions& options) {
  return std::make_shared<ImageFolder>(folder, options);
}

}  // namespace plimsoll
