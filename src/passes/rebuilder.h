// Makes the graph of a network anew, op by op, and knows where each tensor of the old one went: for passes that replace
// ops, or split states into blocks of rows.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/by_id.h"
#include "plimsoll/autodiff.h"

namespace plimsoll {

// Block i of a split state is rows [bounds[i], bounds[i + 1]).
using RowBounds = std::vector<int64_t>;

class Rebuilder {
 public:
  // `before` must outlive it. Sources that are `left_out` are not in the new graph.
  explicit Rebuilder(const Graph& before, const std::map<TensorId, RowBounds>& split = {},
                     const std::set<TensorId>& left_out = {});

  void copy(OpId id);
  // Adds an op whose outputs take the place of tensors of the graph before, and which stands for `replaced` there.
  void replace(const std::vector<OpId>& replaced, const std::string& type, std::string name, std::string layer,
               std::vector<TensorId> inputs, const Attributes& attributes, const std::vector<TensorId>& outputs,
               Phase phase = Phase::forward);

  // From here on `now` is read where `old` was.
  void put(TensorId old, TensorId now) { new_ids_[old] = {now}; }

  Graph& graph() { return after_; }  // to add ops whose outputs are new
  TensorId map(TensorId old) const;  // of a tensor that is not split
  std::vector<TensorId> map(const std::vector<TensorId>& old) const;
  OpId map(OpId old) const { return old.valid() ? new_op_[old] : OpId{}; }  // of an op that was copied or replaced
  const std::vector<TensorId>& parts(TensorId old) const { return new_ids_[old]; }
  bool is_taken(const std::string& op_name) const;       // in either graph
  std::string free_name(const std::string& stem) const;  // the stem, or with a number where it is taken

  // Puts the graph into the network that `before` was taken from, and all that it names.
  void finish(Network& network);

 private:
  void add_blocks(const Tensor& whole, const RowBounds& bounds, std::vector<TensorId>& parts);

  const Graph& before_;
  Graph after_;
  ById<TensorId, std::vector<TensorId>> new_ids_;  // several for what is split
  ById<OpId, OpId> new_op_;
};

// Makes a network anew with other ops in the place of some: `ops_of[i]`, of which the last is where `make(rebuilder, before, i)`
// adds what stands for all of them.
void replace_ops(Network& network, const std::vector<std::vector<OpId>>& ops_of,
                 const std::function<void(Rebuilder&, const Graph&, size_t)>& make);

}  // namespace plimsoll
