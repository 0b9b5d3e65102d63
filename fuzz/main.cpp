// The libFuzzer program of one target, which PLIMSOLL_FUZZ_TARGET names.
#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  plimsoll::fuzz::PLIMSOLL_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
