// Makes graphs of costs only for the readers of their files, and refuses what no plan could run.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/by_id.h"
#include "base/json_reader.h"
#include "plimsoll/cost_graph.h"
#include "plimsoll/ops.h"

namespace plimsoll {

struct CostedOutput {
  std::string name;  // empty: "<op>:<number>"
  int64_t bytes = 0;
  Role role = Role::activation;
  std::vector<int> may_overwrite;  // inputs
  int must_overwrite = -1;
  bool once = false;  // not made again where the op runs again
};

struct CostedOp {
  std::string name;
  std::string layer;  // empty: the name
  double ms = 0;
  int64_t workspace = 0;
  std::vector<TensorId> inputs;
  std::vector<CostedOutput> outputs;
  bool again = true;  // it may run again
  bool view = false;
  Phase phase = Phase::forward;
  OpId forward;
  std::string kind, kernel;
};

class CostGraphBuilder {
 public:
  Graph& graph() { return result_.graph; }

  // `place`: what errors are told of. Roles input and hyperparameter: the bytes are free after the last reader; others
  // stay.
  TensorId add_source(const JsonReader& place, std::string name, int64_t bytes, Role role);
  OpId add_op(const JsonReader& place, CostedOp op);
  void keep(TensorId id);
  // The source's value at the end is this one, in its bytes.
  void set_next(const JsonReader& place, TensorId source, TensorId next);
  CostGraph finish(const JsonReader& file) &&;

  static int64_t read_bytes(const JsonReader& r) { return r.integer(0, kMostElements); }
  static double read_ms(const JsonReader& r);

 private:
  void note(TensorId id, TensorId in_bytes_of);
  void check_inputs(const JsonReader& place, const CostedOp& op) const;

  CostGraph result_;
  std::set<TensorId> kept_;
  ById<TensorId, TensorId> bytes_of_;  // the first of those that lie in the same bytes, by views or since they must
  ById<TensorId, std::string> overwriter_;  // the op that must write into these bytes; empty: none
  ById<TensorId, TensorId> viewed_;         // what a view shows; else itself
};

}  // namespace plimsoll
