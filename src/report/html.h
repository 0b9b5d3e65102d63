// A plan, and a training run of it, as one HTML file to look at: charts of memory and time, and tables behind them. It
// needs nothing but itself: no network, no other files.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "plimsoll/compile.h"
#include "plimsoll/execute.h"
#include "report/reason.h"

namespace plimsoll {

// What a plan does not know of itself.
struct ReportFacts {
  std::string model;
  std::string data;  // "" for a plan alone
  int64_t batch = 0;
  std::string device;                // in words
  std::optional<Bytes> minimum;      // the least budget of this policy
  std::optional<PlanReason> reason;  // told from the plan alone where there is none
  struct Measured {                  // by a training run
    int64_t steps = 0;
    bool interrupted = false;
    double step_time_ms = 0;
    double images_per_second = 0;
    double seconds = 0;
    double loss = 0;
    std::optional<double> accuracy;  // on the test set, 0..1
    Bytes peak, process_peak;
  };
  std::optional<Measured> measured;
};

// `records`: of the steps of a plan, as they ran last; empty where none ran. Some MB at most, however large the
// network.
std::string html_report(const Program& program, const ReportFacts& facts, std::span<const StepRecord> records = {});

}  // namespace plimsoll
