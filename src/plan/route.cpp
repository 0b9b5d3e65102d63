#include "plan/route.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <queue>

#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

size_t at(OpId id) { return static_cast<size_t>(id.index); }
size_t at(TensorId id) { return static_cast<size_t>(id.index); }

bool only_changes_layout(const Graph& graph, const Op& op) {
  if (op.inputs.size() != 1 || op.outputs.size() != 1) return false;
  const Tensor& from = graph.tensor(op.inputs[0]);
  const Tensor& to = graph.tensor(op.outputs[0]);
  return from.shape == to.shape && from.dtype == to.dtype && from.layout != to.layout;
}

// Ops that gain nothing by running early and whose result only takes room: reorders, views, and what is made from
// nothing or from states and scalars alone (constants, noise). They run right before their first reader.
std::vector<bool> find_late_ops(const Graph& graph, const std::vector<std::vector<OpId>>& readers) {
  std::vector<bool> late(static_cast<size_t>(graph.op_count()), false);
  for (int32_t i = 0; i < graph.op_count(); ++i) {
    const Op& op = graph.op({i});
    if (op.phase == Phase::update || op.type->changes_state || !op.type->state_outputs.empty()) continue;
    const bool read =
        std::any_of(op.outputs.begin(), op.outputs.end(), [&](TensorId t) { return !readers[at(t)].empty(); });
    if (!read) continue;
    const bool from_nothing = std::all_of(op.inputs.begin(), op.inputs.end(), [&](TensorId t) {
      return !graph.tensor(t).producer.valid() && graph.tensor(t).role != Role::input;
    });
    late[static_cast<size_t>(i)] = from_nothing || op.type->is_view || only_changes_layout(graph, op);
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

  bool is_late(OpId id) const { return late_[at(id)]; }

  void find_view_roots() {
    view_root_.resize(static_cast<size_t>(graph_.tensor_count()));
    for (int32_t i = 0; i < graph_.tensor_count(); ++i) view_root_[static_cast<size_t>(i)] = {i};
    // A view may be listed before what it views, so follow each chain to its end.
    for (int32_t i = 0; i < graph_.tensor_count(); ++i) {
      TensorId t{i};
      for (int32_t hops = 0; hops < graph_.tensor_count(); ++hops) {
        const OpId producer = graph_.tensor(t).producer;
        if (!producer.valid() || !graph_.op(producer).type->is_view) break;
        t = graph_.op(producer).inputs[0];
      }
      view_root_[static_cast<size_t>(i)] = t;
    }
  }

  // Calls visit(op) for every op that is not late and gets `tensor` directly or through late ops.
  template <class Visit>
  void for_each_reader(TensorId tensor, const Visit& visit) const {
    for (OpId reader : readers_[at(tensor)]) {
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
        for_each_reader(out, [&](OpId reader) { next_[static_cast<size_t>(i)].push_back(reader); });
    }
    find_overwrites();
    // Each follower once, the first mention keeps its place.
    std::vector<int32_t> seen(count, -1);
    for (size_t i = 0; i < count; ++i) {
      auto fresh = [&](OpId id) {
        const bool first = seen[at(id)] != static_cast<int32_t>(i);
        seen[at(id)] = static_cast<int32_t>(i);
        return !first;
      };
      next_[i].erase(std::remove_if(next_[i].begin(), next_[i].end(), fresh), next_[i].end());
      for (OpId id : next_[i]) ++waiting_[at(id)];
    }
  }

  // An op that must write into an input's bytes comes after everyone else who reads them.
  void find_overwrites() {
    overwrites_.resize(late_.size());
    std::vector<std::vector<TensorId>> members(static_cast<size_t>(graph_.tensor_count()));
    for (int32_t i = 0; i < graph_.tensor_count(); ++i) members[at(view_root_[static_cast<size_t>(i)])].push_back({i});
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      const Op& op = graph_.op({i});
      if (op.type->is_view || !op.type->in_place) continue;
      for (const InPlace& pair : op.type->in_place(graph_, op)) {
        if (!pair.required) continue;
        for (TensorId member : members[at(view_root_[at(op.inputs.at(static_cast<size_t>(pair.input)))])]) {
          overwrites_[static_cast<size_t>(i)].push_back(member);
          for (OpId reader : readers_[at(member)]) {
            if (reader.index != i && !is_late(reader)) next_[at(reader)].push_back({i});
          }
        }
      }
    }
  }

  // SuperNeurons, Algorithm 1, without its recursion: depth first, an op is entered by the last of its inputs.
  void rank_forward() {
    position_.assign(late_.size(), -1);
    auto counts = [&](OpId id) { return !is_late(id) && graph_.op(id).phase == Phase::forward; };
    std::vector<int32_t> waiting(late_.size(), 0);
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      if (!counts({i})) continue;
      for (OpId id : next_[static_cast<size_t>(i)]) ++waiting[at(id)];
    }
    struct Visit {
      OpId op;
      size_t next = 0;
    };
    std::vector<Visit> path;
    for (int32_t root = 0; root < graph_.op_count(); ++root) {
      if (!counts({root}) || waiting[static_cast<size_t>(root)] > 0 || position_[static_cast<size_t>(root)] >= 0)
        continue;
      path.push_back({{root}});
      position_[static_cast<size_t>(root)] = forward_count_++;
      while (!path.empty()) {
        Visit& visit = path.back();
        if (visit.next == next_[at(visit.op)].size()) {
          path.pop_back();
          continue;
        }
        const OpId follower = next_[at(visit.op)][visit.next++];
        if (!counts(follower) || --waiting[at(follower)] > 0) continue;
        position_[at(follower)] = forward_count_++;
        path.push_back({follower});
      }
    }
  }

  int64_t backward_rank(OpId forward) const {
    int64_t position = position_[at(forward)];
    if (position < 0) {  // a late op stands where its first reader stands
      for (TensorId out : graph_.op(forward).outputs) {
        for_each_reader(out, [&](OpId reader) {
          const int64_t p = position_[at(reader)];
          if (p >= 0 && (position < 0 || p < position)) position = p;
        });
      }
    }
    return position < 0 ? forward_count_ : 2 * forward_count_ - 1 - position;
  }

  void rank_backward() {
    rank_.assign(late_.size(), 0);
    std::vector<int32_t> waiting = waiting_;
    std::vector<OpId> ready;
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      const Op& op = graph_.op({i});
      int64_t& rank = rank_[static_cast<size_t>(i)];
      rank = op.phase == Phase::update    ? -1
             : op.phase == Phase::forward ? position_[static_cast<size_t>(i)]
             : op.forward.valid()         ? backward_rank(op.forward)
                                          : forward_count_;
      if (op.phase == Phase::forward && rank < 0) rank = forward_count_;
      if (!is_late({i}) && waiting[static_cast<size_t>(i)] == 0) ready.push_back({i});
    }
    // Backward ops without a mark (sums of gradients) run right after the last of their inputs.
    while (!ready.empty()) {
      const OpId id = ready.back();
      ready.pop_back();
      for (OpId follower : next_[at(id)]) {
        const Op& op = graph_.op(follower);
        if (op.phase == Phase::backward && !op.forward.valid())
          rank_[at(follower)] = std::max(rank_[at(follower)], rank_[at(id)]);
        if (--waiting[at(follower)] == 0) ready.push_back(follower);
      }
    }
  }

  void sort() {
    std::priority_queue<Key, std::vector<Key>, std::greater<>> ready;
    int32_t expected = 0;
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      if (is_late({i})) continue;
      ++expected;
      if (waiting_[static_cast<size_t>(i)] == 0) ready.emplace(rank_[static_cast<size_t>(i)], i);
    }
    while (!ready.empty()) {
      const OpId id{ready.top().second};
      ready.pop();
      emit(id);
      --expected;
      for (OpId follower : next_[at(id)]) {
        if (--waiting_[at(follower)] == 0) ready.emplace(rank_[at(follower)], follower.index);
      }
    }
    if (expected > 0) report_cycle();
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      if (is_late({i})) emit({i});  // read only by late ops that nobody reads
    }
  }

  // Runs `id` after the late ops that it needs, and after the late readers of what it overwrites.
  void emit(OpId id) {
    if (emitted_[at(id)]) return;
    emitted_[at(id)] = true;
    for (TensorId input : graph_.op(id).inputs) {
      const OpId producer = graph_.tensor(input).producer;
      if (producer.valid() && is_late(producer)) emit(producer);
    }
    for (TensorId lost : overwrites_[at(id)]) {
      for (OpId reader : readers_[at(lost)]) {
        if (is_late(reader)) emit(reader);
      }
    }
    route_.order.push_back(id);
  }

  [[noreturn]] void report_cycle() const {
    int32_t i = 0;
    while (is_late({i}) || emitted_[static_cast<size_t>(i)]) ++i;
    throw Error(
        ErrorCode::invalid_input,
        fmt::format("graph '{}': op '{}' can never run: it waits for its own result, or it overwrites what an op "
                    "that waits for it still reads",
                    graph_.name, graph_.op({i}).name));
  }

  const Graph& graph_;
  std::vector<std::vector<OpId>> readers_;  // by tensor
  std::vector<bool> late_;
  std::vector<bool> emitted_;
  std::vector<TensorId> view_root_;
  std::vector<std::vector<OpId>> next_;            // late ops left out, edges through them joined
  std::vector<int32_t> waiting_;                   // number of different ops that come before
  std::vector<std::vector<TensorId>> overwrites_;  // by op: tensors whose bytes it must take
  std::vector<int64_t> position_;                  // of forward ops in depth-first order
  std::vector<int64_t> rank_;
  int64_t forward_count_ = 0;
  Route route_;
};

}  // namespace

Route make_route(const Graph& graph) { return Router(graph).route(); }

}  // namespace plimsoll
