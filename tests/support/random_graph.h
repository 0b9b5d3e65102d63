// Random training steps for property tests: forward with fans, joins, in-place ops, views, shared parameters and
// running statistics; backward in reverse; updates in place. The ops compute nothing; they only have shapes and rules.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "plan/policy.h"
#include "plimsoll/graph.h"
#include "plimsoll/ops.h"

namespace plimsoll::testing {

inline std::vector<TensorSpec> like_first(const Attributes&, std::span<const Tensor* const> in) {
  return {{in[0]->shape, in[0]->dtype}};
}
inline std::vector<TensorSpec> of_shape(const Attributes& a, std::span<const Tensor* const>) {
  return {{a.integers("shape"), DType::f32}};
}

// Registers the op types once: Mix (any inputs, shape by attribute), Map and MapBackward (in place allowed), View, Norm
// (with a running statistic), BatchNorm (which saves what its backward reads as well), Update (in place demanded).
inline void register_test_ops() {
  static const bool done = [] {
    auto may = [](int input) { return std::vector<InPlace>{{0, input}}; };
    register_op({.name = "TestMix", .infer = of_shape, .kind = LayerKind::other});
    register_op({.name = "TestMap",
                 .infer = like_first,
                 .in_place = [may](const Graph&, const Op&) { return may(0); },
                 .division = {{0}, {0}},
                 .kind = LayerKind::other});
    register_op({.name = "TestMapBackward",
                 .infer = like_first,
                 .in_place =
                     [](const Graph&, const Op&) {
                       return std::vector<InPlace>{{0, 0}, {0, 1}};
                     },
                 .kind = LayerKind::other});
    register_op({.name = "TestView",
                 .infer = of_shape,
                 .in_place =
                     [](const Graph&, const Op&) {
                       return std::vector<InPlace>{{0, 0, true}};
                     },
                 .is_view = true,
                 .kind = LayerKind::other});
    register_op(
        {.name = "TestNorm",
         .infer =
             [](const Attributes&, std::span<const Tensor* const> in) {
               return std::vector<TensorSpec>{{in[0]->shape, DType::f32}, {in[1]->shape, DType::f32, Role::statistic}};
             },
         .in_place =
             [](const Graph&, const Op&) {
               return std::vector<InPlace>{{0, 0}, {1, 1, true}};
             },
         .state_outputs = {1},
         .kind = LayerKind::other});
    register_op({.name = "TestBatchNorm",
                 .infer =
                     [](const Attributes&, std::span<const Tensor* const> in) {
                       return std::vector<TensorSpec>{{in[0]->shape, DType::f32},
                                                      {in[1]->shape, DType::f32, Role::statistic},
                                                      {in[1]->shape, DType::f32}};
                     },
                 .in_place =
                     [](const Graph&, const Op&) {
                       return std::vector<InPlace>{{0, 0}, {1, 1, true}};
                     },
                 .state_outputs = {1},
                 .kind = LayerKind::other});
    register_op({.name = "TestUpdate",
                 .infer =
                     [](const Attributes&, std::span<const Tensor* const> in) {
                       return std::vector<TensorSpec>{{in[0]->shape, DType::f32, Role::parameter}};
                     },
                 .in_place =
                     [](const Graph&, const Op&) {
                       return std::vector<InPlace>{{0, 0, true}};
                     },
                 .changes_state = true,
                 .kind = LayerKind::other});
    return true;
  }();
  (void)done;
}

struct RandomGraphOptions {
  int forward_ops = 30;
  bool updates = true;
};

class RandomGraph {
 public:
  RandomGraph(uint64_t seed, const RandomGraphOptions& options) : random_(seed), options_(options) {
    register_test_ops();
    graph_.name = fmt::format("random-{}", seed);
  }

  Graph make() {
    readable_.push_back(graph_.add_source("data", {1 + draw(4), 3, 16}, DType::f32, Role::input));
    if (chance(50)) readable_.push_back(graph_.add_source("labels", {1 + draw(4)}, DType::i32, Role::input));
    for (int i = 0; i < options_.forward_ops; ++i) add_forward(i);
    std::vector<TensorId> ends;
    for (TensorId t : made_) {
      if (!was_read_[t.index] || chance(3)) ends.push_back(t);
    }
    const OpId loss = graph_.add_op("TestMix", "loss", "loss", ends, {{"shape", std::vector<int64_t>{1}}});
    graph_.tensor(graph_.output(loss)).role = Role::output;
    graph_.outputs.push_back(graph_.output(loss));
    const OpId seed = graph_.add_op("Constant", "one", "loss", {}, {{"shape", std::vector<int64_t>{1}}, {"value", 1.0}},
                                    Phase::backward);
    gradients_[graph_.output(loss).index] = {graph_.output(seed)};
    for (int32_t i = loss.index; i >= 0; --i) add_backward({i});
    if (options_.updates) add_updates();
    check(graph_);
    return std::move(graph_);
  }

 private:
  int64_t draw(int64_t below) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(below)); }
  bool chance(int percent) { return draw(100) < percent; }
  TensorId recent() {
    const int64_t reach = std::min<int64_t>(static_cast<int64_t>(readable_.size()), 1 + draw(6));
    return use(readable_[readable_.size() - 1 - draw(reach)]);
  }
  TensorId use(TensorId t) {
    was_read_[t.index] = true;
    return t;
  }
  Shape shape() { return {1 + draw(8), 1 + draw(20), 1 + draw(40)}; }

  void add_forward(int i) {
    const std::string name = fmt::format("f{}", i);
    OpId op;
    const int64_t kind = draw(10);
    if (kind < 4) {
      std::vector<TensorId> in{recent()};
      for (int64_t n = draw(3); n > 0; --n) in.push_back(recent());
      in.push_back(parameter());
      op = graph_.add_op("TestMix", name, name, in, {{"shape", shape()}});
    } else if (kind < 7) {
      op = graph_.add_op("TestMap", name, name, {recent()});
    } else if (kind < 8) {
      const TensorId in = recent();
      const Shape flat{element_count(graph_.tensor(in).shape)};
      if (graph_.tensor(in).dtype != DType::f32) return;
      op = graph_.add_op("TestView", name, name, {in}, {{"shape", flat}});
    } else {
      const TensorId running = graph_.add_source(name + ".running", {1 + draw(64)}, DType::f32, Role::statistic);
      op = graph_.add_op("TestBatchNorm", name, name, {recent(), running}, {}, Phase::forward,
                         {name + ":0", name + ".running.next", name + ".saved"});
      if (chance(30)) readable_.push_back(use(graph_.output(op, 2)));
      graph_.states.back().after = graph_.output(op, 1);
    }
    readable_.push_back(graph_.output(op));
    made_.push_back(graph_.output(op));
  }

  TensorId parameter() {
    if (!parameters_.empty() && chance(20)) return parameters_[draw(static_cast<int64_t>(parameters_.size()))];
    parameters_.push_back(
        graph_.add_source(fmt::format("w{}", parameters_.size()), shape(), DType::f32, Role::parameter));
    return parameters_.back();
  }

  // The sum of a tensor's gradients; invalid when none came.
  TensorId gradient(TensorId t) {
    std::vector<TensorId>& list = gradients_[t.index];
    if (list.empty()) return {};
    if (list.size() > 1) {
      const OpId sum = graph_.add_op("TestMix", fmt::format("sum{}", graph_.op_count()), "", list,
                                     {{"shape", graph_.tensor(t).shape}}, Phase::backward);
      list = {graph_.output(sum)};
    }
    return list[0];
  }

  void add_backward(OpId id) {
    const Op op = graph_.op(id);
    const TensorId dy = gradient(op.outputs[0]);
    if (!dy.valid()) return;
    int count = 0;
    for (TensorId in : op.inputs) {
      const Tensor of = graph_.tensor(in);
      const bool learnt = of.role == Role::parameter;
      if (!learnt && !of.producer.valid()) continue;
      const std::string name = fmt::format("{}/backward{}", op.name, count++);
      OpId back;
      if (op.type->name == "TestMap" && of.shape == graph_.tensor(dy).shape) {
        back = graph_.add_op("TestMapBackward", name, op.layer, {dy, op.outputs[0]}, {}, Phase::backward);
      } else if (op.type->is_view) {
        back = graph_.add_op("TestView", name, op.layer, {dy}, {{"shape", of.shape}}, Phase::backward);
      } else {
        std::vector<TensorId> reads{dy};
        for (TensorId other : op.inputs) {
          if (graph_.tensor(other).role != Role::statistic && chance(60)) reads.push_back(other);
        }
        if (chance(30)) reads.push_back(op.outputs[0]);
        if (op.outputs.size() > 2) reads.push_back(op.outputs[2]);
        back = graph_.add_op("TestMix", name, op.layer, reads, {{"shape", of.shape}}, Phase::backward);
      }
      graph_.op(back).forward = id;
      gradients_[in.index].push_back(graph_.output(back));
    }
  }

  void add_updates() {
    for (TensorId w : parameters_) {
      const TensorId g = gradient(w);
      if (!g.valid()) continue;
      const std::string name = graph_.tensor(w).name;
      const OpId update =
          graph_.add_op("TestUpdate", name + "/update", name, {w, g}, {}, Phase::update, {name + ".next"});
      for (State& state : graph_.states) {
        if (state.before == w) state.after = graph_.output(update);
      }
    }
  }

  std::mt19937_64 random_;
  RandomGraphOptions options_;
  Graph graph_;
  std::vector<TensorId> readable_, made_, parameters_;
  std::map<int32_t, bool> was_read_;
  std::map<int32_t, std::vector<TensorId>> gradients_;
};

inline Graph random_graph(uint64_t seed, const RandomGraphOptions& options = {}) {
  return RandomGraph(seed, options).make();
}

// A kernel "k" for every op, with a workspace for some.
inline std::vector<KernelChoice> random_kernels(const Graph& graph, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<KernelChoice> kernels;
  for (const Op& op : graph.ops()) {
    if (op.type->is_view) {
      kernels.push_back({"", {}});
    } else {
      kernels.push_back({"k", {random() % 3 == 0 ? static_cast<int64_t>(random() % 5000) : 0}});
    }
  }
  return kernels;
}

}  // namespace plimsoll::testing
