#include "plan/route.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "base/by_id.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

bool only_changes_layout(const Graph& graph, const Op& op) {
  if (op.inputs.size() != 1 || op.outputs.size() != 1) return false;
  const Tensor& from = graph.tensor(op.inputs[0]);
  const Tensor& to = graph.tensor(op.outputs[0]);
  return from.shape == to.shape && from.dtype == to.dtype && from.layout != to.layout;
}

// Ops that gain nothing by running early and whose result only takes room: reorders, views, and what is made from
// nothing or from states and scalars alone (constants, noise). They run right before their first reader.
ById<OpId, bool> find_late_ops(const Graph& graph, const ById<TensorId, std::vector<OpId>>& readers) {
  ById<OpId, bool> late(graph.op_count(), false);
  for (int32_t i = 0; i < graph.op_count(); ++i) {
    const Op& op = graph.op({i});
    if (op.phase == Phase::update || op.type->changes_state || !state_outputs(op).empty()) continue;
    const bool read =
        std::any_of(op.outputs.begin(), op.outputs.end(), [&](TensorId t) { return !readers[t].empty(); });
    if (!read) continue;
    const bool from_nothing = std::all_of(op.inputs.begin(), op.inputs.end(), [&](TensorId t) {
      return !graph.tensor(t).producer.valid() && graph.tensor(t).role != Role::input;
    });
    late[OpId{i}] = from_nothing || op.type->is_view || only_changes_layout(graph, op);
  }
  return late;
}

class Router {
 public:
  explicit Router(const Graph& graph)
      : graph_(graph), readers_(graph.readers()), late_(find_late_ops(graph, readers_)), emitted_(late_.size(), false) {
    find_view_roots();
    find_edges();
  }

  Route route() {
    rank_forward();
    rank_backward();
    sort();
    return std::move(route_);
  }

 private:
  using Key = std::pair<int64_t, int32_t>;  // rank, then creation order

  bool is_late(OpId id) const { return late_[id]; }

  void find_view_roots() {
    view_root_.resize(graph_.tensor_count());
    for (TensorId id : view_root_.ids()) view_root_[id] = id;
    // A view may be listed before what it views, so follow each chain to its end.
    for (int32_t i = 0; i < graph_.tensor_count(); ++i) {
      TensorId t{i};
      for (int32_t hops = 0; hops < graph_.tensor_count(); ++hops) {
        const OpId producer = graph_.tensor(t).producer;
        if (!producer.valid() || !graph_.op(producer).type->is_view) break;
        t = graph_.op(producer).inputs[0];
      }
      view_root_[TensorId{i}] = t;
    }
  }

  // Calls visit(op) for every op that is not late and gets `tensor` directly or through late ops.
  template <class Visit>
  void for_each_reader(TensorId tensor, const Visit& visit) const {
    for (OpId reader : readers_[tensor]) {
      if (!is_late(reader)) {
        visit(reader);
      } else {
        for (TensorId out : graph_.op(reader).outputs) for_each_reader(out, visit);
      }
    }
  }

  void find_edges() {
    const size_t count = late_.size();
    next_.resize(count);
    waiting_.assign(count, 0);
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      if (is_late({i})) continue;
      for (TensorId out : graph_.op({i}).outputs)
        for_each_reader(out, [&](OpId reader) { next_[OpId{i}].push_back(reader); });
    }
    find_overwrites();
    // Each follower once, the first mention keeps its place.
    ById<OpId, OpId> last_seen_by(count);
    for (OpId before : next_.ids()) {
      std::erase_if(next_[before], [&](OpId id) { return std::exchange(last_seen_by[id], before) == before; });
      for (OpId id : next_[before]) ++waiting_[id];
    }
  }

  // An op that must write into an input's bytes comes after everyone else who reads them.
  void find_overwrites() {
    overwrites_.resize(late_.size());
    ById<TensorId, std::vector<TensorId>> members(graph_.tensor_count());
    for (TensorId id : members.ids()) members[view_root_[id]].push_back(id);
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      const Op& op = graph_.op({i});
      if (op.type->is_view || !op.type->in_place) continue;
      for (const InPlace& pair : op.type->in_place(graph_, op)) {
        if (!pair.required) continue;
        for (TensorId member : members[view_root_[op.inputs.at(pair.input)]]) {
          overwrites_[OpId{i}].push_back(member);
          for (OpId reader : readers_[member]) {
            if (reader.index != i && !is_late(reader)) next_[reader].push_back({i});
          }
        }
      }
    }
  }

  // SuperNeurons, Algorithm 1, without its recursion: depth first, an op is entered by the last of its inputs.
  void rank_forward() {
    position_.assign(late_.size(), -1);
    auto counts = [&](OpId id) { return !is_late(id) && graph_.op(id).phase == Phase::forward; };
    ById<OpId, int32_t> waiting(late_.size(), 0);
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      if (!counts({i})) continue;
      for (OpId id : next_[OpId{i}]) ++waiting[id];
    }
    struct Visit {
      OpId op;
      size_t next = 0;
    };
    std::vector<Visit> path;
    for (int32_t root = 0; root < graph_.op_count(); ++root) {
      if (!counts({root}) || waiting[OpId{root}] > 0 || position_[OpId{root}] >= 0) continue;
      path.push_back({{root}});
      position_[OpId{root}] = forward_count_++;
      while (!path.empty()) {
        Visit& visit = path.back();
        if (visit.next == next_[visit.op].size()) {
          path.pop_back();
          continue;
        }
        const OpId follower = next_[visit.op][visit.next++];
        if (!counts(follower) || --waiting[follower] > 0) continue;
        position_[follower] = forward_count_++;
        path.push_back({follower});
      }
    }
  }

  int64_t backward_rank(OpId forward) const {
    int64_t position = position_[forward];
    if (position < 0) {  // a late op stands where its first reader stands
      for (TensorId out : graph_.op(forward).outputs) {
        for_each_reader(out, [&](OpId reader) {
          const int64_t p = position_[reader];
          if (p >= 0 && (position < 0 || p < position)) position = p;
        });
      }
    }
    return position < 0 ? forward_count_ : 2 * forward_count_ - 1 - position;
  }

  void rank_backward() {
    rank_.assign(late_.size(), 0);
    ById<OpId, int32_t> waiting = waiting_;
    std::vector<OpId> ready;
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      const Op& op = graph_.op({i});
      int64_t& rank = rank_[OpId{i}];
      rank = op.phase == Phase::update    ? -1
             : op.phase == Phase::forward ? position_[OpId{i}]
             : op.forward.valid()         ? backward_rank(op.forward)
                                          : forward_count_;
      if (op.phase == Phase::forward && rank < 0) rank = forward_count_;
      if (!is_late({i}) && waiting[OpId{i}] == 0) ready.push_back({i});
    }
    // Backward ops without a mark (sums of gradients) run right after the last of their inputs.
    while (!ready.empty()) {
      const OpId id = ready.back();
      ready.pop_back();
      for (OpId follower : next_[id]) {
        const Op& op = graph_.op(follower);
        if (op.phase == Phase::backward && !op.forward.valid()) rank_[follower] = std::max(rank_[follower], rank_[id]);
        if (--waiting[follower] == 0) ready.push_back(follower);
      }
    }
  }

  void sort() {
    std::priority_queue<Key, std::vector<Key>, std::greater<>> ready;
    int32_t expected = 0;
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      if (is_late({i})) continue;
      ++expected;
      if (waiting_[OpId{i}] == 0) ready.emplace(rank_[OpId{i}], i);
    }
    while (!ready.empty()) {
      const OpId id{ready.top().second};
      ready.pop();
      emit(id);
      --expected;
      for (OpId follower : next_[id]) {
        if (--waiting_[follower] == 0) ready.emplace(rank_[follower], follower.index);
      }
    }
    if (expected > 0) report_cycle();
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      if (is_late({i})) emit({i});  // read only by late ops that nobody reads
    }
  }

  // Runs `id` after the late ops that it needs, and after the late readers of what it overwrites.
  void emit(OpId id) {
    if (emitted_[id]) return;
    emitted_[id] = true;
    for (TensorId input : graph_.op(id).inputs) {
      const OpId producer = graph_.tensor(input).producer;
      if (producer.valid() && is_late(producer)) emit(producer);
    }
    for (TensorId lost : overwrites_[id]) {
      for (OpId reader : readers_[lost]) {
        if (is_late(reader)) emit(reader);
      }
    }
    route_.order.push_back(id);
  }

  [[noreturn]] void report_cycle() const {
    int32_t i = 0;
    while (is_late({i}) || emitted_[OpId{i}]) ++i;
    throw Error(
        ErrorCode::invalid_input,
        fmt::format("graph '{}': op '{}' can never run: it waits for its own result, or it overwrites what an op "
                    "that waits for it still reads",
                    graph_.name, graph_.op({i}).name));
  }

  const Graph& graph_;
  ById<TensorId, std::vector<OpId>> readers_;
  ById<OpId, bool> late_;
  ById<OpId, bool> emitted_;
  ById<TensorId, TensorId> view_root_;
  ById<OpId, std::vector<OpId>> next_;            // late ops left out, edges through them joined
  ById<OpId, int32_t> waiting_;                   // number of different ops that come before
  ById<OpId, std::vector<TensorId>> overwrites_;  // by op: tensors whose bytes it must take
  ById<OpId, int64_t> position_;                  // of forward ops in depth-first order
  ById<OpId, int64_t> rank_;
  int64_t forward_count_ = 0;
  Route route_;
};

}  // namespace

Route make_route(const Graph& graph) { return Router(graph).route(); }

Route gather_updates(const Graph& graph, const Route& route) {
  constexpr Bytes kSmall = 256_KiB, kWaiting = 4_MiB;  // of gradients
  const ById<TensorId, std::vector<OpId>> readers(graph.readers());
  Route result;
  std::vector<OpId> waiting;
  Bytes bytes;
  // Those that share a learning rate next to each other: they may be one launch.
  const auto release = [&] {
    std::ranges::stable_sort(waiting, {}, [&](OpId id) { return graph.op(id).inputs[2]; });
    result.order.insert(result.order.end(), waiting.begin(), waiting.end());
    waiting.clear();
    bytes = {};
  };
  for (const OpId id : route.order) {
    const Op& op = graph.op(id);
    // One of several ops of an update stays where the others are.
    const bool alone = op.type->name != "PointwiseUpdate";
    const bool waits = op.phase == Phase::update && op.type->changes_state && op.inputs.size() > 2 && alone &&
                       graph.tensor(op.inputs[1]).bytes() <= kSmall &&
                       std::ranges::all_of(op.outputs, [&](TensorId out) { return readers[out].empty(); });
    if (!waits) {
      result.order.push_back(id);
      continue;
    }
    const Bytes gradient = graph.tensor(op.inputs[1]).bytes();
    if (bytes + gradient > kWaiting) release();
    waiting.push_back(id);
    bytes += gradient;
  }
  release();
  return result;
}

Route listed_route(const Graph& graph) {
  Route route;
  for (OpId op{0}; op.index < graph.op_count(); ++op.index) route.order.push_back(op);
  return route;
}

Route route_of(const Plan& plan) {
  Route route;
  for (const Step& step : plan.steps) {
    if (!step.recompute) route.order.push_back(step.op);
  }
  return route;
}

}  // namespace plimsoll
