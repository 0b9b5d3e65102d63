#include "plan/placement/placement_file.h"

#include <fmt/format.h>

#include <array>
#include <unordered_map>

#include "base/csv.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

enum Column : size_t { kId, kLower, kUpper, kSize, kAlignment, kColumns };
constexpr std::array<std::string_view, kColumns> kNames = {"id", "lower", "upper", "size", "alignment"};
constexpr int64_t kLargestAlignment = int64_t{1} << 30;

class Reader {
 public:
  Reader(std::string_view text, const std::string& file_name) : csv_(text, file_name, kMostFields) {}

  PlacementFile read() {
    csv_.read_header(kNames, "id, lower, upper and size", [&](size_t, std::string_view name) {
      if (name == "offset") return;
      if (name == "gaps") {
        csv_.refuse("gaps in lifetimes (column 'gaps') are unsupported; make each piece a buffer of its own",
                    ErrorCode::unsupported);
      }
      csv_.refuse(fmt::format("unknown column '{}'; known: id, lower, upper, size, alignment, offset", shown(name)));
    });
    for (size_t column : {kId, kLower, kUpper, kSize}) {
      if (!csv_.has(column))
        csv_.refuse(fmt::format("no column '{}'; expected id, lower, upper and size", kNames[column]));
    }
    while (csv_.next_row()) read_row();
    return std::move(file_);
  }

 private:
  int64_t number(Column column) const {
    const int64_t value = csv_.number(column);
    if (value < 0) csv_.refuse(fmt::format("{} {} is negative", kNames[column], value));
    return value;
  }

  void read_row() {
    if (file_.buffers.size() == kMostFileBuffers) csv_.refuse(fmt::format("more than {} buffers", kMostFileBuffers));
    const std::string_view id = csv_.field(kId);
    if (id.empty()) csv_.refuse("the id is empty");
    const auto [known, is_new] = lines_.emplace(id, csv_.line());
    if (!is_new) csv_.refuse(fmt::format("id '{}' was given in line {} already", shown(id), known->second));
    const int64_t lower = number(kLower), upper = number(kUpper), size = number(kSize);
    if (upper <= lower) csv_.refuse(fmt::format("upper {} is not more than lower {}", upper, lower));
    if (csv_.has(kAlignment)) read_alignment();
    // Rounding up must not overflow, nor the sum of all.
    const int64_t rest = (file_.alignment - size % file_.alignment) % file_.alignment;
    if (__builtin_add_overflow(total_, size, &total_) || __builtin_add_overflow(total_, rest, &total_)) {
      csv_.refuse("the sizes up to here are together more than a 64-bit number holds");
    }
    file_.ids.emplace_back(id);
    file_.buffers.push_back({lower, upper, {size}});
  }

  void read_alignment() {
    const int64_t alignment = number(kAlignment);
    if (alignment < 1 || alignment > kLargestAlignment) {
      csv_.refuse(fmt::format("alignment {} is not in 1 to {}", alignment, kLargestAlignment));
    }
    if (!file_.buffers.empty() && alignment != file_.alignment) {
      csv_.refuse(fmt::format("alignment {} differs from {} above; buffers of different alignments are unsupported",
                              alignment, file_.alignment),
                  ErrorCode::unsupported);
    }
    file_.alignment = alignment;
  }

  static constexpr size_t kMostFields = 16;
  CsvReader csv_;
  int64_t total_ = 0;
  std::unordered_map<std::string_view, int64_t> lines_;  // of the ids
  PlacementFile file_;
};

}  // namespace

PlacementFile placement_file_from_csv(std::string_view text, const std::string& file_name) {
  return Reader(text, file_name).read();
}

std::string to_csv(const PlacementFile& file, const Placement& placement) {
  std::string text = "id,lower,upper,size,offset\n";
  for (size_t i = 0; i < file.buffers.size(); ++i) {
    const Buffer& b = file.buffers[i];
    text += fmt::format("{},{},{},{},{}\n", file.ids[i], b.lower, b.upper, b.bytes.count, placement.offsets[i].count);
  }
  return text;
}

}  // namespace plimsoll
