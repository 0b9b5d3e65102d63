#include "device/cuda/bodies/bodies.h"
#include "device/cuda/module/launch.h"

namespace plimsoll::cuda {
namespace {

constexpr int64_t kMostBlocks = 1 << 20;  // of a grid; further elements are taken in turn

template <class Body>
__global__ void __launch_bounds__(kBlock) each_element(const __grid_constant__ Body body, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kBlock;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x; i < count; i += step) body.run(i);
}

template <class Body>
__global__ void __launch_bounds__(kBlock) each_block(const __grid_constant__ Body body, int64_t count) {
  using Value = typename Body::Value;
  __shared__ alignas(16) unsigned char storage[sizeof(Value) * kBlock];
  Value* const values = reinterpret_cast<Value*>(storage);
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t block = blockIdx.x; block < count; block += gridDim.x) {
    values[thread] = body.partial(block, thread);
    for (int distance = kBlock / 2; distance > 0; distance /= 2) {
      __syncthreads();
      if (thread < distance) values[thread].add(values[thread + distance]);
    }
    if (thread == 0) body.finish(block, values[0]);
    __syncthreads();
  }
}

template <class Body>
struct Launcher {
  static void launch(const void* parameters, int64_t count, cudaStream_t stream) {
    static_assert(std::is_trivially_copyable_v<Body> && sizeof(Body) <= 4000);
    const Body& body = *static_cast<const Body*>(parameters);
    if constexpr (std::is_same_v<typename Body::Kind, EachElement>) {
      const int64_t blocks = smaller((count + kBlock - 1) / kBlock, kMostBlocks);
      each_element<<<static_cast<unsigned>(blocks), kBlock, 0, stream>>>(body, count);
    } else {
      each_block<<<static_cast<unsigned>(smaller(count, kMostBlocks)), kBlock, 0, stream>>>(body, count);
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
