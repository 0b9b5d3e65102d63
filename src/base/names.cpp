#include "base/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace plimsoll {
namespace {

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

std::string unknown_name(std::string_view kind, std::string_view name, const std::vector<std::string>& known) {
  std::string text = fmt::format("unknown {} '{}'", kind, name);
  const std::string near = nearest_name(name, known);
  if (!near.empty()) text += fmt::format("; did you mean '{}'?", near);
  if (known.size() <= 24) text += fmt::format("{} known: {}", near.empty() ? ";" : "", fmt::join(known, ", "));
  return text;
}

}  // namespace plimsoll
