// Times of real operations by thread count, on this machine, and what can be told from them. JSON, one object a line.
//
//   concurrency_bench MODEL BATCH [CHANNELS SIZE CLASSES]...     more models: separated by "--"
//
// "sizes", "pair": single convolutions, as in Tables II and III. "accuracy": the hill-climbing model with interval x
// against the times of the counts that it did not try (Table V); on the simulated cores, too. "cores": the step on 16
// simulated cores, by the measured times of one and two threads, extended by a law. "regression": the study that the
// concurrency paper rejects: least squares on hardware counters, cross-validated.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>

#include "bench/concurrency/convolutions.h"
#include "bench/concurrency/timed_op.h"
#include "cores/share_cores.h"
#include "cores/strategies.h"
#include "cost/signature.h"
#include "papers/scaling.h"
#include "plan/dependencies.h"
#include "plimsoll/compile.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"

namespace plimsoll::bench {
namespace {

struct Request {
  std::string model;
  ModelInput input;
};

constexpr int kSimulatedCores = 16;
constexpr double kWorthTelling =
    0.1;  // ms with one thread: of shorter ops nothing is seen but what starting threads takes

struct OpTimes {
  std::string key;
  std::vector<double> ms;  // by threads, from one
  Row features;            // counters with one thread, by instructions; and the time
};

std::vector<Request> requests(int argc, char** argv) {
  std::vector<Request> result;
  std::vector<std::string> words;
  auto finish = [&] {
    if (words.size() < 2) return;
    Request r{.model = words[0], .input = {.batch = std::atoll(words[1].c_str())}};
    if (words.size() >= 5) {
      r.input.channels = std::atoll(words[2].c_str());
      r.input.height = r.input.width = std::atoll(words[3].c_str());
      r.input.classes = std::atoll(words[4].c_str());
    }
    result.push_back(r);
    words.clear();
  };
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--") == 0) {
      finish();
    } else {
      words.emplace_back(argv[i]);
    }
  }
  finish();
  return result;
}

std::vector<OpTimes> time_steps(const Program& program, const Device& device, Counters& counters) {
  const Graph& graph = program.network.graph;
  std::map<std::string, bool> seen;
  std::vector<OpTimes> result;
  for (const Step& step : program.plan->steps) {
    if (step.kernel.empty()) continue;
    const Op& op = graph.op(step.op);
    OpTimes times{.key = op_signature(graph, op) + " " + step.kernel, .ms = {}, .features = {}};
    if (!seen.emplace(times.key, true).second) continue;
    try {
      for (int threads = 1; threads <= device.info().threads; ++threads) {
        const bool count = threads == 1 && counters.why_not().empty();
        times.ms.push_back(time_op(device, graph, op, {.name = step.kernel, .inputs = {}, .outputs = {}}, threads,
                                   &counters, count ? &times.features : nullptr));
      }
    } catch (const Error& error) {
      std::fprintf(stderr, "%s is left out: %s\n", op.name.c_str(), error.what());
      continue;
    }
    result.push_back(std::move(times));
  }
  return result;
}

// How well a climb with each interval tells the times that it did not take, and what its optimum loses; by threads of
// `ops`.
void report_accuracy(const std::string& model, const std::vector<std::vector<double>>& ops, bool simulated) {
  if (ops.empty()) return;
  const int most = static_cast<int>(ops[0].size());
  for (int interval : {1, 2, 4, 8, 16}) {
    if (interval > 1 && interval >= most) continue;
    double accuracy = 0, accuracy_of_all = 0, lost = 0;
    int tries = 0;
    for (const std::vector<double>& ms : ops) {
      HillClimb climb({.interval = interval, .cores = {.cores = most, .cores_a_cache = 1}});
      while (const auto next = climb.next()) climb.record(ms[next->threads - 1]);
      const double n = static_cast<double>(ops.size());
      const auto actual = [&](int p) { return ms[p - 1]; };
      accuracy +=
          interpolation_accuracy(climb.curve(), actual, climb.curve().most_threads()) / n;  // beyond it nobody goes
      accuracy_of_all += interpolation_accuracy(climb.curve(), actual, most) / n;
      lost += (climb.curve().best_ms() / *std::min_element(ms.begin(), ms.end()) - 1) / n;
      tries = std::max(tries, climb.tries());
    }
    fmt::print(
        "{{\"what\": \"accuracy\", \"simulated\": {}, \"model\": \"{}\", \"cores\": {}, \"ops\": {}, \"interval\": {}, \"accuracy\": {:.4f}, \"accuracy_of_all\": {:.4f}, "
        "\"lost\": {:.4f}, \"tries\": {}}}\n",
        simulated, model, most, ops.size(), interval, accuracy, accuracy_of_all, lost, tries);
  }
}

// The plan's steps that run something, each after those that its inputs come from or whose bytes it takes.
std::vector<CoTask> tasks_of(const Program& program,
                             const std::function<ThreadCurve(const std::string& key, double bytes)>& curve) {
  const Graph& graph = program.network.graph;
  const Plan& plan = program.plan;
  const Dependencies dependencies = find_dependencies(graph, plan);
  std::vector<int32_t> task_of(plan.steps.size(), -1);
  std::map<std::string, int32_t> types;
  std::vector<CoTask> tasks;
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    if (plan.steps[s].kernel.empty()) continue;
    const Op& op = graph.op(plan.steps[s].op);
    std::set<int32_t> after, seen;
    std::vector<int32_t> open{static_cast<int32_t>(s)};
    while (!open.empty()) {  // through views, which take no time
      const int32_t node = open.back();
      open.pop_back();
      for (int32_t before : dependencies.before(node)) {
        if (!seen.insert(before).second) continue;
        const int32_t task = task_of[before];
        if (task >= 0)
          after.insert(task);
        else
          open.push_back(before);
      }
    }
    const double bytes = op.type->work ? op.type->work(graph, op).bytes : 0;
    task_of[s] = static_cast<int32_t>(tasks.size());
    tasks.push_back({.type = types.try_emplace(op.type->name, static_cast<int32_t>(types.size())).first->second,
                     .curve = curve(op_signature(graph, op) + " " + plan.steps[s].kernel, bytes),
                     .bytes = bytes,
                     .after = {after.begin(), after.end()}});
  }
  return tasks;
}

// The plan's steps with the measured times, on 16 cores that there are not.
void report_cores(const std::string& model, const Program& program, const std::vector<OpTimes>& ops,
                  const MachineRates& rates) {
  if (ops.empty() || ops[0].ms.size() < 2) return;
  constexpr int kCores = kSimulatedCores;
  const double memory =
      rates.memory_gb_per_s * kCores / 4;  // a server's cores share more channels than two of them use
  const ScalingLaw law{.memory_gb_per_s = memory, .thread_ms = 0.0005};
  std::map<std::string, const OpTimes*> by_key;
  std::vector<std::vector<double>> extended;
  for (const OpTimes& op : ops) by_key[op.key] = &op;
  double one_thread_ms = 0, two_threads_ms = 0;
  const std::vector<CoTask> tasks = tasks_of(program, [&](const std::string& key, double bytes) {
    const auto found = by_key.find(key);
    if (found == by_key.end()) return ThreadCurve::of(std::array{0.0});
    const std::vector<double>& ms = found->second->ms;
    one_thread_ms += ms[0];
    two_threads_ms += ms[1];
    const ThreadCurve curve = extended_curve(ms[0], ms[1], bytes, rates.memory_gb_per_s, law, kCores);
    if (ms[0] < kWorthTelling) return curve;
    std::vector<double>& all = extended.emplace_back();
    for (int p = 1; p <= kCores; ++p) all.push_back(curve.time_ms(p));
    return curve;
  });
  report_accuracy(model, extended, true);
  const CoMachine machine{.cores = {.cores = kCores}, .memory_gb_per_s = memory, .waiting = 1};
  const double recommended = co_run(tasks, machine, {.inter_op = 1, .intra_op = kCores}).total_ms;
  const double strategies12 = co_run(tasks, machine, {}).total_ms;
  const double strategy3 = co_run(tasks, machine, {.co_run = true}).total_ms;
  const ChosenSchedule chosen = best_schedule(tasks, machine, {.co_run = true});
  const int inter[] = {1, 2, 3, 4, 6, 8}, intra[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16};
  const UniformSetting uniform = all_uniform_settings(tasks, machine, inter, intra).front();
  fmt::print(
      "{{\"what\": \"cores\", \"simulated\": true, \"model\": \"{}\", \"cores\": {}, \"one_thread_ms\": {:.3f}, \"two_threads_ms\": {:.3f}, \"recommended_ms\": {:.3f}, "
      "\"strategies12_ms\": {:.3f}, \"strategy3_ms\": {:.3f}, \"chosen_ms\": {:.3f}, \"uniform_ms\": {:.3f}, \"uniform_inter\": {}, \"uniform_intra\": {}}}\n",
      model, kCores, one_thread_ms, two_threads_ms, recommended, strategies12, strategy3, chosen.schedule.total_ms,
      uniform.total_ms, uniform.inter_op, uniform.intra_op);
}

void report_regression(const std::vector<OpTimes>& ops, const Counters& counters) {
  if (!counters.why_not().empty()) {
    std::fprintf(stderr, "the kernel gives no hardware counters (%s): the study of regression models is left out\n",
                 counters.why_not().c_str());
    fmt::print("{{\"what\": \"regression\", \"available\": false, \"why\": \"{}\"}}\n", counters.why_not());
    return;
  }
  const size_t most = ops.empty() ? 0 : ops[0].ms.size();
  for (size_t threads = 2; threads <= most; ++threads) {
    std::vector<Row> rows;
    std::vector<double> values;
    for (const OpTimes& op : ops) {
      rows.push_back(op.features);
      values.push_back(op.ms[threads - 1]);
    }
    if (rows.size() < 20) continue;
    const Quality quality = cross_validate(rows, values, 10);
    fmt::print(
        "{{\"what\": \"regression\", \"available\": true, \"threads\": {}, \"ops\": {}, \"accuracy\": {:.4f}, \"r2\": "
        "{:.4f}}}\n",
        threads, rows.size(), quality.accuracy, quality.r2);
  }
}

int run(int argc, char** argv) {
  const std::vector<Request> wanted = requests(argc, argv);
  if (wanted.empty()) {
    std::fprintf(stderr, "usage: concurrency_bench MODEL BATCH [CHANNELS SIZE CLASSES] [-- MODEL BATCH ...]\n");
    return 2;
  }
  Counters counters;  // before OpenMP starts its threads
  const auto device = open_device("cpu");
  CostDatabase database(CostDatabase::default_path(), device->info());
  CostTable costs = database.load();  // a training has measured the kernels that it chose from
  if (!database.rates()) database.save(probe_rates(*device));
  const MachineRates rates = *database.rates();
  report_input_sizes(*device, costs);
  report_pair(*device, costs);
  database.save(costs);
  std::vector<OpTimes> all;
  for (const Request& request : wanted) {
    const auto result =
        compile_training(build_model(request.model, request.input), *device, costs, {.policy = "liveness"});
    if (std::holds_alternative<Infeasible>(result)) {
      std::fprintf(stderr, "%s does not fit\n", request.model.c_str());
      continue;
    }
    Program program = std::get<Program>(result);
    relax_program(program, {.cores = kSimulatedCores, .choose = true}, costs);
    use_stays(program, true);
    const std::vector<OpTimes> ops = time_steps(program, *device, counters);
    std::vector<std::vector<double>> ms;
    for (const OpTimes& op : ops) {
      if (op.ms[0] >= kWorthTelling) ms.push_back(op.ms);
    }
    report_accuracy(request.model, ms, false);
    report_cores(request.model, program, ops, rates);
    all.insert(all.end(), ops.begin(), ops.end());
    std::fflush(stdout);
  }
  report_regression(all, counters);
  return 0;
}

}  // namespace
}  // namespace plimsoll::bench

int main(int argc, char** argv) {
  try {
    return plimsoll::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "concurrency_bench: %s\n", error.what());
    return 4;
  }
}
