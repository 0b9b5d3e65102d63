// Copies with checksums, a block at a time so that a byte comes from memory once for both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace plimsoll {

// XXH3 of the bytes.
uint64_t checksum(const std::byte* bytes, size_t count);
// Copies and returns the checksum. Long copies go past the caches.
uint64_t copy_with_checksum(std::byte* to, const std::byte* from, size_t count);

[[noreturn]] void throw_wrong_checksum(const std::string& where, int64_t at, uint64_t expected, uint64_t found);

}  // namespace plimsoll
