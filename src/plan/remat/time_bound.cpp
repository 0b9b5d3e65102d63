#include "plan/remat/time_bound.h"

#include <algorithm>

#include "plan/remat/linear_program.h"
#include "plan/remat/run_set.h"

namespace plimsoll {
namespace {

constexpr int32_t kAbsent = -1, kThere = -2, kGone = -3;  // in place of columns
constexpr int32_t kMoments[] = {1, 2, 3, 5, 8, 12};
constexpr int64_t kFewSteps = 300, kManySteps = 4'000;  // of the linear program
constexpr size_t kMostEntries = 3'000'000;
constexpr int64_t kSmall = 100'000;  // part of the budget
constexpr double kRounding = 1e-9;

class BoundProgram {
 public:
  BoundProgram(const ValueTimeline& timeline, int64_t budget, int32_t most_moments)
      : timeline_(timeline), budget_(budget), steps_(static_cast<int32_t>(timeline.steps.size())) {
    find_needs();
    choose_moments(most_moments);
    if (impossible_) return;
    add_columns();
    for (size_t j = 0; j < moments_.size(); ++j) {
      for (size_t i = 0; i < j; ++i) add_window_rows(i, j);
      if (moments_[j] < steps_) add_memory_rows(j);
    }
  }

  bool impossible() const { return impossible_; }
  bool nothing_to_ask() const { return moments_.size() == 1; }
  LinearProgram& program() { return program_; }

 private:
  // What is so small counts as nothing, and is always there.
  bool is_small(const TimelineValue& value) const { return value.bytes <= budget_ / kSmall; }
  int64_t bytes_of(int32_t v) const {
    const TimelineValue& value = timeline_.values[v];
    return value.recomputable && is_small(value) ? 0 : value.bytes;
  }

  // Until which step a value is wanted for first runs; whether it may be computed again.
  void find_needs() {
    for (const TimelineValue& value : timeline_.values) {
      last_.push_back(value.at_end ? steps_ : value.uses.empty() ? value.producer : value.uses.back());
      may_return_.push_back(value.recomputable && may_run_again(timeline_, value.producer) && !is_small(value));
    }
    is_read_again_.assign(timeline_.values.size(), false);
    std::vector<int32_t> lost(timeline_.values.size(), steps_);
    for (int32_t s = 0; s < steps_; ++s) {
      for (const TimelineInPlace& pair : timeline_.steps[s].in_place) {
        if (pair.required) lost[pair.input] = s;
      }
    }
    for (int32_t s = 0; s < steps_; ++s) {
      last_run_.push_back(-1);
      if (!may_run_again(timeline_, s)) continue;
      last_run_.back() = steps_;
      for (int32_t v : timeline_.steps[s].recompute_inputs) {
        is_read_again_[v] = true;
        last_run_.back() = std::min(last_run_.back(), lost[v]);
      }
    }
  }

  bool reads(int32_t step, int32_t v) const {
    return step < steps_ && std::ranges::find(timeline_.steps[step].inputs, v) != timeline_.steps[step].inputs.end();
  }
  // What the step writes and its workspace, and what it reads: always there. What may take a place is left out.
  int64_t own(int32_t step) const {
    const TimelineStep& what = timeline_.steps[step];
    int64_t bytes = what.workspace;
    for (int32_t v : what.inputs) bytes += bytes_of(v);
    for (int32_t v : what.outputs) {
      const bool in_place = std::any_of(what.in_place.begin(), what.in_place.end(),
                                        [&](const TimelineInPlace& pair) { return pair.output == v; });
      if (!in_place) bytes += bytes_of(v);
    }
    return bytes;
  }

  // The steps at which more is wanted than the budget, if everything is kept.
  void choose_moments(int32_t most) {
    std::vector<int64_t> across(steps_ + 2, 0), lasting(steps_ + 2, 0);
    for (size_t v = 0; v < timeline_.values.size(); ++v) {
      const TimelineValue& value = timeline_.values[v];
      const int32_t first = value.producer + 1;
      if (value.producer < 0 && value.uses.empty() && !value.at_end) continue;
      const auto add = [&](int32_t from, int32_t to, int64_t bytes) {  // [from, to)
        if (from >= to) return;
        across[from] += bytes;
        across[to] -= bytes;
        if (may_return_[v]) return;
        lasting[from] += bytes;
        lasting[to] -= bytes;
      };
      const int64_t bytes = bytes_of(static_cast<int32_t>(v));
      add(first, std::min(last_[v], steps_), bytes);
      for (int32_t use : value.uses) {
        if (use < last_[v]) add(use, use + 1, -bytes);
      }
    }
    std::vector<int32_t> above;
    int64_t here = 0, stays = 0;
    for (int32_t s = 0; s < steps_; ++s) {
      here += across[s];
      stays += lasting[s];
      const int64_t needs = own(s);
      if (needs + stays > budget_) impossible_ = true;
      if (needs + here > budget_) above.push_back(s);
      excess_.push_back(needs + here - budget_);
    }
    // Of many, those where most is too much in each of as many parts.
    const size_t parts = std::min(above.size(), static_cast<size_t>(most));
    for (size_t i = 0; i < parts; ++i) {
      const size_t begin = i * above.size() / parts, end = (i + 1) * above.size() / parts;
      moments_.push_back(*std::max_element(above.begin() + static_cast<std::ptrdiff_t>(begin),
                                           above.begin() + static_cast<std::ptrdiff_t>(end),
                                           [&](int32_t a, int32_t b) { return excess_[a] < excess_[b]; }));
    }
    moments_.push_back(steps_);  // the end
  }

  void add_columns() {
    const size_t values = timeline_.values.size(), moments = moments_.size();
    there_.assign(values * moments, kAbsent);
    runs_.assign(static_cast<size_t>(steps_) * moments * moments, kGone);
    for (size_t v = 0; v < values; ++v) {
      const TimelineValue& value = timeline_.values[v];
      for (size_t j = 0; j < moments; ++j) {
        const int32_t s = moments_[j];
        int32_t& column = there_[v * moments + j];
        if (s < value.producer) continue;
        if (s == value.producer || reads(s, static_cast<int32_t>(v)) || (s == steps_ && value.at_end)) {
          column = kThere;
        } else if (!may_return_[v]) {
          column = s < last_[v] || bytes_of(static_cast<int32_t>(v)) == 0 ? kThere : kAbsent;
        } else if (s < last_[v] || is_read_again_[v]) {
          column = program_.add_column(0, 1);
        }
      }
    }
    for (int32_t p = 0; p < steps_; ++p) {
      if (last_run_[p] < 0) continue;
      for (size_t j = 1; j < moments; ++j) {
        for (size_t i = 0; i < j; ++i) {
          if (p > moments_[i] || last_run_[p] <= moments_[i]) continue;
          runs_[window(p, i, j)] = program_.add_column(i + 1 == j ? timeline_.steps[p].ms : 0, 1);
        }
      }
    }
  }
  int32_t there(int32_t v, size_t j) const { return there_[static_cast<size_t>(v) * moments_.size() + j]; }
  size_t window(int32_t p, size_t i, size_t j) const {
    return (static_cast<size_t>(p) * moments_.size() + i) * moments_.size() + j;
  }
  int32_t run(int32_t p, size_t i, size_t j) const { return runs_[window(p, i, j)]; }

  // sum of entries >= least; constants are taken over.
  void require(std::initializer_list<std::pair<int32_t, double>> terms, double least) {
    entries_.clear();
    for (const auto& [column, by] : terms) {
      if (column == kThere) least -= by;
      if (column >= 0) entries_.push_back({column, by});
    }
    if (entries_.empty()) {
      if (least > 0) impossible_ = true;
      return;
    }
    double least_that_can_be = 0;
    for (const LinearProgram::Entry& entry : entries_) least_that_can_be += std::min(0.0, entry.by);
    if (least > least_that_can_be) program_.add_row(entries_, least);
  }

  // Between moments i and j.
  void add_window_rows(size_t i, size_t j) {
    const int32_t from = moments_[i], to = moments_[j];
    for (int32_t v = 0; v < static_cast<int32_t>(timeline_.values.size()); ++v) {
      const TimelineValue& value = timeline_.values[v];
      if (!may_return_[v] || value.producer > from) continue;
      const int32_t again = run(value.producer, i, j), was = there(v, i);
      const bool used_between =
          std::any_of(value.uses.begin(), value.uses.end(), [&](int32_t use) { return from < use && use < to; });
      if (used_between) {
        require({{again, 1}, {was, 1}}, 1);
      } else {
        require({{again, 1}, {was, 1}, {there(v, j), -1}}, 0);
      }
    }
    for (int32_t p = 0; p < steps_; ++p) {
      const int32_t again = run(p, i, j);
      if (again < 0) continue;
      for (int32_t w : timeline_.steps[p].recompute_inputs) {
        if (!may_return_[w] || timeline_.values[w].producer > from) continue;
        require({{there(w, i), 1}, {run(timeline_.values[w].producer, i, j), 1}, {again, -1}}, 0);
      }
      for (size_t k = i + 1; k < j; ++k) {
        require({{run(p, i, k), 1}, {run(p, k, j), 1}, {again, -1}}, 0);
        if (k == i + 1 && j > k + 1) k = j - 2;  // the first and the last part will do
      }
    }
  }

  void add_memory_rows(size_t j) {
    const int32_t s = moments_[j];
    int64_t room = budget_ - own(s);
    std::vector<std::pair<int32_t, int64_t>> needed, spare;  // columns and bytes
    int64_t most = 0;
    for (int32_t v = 0; v < static_cast<int32_t>(timeline_.values.size()); ++v) {
      const TimelineValue& value = timeline_.values[v];
      const int64_t bytes = bytes_of(v);
      if (bytes == 0 || value.producer >= s || reads(s, v)) continue;
      const int32_t column = there(v, j);
      if (column == kThere) room -= bytes;
      if (column < 0) continue;
      (s < last_[v] ? needed : spare).emplace_back(column, bytes);
      if (s < last_[v]) most += bytes;
    }
    const double scale = 1 / static_cast<double>(budget_);
    entries_.clear();
    for (const auto& [column, bytes] : needed) entries_.push_back({column, -scale * static_cast<double>(bytes)});
    for (const auto& [column, bytes] : spare) entries_.push_back({column, -scale * static_cast<double>(bytes)});
    program_.add_row(entries_, -scale * static_cast<double>(room));
    const int64_t excess = most - room;
    if (excess <= 0) return;
    const auto cut = [&](int32_t column, int64_t bytes) {
      const int64_t limit = excess + bytes;
      int64_t sum = 0;
      bool any = false;
      entries_.clear();
      for (const auto& [c, b] : needed) {
        const int64_t counted = std::min(b, limit);
        any = any || counted < b;
        sum += counted;
        entries_.push_back({c, -scale * static_cast<double>(counted)});
      }
      if (!any) return;
      if (column >= 0) entries_.push_back({column, -scale * static_cast<double>(bytes)});
      program_.add_row(entries_, scale * static_cast<double>(excess - sum));
    };
    cut(-1, 0);
    for (const auto& [column, bytes] : spare) {
      if (program_.entries() < kMostEntries) cut(column, bytes);
    }
  }

  const ValueTimeline& timeline_;
  const int64_t budget_;
  const int32_t steps_;
  std::vector<int32_t> last_, last_run_;  // by value, by step
  std::vector<bool> may_return_, is_read_again_;
  std::vector<int64_t> excess_;
  std::vector<int32_t> moments_;
  std::vector<int32_t> there_, runs_;
  std::vector<LinearProgram::Entry> entries_;
  LinearProgram program_;
  bool impossible_ = false;
};

}  // namespace

TimeBound bound_time(const ValueTimeline& timeline, int64_t budget, int64_t effort, double enough_ms) {
  TimeBound result{.ms = timeline.compute_ms};
  const double enough = enough_ms * (1 - kRounding) - timeline.compute_ms;
  int64_t left = effort;
  for (const int32_t moments : kMoments) {
    BoundProgram bound(timeline, budget, moments);
    result.impossible = bound.impossible();
    if (result.impossible || bound.nothing_to_ask()) return result;
    LinearProgram& program = bound.program();
    const int64_t entries = static_cast<int64_t>(2 * program.entries() + program.columns() + program.rows());
    if (moments > kMoments[0] && left < kFewSteps * entries) break;
    const int steps = static_cast<int>(std::clamp<int64_t>(left / 2 / entries, kFewSteps, kManySteps));
    left -= steps * entries;
    const double more = program.improve(steps, enough);
    result.ms = std::max(result.ms, timeline.compute_ms + more * (1 - kRounding));
    if (more >= enough) break;
  }
  return result;
}

}  // namespace plimsoll
