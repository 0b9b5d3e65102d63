#include "base/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/texts.h"

namespace plimsoll {
namespace {

constexpr size_t kLongestName = 200;  // of what is compared

// Letters to insert, remove, replace, or swap with their neighbour.
size_t edit_distance(std::string_view a, std::string_view b) {
  auto same = [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  };
  std::vector<size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1)});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    last = row;
  }
  return last[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  if (name.size() > kLongestName) return {};
  std::string best;
  size_t best_distance = std::max<size_t>(1, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

namespace {

constexpr size_t kMostWithOneBeginning = 8;

// "vgg11, vgg13 or vgg16" for vgg; nothing where none or too many begin so.
std::string names_that_begin(std::string_view with, const std::vector<std::string>& known) {
  std::vector<std::string_view> found;
  for (const std::string& name : known) {
    if (with.size() >= 2 && name.starts_with(with)) found.push_back(name);
  }
  if (found.empty() || found.size() > kMostWithOneBeginning) return {};
  const std::string_view last = found.back();
  found.pop_back();
  return found.empty() ? std::string(last) : fmt::format("{} or {}", fmt::join(found, ", "), last);
}

}  // namespace

std::string unknown_name(std::string_view kind, std::string_view name, const std::vector<std::string>& known) {
  std::string text = fmt::format("unknown {} '{}'", kind, cut_text(name));
  std::string near = nearest_name(name, known);
  if (!near.empty()) {
    text += fmt::format("; did you mean '{}'?", near);
  } else if (near = names_that_begin(name, known); !near.empty()) {
    text += fmt::format("; did you mean {}?", near);
  }
  if (known.empty()) return fmt::format("unknown {} '{}'; there is none", kind, cut_text(name));
  if (known.size() <= 24) text += fmt::format("{} known: {}", near.empty() ? ";" : "", fmt::join(known, ", "));
  return text;
}

}  // namespace plimsoll
