#include "compile/choices.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "base/parallel.h"

namespace plimsoll {
namespace {

constexpr size_t kLimitsTried = 4;  // workspace limits between the largest and none
constexpr size_t kTriedAtOnce = 2;  // choices of kernels; where none is better, those after them are hardly ever
constexpr double kLong = 1.1;       // times what all ops take once
constexpr int kUpgrades = 2;        // of the plan's free bytes with faster kernels
// Where the step takes so many times what the fastest kernels do, smaller ones are looked for: each choice takes long where there are
// many ops, and longer where engines copy beside them.
constexpr double kLongForFew = 1.01, kLongForMany = 1.05, kLongBesideCopies = 1.2;
constexpr int32_t kFewOpsOfRows = 300, kMostOpsOfRows = 1500;
constexpr size_t kTriedFirst = 6, kTriedFirstOfMany = 4;  // choices of a row
constexpr double kSmaller = 0.7071;                       // part of a limit, the next that is tried
constexpr double kWorthAnotherRound = 0.003;              // of the step: what was gained by the last one

// Ways to choose kernels beside the first, which gave `layouts`: under smaller and smaller workspace limits, and every
// layout family without workspace. They do not depend on the budget, nor on what comes of them.
std::vector<Choice> other_choices(Flow& flow, const Choice& first, const LayoutResult& layouts,
                                  const CompileOptions& options, bool many) {
  std::vector<Choice> choices;
  std::set<Bytes> sizes;
  for (const KernelChoice& choice : layouts.kernels) {
    if (choice.workspace.count > 0) sizes.insert(choice.workspace);
  }
  const std::vector<Bytes> limits(sizes.begin(), sizes.end());  // the last is as good as unlimited, which was tried
  const size_t between = limits.empty() || many ? 0 : std::min(kLimitsTried, limits.size() - 1);
  for (size_t i = between; i > 0; --i)
    choices.push_back({first.family, limits[(limits.size() - 1) * i / (between + 1)], first.divide});
  choices.push_back({first.family, 0_B, first.divide});
  if (options.family) return choices;
  const LaidOut* smallest = flow.lay_out({first.family, 0_B, first.divide});
  for (LayoutFamily family : {LayoutFamily::blocked, LayoutFamily::channels_last, LayoutFamily::plain}) {
    if (smallest == nullptr || family != smallest->layouts.family) choices.push_back({family, 0_B, first.divide});
  }
  return choices;
}

}  // namespace

bool waits_long(const Attempt& a) {
  return a.feasible() && a.plan().predicted.step_time_ms > kLong * a.plan().predicted.lower_bound_ms;
}

void upgrade(Attempt& best, Flow& flow, bool divide, const std::string& policy) {
  for (int round = 0; round < kUpgrades && best.feasible(); ++round) {
    std::optional<Attempt> fuller = flow.upgraded(best, divide, policy);
    if (!fuller || !is_better(*fuller, best)) return;
    best = std::move(*fuller);
  }
}

void upgrade_others(Attempt& best, Flow& flow, const std::vector<Choice>& choices) {
  std::vector<std::string> others;
  for (const Policy& policy : policies()) {
    if (policy.name != "auto" && policy.name != "baseline" && policy.name != "caffe")
      others.emplace_back(policy.name);  // those two are liveness, and more
  }
  const double ms = best.ms();
  std::vector<std::optional<Attempt>> found(others.size());
  for_each_in_parallel(others.size(), [&](size_t i) {
    std::optional<Attempt>& theirs = found[i];
    for (const Choice& choice : choices) {
      Attempt other = flow.attempt_by(others[i], choice, ms);
      if (other.feasible() && (!theirs || is_better(other, *theirs))) theirs = std::move(other);
    }
    if (theirs) upgrade(*theirs, flow, choices.front().divide, others[i]);
  });
  for (std::optional<Attempt>& theirs : found) {
    if (theirs && is_better(*theirs, best)) best = *std::move(theirs);
  }
}

std::vector<Choice> choices_of(Flow& flow, const Choice& first, const CompileOptions& options, bool many) {
  const LaidOut& unlimited = *flow.lay_out(first);
  std::vector<Choice> choices{first};
  std::set<std::string> seen{identity(unlimited)};
  for (const Choice& other : other_choices(flow, first, unlimited.layouts, options, many)) {
    const LaidOut* laid = flow.lay_out(other);
    if (laid != nullptr && seen.insert(identity(*laid)).second) choices.push_back(other);
  }
  const auto ms = [&](const Choice& choice) { return flow.lay_out(choice)->layouts.estimated_ms; };
  const auto fastest = std::min_element(choices.begin(), choices.end(),
                                        [&](const Choice& a, const Choice& b) { return ms(a) * kRounding < ms(b); });
  std::rotate(choices.begin(), fastest, fastest + 1);
  return choices;
}

size_t try_choices(Attempt& best, const std::vector<Choice>& choices, Flow& flow, const CompileOptions& options,
                   bool divide) {
  const bool may_upgrade = best.graph.op_count() <= kFewOps && !options.workspace_total && !options.first_that_fits;
  std::mutex best_mutex;
  size_t best_index = 0;  // of equal ones the first: the same whoever is done first
  for (size_t end = 1; end < choices.size() && (!best.feasible() || end <= best_index + kTriedAtOnce);) {
    const size_t begin = end;
    end = std::min(choices.size(), begin + kTriedAtOnce);
    const bool any_waits = may_upgrade && waits_long(best);
    if (any_waits) upgrade(best, flow, divide, options.policy);
    const double known_ms = best.feasible() ? best.ms() : kAnyTime;
    for_each_in_parallel(end - begin, [&](size_t i) {
      const size_t index = begin + i;
      double ms = kAnyTime;
      if (const std::lock_guard lock(best_mutex); best.feasible()) ms = best.ms() * kRounding;
      if (any_waits && ms < kAnyTime)
        ms = flow.least_ms(choices[index]) < ms ? known_ms + flow.gain(choices[index]) : 0;
      Attempt other = flow.attempt(choices[index], false, ms);
      if (any_waits) upgrade(other, flow, divide, options.policy);
      const std::lock_guard lock(best_mutex);
      if (!(is_better(other, best) || (index < best_index && !is_better(best, other)))) return;
      best = std::move(other);
      best_index = index;
    });
  }
  return best_index;
}

namespace {

// A row of choices, each with a little less workspace than the one before: those that are `wanted`, then those midway between the best
// and what was tried on either side of it, for as long as that is worth it. Which are tried does not depend on who is done first. Steps
// of what is best get faster kernels where it has left them room.
void search_along(Attempt& best, const std::vector<Choice>& row, std::set<size_t> wanted, Flow& flow,
                  const std::string& policy) {
  std::set<size_t> tried;
  std::set<std::string> seen;
  std::optional<size_t> best_at;
  for (double ms = best.ms(); !wanted.empty();) {
    tried.insert(wanted.begin(), wanted.end());
    std::erase_if(wanted, [&](size_t i) {
      const LaidOut* laid = flow.lay_out(row[i]);
      return laid == nullptr || laid->layouts.estimated_ms >= ms || !seen.insert(identity(*laid)).second;
    });
    const std::vector<size_t> now(wanted.begin(), wanted.end());
    std::vector<Attempt> found(now.size());
    for_each_in_parallel(now.size(), [&](size_t i) {
      const Choice& choice = row[now[i]];
      found[i] = flow.attempt(choice, false, ms);
      if (is_better(found[i], best)) upgrade(found[i], flow, choice.divide, policy);
    });
    for (size_t i = 0; i < now.size(); ++i) {
      if (!is_better(found[i], best)) continue;
      best = std::move(found[i]);
      best_at = now[i];
    }
    const double gained = 1 - best.ms() / ms;
    if (gained < kWorthAnotherRound) return;
    ms = best.ms();
    wanted.clear();
    const auto at = tried.find(*best_at);
    const size_t before = at == tried.begin() ? 0 : *std::prev(at);
    const size_t after = std::next(at) == tried.end() ? row.size() : *std::next(at);
    for (const size_t middle : {(before + *best_at) / 2, (*best_at + after) / 2}) {
      if (!tried.contains(middle)) wanted.insert(middle);
    }
  }
}

// So many of the row, as far apart as they can be.
std::set<size_t> spread(size_t size, size_t count) {
  std::set<size_t> result;
  for (size_t i = 0; i < count; ++i) result.insert((2 * i + 1) * size / (2 * count));
  return result;
}

// Of sizes that become smaller: the largest, and each time the next that is smaller by a root of two.
std::set<size_t> spread(const std::vector<Bytes>& sizes, size_t count) {
  std::set<size_t> result{0};
  for (size_t i = 1; i < sizes.size() && result.size() < count; ++i) {
    if (static_cast<double>(sizes[i].count) <= kSmaller * static_cast<double>(sizes[*result.rbegin()].count))
      result.insert(i);
  }
  return result;
}

}  // namespace

void try_smaller(Attempt& best, const Choice& first, Flow& flow, const std::string& policy) {
  const int32_t ops = best.graph.op_count();
  if (!best.feasible() || ops > kMostOpsOfRows) return;
  const bool few = ops <= kFewOpsOfRows;
  const size_t count = few ? kTriedFirst : kTriedFirstOfMany;
  const double enough_ms = (few                            ? kLongForFew
                            : flow.copies_beside_compute() ? kLongBesideCopies
                                                           : kLongForMany) *
                           flow.least_ms(first);
  const auto search = [&](auto Choice::*what, const auto& values, std::set<size_t> wanted) {
    const double ms = best.ms();
    if (values.empty() || ms <= enough_ms) return false;
    std::vector<Choice> row(values.size(), first);
    for (size_t i = 0; i < values.size(); ++i) row[i].*what = values[i];
    flow.announce({first, row.back()});
    search_along(best, row, std::move(wanted), flow, policy);
    return best.ms() < ms;
  };
  const std::vector<Bytes> limits = flow.workspaces(first);
  if (!search(&Choice::limit, limits, spread(limits, count)) && !few) return;
  const std::vector<double> prices = flow.prices(first);
  search(&Choice::ms_of_byte, prices, spread(prices.size(), count));
}

}  // namespace plimsoll
