// Whether what a plan claims follows from what is in it. Nothing here runs a plan on paper: each bar of the predicted
// timeline is held against the rules of plan.h, with the other bars as they stand.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/by_id.h"
#include "plimsoll/ops.h"
#include "verify/findings.h"

namespace plimsoll {
namespace {

using Rule = Violation::Rule;

constexpr double kTolerance = 1e-9;          // of the step's time: what rounding may do to sums of that size
constexpr double kLeastComputeSpeed = 0.05;  // however many copies run beside it

// What a copy takes on an engine that does nothing else.
double copy_takes(const TierInfo& tier, const Move& move, Bytes bytes) {
  const double rate = move.direction == Move::Direction::out ? tier.out_gb_per_s : tier.in_gb_per_s;
  return tier.latency_us * 1e-3 + (rate > 0 ? static_cast<double>(bytes.count) * 1e-6 / rate : 0);
}

// What the messages of one exchange take: a piece of each rank's to every other, so much at a time. An AllReduce has two:
// gradients to who adds them, and sums to all.
double messages_take(const LinkInfo& link, Bytes bytes) {
  if (link.ranks < 2) return 0;
  const double rounds =
      std::max(1.0, std::ceil(static_cast<double>(bytes.count) / static_cast<double>(message_bytes(link.ranks).count)));
  const double mb = static_cast<double>(bytes.count) * (link.ranks - 1) / link.ranks * 1e-6;
  return rounds * link.latency_us * 1e-3 + (link.gb_per_s > 0 ? mb / link.gb_per_s : 0);
}

// When the bytes of the arena were last written, of those written so far.
class MadeAt {
 public:
  void write(const Stay& stay, double ms) {
    const int64_t begin = stay.offset.count, end = begin + stay.bytes.count;
    auto it = pieces_.lower_bound(begin);
    if (it != pieces_.begin() && std::prev(it)->second.end > begin) {  // begins before, and may end after
      Piece& head = std::prev(it)->second;
      if (head.end > end) pieces_.emplace(end, head);
      head.end = begin;
    }
    while ((it = pieces_.lower_bound(begin)) != pieces_.end() && it->first < end) {
      if (it->second.end > end) pieces_.emplace(end, it->second);
      pieces_.erase(it);
    }
    pieces_[begin] = {end, ms};
  }
  double of(const Stay& stay) const {
    const int64_t begin = stay.offset.count, end = begin + stay.bytes.count;
    double latest = 0;
    auto it = pieces_.upper_bound(begin);
    if (it != pieces_.begin()) --it;
    for (; it != pieces_.end() && it->first < end; ++it) {
      if (it->second.end > begin) latest = std::max(latest, it->second.ms);
    }
    return latest;
  }

 private:
  struct Piece {
    int64_t end;
    double ms;
  };
  std::map<int64_t, Piece> pieces_;  // by where they begin
};

class ClaimChecker {
 public:
  ClaimChecker(const Graph& graph, const Plan& plan, Findings& findings)
      : graph_(graph),
        plan_(plan),
        predicted_(plan.predicted),
        findings_(findings),
        steps_(plan.steps.size()),
        moves_(plan.moves.size()),
        collectives_(plan.collectives.size()) {}

  void run() {
    const Bytes least = least_bytes(graph_, !plan_.tiers.empty());
    if (plan_.lower_bound.count != 0 && plan_.lower_bound != least) {
      findings_.report(
          Rule::wrong_bound, -1,
          fmt::format("lower_bound is {} bytes; the graph needs at least {}", plan_.lower_bound.count, least.count));
    }
    check_times();
    check_cores();
    if (findings_.none()) check_prediction();
  }

 private:
  struct Bar {
    double start = 0, end = 0;
    bool seen = false;
  };

  StepIndex count() const { return static_cast<StepIndex>(plan_.steps.size()); }
  const Step& step(StepIndex s) const { return plan_.steps[s]; }
  const TierInfo& tier_of(const Move& m) const { return plan_.tiers[m.tier].tier; }
  bool runs_nothing(StepIndex s) const { return step(s).kernel.empty() || graph_.op(step(s).op).type->is_view; }
  bool is_empty(TensorId id) const { return graph_.tensor(id).bytes().count == 0; }  // nobody waits for it
  bool at_once() const { return plan_.cores.inter_op > 1; }
  void wrong(StepIndex s, std::string message) { findings_.report(Rule::wrong_prediction, s, std::move(message)); }

  // --- times, and how the cores are shared ---

  void check_times() {
    for (StepIndex s = 0; s < count(); ++s) {
      const double ms = step(s).time_ms;
      if (!std::isfinite(ms) || ms < 0) {
        findings_.report(Rule::bad_time, s, fmt::format("{} takes {} ms", findings_.where(s), ms));
      } else if (runs_nothing(s) && (ms != 0 || step(s).estimated)) {
        findings_.report(Rule::bad_time, s, fmt::format("{} runs nothing and takes {} ms", findings_.where(s), ms));
      }
    }
    if (!std::isfinite(plan_.plan_time_ms) || plan_.plan_time_ms < 0) {
      findings_.report(Rule::bad_time, -1, fmt::format("plan_time_ms is {}", plan_.plan_time_ms));
    }
  }

  void check_cores() {
    const CoreSharing& cores = plan_.cores;
    auto bad = [&](StepIndex s, std::string message) { findings_.report(Rule::bad_cores, s, std::move(message)); };
    if (!std::isfinite(cores.memory_gb_per_s) || cores.memory_gb_per_s < 0)
      bad(-1, fmt::format("the cores share {} GB/s", cores.memory_gb_per_s));
    const double most_speed = cores.hardware_threads;
    if (!(cores.smt_speed >= 1 && cores.smt_speed <= most_speed)) {
      bad(-1, fmt::format("a core with {} hardware threads computes {} times as fast with them", cores.hardware_threads,
                          cores.smt_speed));
    }
    for (StepIndex s = 0; s < count(); ++s) {
      if (cores.cores > 0 && step(s).threads > cores.cores) {
        findings_.report(
            Rule::bad_threads, s,
            fmt::format("{} is to run by {} threads on {} cores", findings_.where(s), step(s).threads, cores.cores));
      }
      if (step(s).affinity == Affinity::smt && cores.hardware_threads < 2) {
        bad(s, fmt::format("{} may run on second hardware threads, and the cores have {} each", findings_.where(s),
                           cores.hardware_threads));
      }
    }
  }

  int cores_in_all() const {
    if (plan_.cores.cores > 0) return plan_.cores.cores;
    int most = 1;
    for (const Step& s : plan_.steps) most = std::max(most, s.threads);
    return most * plan_.cores.inter_op;
  }
  int cores_of(StepIndex s) const {
    return step(s).threads > 0 ? std::min(step(s).threads, cores_in_all()) : cores_in_all();
  }

  // --- the prediction ---

  bool predicts() const {
    const Prediction& p = predicted_;
    return !p.timeline.empty() || p.step_time_ms != 0 || p.estimated_share != 0 || p.lower_bound_ms != 0 ||
           p.offload.count != 0 || p.prefetch.count != 0 || p.copy_ms != 0 || p.stall_ms != 0 ||
           p.recompute_steps != 0 || p.recompute_ms != 0 || p.communication_ms != 0 || p.communication_stall_ms != 0 ||
           p.feed_ms != 0 || p.wall_time_ms != 0;
  }

  void check_prediction() {
    if (predicts() || predicted_.peak.count != 0) check_peak();
    if (!predicts()) return;
    check_sums();
    if (!read_timeline()) return;
    check_copies();
    check_messages();
    if (at_once()) {
      check_steps_at_once();
    } else {
      check_steps_in_turn();
    }
  }

  void expect(std::string_view field, double claimed, double found, double scale) {
    if (std::isfinite(found) && std::abs(claimed - found) <= kTolerance * scale) return;
    wrong(-1, fmt::format("{} is said to be {}; by the plan it is {}", field, claimed, found));
  }
  void expect(std::string_view field, int64_t claimed, int64_t found) {
    if (claimed != found) wrong(-1, fmt::format("{} is said to be {}; by the plan it is {}", field, claimed, found));
  }

  // In a safe plan stays that share bytes begin at one offset.
  void check_peak() {
    ById<StepIndex, std::vector<const Stay*>> begin(plan_.steps.size()), end(plan_.steps.size());
    for (const Stay& stay : plan_.stays) {
      if (plan_.steps.empty() || stay.bytes.count == 0) continue;
      begin[stay.first].push_back(&stay);
      end[stay.last].push_back(&stay);
    }
    std::map<int64_t, std::multiset<int64_t>> places;
    int64_t live = 0, most = 0;
    StepIndex where = 0;
    for (const FedInput& input : plan_.feeding.inputs) live += plan_.feeding.second_buffer ? input.bytes.count : 0;
    auto change = [&](const Stay& stay, bool begins) {
      std::multiset<int64_t>& here = places[stay.offset.count];
      if (!here.empty()) live -= *here.rbegin();
      begins ? void(here.insert(stay.bytes.count)) : void(here.erase(here.find(stay.bytes.count)));
      if (!here.empty()) live += *here.rbegin();
    };
    for (StepIndex s = 0; s < count(); ++s) {
      for (const Stay* stay : begin[s]) change(*stay, true);
      if (live > most) most = live, where = s;
      for (const Stay* stay : end[s]) change(*stay, false);
    }
    expect("peak", predicted_.peak.count, most);
    expect("peak_step", predicted_.peak_step, where);
  }

  void check_sums() {
    double once = 0, again = 0, estimated = 0;
    int recomputed = 0;
    for (const Step& s : plan_.steps) {
      (s.recompute ? again : once) += s.time_ms;
      if (s.estimated) estimated += s.time_ms;
      recomputed += s.recompute && !graph_.op(s.op).type->is_view;
    }
    work_ms_ = once + again;
    expect("recompute_steps", predicted_.recompute_steps, recomputed);
    expect("recompute_ms", predicted_.recompute_ms, again, work_ms_);
    expect("estimated_share", predicted_.estimated_share, work_ms_ > 0 ? estimated / work_ms_ : 0, 1);
    expect("lower_bound_ms", predicted_.lower_bound_ms, at_once() ? least_ms_at_once() : once, work_ms_);
    int64_t out = 0, in = 0;
    for (const Move& m : plan_.moves) {
      (m.direction == Move::Direction::out ? out : in) += graph_.tensor(m.tensor).bytes().count;
      copy_ms_ += copy_takes(tier_of(m), m, graph_.tensor(m.tensor).bytes());
    }
    expect("offload", predicted_.offload.count, out);
    expect("prefetch", predicted_.prefetch.count, in);
    expect("copy_ms", predicted_.copy_ms, copy_ms_, copy_ms_);
  }

  // The longest chain of ops that read each other's results, and all their work on the cores.
  double least_ms_at_once() const {
    ById<TensorId, double> made(graph_.tensor_count(), 0.0);
    double chain = 0, work = 0;
    for (StepIndex s = 0; s < count(); ++s) {
      if (step(s).recompute) continue;
      const Op& op = graph_.op(step(s).op);
      double ms = 0;
      for (TensorId id : op.inputs) ms = std::max(ms, made[id]);
      ms += step(s).time_ms;
      for (TensorId id : op.outputs) made[id] = is_empty(id) ? 0 : ms;
      chain = std::max(chain, ms);
      work += cores_of(s) * step(s).time_ms;
    }
    const double speed = plan_.cores.hardware_threads > 1 ? plan_.cores.smt_speed : 1;
    return std::max(chain, work / (speed * cores_in_all()));
  }

  // --- the timeline ---

  // Every step and every copy has one bar, on its engine.
  bool read_timeline() {
    for (const EngineSpan& span : predicted_.timeline) {
      const bool message = span.engine == message_engine();
      const size_t items = span.engine == 0 ? plan_.steps.size()
                           : message        ? plan_.collectives.size()
                                            : plan_.moves.size();
      if (span.engine < 0 || span.index < 0 || std::cmp_greater_equal(span.index, items)) {
        wrong(-1,
              fmt::format("the timeline has a bar of {} on engine {}, which does not exist", span.index, span.engine));
        continue;
      }
      Bar& bar = span.engine == 0 ? steps_[span.index] : message ? collectives_[span.index] : moves_[span.index];
      if (bar.seen) wrong(-1, fmt::format("the timeline has {} twice on engine {}", span.index, span.engine));
      bar = {span.start_ms, span.end_ms, true};
      if (!std::isfinite(bar.start) || !std::isfinite(bar.end) || bar.start < 0 || bar.end < bar.start) {
        wrong(-1, fmt::format("the timeline has {} on engine {} from {} to {} ms", span.index, span.engine, bar.start,
                              bar.end));
      }
      if (span.engine == 0 || message) continue;
      const Move& m = plan_.moves[span.index];
      const int engine = 2 * m.tier + (m.direction == Move::Direction::out ? 1 : 2);
      if (span.engine != engine)
        wrong(m.after,
              fmt::format("{} is on engine {} of the timeline, not on {}", findings_.what(m), span.engine, engine));
    }
    for (StepIndex s = 0; s < count(); ++s) {
      if (!steps_[s].seen) wrong(s, fmt::format("{} is missing in the timeline", findings_.where(s)));
      end_ms_ = std::max(end_ms_, steps_[s].end);
    }
    for (size_t i = 0; i < moves_.size(); ++i) {
      if (!moves_[i].seen)
        wrong(plan_.moves[i].after, fmt::format("{} is missing in the timeline", findings_.what(plan_.moves[i])));
      end_ms_ = std::max(end_ms_, moves_[i].end);
    }
    for (size_t i = 0; i < collectives_.size(); ++i) {
      if (!collectives_[i].seen)
        wrong(plan_.collectives[i].steps.back(), fmt::format("collective {} is missing in the timeline", i));
      end_ms_ = std::max(end_ms_, collectives_[i].end);
    }
    scale_ = std::max(end_ms_, work_ms_);
    expect("step_time_ms", predicted_.step_time_ms, end_ms_, scale_);
    check_wall_time();
    return findings_.none();
  }

  // A batch comes before the step, or beside it and is then moved: read and written within the arena.
  void check_wall_time() {
    const Feeding& feeding = plan_.feeding;
    double comes = 0, moves = 0;
    for (const FedInput& input : feeding.inputs) {
      const double mb = static_cast<double>(graph_.tensor(input.tensor).bytes().count) * 1e-6;
      comes += feeding.latency_us * 1e-3 + (feeding.gb_per_s > 0 ? mb / feeding.gb_per_s : 0);
      if (feeding.arena_gb_per_s > 0) moves += static_cast<double>(input.bytes.count) * 2e-6 / feeding.arena_gb_per_s;
    }
    double wall = 0;
    if (feeding.second_buffer) {
      wall = std::max(end_ms_ + moves, comes);
    } else if (!feeding.inputs.empty()) {
      wall = end_ms_ + comes;
    }
    expect("feed_ms", predicted_.feed_ms, comes, scale_ + comes);
    expect("wall_time_ms", predicted_.wall_time_ms, wall, scale_ + comes + moves);
  }

  bool same(double a, double b) const { return std::abs(a - b) <= kTolerance * scale_; }
  bool before(double a, double b) const { return a <= b + kTolerance * scale_; }

  void check_copies() {
    std::map<int, double> free_at;
    for (const EngineSpan& span : predicted_.timeline) {
      if (span.engine == 0 || span.engine == message_engine()) continue;
      const Move& m = plan_.moves[span.index];
      const double takes = copy_takes(tier_of(m), m, graph_.tensor(m.tensor).bytes());
      if (!same(span.end_ms - span.start_ms, takes)) {
        wrong(m.after, fmt::format("{} takes {} ms in the timeline and {} ms by its tier", findings_.what(m),
                                   span.end_ms - span.start_ms, takes));
      }
      double& free = free_at[span.engine];
      if (!before(free, span.start_ms))
        wrong(m.after, fmt::format("{} starts while its engine copies", findings_.what(m)));
      free = span.end_ms;
    }
  }

  int message_engine() const { return 1 + 2 * static_cast<int>(plan_.tiers.size()); }

  // The whole of what an op of all ranks reads or writes: a piece is smaller. Of statistics every rank has a whole, or gets
  // the first's.
  Bytes bytes_divided(const Op& op) const {
    Bytes most;
    if (op.type->name == "CombineMoments" || op.type->name == "SumOverRanks") {
      for (TensorId id : op.outputs) most += graph_.tensor(id).bytes();
      return most * plan_.link.ranks;
    }
    for (TensorId id : op.inputs) most = std::max(most, graph_.tensor(id).bytes());
    for (TensorId id : op.outputs) most = std::max(most, graph_.tensor(id).bytes());
    return op.type->name == "Broadcast" ? most * plan_.link.ranks : most;
  }

  // One after another, each when its last step is done.
  void check_messages() {
    double sum = 0, free = 0;
    for (size_t i = 0; i < plan_.collectives.size(); ++i) {
      const Collective& c = plan_.collectives[i];
      const Bar& bar = collectives_[i];
      Bytes bytes;
      const bool twice = graph_.op(step(c.steps[0]).op).type->name == "AllReduce";
      for (const StepIndex s : c.steps) {
        bytes += bytes_divided(graph_.op(step(s).op));
        if (step(s).time_ms != 0)
          wrong(s,
                fmt::format("{} is of collective {} and takes {} ms besides", findings_.where(s), i, step(s).time_ms));
      }
      const double takes = messages_take(plan_.link, bytes) * (twice ? 2 : 1);
      if (!same(c.time_ms, takes))
        wrong(c.steps.back(),
              fmt::format("collective {} is said to take {} ms; by its link it takes {}", i, c.time_ms, takes));
      const double start = std::max(free, steps_[c.steps.back()].end);
      if (!same(bar.start, start) || !same(bar.end - bar.start, c.time_ms)) {
        wrong(c.steps.back(),
              fmt::format("collective {} is from {} to {} ms in the timeline; it could begin at {} ms and "
                          "takes {}",
                          i, bar.start, bar.end, start, c.time_ms));
      }
      free = bar.end;
      sum += c.time_ms;
    }
    for (StepIndex s = 0; s < count(); ++s) {
      if (!graph_.op(step(s).op).type->is_collective) continue;
      sum += step(s).time_ms;
      message_stall_ms_ += step(s).time_ms;
    }
    expect("communication_ms", predicted_.communication_ms, sum, scale_);
  }

  // How much of its speed compute has had since time 0: the time that passed, less what copies took of it.
  class Speed {
   public:
    void add(double start, double end, double share) {
      if (end <= start) return;
      changes_[start] += share;
      changes_[end] -= share;
    }
    void prepare() {
      double now = 0, done = 0, share = 0;
      pieces_.assign(1, {0, 0, 1});
      for (const auto& [at, change] : changes_) {
        done += (at - now) * pieces_.back().speed;
        now = at;
        share += change;
        pieces_.push_back({now, done, std::abs(share) < 1e-12 ? 1 : std::max(1 - share, kLeastComputeSpeed)});
      }
    }
    double done(double at) const {
      auto piece =
          std::upper_bound(pieces_.begin(), pieces_.end(), at, [](double ms, const Piece& p) { return ms < p.start; });
      if (piece != pieces_.begin()) --piece;
      return piece->done + (at - piece->start) * piece->speed;
    }

   private:
    struct Piece {
      double start, done, speed;
    };
    std::map<double, double> changes_;
    std::vector<Piece> pieces_;
  };

  // One step after the other: each starts as soon as the one before it and the copies that it waits for are done.
  void check_steps_in_turn() {
    ById<StepIndex, std::vector<size_t>> starting(count() + 1), ending(count() + 1);
    Speed speed;
    for (size_t i = 0; i < moves_.size(); ++i) {
      const Move& m = plan_.moves[i];
      starting[m.after + 1].push_back(i);
      ending[m.before].push_back(i);
      if (tier_of(m).beside_compute() && tier_of(m).compute_share > 0)
        speed.add(moves_[i].start, moves_[i].end, tier_of(m).compute_share);
    }
    ById<StepIndex, double> received(count() + 1, 0.0);
    for (size_t i = 0; i < plan_.collectives.size(); ++i) {
      double& there = received[plan_.collectives[i].before];
      there = std::max(there, collectives_[i].end);
      if (plan_.link.compute_share > 0) speed.add(collectives_[i].start, collectives_[i].end, plan_.link.compute_share);
    }
    speed.prepare();
    double now = 0, stalled = 0;
    for (StepIndex s = 0; s <= count(); ++s) {
      const double was = now;
      now = std::max(now, received[s]);
      message_stall_ms_ += now - was;
      start_copies(starting[s], Move::Direction::out, now);
      for (size_t i : ending[s]) {  // for those that began before, and for those that just did
        const Move& m = plan_.moves[i];
        if (m.after + 1 < s || m.direction == Move::Direction::out) now = std::max(now, moves_[i].end);
      }
      start_copies(starting[s], Move::Direction::in, now);
      for (size_t i : ending[s]) now = std::max(now, moves_[i].end);
      stalled += now - was;
      if (s == count()) break;
      const Bar& bar = steps_[s];
      if (!same(bar.start, now)) {
        wrong(s,
              fmt::format("{} starts at {} ms in the timeline; it could at {} ms", findings_.where(s), bar.start, now));
      }
      if (const double done = speed.done(bar.end) - speed.done(bar.start); !same(done, step(s).time_ms)) {
        wrong(s, fmt::format("{} has {} ms of compute in the timeline and takes {}", findings_.where(s), done,
                             step(s).time_ms));
      }
      now = bar.end;
    }
    expect("stall_ms", predicted_.stall_ms, stalled, scale_);
    expect("communication_stall_ms", predicted_.communication_stall_ms, message_stall_ms_, scale_);
  }

  // An engine takes them in the order in which they may start; where there is none beside compute, compute waits.
  void start_copies(const std::vector<size_t>& list, Move::Direction direction, double& now) {
    for (size_t i : list) {
      const Move& m = plan_.moves[i];
      if (m.direction != direction) continue;
      double& free = free_at_[{m.tier, direction}];
      if (!same(moves_[i].start, std::max(now, free))) {
        wrong(m.after, fmt::format("{} starts at {} ms in the timeline; it could at {} ms", findings_.what(m),
                                   moves_[i].start, std::max(now, free)));
      }
      free = moves_[i].end;
      if (!tier_of(m).beside_compute()) now = free;
    }
  }

  // Several at once: nothing starts before what it reads is made, is faster than alone, or has more cores than there
  // are.
  void check_steps_at_once() {
    ById<TensorId, std::vector<const Stay*>> stays(graph_.tensor_count());
    for (const Stay& stay : plan_.stays) {
      if (!stay.is_workspace()) stays[stay.tensor].push_back(&stay);
    }
    const auto stay_at = [&](TensorId id, StepIndex s) -> const Stay* {  // none of what a recomputation leaves alone
      const auto there = [&](const Stay* stay) { return stay->first <= s && s <= stay->last; };
      const auto found = std::ranges::find_if(stays[id], there);
      return found == stays[id].end() || is_empty(id) ? nullptr : *found;
    };
    std::vector<std::vector<size_t>> arriving(plan_.steps.size());
    for (size_t i = 0; i < plan_.moves.size(); ++i) {
      const Move& m = plan_.moves[i];
      if (m.direction == Move::Direction::in && m.before < count()) arriving[m.before].push_back(i);
    }
    MadeAt made;
    for (StepIndex s = 0; s < count(); ++s) {
      const Op& op = graph_.op(step(s).op);
      const Bar& bar = steps_[s];
      for (size_t i : arriving[s]) {
        if (const Stay* stay = stay_at(plan_.moves[i].tensor, s)) made.write(*stay, moves_[i].end);
      }
      if (runs_nothing(s)) continue;  // a view is there with what it views
      for (TensorId id : op.inputs) {
        const Stay* stay = stay_at(id, s);
        if (stay == nullptr || before(made.of(*stay), bar.start)) continue;
        wrong(s, fmt::format("{} starts at {} ms in the timeline; '{}', which it reads, is made at {} ms",
                             findings_.where(s), bar.start, graph_.tensor(id).name, made.of(*stay)));
      }
      for (TensorId id : op.outputs) {
        if (const Stay* stay = stay_at(id, s)) made.write(*stay, bar.end);
      }
      if (!before(step(s).time_ms, bar.end - bar.start)) {
        wrong(s, fmt::format("{} has {} ms in the timeline and takes {}", findings_.where(s), bar.end - bar.start,
                             step(s).time_ms));
      }
    }
    check_who_meets();
    if (!(predicted_.stall_ms >= 0 && before(predicted_.stall_ms, end_ms_))) {
      wrong(-1, fmt::format("stall_ms is said to be {} of {} ms", predicted_.stall_ms, end_ms_));
    }
  }

  void check_who_meets() {
    struct Event {
      double at;
      bool starts;
      StepIndex step;
    };
    std::vector<Event> events;
    for (StepIndex s = 0; s < count(); ++s) {
      if (runs_nothing(s) || same(steps_[s].start, steps_[s].end)) continue;
      events.push_back({steps_[s].start + kTolerance * scale_, true, s});  // who ends goes first
      events.push_back({steps_[s].end, false, s});
    }
    std::sort(events.begin(), events.end(),
              [](const Event& a, const Event& b) { return std::pair(a.at, a.starts) < std::pair(b.at, b.starts); });
    const std::set<std::pair<OpId, OpId>> conflicts(plan_.cores.conflicts.begin(), plan_.cores.conflicts.end());
    std::vector<StepIndex> running;
    int held = 0;
    for (const Event& event : events) {
      if (!event.starts) {
        std::erase(running, event.step);
        held -= cores_of(event.step);
        continue;
      }
      for (StepIndex other : running) {
        if (conflicts.contains(std::minmax(step(other).op, step(event.step).op))) {
          wrong(event.step, fmt::format("{} runs in the timeline beside {}, with which it is in conflict",
                                        findings_.where(event.step), findings_.where(other)));
        }
      }
      running.push_back(event.step);
      held += cores_of(event.step);
      if (static_cast<int>(running.size()) > plan_.cores.inter_op ||
          held > cores_in_all() * plan_.cores.hardware_threads) {
        wrong(event.step,
              fmt::format("{} is in the timeline one of {} steps at once, on {} cores; there are {}, for {} steps",
                          findings_.where(event.step), running.size(), held, cores_in_all(), plan_.cores.inter_op));
      }
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const Prediction& predicted_;
  Findings& findings_;
  ById<StepIndex, Bar> steps_;
  std::vector<Bar> moves_, collectives_;
  std::map<std::pair<int, Move::Direction>, double> free_at_;  // by engine
  double message_stall_ms_ = 0;
  double work_ms_ = 0, copy_ms_ = 0, end_ms_ = 0, scale_ = 0;
};

}  // namespace

void check_claims(const Graph& graph, const Plan& plan, Findings& findings) {
  ClaimChecker(graph, plan, findings).run();
}

}  // namespace plimsoll
