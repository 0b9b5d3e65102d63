// A device with what is known about it: the benchmark database and the costs in it.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cost/load.h"
#include "device/tier/tier.h"
#include "device/wire.h"
#include "plimsoll/compile.h"
#include "plimsoll/cost.h"
#include "plimsoll/device.h"
#include "plimsoll/execute.h"
#include "plimsoll/train.h"

namespace plimsoll {

struct Session {
  std::unique_ptr<Device> device;
  std::unique_ptr<CostDatabase> database;
  CostTable costs;
  std::set<CostKey> forgotten;           // of costs: what a busy machine gave, and is to be measured anew
  std::vector<TierInfo> tiers;           // for CompileOptions
  std::optional<Feeding> feeding;        // likewise (find_feeding)
  std::filesystem::path spill;           // for ExecuteOptions
  std::string peer;                      // likewise
  std::shared_ptr<RemoteMemory> remote;  // likewise
  std::vector<std::string> notices;      // for the user
  LoadMeter load = LoadMeter();          // since it was opened
};

TierOptions tiers_of(const TrainOptions& options);
// What the options ask for, in `memory` of the arena.
CompileOptions compile_options_of(const TrainOptions& options, const Session& session, Bytes memory);

// Opens the device and its database; probes the machine's speed, and that of the tiers which the user gives, when the
// database does not know it. `room`: the memory there is for that. What was found in less than kProbeRoom holds for this
// session alone. `neighbours`: other ranks on this machine, which compute at the same time; times beside them are kept apart from
// those of a machine of one's own.
Session open_session(std::string_view device, int threads, const TierOptions& tiers = {}, Bytes room = Bytes{INT64_MAX},
                     int neighbours = 0);
// How batches come to a device that runs here and has memory of its own: at the rate of its host tier, which is probed in `room`
// where it is not known. Nothing for other devices.
void find_feeding(Session& session, Bytes room = Bytes{INT64_MAX});
// The link to the other ranks, as all of them take it: what the first knows of it, else (or `again`) it is measured, in `room`.
LinkInfo open_link(Session& session, Wire& wire, Bytes room, const std::function<void(const std::string&)>& notice,
                   bool again = false);
// The name by which its rates are kept.
std::string link_key(const Wire& wire);

// Throws Error(invalid_input) with the nearest name where there is no policy or placement of this name: before any
// measuring.
void check_choices(std::string_view policy, std::string_view placement);

// Forgets the times of a busy machine, for this run to measure anew what it needs of them, where the machine is quiet
// now. Where it is not, they are the best that is known. Returns whether it is quiet, or there were none.
bool forget_busy_times(Session& session);

// As MeasureOptions::tolerance, for who waits for the measuring: a thousandth of a step, for each of some hundred kinds
// of ops that are too long as often as too short.
inline constexpr double kMeasuringTolerance = 0.001;

struct Measured {
  int kernels = 0;
  int busy = 0;   // of them, while others kept the machine busy
  int again = 0;  // of them, in place of times of a busy machine that were forgotten
};
// Measures the kernels that the steps of `network` could use and that the table lacks, and saves them.
// `beside`: further devices like the session's, which measure their share at the same time.
Measured measure_missing(Session& session, const Network& network, const CompileOptions& options,
                         const MeasureOptions& measure, std::span<const Device* const> beside = {});
// For the user: how many of the times mislead. Empty where none does.
std::string busy_text(const Measured& measured, const CostDatabase& database);
// What becomes of times that a busy machine gave; ends a sentence that begins with them.
std::string fate_of_busy_times(const CostDatabase& database);

// What steps take, step by step of a plan, until there is enough to be kept as costs inside a step: the first warms up,
// and a few more count.
class StepTimes {
 public:
  // After a step that the executor has run by the plan. True: there is enough.
  bool add(const Plan& plan, const Executor& executor);
  // Keeps what there is.
  void keep(Session& session, const Program& program) const;

 private:
  std::vector<std::vector<double>> times_;
  std::vector<bool> together_;
  LoadMeter load_ = LoadMeter();
  double ms_ = 0;
  int steps_ = 0;
};

// Runs a program's step a few times on meaningless values, one op after another, records what each op takes inside a
// step, and keeps it in the table and the database. Returns the program's plan with these times. `memory`: where there is some
// already.
CheckedPlan calibrate(Session& session, const Program& program, Memory memory = {});

// What each step of the executor's last one took, less what the copies beside it took from it.
std::vector<double> compute_times(const Plan& plan, const Executor& executor);

// Which steps of the executor's last one no other step met.
std::vector<bool> ran_alone(const Plan& plan, const Executor& executor);

// Keeps what each step of a plan took, in some runs of it, as costs inside a step; a step without times is left out.
// `together`: those that were one launch with others; their shares are kept as such, apart from times of the kernel alone. `busy`:
// others kept the machine busy meanwhile.
void keep_step_times(Session& session, const Program& program, std::vector<std::vector<double>> times,
                     const std::vector<bool>& together, bool busy);

// Where a step is predicted much longer or shorter than the usual one took: keeps what the executor's last one took, in the
// time of the usual one. The times that are known may be of steps at a slow moment.
void correct_step_times(Session& session, const Program& program, const Executor& executor, double usual_ms, bool busy);

// By step: whether it was one launch with others in the executor's last step whose times were taken.
std::vector<bool> ran_together(const Executor& executor);

// How many of a program's steps have their time from a busy machine.
int busy_steps(const Program& program, const CostTable& costs);

// For the user: which ops run by a kernel that is taken only for lack of another (KernelSpec::last_resort). Empty where none
// does, and on the host.
std::string last_resort_text(const Program& program, const Device& device);

}  // namespace plimsoll
