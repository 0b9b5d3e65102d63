#include "plan/simulate_cores.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <set>

#include "base/by_id.h"
#include "plan/dependencies.h"
#include "plan/engines.h"
#include "plan/simulate.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr double kDone = 1e-9;  // ms left that are none
constexpr int32_t kNone = -1;

// From one event (a step or a copy ends) to the next, everything makes progress at a constant rate.
class CoreRun {
 public:
  CoreRun(const Graph& graph, const Plan& plan, std::vector<EngineSpan>& timeline)
      : graph_(graph),
        plan_(plan),
        timeline_(timeline),
        dependencies_(find_dependencies(graph, plan)),
        steps_(static_cast<int32_t>(plan.steps.size())),
        rank_(plan.steps.size()),
        conflicts_(graph.op_count()),
        on_core_(cores_of(plan), 0),
        engines_(2 * plan.tiers.size()) {}

  EngineTimes run() {
    rank_steps();
    for (const auto& [a, b] : plan_.cores.conflicts) {
      conflicts_[a].push_back(b);
      conflicts_[b].push_back(a);
    }
    for (int32_t node = 0; node < dependencies_.count(); ++node) {
      unmet_.push_back(static_cast<int32_t>(dependencies_.before(node).size()));
    }
    for (int32_t node = 0; node < dependencies_.count(); ++node) {
      if (dependencies_.before(node).empty()) make_ready(node);
    }
    for (;;) {
      complete_instant();
      start_ready();
      if (running_.empty() && copying_ == 0) break;
      find_rates();
      advance();
    }
    times_.total_ms = now_;
    return times_;
  }

 private:
  struct Running {
    StepIndex step = 0;
    std::vector<size_t> cores;
    double left_ms = 0;  // alone
    double ends_ms = 0;  // were it alone
    double rate = 1;
    size_t span = 0;
  };
  struct Engine {  // of copies, one after the other
    std::deque<int32_t> waiting;
    int32_t move = kNone;
    double ends_ms = 0;
  };

  const Step& step(StepIndex s) const { return plan_.steps[s]; }
  const Move& move(int32_t i) const { return plan_.moves[i]; }
  const TierInfo& tier_of(int32_t move_index) const { return plan_.tiers[move(move_index).tier].tier; }

  void rank_steps() {
    order_ = plan_.cores.order;
    if (order_.empty()) {
      order_.resize(plan_.steps.size());
      std::iota(order_.begin(), order_.end(), 0);
    }
    for (size_t r = 0; r < order_.size(); ++r) rank_[order_[r]] = static_cast<int32_t>(r);
  }

  // --- nodes ---

  void make_ready(int32_t node) {
    if (node >= steps_) {
      const Move& m = move(node - steps_);
      engines_[2 * m.tier + (m.direction == Move::Direction::out ? 0 : 1)].waiting.push_back(node - steps_);
      ++copying_;
    } else if (step(node).kernel.empty() || graph_.op(step(node).op).type->is_view) {
      timeline_.push_back({0, node, now_, now_});
      instant_.push_back(node);
    } else {
      ready_.insert(rank_[node]);
    }
  }

  void complete(int32_t node) {
    for (int32_t other : dependencies_.after(node)) {
      if (--unmet_[other] == 0) make_ready(other);
    }
  }

  void complete_instant() {
    while (!instant_.empty()) {
      const int32_t node = instant_.back();
      instant_.pop_back();
      complete(node);
    }
  }

  // --- who starts ---

  void start_ready() {
    bool others_wait = false;  // someone before it in the order
    for (auto it = ready_.begin(); it != ready_.end();) {
      if (static_cast<int>(running_.size()) >= plan_.cores.inter_op) break;
      const StepIndex s = order_[*it];
      if (!may_start(s, others_wait)) {
        others_wait = true;
        ++it;
        continue;
      }
      it = ready_.erase(it);
      start(s);
    }
    for (size_t e = 0; e < engines_.size(); ++e) start_copy(e);
  }

  int with(int threads) const { return static_cast<int>(std::count(on_core_.begin(), on_core_.end(), threads)); }

  bool may_start(StepIndex s, bool others_wait) const {
    const int cores = cores_of(plan_, step(s));
    const bool beside = cores > with(0);
    if (beside && (step(s).affinity != Affinity::smt || plan_.cores.hardware_threads < 2 || cores > with(1)))
      return false;
    const std::vector<OpId>& conflicts = conflicts_[step(s).op];
    for (const Running& r : running_) {
      if (std::find(conflicts.begin(), conflicts.end(), step(r.step).op) != conflicts.end()) return false;
    }
    return !(others_wait || beside) || step(s).time_ms <= remaining_ms();
  }

  double remaining_ms() const {
    double most = 0;
    for (const Running& r : running_) most = std::max(most, r.ends_ms - now_);
    return most;
  }

  void start(StepIndex s) {
    Running r{.step = s,
              .cores = {},
              .left_ms = step(s).time_ms,
              .ends_ms = now_ + step(s).time_ms,
              .span = timeline_.size()};
    const int cores = cores_of(plan_, step(s)), on_each = cores > with(0) ? 1 : 0;
    for (size_t c = 0; c < on_core_.size() && static_cast<int>(r.cores.size()) < cores; ++c) {
      if (on_core_[c] == on_each) r.cores.push_back(c);
    }
    for (size_t c : r.cores) ++on_core_[c];
    timeline_.push_back({0, s, now_, now_});
    running_.push_back(std::move(r));
  }

  void start_copy(size_t e) {
    Engine& engine = engines_[e];
    if (engine.move != kNone || engine.waiting.empty()) return;
    engine.move = engine.waiting.front();
    engine.waiting.pop_front();
    const Move& m = move(engine.move);
    const double ms = copy_ms(tier_of(engine.move), m.direction, graph_.tensor(m.tensor).bytes());
    engine.ends_ms = now_ + ms;
    times_.copy_ms += ms;
    timeline_.push_back({static_cast<int>(e) + 1, engine.move, now_, engine.ends_ms});
  }

  // --- how fast ---

  double bytes_of(StepIndex s) const {
    const Op& op = graph_.op(step(s).op);
    double bytes = 0;
    for (TensorId id : op.inputs) bytes += static_cast<double>(graph_.tensor(id).bytes().count);
    for (TensorId id : op.outputs) bytes += static_cast<double>(graph_.tensor(id).bytes().count);
    return bytes;
  }

  // What the copies that run leave to compute.
  double compute_speed() const {
    double speed = 1;
    for (const Engine& engine : engines_) {
      if (engine.move == kNone) continue;
      if (!tier_of(engine.move).beside_compute()) return 0;
      speed -= tier_of(engine.move).compute_share;
    }
    return std::max(speed, kLeastComputeSpeed);
  }

  void find_rates() {
    std::vector<double> wanted, rates;
    for (const Running& r : running_) {
      double speed = 0;
      for (size_t core : r.cores)
        speed += on_core_[core] < 2 ? 1 : std::min(1.0, plan_.cores.smt_speed / on_core_[core]);
      rates.push_back(speed / static_cast<double>(r.cores.size()));
      wanted.push_back(step(r.step).time_ms > 0 ? bytes_of(r.step) / step(r.step).time_ms : 0);
    }
    share_memory(wanted, plan_.cores.memory_gb_per_s, rates);
    const double speed = compute_speed();
    for (size_t i = 0; i < running_.size(); ++i) running_[i].rate = rates[i] * speed;
  }

  void advance() {
    double until = 1e300;
    bool computing = false;
    for (const Running& r : running_) {
      if (r.left_ms <= kDone) until = 0;
      if (r.rate > 0) until = std::min(until, r.left_ms / r.rate);
      computing |= r.rate > 0;
    }
    for (const Engine& engine : engines_) {
      if (engine.move != kNone) until = std::min(until, std::max(0.0, engine.ends_ms - now_));
    }
    now_ += until;
    if (!computing) times_.stall_ms += until;
    for (Running& r : running_) r.left_ms -= until * r.rate;
    retire_steps();
    for (Engine& engine : engines_) {
      if (engine.move == kNone || engine.ends_ms > now_ + kDone) continue;
      const int32_t done = engine.move;
      engine.move = kNone;
      --copying_;
      complete(steps_ + done);
    }
  }

  void retire_steps() {
    for (size_t k = 0; k < running_.size();) {
      if (running_[k].left_ms > kDone) {
        ++k;
        continue;
      }
      const Running done = std::move(running_[k]);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(k));
      timeline_[done.span].end_ms = now_;
      for (size_t c : done.cores) --on_core_[c];
      complete(done.step);
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  std::vector<EngineSpan>& timeline_;
  const Dependencies dependencies_;
  const int32_t steps_;
  std::vector<StepIndex> order_;
  ById<StepIndex, int32_t> rank_;
  ById<OpId, std::vector<OpId>> conflicts_;
  std::vector<int> on_core_;      // steps
  std::vector<Engine> engines_;   // 2 * tier: out; 2 * tier + 1: in
  std::vector<int32_t> unmet_;    // by node
  std::set<int32_t> ready_;       // steps, by rank
  std::vector<int32_t> instant_;  // views that are ready
  std::vector<Running> running_;
  int copying_ = 0;  // copies that run or wait for their engine
  double now_ = 0;
  EngineTimes times_;
};

}  // namespace

void share_memory(std::span<const double> bytes_per_ms, double memory_gb_per_s, std::span<double> rates) {
  if (memory_gb_per_s <= 0 || rates.size() < 2) return;
  std::vector<std::pair<double, size_t>> wanted;
  for (size_t i = 0; i < rates.size(); ++i) wanted.emplace_back(bytes_per_ms[i] * rates[i], i);
  std::sort(wanted.begin(), wanted.end());
  // The time of one alone says that it gets as much as it asks for.
  double left = std::max(memory_gb_per_s * 1e6, wanted.back().first);
  for (size_t k = 0; k < wanted.size(); ++k) {
    const double share = left / static_cast<double>(wanted.size() - k);
    if (wanted[k].first > share) rates[wanted[k].second] *= share / wanted[k].first;
    left -= std::min(wanted[k].first, share);
  }
}

int cores_of(const Plan& plan) {
  if (plan.cores.cores > 0) return plan.cores.cores;
  int most = 1;
  for (const Step& step : plan.steps) most = std::max(most, step.threads);
  return most * std::max(plan.cores.inter_op, 1);
}

int cores_of(const Plan& plan, const Step& step) {
  const int cores = cores_of(plan);
  return step.threads > 0 ? std::min(step.threads, cores) : cores;
}

EngineTimes run_on_cores(const Graph& graph, const Plan& plan, std::vector<EngineSpan>& timeline) {
  return CoreRun(graph, plan, timeline).run();
}

double least_ms_on_cores(const Graph& graph, const Plan& plan) {
  ById<OpId, double> ends(graph.op_count(), 0.0);
  double chain = 0, work = 0;
  for (const Step& step : plan.steps) {
    if (step.recompute) continue;
    double start = 0;
    for (TensorId id : graph.op(step.op).inputs) {
      const OpId producer = graph.tensor(id).producer;  // nobody waits for no bytes
      if (producer.valid() && graph.tensor(id).bytes().count > 0) start = std::max(start, ends[producer]);
    }
    ends[step.op] = start + step.time_ms;
    chain = std::max(chain, ends[step.op]);
    work += cores_of(plan, step) * step.time_ms;
  }
  const double throughput = plan.cores.hardware_threads > 1 ? std::max(1.0, plan.cores.smt_speed) : 1;
  return std::max(chain, work / (cores_of(plan) * throughput));
}

}  // namespace plimsoll
