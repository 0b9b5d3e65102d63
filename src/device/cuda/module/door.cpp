// The door as it is: CUDA's runtime, cuDNN, cuBLASLt and NCCL. The module exports three functions in C.
#include "device/cuda/door.h"

#include <fmt/format.h>

#include <cstring>

#include "device/cuda/module/check.h"
#include "device/cuda/module/launch.h"
#include "device/cuda/module/libraries.h"
#include "device/cuda/module/nccl.h"

namespace plimsoll::cuda {

// What failed is told here, and not by the next launch of a kernel as well.
void throw_failure(const char* call, const std::string& reason, const std::string& about) {
  static_cast<void>(cudaGetLastError());
  throw Error(ErrorCode::device_failure, fmt::format("{}: {}{}", call, reason, about));
}

namespace {

std::string version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

std::string id_of(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (const char byte : uuid.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

// Every thread has a current device of its own.
cudaError_t select(int device) {
  static thread_local int current = -1;
  if (current == device) return cudaSuccess;
  const cudaError_t status = cudaSetDevice(device);
  if (status == cudaSuccess) current = device;
  return status;
}

class CudaDoor final : public Door {
 public:
  explicit CudaDoor(int device) : device_(device) {
    use();
    for (cudaStream_t& stream : streams_) PLIMSOLL_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    require_one_cudnn();
    PLIMSOLL_CUDA(cudnnCreate(&cudnn_));
    PLIMSOLL_CUDA(cudnnSetStream(cudnn_, stream(Queue::compute)));
    convolutions_ = open_cudnn(cudnn_, stream(Queue::compute));
    PLIMSOLL_CUDA(cublasLtCreate(&cublas_));
    int processors = 0;
    PLIMSOLL_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    products_ = open_cublas(cublas_, stream(Queue::compute), processors);
  }
  ~CudaDoor() override {
    select(device_);
    if (cublas_ != nullptr) cublasLtDestroy(cublas_);
    if (cudnn_ != nullptr) cudnnDestroy(cudnn_);
    for (cudaStream_t stream : streams_) {
      if (stream != nullptr) cudaStreamDestroy(stream);
    }
  }
  CudaDoor(const CudaDoor&) = delete;
  CudaDoor& operator=(const CudaDoor&) = delete;

  Facts facts() override {
    use();
    cudaDeviceProp properties{};
    PLIMSOLL_CUDA(cudaGetDeviceProperties(&properties, device_));
    int driver = 0, runtime = 0;
    PLIMSOLL_CUDA(cudaDriverGetVersion(&driver));
    PLIMSOLL_CUDA(cudaRuntimeGetVersion(&runtime));
    size_t free = 0, total = 0;
    PLIMSOLL_CUDA(cudaMemGetInfo(&free, &total));
    const size_t cublas = cublasLtGetVersion();
    return {.name = properties.name,
            .id = id_of(properties.uuid),
            .major = properties.major,
            .minor = properties.minor,
            .processors = properties.multiProcessorCount,
            .driver = version(driver),
            .runtime = version(runtime),
            .cudnn = cudnn_version(cudnnGetVersion()),
            .cublas = fmt::format("{}.{}.{}", cublas / 10000, cublas % 10000 / 100, cublas % 100),
            .total = {static_cast<int64_t>(total)},
            .free = {static_cast<int64_t>(free)},
            .cache = {properties.l2CacheSize},
            .shared = {static_cast<int64_t>(properties.sharedMemPerBlockOptin)}};
  }

  void* allocate(size_t bytes) override {
    use();
    void* memory = nullptr;
    if (const cudaError_t status = cudaMalloc(&memory, bytes); status != cudaSuccess) {
      throw_failure("cudaMalloc", reason_of(status), fmt::format(", for {} bytes", bytes));
    }
    return memory;
  }
  void release(void* memory) noexcept override {
    select(device_);
    cudaFree(memory);
  }
  void* allocate_in_order(size_t bytes) override {
    use();
    if (pool_ == nullptr) {
      PLIMSOLL_CUDA(cudaDeviceGetDefaultMemPool(&pool_, device_));
      uint64_t all = UINT64_MAX;
      PLIMSOLL_CUDA(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &all));
    }
    void* memory = nullptr;
    PLIMSOLL_CUDA(cudaMallocAsync(&memory, bytes, stream(Queue::compute)));
    return memory;
  }
  void release_in_order(void* memory) override {
    use();
    PLIMSOLL_CUDA(cudaFreeAsync(memory, stream(Queue::compute)));
  }
  void trim() noexcept override {
    select(device_);
    if (pool_ == nullptr) return;
    cudaStreamSynchronize(stream(Queue::compute));
    cudaMemPoolTrimTo(pool_, 0);
  }
  void pin(void* memory, size_t bytes) override {
    use();
    if (const cudaError_t status = cudaHostRegister(memory, bytes, cudaHostRegisterDefault); status != cudaSuccess) {
      throw_failure("cudaHostRegister", reason_of(status), fmt::format(", for {} bytes", bytes));
    }
  }
  void unpin(void* memory) noexcept override {
    select(device_);
    cudaHostUnregister(memory);
  }

  void reach(Door& peer) override {
    use();
    const auto enable = [](int device) {
      const cudaError_t status = cudaDeviceEnablePeerAccess(device, 0);
      if (status != cudaSuccess) cudaGetLastError();  // it is enabled already; or copies go by way of the host
    };
    int can = 0;
    PLIMSOLL_CUDA(cudaDeviceCanAccessPeer(&can, device_, peer.device()));
    if (can != 0) enable(peer.device());
    has_peer_ = true;
  }
  int device() const override { return device_; }

  // What stands for the host may be a peer's memory: then addresses tell CUDA which it is.
  void copy(Queue queue, void* to, const void* from, size_t bytes, Direction direction) override {
    use();
    const cudaMemcpyKind kind = direction == Direction::on_device   ? cudaMemcpyDeviceToDevice
                                : has_peer_                         ? cudaMemcpyDefault
                                : direction == Direction::to_device ? cudaMemcpyHostToDevice
                                                                    : cudaMemcpyDeviceToHost;
    PLIMSOLL_CUDA(cudaMemcpyAsync(to, from, bytes, kind, stream(queue)));
  }
  void fill(Queue queue, void* at, int byte, size_t bytes) override {
    use();
    PLIMSOLL_CUDA(cudaMemsetAsync(at, byte, bytes, stream(queue)));
  }
  void launch(Queue queue, int body, const void* parameters, int64_t count) override {
    use();
    if (const cudaError_t status = launch_body(body, parameters, count, stream(queue)); status != cudaSuccess) {
      throw_failure("cudaLaunchKernel", reason_of(status), fmt::format(", for our kernel number {}", body));
    }
  }

  std::vector<ConvolutionAlgorithm> algorithms(const Convolution& convolution, bool tf32) override {
    use();
    return list_algorithms(*convolutions_, convolution, tf32);
  }
  std::unique_ptr<Prepared> prepare(const Convolution& convolution, const ConvolutionAlgorithm& algorithm) override {
    use();
    return prepare_convolution(*convolutions_, convolution, algorithm);
  }
  std::unique_ptr<Prepared> prepare(const Product& product, Bytes workspace) override {
    use();
    return prepare_product(cublas_, stream(Queue::compute), product, workspace);
  }
  std::vector<ProductAlgorithm> product_algorithms(const Product& product, Bytes workspace) override {
    use();
    return list_algorithms(*products_, product, workspace);
  }
  std::unique_ptr<Prepared> prepare(const Product& product, const ProductAlgorithm& algorithm) override {
    use();
    return prepare_algorithm(*products_, product, algorithm);
  }

  Event make_event(bool timed) override {
    use();
    auto made = std::make_unique<TimedEvent>(TimedEvent{.timed = timed});
    PLIMSOLL_CUDA(cudaEventCreateWithFlags(&made->event, timed ? cudaEventDefault : cudaEventDisableTiming));
    return made.release();
  }
  void drop_event(Event event) noexcept override {
    select(device_);
    const std::unique_ptr<TimedEvent> dropped(static_cast<TimedEvent*>(event));
    cudaEventDestroy(dropped->event);
  }
  void record(Queue queue, Event event) override {
    use();
    const bool inside = is_capturing_ && static_cast<TimedEvent*>(event)->timed;
    PLIMSOLL_CUDA(
        cudaEventRecordWithFlags(of(event), stream(queue), inside ? cudaEventRecordExternal : cudaEventRecordDefault));
  }
  void wait(Queue queue, Event event) override {
    use();
    PLIMSOLL_CUDA(cudaStreamWaitEvent(stream(queue), of(event), 0));
  }
  bool is_reached(Event event) override {
    use();
    const cudaError_t status = cudaEventQuery(of(event));
    if (status == cudaErrorNotReady) return false;
    check_call(status, "cudaEventQuery");
    return true;
  }
  void synchronize(Event event) override {
    use();
    PLIMSOLL_CUDA(cudaEventSynchronize(of(event)));
  }
  void synchronize(Queue queue) override {
    use();
    PLIMSOLL_CUDA(cudaStreamSynchronize(stream(queue)));
  }
  double elapsed_ms(Event from, Event to) override {
    use();
    float ms = 0;
    PLIMSOLL_CUDA(cudaEventElapsedTime(&ms, of(from), of(to)));
    return static_cast<double>(ms);
  }

  std::string nccl_version() override { return plimsoll::cuda::nccl_version(); }
  GroupId make_group_id() override { return plimsoll::cuda::make_group_id(); }
  std::unique_ptr<RankGroup> join(const GroupId& id, int rank, int ranks) override {
    use();
    return join_group(id, rank, ranks, device_, stream(Queue::messages));
  }

  // Other threads may do as they like meanwhile: those that copy to a disk, say.
  void begin_capture() override {
    use();
    PLIMSOLL_CUDA(cudaStreamBeginCapture(stream(Queue::compute), cudaStreamCaptureModeThreadLocal));
    is_capturing_ = true;
  }
  Captured end_capture() noexcept override {
    select(device_);
    is_capturing_ = false;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    cudaError_t status = cudaStreamEndCapture(stream(Queue::compute), &graph);
    if (status == cudaSuccess && graph != nullptr) status = cudaGraphInstantiate(&ready, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (status == cudaSuccess) return ready;
    cudaGetLastError();  // it goes on without
    return nullptr;
  }
  void launch_captured(Captured captured) override {
    use();
    PLIMSOLL_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(captured), stream(Queue::compute)));
  }
  void drop_captured(Captured captured) noexcept override {
    select(device_);
    cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(captured));
  }

 private:
  struct TimedEvent {  // an Event
    cudaEvent_t event = nullptr;
    bool timed = false;
  };
  static cudaEvent_t of(Event event) { return static_cast<TimedEvent*>(event)->event; }
  void use() const { check_call(select(device_), "cudaSetDevice"); }
  cudaStream_t stream(Queue queue) const { return streams_[static_cast<size_t>(queue)]; }

  int device_;
  bool has_peer_ = false, is_capturing_ = false;
  cudaStream_t streams_[kQueues] = {};
  cudaMemPool_t pool_ = nullptr;
  cudnnHandle_t cudnn_ = nullptr;
  std::unique_ptr<ConvolutionLibrary> convolutions_;
  cublasLtHandle_t cublas_ = nullptr;
  std::unique_ptr<ProductLibrary> products_;
};

}  // namespace
}  // namespace plimsoll::cuda

#define PLIMSOLL_EXPORT __attribute__((visibility("default")))

extern "C" {

PLIMSOLL_EXPORT int plimsoll_cuda_door_version() { return plimsoll::cuda::kDoorVersion; }

PLIMSOLL_EXPORT int plimsoll_cuda_devices(char* reason, size_t size) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  int driver = 0;
  std::string text = "no CUDA device";
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    text = "no NVIDIA driver is installed";
  } else if (status != cudaSuccess && status != cudaErrorNoDevice) {
    text = std::string("cudaGetDeviceCount: ") + cudaGetErrorString(status);
  }
  std::strncpy(reason, text.c_str(), size - 1);
  reason[size - 1] = '\0';
  return 0;
}

// The libraries need not know an older GPU: it is not opened.
PLIMSOLL_EXPORT plimsoll::cuda::Door* plimsoll_cuda_open(int device) {
  using namespace plimsoll::cuda;
  int major = 0, minor = 0;
  PLIMSOLL_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  PLIMSOLL_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  if (const std::string why = why_too_old(major, minor); !why.empty()) {
    throw plimsoll::Error(plimsoll::ErrorCode::unsupported, why);
  }
  return new CudaDoor(device);
}

}  // extern "C"
