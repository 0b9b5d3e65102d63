// The names of configurations: kernels by part of the batch.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "plimsoll/plan.h"

namespace plimsoll {
namespace {

[[noreturn]] void refuse(std::string_view name, std::string_view why) {
  constexpr size_t kShown = 200;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' names no kernel and no configuration of kernels: {}", name.substr(0, kShown), why));
}

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// `at` is where "@batch" or "@batch*count" begins; npos where the text ends in neither.
size_t find_batch(std::string_view part) {
  const size_t at = part.rfind('@');
  if (at == std::string_view::npos) return at;
  const std::string_view tail = part.substr(at + 1);
  const size_t star = tail.find('*');
  const bool is_batch =
      is_number(tail.substr(0, star)) && (star == std::string_view::npos || is_number(tail.substr(star + 1)));
  return is_batch ? at : std::string_view::npos;
}

int64_t number(std::string_view text, std::string_view name) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) refuse(name, fmt::format("'{}' is too large", text));
  if (value < 1) refuse(name, "a part has at least one row");
  return value;
}

}  // namespace

std::vector<MicroBatch> parts_of(std::string_view name) {
  if (name.find('+') == std::string_view::npos && find_batch(name) == std::string_view::npos) return {};
  std::vector<MicroBatch> parts;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('+', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const size_t at = find_batch(part);
    if (at == std::string_view::npos) refuse(name, fmt::format("'{}' has no batch; '{}@16' has", part, part));
    if (at == 0) refuse(name, "a part has no kernel");
    const std::string_view tail = part.substr(at + 1);
    const size_t star = tail.find('*');
    const int64_t batch = number(tail.substr(0, star), name);
    const int64_t count = star == std::string_view::npos ? 1 : number(tail.substr(star + 1), name);
    if (count > kMostMicroBatches - static_cast<int64_t>(parts.size())) {
      refuse(name, fmt::format("it has more than {} parts", kMostMicroBatches));
    }
    const std::string_view kernel = part.substr(0, at);
    if (find_batch(kernel) != std::string_view::npos) refuse(name, fmt::format("'{}' has two batches", part));
    parts.insert(parts.end(), count, {std::string(kernel), batch});
    begin = end + 1;
  }
  if (parts.size() < 2) refuse(name, "a configuration has at least two parts");
  return parts;
}

std::string configuration_name(std::span<const MicroBatch> parts) {
  if (parts.size() == 1) return parts[0].kernel;
  std::string name;
  for (size_t i = 0; i < parts.size();) {
    size_t end = i;
    while (end < parts.size() && parts[end] == parts[i]) ++end;
    if (!name.empty()) name += '+';
    name += fmt::format("{}@{}", parts[i].kernel, parts[i].batch);
    if (end - i > 1) name += fmt::format("*{}", end - i);
    i = end;
  }
  return name;
}

}  // namespace plimsoll
