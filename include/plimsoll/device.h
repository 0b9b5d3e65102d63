// What runs a plan: one arena of memory, kernels, and what is known about the machine. The default is "cpu", which uses
// oneDNN. Every device keeps the same contract, and tests/conformance judges them all.
//
//   kernels(graph, op, family)  ->  the ways to run an op: name, layouts it wants, workspace         (plan time)
//   make_kernel(graph, op, name) -> Kernel; bind(pointers) once; run() every step                     (run time)
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/graph.h"

namespace plimsoll {

class Communicator;
class Tier;
class Wire;

// Memory behind the arena, with engines of its own that copy in and out beside compute.
struct TierInfo {
  std::string name;  // "host", "disk", "peer", "remote"
  Bytes capacity;
  double out_gb_per_s = 0;  // arena to tier
  double in_gb_per_s = 0;   // tier to arena
  double latency_us = 0;    // of a copy, before its first byte
  // The share of compute's speed that a running copy takes, 0 to 1. At 1 there is no engine beside compute: the
  // computing threads themselves copy, all together, between two steps.
  double compute_share = 0;
  bool beside_compute() const { return compute_share < 1; }
  friend bool operator==(const TierInfo&, const TierInfo&) = default;
};

// The cores of a machine. Each group of `cores_a_cache` cores shares a last-level cache.
struct CoreShape {
  int cores = 1;
  int cores_a_cache = 1;
  int hardware_threads = 1;  // of a core
  int caches() const { return (cores + cores_a_cache - 1) / cores_a_cache; }
  friend bool operator==(const CoreShape&, const CoreShape&) = default;
};

// What lies between the ranks of a training. Of an exchange, in which every rank sends a piece to every other: it takes
// the latency, and its bytes at the rate at which a rank sends while it receives as much.
struct LinkInfo {
  int ranks = 1;
  double latency_us = 0;
  double gb_per_s = 0;
  double compute_share = 0;  // of compute's speed that messages take while they are under way, 0 to 1
  friend bool operator==(const LinkInfo&, const LinkInfo&) = default;
};

// So much of some tensors goes into one exchange. Longer pieces wait on TCP for words of the receiver that stand behind what goes the other way.
inline constexpr Bytes kMessageBytes = 1_MiB;
// With many ranks more, so that each one's piece does not become too short to be worth a message.
inline constexpr Bytes message_bytes(int ranks) {
  constexpr Bytes kPiece = 64_KiB, kMost = 256_MiB;
  return std::clamp(kPiece * ranks, kMessageBytes, kMost);
}
// What these take as one, message by message: collectives (OpType::is_collective) of one type. Pieces go to all; those of
// an AllReduce twice, as gradients and as means.
double collective_ms(const LinkInfo& link, const Graph& graph, std::span<const OpId> ops);
// Bytes that each rank sends for them.
Bytes collective_traffic(const LinkInfo& link, const Graph& graph, std::span<const OpId> ops);

struct DeviceInfo {
  std::string name;         // "cpu": what --device takes
  std::string description;  // "2 threads, AVX-512, oneDNN 2.6.3"
  std::string key;          // everything that a measured time depends on: library version, instruction set, threads
  int threads = 1;
  CoreShape cores;                // that the process may use
  Bytes memory_total;             // of the machine
  Bytes memory_available;         // when it was opened
  Bytes cache;                    // the last before a device's own memory; 0 where the host's is what counts
  bool simulated = false;         // plans only
  bool own_memory = false;        // an arena lies in memory that is not the host's: a plan may take all of it
  bool asynchronous = false;      // run() of a kernel only asks for the work (open_queues)
  bool lists_best_first = false;  // the first of an op's kernels is its library's choice for this very machine
  std::vector<TierInfo> tiers;    // what a plan may use, the fastest first; none unless the user gives it
  LinkInfo link;                  // to the other ranks, where there are some
};

// How images lie in memory across a whole network. Choosing kernels compares the families and takes one.
enum class LayoutFamily : uint8_t { plain, channels_last, blocked };
std::string_view to_string(LayoutFamily family);
LayoutFamily family_named(std::string_view name);  // throws Error(invalid_input) with the nearest name

// In a KernelSpec it means: any layout, but the same one for all tensors of this kernel that say so. It is for kernels
// that work element by element on the storage as it lies, padding included (updates, sums). They must leave padding
// zero where it was zero. Before make_kernel is called, a real layout takes its place. State updates
// (OpType::changes_state) are always treated so: every tensor of the parameter's shape gets the parameter's layout,
// whatever the spec says, but where another input is stretched over them.
inline const Layout kAnyLayout{"any"};

// How a kernel computes its sums, as far as planning cares.
enum class Algorithm : uint8_t { direct, gemm, fft, winograd };

// What an estimate of a kernel's time is made of where it is not measured: the device knows its kernels.
struct KernelEstimate {
  double efficiency = 0.9;      // share of the machine's dense rate that its arithmetic reaches
  double bandwidth = 1;         // share of the memory's rate that its traffic reaches
  std::optional<double> flops;  // that it does; absent: the op's work
  double extra_bytes = 0;       // memory traffic beyond the op's inputs and outputs
  std::optional<double> ms;     // what it takes, where the device knows that itself; nobody measures it then
  friend bool operator==(const KernelEstimate&, const KernelEstimate&) = default;
};

// One way to run one op. Only the specs of Reorder repeat the layouts that the graph's tensors have already.
struct KernelSpec {
  std::string name;            // "jit_wino_4x3:avx512_core": unique among an op's kernels of one family
  std::vector<Layout> inputs;  // as this kernel wants them; the layout pass inserts reorders where they differ
  std::vector<Layout> outputs;
  Bytes workspace;    // scratch during the op, 0 for most
  bool exact = true;  // the same bits on every run, in full single precision; --exact takes no others
  Algorithm algorithm = Algorithm::direct;
  bool last_resort = false;  // slow, and offered only where no other kernel will do: parts of the batch may do better
  KernelEstimate estimate;
};

// A kernel that is ready for one step of a plan. Neither bind nor run allocates. Run reads and writes only what was
// bound.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual Bytes workspace() const = 0;
  // Pointers are in the order of the op's inputs and outputs. A recomputation leaves out state outputs and the inputs
  // in whose place they must lie: these are nullptr. The workspace is 64-byte aligned and has at least workspace()
  // bytes.
  virtual void bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) = 0;
  virtual void run() = 0;
};

// The one region of memory that everything of a step lies in. It is taken once and is 4096-byte aligned.
class Arena {
 public:
  virtual ~Arena() = default;
  virtual std::byte* base() = 0;
  virtual Bytes bytes() const = 0;
};

// The queues of a device that computes beside the host, as a GPU does. There run() of a kernel only asks for the work.
// The compute queue does what was asked in that order. Copies between the arena and pinned host memory have a queue for
// each direction, and collectives of several ranks have one. Marks order the queues among each other:
//
//   compute   [ step 3 ]m1[ step 4      ][ step 5 ]      mark(compute, m1); wait(out, m1); copy_out(...); mark(out, m2)
//   out                 [ y leaves    ]m2                wait(compute, m2) before step 6: y's bytes are free there
//
// It is for one thread at a time. Only synchronize waits, and only make_mark allocates.
class Queues {
 public:
  enum class Queue : uint8_t { compute, out, in, messages };
  using Mark = int32_t;
  virtual ~Queues() = default;
  virtual Mark make_mark(bool timed) = 0;
  virtual void copy_out(std::byte* to_host, const std::byte* from, size_t bytes) = 0;
  virtual void copy_in(std::byte* to, const std::byte* from_host, size_t bytes) = 0;
  virtual void fill(Queue queue, std::byte* at, int byte, size_t bytes) = 0;
  virtual void copy_within(std::byte* to, const std::byte* from, size_t bytes) = 0;  // the arena, in the compute queue
  virtual void mark(Queue queue, Mark mark) = 0;  // is reached when all that was asked of the queue so far is done
  virtual void wait(Queue queue,
                    Mark mark) = 0;  // what is asked of the queue after this starts when the mark is reached
  virtual bool is_reached(Mark mark) = 0;
  virtual void synchronize(Mark mark) = 0;            // the host waits until the mark is reached
  virtual void synchronize() = 0;                     // until all queues are empty
  virtual double ms_between(Mark from, Mark to) = 0;  // both timed and reached

  // What is asked between begin_capture and end_capture is kept and not done. Each replay then asks for all of it at
  // once, behind what was asked of compute before. Within a capture the copy queues begin by waiting for a mark of
  // compute, and compute waits for the last mark of theirs. Both return false where the device cannot do it; then
  // nothing has happened.
  virtual bool begin_capture() { return false; }
  virtual bool end_capture() { return false; }
  virtual void replay() {}
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;

  // Every way to run `op` with images in `family`, the best guess first. There is at least one for a supported op.
  // Layouts that are already set on the graph's tensors do not count: the specs say what each kernel wants. Throws
  // Error(unsupported) that names the op.
  virtual std::vector<KernelSpec> kernels(const Graph& graph, const Op& op, LayoutFamily family) const = 0;

  // Makes the named kernel for the layouts that the graph's tensors have now. `threads` 0 means all of the device's.
  // Throws Error(unsupported) when no such kernel runs these layouts.
  virtual std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view kernel,
                                              int threads = 0) const = 0;

  // Which of the ranks this is, and how it reaches the others; null where it is alone, or only plans for several.
  virtual Communicator* communicator() const { return nullptr; }
  // One kernel for several ops that all ranks run together (OpType::is_collective), of one type; it is bound to the inputs
  // of all, in their order, and to the outputs of all. `kernel`: the name that all of them have in the plan; empty: of
  // those that are exact. Throws Error(unsupported) on a device that is alone.
  virtual std::unique_ptr<Kernel> make_collective(const Graph& graph, std::span<const OpId> ops,
                                                  std::string_view kernel = {}) const;
  // How the memory of such a device reaches that of other ranks, all of which ask for it at the same time; null where the
  // host addresses the arena, and sends from there. Throws Error(unsupported) where what that needs is not there.
  virtual std::shared_ptr<Wire> open_wire(const std::shared_ptr<Communicator>& communicator) const;

  // Where a kernel runs a part of the batch, the part's first row lies at a multiple of so many bytes in every tensor.
  virtual int64_t row_alignment(const Op&, std::string_view /*kernel*/) const { return 1; }

  virtual std::unique_ptr<Arena> take_arena(Bytes bytes) const = 0;  // throws Error(device_failure) with the size

  // For a device with memory of its own: how much is free there now, and how much of that an arena may take. The rest
  // is for kernels, which the device loads there when they are first used. Absent where its memory is the host's.
  struct OwnMemory {
    Bytes free, available;
  };
  virtual std::optional<OwnMemory> memory_now() const { return std::nullopt; }

  // Whether the host may read and write the arena through its pointers. Where it may not, write and read copy.
  virtual bool host_addressable() const { return true; }
  // Between host memory and the arena; complete on return.
  virtual void write(std::byte* to, std::span<const std::byte> from) const = 0;
  virtual void read(std::span<std::byte> to, const std::byte* from) const = 0;

  // The queues of a device that computes beside the host; null where run() returns when the work is done.
  virtual std::unique_ptr<Queues> open_queues() const { return nullptr; }
  // Pins host memory, so that the queues can copy to and from it beside the host, for as long as the result lives.
  virtual std::shared_ptr<void> pin(std::span<std::byte>) const { return nullptr; }
  // The memory of another device, "cuda:1", as a tier of at most `size` (absent: what is free there). The queues copy
  // to and from it by themselves. Throws Error(invalid_input) for a device that is no peer, Error(unsupported) where it
  // is not there.
  virtual std::shared_ptr<Tier> open_peer(std::string_view name, std::optional<Bytes> size) const;
};

// "cpu", "cuda:0", or a simulated one by its name, "k40c". Throws Error(invalid_input) with the nearest name, and
// Error(unsupported) with the reason why it is not there. With `threads` 0, as many as the process may use.
std::unique_ptr<Device> open_device(std::string_view name, int threads = 0);
// What is there, and for each device that is not, why: for `plimsoll devices`.
struct DeviceListing {
  std::string name;
  bool available = false;
  std::string description;
  bool simulated = false;  // plans only
};
std::vector<DeviceListing> list_devices();
// Of a device by its name, as Plan::device_name, which need not be there:
bool is_simulated(std::string_view device);  // it only plans
bool shares_cores(std::string_view device);  // several kernels may run at once, each on some of its cores

// A kernel to run or to time, for the layouts that the graph's tensors have. `kernel` is a name of the device's, or a
// configuration of such names (plan.h). Throws Error(invalid_input) for a name that is neither, and where the parts do
// not add up to the batch. Throws Error(unsupported) where the op or a layout cannot be divided, and where
// Device::make_kernel does.
std::unique_ptr<Kernel> make_kernel(const Device& device, const Graph& graph, const Op& op, std::string_view kernel,
                                    int threads = 0);

// The device that runs every op by its reference function, slowly, on plain layouts. It is the judge in tests. The one
// kernel of each op is called "reference".
std::unique_ptr<Device> open_reference_device();

}  // namespace plimsoll
