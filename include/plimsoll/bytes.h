// An amount of memory has a type of its own, so that bytes cannot be mixed up with counts. It is read and printed as
// text.
//
//   Bytes budget = 512_MiB;    parse_bytes("1.5GiB")    to_string(budget) == "512 MiB"
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace plimsoll {

// A number of bytes. It is never negative in a valid value; it is signed so that differences can be taken.
struct Bytes {
  int64_t count = 0;

  friend constexpr auto operator<=>(Bytes, Bytes) = default;
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return {a.count + b.count}; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return {a.count - b.count}; }
  friend constexpr Bytes operator*(Bytes a, int64_t n) { return {a.count * n}; }
  constexpr Bytes& operator+=(Bytes b) {
    count += b.count;
    return *this;
  }
  constexpr Bytes& operator-=(Bytes b) {
    count -= b.count;
    return *this;
  }
};

// The smallest multiple of `alignment` that is not less than `bytes`.
constexpr Bytes align_up(Bytes bytes, int64_t alignment) {
  return {(bytes.count + alignment - 1) / alignment * alignment};
}

inline namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return {static_cast<int64_t>(n)}; }
constexpr Bytes operator""_KiB(unsigned long long n) { return {static_cast<int64_t>(n << 10)}; }
constexpr Bytes operator""_MiB(unsigned long long n) { return {static_cast<int64_t>(n << 20)}; }
constexpr Bytes operator""_GiB(unsigned long long n) { return {static_cast<int64_t>(n << 30)}; }
}  // namespace literals

// "1.5GiB", "512 MB", "64k", "1000", "1e9". KiB, MiB, GiB, TiB and a bare K, M, G, T are powers of two. KB, MB, GB, TB
// are powers of ten. No unit means bytes. Case does not matter. Throws Error(invalid_input) that names the text and
// says why it is no amount: not a number, an unknown unit, negative, too large.
Bytes parse_bytes(std::string_view text);
// The same without rounding: throws as well where it is no whole number of bytes, as "1.5" and "0.7KiB" are not.
Bytes parse_whole_bytes(std::string_view text);

// "886.2 MiB", "1.50 GiB", "512 B": three to four significant digits in the largest fitting power of two.
std::string to_string(Bytes bytes);

}  // namespace plimsoll
