// Tables in foreign files: fields between commas, one row a line; the first line names the columns, or nobody does.
// There are no quotes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/error.h"

namespace plimsoll {

// One pass over a file's text, which must outlive the reader. Refusals are Errors that name file, line and column, with
// the code that is given.
class CsvReader {
 public:
  // A line with more fields than `most_fields` is refused.
  CsvReader(std::string_view text, const std::string& file_name, size_t most_fields,
            ErrorCode code = ErrorCode::invalid_input);

  // Reads the header, in which each of the columns `known` may be, in any order. other(place, name) is called for every
  // other name: it refuses the name, or returns, and that column is not read.
  template <class Other>
  void read_header(std::span<const std::string_view> known, const std::string& expected, const Other& other);
  // For a file without a header: these are its columns, in this order. Columns may share a name.
  void set_columns(std::span<const std::string_view> names);
  bool has(size_t column) const { return place_[column].has_value(); }

  bool next_row();  // that is not blank; refuses one that has not a field for each column
  std::string_view field(size_t column) const { return fields_[*place_[column]]; }
  int64_t number(size_t column) const;  // refuses what is no whole number of 64 bits
  int64_t line() const { return line_; }

  [[noreturn]] void refuse(const std::string& what) const { refuse(what, code_); }  // the line
  [[noreturn]] void refuse(const std::string& what, ErrorCode code) const;
  [[noreturn]] void refuse_place(size_t place, const std::string& what) const;  // a field of the line
  [[noreturn]] void refuse_field(size_t column, const std::string& what) const { refuse_place(*place_[column], what); }

 private:
  bool next_line();
  bool note_column(size_t place);  // false: no known name

  std::string_view text_;
  const std::string& file_name_;
  size_t most_fields_;
  ErrorCode code_;
  bool has_header_ = true;
  size_t at_ = 0;
  int64_t line_ = 0;
  std::string_view line_text_;
  std::vector<std::string_view> fields_;  // of the line, without blanks around them
  std::vector<std::string_view> known_;
  std::vector<std::optional<size_t>> place_;  // by known column
  size_t columns_ = 0;
};

// A piece of a foreign file as a message can show it.
std::string shown(std::string_view text);

template <class Other>
void CsvReader::read_header(std::span<const std::string_view> known, const std::string& expected, const Other& other) {
  known_.assign(known.begin(), known.end());
  place_.assign(known.size(), std::nullopt);
  if (!next_line()) refuse("expected a header with the columns " + expected + ", but the file is empty");
  columns_ = fields_.size();
  for (size_t place = 0; place < fields_.size(); ++place) {
    if (!note_column(place)) other(place, fields_[place]);
  }
}

}  // namespace plimsoll
