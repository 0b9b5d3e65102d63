#include "plimsoll/bytes.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cmath>

#include "base/texts.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

[[noreturn]] void bad_size(std::string_view text, std::string_view why) {
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is not a size: {}; expected a number and a unit, as in 512MiB, 1.5GiB or 2GB",
                          cut_text(text), why));
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

// The bytes in one unit; 0 for an unknown one.
int64_t unit_bytes(std::string_view unit) {
  std::string lower;
  for (char c : unit) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower.empty() || lower == "b") return 1;
  const size_t power = std::string_view("kmgt").find(lower[0]);
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = std::string_view(lower).substr(1);
  int64_t base = 0;
  if (rest.empty() || rest == "i" || rest == "ib") base = 1024;
  if (rest == "b") base = 1000;
  int64_t bytes = base;
  for (size_t i = 0; i < power; ++i) bytes *= base;
  return bytes;
}

Bytes parse(std::string_view text, bool rounds) {
  const std::string_view trimmed = trim(text);
  if (trimmed.empty()) bad_size(text, "it is empty");
  if (trimmed.front() == '-') bad_size(text, "it is negative");
  const char* const end = trimmed.data() + trimmed.size();
  if (!std::isdigit(static_cast<unsigned char>(trimmed.front())) && trimmed.front() != '.')
    bad_size(text, "it does not begin with a number");

  double number = 0;
  const auto [number_end, status] = std::from_chars(trimmed.data(), end, number);
  if (status == std::errc::result_out_of_range) bad_size(text, "the number is out of range");
  if (status != std::errc()) bad_size(text, "it does not begin with a number");
  const std::string_view unit = trim({number_end, static_cast<size_t>(end - number_end)});
  const int64_t scale = unit_bytes(unit);
  if (scale == 0) bad_size(text, fmt::format("unknown unit '{}'", cut_text(unit, 20)));

  // Whole numbers are exact, however large.
  int64_t whole = 0;
  const auto [whole_end, whole_status] = std::from_chars(trimmed.data(), number_end, whole);
  if (whole_end == number_end) {
    int64_t bytes = 0;
    if (whole_status != std::errc() || __builtin_mul_overflow(whole, scale, &bytes))
      bad_size(text, "it is more than 8 EiB");
    return {bytes};
  }
  const double bytes = number * static_cast<double>(scale);
  if (!(bytes < 0x1p63)) bad_size(text, "it is more than 8 EiB");
  if (!rounds && (bytes != std::floor(bytes) || bytes > 0x1p53)) bad_size(text, "it is no whole number of bytes");
  return {static_cast<int64_t>(std::floor(bytes + 0.5))};
}

}  // namespace

Bytes parse_bytes(std::string_view text) { return parse(text, true); }
Bytes parse_whole_bytes(std::string_view text) { return parse(text, false); }

std::string to_string(Bytes bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes.count < 0) return bytes.count == INT64_MIN ? "-8.00 EiB" : "-" + to_string(Bytes{-bytes.count});
  if (bytes.count < 1024) return fmt::format("{} B", bytes.count);
  double value = static_cast<double>(bytes.count);
  size_t unit = 0;
  // 1023.95 would print as 1024.0: it belongs to the next unit.
  while (value >= 1023.95 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : 1, kUnits[unit]);
}

}  // namespace plimsoll
