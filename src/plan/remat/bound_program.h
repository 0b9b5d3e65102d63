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
  bool some_beside_compute() const { return engines_in_ > 0; }
  size_t engines_in() const { return engines_in_; }  // beside computing
  // Of a direction's engine; of those of several tiers together, when all of them copy all the time.
  double engine_ms(bool out, int64_t bytes) const;
  // By how much computing is longer for it.
  double compute_ms(bool out, int64_t bytes) const;

 private:
  const std::vector<TierInfo>& tiers_;
  std::vector<double> weights_;
  size_t engines_in_ = 0;
};

class BoundProgram {
 public:
  // `moments`: steps, ascending; empty: so many at most, where most is too much in each of as many parts.
  BoundProgram(const ValueTimeline& timeline, const CopyTimes& copies, int64_t budget, int32_t most_moments,
               std::vector<int32_t> moments = {});

  bool impossible() const { return impossible_; }
  bool nothing_to_ask() const { return moments_.size() == 1; }
  // A column of what is there that the solution leaves between 0 and 1, whose bytes weigh most; -1: there is none.
  int32_t most_divided() const;
  // Of a column of what is there: the column of what is still to come of it (rows 11 and 12), held at 0 where it is new; -1: no copy
  // is under way then.
  int32_t to_come(int32_t column);
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

  // Until which step a value is wanted for first runs; whether it may be computed again.
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

  // Window j ends at moment j, where the one before ends it begins, the first at the start of the step.
  void add_copy_columns();

  int32_t there(int32_t v, size_t j) const { return there_[static_cast<size_t>(v) * moments_.size() + j]; }
  size_t window(int32_t p, size_t i, size_t j) const;
  int32_t run(int32_t p, size_t i, size_t j) const { return runs_[window(p, i, j)]; }

  int32_t run_for(int32_t v, size_t i, size_t j) const;

  // A row is made of terms, constants among them, and added by `require`.
  void add_term(int32_t column, double by);
  void add_copies(const std::vector<int32_t>& columns, int32_t v, size_t first, size_t end);
  // Value v was there at moment i, or was outside by then, so that copies may bring it.
  void add_slot(int32_t v, size_t i);
  // sum of the terms >= least. Rows of bytes count what is under way as a whole.
  void require(double least, bool of_bytes = false);

  // Between moments i and j.
  void add_window_rows(size_t i, size_t j);

  // What comes from outside is in the arena from the start, or is copied in.
  void add_rows_from_start(size_t j);

  void add_rows_of_homes();

  // Copies of window j take no longer than the window.
  void add_engine_rows(size_t j);

  void add_memory_rows(size_t j);

  // Values that may be there at a moment.
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
  std::vector<int32_t> last_, last_run_;                    // by value, by step
  std::vector<bool> may_run_, may_return_, is_read_again_;  // may return: by its producer or by a copy
  std::vector<int64_t> excess_;
  std::vector<int32_t> above_;  // steps at which everything kept is more than the budget
  std::vector<int32_t> moments_;
  std::vector<int32_t> there_, runs_, outs_, ins_, homes_, stalls_, to_come_;
  double stall_unit_ms_ = 1, constant_ = 0;
  std::vector<Fullness> full_;
  std::vector<LinearProgram::Entry> entries_;
  std::vector<bool> counts_bytes_;  // by row
  LinearProgram program_;
  bool impossible_ = false;
};

}  // namespace plimsoll
