// The bundled data set: small enough to lie in memory whole.
#include <fmt/format.h>

#include <array>

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
  const std::filesystem::path file = bundled_file(kFileName, "digits");
  return std::make_shared<Digits>(parse_digits_csv(read_gzip_file(file, 64_MiB), file.string()), options);
}

}  // namespace plimsoll
