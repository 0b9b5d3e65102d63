// Tables of convolutions with DeepBench's columns.
#include <fmt/format.h>

#include <array>
#include <charconv>

#include "plimsoll/error.h"
#include "plimsoll/kernels.h"

namespace plimsoll {
namespace {

constexpr size_t kColumns = std::size(kConvolutionColumns);
constexpr size_t kNeeded = 7;  // the columns for padding and stride may be absent
constexpr size_t kPadWidth = 7, kStrideWidth = 9;
constexpr size_t kMostFields = 64;
constexpr int64_t kLargest = int64_t{1} << 20, kMostElements = int64_t{1} << 40;

constexpr int64_t Convolution::*kFields[kColumns] = {
    &Convolution::width,         &Convolution::height,    &Convolution::channels,   &Convolution::batch,        &Convolution::filters,
    &Convolution::kernel_width,  &Convolution::kernel_height, &Convolution::pad_width,  &Convolution::pad_height, &Convolution::stride_width,
    &Convolution::stride_height};

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// A piece of a foreign file as a message can show it.
std::string shown(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 40)) result += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > 40 ? result + "..." : result;
}

int64_t least(size_t column) { return column >= kPadWidth && column < kStrideWidth ? 0 : 1; }

std::optional<std::string> number_fault(size_t column, int64_t value) {
  if (value >= least(column) && value <= kLargest) return std::nullopt;
  return fmt::format("{} {} is not in {} to {}", kConvolutionColumns[column], value, least(column), kLargest);
}

int64_t output_size(int64_t image, int64_t pad, int64_t kernel, int64_t stride) { return (image + 2 * pad - kernel) / stride + 1; }

std::optional<std::string> tensor_fault(std::string_view tensor, std::array<int64_t, 4> shape) {
  int64_t elements = 1;
  for (int64_t extent : shape) {
    if (!__builtin_mul_overflow(elements, extent, &elements) && elements <= kMostElements) continue;
    return fmt::format("the {} has more than 2^40 elements", tensor);
  }
  return std::nullopt;
}

// What is wrong although every number is in its range.
std::optional<std::string> shape_fault(const Convolution& c) {
  if (c.kernel_width > c.width + 2 * c.pad_width) {
    return fmt::format("kernel_width {} is more than the padded width {}", c.kernel_width, c.width + 2 * c.pad_width);
  }
  if (c.kernel_height > c.height + 2 * c.pad_height) {
    return fmt::format("kernel_height {} is more than the padded height {}", c.kernel_height, c.height + 2 * c.pad_height);
  }
  const int64_t out_width = output_size(c.width, c.pad_width, c.kernel_width, c.stride_width);
  const int64_t out_height = output_size(c.height, c.pad_height, c.kernel_height, c.stride_height);
  if (auto fault = tensor_fault("input", {c.batch, c.channels, c.height, c.width})) return fault;
  if (auto fault = tensor_fault("weight", {c.filters, c.channels, c.kernel_height, c.kernel_width})) return fault;
  return tensor_fault("output", {c.batch, c.filters, out_height, out_width});
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& file_name) : text_(text), file_name_(file_name) {
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);
  }

  std::vector<Convolution> read() {
    if (!next_line()) refuse("expected a header with the columns width, height, channels, batch, ..., but the file is empty");
    read_header();
    while (next_line()) {
      if (!trim(line_text_).empty()) read_row();
    }
    if (rows_.empty()) refuse("there is a header but no convolution");
    return std::move(rows_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::invalid_input, fmt::format("{}, line {}: {}", file_name_, line_, what));
  }
  [[noreturn]] void refuse_field(size_t place, const std::string& what) const {
    throw Error(ErrorCode::invalid_input, fmt::format("{}, line {}, column {}: {}", file_name_, line_, place + 1, what));
  }

  bool next_line() {
    if (at_ >= text_.size()) {
      if (line_ == 0) line_ = 1;
      return false;
    }
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    line_text_ = text_.substr(at_, end - at_);
    at_ = end + 1;
    ++line_;
    fields_.clear();
    for (size_t begin = 0; fields_.size() <= kMostFields;) {
      const size_t comma = std::min(line_text_.find(',', begin), line_text_.size());
      fields_.push_back(trim(line_text_.substr(begin, comma - begin)));
      if (comma == line_text_.size()) break;
      begin = comma + 1;
    }
    return true;
  }

  void read_header() {
    place_.fill(kNowhere);
    for (size_t f = 0; f < fields_.size(); ++f) {
      size_t column = 0;
      while (column < kColumns && kConvolutionColumns[column] != fields_[f]) ++column;
      if (column == kColumns) {
        refuse_field(f, fmt::format("unknown column '{}'; known: {}", shown(fields_[f]), fmt::join(kConvolutionColumns, ", ")));
      }
      if (place_[column] != kNowhere) refuse_field(f, fmt::format("two columns '{}'", kConvolutionColumns[column]));
      place_[column] = f;
    }
    for (size_t column = 0; column < kNeeded; ++column) {
      if (place_[column] == kNowhere) refuse(fmt::format("no column '{}'", kConvolutionColumns[column]));
    }
    columns_ = fields_.size();
  }

  void read_row() {
    if (fields_.size() != columns_) {
      refuse(fmt::format("{} columns where the header has {}", fields_.size() > kMostFields ? "too many" : std::to_string(fields_.size()), columns_));
    }
    if (rows_.size() == kMostConvolutions) refuse(fmt::format("more than {} convolutions", kMostConvolutions));
    Convolution row;
    for (size_t column = 0; column < kColumns; ++column) {
      if (place_[column] != kNowhere) field(row, column) = number(column);
    }
    if (const auto fault = shape_fault(row)) refuse(*fault);
    rows_.push_back(row);
  }

  int64_t number(size_t column) const {
    const size_t place = place_[column];
    const std::string_view text = fields_[place];
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::invalid_argument || end != text.data() + text.size()) {
      refuse_field(place, fmt::format("{} '{}' is not a whole number", kConvolutionColumns[column], shown(text)));
    }
    if (error != std::errc{}) refuse_field(place, fmt::format("{} '{}' is more than a 64-bit number holds", kConvolutionColumns[column], shown(text)));
    if (const auto fault = number_fault(column, value)) refuse_field(place, *fault);
    return value;
  }

  static constexpr size_t kNowhere = SIZE_MAX;
  std::string_view text_;
  const std::string& file_name_;
  size_t at_ = 0, line_ = 0, columns_ = 0;
  std::string_view line_text_;
  std::vector<std::string_view> fields_;
  std::array<size_t, kColumns> place_{};
  std::vector<Convolution> rows_;
};

}  // namespace

int64_t& field(Convolution& convolution, size_t column) { return convolution.*kFields[column]; }
int64_t field(const Convolution& convolution, size_t column) { return convolution.*kFields[column]; }

void check(const Convolution& convolution) {
  std::optional<std::string> fault;
  for (size_t column = 0; column < kColumns && !fault; ++column) fault = number_fault(column, field(convolution, column));
  if (!fault) fault = shape_fault(convolution);
  if (fault) throw Error(ErrorCode::invalid_input, fmt::format("convolution: {}", *fault));
}

std::vector<Convolution> convolutions_from_csv(std::string_view text, const std::string& file_name) { return Reader(text, file_name).read(); }

}  // namespace plimsoll
