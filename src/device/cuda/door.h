// The one door to CUDA, cuDNN, cuBLAS and NCCL: every call of theirs that a CUDA device makes, in our own types. What is
// behind it is a module of its own (module/), loaded when a CUDA device is asked for, so that a program with CUDA
// starts where there is none; in tests it is a fake that records what it is asked and does it on the host.
//
//   CudaDevice, kernels, queues  ->  Door  ->  libplimsoll_cuda.so: CUDA runtime, cuDNN, cuBLASLt; NCCL
//   (no CUDA headers)                     \->  tests/cuda/fake_door.h: the same kernel bodies, run on the host
//
// A failed call throws Error(device_failure) that names it. Work is asked of a queue, and queues are ordered by events.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plimsoll/bytes.h"
#include "plimsoll/error.h"

namespace plimsoll::cuda {

// Raised by whoever changes what is below: a module of another number is not loaded.
inline constexpr int kDoorVersion = 14;

// A CUDA stream each.
enum class Queue : uint8_t {
  compute,
  out,
  in,
  transfer,  // what the host writes and reads between steps
  messages   // to other ranks
};
inline constexpr int kQueues = 5;

// Where a tier is a peer's memory, that stands for the host.
enum class Direction : uint8_t { to_device, to_host, on_device };

struct Facts {
  std::string name;          // "NVIDIA H100 80GB HBM3"
  std::string id;            // of this very GPU, whatever its number is in a process: its UUID
  int major = 0, minor = 0;  // compute capability
  int processors = 0;
  std::string driver, runtime, cudnn, cublas;
  Bytes total, free;  // free: what other processes leave
  Bytes cache;        // the last before memory
  Bytes shared;       // that the threads of one block may have together
};

// A convolution from x[n,c,h,w] to y[n,k,oh,ow] with w[k,c/groups,r,s]; all three lie channels last, or none. Images may have a
// depth: x[n,c,d,h,w], y[n,k,od,oh,ow], w[k,c/groups,q,r,s]; these lie row-major.
struct Convolution {
  enum class Pass : uint8_t { forward, backward_data, backward_weights } pass = Pass::forward;
  bool channels_last = false;
  int64_t n = 1, c = 1, h = 1, w = 1, k = 1, oh = 1, ow = 1, r = 1, s = 1, groups = 1;
  int64_t stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int64_t top = 0, left = 0, bottom = 0, right = 0;
  bool deep = false;
  int64_t d = 1, od = 1, q = 1, stride_d = 1, dilation_d = 1, front = 0, rear = 0;
  bool bias = false, relu = false;  // what is added to y, and then done with it, by algorithms that do it (`fused`)

  int64_t x_elements() const { return n * c * d * h * w; }
  int64_t y_elements() const { return n * k * od * oh * ow; }
  int64_t w_elements() const { return k * (c / groups) * q * r * s; }
};

// One of cuDNN's algorithms for a convolution: of its fixed functions, or a configuration of an engine
// (convolution_engines.h).
struct ConvolutionAlgorithm {
  std::string name;  // "implicit_precomp_gemm", "eng38_k2=1_k13=0"
  int number = 0;    // of the fixed functions; an engine has its name
  bool tf32 = false;
  bool deterministic = true;
  bool fused = false;  // adds the bias, and ends with the ReLU
  Bytes workspace;
};

// out = a * b in row-major matrices: out[m,n], a[m,k] (or [k,m] when transposed), b[k,n] (or [n,k]); with a bias of n
// values for every row, and ReLU after it. A batch of products has its matrices at equal distances, 0 for one that all
// share; `adds`: out is added to.
struct Product {
  int64_t m = 1, n = 1, k = 1;
  bool transpose_a = false, transpose_b = false;
  bool bias = false, relu = false;
  bool tf32 = false;
  int64_t batch = 1, to_a = 0, to_b = 0, to_out = 0;  // elements from one product's to the next's
  bool adds = false;
  int64_t stride_a = 0, stride_b = 0, stride_out = 0;  // elements from a row to the next; 0: rows follow each other

  int64_t row_a() const { return stride_a > 0 ? stride_a : transpose_a ? m : k; }
  int64_t row_b() const { return stride_b > 0 ? stride_b : transpose_b ? k : n; }
  int64_t row_out() const { return stride_out > 0 ? stride_out : n; }
};

// A configuration of one of cuBLASLt's algorithms for a product (product_library.h).
struct ProductAlgorithm {
  std::string name;  // "algo21_tile18_stages15_splitk4_reduction2"
  Bytes workspace;
};

// A library's operation with its descriptors made; run asks the compute queue for it and allocates nothing.
class Prepared {
 public:
  virtual ~Prepared() = default;
  virtual Bytes workspace() const = 0;
  // a, b, out: x, w, y of a forward convolution; dy, w, dx; x, dy, dw; a, b, out of a product. bias may be null, and is not
  // read where the convolution is not `fused`.
  virtual void run(const void* a, const void* b, const void* bias, void* out, void* workspace) = 0;
};

// One of NCCL's operations, of elements of 4 bytes; means are of floats. `rank`: to or from which, or the root.
struct Transmission {
  enum class Kind : uint8_t { mean, mean_scatter, gather, mean_to_root, broadcast, send, receive } kind = Kind::mean;
  const void* from = nullptr;
  void* to = nullptr;
  int64_t count = 0;  // of mean_scatter and gather: of one rank's piece
  int rank = 0;
};

// A GPU among those of the other ranks. When it goes, what is under way is given up.
class RankGroup {
 public:
  virtual ~RankGroup() = default;
  // Whether the last call, or the joining, is over; the next call is made after it. What was asked of the GPU may still be
  // under way. Throws Error(device_failure) with what NCCL found wrong, also between calls.
  virtual bool is_ready() = 0;
  // Asks the queue of messages for all of these as one.
  virtual void run(std::span<const Transmission> group) = 0;
  // Nothing is under way any more, and nothing comes after it.
  virtual void abort() noexcept = 0;
};
using GroupId = std::array<char, 128>;

using Event = void*;
using Captured = void*;  // a CUDA graph, ready to be launched

// What an operation is about to touch, for whoever records.
struct Touch {
  const void* at = nullptr;
  size_t bytes = 0;
};

class Door {
 public:
  virtual ~Door() = default;
  virtual Facts facts() = 0;

  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  // Ordered like work of the compute queue, from a pool of the driver's that keeps what it was given until `trim`.
  virtual void* allocate_in_order(size_t bytes) = 0;
  virtual void release_in_order(void* memory) = 0;
  virtual void trim() noexcept = 0;
  // Page-locks host memory that the host owns.
  virtual void pin(void* memory, size_t bytes) = 0;
  virtual void unpin(void* memory) noexcept = 0;

  // Copies to and from the memory that another door allocated go directly from here on, where the machine can do that.
  virtual void reach(Door& peer) = 0;
  virtual int device() const = 0;

  // Asked of a queue, done later. Host memory must be pinned for a copy to run beside the host.
  virtual void copy(Queue queue, void* to, const void* from, size_t bytes, Direction direction) = 0;
  virtual void fill(Queue queue, void* at, int byte, size_t bytes) = 0;
  // One of our own kernels (bodies/bodies.h): `body` is its number, `parameters` its body, `count` how many elements or
  // blocks.
  virtual void launch(Queue queue, int body, const void* parameters, int64_t count) = 0;

  // Algorithms of cuDNN that take this convolution, the best guess first; none where it takes none.
  virtual std::vector<ConvolutionAlgorithm> algorithms(const Convolution& convolution, bool tf32) = 0;
  virtual std::unique_ptr<Prepared> prepare(const Convolution& convolution, const ConvolutionAlgorithm& algorithm) = 0;
  // The best guess of cuBLASLt with at most this workspace; null where it has none.
  virtual std::unique_ptr<Prepared> prepare(const Product& product, Bytes workspace) = 0;
  // Others of its algorithms with at most this workspace.
  virtual std::vector<ProductAlgorithm> product_algorithms(const Product& product, Bytes workspace) = 0;
  // By its name, with at most the workspace that the algorithm says. Throws Error(unsupported) where it does not run after all.
  virtual std::unique_ptr<Prepared> prepare(const Product& product, const ProductAlgorithm& algorithm) = 0;

  virtual Event make_event(bool timed) = 0;
  virtual void drop_event(Event event) noexcept = 0;
  virtual void record(Queue queue, Event event) = 0;
  virtual void wait(Queue queue,
                    Event event) = 0;  // what is asked of the queue after this starts when the event is reached
  virtual bool is_reached(Event event) = 0;
  virtual void synchronize(Event event) = 0;  // the host waits
  virtual void synchronize(Queue queue) = 0;
  virtual double elapsed_ms(Event from, Event to) = 0;  // both reached, both timed

  // What is asked of compute from here on, and of queues that wait for its events, is kept and not done. All of it must
  // be waited for by compute at the end; null where it could not be kept, with everything as it was before. A timed event
  // that is recorded meanwhile tells the time of each launch; nothing that is captured may wait for it.
  virtual void begin_capture() = 0;
  virtual Captured end_capture() noexcept = 0;
  virtual void launch_captured(Captured captured) = 0;  // asked of compute
  virtual void drop_captured(Captured captured) noexcept = 0;

  // NCCL's version. Throws Error(unsupported), which says what to install, where it is not there, or too old.
  virtual std::string nccl_version() = 0;
  // The first rank makes one for all; each joins with it. The group lives no longer than the door.
  virtual GroupId make_group_id() = 0;
  virtual std::unique_ptr<RankGroup> join(const GroupId& id, int rank, int ranks) = 0;

  // The operations asked next, up to the next such call, read and write these; only where `records` is true.
  virtual bool records() const { return false; }
  virtual void touches(std::span<const Touch> reads, std::span<const Touch> writes) {
    static_cast<void>(reads), static_cast<void>(writes);
  }
};

// Between the host's memory and the arena; nothing of it is still under way when it fails either.
inline void transfer(Door& door, void* to, const void* from, size_t bytes, Direction direction) {
  door.copy(Queue::transfer, to, from, bytes, direction);
  try {
    door.synchronize(Queue::transfer);
  } catch (const Error&) {
    try {
      door.synchronize(Queue::transfer);
    } catch (const Error&) {  // the first says why
    }
    throw;
  }
}

// Why a GPU is not used, empty where it is: cuDNN 9 has no kernels for older ones.
inline std::string why_too_old(int major, int minor) {
  if (major * 10 + minor >= 75) return "";
  return "compute capability " + std::to_string(major) + "." + std::to_string(minor) + " is below 7.5";
}

// What a module offers, in C: the names by which dlsym finds it.
extern "C" {
using ModuleVersion = int (*)();                           // plimsoll_cuda_door_version
using ModuleDevices = int (*)(char* reason, size_t size);  // plimsoll_cuda_devices: their number; 0 with the reason
using ModuleOpen = Door* (*)(int device);                  // plimsoll_cuda_open: throws plimsoll::Error
}

}  // namespace plimsoll::cuda
