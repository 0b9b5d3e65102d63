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

constexpr Bytes kMostGathered = 32_MiB;  // ahead of who reads them; but two of the largest parameters

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
  ById<TensorId, std::vector<int32_t>> stays(graph.tensor_count());
  for (int32_t i = 0; std::cmp_less(i, plan.stays.size()); ++i) {
    if (!plan.stays[i].is_workspace()) stays[plan.stays[i].tensor].push_back(i);
  }
  // Of a tensor, or of what it is a view of.
  const auto stay_of = [&](TensorId id, StepIndex s) -> const Stay* {
    for (;;) {
      for (const int32_t i : stays[id]) {
        if (plan.stays[i].first <= s && s <= plan.stays[i].last) return &plan.stays[i];
      }
      const OpId by = graph.tensor(id).producer;
      if (!by.valid() || !graph.op(by).type->is_view) return nullptr;
      id = graph.op(by).inputs[0];
    }
  };
  const auto end_of = [&](const Stay* stay) {  // from where its bytes are no longer its own
    return stay == nullptr ? steps : stay->last + 1;
  };
  for (StepIndex s = 0; s < steps; ++s) {
    const Op& op = graph.op(plan.steps[s].op);
    if (!op.type->is_collective) continue;
    Reduced& reduced = result.emplace_back(Reduced{.type = op.type, .step = s, .before = steps});
    for (TensorId id : op.outputs) reduced.bytes += graph.tensor(id).bytes();
    for (const int32_t node : dependencies.after(s)) {
      const StepIndex before = node < steps ? node : plan.moves[node - steps].after + 1;
      reduced.before = std::min(reduced.before, before);
    }
    for (size_t i = op.type->name == "AllReduce" ? 1 : 0; i < op.inputs.size(); ++i) {
      const Stay* const read = stay_of(op.inputs[i], s);
      const bool goes_over = read != nullptr && std::ranges::any_of(op.outputs, [&](TensorId out) {
                               const Stay* const written = stay_of(out, s);
                               return written != nullptr && written->offset == read->offset;
                             });
      if (!goes_over) reduced.before = std::min(reduced.before, end_of(read));
    }
    for (TensorId id : op.outputs) {
      reduced.before = std::min(reduced.before, end_of(stay_of(id, s)));
      for (StepIndex r = s + 1; r < reduced.before; ++r) {  // views are no dependants
        const std::vector<TensorId>& read = graph.op(plan.steps[r].op).inputs;
        if (std::ranges::find(read, id) != read.end()) reduced.before = r;
      }
    }
  }
  return result;
}

// A bucket has collectives of one type. It is full with so many bytes, and ends where a member is needed.
std::vector<Collective> buckets_of(const std::vector<Reduced>& all, Bytes size) {
  struct Open {
    size_t bucket = 0;
    Bytes bytes;
  };
  std::vector<Collective> buckets;
  std::map<const OpType*, Open> open;
  for (const Reduced& reduced : all) {
    const auto [place, is_new] = open.try_emplace(reduced.type);
    Open& current = place->second;
    const bool fits = !is_new && current.bytes < size && reduced.step < buckets[current.bucket].before;
    if (!fits) {
      current = {.bucket = buckets.size()};
      buckets.push_back({.before = reduced.before});
    }
    Collective& bucket = buckets[current.bucket];
    bucket.steps.push_back(reduced.step);
    bucket.before = std::min(bucket.before, reduced.before);
    current.bytes += reduced.bytes;
  }
  std::ranges::sort(buckets, {}, [](const Collective& c) { return c.steps.back(); });
  return buckets;
}

// Moves ops of a route back, with what belongs to them.
class Delay {
 public:
  Delay(const Graph& graph, Bytes in_flight) : graph_(graph), in_flight_(in_flight), readers_(graph.readers()) {}

  Route run(const Route& route) {
    for (const OpId id : route.order) place(id);
    while (!delayed_.empty()) release_first();
    while (!arriving_.empty()) put_first_arrival();
    return std::move(result_);
  }

 private:
  struct Delayed {
    std::vector<OpId> ops;  // the update, what takes its piece of the parameter, and what gives it to others
    Bytes bytes;
  };

  void place(OpId id) {
    const Op& op = graph_.op(id);
    const bool is_wait = op.type->name == "Wait";
    const bool is_read = !readers_[op.outputs.empty() ? TensorId{0} : op.outputs[0]].empty();
    if (is_read && (is_wait || op.type->is_of_rank || op.type->name == "NormOfSums")) {  // right before who reads it
      held_[op.outputs[0]] = id;
      return;
    }
    if (is_wait) return arrive(id);
    if (const auto update = updates_.find(op.inputs.size() > 1 ? op.inputs[1] : TensorId{}); update != updates_.end()) {
      update->second->ops.push_back(id);
      return;
    }
    if (!waits(op)) {
      place_held(op, result_.order);
      result_.order.push_back(id);
      return;
    }
    Delayed& update = delayed_.emplace_back();
    place_held(op, update.ops);
    update.ops.push_back(id);
    update.bytes = graph_.tensor(op.inputs[0]).bytes();
    for (TensorId out : op.outputs) updates_[out] = &update;
    waiting_ += update.bytes;
    // What is delayed with it may come behind it, so the last one stays.
    while (waiting_ > in_flight_ && delayed_.size() > 1) release_first();
  }

  // A parameter that comes back: nobody waits for it in this step.
  void arrive(OpId wait) {
    const TensorId piece = graph_.op(wait).inputs[1];
    if (const auto update = updates_.find(piece); update != updates_.end()) {
      update->second->ops.push_back(wait);
      return;
    }
    put(wait);
  }

  // Such a wait is put behind as much as may be in flight; anything else here.
  void put(OpId id) {
    const Op& op = graph_.op(id);
    if (op.type->name != "Wait" || !readers_[op.outputs[0]].empty()) {
      result_.order.push_back(id);
      return;
    }
    arriving_.push_back({{id}, graph_.tensor(op.outputs[0]).bytes()});
    arriving_bytes_ += arriving_.back().bytes;
    while (arriving_bytes_ > in_flight_) put_first_arrival();
  }
  void put_first_arrival() {
    result_.order.push_back(arriving_.front().ops[0]);
    arriving_bytes_ -= arriving_.front().bytes;
    arriving_.pop_front();
  }

  void place_held(const Op& op, std::vector<OpId>& to) {
    for (TensorId input : op.inputs) {
      const auto held = held_.find(input);
      if (held == held_.end()) continue;
      to.push_back(held->second);
      held_.erase(held);
    }
  }

  // An update whose gradient other ranks have a part in, and whose results nobody waits for in this step.
  bool waits(const Op& op) const {
    const bool reads = std::ranges::any_of(op.inputs, [&](TensorId id) {
      const OpId producer = graph_.tensor(id).producer;
      return producer.valid() && graph_.op(producer).type->is_collective;
    });
    return reads && op.type->changes_state && !op.type->is_collective &&
           std::ranges::all_of(op.outputs, [&](TensorId id) {
             return std::ranges::all_of(readers_[id], [&](OpId r) { return graph_.op(r).type->is_collective; });
           });
  }

  void release_first() {
    const Delayed& first = delayed_.front();
    for (OpId id : first.ops) {
      put(id);
      for (TensorId out : graph_.op(id).outputs) updates_.erase(out);
    }
    waiting_ -= first.bytes;
    delayed_.pop_front();
  }

  const Graph& graph_;
  const Bytes in_flight_;
  const ById<TensorId, std::vector<OpId>> readers_;
  Route result_;
  std::deque<Delayed> delayed_;           // in order; it does not move what it has
  std::map<TensorId, Delayed*> updates_;  // by what those that are delayed make
  std::map<TensorId, OpId> held_;         // by what they make
  std::deque<Delayed> arriving_;          // waits for parameters that come back
  Bytes waiting_, arriving_bytes_;
};

}  // namespace

Route delay_updates(const Graph& graph, Route route, Bytes in_flight) {
  return in_flight.count == 0 ? route : Delay(graph, in_flight).run(route);
}

Route advance_gathers(const Graph& graph, Route route, Bytes in_flight) {
  struct Gather {
    OpId op;
    Bytes bytes;
    size_t at = 0;      // where it is in the route
    size_t reader = 0;  // and who reads it first
  };
  const auto is_gather = [&](OpId id) {
    const Op& op = graph.op(id);
    return op.type->name == "AllGather" && !graph.tensor(op.inputs[0]).producer.valid();
  };
  std::vector<Gather> gathers;
  std::map<TensorId, size_t> made;
  Bytes largest;
  for (size_t at = 0; at < route.order.size(); ++at) {
    const Op& op = graph.op(route.order[at]);
    for (TensorId input : op.inputs) {
      const auto gather = made.find(input);
      if (gather == made.end()) continue;
      gathers[gather->second].reader = at;
      made.erase(gather);
    }
    if (!is_gather(route.order[at])) continue;
    made[op.outputs[0]] = gathers.size();
    gathers.push_back({route.order[at], graph.tensor(op.outputs[0]).bytes(), at, at});
    largest = std::max(largest, gathers.back().bytes);
  }
  if (gathers.empty() || in_flight.count == 0) return route;
  const Bytes most = std::min(in_flight, std::max(kMostGathered, largest * 2));
  // Each goes before the first op that reads one of those that are there by then: as many as are allowed ahead.
  std::map<size_t, std::vector<OpId>> before;
  Bytes ahead;
  for (size_t i = 0, first = 0; i < gathers.size(); ++i) {
    ahead += gathers[i].bytes;
    while (ahead > most && first < i) ahead -= gathers[first++].bytes;
    before[std::min(gathers[first].reader, gathers[i].at)].push_back(gathers[i].op);
  }
  Route result;
  for (size_t at = 0; at < route.order.size(); ++at) {
    if (const auto here = before.find(at); here != before.end())
      result.order.insert(result.order.end(), here->second.begin(), here->second.end());
    if (!is_gather(route.order[at])) result.order.push_back(route.order[at]);
  }
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
