// Indices, sizes, alignments and capacities: what a look at each item alone shows.
#include <cmath>

#include "device/divided.h"
#include "plimsoll/ops.h"
#include "verify/findings.h"

namespace plimsoll {
namespace {

using Rule = Violation::Rule;
constexpr int kMostHardwareThreads = 64;

class FieldChecker {
 public:
  FieldChecker(const Graph& graph, const Plan& plan, Findings& findings)
      : graph_(graph), plan_(plan), findings_(findings), step_count_(static_cast<StepIndex>(plan.steps.size())) {}

  bool run() {
    for (StepIndex s = 0; s < step_count_; ++s) check_step(s);
    check_cores();
    if (plan_.cores.inter_op < 1 || plan_.cores.inter_op > kMostThreads) {
      findings_.report(
          Rule::bad_threads, -1,
          fmt::format("{} steps are to run at once; 1 to {} are possible", plan_.cores.inter_op, kMostThreads));
    }
    for (size_t i = 0; i < plan_.stays.size(); ++i) check_stay(i);
    for (size_t i = 0; i < plan_.moves.size(); ++i) check_move(i);
    check_collectives();
    check_homes();
    check_feeding();
    if (!findings_.none()) return false;
    check_sizes();
    if (plan_.feeding.second_buffer) check_second_buffers();
    for (const TierUse& use : plan_.tiers) check_tier(use);
    for (const Move& m : plan_.moves) check_slot(m.tensor, m.tier, m.slot, m.after, [&] { return findings_.what(m); });
    for (const Home& h : plan_.homes) {
      check_slot(h.tensor, h.tier, h.slot, -1, [&] { return fmt::format("the home of '{}'", tensor(h.tensor).name); });
    }
    return true;
  }

 private:
  const Tensor& tensor(TensorId id) const { return graph_.tensor(id); }
  bool exists(TensorId id) const { return id.index >= 0 && id.index < graph_.tensor_count(); }
  void bad_index(StepIndex step, std::string message) { findings_.report(Rule::bad_index, step, std::move(message)); }

  void check_step(StepIndex s) {
    const Step& step = plan_.steps[s];
    if (step.op.index < 0 || step.op.index >= graph_.op_count()) {
      bad_index(s, fmt::format("step {} runs op {}, the graph has {}", s, step.op.index, graph_.op_count()));
    } else {
      check_division(s, graph_.op(step.op), step.kernel);
    }
    if (step.workspace.count < 0) {
      bad_index(s, fmt::format("step {} has a workspace of {} bytes", s, step.workspace.count));
    }
    if (step.threads < 0 || step.threads > kMostThreads) {
      findings_.report(
          Rule::bad_threads, s,
          fmt::format("step {} is to run by {} threads; 0 (all) to {} are possible", s, step.threads, kMostThreads));
    }
  }

  void check_cores() {
    const CoreSharing& cores = plan_.cores;
    auto bad = [&](std::string message) { findings_.report(Rule::bad_cores, -1, std::move(message)); };
    if (cores.cores < 0 || cores.cores > kMostThreads || cores.cores_a_cache < 0 ||
        cores.cores_a_cache > kMostThreads || cores.hardware_threads < 1 ||
        cores.hardware_threads > kMostHardwareThreads) {
      bad(fmt::format("the plan is for {} cores, of which {} share a cache, with {} hardware threads each", cores.cores,
                      cores.cores_a_cache, cores.hardware_threads));
    }
    for (size_t i = 0; i < cores.conflicts.size(); ++i) {
      const auto& [a, b] = cores.conflicts[i];
      if (a.index < 0 || b.index < 0 || a.index >= graph_.op_count() || b.index >= graph_.op_count()) {
        bad(fmt::format("pair {} that never runs at once is of ops {} and {}, the graph has {}", i, a.index, b.index,
                        graph_.op_count()));
      } else if (b < a || a == b || (i > 0 && !(cores.conflicts[i - 1] < cores.conflicts[i]))) {
        bad(fmt::format("pair {} that never runs at once, '{}' and '{}', is there twice, or not in order", i,
                        graph_.op(a).name, graph_.op(b).name));
      }
    }
    if (cores.order.empty()) return;
    std::vector<StepIndex> order = cores.order;
    std::sort(order.begin(), order.end());
    bool every_step = order.size() == plan_.steps.size();
    for (size_t i = 0; i < order.size(); ++i) every_step = every_step && order[i] == static_cast<StepIndex>(i);
    if (!every_step)
      bad(fmt::format("the order in which steps start does not name each of the {} steps once", step_count_));
  }

  void check_division(StepIndex s, const Op& op, const std::string& kernel) {
    auto bad = [&](std::string_view why) {
      findings_.report(Rule::bad_division, s, fmt::format("step {} ('{}'): {}", s, op.name, why));
    };
    try {
      const std::vector<MicroBatch> parts = parts_of(kernel);
      if (parts.empty()) return;
      if (const std::string why = why_not_divisible(graph_, op); !why.empty()) return bad(why);
      const int64_t batch = divisible_batch(graph_, op);
      int64_t left = batch;
      for (const MicroBatch& part : parts) left = part.batch < 1 || part.batch > left ? -1 : left - part.batch;
      if (left != 0) bad(fmt::format("the parts of '{}' do not make up the {} rows of the batch", kernel, batch));
    } catch (const Error& error) {
      bad(error.what());
    }
  }

  // Every collective step belongs to one of them, or none does; those of one are of one type, and all are in order.
  void check_collectives() {
    const auto bad = [&](StepIndex s, std::string message) {
      findings_.report(Rule::bad_collective, s, std::move(message));
    };
    const LinkInfo& link = plan_.link;
    if (link.ranks < 1 || !std::isfinite(link.latency_us) || link.latency_us < 0 || !std::isfinite(link.gb_per_s) ||
        link.gb_per_s < 0 || !(link.compute_share >= 0 && link.compute_share < 1)) {
      bad(-1, fmt::format("the link is between {} ranks, with {} us and {} GB/s, and takes {} of compute", link.ranks,
                          link.latency_us, link.gb_per_s, link.compute_share));
    }
    if (plan_.collectives.empty()) return;
    if (plan_.cores.inter_op > 1) bad(-1, "messages beside compute are for steps that run one after another");
    std::vector<bool> seen(plan_.steps.size(), false);
    StepIndex last = -1;
    for (size_t i = 0; i < plan_.collectives.size(); ++i) {
      const Collective& c = plan_.collectives[i];
      if (c.steps.empty()) {
        bad(-1, fmt::format("collective {} has no steps", i));
        continue;
      }
      const OpType* type = nullptr;
      for (const StepIndex s : c.steps) {
        if (s < 0 || s >= step_count_) {
          bad_index(s, fmt::format("collective {} is of step {}, the plan has {}", i, s, step_count_));
          return;
        }
        const OpId id = plan_.steps[s].op;
        const bool known = id.index >= 0 && id.index < graph_.op_count();
        if (!known || !graph_.op(id).type->is_collective || seen[s])
          bad(s, fmt::format("collective {} is of step {}, which {}", i, s,
                             known && seen[s] ? "another is of, too" : "the ranks do not run together"));
        seen[s] = true;
        if (!known) continue;
        if (type != nullptr && graph_.op(id).type != type)
          bad(s, fmt::format("collective {} is of {} and of {}", i, type->name, graph_.op(id).type->name));
        type = graph_.op(id).type;
      }
      if (!std::is_sorted(c.steps.begin(), c.steps.end()) || c.steps.back() <= last)
        bad(c.steps.back(), fmt::format("collective {} is not in the order of its steps, or before another one", i));
      last = c.steps.back();
      if (c.before <= last || c.before > step_count_) {
        bad_index(last,
                  fmt::format("collective {} begins after step {} and is complete before step {}, the plan has {}", i,
                              last, c.before, step_count_));
      }
    }
    for (StepIndex s = 0; s < step_count_; ++s) {
      const OpId id = plan_.steps[s].op;
      if (id.index < 0 || id.index >= graph_.op_count() || !graph_.op(id).type->is_collective || seen[s]) continue;
      bad(s, fmt::format("step {} ('{}') sends messages while others are under way", s, graph_.op(id).name));
    }
  }

  void check_stay(size_t i) {
    const Stay& s = plan_.stays[i];
    const StepIndex last = std::max<StepIndex>(step_count_ - 1, 0);
    if (s.tensor.index < -1 || s.tensor.index >= graph_.tensor_count()) {
      bad_index(s.first,
                fmt::format("stay {} is of tensor {}, the graph has {}", i, s.tensor.index, graph_.tensor_count()));
    } else if (s.first < 0 || s.last < s.first || s.last > last) {
      bad_index(s.first,
                fmt::format("stay {} is during steps {}..{}, the plan has steps 0..{}", i, s.first, s.last, last));
    } else if (s.offset.count < 0 || s.bytes.count < 0 || s.offset.count > INT64_MAX - s.bytes.count) {
      bad_index(s.first, fmt::format("stay {} has offset {} and {} bytes", i, s.offset.count, s.bytes.count));
    }
  }

  // A slot that can be counted with; what is in it is judged later.
  bool slot_exists(TensorId id, int tier, Bytes slot) const {
    return tier >= 0 && tier < std::ssize(plan_.tiers) && slot.count >= 0 &&
           slot.count <= INT64_MAX - tensor(id).bytes().count;
  }

  void check_move(size_t i) {
    const Move& m = plan_.moves[i];
    if (!exists(m.tensor)) {
      bad_index(m.after,
                fmt::format("move {} is of tensor {}, the graph has {}", i, m.tensor.index, graph_.tensor_count()));
    } else if (m.after < -1 || m.before <= m.after || m.before > step_count_) {
      bad_index(m.after, fmt::format("move {} runs after step {} and before step {}, the plan has {} steps", i, m.after,
                                     m.before, step_count_));
    } else if (!slot_exists(m.tensor, m.tier, m.slot)) {
      bad_index(m.after, fmt::format("move {} has tier {} and slot {}, the plan has {} tiers", i, m.tier, m.slot.count,
                                     plan_.tiers.size()));
    }
  }

  void check_homes() {
    if (plan_.homes.empty()) return;
    ById<TensorId, bool> from_outside(graph_.tensor_count(), false);
    for (TensorId id : graph_.inputs) from_outside[id] = true;
    for (const State& state : graph_.states) from_outside[state.before] = true;
    ById<TensorId, bool> has_home(graph_.tensor_count(), false);
    for (size_t i = 0; i < plan_.homes.size(); ++i) {
      const Home& h = plan_.homes[i];
      if (!exists(h.tensor)) {
        bad_index(-1,
                  fmt::format("home {} is of tensor {}, the graph has {}", i, h.tensor.index, graph_.tensor_count()));
        continue;
      }
      if (!slot_exists(h.tensor, h.tier, h.slot)) {
        bad_index(-1, fmt::format("home {} has tier {} and slot {}, the plan has {} tiers", i, h.tier, h.slot.count,
                                  plan_.tiers.size()));
      }
      if (!from_outside[h.tensor]) {
        findings_.report(Rule::bad_home, -1,
                         fmt::format("'{}' has a home, but is neither an input nor a state", tensor(h.tensor).name));
      } else if (has_home[h.tensor]) {
        findings_.report(Rule::bad_home, -1, fmt::format("'{}' has two homes", tensor(h.tensor).name));
      }
      has_home[h.tensor] = true;
    }
  }

  // A batch is whole: what of it lies in the arena comes over the link, all of it into second buffers or none.
  void check_feeding() {
    const Feeding& feeding = plan_.feeding;
    const auto bad = [&](std::string message) { findings_.report(Rule::bad_feeding, -1, std::move(message)); };
    const auto is_quantity = [](double x) { return std::isfinite(x) && x >= 0; };
    if (!is_quantity(feeding.latency_us) || !is_quantity(feeding.gb_per_s) || !is_quantity(feeding.arena_gb_per_s)) {
      bad(fmt::format("batches come at {} GB/s after {} us, and are copied at {} GB/s", feeding.gb_per_s,
                      feeding.latency_us, feeding.arena_gb_per_s));
    }
    if (feeding.inputs.empty()) {
      if (feeding.second_buffer) bad("there is a second buffer for a batch of nothing");
      return;
    }
    ById<TensorId, bool> expected(graph_.tensor_count(), false);
    for (TensorId id : graph_.inputs) expected[id] = tensor(id).role == Role::input;
    for (const Home& home : plan_.homes) {
      if (!exists(home.tensor)) continue;
      if (feeding.second_buffer && expected[home.tensor]) {
        bad(fmt::format("'{}' lies in a tier between steps; so a batch has no second buffer",
                        tensor(home.tensor).name));
      }
      expected[home.tensor] = false;
    }
    for (size_t i = 0; i < feeding.inputs.size(); ++i) {
      const FedInput& input = feeding.inputs[i];
      if (!exists(input.tensor)) {
        bad_index(-1, fmt::format("part {} of a batch is tensor {}, the graph has {}", i, input.tensor.index,
                                  graph_.tensor_count()));
        continue;
      }
      const std::string& name = tensor(input.tensor).name;
      if (!expected[input.tensor]) bad(fmt::format("'{}' is no part of a batch in the arena, or is there twice", name));
      expected[input.tensor] = false;
      if (input.offset.count < 0 || input.bytes.count < 0 || input.offset.count > INT64_MAX - input.bytes.count) {
        bad_index(-1, fmt::format("'{}' comes to offset {} in {} bytes", name, input.offset.count, input.bytes.count));
      } else if (input.bytes != align_up(tensor(input.tensor).bytes(), kStayAlignment)) {
        findings_.report(Rule::wrong_size, -1,
                         fmt::format("'{}' comes in {} bytes; it has {}", name, input.bytes.count,
                                     tensor(input.tensor).bytes().count));
      }
    }
    for (TensorId id : expected.ids()) {
      if (expected[id]) bad(fmt::format("'{}' is a part of every batch, and does not come with it", tensor(id).name));
    }
  }

  // A copy over the link writes there at any time.
  void check_second_buffers() {
    const std::vector<FedInput>& inputs = plan_.feeding.inputs;
    const auto what = [&](const FedInput& input) {
      return fmt::format("the second buffer of '{}' at [{}, {})", tensor(input.tensor).name, input.offset.count,
                         (input.offset + input.bytes).count);
    };
    for (const FedInput& input : inputs) {
      const Bytes end = input.offset + input.bytes;
      if (input.offset.count % kStayAlignment != 0) {
        findings_.report(Rule::misaligned, -1,
                         fmt::format("{} is not at a multiple of {} bytes", what(input), kStayAlignment));
      }
      if (end > plan_.arena) {
        findings_.report(Rule::out_of_arena, -1,
                         fmt::format("{} ends beyond the arena of {} bytes", what(input), plan_.arena.count));
      }
      for (const Stay& stay : plan_.stays) {
        if (stay.bytes.count == 0 || stay.offset >= end || input.offset >= stay.offset + stay.bytes) continue;
        findings_.report(Rule::overlap, stay.first,
                         fmt::format("{} and {} share bytes", what(input), findings_.what(stay)));
      }
      for (const FedInput& other : inputs) {
        if (other.tensor <= input.tensor || other.offset >= end || input.offset >= other.offset + other.bytes) continue;
        findings_.report(Rule::overlap, -1, fmt::format("{} and {} share bytes", what(input), what(other)));
      }
    }
  }

  void check_sizes() {
    if (plan_.arena > plan_.budget) {
      findings_.report(
          Rule::out_of_arena, -1,
          fmt::format("the arena of {} bytes is larger than the budget of {}", plan_.arena.count, plan_.budget.count));
    }
    for (const Stay& s : plan_.stays) {
      if (s.offset + s.bytes > plan_.arena) {
        findings_.report(Rule::out_of_arena, s.first,
                         fmt::format("{} ends beyond the arena of {} bytes", findings_.what(s), plan_.arena.count));
      }
      if (s.offset.count % kStayAlignment != 0) {
        findings_.report(Rule::misaligned, s.first,
                         fmt::format("{} is not at a multiple of {} bytes", findings_.what(s), kStayAlignment));
      }
      const Bytes needed =
          s.is_workspace() ? plan_.steps.empty() ? Bytes{} : plan_.steps[s.first].workspace : tensor(s.tensor).bytes();
      if (s.bytes < needed) {
        findings_.report(Rule::wrong_size, s.first, fmt::format("{} needs {} bytes", findings_.what(s), needed.count));
      }
    }
  }

  void check_tier(const TierUse& use) {
    const TierInfo& tier = use.tier;
    if (use.used.count < 0 || use.used > tier.capacity) {
      findings_.report(Rule::out_of_tier, -1,
                       fmt::format("tier '{}': {} bytes are used of a capacity of {}", tier.name, use.used.count,
                                   tier.capacity.count));
    }
    auto is_quantity = [](double x) { return std::isfinite(x) && x >= 0; };
    if (!is_quantity(tier.out_gb_per_s) || !is_quantity(tier.in_gb_per_s) || !is_quantity(tier.latency_us)) {
      findings_.report(
          Rule::out_of_tier, -1,
          fmt::format("tier '{}': rates of {} and {} GB/s and a latency of {} us; finite numbers from 0 are "
                      "expected",
                      tier.name, tier.out_gb_per_s, tier.in_gb_per_s, tier.latency_us));
    }
    if (!(tier.compute_share >= 0 && tier.compute_share <= 1)) {
      findings_.report(
          Rule::out_of_tier, -1,
          fmt::format("tier '{}': a compute share of {}; 0 to 1 is expected", tier.name, tier.compute_share));
    }
  }

  template <class What>
  void check_slot(TensorId id, int tier, Bytes slot, StepIndex step, const What& what) {
    const TierUse& use = plan_.tiers[tier];
    if (slot.count % kSlotAlignment != 0) {
      findings_.report(Rule::misaligned, step,
                       fmt::format("{}: slot {} is not at a multiple of {} bytes", what(), slot.count, kSlotAlignment));
    }
    if (slot + tensor(id).bytes() > use.used) {
      findings_.report(Rule::out_of_tier, step,
                       fmt::format("{}: slot [{}, {}) ends beyond the {} bytes used of tier '{}'", what(), slot.count,
                                   slot.count + tensor(id).bytes().count, use.used.count, use.tier.name));
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  Findings& findings_;
  StepIndex step_count_;
};

}  // namespace

bool check_fields(const Graph& graph, const Plan& plan, Findings& findings) {
  return FieldChecker(graph, plan, findings).run();
}

}  // namespace plimsoll
