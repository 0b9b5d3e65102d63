// What this machine can do at most, with all its cores: multiply-adds in registers, reading memory, and oneDNN's fastest product of
// matrices, of which one lies packed.
//   machine_bench      JSON on standard output
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
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

// Rows, columns and depth: some whose factors fit a core's caches, some as a network's layers have them, and a large one.
constexpr std::array<std::array<int64_t, 3>, 5> kProducts = {
    {{384, 256, 256}, {1024, 1024, 512}, {3136, 256, 1024}, {2048, 768, 768}, {2048, 2048, 2048}}};

double product_gflops() {
  using dnnl::memory;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  double best = 0;
  for (const auto& [m, n, k] : kProducts) {
    const memory::desc a({m, k}, memory::data_type::f32, memory::format_tag::ab);
    const memory::desc b({k, n}, memory::data_type::f32, memory::format_tag::any);
    const memory::desc c({m, n}, memory::data_type::f32, memory::format_tag::ab);
    const dnnl::matmul::desc description(a, b, c);  // must outlive what is made of it
    const dnnl::matmul::primitive_desc made(description, engine);
    const dnnl::matmul product(made);
    memory left(a, engine), right(made.weights_desc(), engine), result(c, engine);
    for (memory* data : {&left, &right, &result}) std::memset(data->get_data_handle(), 0, data->get_desc().get_size());
    const double operations = 2.0 * static_cast<double>(m * n * k);
    const int times = std::max(1, static_cast<int>(2e9 / operations));  // a clock tells little of less
    for (int round = 0; round < kRounds; ++round) {
      const plimsoll::Stopwatch watch;
      for (int i = 0; i < times; ++i)
        product.execute(stream, {{DNNL_ARG_SRC, left}, {DNNL_ARG_WEIGHTS, right}, {DNNL_ARG_DST, result}});
      stream.wait();
      best = std::max(best, times * operations / (watch.ms() * 1e6));
    }
  }
  return best;
}

}  // namespace

int main() {
  std::printf("{\"gflops\": %.1f, \"read_gb_per_s\": %.2f, \"product_gflops\": %.1f}\n", gflops(), read_gb_per_s(),
              product_gflops());
}
