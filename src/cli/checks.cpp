#include "cli/checks.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>

namespace plimsoll::cli {
namespace {

constexpr int64_t kLimitNotWorthTelling = int64_t{1} << 20;

template <class Number>
std::optional<Number> parse(const std::string& text) {
  Number value{};
  const char* begin = text.data();
  const char* const end = begin + text.size();
  if (text.size() > 1 && text[0] == '+') ++begin;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

template <class Accepts>
CLI::Validator check(const std::string& range, const std::string& wanted, Accepts accepts) {
  return {[wanted, accepts](std::string& text) {
            return accepts(text) ? std::string() : fmt::format("{} was expected, not '{}'", wanted, text.substr(0, 60));
          },
          range, ""};
}

}  // namespace

CLI::Validator whole_number(int64_t least, int64_t most) {
  const bool open = most > kLimitNotWorthTelling;
  return check(open ? fmt::format("{} or more", least) : fmt::format("{}..{}", least, most),
               fmt::format("a whole number from {} to {}", least, most), [=](const std::string& text) {
                 const auto value = parse<int64_t>(text);
                 return value && *value >= least && *value <= most;
               });
}

CLI::Validator count_or_auto(int64_t most) {
  return check(fmt::format("1..{} or auto", most), fmt::format("a whole number from 1 to {}, or auto,", most),
               [=](const std::string& text) {
                 const auto value = parse<int64_t>(text);
                 return text == "auto" || (value && *value >= 1 && *value <= most);
               });
}

CLI::Validator seed_number() {
  return check("0 or more", fmt::format("a whole number from 0 to {}", UINT64_MAX),
               [](const std::string& text) { return parse<uint64_t>(text).has_value(); });
}

CLI::Validator number(double least, double most) {
  const bool open = most >= kLargestNumber;
  return check(open ? fmt::format("{} or more", least) : fmt::format("{}..{}", least, most),
               fmt::format("a number from {} to {}", least, most), [=](const std::string& text) {
                 const auto value = parse<double>(text);
                 return value && std::isfinite(*value) && *value >= least && *value <= most;
               });
}

CLI::Validator positive_number(double most) {
  return check("above 0", fmt::format("a number above 0 and up to {}", most), [=](const std::string& text) {
    const auto value = parse<double>(text);
    return value && std::isfinite(*value) && *value > 0 && *value <= most;
  });
}

CLI::Validator not_empty() {
  return {[](std::string& text) { return text.empty() ? "it is empty" : std::string(); }, "", ""};
}

}  // namespace plimsoll::cli
