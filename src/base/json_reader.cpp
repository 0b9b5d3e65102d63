#include "base/json_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <vector>

#include "plimsoll/error.h"

namespace plimsoll {
namespace {

using nlohmann::json;
constexpr int kDeepest = 64;

// The place of a value in its document, found by its address: looked for only when there is an error to tell.
bool find_place(const json& at, const json* wanted, std::string& place) {
  if (&at == wanted) return true;
  const size_t length = place.size();
  if (at.is_object()) {
    for (auto it = at.begin(); it != at.end(); ++it) {
      place += (place.empty() ? "" : ".") + it.key();
      if (find_place(it.value(), wanted, place)) return true;
      place.resize(length);
    }
  } else if (at.is_array()) {
    for (size_t i = 0; i < at.size(); ++i) {
      place += fmt::format("[{}]", i);
      if (find_place(at[i], wanted, place)) return true;
      place.resize(length);
    }
  }
  return false;
}

// What stands behind a character of code 0 would be lost: messages end there.
[[noreturn]] void refuse(std::string message) {
  std::ranges::replace(message, '\0', '?');
  throw Error(ErrorCode::corrupt_file, message);
}

std::string shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

json parse_json(std::string_view text) {
  try {
    std::vector<std::set<std::string, std::less<>>> names;  // of the objects that are open
    return json::parse(text.begin(), text.end(), [&](int depth, json::parse_event_t event, json& value) {
      if (depth > kDeepest)
        throw Error(ErrorCode::corrupt_file, fmt::format("lists and objects are nested deeper than {}", kDeepest));
      if (event == json::parse_event_t::object_start) names.emplace_back();
      if (event == json::parse_event_t::object_end) names.pop_back();
      if (event == json::parse_event_t::key && !names.back().insert(value.get_ref<const std::string&>()).second)
        throw Error(ErrorCode::corrupt_file, fmt::format("an object has two members {}", shown(value)));
      return true;
    });
  } catch (const json::parse_error& error) {
    const size_t at = std::min(error.byte == 0 ? 0 : error.byte - 1, text.size());
    const std::string_view before = text.substr(0, at);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    const std::string_view found = text.substr(at, 20);
    refuse(found.empty() ? fmt::format("line {}, column {}: the text ends inside a value", line, at - line_start + 1)
                         : fmt::format("line {}, column {}: this is no JSON, near '{}'", line, at - line_start + 1,
                                       found.substr(0, found.find('\n'))));
  } catch (const json::exception& error) {
    std::string_view why = error.what();  // "[json.exception.out_of_range.406] number overflow parsing '1e999'"
    if (const size_t begin = why.find("] "); begin != std::string_view::npos) why.remove_prefix(begin + 2);
    throw Error(ErrorCode::corrupt_file, fmt::format("this is no JSON that can be used: {}", why.substr(0, 120)));
  }
}

void JsonReader::fail(std::string_view what) const {
  std::string place;
  find_place(*root_, value_, place);
  refuse(place.empty() ? std::string(what) : fmt::format("{}: {}", place, what));
}

void JsonReader::expected(std::string_view what) const {
  fail(fmt::format("{} was expected, not {}", what, shown(*value_)));
}

JsonReader JsonReader::member(std::string_view name) const {
  if (!value_->is_object()) expected("an object");
  const auto it = value_->find(name);
  if (it == value_->end()) fail(fmt::format("\"{}\" is missing", name));
  return {root_, &*it};
}

bool JsonReader::has(std::string_view name) const {
  if (!value_->is_object()) expected("an object");
  return value_->find(name) != value_->end();
}

void JsonReader::only(std::initializer_list<std::string_view> names) const {
  if (!value_->is_object()) expected("an object");
  for (auto it = value_->begin(); it != value_->end(); ++it) {
    if (std::find(names.begin(), names.end(), it.key()) != names.end()) continue;
    fail(fmt::format("\"{}\" is not known here; known: {}", it.key(), fmt::join(names, ", ")));
  }
}

size_t JsonReader::size() const {
  if (!value_->is_array()) expected("a list");
  return value_->size();
}

JsonReader JsonReader::item(size_t index) const {
  if (!value_->is_array()) expected("a list");
  if (index >= value_->size()) fail(fmt::format("item {} is missing", index));
  return {root_, &(*value_)[index]};
}

const std::string& JsonReader::text() const {
  if (!value_->is_string()) expected("a text");
  const std::string& text = value_->get_ref<const std::string&>();
  if (text.find('\0') != std::string::npos) expected("a text without the character of code 0");
  return text;
}

bool JsonReader::boolean() const {
  if (!value_->is_boolean()) expected("true or false");
  return value_->get<bool>();
}

double JsonReader::number() const {
  if (!value_->is_number()) expected("a number");
  const double value = value_->get<double>();
  if (!std::isfinite(value)) expected("a finite number");
  return value;
}

int64_t JsonReader::integer(int64_t least, int64_t most) const {
  const bool too_large = value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (value_->is_number_integer() && !too_large) {
    const int64_t value = value_->get<int64_t>();
    if (least <= value && value <= most) return value;
  }
  if (least == INT64_MIN && most == INT64_MAX) expected("an integer");
  if (most == INT64_MAX) expected(fmt::format("an integer of at least {}", least));
  expected(fmt::format("an integer from {} to {}", least, most));
}

}  // namespace plimsoll
