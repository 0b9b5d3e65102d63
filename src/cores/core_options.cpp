#include "cores/core_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/cpu/machine.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

// Cores are whole ones: their second hardware threads are Strategy 4's.
CoreOptions choice_for(const CoreRequest& request, const CoreShape& machine) {
  const int processors = std::max(machine.cores, 1) * std::max(machine.hardware_threads, 1);
  const int cores = request.threads > 0 ? std::min(request.threads, processors) : std::max(machine.cores, 1);
  const Strategies strategies = request.strategies.value_or(Strategies{});
  const bool has_smt = cores == machine.cores && machine.hardware_threads > 1;
  CoreOptions options{.cores = cores,
                      .intra_op = cores,
                      .choose = true,
                      .strategies = strategies,
                      .climb_interval = request.climb_interval > 0 ? request.climb_interval : std::max(1, cores / 16)};
  if (strategies.smt && has_smt) options.hardware_threads = 2;
  if (request.strategies && strategies.smt && !has_smt) {
    options.notice =
        machine.hardware_threads > 1
            ? fmt::format(
                  "--strategies 4: only with all of the machine's {} cores, not with {} threads, are there second "
                  "hardware threads to use; it goes on without",
                  machine.cores, cores)
            : "--strategies 4: the cores here have one hardware thread each; it goes on without";
  }
  if (request.threads > processors) {
    options.notice += fmt::format("{}--threads {}: the process may use {} processors, and --inter-op auto shares these",
                                  options.notice.empty() ? "" : "; ", request.threads, processors);
  }
  return options;
}

}  // namespace

CoreOptions core_options(std::string_view device, const CoreRequest& request, bool exact) {
  const bool plain = request.inter_op == 1 && request.intra_op == 0;
  return core_options(device, request, exact,
                      plain || !shares_cores(device) ? CoreShape{} : cpu::machine_topology().shape);
}

CoreOptions core_options(std::string_view device, const CoreRequest& request, bool exact, const CoreShape& machine) {
  if (request.inter_op != 0 && (request.strategies || request.climb_interval != 0)) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("--{}: for --inter-op auto, which chooses and measures thread counts",
                            request.strategies ? "strategies" : "climb-interval"));
  }
  if (request.inter_op == 1 && request.intra_op == 0) return {.cores = request.threads, .intra_op = request.threads};
  if (!shares_cores(device)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("--inter-op and --intra-op: device '{}' runs one op at a time", device));
  }
  if (request.inter_op == 0) {
    if (request.intra_op != 0) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("--intra-op {}: --inter-op auto chooses the threads of every op; leave one of them out",
                              request.intra_op));
    }
    if (exact) {
      throw Error(
          ErrorCode::invalid_input,
          "--inter-op auto chooses thread counts by measured times, which change the last bits; with --exact give "
          "numbers");
    }
    return choice_for(request, machine);
  }
  const int cores = request.threads > 0 ? request.threads : cpu::usable_processors();
  CoreOptions options{.cores = cores,
                      .intra_op = request.intra_op > 0 ? request.intra_op : std::max(1, cores / request.inter_op),
                      .inter_op = request.inter_op};
  if (options.inter_op * options.intra_op > cores) {
    options.notice =
        options.inter_op == 1
            ? fmt::format(
                  "--intra-op {}: every op runs with more threads than the {} core{} that the process has: they "
                  "take turns on them, which is slower than --intra-op {}",
                  options.intra_op, cores, cores == 1 ? "" : "s", cores)
            : fmt::format("{} steps at once with {} thread{} each on {} core{}: those for which no core is free wait",
                          options.inter_op, options.intra_op, options.intra_op == 1 ? "" : "s", cores,
                          cores == 1 ? "" : "s");
  }
  if (exact && request.intra_op == 0 && options.intra_op != cores) {
    options.notice += fmt::format(
        "{}--exact --inter-op {}: threads of an op: {} here, {} without --inter-op; so weights differ in the last bits "
        "from those of such a run; with --intra-op {} they are the same",
        options.notice.empty() ? "" : "; ", options.inter_op, options.intra_op, cores, cores);
  }
  return options;
}

}  // namespace plimsoll
