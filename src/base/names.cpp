#include "base/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace plimsoll {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = std::tolower(static_cast<unsigned char>(a[i - 1])) == std::tolower(static_cast<unsigned char>(b[j - 1]));
      const size_t substitute = diagonal + (same ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
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
