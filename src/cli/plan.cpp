// plan: what a training step would need and cost, without running it.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/files.h"
#include "base/texts.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/interrupts.h"
#include "cli/progress.h"
#include "compile/plan_file.h"
#include "cores/share_cores.h"
#include "device/collectives.h"
#include "plimsoll/cost_graph.h"
#include "plimsoll/train.h"
#include "report/explain.h"
#include "report/html.h"
#include "report/reason.h"
#include "report/report.h"
#include "train/session.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

struct PlanFlags : CommonFlags {
  std::string save, save_graph, trace, data, report, explain, costs = "estimated";
  int tensors = 10;
  double link_gbit_per_s = 10, link_latency_us = 50;
  double certify = 0;  // seconds
};

constexpr double kMoreEffort = 4, kLeastMoreEffort = 1.2;  // from one round of --certify to the next
constexpr std::chrono::milliseconds kLookForInterrupts(50);

// Every rank sends to every other at once. What a message beside the first costs is assumed.
constexpr double kMessageUs = 1;
LinkInfo link_of(const PlanFlags& flags) {
  return {.ranks = flags.ranks,
          .latency_us = flags.link_latency_us + kMessageUs * (flags.ranks - 2),
          .gb_per_s = flags.link_gbit_per_s / 8};
}

void check_ranks(const PlanFlags& flags, int64_t batch) {
  const auto refuse = [](const std::string& why) { throw Error(ErrorCode::invalid_input, why); };
  if (flags.ranks < 2) {
    const PlanFlags none;
    for (const auto& [flag, given] : {std::pair{"--link-bandwidth", flags.link_gbit_per_s != none.link_gbit_per_s},
                                      std::pair{"--link-latency", flags.link_latency_us != none.link_latency_us}}) {
      if (given) refuse(fmt::format("{}: has no effect without --ranks; add that, or leave it out", flag));
    }
    return;
  }
  if (batch % flags.ranks != 0) {
    const int64_t below = batch / flags.ranks * flags.ranks;
    refuse(fmt::format("--batch {} is of all ranks, and cannot be divided equally among {}; take {}{}", batch,
                       flags.ranks, below > 0 ? fmt::format("{} or ", below) : "", below + flags.ranks));
  }
  if (flags.has_paper_layers())
    refuse("--ranks: the papers' layer model has no gradients to send; leave out --layer-model paper");
  if (flags.inter_op != "1") refuse("--inter-op: with several ranks, steps run one after another; leave it out");
}

// Measures what the database lacks, as `train` does before it plans; false: it was interrupted.
bool measure_for_plan(Session& session, const Network& network, const CompileOptions& options, const PlanFlags& flags) {
  catch_interrupts();
  Progress progress;
  const MeasureOptions measuring{
      .tolerance = kMeasuringTolerance,
      .batches = flags.batch_sizes().value_or(BatchSizes::undivided),
      .progress = [&](int done, int total,
                      const std::string& what) { progress.update("measuring kernels", done, total, what); },
      .stop = interrupted};
  forget_busy_times(session);
  const Measured measured = measure_missing(session, network, options, measuring);
  progress.finish();
  if (measured.busy > 0) complain(busy_text(measured, *session.database));
  return !interrupted();
}

void check_costs(const PlanFlags& flags) {
  if (flags.costs == "estimated") return;
  if (is_simulated(flags.device)) {
    throw Error(
        ErrorCode::invalid_input,
        fmt::format("--costs measured: device '{}' is simulated, so nothing can be measured on it", flags.device));
  }
  if (flags.has_paper_layers()) {
    throw Error(ErrorCode::invalid_input,
                "--costs measured: the papers' layer model has no kernels to measure; leave out --layer-model paper");
  }
}

// The network's input as --data gives it, or as it is usually fed.
ModelInput planned_input(const PlanFlags& flags) {
  const ModelInput usual = flags.input();
  if (flags.data.empty()) return usual;
  return training_input({.model = flags.model,
                         .data = flags.data,
                         .batch = usual.batch,
                         .image_size = flags.image_size,
                         .classes = flags.classes});
}

void save(const PlanFlags& flags, const ModelInput& input, const CompileOptions& options, const Program& program) {
  const TierOptions tiers = flags.tiers();
  save_plan(flags.save,
            {.model = flags.model,
             .input = input,
             .optimizer = options.optimizer,
             .exact = options.exact,
             .paper_layers = flags.has_paper_layers(),
             .memory = options.memory,
             .host_memory = tiers.host_memory,
             .spill_size = tiers.spill_size,
             .peer_size = tiers.peer_size,
             .remote_memory = tiers.remote_memory,
             .threads = flags.threads,
             .inter_op = flags.core_request().inter_op,
             .intra_op = flags.core_request().intra_op},
            program);
}

// Plans of one network, each shared among the cores; or of a graph of costs only, whose steps run one after another.
struct Planner {
  const PlanFlags& flags;
  const Session& session;
  const Network& network;
  const CoreOptions& cores;
  const Stopwatch& watch;  // since the command began: its plan's time is of all that it did for it
  const CostGraph* only_costs = nullptr;
  std::vector<std::string> notices = {};  // of the last plan

  std::variant<Program, Infeasible> plan(const CompileOptions& options) {
    if (only_costs != nullptr)
      return compile_graph(only_costs->graph, only_costs->kernels, *session.device, session.costs, options);
    auto result = compile_step(flags, network, session, options);
    if (auto* program = std::get_if<Program>(&result)) {
      SharedCores shared = share_cores({program->network.graph, *session.device, session.costs, cores}, program->plan);
      shared.plan.plan_time_ms = watch.ms();
      if (shares_cores(shared.plan)) program->bound_ms = shared.plan.predicted.lower_bound_ms;
      program->plan = check_plan(program->network.graph, shared.plan);
      notices = shared.notices;
    }
    return result;
  }

  // Takes faster plans and higher bounds that more and more effort finds, until they meet or the seconds are over. `took`: the
  // seconds of the plan that is there. False: it was interrupted, and a thread still plans.
  bool certify(Program& program, CompileOptions options, double took) {
    options.name_minimum = false;  // it is known
    const Stopwatch since;
    const auto open_ms = [&] { return program.plan->predicted.step_time_ms - program.bound_ms; };
    while (open_ms() > 1e-9 * program.bound_ms) {
      const double factor = std::min(kMoreEffort, (flags.certify - since.seconds()) / took);
      if (factor < kLeastMoreEffort) break;
      options.search_effort *= factor;
      const Stopwatch watched;
      std::optional<Round> round = plan_unless_interrupted(options);
      if (!round) return false;
      took = watched.seconds();
      Program* const found = std::get_if<Program>(&round->result);
      // A bound holds for all plans of the same steps by the same kernels.
      const auto of = [](const KernelChoice& choice) -> const std::string& { return choice.kernel; };
      if (found != nullptr && std::ranges::equal(found->kernels, program.kernels, {}, of, of) &&
          found->plan->graph_fingerprint == program.plan->graph_fingerprint)
        found->bound_ms = program.bound_ms = std::max(program.bound_ms, found->bound_ms);
      if (found == nullptr || found->plan->predicted.step_time_ms >= program.plan->predicted.step_time_ms) continue;
      found->minimum = program.minimum;
      program = std::move(*found);
      notices = std::move(round->notices);
    }
    return true;
  }

 private:
  struct Round {
    std::variant<Program, Infeasible> result;
    std::vector<std::string> notices;
  };

  // On a thread of its own. Nothing where a signal comes before it is done: the thread goes on until the process ends.
  std::optional<Round> plan_unless_interrupted(const CompileOptions& options) const {
    catch_interrupts();
    std::packaged_task<Round()> work([planner = *this, options]() mutable {
      auto result = planner.plan(options);
      return Round{std::move(result), std::move(planner.notices)};
    });
    std::future<Round> round = work.get_future();
    std::thread thread(std::move(work));
    while (round.wait_for(kLookForInterrupts) != std::future_status::ready) {
      if (!interrupted()) continue;
      thread.detach();
      return std::nullopt;
    }
    thread.join();
    return round.get();
  }
};

// A tenth more memory is planned for where that takes no longer than this, or where a report is wanted.
constexpr double kQuickly = 1.5;

// Why the plan is as it is, and what more memory would buy. `seconds`: what making it took.
PlanReason find_reason(Planner& planner, CompileOptions options, const Program& program, double seconds) {
  const Plan& plan = program.plan;
  const Bytes budget = plan.budget;
  if (budget.count == INT64_MAX && keeps_everything(plan)) return reason_of(program);
  options.name_minimum = false;
  options.policy = "liveness";
  options.memory = {INT64_MAX};
  const std::optional<Feeding> feeding = std::exchange(options.feeding, std::nullopt);
  const auto keeping = planner.plan(options);
  const Program* all = std::get_if<Program>(&keeping);
  if (all == nullptr || all->plan->arena <= budget) return reason_of(program, {.keeping = all});
  if (seconds > kQuickly && planner.flags.report.empty()) return reason_of(program, {.keeping = all});
  options.policy = planner.flags.policy;
  options.memory = a_tenth_more(budget);
  options.feeding = feeding;
  const auto more = planner.plan(options);
  return reason_of(program, {.keeping = all, .more = std::get_if<Program>(&more)});
}

// What a step of one rank's part of the batch takes a process that is alone, in the same memory where that will do.
std::optional<double> ms_alone(const PlanFlags& flags, const Session& session, const Network& network,
                               const Program& program) {
  if (flags.ranks < 2) return std::nullopt;
  CompileOptions options = compile_options(flags, session);
  options.memory = program.plan->budget;
  options.name_least = false;
  auto result = compile_training(network, *session.device, session.costs, options);
  if (std::holds_alternative<Infeasible>(result)) {
    options.memory = {INT64_MAX};
    result = compile_training(network, *session.device, session.costs, options);
  }
  const Program* const alone = std::get_if<Program>(&result);
  return alone != nullptr ? std::optional(alone->plan->predicted.step_time_ms) : std::nullopt;
}

std::string efficiency_text(const PlanFlags& flags, const Program& program, std::optional<double> alone) {
  if (!alone) return "";
  const double ms = program.plan->predicted.step_time_ms;
  return fmt::format(
      "  {:<10} {:.1f} % of {} processes that need not wait for each other ({:.1f} ms alone); the link is assumed: "
      "{:.4g} Gbit/s, {:.4g} us for a message and {:.4g} us for each to a further rank\n",
      "efficiency", 100 * *alone / ms, flags.ranks, *alone, flags.link_gbit_per_s, flags.link_latency_us, kMessageUs);
}

// What lies at the peak, or what --explain asks for.
void tell_more(const PlanFlags& flags, const Session& session, const Program& program, json& object,
               const JsonLines& out) {
  if (flags.explain.empty()) {
    say(out,
        fmt::format("alive at the peak:\n{}", peak_tensors_text(program.network.graph, program.plan, flags.tensors)));
    return;
  }
  const std::string text = explain(program, *session.device, session.costs, flags.explain);
  say(out, "\n" + text);
  object["explanation"] = text;
}

// What the plan is, to a person and as JSON.
void tell_plan(const PlanFlags& flags, const Session& session, const Network& network, const ModelInput& input,
               const Program& program, const PlanReason& reason, const ProcessMemory& process, JsonLines& out) {
  Bytes minimum = *program.minimum;
  const std::string share = flags.ranks > 1 ? fmt::format(" ({} a rank)", input.batch) : "";
  say(out, fmt::format("{}, batch {}{}, device {} ({})", flags.model, input.batch * flags.ranks, share, flags.device,
                       session.device->info().description));
  const bool runs_here = shares_cores(flags.device) && !flags.has_paper_layers();
  if (flags.means_process()) minimum = process.with(minimum);
  const std::optional<double> alone = ms_alone(flags, session, network, program);
  say(out, plan_text(program, input.batch * flags.ranks) + efficiency_text(flags, program, alone) +
               fmt::format("  {:<10} {} would do, less than {} nothing can\n", "minimum", to_string(minimum),
                           to_string(flags.means_process() ? process.with(program.lower_bound) : program.lower_bound)) +
               (runs_here ? process_text(process, program.plan, flags.means_process()) : "") + reason_text(reason));
  json object = plan_json(program, minimum, reason);
  if (alone) {
    object["alone_ms"] = *alone;
    object["efficiency"] = *alone / program.plan->predicted.step_time_ms;
  }
  if (runs_here) add_process(object, process, program.plan, flags.means_process());
  tell_more(flags, session, program, object, out);
  object["layers"] = layer_count(network);
  out.write(object);
}

// The files that flags ask for, before anything is told: who reads it may have enough of it (`| head`). What to say of them.
std::string write_files(const PlanFlags& flags, const ModelInput& input, const CompileOptions& options,
                        const Program& program, const ReportFacts& facts) {
  std::string told;
  if (!flags.save.empty()) {
    save(flags, input, options, program);
    told += fmt::format("saved {}\n", flags.save);
  }
  if (!flags.save_graph.empty()) {
    write_file_atomically(flags.save_graph, to_json(cost_graph_of(program.network.graph, program.plan)));
    told += fmt::format("saved its graph of costs: {}\n", flags.save_graph);
  }
  if (!flags.trace.empty()) write_file_atomically(flags.trace, trace_json(program.network.graph, program.plan, {}));
  if (flags.report.empty()) return told;
  write_file_atomically(flags.report, html_report(program, facts));
  return told + fmt::format("report: {} (open it in a browser)\n", flags.report);
}

// At once, as a thread still plans.
int end_interrupted(JsonLines& out) {
  say(out, "interrupted: plan and bound are what --certify had found until then");
  out.stop();
  std::_Exit(kInterrupted);
}

// A graph of costs only: nothing of it is chosen but the plan.
int plan_cost_graph(const PlanFlags& flags) {
  const Stopwatch watch;
  if (!flags.data.empty() || flags.costs == "measured") {
    throw Error(
        ErrorCode::invalid_input,
        fmt::format("{}: a graph of costs reads no data, and its times are those of its file; leave the flag out",
                    flags.data.empty() ? "--costs measured" : "--data"));
  }
  const CostGraph costs = open_cost_graph(flags, flags.batch);
  JsonLines out(flags.json);
  const Session session = open_costs_session(flags, costs);
  for (const std::string& notice : session.notices) complain(notice);
  const Network none;
  const CoreOptions cores;
  const CompileOptions options = compile_options(flags, session, costs);
  Planner planner{flags, session, none, cores, watch, &costs};
  const Stopwatch planning;
  std::optional<SlowNotice> notice(std::in_place, fmt::format("planning {}", flags.model));
  auto result = planner.plan(options);
  if (auto* infeasible = std::get_if<Infeasible>(&result)) {
    notice.reset();
    if (costs.batch == 0) leave_out_batch(infeasible->suggestion);
    complain(to_text(*infeasible));
    out.write(infeasible_json(*infeasible));
    return kInfeasible;
  }
  Program& program = std::get<Program>(result);
  const double seconds = planning.seconds();
  const bool finished = planner.certify(program, options, seconds);
  const PlanReason reason = finished ? find_reason(planner, options, program, seconds) : reason_of(program);
  notice.reset();
  const std::string written =
      write_files(flags, {.batch = std::max<int64_t>(costs.batch, 1)}, options, program,
                  {.model = flags.model, .batch = costs.batch, .device = "costs of a file", .reason = reason});
  const std::string batch = costs.batch > 0 ? fmt::format(", batch {}", costs.batch) : "";
  say(out, fmt::format("{}{}: {} ops, costs only", flags.model, batch, costs.graph.op_count()));
  say(out, plan_text(program, costs.batch) + reason_text(reason));
  json object = plan_json(program, program.minimum, reason);
  tell_more(flags, session, program, object, out);
  out.write(object);
  if (!written.empty()) say(out, written);
  return finished ? kDone : end_interrupted(out);
}

void check_files(const PlanFlags& flags) {
  check_apart({{"--json", flags.json},
               {"--save", flags.save},
               {"--save-graph", flags.save_graph},
               {"--trace", flags.trace},
               {"--report", flags.report}},
              {file_read_by("MODEL or --graph", flags.model), file_read_by("--data", flags.data)});
  check_writable("--save", flags.save);
  check_writable("--save-graph", flags.save_graph);
  check_writable("--trace", flags.trace);
  check_writable("--report", flags.report);
}

// A share of what the network needs where it keeps every tensor, by its fastest kernels.
Bytes share_of_network(const PlanFlags& flags, Planner& planner, CompileOptions options) {
  options.name_minimum = false;
  options.policy = "liveness";
  options.memory = {INT64_MAX};
  options.feeding.reset();
  const auto keeping = planner.plan(options);
  const Program* const program = std::get_if<Program>(&keeping);
  return program != nullptr ? flags.share_of(program->plan->arena) : options.memory;  // no kernels keep --workspace
}

int run_plan(const PlanFlags& flags) {
  check_files(flags);
  if (is_cost_graph(flags.model)) return plan_cost_graph(flags);
  const Stopwatch watch;
  flags.check();
  check_costs(flags);
  JsonLines out(flags.json);
  ModelInput input = planned_input(flags);
  check_ranks(flags, input.batch);
  input.batch /= flags.ranks;
  const Network network = build_model(flags.model, input);
  const CoreOptions cores = core_options(flags.device, flags.core_request(), flags.exact);
  if (!cores.notice.empty()) complain(cores.notice);
  Session session = open_session(flags.device, cores.intra_op, flags.tiers(), probing_room(flags));
  find_feeding(session, probing_room(flags));
  for (const std::string& notice : session.notices) complain(notice);
  if (flags.ranks > 1) session.device = with_ranks(std::move(session.device), link_of(flags), nullptr);
  const ProcessMemory process = process_of(flags, network, flags.data);
  const std::optional<ProcessMemory> stated = stated_process(flags, network, flags.data);
  CompileOptions options = compile_options(flags, session, stated);
  options.optimizer.ranks = flags.ranks;
  options.name_minimum = true;
  if (flags.costs == "measured" && !measure_for_plan(session, network, options, flags)) {
    say(out, "interrupted; what was measured is kept");
    return kInterrupted;
  }
  Planner planner{flags, session, network, cores, watch};
  if (flags.is_share()) options.memory = share_of_network(flags, planner, options);
  const Stopwatch planning;
  std::optional<SlowNotice> notice(std::in_place, fmt::format("planning {}, batch {}", flags.model, input.batch));
  auto result = within_process(planner.plan(options), flags, stated);
  if (auto* infeasible = std::get_if<Infeasible>(&result)) {
    notice.reset();
    complain(to_text(*infeasible));
    out.write(infeasible_json(*infeasible));
    return kInfeasible;
  }
  Program& program = std::get<Program>(result);
  const double seconds = planning.seconds();
  const bool finished = planner.certify(program, options, seconds);
  for (const std::string& text : planner.notices) complain(text);
  if (const std::string text = last_resort_text(program, *session.device); !text.empty()) complain(text);
  const PlanReason reason = finished ? find_reason(planner, options, program, seconds) : reason_of(program);
  notice.reset();
  const std::string written =
      write_files(flags, input, options, program,
                  {.model = flags.model,
                   .batch = input.batch,
                   .device = fmt::format("{}: {}", flags.device, session.device->info().description),
                   .minimum = *program.minimum,
                   .reason = reason});
  tell_plan(flags, session, network, input, program, reason, process, out);
  if (!written.empty()) say(out, written);
  return finished ? kDone : end_interrupted(out);
}

}  // namespace

Run add_plan(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = app.add_subcommand("plan", "Say what a training step needs and costs, without running it");
  command->footer(
      "Examples:\n"
      "  plimsoll plan vgg16 --batch 32 --memory 2GiB                        would it fit, and what would it cost?\n"
      "  plimsoll plan resnet50 --batch 16 --explain layer1.0.conv1          what happens to this layer, and why\n"
      "  plimsoll plan resnet50 --batch 256 --ranks 8 --memory 2GiB          eight machines: bytes, time, efficiency of each\n"
      "  plimsoll plan resnet50 --batch 16 --memory 1GiB --save plan.json    for `verify` and `train --plan`\n"
      "  plimsoll plan --graph problem.json --memory 60%                     a graph of costs only, from anywhere");
  flags->takes_share = true;
  flags->add_to(*command, true);
  flags->add_layer_model_to(*command);
  flags->add_optimizer_to(*command);
  flags->add_sharing_to(*command);
  flags->add_workspace_to(*command);
  command
      ->add_option(
          "--data", flags->data,
          "Plan for images as this data gives them, as `train` would: digits, mnist:DIR, synthetic, ... (default: as the network is usually fed)")
      ->check(not_empty());
  flags->add_zero_to(*command);
  command
      ->add_option("--ranks", flags->ranks,
                   "Plan for so many processes that train together (mpirun -n N): --batch is of all of them, --memory "
                   "of each")
      ->type_name("N")
      ->capture_default_str()
      ->check(whole_number(1, kMostRanks));
  command
      ->add_option("--link-bandwidth", flags->link_gbit_per_s,
                   "With --ranks: of each rank's link to the others, in Gbit/s")
      ->type_name("GBIT")
      ->capture_default_str()
      ->check(positive_number(1e6));
  command->add_option("--link-latency", flags->link_latency_us, "With --ranks: of a message between two of them, in us")
      ->type_name("US")
      ->capture_default_str()
      ->check(number(0, 1e9));
  command->add_option("--save", flags->save, "Write the plan, with its graph, for `verify` and `train --plan`")
      ->type_name("FILE")
      ->check(not_empty());
  command
      ->add_option("--save-graph", flags->save_graph,
                   "Write the plan's ops with their times and bytes as a graph of costs, for `plan --graph` and other "
                   "planners")
      ->type_name("FILE")
      ->check(not_empty());
  command
      ->add_option(
          "--certify", flags->certify,
          "Search on for so many seconds, for a faster plan and a higher bound on the time of any plan with the ops "
          "in its order, until they meet")
      ->type_name("SECONDS")
      ->check(number());
  command->add_option("--trace", flags->trace, "Write the predicted timeline as a Chrome trace (Perfetto)")
      ->type_name("FILE")
      ->check(not_empty());
  command
      ->add_option("--report", flags->report,
                   "Write a report with charts of memory and time: one HTML file that needs no network")
      ->type_name("FILE.html")
      ->check(not_empty());
  command->add_option("--explain", flags->explain, "Say what the plan does with this tensor, op or layer, and why")
      ->type_name("NAME")
      ->check(not_empty());
  command
      ->add_option("--costs", flags->costs,
                   "measured: time kernels that the database lacks, as `train` does; estimated: do not")
      ->capture_default_str()
      ->check(CLI::IsMember({"measured", "estimated"}));
  command->add_option("--tensors", flags->tensors, "How many of the tensors alive at the peak to list")
      ->capture_default_str()
      ->check(whole_number(0, 1 << 20));
  return [flags] { return run_plan(*flags); };
}

}  // namespace plimsoll::cli
