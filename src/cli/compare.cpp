// compare: every policy side by side. max: the largest batch or depth that a policy can do.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/clock.h"
#include "base/names.h"
#include "base/statistics.h"
#include "base/texts.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "cores/share_cores.h"
#include "plan/policy.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"
#include "plimsoll/train.h"
#include "report/report.h"
#include "train/sample_inputs.h"
#include "train/session.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

Bytes used_of(const Plan& plan, std::string_view tier) {
  for (const TierUse& use : plan.tiers) {
    if (use.tier.name == tier) return use.used;
  }
  return {};
}

// The median time of a training step on meaningless data.
double measure_step_ms(const Session& session, const Program& program, int steps) {
  const Graph& graph = program.network.graph;
  Executor executor(graph, program.plan, *session.device,
                    {.spill = session.spill, .peer = session.peer, .remote = session.remote});
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
  std::string data;
  std::vector<std::string> only;
};

void check_can_run(const CompareFlags& flags) {
  if (is_simulated(flags.device)) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("--run: device '{}' is simulated: it plans, it does not run", flags.device));
  }
  if (flags.has_paper_layers())
    throw Error(ErrorCode::invalid_input,
                "--run: the papers' layer model is planned, never run; leave out --layer-model paper");
}

// The network's input as --data gives it, or as it is usually fed.
ModelInput planned_input(const CompareFlags& flags, int64_t batch) {
  if (flags.data.empty()) return flags.input(batch);
  return training_input({.model = flags.model,
                         .data = flags.data,
                         .batch = batch,
                         .image_size = flags.image_size,
                         .classes = flags.classes});
}

// Plans for one network by one policy after another, a row for each.
class Comparison {
 public:
  explicit Comparison(const CompareFlags& flags)
      : flags_(flags),
        out_(flags.json),
        names_(policies_to_compare(flags)),
        costs_(costs_to_compare(flags)),
        batch_(costs_            ? costs_->batch
               : flags.batch > 0 ? flags.batch
                                 : usual_input(flags.model).batch),
        network_(costs_ ? Network{} : build_model(flags.model, planned_input(flags, batch_))),
        cores_(core_options(flags.device, flags.core_request(), flags.exact)),
        process_(stated_process(flags, network_, flags.data)),
        session_(open()) {}

  int run() {
    write_head();
    bool any = false;
    for (const std::string& name : names_) any = compare(name) || any;
    if (!told_.empty()) complain(told_);
    return any ? kDone : kInfeasible;
  }

 private:
  static std::vector<std::string> policies_to_compare(const CompareFlags& flags) {
    std::vector<std::string> names = flags.only;
    for (const std::string& name : names) policy_options(name);
    if (names.empty()) {
      for (const Policy& policy : policies()) names.emplace_back(policy.name);
    }
    return names;
  }

  static std::optional<CostGraph> costs_to_compare(const CompareFlags& flags) {
    if (!is_cost_graph(flags.model)) return std::nullopt;
    if (flags.run || !flags.data.empty()) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{}: a graph of costs is planned, never run, and reads no data; leave the flag out",
                              flags.run ? "--run" : "--data"));
    }
    return open_cost_graph(flags, flags.batch);
  }

  Session open() const {
    if (costs_) return open_costs_session(flags_, *costs_);
    if (!cores_.notice.empty()) complain(cores_.notice);
    Session session = open_session(flags_.device, cores_.intra_op, flags_.tiers(), probing_room(flags_));
    for (const std::string& notice : session.notices) complain(notice);
    return session;
  }

  void write_head() const {
    const Bytes budget = costs_ ? compile_options(flags_, session_, *costs_).memory : flags_.budget(*session_.device);
    say(out_,
        fmt::format(
            "{}, {}{}{}{}", flags_.model, batch_ > 0 ? fmt::format("batch {}, ", batch_) : "",
            budget.count < INT64_MAX ? "budget " + to_string(budget) : std::string("no budget"),
            process_ ? fmt::format(" of the process, {} of it not the arena's", to_string(process_->beside())) : "",
            session_.device->info().simulated ? ", simulated" : ""));
    say(out_, fmt::format("{:<28} {:>11} {:>12}{} {:>11} {:>11} {:>8}", "policy", "peak", "step time",
                          flags_.run ? "     measured" : "", "copied out", "copied in", "again"));
  }

  // Whether it has a plan in this budget.
  bool compare(const std::string& name) {
    CompileOptions options =
        costs_ ? compile_options(flags_, session_, *costs_) : compile_options(flags_, session_, process_);
    options.policy = name;
    options.name_minimum = true;
    auto result = costs_ ? compile_graph(costs_->graph, costs_->kernels, *session_.device, session_.costs, options)
                         : within_process(compile_step(flags_, network_, session_, options, false), flags_, process_);
    if (auto* infeasible = std::get_if<Infeasible>(&result)) {
      if (batch_ == 0) leave_out_batch(infeasible->suggestion);
      write_infeasible(name, *infeasible);
      return false;
    }
    write_plan(name, std::get<Program>(result));
    return true;
  }

  void write_infeasible(const std::string& name, const Infeasible& infeasible) {
    const std::string need = (infeasible.flag.empty() ? "needs " : fmt::format("needs {} ", infeasible.flag)) +
                             to_string(infeasible.minimum);
    say(out_, fmt::format("{:<28} {:>11}", name, infeasible.minimum.count == INT64_MAX ? "cannot" : need));
    if (!infeasible.flag.empty()) told_ = to_text(infeasible);
    json object = infeasible_json(infeasible);
    object["policy"] = name;
    out_.write(object);
  }

  void write_plan(const std::string& name, Program& program) {
    const Graph& graph = program.network.graph;
    if (!costs_) {
      const SharedCores shared = share_cores({graph, *session_.device, session_.costs, cores_}, program.plan);
      for (const std::string& text : shared.notices) complain(fmt::format("{}: {}", name, text));
      program.plan = check_plan(graph, shared.plan);
      if (plimsoll::shares_cores(*program.plan)) program.bound_ms = program.plan->predicted.lower_bound_ms;
    }
    const Prediction& p = program.plan->predicted;
    std::optional<Bytes> minimum = program.minimum;
    if (process_ && minimum) minimum = process_->with(*minimum);
    json object = plan_json(program, minimum);
    if (!costs_) {
      if (shares_cores(flags_.device) && !flags_.has_paper_layers())
        add_process(object, process_of(flags_, network_, flags_.data), program.plan, flags_.means_process());
      object["layers"] = layer_count(network_);
    }
    object["host_bytes"] = used_of(program.plan, "host").count;
    std::string measured;
    if (flags_.run) {
      const double ms = measure_step_ms(session_, program, flags_.steps);
      measured = fmt::format(" {:>9.1f} ms", ms);
      object["measured_step_time_ms"] = ms;
    }
    say(out_, fmt::format("{:<28} {:>11} {:>9.1f} ms{} {:>11} {:>11} {:>8}", name, to_string(p.peak), p.step_time_ms,
                          measured, to_string(p.offload), to_string(p.prefetch), p.recompute_steps));
    out_.write(object);
  }

  const CompareFlags& flags_;
  JsonLines out_;
  const std::vector<std::string> names_;
  const std::optional<CostGraph> costs_;  // in place of a network
  const int64_t batch_;
  const Network network_;
  const CoreOptions cores_;
  const std::optional<ProcessMemory> process_;  // where --memory is of it
  Session session_;
  std::string told_;  // what the last policy without a plan says of a flag: the same for every policy
};

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

// What `--what depth` varies: the N in the model's name; resnet alone means the papers' 6-32-N-6.
std::string with_depth(const std::string& model, int64_t n) {
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

class Largest {
 public:
  explicit Largest(const MaxFlags& flags)
      : flags_(flags),
        only_costs_(is_cost_graph(flags.model)),
        session_(only_costs_ ? open_costs_session(flags, open_cost_graph(flags, 1))
                             : open_session(flags.device, flags.threads, flags.tiers(), probing_room(flags))) {
    for (const std::string& notice : session_.notices) complain(notice);
  }

  int run() {
    check_apart({{"--json", flags_.json}}, {file_read_by("MODEL", flags_.model)});
    JsonLines out(flags_.json);
    search();
    if (low_ == 0) {
      write_nothing_fits(out);
      return kInfeasible;
    }
    // As `plan` plans it, and not only as what fits.
    if (const Trial planned = try_size(low_, true); planned.fits) best_ = planned;
    write_largest(out);
    return kDone;
  }

 private:
  // Grows until a size does not fit, then halves what is between it and the last that did. What does not fit may fit a
  // little larger, where its sizes suit each other better: so of batches some above the last are asked too.
  void search() {
    const int64_t most = flags_.most > 0 ? flags_.most : flags_.what == "depth" ? 4096 : 65536;
    int64_t high = 1;  // does not fit
    while (high <= most && attempt(high)) high = high < 8 ? high + 1 : high * 2;
    if (low_ == 0) return;
    if (high > most) {
      high = most + 1;
      refused_ = {false, fmt::format("the search (--most {})", most), {}, {}};
      refused_sizes_.insert(high);
    }
    halve(high);
    while (flags_.what == "batch" && any_above()) halve(*refused_sizes_.upper_bound(low_));
    // Of a graph of costs `plan` looks longer, and may find what these have not.
    while (only_costs_ && low_ < most && attempt(low_ + 1, true)) {
    }
  }

  void halve(int64_t high) {
    while (high - low_ > 1) {
      const int64_t middle = low_ + (high - low_) / 2;
      if (!attempt(middle)) high = middle;
    }
  }

  bool any_above() {
    for (const int64_t part : {64, 32, 16}) {
      const int64_t size = low_ + low_ / part;
      if (size >= *refused_sizes_.rbegin()) return false;
      if (size > low_ && !refused_sizes_.contains(size) && attempt(size)) return true;
    }
    return false;
  }

  // Whether this size fits; then it is the largest so far.
  bool attempt(int64_t size, bool fast = false) {
    const Trial trial = try_size(size, fast);
    fmt::print(stderr, "  {} {}: {}\n", flags_.what, size, trial.fits ? "fits" : trial.limited_by);
    (trial.fits ? best_ : refused_) = trial;
    if (trial.fits) {
      low_ = size;
    } else {
      refused_sizes_.insert(size);
    }
    return trial.fits;
  }

  Trial try_size(int64_t size, bool fast = false) {
    const bool depth = flags_.what == "depth";
    const std::string model = depth ? with_depth(flags_.model, size) : flags_.model;
    Trial trial;
    try {
      const int64_t batch = depth ? (flags_.batch > 0 ? flags_.batch : 16) : size;
      const auto result = only_costs_ ? plan_costs(batch, fast) : plan_network(model, batch, fast);
      if (const auto* infeasible = std::get_if<Infeasible>(&result)) {
        trial.limited_by = !infeasible->flag.empty()      ? infeasible->flag
                           : infeasible->tier.empty()     ? "memory"
                           : infeasible->tier == "host"   ? "host memory"
                           : infeasible->tier == "remote" ? "remote memory"
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

  std::variant<Program, Infeasible> plan_network(const std::string& model, int64_t batch, bool fast) {
    const Network network = build_model(model, flags_.input(batch));
    const std::optional<ProcessMemory> process = stated_process(flags_, network);
    CompileOptions options = compile_options(flags_, session_, process);
    options.first_that_fits = !fast;
    return within_process(compile_step(flags_, network, session_, options, true), flags_, process);
  }

  std::variant<Program, Infeasible> plan_costs(int64_t batch, bool fast) {
    const CostGraph costs = read_cost_graph(*network_file_of(flags_.model), batch);
    CompileOptions options = compile_options(flags_, session_, costs);
    options.name_minimum = false;
    options.first_that_fits = !fast;
    return compile_graph(costs.graph, costs.kernels, *session_.device, costs_of(costs), options);
  }

  void write_nothing_fits(JsonLines& out) const {
    complain(fmt::format("not even {} 1 fits: limited by {}", flags_.what, refused_.limited_by));
    out.write({{"model", flags_.model},
               {"policy", flags_.policy},
               {"device", flags_.device},
               {"simulated", session_.device->info().simulated},
               {"what", flags_.what},
               {flags_.what, 0},
               {"limited_by", refused_.limited_by},
               {"peak_bytes", nullptr},
               {"host_bytes", nullptr},
               {"step_time_ms", nullptr}});
  }

  void write_largest(JsonLines& out) const {
    json object = {{"model", flags_.model},
                   {"policy", flags_.policy},
                   {"device", flags_.device},
                   {"simulated", session_.device->info().simulated},
                   {"what", flags_.what},
                   {"limited_by", refused_.limited_by},
                   {"peak_bytes", best_.peak.count},
                   {"host_bytes", best_.host.count},
                   {"step_time_ms", best_.step_time_ms}};
    std::string text;
    if (flags_.what == "depth") {
      const std::string model = with_depth(flags_.model, low_);
      const int64_t depth = resnet_depth(model);
      object["n"] = low_;
      object["depth"] = depth > 0 ? depth : low_;
      text = depth > 0 ? fmt::format("depth {} ({})", depth, model) : fmt::format("N = {} ({})", low_, model);
    } else {
      object["batch"] = low_;
      text = fmt::format("batch {}", low_);
    }
    say(out, fmt::format("{}: {} fits, limited by {}; peak {}{}, predicted step {}{}", flags_.model, text,
                         refused_.limited_by, to_string(best_.peak),
                         best_.host.count > 0 ? " and " + to_string(best_.host) + " of host memory" : "",
                         time_text(best_.step_time_ms, 4), session_.device->info().simulated ? ", simulated" : ""));
    out.write(object);
  }

  // Layers with weights, as the papers count the depth of resnet:a-b-c-d; 0 for other networks.
  static int64_t resnet_depth(const std::string& model) {
    int64_t a = 0, b = 0, c = 0, d = 0;
    if (std::sscanf(model.c_str(), "resnet:%ld-%ld-%ld-%ld", &a, &b, &c, &d) != 4) return 0;
    return 3 * (a + b + c + d) + 2;
  }

  const MaxFlags& flags_;
  const bool only_costs_;  // of a file
  Session session_;
  int64_t low_ = 0;                  // the largest that fits
  std::set<int64_t> refused_sizes_;  // the last of them is larger than any that was asked
  Trial best_, refused_;
};

}  // namespace

Run add_compare(CLI::App& app) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* command =
      app.add_subcommand("compare", "Set all policies side by side: peak, step time, traffic, recomputations");
  flags->add_to(*command, true);
  flags->takes_share = true;
  flags->add_optimizer_to(*command);
  flags->add_sharing_to(*command);
  flags->add_layer_model_to(*command);
  flags->add_workspace_to(*command);
  command
      ->add_option(
          "--data", flags->data,
          "Compare for images as this data gives them, as `train` would: digits, mnist:DIR, synthetic, ... (default: as the network is usually fed)")
      ->check(not_empty());
  command->add_flag("--run", flags->run, "Run each plan too, and say what its step took");
  command->add_option("--steps", flags->steps, "Steps to run of each, of which the median counts")
      ->capture_default_str()
      ->check(whole_number(1, 10000));
  command->add_option("--policies", flags->only, "Only these, with their options: auto superneurons:recompute=speed")
      ->type_name("NAME");
  command->footer(
      "Examples:\n  plimsoll compare resnet50 --batch 32 --memory 1GiB --host-memory 8GiB\n  plimsoll compare alexnet --batch 200 --layer-model paper --device k40c --memory 900MiB");
  return [flags] {
    flags->check();
    if (flags->is_share() && !is_cost_graph(flags->model)) flags->memory_bytes();
    if (flags->run) check_can_run(*flags);
    check_apart({{"--json", flags->json}}, {file_read_by("MODEL", flags->model), file_read_by("--data", flags->data)});
    return Comparison(*flags).run();
  };
}

Run add_max(CLI::App& app) {
  auto flags = std::make_shared<MaxFlags>();
  CLI::App* command = app.add_subcommand("max", "Find the largest batch, or the deepest network, that fits");
  flags->add_to(*command, true);
  flags->add_optimizer_to(*command);
  flags->add_layer_model_to(*command);
  flags->add_workspace_to(*command);
  command->add_option("--what", flags->what, "batch, or depth: the N in the network's name, resnet:6-32-N-6")
      ->capture_default_str();
  command->add_option("--most", flags->most, "Look no further than this")->check(whole_number(1, 1 << 24));
  command->footer(
      "The largest that was found to fit. A batch may fit where a somewhat smaller one does not, so some above are asked.\n\n"
      "Examples:\n  plimsoll max resnet50 --memory 2GiB --host-memory 8GiB\n  plimsoll max resnet:6-32-N-6 --what depth --batch 16 --memory 11.2GiB --device k40c --layer-model paper");
  return [flags] {
    if (flags->what != "batch" && flags->what != "depth")
      throw Error(ErrorCode::invalid_input, unknown_name("--what", flags->what, {"batch", "depth"}));
    policy_options(flags->policy);
    flags->check();
    if (flags->what == "batch" && flags->batch > 0 && !is_cost_graph(flags->model))
      throw Error(ErrorCode::invalid_input,
                  "--batch: the largest batch is what is looked for; leave it out, or give --what depth");
    if (is_cost_graph(flags->model)) {
      if (flags->what == "depth" || flags->batch > 0) {
        throw Error(ErrorCode::invalid_input,
                    fmt::format("{}: a graph of costs scales with its batch alone, which is what is looked for; leave "
                                "the flag out",
                                flags->what == "depth" ? "--what depth" : "--batch"));
      }
      return Largest(*flags).run();
    }
    build_model(flags->what == "depth" ? with_depth(flags->model, 1) : flags->model, flags->input(1));
    return Largest(*flags).run();
  };
}

}  // namespace plimsoll::cli
