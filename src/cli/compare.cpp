// compare: every policy side by side. max: the largest batch or depth that a policy can do.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/names.h"
#include "base/statistics.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "cores/share_cores.h"
#include "papers/layer_model.h"
#include "plan/policy.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"
#include "report/report.h"
#include "train/sample_inputs.h"
#include "train/session.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

ModelInput input_of(const CommonFlags& flags, int64_t batch) {
  return {.batch = batch, .height = flags.image_size, .width = flags.image_size, .classes = flags.classes};
}

// The network's own training step, or with --lowering paper the papers' layers of it; `states`: with weights and the
// batch.
std::variant<Program, Infeasible> compile(const CommonFlags& flags, const Network& network, const Session& session,
                                          const CompileOptions& options, bool states) {
  return flags.lowered()
             ? compile_layers(network, {.weights = states, .input = states}, *session.device, session.costs, options)
             : compile_training(network, *session.device, session.costs, options);
}

Bytes used_of(const Plan& plan, std::string_view tier) {
  for (const TierUse& use : plan.tiers) {
    if (use.tier.name == tier) return use.used;
  }
  return {};
}

// The median time of a training step on meaningless data.
double measure_step_ms(const Session& session, const Program& program, int steps) {
  const Graph& graph = program.network.graph;
  Executor executor(graph, program.plan, *session.device, {.spill = session.spill, .peer = session.peer});
  executor.initialize(1);
  const SampleInputs inputs(graph);
  std::vector<double> times;
  for (int i = 0; i <= steps; ++i) {
    inputs.write(executor);
    const Stopwatch watch;
    executor.run_step();
    if (i > 0) times.push_back(watch.ms());
  }
  return median(std::move(times));
}

struct CompareFlags : CommonFlags {
  bool run = false;
  int steps = 5;
  std::vector<std::string> only;
};

int run_compare(const CompareFlags& flags) {
  JsonLines out(flags.json);
  std::vector<std::string> names = flags.only;
  for (const std::string& name : names) policy_options(name);
  if (names.empty()) {
    for (const Policy& policy : policies()) names.emplace_back(policy.name);
  }
  const int64_t batch = flags.batch > 0 ? flags.batch : 32;
  const Network network = build_model(flags.model, input_of(flags, batch));
  const CoreOptions cores = core_options(flags.device, flags.core_request(), flags.exact);
  if (!cores.notice.empty()) complain(cores.notice);
  Session session = open_session(flags.device, cores.intra_op, flags.tiers());
  for (const std::string& notice : session.notices) complain(notice);
  if (flags.run && session.device->info().simulated) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("--run: device '{}' is simulated: it plans, it does not run", flags.device));
  }
  if (flags.run && flags.lowered())
    throw Error(ErrorCode::invalid_input,
                "--run: the papers' layer model is planned, never run; leave out --lowering paper");
  const Bytes budget = flags.budget(*session.device);
  say(out, fmt::format("{}, batch {}, {}{}", flags.model, batch,
                       budget.count < INT64_MAX ? "budget " + to_string(budget) : std::string("no budget"),
                       session.device->info().simulated ? ", simulated" : ""));
  say(out, fmt::format("{:<28} {:>11} {:>12}{} {:>11} {:>11} {:>8}", "policy", "peak", "step time",
                       flags.run ? "     measured" : "", "copied out", "copied in", "again"));
  bool any = false;
  std::string told;  // the same for every policy
  for (const std::string& name : names) {
    CompileOptions options = compile_options(flags, session);
    options.policy = name;
    options.name_minimum = true;
    auto result = compile(flags, network, session, options, false);
    if (auto* infeasible = std::get_if<Infeasible>(&result)) {
      const std::string need = (infeasible->flag.empty() ? "needs " : fmt::format("needs {} ", infeasible->flag)) +
                               to_string(infeasible->minimum);
      say(out, fmt::format("{:<28} {:>11}", name, infeasible->minimum.count == INT64_MAX ? "cannot" : need));
      if (!infeasible->flag.empty()) told = to_text(*infeasible);
      json object = infeasible_json(*infeasible);
      object["policy"] = name;
      out.write(object);
      continue;
    }
    any = true;
    Program& program = std::get<Program>(result);
    const SharedCores shared =
        share_cores({program.network.graph, *session.device, session.costs, cores}, program.plan);
    for (const std::string& text : shared.notices) complain(fmt::format("{}: {}", name, text));
    program.plan = check_plan(program.network.graph, shared.plan);
    const Prediction& p = program.plan->predicted;
    json object = plan_json(program, program.minimum);
    object["layers"] = layer_count(network);
    object["host_bytes"] = used_of(program.plan, "host").count;
    std::string measured;
    if (flags.run) {
      const double ms = measure_step_ms(session, program, flags.steps);
      measured = fmt::format(" {:>9.1f} ms", ms);
      object["measured_step_time_ms"] = ms;
    }
    say(out, fmt::format("{:<28} {:>11} {:>9.1f} ms{} {:>11} {:>11} {:>8}", name, to_string(p.peak), p.step_time_ms,
                         measured, to_string(p.offload), to_string(p.prefetch), p.recompute_steps));
    out.write(object);
  }
  if (!told.empty()) complain(told);
  return any ? kDone : kInfeasible;
}

struct MaxFlags : CommonFlags {
  std::string what = "batch";
  int64_t most = 0;
};

// One size that was tried: it fits, or what it lacks.
struct Trial {
  bool fits = false;
  std::string limited_by;
  Bytes peak, host;
  double step_time_ms = 0;
};

class Largest {
 public:
  explicit Largest(const MaxFlags& flags)
      : flags_(flags), session_(open_session(flags.device, flags.threads, flags.tiers())) {
    for (const std::string& notice : session_.notices) complain(notice);
  }

  // What `--what depth` varies: the N in the model's name; resnet alone means the papers' 6-32-N-6.
  static std::string with_depth(const std::string& model, int64_t n) {
    const std::string name = model == "resnet" ? "resnet:6-32-N-6" : model;
    const size_t at = name.find('N');
    if (at == std::string::npos) {
      throw Error(
          ErrorCode::invalid_input,
          fmt::format(
              "--what depth: write N in the network's name where its depth is: resnet:6-32-N-6, densenet:depth=N; '{}' has none",
              model));
    }
    return name.substr(0, at) + std::to_string(n) + name.substr(at + 1);
  }

  Trial attempt(int64_t size) {
    const Trial trial = try_size(size);
    fmt::print(stderr, "  {} {}: {}\n", flags_.what, size, trial.fits ? "fits" : trial.limited_by);
    return trial;
  }

  Trial try_size(int64_t size, bool fast = false) {
    const bool depth = flags_.what == "depth";
    const std::string model = depth ? with_depth(flags_.model, size) : flags_.model;
    Trial trial;
    try {
      const int64_t batch = depth ? (flags_.batch > 0 ? flags_.batch : 16) : size;
      const Network network = build_model(model, input_of(flags_, batch));
      CompileOptions options = compile_options(flags_, session_);
      options.first_that_fits = !fast;
      const auto result = compile(flags_, network, session_, options, true);
      if (const auto* infeasible = std::get_if<Infeasible>(&result)) {
        trial.limited_by = !infeasible->flag.empty()    ? infeasible->flag
                           : infeasible->tier.empty()   ? "memory"
                           : infeasible->tier == "host" ? "host memory"
                                                        : infeasible->tier;
        return trial;
      }
      const Plan& plan = std::get<Program>(result).plan;
      return {true, "", plan.predicted.peak, used_of(plan, "host"), plan.predicted.step_time_ms};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_input || size == 1) throw;
      trial.limited_by = error.what();  // a network or a size that cannot be
      return trial;
    }
  }

  int run() {
    JsonLines out(flags_.json);
    const int64_t most = flags_.most > 0 ? flags_.most : flags_.what == "depth" ? 4096 : 65536;
    int64_t low = 0, high = 1;  // low fits, high does not
    Trial best, refused;
    while (high <= most) {
      Trial trial = attempt(high);
      if (!trial.fits) {
        refused = trial;
        break;
      }
      best = trial;
      low = high;
      high = high < 8 ? high + 1 : high * 2;
    }
    if (low == 0) {
      complain(fmt::format("not even {} 1 fits: limited by {}", flags_.what, refused.limited_by));
      out.write({{"model", flags_.model},
                 {"policy", flags_.policy},
                 {"device", flags_.device},
                 {"simulated", session_.device->info().simulated},
                 {"what", flags_.what},
                 {flags_.what, 0},
                 {"limited_by", refused.limited_by},
                 {"peak_bytes", nullptr},
                 {"host_bytes", nullptr},
                 {"step_time_ms", nullptr}});
      return kInfeasible;
    }
    if (high > most) {
      high = most + 1;
      refused = {false, fmt::format("the search (--most {})", most), {}, {}};
    }
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      Trial trial = attempt(middle);
      if (trial.fits) {
        best = trial;
        low = middle;
      } else {
        refused = trial;
        high = middle;
      }
    }
    best = try_size(low, true);  // as `plan` plans it, and not only as what fits
    json object = {{"model", flags_.model},
                   {"policy", flags_.policy},
                   {"device", flags_.device},
                   {"simulated", session_.device->info().simulated},
                   {"what", flags_.what},
                   {"limited_by", refused.limited_by},
                   {"peak_bytes", best.peak.count},
                   {"host_bytes", best.host.count},
                   {"step_time_ms", best.step_time_ms}};
    std::string text;
    if (flags_.what == "depth") {
      const std::string model = with_depth(flags_.model, low);
      const int64_t depth = resnet_depth(model);
      object["n"] = low;
      object["depth"] = depth > 0 ? depth : low;
      text = depth > 0 ? fmt::format("depth {} ({})", depth, model) : fmt::format("N = {} ({})", low, model);
    } else {
      object["batch"] = low;
      text = fmt::format("batch {}", low);
    }
    say(out, fmt::format("{}: {} fits, limited by {}; peak {}{}, predicted step {:.4g} ms{}", flags_.model, text,
                         refused.limited_by, to_string(best.peak),
                         best.host.count > 0 ? " and " + to_string(best.host) + " of host memory" : "",
                         best.step_time_ms, session_.device->info().simulated ? ", simulated" : ""));
    out.write(object);
    return kDone;
  }

 private:
  // Layers with weights, as the papers count the depth of resnet:a-b-c-d; 0 for other networks.
  static int64_t resnet_depth(const std::string& model) {
    int64_t a = 0, b = 0, c = 0, d = 0;
    if (std::sscanf(model.c_str(), "resnet:%ld-%ld-%ld-%ld", &a, &b, &c, &d) != 4) return 0;
    return 3 * (a + b + c + d) + 2;
  }

  const MaxFlags& flags_;
  Session session_;
};

}  // namespace

Run add_compare(CLI::App& app) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* command =
      app.add_subcommand("compare", "Set all policies side by side: peak, step time, traffic, recomputations");
  flags->add_to(*command, true);
  flags->add_optimizer_to(*command);
  flags->add_sharing_to(*command);
  flags->add_lowering_to(*command);
  flags->add_workspace_to(*command);
  command->add_flag("--run", flags->run, "Run each plan too, and say what its step took");
  command->add_option("--steps", flags->steps, "Steps to run of each, of which the median counts")
      ->capture_default_str()
      ->check(whole_number(1, 10000));
  command->add_option("--policies", flags->only, "Only these, with their options: auto superneurons:recompute=speed")
      ->type_name("NAME");
  command->footer(
      "Examples:\n  plimsoll compare resnet50 --batch 32 --memory 1GiB --host-memory 8GiB\n  plimsoll compare alexnet --batch 200 --lowering paper --device k40c --memory 900MiB");
  return [flags] { return run_compare(*flags); };
}

Run add_max(CLI::App& app) {
  auto flags = std::make_shared<MaxFlags>();
  CLI::App* command = app.add_subcommand("max", "Find the largest batch, or the deepest network, that fits");
  flags->add_to(*command, true);
  flags->add_optimizer_to(*command);
  flags->add_lowering_to(*command);
  flags->add_workspace_to(*command);
  command->add_option("--what", flags->what, "batch, or depth: the N in the network's name, resnet:6-32-N-6")
      ->capture_default_str();
  command->add_option("--most", flags->most, "Look no further than this")->check(whole_number(1, 1 << 24));
  command->footer(
      "Examples:\n  plimsoll max resnet50 --memory 2GiB --host-memory 8GiB\n  plimsoll max resnet:6-32-N-6 --what depth --batch 16 --memory 11.2GiB --device k40c --lowering paper");
  return [flags] {
    if (flags->what != "batch" && flags->what != "depth")
      throw Error(ErrorCode::invalid_input, unknown_name("--what", flags->what, {"batch", "depth"}));
    policy_options(flags->policy);
    return Largest(*flags).run();
  };
}

}  // namespace plimsoll::cli
