// What the values of flags must be, for CLI11's check(): a refusal names the flag, the value and what was expected.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

namespace plimsoll::cli {

// A whole number in [least, most].
CLI::Validator whole_number(int64_t least, int64_t most);
CLI::Validator seed_number();  // any number of 64 bits, not negative

// A finite number in [least, most]; `positive`: 0 is refused.
inline constexpr double kLargestNumber = 1e9;  // of any setting: what is beyond is a slip
CLI::Validator number(double least = 0, double most = kLargestNumber);
CLI::Validator positive_number(double most = kLargestNumber);

// A whole number in [1, most], or "auto".
CLI::Validator count_or_auto(int64_t most);

// Texts and file names: an empty one is what a script's unset variable leaves, and never what was meant.
CLI::Validator not_empty();

}  // namespace plimsoll::cli
