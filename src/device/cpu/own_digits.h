// Sorting of whole numbers by their digits.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace plimsoll::cpu {

// `other` is scratch of the same size. The lower half of the numbers, the places, is in order already.
template <class Number>
void sort_by_digits(Number* numbers, Number* other, int64_t count) {
  constexpr int kDigits = sizeof(Number) / 2;
  const auto digit = [](Number number, int d) { return static_cast<uint8_t>(number >> (8 * (kDigits + d))); };
  uint32_t begins[kDigits][256] = {};
  for (int64_t i = 0; i < count; ++i) {
    for (int d = 0; d < kDigits; ++d) ++begins[d][digit(numbers[i], d)];
  }
  Number *from = numbers, *to = other;
  for (int d = 0; d < kDigits; ++d) {
    uint32_t(&begin)[256] = begins[d];
    if (begin[digit(from[0], d)] == static_cast<uint32_t>(count)) continue;  // they have it in common
    uint32_t at = 0;
    for (uint32_t& one : begin) at += std::exchange(one, at);
    for (int64_t i = 0; i < count; ++i) to[begin[digit(from[i], d)]++] = from[i];
    std::swap(from, to);
  }
  if (from != numbers) std::memcpy(numbers, from, static_cast<size_t>(count) * sizeof(Number));
}

}  // namespace plimsoll::cpu
