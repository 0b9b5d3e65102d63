// How many steps of a program run at once and with how many threads each: as the user says, or by measured times.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plimsoll/compile.h"
#include "cores/strategies.h"
#include "plimsoll/cost.h"
#include "plimsoll/device.h"
#include "plimsoll/execute.h"

namespace plimsoll {

struct SharingOptions {
  int threads = 0;   // cores in all; 0: all that the process may use
  int inter_op = 1;  // steps at once; 0: chosen, with the threads of every op
  int intra_op = 0;  // threads of every op; 0: all cores, divided among the steps that run at once
  std::optional<Strategies> strategies;  // that a choice may use; nothing: all that the machine can
  int climb_interval = 0;                // between the thread counts that are measured; 0: a sixteenth of the cores
};

// How the cores are shared.
struct Sharing {
  int cores = 1;      // for the executor
  int processors = 0; // that there are for them; 0: so many
  int op_threads = 1; // for the device: with how many threads an op runs, unless its step says otherwise
  int inter_op = 1;
  bool choose = false;
  std::string notice; // for the user; empty: nothing to say
  Strategies strategies;     // for a choice
  int hardware_threads = 1;  // of a core, that a choice may use
  int climb_interval = 1;
};
// Throws Error(invalid_input) where the settings contradict each other, Error(unsupported) where the device runs one op at a time.
Sharing share_cores(std::string_view device, const SharingOptions& options, bool exact);
Sharing share_cores(std::string_view device, const SharingOptions& options, bool exact, const CoreShape& machine);  // of a CPU

// Before the arena is taken: looks for other offsets within the budget, with which steps that run side by side wait less for each
// other's bytes (plan/loosen.h), and makes the arena large enough for them. Returns what the user should know, if anything: that
// the budget is in the way.
std::string relax_program(Program& program, const Sharing& sharing, const CostTable& costs);
// Takes these offsets, or those for steps one after another.
void use_stays(Program& program, bool side_by_side);
// No more bytes than the stays that were taken in the end.
void shrink_arena(Program& program);

// Lets the steps of a program run side by side as `sharing` says, and predicts the time anew.
void set_sharing(Program& program, const Sharing& sharing, const CostTable& costs);

// What a choice came to.
struct ChosenSharing {
  int inter_op = 1;
  double serial_ms = 0, together_ms = 0;  // predicted
  int narrowed = 0;                       // ops with fewer threads than all
  int second = 0;                         // of them, on second hardware threads
  bool measured = false;                  // whether times with fewer threads are known at all
};
// The papers' strategies over what has been measured: changes the program's thread counts and inter_op where that is predicted to
// be faster than one step after the other with all threads. Pairs of ops in `conflicts` do not meet, nor those that `costs` keeps conflicts.
using OpPairs = std::set<std::pair<int32_t, int32_t>>;  // the lower number first
ChosenSharing choose_sharing(Program& program, const Device& device, const CostTable& costs, const Sharing& sharing = {},
                             const OpPairs& conflicts = {});
// The steps of the plan that are not to meet, by those pairs of ops and by what `costs` keeps conflicts: ExecuteOptions::conflicts.
std::vector<std::pair<StepIndex, StepIndex>> conflicting_steps(const Program& program, const CostTable& costs, const OpPairs& conflicts = {});
// One step after the other, each with all threads.
void run_serially(Program& program, const CostTable& costs);

// Whether an op's kernel can be made for so many threads, and its workspace has room in the plan.
bool fits(const Program& program, const Device& device, const Step& step, int threads);

// One or the other, as `sharing` says; returns what the user should know, if anything.
std::string share_program(Program& program, const Sharing& sharing, const Device& device, const CostTable& costs);

// Looks on while a chosen program trains, and takes back what was chosen where measured times say otherwise: ops that took
// longer side by side than they would have one after another with all threads are kept conflicts, and when the whole step is slower
// than that, nothing runs side by side any more.
class InterferenceMonitor {
 public:
  InterferenceMonitor(Program& program, const Device& device, const CostTable& costs, const Sharing& sharing = {})
      : program_(program), device_(device), costs_(costs), sharing_(sharing) {}
  // After a step. True: correct() has something to do, for which no executor may be using the program's plan.
  bool sees(std::span<const StepRecord> records);
  // Changes the program; returns a line for the user.
  std::string correct();
  bool over() const { return over_; }  // nothing more is to be corrected
  const OpPairs& conflicts() const { return conflicts_; }
  // All pairs found so far, by signature.
  std::set<CostTable::OpPair> found() const;

 private:
  double serial_ms(size_t step) const;
  OpPairs slow_pairs(std::span<const StepRecord> records) const;

  Program& program_;
  const Device& device_;
  const CostTable& costs_;
  const Sharing sharing_;
  std::vector<double> times_;                       // of the training steps with this plan
  std::map<std::pair<int32_t, int32_t>, int> slow_;  // pairs of ops, in how many of them
  OpPairs conflicts_;
  double usual_ms_ = 0, all_serial_ms_ = 0;
  int fresh_ = 0, steps_ = 0, corrections_ = 0;
  bool over_ = false;
};

}  // namespace plimsoll
