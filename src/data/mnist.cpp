// MNIST and what has its form: idx files, plain or compressed by gzip. Plain image files stay on disk and are read in
// places; compressed ones are held uncompressed.
#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "base/files.h"
#include "data/sources.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr int kClasses = 10;
constexpr int64_t kLargestSide = 1 << 14;

// The file under one of its usual names: "train-images-idx3-ubyte", "train-images.idx3-ubyte", each also with .gz.
std::filesystem::path find_file(const std::filesystem::path& folder, const std::string& stem,
                                const std::string& ending) {
  std::error_code ignored;
  for (const std::string separator : {"-", "."}) {
    for (const char* suffix : {"", ".gz"}) {
      const std::filesystem::path file = folder / (stem + separator + ending + suffix);
      if (std::filesystem::exists(file, ignored)) return file;
    }
  }
  throw Error(ErrorCode::invalid_input, fmt::format("data 'mnist': there is no {}-{} or {}-{}.gz in {}", stem, ending,
                                                    stem, ending, folder.string()));
}

// The bytes of an idx file, on disk or in memory.
class IdxFile {
 public:
  IdxFile(const std::filesystem::path& path, size_t rank) : name_(path.string()) {
    if (path.extension() == ".gz") {
      content_ = read_gzip_file(path);
      header_ =
          parse_idx_header(std::as_bytes(std::span(*content_)), static_cast<int64_t>(content_->size()), rank, name_);
    } else {
      file_.emplace(path);
      std::vector<std::byte> head(std::min<int64_t>(file_->size(), 4 + 4 * static_cast<int64_t>(rank)));
      file_->read(0, head);
      header_ = parse_idx_header(head, file_->size(), rank, name_);
    }
  }

  const std::string& name() const { return name_; }
  const std::vector<int64_t>& dimensions() const { return header_.dimensions; }
  Bytes memory() const { return {content_ ? static_cast<int64_t>(content_->size()) : 0}; }
  void read(int64_t offset, std::span<uint8_t> into) const {
    offset += header_.data_offset;
    if (file_) return file_->read(offset, std::as_writable_bytes(into));
    std::memcpy(into.data(), content_->data() + offset, into.size());
  }

 private:
  std::string name_;
  std::optional<InputFile> file_;
  std::optional<std::string> content_;
  IdxHeader header_;
};

struct IdxSplit {
  IdxSplit(const std::filesystem::path& folder, const std::string& stem)
      : images(find_file(folder, stem + "-images", "idx3-ubyte"), 3) {
    const IdxFile label_file(find_file(folder, stem + "-labels", "idx1-ubyte"), 1);
    const int64_t count = images.dimensions()[0];
    if (label_file.dimensions()[0] != count) {
      throw Error(ErrorCode::corrupt_file,
                  fmt::format("{}: has {} labels; expected {}, one for each image of {}", label_file.name(),
                              label_file.dimensions()[0], count, images.name()));
    }
    labels.resize(count);
    label_file.read(0, labels);
    for (size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] >= kClasses) {
        throw Error(ErrorCode::corrupt_file,
                    fmt::format("{}: label {} is {}; expected 0..{}", label_file.name(), i, labels[i], kClasses - 1));
      }
    }
  }

  IdxFile images;
  std::vector<uint8_t> labels;
};

class Mnist : public DataSet {
 public:
  Mnist(const std::filesystem::path& folder, const DataOptions& options)
      : train_(folder, "train"), test_(folder, "t10k") {
    height_ = train_.images.dimensions()[1];
    width_ = train_.images.dimensions()[2];
    if (test_.images.dimensions()[1] != height_ || test_.images.dimensions()[2] != width_) {
      throw Error(ErrorCode::corrupt_file,
                  fmt::format("{}: has images of {}x{}; expected {}x{}, as in {}", test_.images.name(),
                              test_.images.dimensions()[1], test_.images.dimensions()[2], height_, width_,
                              train_.images.name()));
    }
    info_ = {.name = "mnist",
             .channels = 1,
             .height = height_,
             .width = width_,
             .classes = kClasses,
             .train_count = train_.images.dimensions()[0],
             .test_count = test_.images.dimensions()[0],
             .mean = {0.1307F},
             .stddev = {0.3081F}};
    fit_to_network(info_, options);
  }

  const DataInfo& info() const override { return info_; }
  Bytes memory() const override {
    return train_.images.memory() + test_.images.memory() +
           Bytes{static_cast<int64_t>(train_.labels.size() + test_.labels.size())};
  }
  void read(Split split, int64_t index, int64_t, Image& image) const override {
    const IdxSplit& from = split == Split::train ? train_ : test_;
    image.channels = 1;
    image.height = height_;
    image.width = width_;
    image.maximum = 255;
    image.label = from.labels.at(index);
    image.pixels.resize(height_ * width_);
    from.images.read(index * height_ * width_, image.pixels);
  }

 private:
  DataInfo info_;
  IdxSplit train_, test_;
  int64_t height_ = 0, width_ = 0;
};

}  // namespace

IdxHeader parse_idx_header(std::span<const std::byte> head, int64_t file_bytes, size_t rank,
                           const std::string& file_name) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::corrupt_file, fmt::format("{}: {}", file_name, what));
  };
  const size_t header_bytes = 4 + 4 * rank;
  if (head.size() < header_bytes) {
    fail(fmt::format("ends at byte {}; expected an idx header of {} bytes", head.size(), header_bytes));
  }
  const auto word = [&](size_t at) {
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint32_t>(head[at + i]);
    return value;
  };
  const uint32_t magic = 0x0800 | static_cast<uint32_t>(rank);
  if (word(0) != magic)
    fail(fmt::format("begins with 0x{:08x}; expected 0x{:08x}, an idx file of bytes in {} dimensions", word(0), magic,
                     rank));
  IdxHeader header{.dimensions = {}, .data_offset = static_cast<int64_t>(header_bytes)};
  int64_t expected = 1;
  for (size_t d = 0; d < rank; ++d) {
    const int64_t size = word(4 + 4 * d);
    if (size < 1 || size > (d == 0 ? int64_t{1} << 30 : kLargestSide)) {
      fail(fmt::format("dimension {} at byte {} is {}; expected 1..{}", d, 4 + 4 * d, size,
                       d == 0 ? 1 << 30 : kLargestSide));
    }
    header.dimensions.push_back(size);
    expected *= size;
  }
  if (file_bytes != header.data_offset + expected) {
    fail(fmt::format("has {} bytes; expected {}: a header of {} and {} of data", file_bytes,
                     header.data_offset + expected, header.data_offset, expected));
  }
  return header;
}

std::shared_ptr<const DataSet> open_mnist(const std::filesystem::path& folder, const DataOptions& options) {
  return std::make_shared<Mnist>(folder, options);
}

}  // namespace plimsoll
