// How many cases a random test tries: as many as CI has time for, or as an environment variable says.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace plimsoll::testing {

inline uint64_t number_of(const char* variable, uint64_t usual) {
  const char* text = std::getenv(variable);
  return text == nullptr ? usual : std::strtoull(text, nullptr, 10);
}

}  // namespace plimsoll::testing
