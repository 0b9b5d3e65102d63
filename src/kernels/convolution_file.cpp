// Tables of convolutions with DeepBench's columns.
#include <fmt/format.h>

#include <array>

#include "base/csv.h"
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
    &Convolution::width,      &Convolution::height,       &Convolution::channels,      &Convolution::batch,
    &Convolution::filters,    &Convolution::kernel_width, &Convolution::kernel_height, &Convolution::pad_width,
    &Convolution::pad_height, &Convolution::stride_width, &Convolution::stride_height};

int64_t least(size_t column) { return column >= kPadWidth && column < kStrideWidth ? 0 : 1; }

std::optional<std::string> number_fault(size_t column, int64_t value) {
  if (value >= least(column) && value <= kLargest) return std::nullopt;
  return fmt::format("{} {} is not in {} to {}", kConvolutionColumns[column], value, least(column), kLargest);
}

int64_t output_size(int64_t image, int64_t pad, int64_t kernel, int64_t stride) {
  return (image + 2 * pad - kernel) / stride + 1;
}

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
    return fmt::format("kernel_height {} is more than the padded height {}", c.kernel_height,
                       c.height + 2 * c.pad_height);
  }
  const int64_t out_width = output_size(c.width, c.pad_width, c.kernel_width, c.stride_width);
  const int64_t out_height = output_size(c.height, c.pad_height, c.kernel_height, c.stride_height);
  if (auto fault = tensor_fault("input", {c.batch, c.channels, c.height, c.width})) return fault;
  if (auto fault = tensor_fault("weight", {c.filters, c.channels, c.kernel_height, c.kernel_width})) return fault;
  return tensor_fault("output", {c.batch, c.filters, out_height, out_width});
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& file_name) : csv_(text, file_name, kMostFields) {}

  std::vector<Convolution> read() {
    csv_.read_header(
        kConvolutionColumns, "width, height, channels, batch, ...", [&](size_t place, std::string_view name) {
          csv_.refuse_place(
              place, fmt::format("unknown column '{}'; known: {}", shown(name), fmt::join(kConvolutionColumns, ", ")));
        });
    for (size_t column = 0; column < kNeeded; ++column) {
      if (!csv_.has(column)) csv_.refuse(fmt::format("no column '{}'", kConvolutionColumns[column]));
    }
    while (csv_.next_row()) read_row();
    if (rows_.empty()) csv_.refuse("there is a header but no convolution");
    return std::move(rows_);
  }

 private:
  void read_row() {
    if (rows_.size() == kMostConvolutions) csv_.refuse(fmt::format("more than {} convolutions", kMostConvolutions));
    Convolution row;
    for (size_t column = 0; column < kColumns; ++column) {
      if (!csv_.has(column)) continue;
      const int64_t value = csv_.number(column);
      if (const auto fault = number_fault(column, value)) csv_.refuse_field(column, *fault);
      field(row, column) = value;
    }
    if (const auto fault = shape_fault(row)) csv_.refuse(*fault);
    rows_.push_back(row);
  }

  CsvReader csv_;
  std::vector<Convolution> rows_;
};

}  // namespace

int64_t& field(Convolution& convolution, size_t column) { return convolution.*kFields[column]; }
int64_t field(const Convolution& convolution, size_t column) { return convolution.*kFields[column]; }

void check(const Convolution& convolution) {
  std::optional<std::string> fault;
  for (size_t column = 0; column < kColumns && !fault; ++column)
    fault = number_fault(column, field(convolution, column));
  if (!fault) fault = shape_fault(convolution);
  if (fault) throw Error(ErrorCode::invalid_input, fmt::format("convolution: {}", *fault));
}

std::vector<Convolution> convolutions_from_csv(std::string_view text, const std::string& file_name) {
  return Reader(text, file_name).read();
}

}  // namespace plimsoll
