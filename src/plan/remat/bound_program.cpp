#include "plan/remat/bound_program.h"

#include <algorithm>

#include "plan/engines.h"
#include "plan/remat/run_set.h"
#include "plan/simulate.h"

namespace plimsoll {
namespace {

constexpr int32_t kAbsent = -1, kThere = -2, kGone = -3;  // in place of columns
constexpr size_t kMostEntries = 3'000'000;
constexpr int64_t kSmall = 100'000;  // part of the budget
constexpr double kMuch = 0.02;       // part of the budget
constexpr int64_t kSmallToCopy = 2'000;
constexpr double kHalf = 0.5, kLeastMissed = 0.01;  // of a cut
constexpr size_t kMostGone = 40;
constexpr double kDivided = 0.02;  // from 0 and 1

Move::Direction direction_of(bool out) { return out ? Move::Direction::out : Move::Direction::in; }

}  // namespace

CopyTimes::CopyTimes(const std::vector<TierInfo>& tiers) : tiers_(tiers) {
  double shares = 0;
  for (const TierInfo& tier : tiers) shares += tier.beside_compute() ? 2 * tier.compute_share : 0;
  const double scale = shares > 0 ? std::min(1.0, (1 - kLeastComputeSpeed) / shares) : 1;
  for (const TierInfo& tier : tiers) {
    weights_.push_back(tier.beside_compute() ? scale * tier.compute_share : 1 - scale * shares);
    beside_compute_ |= tier.beside_compute();
  }
}

double CopyTimes::engine_ms(bool out, int64_t bytes) const {
  if (tiers_.size() == 1) return copy_ms(tiers_[0], direction_of(out), {bytes});
  double bytes_a_ms = 0;
  for (const TierInfo& tier : tiers_) {
    const double rate = out ? tier.out_gb_per_s : tier.in_gb_per_s;
    if (rate <= 0) return 0;
    bytes_a_ms += rate * 1e6;
  }
  return static_cast<double>(bytes) / bytes_a_ms;
}

double CopyTimes::compute_ms(bool out, int64_t bytes) const {
  double least = kAnyTime;
  for (size_t t = 0; t < tiers_.size(); ++t)
    least = std::min(least, weights_[t] * copy_ms(tiers_[t], direction_of(out), {bytes}));
  return least;
}

BoundProgram::BoundProgram(const ValueTimeline& timeline, const CopyTimes& copies, int64_t budget, int32_t most_moments,
                           std::vector<int32_t> moments, bool parts_by_time)
    : timeline_(timeline),
      copies_(copies),
      budget_(budget),
      steps_(static_cast<int32_t>(timeline.steps.size())),
      parts_by_time_(parts_by_time),
      moments_(std::move(moments)) {
  find_needs();
  choose_moments(most_moments);
  if (impossible_) return;
  for (const int32_t s : moments_) {
    points_.push_back({s, false});
    if (s < steps_ && much_is_copied_beside(s)) points_.push_back({s, true});
  }
  add_columns();
  if (copies.any()) add_copy_columns();
  for (size_t j = 0; j < points_.size(); ++j) {
    for (size_t i = 0; i < j; ++i) {
      if (are_asked_for(i, j)) add_window_rows(i, j);
    }
    if (points_[j].step < steps_ && !step_runs_until(j)) add_memory_rows(j);
    if (copies.any()) {
      add_rows_from_start(j);
      if (copies.some_beside_compute()) add_engine_rows(j);
    }
  }
  if (copies.any()) add_rows_of_homes();
}

int32_t BoundProgram::most_divided() const {
  int32_t best = -1;
  double most = 0;
  for (const Fullness& full : full_) {
    for (const std::vector<Present>* list : {&full.needed, &full.spare}) {
      for (const Present& value : *list) {
        const double there = program_.value(value.column), divided = std::min(there, 1 - there);
        const double weight = divided * static_cast<double>(value.bytes);
        if (divided < kDivided || weight < most || (weight == most && value.column > best)) continue;
        most = weight;
        best = value.column;
      }
    }
  }
  return best;
}

int BoundProgram::add_cuts() {
  int added = 0;
  for (Fullness& full : full_) added += program_.entries() < kMostEntries && add_best_cut(full) ? 1 : 0;
  for (size_t j = 1; !copies_.any() && j < points_.size(); ++j)
    added += program_.entries() < kMostEntries && add_rerun_cut(j) ? 1 : 0;
  return added;
}

int64_t BoundProgram::entries() const {
  return static_cast<int64_t>(2 * program_.entries() + program_.columns() + program_.rows());
}

std::vector<int32_t> BoundProgram::hungriest(int32_t parts) const {
  return largest_in_parts(parts, [&](int32_t s) { return own(s); });
}

RelaxedPresence BoundProgram::presence() const {
  RelaxedPresence presence{moments_, {}};
  for (const int32_t column : there_)
    presence.there.push_back(column >= 0 ? static_cast<float>(program_.value(column)) : column == kThere ? 1.F : 0.F);
  return presence;
}

bool BoundProgram::is_small(const TimelineValue& value) const {
  return value.bytes <= budget_ / (copies_.some_beside_compute() ? kSmallToCopy : kSmall);
}

int64_t BoundProgram::bytes_of(int32_t v) const {
  const TimelineValue& value = timeline_.values[v];
  return (value.recomputable || copies_.any()) && is_small(value) ? 0 : value.bytes;
}

bool BoundProgram::much_is_copied_beside(int32_t step) const {
  return copies_.some_beside_compute() && timeline_.steps[step].ms > kMuch * copies_.engine_ms(false, budget_);
}

bool BoundProgram::are_asked_for(size_t i, size_t j) const {
  if (step_runs_from(i) || step_runs_until(j)) return i + 1 == j && step_runs_until(j);
  return i + 1 == j || !copies_.some_beside_compute();
}

void BoundProgram::find_needs() {
  for (const TimelineValue& value : timeline_.values) {
    last_.push_back(value.at_end ? steps_ : value.uses.empty() ? value.producer : value.uses.back());
    may_run_.push_back(value.recomputable && may_run_again(timeline_, value.producer) && !is_small(value));
    may_return_.push_back(may_run_.back() || (copies_.any() && !is_small(value)));
  }
  std::vector<int32_t> lost(timeline_.values.size(), steps_);
  for (int32_t s = 0; s < steps_; ++s) {
    for (const TimelineInPlace& pair : timeline_.steps[s].in_place) {
      if (pair.required) lost[pair.input] = s;
    }
  }
  last_run_.assign(steps_, -1);
  last_read_ = last_;
  for (int32_t s = steps_; s-- > 0;) {
    if (!may_run_again(timeline_, s)) continue;
    const TimelineStep& step = timeline_.steps[s];
    for (int32_t v : step.recompute_outputs) last_run_[s] = std::max(last_run_[s], last_read_[v]);
    for (int32_t v : step.recompute_inputs) last_run_[s] = std::min(last_run_[s], lost[v]);
    for (int32_t v : step.recompute_inputs) last_read_[v] = std::max(last_read_[v], last_run_[s]);
  }
}

bool BoundProgram::reads(int32_t step, int32_t v) const {
  return step < steps_ && std::ranges::find(timeline_.steps[step].inputs, v) != timeline_.steps[step].inputs.end();
}

int64_t BoundProgram::bytes_at(const TimelineStep& step, std::span<const int32_t> inputs,
                               std::span<const int32_t> outputs) const {
  int64_t bytes = step.workspace;
  for (int32_t v : inputs) bytes += bytes_of(v);
  for (int32_t v : outputs) {
    if (!may_take_a_place(step, v)) bytes += bytes_of(v);
  }
  return bytes;
}

int64_t BoundProgram::own(int32_t step) const {
  const TimelineStep& what = timeline_.steps[step];
  return bytes_at(what, what.inputs, what.outputs);
}

void BoundProgram::choose_moments(int32_t most) {
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
  int64_t here = 0, stays = 0;
  for (int32_t s = 0; s < steps_; ++s) {
    here += across[s];
    stays += lasting[s];
    const int64_t needs = own(s);
    if (needs + stays > budget_) impossible_ = true;
    if (needs + here > budget_) above_.push_back(s);
    excess_.push_back(needs + here - budget_);
  }
  if (!moments_.empty()) {
    moments_.push_back(steps_);
    return;
  }
  moments_ = largest_in_parts(most, [&](int32_t s) { return excess_[s]; });
  moments_.push_back(steps_);  // the end
}

template <class Key>
std::vector<int32_t> BoundProgram::largest_in_parts(int32_t most, const Key& key) const {
  std::vector<int32_t> found;
  const size_t parts = std::min(above_.size(), static_cast<size_t>(most));
  double all_ms = 0;
  for (const int32_t s : above_) all_ms += timeline_.steps[s].ms;
  double ms = 0;
  for (size_t i = 0, begin = 0, end = 0; i < parts; ++i, begin = end) {
    const size_t most_end = above_.size() - (parts - i - 1);
    if (parts_by_time_) {
      do ms += timeline_.steps[above_[end++]].ms;
      while (end < most_end && ms < all_ms * static_cast<double>(i + 1) / static_cast<double>(parts));
    } else {
      end = (i + 1) * above_.size() / parts;
    }
    if (i + 1 == parts) end = above_.size();
    found.push_back(*std::max_element(above_.begin() + static_cast<std::ptrdiff_t>(begin),
                                      above_.begin() + static_cast<std::ptrdiff_t>(end),
                                      [&](int32_t a, int32_t b) { return key(a) < key(b); }));
  }
  return found;
}

void BoundProgram::add_columns() {
  const size_t values = timeline_.values.size(), points = points_.size();
  there_.assign(values * points, kAbsent);
  runs_.assign(static_cast<size_t>(steps_) * points * points, kGone);
  for (size_t v = 0; v < values; ++v) {
    const TimelineValue& value = timeline_.values[v];
    for (size_t j = 0; j < points; ++j) {
      const int32_t s = points_[j].step;
      int32_t& column = there_[v * points + j];
      if (s < value.producer) continue;
      const bool at_end = s == steps_ && value.at_end;
      if (s == value.producer || reads(s, static_cast<int32_t>(v)) || (at_end && !may_end_outside(v))) {
        column = kThere;
      } else if (!may_return_[v]) {
        column = s < last_[v] || bytes_of(static_cast<int32_t>(v)) == 0 ? kThere : kAbsent;
      } else if (s < last_read_[v] || at_end) {
        column = program_.add_column(0, 1);
      }
    }
  }
  for (int32_t p = 0; p < steps_; ++p) {
    if (last_run_[p] < 0) continue;
    for (size_t j = 1; j < points; ++j) {
      for (size_t i = 0; i < j; ++i) {
        if (!are_asked_for(i, j) || step_runs_until(j) || p > points_[i].step || last_run_[p] <= points_[i].step)
          continue;
        runs_[window(p, i, j)] = program_.add_column(i + 1 == j ? timeline_.steps[p].ms : 0, 1);
      }
    }
  }
}

bool BoundProgram::may_end_outside(size_t v) const {
  return may_return_[v] && timeline_.values[v].state >= 0 && !timeline_.values[v].is_output && copies_.any();
}

void BoundProgram::add_copy_columns() {
  const size_t values = timeline_.values.size(), points = points_.size();
  outs_.assign(values * points, kAbsent);
  ins_.assign(values * points, kAbsent);
  homes_.assign(values, kAbsent);
  double all_ms = 0;
  for (size_t v = 0; v < values; ++v) {
    const TimelineValue& value = timeline_.values[v];
    const size_t first = v * points;
    const auto is_column = [](int32_t column) { return column >= 0; };
    if (!may_return_[v]) continue;
    if (value.producer < 0) homes_[v] = program_.add_column(0, 1);
    if (value.producer >= 0 && !std::any_of(there_.begin() + first, there_.begin() + first + points, is_column))
      continue;
    for (size_t j = 0; j < points; ++j) {
      if (points_[j].step > value.producer) {
        outs_[first + j] = program_.add_column(copies_.compute_ms(true, value.copied_bytes), 1);
        all_ms += copies_.engine_ms(true, value.copied_bytes);
      }
      const int32_t from = j == 0 ? -1 : points_[j - 1].step;
      if (from + (step_runs_until(j) ? 0 : 1) > value.producer && from < last_read_[v]) {
        ins_[first + j] = program_.add_column(copies_.compute_ms(false, value.copied_bytes), 1);
        all_ms += copies_.engine_ms(false, value.copied_bytes);
      }
    }
  }
  if (!copies_.some_beside_compute()) return;
  stall_unit_ms_ = timeline_.compute_ms / static_cast<double>(moments_.size());
  if (stall_unit_ms_ <= 0) stall_unit_ms_ = 1;
  for (size_t j = 0; j < points; ++j)
    stalls_.push_back(step_runs_until(j) ? kAbsent
                                         : program_.add_column(stall_unit_ms_, std::max(1.0, all_ms / stall_unit_ms_)));
}

size_t BoundProgram::window(int32_t p, size_t i, size_t j) const {
  return (static_cast<size_t>(p) * points_.size() + i) * points_.size() + j;
}

int32_t BoundProgram::run_for(int32_t v, size_t i, size_t j) const {
  return may_run_[v] ? run(timeline_.values[v].producer, i, j) : kGone;
}

void BoundProgram::add_term(int32_t column, double by) {
  if (column == kThere) constant_ += by;
  if (column >= 0) entries_.push_back({column, by});
}

void BoundProgram::add_copies(const std::vector<int32_t>& columns, int32_t v, size_t first, size_t end) {
  if (columns.empty()) return;
  for (size_t j = first; j < end; ++j) add_term(columns[static_cast<size_t>(v) * points_.size() + j], 1);
}

void BoundProgram::add_slot(int32_t v, size_t i) {
  add_term(there(v, i), 1);
  add_copies(outs_, v, 0, i + 1);
  if (!homes_.empty()) add_term(homes_[v], 1);
}

void BoundProgram::require(double least) {
  least -= constant_;
  constant_ = 0;
  if (entries_.empty()) {
    if (least > 0) impossible_ = true;
    return;
  }
  double least_that_can_be = 0;
  for (const LinearProgram::Entry& entry : entries_) least_that_can_be += std::min(0.0, entry.by);
  if (least > least_that_can_be) program_.add_row(entries_, least);
  entries_.clear();
}

void BoundProgram::add_window_rows(size_t i, size_t j) {
  const int32_t from = points_[i].step, to = points_[j].step;
  for (int32_t v = 0; v < static_cast<int32_t>(timeline_.values.size()); ++v) {
    const TimelineValue& value = timeline_.values[v];
    if (!may_return_[v] || value.producer > from) continue;
    const auto next = std::upper_bound(value.uses.begin(), value.uses.end(), from);
    const bool used_between = next != value.uses.end() && *next < to;
    const bool used_before = j > i + 1 && next != value.uses.end() && *next <= points_[j - 1].step;
    const auto wanted = [&] {
      add_term(run_for(v, i, j), 1);
      if (!used_between) add_term(there(v, j), -1);
      require(used_between ? 1 : 0);
    };
    if (may_run_[v] || !used_before) {
      add_term(there(v, i), 1);
      add_copies(ins_, v, i + 1, j + 1);
      wanted();
    }
    if (copies_.any() && !used_before) {
      add_slot(v, i);
      wanted();
    }
  }
  for (int32_t p = 0; p < steps_; ++p) {
    const int32_t again = run(p, i, j);
    if (again < 0) continue;
    for (int32_t w : timeline_.steps[p].recompute_inputs) {
      if (!may_return_[w] || timeline_.values[w].producer > from) continue;
      add_term(there(w, i), 1);
      add_term(run_for(w, i, j), 1);
      add_copies(ins_, w, i + 1, j + 1);
      add_term(again, -1);
      require(0);
      if (!copies_.any()) continue;
      add_slot(w, i);
      add_term(run_for(w, i, j), 1);
      add_term(again, -1);
      require(0);
    }
    if (i + 1 == j) continue;
    const size_t first = i + 1, last = step_runs_until(j - 1) ? j - 2 : j - 1;
    for (const size_t k : {first, last}) {  // the first and the last part will do
      add_term(run(p, i, k), 1);
      add_term(run(p, step_runs_from(k) ? k + 1 : k, j), 1);
      add_term(again, -1);
      require(0);
      if (first == last) break;
    }
  }
}

void BoundProgram::add_rows_from_start(size_t j) {
  for (int32_t v = 0; v < static_cast<int32_t>(timeline_.values.size()); ++v) {
    const TimelineValue& value = timeline_.values[v];
    if (homes_[v] < 0) continue;
    const bool used = !value.uses.empty() && value.uses.front() < points_[j].step;
    if (used && j > 0 && value.uses.front() <= points_[j - 1].step) continue;
    add_term(homes_[v], -1);
    add_copies(ins_, v, 0, j + 1);
    if (!used) add_term(there(v, j), -1);
    require(used ? 0 : -1);
  }
}

void BoundProgram::add_rows_of_homes() {
  const size_t end = points_.size() - 1;
  for (int32_t v = 0; v < static_cast<int32_t>(timeline_.values.size()); ++v) {
    const TimelineValue& value = timeline_.values[v];
    if (!value.at_end || !may_end_outside(v)) continue;
    const int32_t home = homes_[value.before >= 0 ? value.before : v];
    add_term(there(v, end), 1);
    add_term(home, 1);
    require(1);
    if (value.before < 0) continue;  // unchanged
    add_copies(outs_, v, 0, end + 1);
    add_term(home, -1);
    require(0);
  }
}

void BoundProgram::add_engine_rows(size_t j) {
  double ms = 0;
  const auto next_step = [](const Point& point) { return point.step + (point.done ? 1 : 0); };
  for (int32_t s = j == 0 ? 0 : next_step(points_[j - 1]); s < next_step(points_[j]); ++s) ms += timeline_.steps[s].ms;
  for (const bool out : {true, false}) {
    add_term(stalls_[j], stall_unit_ms_);
    if (j > 0) {
      for (int32_t p = 0; p < steps_; ++p) add_term(run(p, j - 1, j), timeline_.steps[p].ms);
    }
    for (size_t v = 0; v < timeline_.values.size(); ++v) {
      const int64_t bytes = timeline_.values[v].copied_bytes;
      const size_t at = v * points_.size() + j;
      add_term(outs_[at], copies_.compute_ms(true, bytes) - (out ? copies_.engine_ms(true, bytes) : 0));
      add_term(ins_[at], copies_.compute_ms(false, bytes) - (out ? 0 : copies_.engine_ms(false, bytes)));
    }
    require(-ms);
  }
}

void BoundProgram::add_memory_rows(size_t j) {
  const int32_t s = points_[j].step;
  Fullness full;
  int64_t room = budget_ - own(s), most = 0;
  for (int32_t v = 0; v < static_cast<int32_t>(timeline_.values.size()); ++v) {
    const TimelineValue& value = timeline_.values[v];
    const int64_t bytes = bytes_of(v);
    if (bytes == 0 || value.producer >= s || reads(s, v)) continue;
    if (there(v, j) == kThere) room -= bytes;
    if (there(v, j) < 0) continue;
    const int32_t column = room_column(v, j);
    (s < last_[v] ? full.needed : full.spare).push_back({column, bytes});
    if (s < last_[v]) most += bytes;
  }
  const double scale = 1 / static_cast<double>(budget_);
  for (const Present& value : full.needed) add_term(value.column, -scale * static_cast<double>(value.bytes));
  for (const Present& value : full.spare) add_term(value.column, -scale * static_cast<double>(value.bytes));
  require(-scale * static_cast<double>(room));
  full.excess = most - room;
  if (full.excess <= 0) return;
  add_cut(full, 0, {});
  for (const Present& value : full.spare) {
    if (program_.entries() < kMostEntries) add_cut(full, 0, {&value, 1});
  }
  full_.push_back(std::move(full));
}

int32_t BoundProgram::room_column(int32_t v, size_t j) {
  if (!copies_.some_beside_compute()) return there(v, j);
  const int32_t room = program_.add_column(0, 1);
  add_term(room, 1);
  add_term(there(v, j), -1);
  if (step_runs_from(j)) add_term(ins_[static_cast<size_t>(v) * points_.size() + j + 1], -1);
  require(0);
  return room;
}

void BoundProgram::add_cut(const Fullness& full, size_t gone, std::span<const Present> besides) {
  int64_t least = full.excess;
  for (size_t i = 0; i < gone; ++i) least -= full.needed[i].bytes;
  int64_t limit = least;
  for (const Present& value : besides) limit += value.bytes;
  const std::span<const Present> rest = std::span(full.needed).subspan(gone);
  if (gone == 0 && std::ranges::all_of(rest, [&](const Present& value) { return value.bytes <= limit; })) return;
  const double scale = 1 / static_cast<double>(budget_);
  int64_t sum = 0;
  for (const Present& value : rest) {
    const int64_t counted = std::min(value.bytes, limit);
    sum += counted;
    add_term(value.column, -scale * static_cast<double>(counted));
  }
  for (const Present& value : besides) add_term(value.column, -scale * static_cast<double>(value.bytes));
  require(scale * static_cast<double>(least - sum));
}

bool BoundProgram::add_rerun_cut(size_t j) {
  std::vector<double> bytes_carried(timeline_.values.size(), 0);
  double all = 0;
  for (int32_t v = 0; v < static_cast<int32_t>(timeline_.values.size()); ++v) {
    if (timeline_.values[v].producer > points_[j - 1].step) continue;
    const int32_t column = there(v, j), again = run_for(v, j - 1, j);
    const double share = (column == kThere ? 1
                          : column >= 0    ? program_.value(column)
                                           : 0) -
                         (again >= 0 ? program_.value(again) : 0);
    if (share <= 0) continue;
    bytes_carried[v] = share * static_cast<double>(bytes_of(v));
    all += bytes_carried[v];
  }
  const auto budget = static_cast<double>(budget_);
  double most = budget * (1 + kLeastMissed);
  int32_t best = -1;
  for (int32_t p = 0; p < steps_; ++p) {
    const int32_t again = run(p, j - 1, j);
    if (again < 0 || program_.value(again) < kLeastMissed) continue;
    const TimelineStep& step = timeline_.steps[p];
    double bytes = all + program_.value(again) * static_cast<double>(own_again(p));
    for (const int32_t v : step.recompute_inputs) bytes -= bytes_carried[v];
    for (const int32_t v : step.recompute_outputs) bytes -= bytes_carried[v];
    if (bytes <= most) continue;
    most = bytes;
    best = p;
  }
  if (best < 0) return false;
  const TimelineStep& step = timeline_.steps[best];
  for (const int32_t v : step.recompute_inputs) bytes_carried[v] = 0;
  for (const int32_t v : step.recompute_outputs) bytes_carried[v] = 0;
  add_term(run(best, j - 1, j), -static_cast<double>(own_again(best)) / budget);
  for (int32_t v = 0; v < static_cast<int32_t>(bytes_carried.size()); ++v) {
    if (bytes_carried[v] <= 0) continue;
    const double share = static_cast<double>(bytes_of(v)) / budget;
    add_term(there(v, j), -share);
    add_term(run_for(v, j - 1, j), share);
  }
  require(-1);
  return true;
}

int64_t BoundProgram::own_again(int32_t step) const {
  const TimelineStep& what = timeline_.steps[step];
  return bytes_at(what, what.recompute_inputs, what.recompute_outputs);
}

bool BoundProgram::add_best_cut(Fullness& full) {
  std::ranges::sort(full.needed, [&](const Present& a, const Present& b) {
    const double x = program_.value(a.column), y = program_.value(b.column);
    return x != y ? x < y : a.column < b.column;
  });
  std::vector<Present> there;
  for (const Present& value : full.spare) {
    if (program_.value(value.column) > kHalf) there.push_back(value);
  }
  size_t best_gone = 0;
  bool best_with = false;
  double best = kLeastMissed;
  for (const bool with : {false, true}) {
    if (with && there.empty()) break;
    double least = static_cast<double>(full.excess);
    int64_t left = full.excess, more = 0;
    for (const Present& value : with ? std::span<const Present>(there) : std::span<const Present>()) {
      least += program_.value(value.column) * static_cast<double>(value.bytes);
      more += value.bytes;
    }
    for (size_t gone = 0; gone < full.needed.size() && gone <= kMostGone && left > 0; ++gone) {
      double sum = 0;
      for (size_t i = gone; i < full.needed.size(); ++i)
        sum += (1 - program_.value(full.needed[i].column)) *
               static_cast<double>(std::min(full.needed[i].bytes, left + more));
      const double missed = (least - sum) / static_cast<double>(left + more);
      if (missed > best) {
        best = missed;
        best_gone = gone;
        best_with = with;
      }
      left -= full.needed[gone].bytes;
      least -= static_cast<double>(full.needed[gone].bytes);
    }
  }
  if (best <= kLeastMissed) return false;
  add_cut(full, best_gone, best_with ? std::span<const Present>(there) : std::span<const Present>());
  return true;
}

}  // namespace plimsoll
