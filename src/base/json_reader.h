// Strict reading of JSON: every error says the place and what was expected, as "steps[3].op: a text was expected, not
// 5".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace plimsoll {

// Throws Error(corrupt_file) with line and column; also when the nesting is deeper than anything of ours, or an object has two
// members of one name.
nlohmann::json parse_json(std::string_view text);

// A value in a document, with what is asked of it. The document must outlive it.
class JsonReader {
 public:
  explicit JsonReader(const nlohmann::json& document) : root_(&document), value_(&document) {}

  // Members of an object. `only` refuses every other name.
  JsonReader member(std::string_view name) const;
  bool has(std::string_view name) const;
  void only(std::initializer_list<std::string_view> names) const;

  // Items of a list.
  size_t size() const;
  JsonReader item(size_t index) const;

  const std::string& text() const;
  bool boolean() const;
  double number() const;
  int64_t integer(int64_t least = INT64_MIN, int64_t most = INT64_MAX) const;

  const nlohmann::json& raw() const { return *value_; }
  [[noreturn]] void fail(std::string_view what) const;      // "<place>: <what>"
  [[noreturn]] void expected(std::string_view what) const;  // "<place>: <what> was expected, not <value>"

 private:
  JsonReader(const nlohmann::json* root, const nlohmann::json* value) : root_(root), value_(value) {}
  const nlohmann::json* root_;
  const nlohmann::json* value_;
};

}  // namespace plimsoll
