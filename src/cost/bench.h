// One op by one kernel, alone, on buffers of its own: what measuring is made of.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plimsoll/device.h"

namespace plimsoll {

// The op with the layouts that the kernel wants, in a graph of its own.
struct LoneOp {
  Graph graph;
  OpId op;
  std::string kernel;
};
LoneOp isolate(const Graph& graph, const Op& op, const KernelSpec& spec);

// Where the tensors of the op lie when `sets` sets of them lie one after the other, and the workspace behind them.
class OpBench {
 public:
  OpBench(const Device& device, const LoneOp& lone, int threads = 0);  // throws as make_kernel does
  Bytes set_bytes() const { return set_bytes_; }
  Bytes workspace() const { return workspace_; }
  Bytes kernel_workspace() const { return kernel_->workspace(); }
  Bytes bytes(int sets) const { return set_bytes_ * sets + workspace_ + flush_; }
  // Whether a device with a clock of its own empties its cache before each run, so that one set is enough.
  bool flushes() const { return flush_.count > 0; }
  // Empties less of the cache where there is no room to empty all of it.
  void keep_within(Bytes limit);

  // `base` has bytes(sets) bytes. Fills every input with values that a network could have. On a device with queues the
  // kernel runs once: what it needs is loaded then, which takes many times as long as it does.
  void place(std::byte* base, int sets);
  // Runs on the next set and returns the milliseconds.
  double run();

 private:
  const Device& device_;
  std::unique_ptr<Kernel> kernel_;
  std::unique_ptr<Queues> queues_;  // of a device that computes beside the host: its own clock
  Queues::Mark begin_ = -1, end_ = -1;
  std::vector<Bytes> input_at_, output_at_;  // within a set
  std::vector<Bytes> input_bytes_;
  std::vector<DType> input_dtypes_;
  int64_t rows_looked_up_ = 1;
  Bytes set_bytes_, workspace_, flush_;
  std::byte* base_ = nullptr;
  int sets_ = 0, next_ = 0;
};

}  // namespace plimsoll
