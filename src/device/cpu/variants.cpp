// Which copy of our own kernels runs here (cmake/kernels.cmake).
#ifdef PLIMSOLL_INSTRUCTION_SETS
#include <cstdlib>
#include <string_view>

#include "device/cpu/kernels.h"

namespace plimsoll::cpu {

std::vector<NamedFactory> own_kernels_v3();
std::vector<NamedFactory> own_kernels_v4();

namespace {

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

// oneDNN's variable holds for our kernels as well: it names the most that may be used.
bool may_use_avx512() {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    const char* value = std::getenv(name);
    if (value != nullptr)
      return std::string_view(value).starts_with("AVX512") || std::string_view(value) == "ALL" ||
             std::string_view(value) == "DEFAULT";
  }
  return true;
}

}  // namespace

std::vector<NamedFactory> own_kernels() {
  if (has_avx512() && may_use_avx512()) return own_kernels_v4();
  if (has_avx2()) return own_kernels_v3();
  throw Error(ErrorCode::unsupported,
              "device cpu: this processor has no AVX2, for which the program was built; build it on this machine with "
              "-DPLIMSOLL_NATIVE=ON");
}

}  // namespace plimsoll::cpu
#endif
