#include "plan/overlap.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "base/by_id.h"
#include "plan/dependencies.h"
#include "plan/simulate.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr Bytes kBuckets[] = {0_B, 256_KiB, 1_MiB, 4_MiB, 16_MiB, 64_MiB, {INT64_MAX}};

struct Reduced {
  const OpType* type = nullptr;
  StepIndex step = 0, before = 0;
  Bytes bytes;
};

// The collectives of a plan, and before which step each must be complete: the first that touches what it touches, copies
// included.
std::vector<Reduced> reduced_of(const Graph& graph, const Plan& plan) {
  std::vector<Reduced> result;
  const Dependencies dependencies = find_dependencies(graph, plan);
  const StepIndex steps = static_cast<StepIndex>(plan.steps.size());
  for (StepIndex s = 0; s < steps; ++s) {
    const Op& op = graph.op(plan.steps[s].op);
    if (!op.type->is_collective) continue;
    Reduced& reduced = result.emplace_back(Reduced{.type = op.type, .step = s, .before = steps});
    for (TensorId id : op.outputs) reduced.bytes += graph.tensor(id).bytes();
    for (const int32_t node : dependencies.after(s)) {
      const StepIndex before = node < steps ? node : plan.moves[node - steps].after + 1;
      reduced.before = std::min(reduced.before, before);
    }
  }
  return result;
}

// A bucket has ops of one type, is full with so many bytes, and ends where a member is needed. Those of other types may
// begin while it fills.
std::vector<Collective> buckets_of(const std::vector<Reduced>& all, Bytes size) {
  struct Filling {
    size_t bucket = 0;
    Bytes bytes;
  };
  std::map<const OpType*, Filling> filling;
  std::vector<Collective> buckets;
  for (const Reduced& reduced : all) {
    const auto open = filling.find(reduced.type);
    const bool fits =
        open != filling.end() && open->second.bytes < size && reduced.step < buckets[open->second.bucket].before;
    if (!fits) {
      filling[reduced.type] = {.bucket = buckets.size()};
      buckets.push_back({.before = reduced.before});
    }
    Filling& place = filling[reduced.type];
    Collective& bucket = buckets[place.bucket];
    bucket.steps.push_back(reduced.step);
    bucket.before = std::min(bucket.before, reduced.before);
    place.bytes += reduced.bytes;
  }
  std::ranges::sort(buckets, {}, [](const Collective& bucket) { return bucket.steps.back(); });
  return buckets;
}

}  // namespace

Route delay_updates(const Graph& graph, Route route, Bytes in_flight) {
  if (in_flight.count == 0) return route;
  struct Delayed {
    OpId op;
    Bytes bytes;
  };
  const ById<TensorId, std::vector<OpId>> readers(graph.readers());
  const auto waits = [&](const Op& op) {  // and nobody waits for it
    const bool reads = std::ranges::any_of(op.inputs, [&](TensorId id) {
      const OpId producer = graph.tensor(id).producer;
      return producer.valid() && graph.op(producer).type->is_collective;
    });
    return reads && op.type->changes_state && !op.type->is_collective &&
           std::ranges::all_of(op.outputs, [&](TensorId id) { return readers[id].empty(); });
  };
  Route result;
  std::deque<Delayed> delayed;
  Bytes waiting;
  for (OpId id : route.order) {
    const Op& op = graph.op(id);
    if (!waits(op)) {
      result.order.push_back(id);
      continue;
    }
    delayed.push_back({id, graph.tensor(op.inputs[0]).bytes()});
    waiting += delayed.back().bytes;
    while (waiting > in_flight) {
      result.order.push_back(delayed.front().op);
      waiting -= delayed.front().bytes;
      delayed.pop_front();
    }
  }
  for (const Delayed& update : delayed) result.order.push_back(update.op);
  return result;
}

Plan overlap_messages(const Graph& graph, const Plan& plan) {
  if (plan.link.ranks < 2 || plan.cores.inter_op > 1) return plan;
  const std::vector<Reduced> all = reduced_of(graph, plan);
  Plan best = plan;
  for (const Bytes size : kBuckets) {
    Plan next = plan;
    next.collectives = buckets_of(all, size);
    if (next.collectives.empty()) break;
    take_times_of_collectives(graph, next);
    next.predicted = simulate(graph, next);
    if (next.predicted.step_time_ms < best.predicted.step_time_ms) best = std::move(next);
  }
  return best;
}

}  // namespace plimsoll
