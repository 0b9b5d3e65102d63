#include "device/cuda/bodies/bodies.h"
#include "device/cuda/module/launch.h"

#include <utility>

namespace plimsoll::cuda {
namespace {

constexpr int64_t kMostBlocks = 1 << 20;  // of a grid; further elements are taken in turn

// Each kernel is compiled for launches so small that the compiler sees all index arithmetic in 32 bits, with what a thread's
// few elements add (`Index` is uint32_t), and for all others; by fours for the former only.
constexpr int64_t kSmall = int64_t{1} << 28;
__device__ __forceinline__ int64_t seen(uint32_t i) { return i & (kSmall - 1); }
__device__ __forceinline__ int64_t seen(int64_t i) { return i; }

template <class Body, class Index>
__global__ void __launch_bounds__(kBlock) each_element(const __grid_constant__ Body body, Index count) {
  const Index step = static_cast<Index>(gridDim.x) * kBlock;
#pragma unroll 1
  for (Index i = static_cast<Index>(blockIdx.x) * kBlock + threadIdx.x; i < count; i += step) body.run(seen(i));
}

// The last thread has what is left of a four.
template <class Body>
__global__ void __launch_bounds__(kBlock) each_four(const __grid_constant__ Body body, uint32_t fours, int rest) {
  const uint32_t step = gridDim.x * kBlock;
#pragma unroll 1
  for (uint32_t i = blockIdx.x * kBlock + threadIdx.x; i <= fours; i += step) {
    if (i < fours) {
      body.four(4 * seen(i));
    } else {
#pragma unroll 1
      for (int k = 0; k < rest; ++k) body.run(4 * seen(i) + (k & 3));
    }
  }
}

template <class Body, class Index>
__global__ void __launch_bounds__(kBlock) each_block(const __grid_constant__ Body body, Index count) {
  using Value = typename Body::Value;
  __shared__ alignas(16) unsigned char storage[sizeof(Value) * kBlock];
  Value* const values = reinterpret_cast<Value*>(storage);
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (Index i = blockIdx.x; i < count; i += gridDim.x) {
    const int64_t block = seen(i);
    values[thread] = body.partial(block, thread);
    for (int distance = kBlock / 2; distance > 0; distance /= 2) {
      __syncthreads();
      if (thread < distance) values[thread].add(values[thread + distance]);
    }
    if (thread == 0) body.finish(block, values[0]);
    __syncthreads();
  }
}

// What threads copy to shared memory beside their work (bodies/tile.h) is there, for all of them.
__device__ __forceinline__ void end_phase() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  __syncthreads();
}
template <class Body, int... kPhase>
__device__ __forceinline__ void do_round(const Body& body, int64_t block, int round, int thread,
                                         typename Body::State& state, typename Body::Shared& shared,
                                         std::integer_sequence<int, kPhase...>) {
  ((body.template phase<kPhase>(block, round, thread, state, shared), end_phase()), ...);
}
template <class Body, int... kFinish>
__device__ __forceinline__ void do_finish(const Body& body, int64_t block, int thread, typename Body::State& state,
                                          typename Body::Shared& shared, std::integer_sequence<int, kFinish...>) {
  ((body.template finish<kFinish>(block, thread, state, shared), end_phase()), ...);
}
// As many blocks as a body wants on a multiprocessor, or as it has threads for.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kThreadsTogether = 1024;
#elif defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr int kThreadsTogether = 1536;
#else
constexpr int kThreadsTogether = 2048;
#endif
template <class Body>
constexpr int kBlocksTogether =
    Body::kBlocksTogether < kThreadsTogether / Body::kThreads ? Body::kBlocksTogether
                                                              : kThreadsTogether / Body::kThreads;
template <class Body>
__global__ void __launch_bounds__(Body::kThreads, kBlocksTogether<Body>) each_tile(const __grid_constant__ Body body) {
  extern __shared__ __align__(16) unsigned char tile_storage[];
  typename Body::Shared& shared = *reinterpret_cast<typename Body::Shared*>(tile_storage);
  typename Body::State state;
  const int64_t block = seen(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  body.begin(block, thread, state, shared);
  end_phase();
  const int rounds = body.rounds(block);
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    if (body.skips(block, round)) continue;  // all threads of a block say the same
    do_round(body, block, round, thread, state, shared, std::make_integer_sequence<int, Body::kPhases>());
  }
  do_finish(body, block, thread, state, shared, std::make_integer_sequence<int, Body::kFinishes>());
}

template <class Body>
struct Launcher {
  static void launch(const void* parameters, int64_t count, cudaStream_t stream) {
    static_assert(std::is_trivially_copyable_v<Body> && sizeof(Body) <= 4000);
    const Body& body = *static_cast<const Body*>(parameters);
    if constexpr (std::is_same_v<typename Body::Kind, EachTile>) {
      launch_tiles(body, count, stream);
      return;
    }
    if constexpr (std::is_same_v<typename Body::Kind, EachFour>) {
      if (count / 4 < kSmall && body.by_four()) {
        each_four<<<blocks(count / 4 + 1), kBlock, 0, stream>>>(body, static_cast<uint32_t>(count / 4),
                                                                static_cast<int>(count % 4));
        return;
      }
    }
    if (count < kSmall) {
      ask(body, static_cast<uint32_t>(count), stream);
    } else {
      ask(body, count, stream);
    }
  }

 private:
  static unsigned blocks(int64_t threads) {
    return static_cast<unsigned>(smaller((threads + kBlock - 1) / kBlock, kMostBlocks));
  }
  // More shared memory than 48 KiB must be asked for, on each device; an error is that of the launch. How much of an SM's
  // memory the first cache leaves to kernels with less of it is the driver's choice.
  static void launch_tiles(const Body& body, int64_t count, cudaStream_t stream) {
    if constexpr (std::is_same_v<typename Body::Kind, EachTile>) {
      constexpr int kBytes = static_cast<int>(sizeof(typename Body::Shared));
      const auto kernel = each_tile<Body>;
      if constexpr (kBytes > 48 * 1024) {
        if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes) != cudaSuccess) return;
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
      }
      kernel<<<static_cast<unsigned>(count), Body::kThreads, kBytes, stream>>>(body);
    }
  }
  template <class Index>
  static void ask(const Body& body, Index count, cudaStream_t stream) {
    if constexpr (std::is_same_v<typename Body::Kind, EachTile>) {
    } else if constexpr (std::is_same_v<typename Body::Kind, EachBlock>) {
      each_block<<<static_cast<unsigned>(smaller(count, kMostBlocks)), kBlock, 0, stream>>>(body, count);
    } else {
      each_element<<<blocks(count), kBlock, 0, stream>>>(body, count);
    }
  }
};

constexpr auto kLaunchers = Bodies::table<Launcher>();

}  // namespace

int body_count() { return Bodies::size; }

cudaError_t launch_body(int number, const void* parameters, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  cudaGetLastError();  // of a library's call that was refused, say: nothing of this launch
  kLaunchers[static_cast<size_t>(number)](parameters, count, stream);
  return cudaGetLastError();
}

}  // namespace plimsoll::cuda
