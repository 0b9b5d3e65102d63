// The parts of graphs in JSON that more than one format has.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "plimsoll/graph.h"

namespace plimsoll {

// The value of the list whose name stands there.
template <class Value, size_t N>
Value read_named(const JsonReader& r, const Value (&values)[N]) {
  std::vector<std::string_view> names;
  for (Value value : values) {
    if (to_string(value) == r.text()) return value;
    names.push_back(to_string(value));
  }
  r.expected(fmt::format("one of {}", fmt::join(names, ", ")));
}

DType read_dtype(const JsonReader& r);
Role read_role(const JsonReader& r);
Initializer read_initializer(const JsonReader& r);

// `read_size`: how the items of a list are read; absent: as integers.
Attributes read_attributes(const JsonReader& r, const std::function<int64_t(const JsonReader&)>& read_size = {});

}  // namespace plimsoll
