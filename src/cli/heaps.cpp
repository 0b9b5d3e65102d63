// heaps: what a plan saves over getting memory tensor by tensor.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "bench/heaps.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "plimsoll/models.h"
#include "train/session.h"

namespace plimsoll::cli {
namespace {

struct HeapsFlags : CommonFlags {
  int steps = 10;
};

int run_heaps(const HeapsFlags& flags, const CLI::App& command) {
  for (const char* flag : {"--policy", "--host-memory", "--spill", "--peer", "--remote-memory"}) {
    if (command.count(flag) == 0) continue;
    throw Error(
        ErrorCode::invalid_input,
        fmt::format("{}: heaps are compared for policy liveness, whose plans move nothing; leave it out", flag));
  }
  flags.check();
  if (flags.means_process())
    throw Error(ErrorCode::invalid_input, "--memory-is process: heaps compares arenas; leave the flag out");
  if (is_simulated(flags.device)) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("device '{}' is simulated: it plans, it does not run", flags.device));
  }
  JsonLines out(flags.json);
  const int64_t batch = flags.batch > 0 ? flags.batch : 16;
  const Network network = build_model(
      flags.model, {.batch = batch, .height = flags.image_size, .width = flags.image_size, .classes = flags.classes});
  const Session session = open_session(flags.device, flags.threads);
  CompileOptions options{
      .policy = "liveness", .placement = flags.placement, .optimizer = flags.optimizer_options(), .exact = true};
  if (const auto memory = flags.memory_bytes()) options.memory = *memory;
  const auto result = compile_training(network, *session.device, session.costs, options);
  if (const auto* infeasible = std::get_if<Infeasible>(&result)) {
    complain(to_text(*infeasible));
    return kInfeasible;
  }
  const std::vector<HeapRun> runs = compare_heaps(std::get<Program>(result), *session.device, flags.steps);
  say(out, fmt::format("{}, batch {}, {}", flags.model, batch, session.device->info().description));
  say(out,
      fmt::format("{:<18} {:>12} {:>10} {:>9} {:>14} {:>11}", "heap", "step", "+-", "speed-up", "allocations", "held"));
  for (const HeapRun& run : runs) {
    const double speed = runs.front().step_time_ms / run.step_time_ms;
    const bool same = run.digest == runs.front().digest;
    out.write({{"heap", run.heap},
               {"model", flags.model},
               {"batch", batch},
               {"step_time_ms", run.step_time_ms},
               {"spread_ms", run.spread_ms},
               {"speed_up", speed},
               {"allocations", run.allocations},
               {"held_bytes", run.held.count},
               {"same_result", same}});
    say(out, fmt::format("{:<18} {:>9.3f} ms {:>7.3f} ms {:>8.2f}x {:>14} {:>11}{}", run.heap, run.step_time_ms,
                         run.spread_ms, speed, run.allocations, to_string(run.held), same ? "" : "  OTHER RESULT"));
    if (!same)
      throw Error(ErrorCode::internal, fmt::format("'{}' gave another result than '{}'", run.heap, runs.front().heap));
  }
  return kDone;
}

}  // namespace

Run add_heaps(CLI::App& app) {
  auto flags = std::make_shared<HeapsFlags>();
  CLI::App* command =
      app.add_subcommand("heaps", "Run training steps with memory taken tensor by tensor, by a heap, and by the plan");
  command->footer(
      "SuperNeurons' table 2, for real: the same kernels in the same order, and every tensor and workspace gets its place from\n"
      "cudaMalloc and cudaFree (malloc and free on the CPU), from cudaMallocAsync, from the papers' heap in one arena, or from the plan.\n"
      "Example:\n  plimsoll heaps resnet50 --batch 16 --device cuda:0");
  flags->add_to(*command, true);
  flags->add_optimizer_to(*command);
  command->add_option("--steps", flags->steps, "Training steps that are timed")
      ->capture_default_str()
      ->check(whole_number(1, 100000));
  return [flags, command] { return run_heaps(*flags, *command); };
}

}  // namespace plimsoll::cli
