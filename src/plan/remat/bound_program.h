// The linear program of time_bound.h, for one set of moments: its columns, its rows, and cuts where the solution so far does not
// keep them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/remat/linear_program.h"
#include "plan/remat/time_bound.h"

namespace plimsoll {

// What copies take at least, to and from whichever tier.
class CopyTimes {
 public:
  explicit CopyTimes(const std::vector<TierInfo>& tiers);

  bool any() const { return !tiers_.empty(); }
  bool some_beside_compute() const { return beside_compute_; }
  // Of a direction's engine; of those of several tiers together, when all of them copy all the time.
  double engine_ms(bool out, int64_t bytes) const;
  // By how much computing is longer for it.
  double compute_ms(bool out, int64_t bytes) const;

 private:
  const std::vector<TierInfo>& tiers_;
  std::vector<double> weights_;
  bool beside_compute_ = false;
};

class BoundProgram {
 public:
  // `moments`: steps, ascending; empty: so many at most, where most is too much in each of as many parts, of as many steps or
  // of as much time.
  BoundProgram(const ValueTimeline& timeline, const CopyTimes& copies, int64_t budget, int32_t most_moments,
               std::vector<int32_t> moments = {}, bool parts_by_time = false);

  bool impossible() const { return impossible_; }
  bool nothing_to_ask() const { return moments_.size() == 1; }
  // A column of what has room at a moment that the solution leaves between 0 and 1, whose bytes weigh most; -1: there is none.
  int32_t most_divided() const;
  // Rows that the solution so far does not keep; how many.
  int add_cuts();
  LinearProgram& program() { return program_; }
  int64_t entries() const;
  // The end is the last of them.
  const std::vector<int32_t>& moments() const { return moments_; }
  // Steps above the budget: in each of as many parts the one that needs most for itself.
  std::vector<int32_t> hungriest(int32_t parts) const;
  RelaxedPresence presence() const;

 private:
  // What is so small counts as nothing where it may be away, and is always there.
  bool is_small(const TimelineValue& value) const;
  int64_t bytes_of(int32_t v) const;

  // Until which step a value is wanted, and whether it may be computed again.
  void find_needs();

  bool reads(int32_t step, int32_t v) const;
  // What the step writes and its workspace, and what it reads: always there. What may take a place is left out.
  // What a step has in memory at once, of these.
  int64_t bytes_at(const TimelineStep& step, std::span<const int32_t> inputs, std::span<const int32_t> outputs) const;
  int64_t own(int32_t step) const;

  // The steps at which more is wanted than the budget, if everything is kept.
  void choose_moments(int32_t most);
  template <class Key>
  std::vector<int32_t> largest_in_parts(int32_t most, const Key& key) const;

  void add_columns();
  // A state that has its home in a tier. An output is wanted in the arena.
  bool may_end_outside(size_t v) const;

  // When a moment's step begins, or is done: both where much is copied meanwhile.
  struct Point {
    int32_t step;
    bool done;
  };
  // Window j ends at point j, where the one before ends it begins, the first at the start of the training step.
  void add_copy_columns();
  // From point j to the next a moment's step runs: nothing runs again, and nothing waits.
  bool step_runs_from(size_t j) const { return j + 1 < points_.size() && points_[j + 1].done; }
  bool step_runs_until(size_t j) const { return points_[j].done; }
  bool much_is_copied_beside(int32_t step) const;
  // Points next to each other, and others where nothing is copied beside computing: such rows are many, and tell of reruns.
  bool are_asked_for(size_t i, size_t j) const;

  int32_t there(int32_t v, size_t j) const { return there_[static_cast<size_t>(v) * points_.size() + j]; }
  size_t window(int32_t p, size_t i, size_t j) const;
  int32_t run(int32_t p, size_t i, size_t j) const { return runs_[window(p, i, j)]; }

  int32_t run_for(int32_t v, size_t i, size_t j) const;

  // A row is made of terms, constants among them, and added by `require`.
  void add_term(int32_t column, double by);
  void add_copies(const std::vector<int32_t>& columns, int32_t v, size_t first, size_t end);
  // Value v was there at point i, or was outside by then, so that copies may bring it.
  void add_slot(int32_t v, size_t i);
  // sum of the terms >= least.
  void require(double least);

  // Between points i and j.
  void add_window_rows(size_t i, size_t j);

  // What comes from outside is in the arena from the start, or is copied in.
  void add_rows_from_start(size_t j);

  void add_rows_of_homes();

  // Copies of window j take no longer than the window.
  void add_engine_rows(size_t j);

  void add_memory_rows(size_t j);
  // 1 where the value of this column has room from point j on, while the moment's step runs.
  int32_t room_column(int32_t v, size_t j);

  // Values that may have room at a moment.
  struct Present {
    int32_t column;
    int64_t bytes;
  };
  struct Fullness {
    std::vector<Present> needed, spare;
    int64_t excess = 0;
  };

  // Row 4 where the first `gone` of `needed` are A, with the spare ones `besides`.
  void add_cut(const Fullness& full, size_t gone, std::span<const Present> besides);

  // What a rerun of window j needs for itself, and what lies there meanwhile: what is there at the end of the window and did not
  // run again in it was there all the time.
  bool add_rerun_cut(size_t j);
  int64_t own_again(int32_t step) const;

  // The cut of a moment that the solution is farthest from, A being what has gone most of all.
  bool add_best_cut(Fullness& full);

  const ValueTimeline& timeline_;
  const CopyTimes& copies_;
  const int64_t budget_;
  const int32_t steps_;
  std::vector<int32_t> last_, last_read_;   // by value: reads of first runs, and of all
  std::vector<int32_t> last_run_;           // by step: what runs again from there on is of no use; -1: it may not
  std::vector<bool> may_run_, may_return_;  // may return: by its producer or by a copy
  std::vector<int64_t> excess_;
  std::vector<int32_t> above_;  // steps at which everything kept is more than the budget
  const bool parts_by_time_;
  std::vector<int32_t> moments_;
  std::vector<Point> points_;
  std::vector<int32_t> there_, runs_, outs_, ins_, homes_, stalls_;
  double stall_unit_ms_ = 1, constant_ = 0;
  std::vector<Fullness> full_;
  std::vector<LinearProgram::Entry> entries_;
  LinearProgram program_;
  bool impossible_ = false;
};

}  // namespace plimsoll
