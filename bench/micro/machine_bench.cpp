// What this machine can do at most, with all its cores: multiply-adds in registers, and reading memory.
//   machine_bench      JSON on standard output
#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/clock.h"

namespace {

#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));

constexpr int kRounds = 10;
constexpr int kChains = 12;  // enough to keep two units busy, few enough for the registers
constexpr int64_t kAdds = 4'000'000;
constexpr int64_t kFloats = int64_t{96} << 20;

Vector splat(float x) { return Vector{} + x; }

double gflops() {
  const int threads = omp_get_max_threads();
  double best = 0, kept = 0;
  for (int round = 0; round < kRounds; ++round) {
    const plimsoll::Stopwatch watch;
#pragma omp parallel reduction(+ : kept)
    {
      Vector sums[kChains];
      for (int c = 0; c < kChains; ++c) sums[c] = splat(static_cast<float>(c + round));
      Vector a = splat(0.999f), b = splat(1e-3f);
      __asm__ volatile("" : "+v"(a), "+v"(b));  // unknown to the compiler
      for (int64_t i = 0; i < kAdds; ++i) {
#pragma GCC unroll 12
        for (int c = 0; c < kChains; ++c) sums[c] = sums[c] * a + b;
      }
      for (int c = 0; c < kChains; ++c) kept += static_cast<double>(sums[c][0]);
    }
    const double operations = 2.0 * kLanes * kChains * static_cast<double>(kAdds) * threads;
    best = std::max(best, operations / (watch.ms() * 1e6));
  }
  return kept == 0.5 ? 0 : best;
}

double read_gb_per_s() {
  std::vector<float> data(kFloats, 1.0f);
  double best = 0, kept = 0;
  for (int round = 0; round < kRounds; ++round) {
    const plimsoll::Stopwatch watch;
#pragma omp parallel for schedule(static) reduction(+ : kept)
    for (int64_t block = 0; block < kFloats; block += 4096) {
      Vector sums[4] = {};
      for (int64_t i = block; i < block + 4096; i += 4 * kLanes) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
          Vector v;
          std::memcpy(&v, &data[i + c * kLanes], sizeof v);
          sums[c] += v;
        }
      }
      kept += static_cast<double>((sums[0] + sums[1] + sums[2] + sums[3])[0]);
    }
    best = std::max(best, kFloats * sizeof(float) / (watch.ms() * 1e6));
  }
  return kept == 0.5 ? 0 : best;
}

}  // namespace

int main() { std::printf("{\"gflops\": %.1f, \"read_gb_per_s\": %.2f}\n", gflops(), read_gb_per_s()); }
