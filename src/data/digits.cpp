// The bundled data set: small enough to lie in memory whole.
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>

#include "base/csv.h"
#include "base/files.h"
#include "data/sources.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr int kDigitSide = 8;
constexpr int kPixels = kDigitSide * kDigitSide;
constexpr int kWhite = 16;
constexpr int kDigitClasses = 10;
constexpr const char* kFileName = "digits.csv.gz";

// In the folder that PLIMSOLL_DATA names; else beside or above the program, as an installation or a build has it; else
// where the sources were.
std::filesystem::path find_digits() {
  if (const char* folder = std::getenv("PLIMSOLL_DATA")) return std::filesystem::path(folder) / kFileName;
  std::vector<std::filesystem::path> starts;
  std::error_code ignored;
  starts.push_back(std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path());
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&open_digits), &here) != 0 && here.dli_fname != nullptr) {
    starts.push_back(std::filesystem::absolute(here.dli_fname, ignored).parent_path());
  }
  for (std::filesystem::path folder : starts) {
    for (int level = 0; level < 4 && !folder.empty(); ++level, folder = folder.parent_path()) {
      for (const char* inside : {"data", "share/plimsoll"}) {
        const std::filesystem::path file = folder / inside / kFileName;
        if (std::filesystem::is_regular_file(file, ignored)) return file;
      }
    }
  }
#ifdef PLIMSOLL_SOURCE_DATA
  return std::filesystem::path(PLIMSOLL_SOURCE_DATA) / kFileName;
#else
  throw Error(ErrorCode::invalid_input,
              fmt::format("data 'digits': {} is not beside the program; name its folder in PLIMSOLL_DATA", kFileName));
#endif
}

class Digits : public DataSet {
 public:
  Digits(DigitsTable table, const DataOptions& options) : table_(std::move(table)) {
    const int64_t count = static_cast<int64_t>(table_.labels.size());
    order_ = split_order(count);
    info_ = {.name = "digits",
             .channels = 1,
             .height = kDigitSide,
             .width = kDigitSide,
             .classes = kDigitClasses,
             .train_count = split_train_count(count),
             .mean = {0.30526F},
             .stddev = {0.37605F}};
    info_.test_count = count - info_.train_count;
    fit_to_network(info_, options);
  }

  const DataInfo& info() const override { return info_; }
  Bytes memory() const override {
    return {static_cast<int64_t>(table_.pixels.size() + table_.labels.size() + order_.size() * sizeof(int32_t))};
  }
  void read(Split split, int64_t index, int64_t, Image& image) const override {
    const int64_t position = split == Split::train ? index : info_.train_count + index;
    const size_t row = order_.at(position);
    image.channels = 1;
    image.height = image.width = kDigitSide;
    image.maximum = kWhite;
    image.label = table_.labels[row];
    const auto begin = table_.pixels.begin() + static_cast<ptrdiff_t>(row * kPixels);
    image.pixels.assign(begin, begin + kPixels);
  }

 private:
  DataInfo info_;
  DigitsTable table_;
  std::vector<int32_t> order_;  // training samples first
};

}  // namespace

DigitsTable parse_digits_csv(std::string_view text, const std::string& file_name) {
  std::array<std::string_view, kPixels + 1> columns;
  columns.fill("pixel");
  columns.back() = "label";
  CsvReader csv(text, file_name, columns.size(), ErrorCode::corrupt_file);
  csv.set_columns(columns);
  DigitsTable table;
  while (csv.next_row()) {
    for (size_t column = 0; column < columns.size(); ++column) {
      const bool is_label = column == kPixels;
      const int64_t value = csv.number(column), most = is_label ? kDigitClasses - 1 : kWhite;
      if (value < 0 || value > most)
        csv.refuse_field(column, fmt::format("{} {} is not in 0 to {}", columns[column], value, most));
      (is_label ? table.labels : table.pixels).push_back(static_cast<uint8_t>(value));
    }
  }
  if (table.labels.size() < 10) {
    throw Error(ErrorCode::corrupt_file,
                fmt::format("{}: has {} images; expected at least 10", file_name, table.labels.size()));
  }
  return table;
}

std::shared_ptr<const DataSet> open_digits(const DataOptions& options) {
  const std::filesystem::path file = find_digits();
  return std::make_shared<Digits>(parse_digits_csv(read_gzip_file(file, 64_MiB), file.string()), options);
}

}  // namespace plimsoll
