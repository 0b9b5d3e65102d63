#include "base/texts.h"

#include <fmt/format.h>

#include <cmath>

namespace plimsoll {

std::string number_text(double value, int digits) {
  const bool large = std::abs(value) >= std::pow(10.0, digits) - 0.5;
  return large ? fmt::format("{:.0f}", value) : fmt::format("{:.{}g}", value, digits);
}

std::string time_text(double ms, int digits) {
  if (ms >= 999.5) return number_text(ms / 1000, digits) + " s";
  if (ms < 0.0995 && ms > 0) return number_text(1000 * ms, digits) + " µs";
  return number_text(ms, digits) + " ms";
}

std::string rate_text(double samples_per_second, int64_t tokens) {
  return tokens > 0 ? number_text(samples_per_second * static_cast<double>(tokens)) + " tokens/s"
                    : number_text(samples_per_second) + " images/s";
}

std::string cut_text(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t end = most - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // within a letter of several bytes
  return std::string(text.substr(0, end)) + "...";
}

}  // namespace plimsoll
