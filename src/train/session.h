// A device with what is known about it: the benchmark database and the costs in it.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/tier/tier.h"
#include "plimsoll/compile.h"
#include "plimsoll/cost.h"
#include "plimsoll/device.h"
#include "plimsoll/execute.h"

namespace plimsoll {

struct Session {
  std::unique_ptr<Device> device;
  std::unique_ptr<CostDatabase> database;
  CostTable costs;
  std::vector<TierInfo> tiers;       // for CompileOptions
  std::filesystem::path spill;       // for ExecuteOptions
  std::string peer;                  // likewise
  std::vector<std::string> notices;  // for the user
};

// Opens the device and its database; probes the machine's speed, and that of the tiers which the user gives, when the
// database does not know it. `room`: the memory there is for that. What was found in less than kProbeRoom holds for this
// session alone.
Session open_session(std::string_view device, int threads, const TierOptions& tiers = {},
                     Bytes room = Bytes{INT64_MAX});

// Throws Error(invalid_input) with the nearest name where there is no policy or placement of this name: before any
// measuring.
void check_choices(std::string_view policy, std::string_view placement);

// Measures the kernels that the steps of `network` could use and that the table lacks, and saves them.
// `beside`: further devices like the session's, which measure their share at the same time.
int measure_missing(Session& session, const Network& network, const CompileOptions& options,
                    const MeasureOptions& measure, std::span<const Device* const> beside = {});

// Runs a program's step a few times on meaningless values, one op after another, records what each op takes inside a
// step, and keeps it in the table and the database. Returns the program's plan with these times.
CheckedPlan calibrate(Session& session, const Program& program);

// What each step of the executor's last one took, less what the copies beside it took from it.
std::vector<double> compute_times(const Plan& plan, const Executor& executor);

// Which steps of the executor's last one no other step met.
std::vector<bool> ran_alone(const Plan& plan, const Executor& executor);

// Keeps what each step of a plan took, in some runs of it, as costs inside a step; a step without times is left out.
void keep_step_times(Session& session, const Program& program, std::vector<std::vector<double>> times);

// How busy other processes kept the machine since it was made: times that were taken on a busy machine mislead.
class BusyMeter {
 public:
  BusyMeter();
  double others() const;  // share of all processors, 0..1

 private:
  static void sample(double& total, double& busy, double& own);
  double total_ = 0, busy_ = 0, own_ = 0;
};
inline constexpr double kTooBusy = 0.15;

}  // namespace plimsoll
