#include "device/tier/checksum.h"

#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 sees it in its own headers
#define XXH_INLINE_ALL  // with the instructions of this machine, which the library's package does not use
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr size_t kBlock = 64 << 10;      // stays in the second-level cache between being summed and being copied
constexpr size_t kStreamFrom = 1 << 18;  // shorter copies are soon read again

void copy_block(std::byte* to, const std::byte* from, size_t count, bool past_caches) {
#if defined(__SSE2__)
  if (past_caches && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
    const size_t vectors = count / 16;
    for (size_t i = 0; i < vectors; ++i) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i));
    }
    to += vectors * 16, from += vectors * 16, count -= vectors * 16;
  }
#endif
  std::memcpy(to, from, count);
}

}  // namespace

uint64_t checksum(const std::byte* bytes, size_t count) { return XXH3_64bits(bytes, count); }

uint64_t copy_with_checksum(std::byte* to, const std::byte* from, size_t count) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t size = std::min(kBlock, count - at);
    XXH3_64bits_update(&state, from + at, size);
    copy_block(to + at, from + at, size, count >= kStreamFrom);
  }
#if defined(__SSE2__)
  _mm_sfence();
#endif
  return XXH3_64bits_digest(&state);
}

void throw_wrong_checksum(const std::string& where, int64_t at, uint64_t expected, uint64_t found) {
  throw Error(ErrorCode::device_failure,
              fmt::format("{}: what lies at byte {} is not what was written: checksum {:016x}, expected {:016x}", where,
                          at, found, expected));
}

}  // namespace plimsoll
