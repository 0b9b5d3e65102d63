// CIFAR-10 and CIFAR-100, binary version: records of a label (two for CIFAR-100: coarse, fine) and 32x32 pixels, plane
// after plane. The files stay on disk; a sample is one read.
#include <fmt/format.h>

#include "base/files.h"
#include "data/sources.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr int64_t kSide = 32;
constexpr int64_t kPlane = kSide * kSide;

int64_t label_bytes(int classes) { return classes == 100 ? 2 : 1; }

// The files of one split, one after the other.
struct CifarFiles {
  std::vector<InputFile> files;
  std::vector<int64_t> ends;  // number of samples up to the end of each file
  int64_t count() const { return ends.empty() ? 0 : ends.back(); }
};

class Cifar : public DataSet {
 public:
  Cifar(int classes, const std::filesystem::path& folder, const DataOptions& options) : classes_(classes) {
    const bool ten = classes == 10;
    const std::vector<std::string> train =
        ten ? std::vector<std::string>{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                                       "data_batch_5.bin"}
            : std::vector<std::string>{"train.bin"};
    const std::filesystem::path inner = folder / (ten ? "cifar-10-batches-bin" : "cifar-100-binary");
    std::error_code ignored;
    const std::filesystem::path& from = std::filesystem::is_directory(inner, ignored) ? inner : folder;
    for (const std::string& name : train) add(train_, from / name);
    add(test_, from / (ten ? "test_batch.bin" : "test.bin"));
    info_ = {
        .name = ten ? "cifar10" : "cifar100",
        .channels = 3,
        .height = kSide,
        .width = kSide,
        .classes = classes,
        .train_count = train_.count(),
        .test_count = test_.count(),
        .mean = ten ? std::vector<float>{0.4914F, 0.4822F, 0.4465F} : std::vector<float>{0.5071F, 0.4865F, 0.4409F},
        .stddev = ten ? std::vector<float>{0.2470F, 0.2435F, 0.2616F} : std::vector<float>{0.2673F, 0.2564F, 0.2762F},
        .augmentation = {.flip = true, .padding = 4}};
    fit_to_network(info_, options);
  }

  const DataInfo& info() const override { return info_; }
  Bytes memory() const override { return {0}; }

  void read(Split split, int64_t index, int64_t, Image& image) const override {
    const CifarFiles& from = split == Split::train ? train_ : test_;
    size_t i = 0;
    while (index >= from.ends.at(i)) ++i;
    const InputFile& file = from.files[i];
    const int64_t record = i == 0 ? index : index - from.ends[i - 1];
    std::byte bytes[2 + 3 * kPlane];
    const std::span<std::byte> used(bytes, cifar_record_bytes(classes_));
    file.read(record * cifar_record_bytes(classes_), used);
    parse_cifar_record(classes_, used, record, file.path().string(), image);
  }

 private:
  void add(CifarFiles& files, const std::filesystem::path& path) const {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("data 'cifar{}': there is no {} in {}; the binary version is needed", classes_,
                              path.filename().string(), path.parent_path().string()));
    }
    const InputFile& file = files.files.emplace_back(path);
    files.ends.push_back(files.count() + cifar_record_count(classes_, file.size(), path.string()));
  }

  int classes_;
  DataInfo info_;
  CifarFiles train_, test_;
};

}  // namespace

int64_t cifar_record_bytes(int classes) { return label_bytes(classes) + 3 * kPlane; }

int64_t cifar_record_count(int classes, int64_t file_bytes, const std::string& file_name) {
  const int64_t record = cifar_record_bytes(classes);
  if (file_bytes == 0 || file_bytes % record != 0) {
    throw Error(ErrorCode::corrupt_file,
                fmt::format("{}: has {} bytes; expected a multiple of {}, the size of a CIFAR-{} record", file_name,
                            file_bytes, record, classes));
  }
  return file_bytes / record;
}

void parse_cifar_record(int classes, std::span<const std::byte> record, int64_t index, const std::string& file_name,
                        Image& image) {
  const int64_t labels = label_bytes(classes);
  const int label = static_cast<int>(record[labels - 1]);
  if (label >= classes) {
    throw Error(ErrorCode::corrupt_file,
                fmt::format("{}: the label at byte {} is {}; expected 0..{}", file_name,
                            index * cifar_record_bytes(classes) + labels - 1, label, classes - 1));
  }
  image.channels = 3;
  image.height = image.width = kSide;
  image.maximum = 255;
  image.label = label;
  image.pixels.resize(3 * kPlane);
  const auto* planes = reinterpret_cast<const uint8_t*>(record.data() + labels);
  for (int64_t i = 0; i < kPlane; ++i) {
    for (int64_t c = 0; c < 3; ++c) image.pixels[3 * i + c] = planes[c * kPlane + i];
  }
}

std::shared_ptr<const DataSet> open_cifar(int classes, const std::filesystem::path& folder,
                                          const DataOptions& options) {
  return std::make_shared<Cifar>(classes, folder, options);
}

}  // namespace plimsoll
