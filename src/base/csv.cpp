#include "base/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace plimsoll {
namespace {

std::string_view trim_blanks(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

}  // namespace

std::string shown(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 40)) result += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > 40 ? result + "..." : result;
}

CsvReader::CsvReader(std::string_view text, const std::string& file_name, size_t most_fields, ErrorCode code)
    : text_(text), file_name_(file_name), most_fields_(most_fields), code_(code) {
  if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);
}

void CsvReader::refuse(const std::string& what, ErrorCode code) const {
  throw Error(code, fmt::format("{}, line {}: {}", file_name_, line_, what));
}

void CsvReader::refuse_place(size_t place, const std::string& what) const {
  throw Error(code_, fmt::format("{}, line {}, column {}: {}", file_name_, line_, place + 1, what));
}

bool CsvReader::next_line() {
  if (at_ >= text_.size()) {
    if (line_ == 0) line_ = 1;
    return false;
  }
  const size_t end = std::min(text_.find('\n', at_), text_.size());
  line_text_ = text_.substr(at_, end - at_);
  at_ = end + 1;
  ++line_;
  fields_.clear();
  for (size_t begin = 0; fields_.size() <= most_fields_;) {
    const size_t comma = std::min(line_text_.find(',', begin), line_text_.size());
    fields_.push_back(trim_blanks(line_text_.substr(begin, comma - begin)));
    if (comma == line_text_.size()) break;
    begin = comma + 1;
  }
  return true;
}

void CsvReader::set_columns(std::span<const std::string_view> names) {
  has_header_ = false;
  known_.assign(names.begin(), names.end());
  columns_ = names.size();
  place_.resize(columns_);
  for (size_t column = 0; column < columns_; ++column) place_[column] = column;
}

bool CsvReader::note_column(size_t place) {
  const auto name = std::find(known_.begin(), known_.end(), fields_[place]);
  if (name == known_.end()) return false;
  std::optional<size_t>& known = place_[name - known_.begin()];
  if (known) refuse_place(place, fmt::format("two columns '{}'", *name));
  known = place;
  return true;
}

bool CsvReader::next_row() {
  do {
    if (!next_line()) return false;
  } while (trim_blanks(line_text_).empty());
  if (fields_.size() != columns_) {
    refuse(fmt::format("{} columns where {} {}",
                       fields_.size() > most_fields_ ? "too many" : std::to_string(fields_.size()),
                       has_header_ ? "the header has" : "there must be", columns_));
  }
  return true;
}

int64_t CsvReader::number(size_t column) const {
  const std::string_view text = field(column);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::invalid_argument || end != text.data() + text.size()) {
    refuse_field(column, fmt::format("{} '{}' is not a whole number", known_[column], shown(text)));
  }
  if (error != std::errc{})
    refuse_field(column, fmt::format("{} '{}' is more than a 64-bit number holds", known_[column], shown(text)));
  return value;
}

}  // namespace plimsoll
