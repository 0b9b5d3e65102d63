#include "train/process_memory.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <fstream>

#include "base/parallel.h"
#include "cost/probe.h"
#include "device/collectives.h"
#include "device/cpu/device.h"
#include "device/tier/queue.h"
#include "execute/homes.h"
#include "passes/split.h"
#include "plimsoll/error.h"
#include "plimsoll/remote_memory.h"

namespace plimsoll {
namespace {

// Figures of this build, which the tests in tests/cli/process_memory_test.cpp hold the program to. They were measured
// as anonymous and file-backed resident memory, with oneDNN 2.6.3, and rounded up.
constexpr Bytes kProgram = 40_MiB;
constexpr Bytes kKernels = 12_MiB;  // and for each op of the network:
constexpr Bytes kKernelsOfOp = 48_KiB, kKernelsOfForwardOp = 24_KiB;
constexpr Bytes kThread = 256_KiB;
constexpr Bytes kMessages = 16_MiB, kMessagesOfRank = 128_KiB;  // MPI's own, with Open MPI 4.1
constexpr Bytes kPlanning = 24_MiB;  // and for each op of the network and each thread that plans:
constexpr Bytes kPlanningOfOp = 64_KiB;
constexpr int kPlanners = 2;  // where --memory is of the process
// What decoding an image takes: an image of 12 million pixels that is not scaled while it is decoded.
constexpr Bytes kDecoding = 48_MiB;

// The largest state that may be converted whole (Homes): matrices of fully connected layers, which oneDNN may want
// transposed. Larger ones are split.
Bytes largest_matrix(const Network& network) {
  const Bytes split_above = split_sizes(network, {}).split_above;
  Bytes largest;
  for (const State& state : network.graph.states) {
    const Tensor& tensor = network.graph.tensor(state.before);
    if (tensor.shape.size() == 2) largest = std::max(largest, std::min(tensor.bytes(), split_above));
  }
  return largest;
}

}  // namespace

std::vector<std::pair<std::string_view, Bytes>> ProcessMemory::kinds() const {
  return {{"program", program}, {"kernels", kernels}, {"threads", threads},   {"batches", batches},
          {"data", data},       {"copies", copies},   {"messages", messages}, {"host", host}};
}

ProcessMemory process_memory(const Network& network, const ProcessUse& use) {
  const Graph& graph = network.graph;
  const int64_t ops = graph.op_count();
  Bytes batch;
  for (const TensorId id : {network.data, network.labels}) {
    if (id.valid()) batch += graph.tensor(id).bytes();
  }
  const int loaders = use.training && use.evaluates ? 2 : 1;
  const bool has_tier = use.tiers.host_memory || use.tiers.spill || use.tiers.remote_memory;
  const int copying =
      2 * ((use.tiers.host_memory ? 1 : 0) + (use.tiers.spill ? 1 : 0) + (use.tiers.remote_memory ? 1 : 0));

  ProcessMemory memory;
  memory.program = kProgram;
  memory.kernels = kKernels + (use.training ? kKernelsOfOp : kKernelsOfForwardOp) * ops;
  memory.threads = kThread * (use.threads + loaders * use.workers + copying);
  memory.batches = batch * (loaders * batches_prepared(batch, use.workers));
  memory.data = use.data + kDecoding * (loaders * use.decoders);
  if (has_tier) memory.copies += std::max(Homes::kHeldBytes, largest_matrix(network)) + Bytes{2 * kTierPiece};
  if (use.tiers.spill) memory.copies += Bytes{kDiskBuffers * kTierPiece};
  if (use.tiers.remote_memory) memory.copies += Bytes{kRemoteBuffers * kRemotePiece};
  if (use.ranks > 1) memory.messages = message_buffers(use.ranks);
  if (use.ranks > 1 || use.tiers.remote_memory) memory.messages += kMessages + kMessagesOfRank * use.ranks;
  memory.host = use.tiers.host_memory.value_or(0_B);
  const bool stated = use.memory_is == MemoryIs::process;
  if (stated) limit_parallel_work(kPlanners);
  memory.planning = kPlanning + kPlanningOfOp * (ops * (stated ? kPlanners : threads_in_parallel(SIZE_MAX)));
  if (!stated) memory.probing = kProbeRoom;
  return memory;
}

Bytes program_memory() { return kProgram; }

Bytes data_bytes(const DataSet& data) { return data.memory() + order_memory(data.info()) * 2; }

ProcessMemory with_plan(ProcessMemory memory, const Plan& plan) {
  memory.host = {};
  for (const TierUse& use : plan.tiers) {
    if (use.tier.name == "host") memory.host += use.used;
  }
  return memory;
}

Bytes arena_within(const ProcessMemory& memory, Bytes process) {
  return std::max(std::max(process, memory.before()) - memory.beside(), 1_B);
}

Infeasible of_process(Infeasible infeasible, const ProcessMemory& memory, Bytes process) {
  if (!infeasible.flag.empty()) return infeasible;
  infeasible.budget = process;
  infeasible.lower_bound = memory.with(infeasible.lower_bound);
  if (infeasible.minimum.count == INT64_MAX) return infeasible;
  const std::string raise = raise_memory_to(infeasible.minimum);
  infeasible.minimum = memory.with(infeasible.minimum);
  if (infeasible.suggestion.starts_with(raise))
    infeasible.suggestion.replace(0, raise.size(), raise_memory_to(infeasible.minimum));
  infeasible.suggestion += fmt::format("; of the process (--memory-is process), {} are not the arena's: {}",
                                       to_string(memory.beside()), to_text(memory));
  return infeasible;
}

std::optional<Infeasible> refused_by_planning(const Program& program, const ProcessMemory& memory, Bytes process) {
  if (process >= memory.before()) return std::nullopt;
  Infeasible infeasible{.policy = program.policy, .budget = process, .minimum = memory.before(), .proven = true};
  infeasible.lower_bound = memory.before();
  infeasible.suggestion =
      fmt::format("{}: before the first step the program takes {}, and making the plan {} (--memory-is process)",
                  raise_memory_to(memory.before()), to_string(memory.program), to_string(memory.planning));
  return infeasible;
}

std::string to_text(const ProcessMemory& memory) {
  std::string text;
  for (const auto& [what, bytes] : memory.kinds()) {
    if (bytes.count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, to_string(bytes));
  }
  return text;
}

void check_memory_is_process(std::string_view device, bool memory_given) {
  if (!memory_given)
    throw Error(ErrorCode::invalid_input, "--memory-is process: say how much the process may take, with --memory SIZE");
  if (shares_cores(device)) return;
  throw Error(
      ErrorCode::invalid_input,
      fmt::format("--memory-is process: device '{}' has memory of its own, which --memory is of; leave the flag "
                  "out",
                  device));
}

Bytes process_peak() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("VmHWM:")) return {std::stoll(line.substr(6)) * 1024};
  }
  return {};
}

void give_memory_back() {
  cpu::forget_kernels();
  malloc_trim(0);
}

}  // namespace plimsoll
