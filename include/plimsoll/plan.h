// The whole program of one training step, as data: what runs when, and where every byte lies. Made by a policy, judged
// by verify.h, timed by simulate.h, run by execute.h; prints itself, and is saved and read back as JSON.
//
//   offset
//     |   +-------conv1/y-------+         stays: a tensor at [offset, offset + bytes) during steps [first, last]
//     |   +--ws--+   +---dx-----+         a workspace is a stay of one step
//     |   +-----------w---------------+   what outlives the step (parameters) stays from the first step to the last
//     +---0------1---2----------3-----+-> step
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "plimsoll/cost.h"
#include "plimsoll/device.h"
#include "plimsoll/graph.h"

namespace plimsoll {

using StepIndex = int32_t;

// Offsets and sizes of stays are multiples of it: a stay books the tensor's bytes rounded up.
inline constexpr int64_t kStayAlignment = 64;

// On which cores a step's threads run, where threads are pinned. The words are OpenMP's (proc_bind), but for the last.
enum class Affinity : uint8_t {
  close,   // cores that share caches, as far as possible
  spread,  // cores that share none, as far as possible
  smt,     // where no core is free, the second hardware threads of cores that other steps hold
};

struct Step {
  OpId op;
  std::string kernel;  // by name, from Device::kernels, or a configuration of them; "" for a view, which runs nothing
  int threads = 0;     // 0: all
  bool recompute = false;  // runs again what ran before; changes no state
  Bytes workspace;
  Affinity affinity = Affinity::close;
  double time_ms = 0;      // what it takes when nothing runs beside it, as the planner's costs say
  bool estimated = false;  // time_ms is an estimate, not a measurement
};

// How a plan shares the cores of a CPU among its steps.
struct CoreSharing {
  // At most so many steps run at once, each when what it depends on is done (plan/dependencies.h). 1: one after another
  int inter_op = 1;
  int cores = 0;             // that the plan was made for; 0: all that the device has, for every step
  int cores_a_cache = 0;     // of them, so many share a last-level cache; 0: not known
  int hardware_threads = 1;  // of a core that steps may use; 2: steps of Affinity::smt may run beside others on a core
  double memory_gb_per_s = 0;  // what steps that run at once share; 0: never short
  double smt_speed = 1;        // what a core computes with two hardware threads, as a multiple of what it does with one
  std::vector<std::pair<OpId, OpId>>
      conflicts;                 // ops that never run at the same time, the lower number first, in order
  std::vector<StepIndex> order;  // of the ready steps, the first one here starts first; empty: the plan's order
  friend bool operator==(const CoreSharing&, const CoreSharing&) = default;
};

// Which of the four strategies of Liu et al. (IPDPS 2019, section III-D) may be used when cores are shared, as the
// command line names them: "1,2,3,4".
struct Strategies {
  bool each_op = true, each_type = true, co_run = true, smt = true;
  friend bool operator==(const Strategies&, const Strategies&) = default;
};
Strategies strategies_named(std::string_view list);  // throws Error(invalid_input) that names the one that there is not
std::string to_string(const Strategies& strategies);

// A kernel's name may be a configuration, as mu-cuDNN calls it (section III-A): the batch divided into parts that run
// one after the other in one workspace, each by a kernel of its own. Parts are joined by "+"; "*" counts equal ones:
// "jit_wino_4x3:avx512_core@16*3+jit:avx512_core@8" runs a batch of 56.
struct MicroBatch {
  std::string kernel;
  int64_t batch = 0;
  friend bool operator==(const MicroBatch&, const MicroBatch&) = default;
};
inline constexpr int64_t kMostMicroBatches = 4096;  // of one configuration
// The parts in order, at least two; none for a plain name. Throws Error(invalid_input) on a name that is neither.
std::vector<MicroBatch> parts_of(std::string_view kernel);
// Equal neighbours become one with a count. The plain name of a single part.
std::string configuration_name(std::span<const MicroBatch> parts);

// The kernel that runs an op, and what it needs beside the tensors. Lists of these are by the index of the op in the
// graph.
struct KernelChoice {
  std::string kernel;
  Bytes workspace;
};

// Tensor (or, with an invalid tensor, the workspace of step `first`) at [offset, offset + bytes) of the arena from the
// start of step `first` to the end of step `last`, both included. Two stays may share a byte during one step in one
// case only: the step's op allows the output, whose stay begins there, to take the place of the input, whose stay ends
// there: then both have the same offset. A view (reshape) is the same bytes as what it views; their stays meet at any
// time, at the same offset.
struct Stay {
  TensorId tensor;
  Bytes offset;
  Bytes bytes;
  StepIndex first = 0;
  StepIndex last = 0;
  bool is_workspace() const { return !tensor.valid(); }
  friend bool operator==(const Stay&, const Stay&) = default;
};

// Every slot begins at a multiple of it, so that a file can be read and written directly.
inline constexpr int64_t kSlotAlignment = 4096;

// A copy between the arena and slot [slot, slot + bytes) of an outside tier, on an engine that runs beside compute. It
// is complete before step `before` starts (the number of steps: before the training step ends). A copy out may start
// when step `after` is complete (-1: at once); a copy in when, besides, all copies out that must be complete before
// step `after` + 1 are.
//
//   step      3      4      5      6
//   stay   [ y is written, read ][ free ]
//   move         (out: after 3, before 6)     y's bytes are its own up to step 5. Whoever takes them begins at step 6,
//                                             a copy into them with after = 5 included.
//
// So between two steps first what must leave leaves, then what comes in may take its place. A slot that a copy in with
// `before` = b reads may be written by a copy out with after >= b.
struct Move {
  enum class Direction : uint8_t { out, in } direction = Direction::out;
  TensorId tensor;
  int tier = 0;
  Bytes slot;
  StepIndex after = -1;
  StepIndex before = 0;
  friend bool operator==(const Move&, const Move&) = default;
};

// A tensor that comes from outside (a state, an input) and lies in a tier between steps: the step finds it in this
// slot, and a state is there again, with its new value, when the step is over. Without a home it lies in the arena from
// step 0.
struct Home {
  TensorId tensor;  // State::before, or a graph input
  int tier = 0;
  Bytes slot;
  friend bool operator==(const Home&, const Home&) = default;
};

// Steps whose ops all ranks run together (OpType::is_collective), as one exchange of messages on an engine beside compute.
// It begins when the last of them is reached and all collectives before it are done; it is complete before step `before`
// starts. Until then the bytes that these steps read and write, each from its step on, are the wire's. A collective step that
// belongs to none runs by itself at its place.
//
//   step       3          4      5          6
//   steps 3,5  [ dw2 ready ]     [ dw1 ready ]          from here both are under way
//   before 6                                 [ update ]  reads the means
struct Collective {
  std::vector<StepIndex> steps;  // ascending
  StepIndex before = 0;
  double time_ms = 0;  // by Plan::link; those of its steps are 0
  friend bool operator==(const Collective&, const Collective&) = default;
};

// An input of every batch (Role::input), and the bytes of the arena that its second buffer has.
struct FedInput {
  TensorId tensor;
  Bytes offset;  // 0 where there is no second buffer
  Bytes bytes;   // the tensor's, rounded up to kStayAlignment
  friend bool operator==(const FedInput&, const FedInput&) = default;
};

// How batches come to a device with memory of its own: over a link, from memory of the host. With a second buffer the next
// batch comes while a step runs; its bytes are no stay's during the whole step. Between two steps it is copied to where the
// step finds its inputs, which is all that compute waits for.
//
//   link      [ batch n + 1 to the second buffer ]     [ batch n + 2 ...
//   compute   [ step n                       ][ copy ][ step n + 1 ...
struct Feeding {
  std::vector<FedInput> inputs;  // those that lie in the arena; none: a batch is where the step finds it, at no cost
  bool second_buffer = false;    // of all of them, or none: then a batch comes before its step
  double latency_us = 0;         // of a copy over the link
  double gb_per_s = 0;           // of the link
  double arena_gb_per_s = 0;     // of a copy within the arena, which reads and writes so much
  friend bool operator==(const Feeding&, const Feeding&) = default;
};

struct TierUse {
  TierInfo tier;
  Bytes used;  // the end of the highest slot
  friend bool operator==(const TierUse&, const TierUse&) = default;
};

struct EngineSpan {  // one bar of the predicted timeline
  int engine = 0;  // 0 compute; 1 + 2 * tier: copies out to it; 2 + 2 * tier: copies in from it; behind them: messages
  int32_t index = 0;  // step, move, or collective
  double start_ms = 0;
  double end_ms = 0;
};

struct Prediction {
  Bytes peak;  // largest sum of live bytes over the steps
  StepIndex peak_step = 0;
  double step_time_ms = 0;
  double estimated_share = 0;  // part of step_time_ms that comes from estimates rather than measurements, 0..1
  // No plan of this graph with these kernels and thread counts is faster: every op once, and nothing waits. Of steps
  // that run at once: neither the longest chain of ops that read each other's results, nor all their work on the cores
  // takes longer.
  double lower_bound_ms = 0;
  Bytes offload, prefetch;            // traffic of a step
  double copy_ms = 0;                 // how long the copy engines are busy
  double stall_ms = 0;                // how long compute waits for them, and for messages
  double communication_ms = 0;        // how long messages are under way, of collectives and of steps that are some
  double communication_stall_ms = 0;  // how long compute waits for nothing but them
  double feed_ms = 0;                 // of a batch over the link (Feeding); 0 where there is none
  double wall_time_ms = 0;            // from step to step, batches included; 0 where there is no link
  int recompute_steps = 0;
  double recompute_ms = 0;
  std::vector<EngineSpan> timeline;
};

struct Plan {
  std::string graph_name;
  uint64_t graph_fingerprint = 0;
  std::string device_name;  // "cpu"
  std::string device_key;
  int device_threads = 0;  // of an op whose step says nothing else (DeviceInfo::threads); 0: not known
  std::string policy;
  std::string placement;  // the name of the placement that gave the offsets
  Bytes budget;
  Bytes arena;              // what the executor takes: the end of the highest stay
  Bytes lower_bound;        // no plan of this graph needs less (least_bytes); 0: not said
  std::vector<Step> steps;  // in an order in which they may run one after another
  CoreSharing cores;
  std::vector<Stay> stays;  // in order of first step, then offset
  std::vector<Move> moves;
  std::vector<Home> homes;
  std::vector<TierUse> tiers;  // what Move::tier and Home::tier count in
  Feeding feeding;
  LinkInfo link;                        // to the other ranks
  std::vector<Collective> collectives;  // in the order of their last steps: the same on all ranks
  Prediction predicted;
  double plan_time_ms = 0;
};

// "No plan fits": the least budget that would do, and what needs it.
struct Infeasible {
  std::string policy;
  std::string flag =
      {};  // the limit on workspace that no kernels keep, "--workspace" or "--workspace-total"; empty: memory is short
  Bytes budget;         // that limit, or that of the memory
  Bytes minimum;        // the least budget with which this policy finds a plan
  Bytes lower_bound;    // no plan at all needs less (least_bytes)
  bool proven = false;  // true: no plan of this policy fits `budget`; false: none was found
  StepIndex step = 0;   // the step of that peak, its op and layer
  std::string op, layer;
  struct Need {
    std::string tensor;
    Role role = Role::activation;
    Bytes bytes;
    bool workspace = false;
  };
  std::vector<Need> needs;  // what is live there, largest first
  std::string tier;         // the tier that is too small; empty: the arena is
  std::string suggestion;   // which flag to change: "raise --memory to 812.5 MiB, or lower --batch"
};
std::string to_text(const Infeasible& infeasible);
// Where there is no smaller batch, takes the advice to lower it out of Infeasible::suggestion.
void leave_out_batch(std::string& suggestion);
std::string raise_memory_to(Bytes enough);  // as a suggestion; rounded up, so that what it says is enough

Bytes second_buffer_bytes(const Plan& plan);

// Bytes of the arena that lie in a stay or in a second buffer, at every step. Bytes that stays share, in place or as a
// view, count once.
std::vector<Bytes> live_bytes(const Plan& plan);
// Most of them, and the (first) step where it is.
struct Peak {
  Bytes bytes;
  StepIndex step = 0;
};
Peak live_peak(const Plan& plan);
// Stays alive at a step, largest first.
std::vector<const Stay*> live_at(const Plan& plan, StepIndex step);
// The same, and what each of them adds to live_bytes: where several lie, the largest holds the bytes.
struct HeldBytes {
  const Stay* stay;
  Bytes bytes;
};
std::vector<HeldBytes> held_at(const Plan& plan, StepIndex step);

// What every plan of this graph needs at some step, whatever its policy, kernels and layouts: what an op reads and
// writes, where it does not overwrite it; and all states besides, unless a tier may take them.
Bytes least_bytes(const Graph& graph, bool states_may_leave);

std::string to_json(const Plan& plan, const Graph& graph);  // tensors and ops by name
// Throws Error(corrupt_file) with the place and what was expected; Error(invalid_input) that names both graphs when the
// plan was made for another one.
Plan plan_from_json(std::string_view json, const Graph& graph);

}  // namespace plimsoll
