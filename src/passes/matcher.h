// What passes ask that look for an op which a module writes by several.
#pragma once

#include <string_view>
#include <vector>

#include "base/by_id.h"
#include "passes/linear.h"

namespace plimsoll {

// Of a forward network, which must outlive it.
class Matcher {
 public:
  explicit Matcher(const Network& network);

  const Graph& graph() const { return graph_; }
  int uses(TensorId tensor) const { return uses_[tensor]; }
  OpId last_reader(TensorId tensor) const { return reader_[tensor]; }  // or none
  bool is_trained(TensorId tensor) const { return trained_[tensor]; }  // whether a parameter that is trained is in it

  // An op of the forward pass of this type, without an activation.
  bool is_call(const Op& op, std::string_view type) const;
  bool is_expression(const Op& op, std::string_view text) const;  // as to_string(Expression) has it
  // The op that made a tensor which is read once; it is appended to `ops`. Null where there is none.
  const Op* only(TensorId tensor, std::vector<OpId>& ops) const;
  // Whether the op's axis is the last of this tensor.
  bool is_last(const Op& op, TensorId of) const;

 private:
  const Graph& graph_;
  ById<TensorId, int> uses_;
  ById<TensorId, OpId> reader_;
  ById<TensorId, bool> trained_;
};

}  // namespace plimsoll
