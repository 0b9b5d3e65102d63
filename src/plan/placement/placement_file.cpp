#include "plan/placement/placement_file.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <unordered_map>

#include "plimsoll/error.h"

namespace plimsoll {
namespace {

enum Column : size_t { kId, kLower, kUpper, kSize, kAlignment, kColumns };
constexpr std::array<std::string_view, kColumns> kNames = {"id", "lower", "upper", "size", "alignment"};
constexpr int64_t kLargestAlignment = int64_t{1} << 30;

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

class Reader {
 public:
  Reader(std::string_view text, const std::string& file_name) : text_(text), file_name_(file_name) {
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);
  }

  PlacementFile read() {
    if (!next_line()) refuse("expected a header with the columns id, lower, upper and size, but the file is empty");
    read_header();
    while (next_line()) {
      if (!trim(line_text_).empty()) read_row();
    }
    return std::move(file_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what, ErrorCode code = ErrorCode::invalid_input) const {
    throw Error(code, fmt::format("{}, line {}: {}", file_name_, line_, what));
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
      if (fields_[f] == "offset") continue;
      if (fields_[f] == "gaps")
        refuse("gaps in lifetimes (column 'gaps') are unsupported; make each piece a buffer of its own",
               ErrorCode::unsupported);
      size_t column = 0;
      while (column < kColumns && kNames[column] != fields_[f]) ++column;
      if (column == kColumns)
        refuse(fmt::format("unknown column '{}'; known: id, lower, upper, size, alignment, offset", shown(fields_[f])));
      if (place_[column] != kNowhere) refuse(fmt::format("two columns '{}'", kNames[column]));
      place_[column] = f;
    }
    for (size_t column : {kId, kLower, kUpper, kSize}) {
      if (place_[column] == kNowhere)
        refuse(fmt::format("no column '{}'; expected id, lower, upper and size", kNames[column]));
    }
    columns_ = fields_.size();
  }

  int64_t number(Column column) const {
    const std::string_view text = fields_[place_[column]];
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range)
      refuse(fmt::format("{} '{}' is more than a 64-bit number holds", kNames[column], shown(text)));
    if (error != std::errc{} || end != text.data() + text.size())
      refuse(fmt::format("{} '{}' is not a whole number", kNames[column], shown(text)));
    if (value < 0) refuse(fmt::format("{} {} is negative", kNames[column], value));
    return value;
  }

  void read_row() {
    if (fields_.size() != columns_) {
      refuse(fmt::format("{} columns where the header has {}",
                         fields_.size() > kMostFields ? "too many" : std::to_string(fields_.size()), columns_));
    }
    if (file_.buffers.size() == kMostFileBuffers) refuse(fmt::format("more than {} buffers", kMostFileBuffers));
    const std::string_view id = fields_[place_[kId]];
    if (id.empty()) refuse("the id is empty");
    const auto [known, is_new] = lines_.emplace(id, line_);
    if (!is_new) refuse(fmt::format("id '{}' was given in line {} already", shown(id), known->second));
    const int64_t lower = number(kLower), upper = number(kUpper), size = number(kSize);
    if (upper <= lower) refuse(fmt::format("upper {} is not more than lower {}", upper, lower));
    if (place_[kAlignment] != kNowhere) {
      const int64_t alignment = number(kAlignment);
      if (alignment < 1 || alignment > kLargestAlignment)
        refuse(fmt::format("alignment {} is not in 1 to {}", alignment, kLargestAlignment));
      if (!file_.buffers.empty() && alignment != file_.alignment)
        refuse(fmt::format("alignment {} differs from {} above; buffers of different alignments are unsupported",
                           alignment, file_.alignment),
               ErrorCode::unsupported);
      file_.alignment = alignment;
    }
    // Rounding up must not overflow, nor the sum of all.
    if (__builtin_add_overflow(total_, size, &total_) || __builtin_add_overflow(total_, file_.alignment, &total_))
      refuse("the sizes up to here are together more than a 64-bit number holds");
    file_.ids.emplace_back(id);
    file_.buffers.push_back({lower, upper, {size}});
  }

  static constexpr size_t kNowhere = SIZE_MAX, kMostFields = 16;
  std::string_view text_;
  const std::string& file_name_;
  size_t at_ = 0;
  int64_t line_ = 0, total_ = 0;
  std::string_view line_text_;
  std::vector<std::string_view> fields_;
  std::array<size_t, kColumns> place_{};
  size_t columns_ = 0;
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
