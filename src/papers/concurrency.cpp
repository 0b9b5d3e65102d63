// Runtime concurrency control (IPDPS 2019), on a simulated Xeon Phi 7250.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "papers/co_tasks.h"
#include "papers/papers.h"

namespace plimsoll {
namespace {

constexpr double kThreadMs = 0.0497;  // of a further thread of a convolution: least squares of Table II's variances
constexpr int kCores = 68;
constexpr const char* kFitted = "simulated; the machine's rates are fitted to this table";

// One law of scaling for every op of two networks goes through few of the values that it is fitted to.
std::string fitted_note(double paper, double ours) {
  if (std::abs(ours / paper - 1) <= 0.005) return kFitted;
  return fmt::format("{}, which leaves {:+.0f} % here: one law for all ops", kFitted, 100 * (ours / paper - 1));
}

struct PaperNetwork {
  const char* name;
  const char* model;
  ModelInput input;
  const char* optimizer;
  double strategies12, strategy3, strategy4, all, manual;  // the paper's speedups; `manual` over the recommendation
  double together3, together4;                             // ops at once without and with Strategy 4
};

// The paper gives what each strategy adds, and how far all of it is from the manual optimum.
std::vector<PaperNetwork> networks() {
  return {{"ResNet-50",
           "resnet50",
           {.batch = 64, .channels = 3, .height = 32, .width = 32, .classes = 10},
           "sgd",
           1.02,
           1.35,
           1.08,
           1.49,
           1.49 / 1.08,
           1.61,
           1.89},
          {"DCGAN",
           "dcgan",
           {.batch = 64, .channels = 1, .height = 28, .width = 28},
           "adam",
           1.12,
           1.15,
           1.04,
           1.34,
           1.34 / 1.07,
           1.62,
           2.04},
          {"Inception-v3", "inception3", {.batch = 16}, "sgd", 1.02, 1.07, 1.07, 1.17, 1.17 / 0.98, 1.52, 1.74}};
}

std::vector<StepOp> step_of(const PaperNetwork& network) {
  return training_step(network.model, network.input, network.optimizer);
}

std::vector<int> counts_up_to(int most, int hardware_threads) {
  std::vector<int> counts;
  for (int parts = 1; parts <= 8; ++parts) {
    if (most / parts >= 1) counts.push_back(most / parts);
  }
  for (int part : {1, 2, 4, 8}) {
    if (part <= most) counts.push_back(part);
  }
  for (int threads = 2; threads <= hardware_threads; threads *= 2) counts.push_back(threads * most);
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

struct Outcome {
  double recommended, strategies12, with3, with4, chosen;
  double together3, together4;
  CoPolicy policy;  // of `chosen`
  UniformSetting manual;
};

Outcome run_strategies(std::span<const CoTask> tasks, const CoMachine& machine) {
  const int cores = machine.cores.cores;
  Outcome result{};
  result.recommended = co_run(tasks, machine, {.inter_op = 1, .intra_op = cores}).total_ms;
  result.strategies12 = co_run(tasks, machine, {}).total_ms;
  const CoSchedule with3 = co_run(tasks, machine, {.co_run = true});
  const CoSchedule with4 = co_run(tasks, machine, {.co_run = true, .smt = true});
  result.with3 = with3.total_ms;
  result.with4 = with4.total_ms;
  result.together3 = with3.mean_at_once;
  result.together4 = with4.mean_at_once;
  const ChosenSchedule chosen = best_schedule(tasks, machine, {.co_run = true, .smt = true});
  result.chosen = chosen.schedule.total_ms;
  result.policy = chosen.policy;
  const int inter[] = {1, 2, 3, 4, 5, 6, 7, 8};
  result.manual =
      all_uniform_settings(tasks, machine, inter, counts_up_to(cores, machine.cores.hardware_threads)).front();
  return result;
}

// What the rows of figure 3 say, for any machine.
void add_outcome(std::vector<Finding>& rows, const std::string& table, const PaperNetwork& network, const Outcome& o,
                 bool with_paper) {
  auto add = [&](std::string quantity, double paper, double ours, std::string unit, std::string note) {
    rows.push_back({table, network.name, std::move(quantity), with_paper ? std::optional(paper) : std::nullopt, ours,
                    std::move(unit), std::move(note)});
  };
  add("Strategies 1 and 2", network.strategies12, o.recommended / o.strategies12, "x",
      "simulated; over one op at a time on all cores");
  add("+ Strategy 3", network.strategy3, o.strategies12 / o.with3, "x",
      "simulated; candidates within two threads of the optimum seldom fit beside an op that wants most cores");
  add("+ Strategy 4", network.strategy4, o.with3 / o.with4, "x",
      "simulated; two hardware threads do 1.03 times the work of one (Table III)");
  add("all four", network.all, o.recommended / o.with4, "x", "simulated; as the paper states them");
  add("auto", network.all, o.recommended / o.chosen, "x",
      !o.policy.threads.empty()
          ? "simulated; threads by the longest chain of ops and all their work"
          : fmt::format("simulated; of the bounds tried, at most {} threads an op give the shortest step",
                        o.policy.most_threads == 0 ? kCores : o.policy.most_threads));
  add("best uniform setting", network.manual, o.recommended / o.manual.total_ms, "x",
      fmt::format("simulated; exhaustive: {} ops at once, {} threads each", o.manual.inter_op, o.manual.intra_op));
  add("auto, over the best uniform", network.all / network.manual, o.manual.total_ms / o.chosen, "x", "simulated");
  add("ops at once, Strategy 3", network.together3, o.together3, "ops",
      "simulated; mean over starts and ends, as in Figure 4");
  add("ops at once, Strategies 3 and 4", network.together4, o.together4, "ops", "simulated; mean over starts and ends");
}

struct MeasuredOp {
  const char* type;
  const char* shape;
  double time_ms;
  int threads;
  double variance;  // %
};
constexpr MeasuredOp kMeasured[] = {
    {"Conv2DBackpropFilter", "(32,8,8,384)", 7.2, 26, 17.3},
    {"Conv2DBackpropFilter", "(32,17,17,384)", 11.1, 42, 10.2},
    {"Conv2DBackpropFilter", "(32,8,8,2048)", 20.3, 68, 0},
    {"Conv2DBackpropInput", "(32,8,8,384)", 5.8, 36, 9.8},
    {"Conv2DBackpropInput", "(32,17,17,384)", 8.7, 56, 2.3},
    {"Conv2DBackpropInput", "(32,8,8,2048)", 19.6, 68, 0},
    {"Conv2D", "(32,8,8,384)", 4.7, 45, 11.1},
    {"Conv2D", "(32,17,17,384)", 7.4, 63, 3.5},
    {"Conv2D", "(32,8,8,2048)", 14.8, 66, 2.0},
};

HillClimb climb(const ThreadCurve& truth, int interval) {
  HillClimb result({.interval = interval, .cores = {.cores = kCores}});
  while (const auto next = result.next()) result.record(truth.time_ms(next->threads));
  return result;
}

}  // namespace

std::vector<Finding> concurrency_table1() {
  const struct {
    int inter, intra;
    double speedup[2], ms[2];
  } paper[] = {{1, 34, {0.98, 524.0 / 484}, {1414, 484}}, {1, 68, {1, 1}, {1382, 524}},
               {1, 136, {0.61, 0.50}, {2257, 1045}},      {2, 34, {1.27, 1.28}, {1088, 411}},
               {2, 68, {1.14, 1.04}, {1213, 501}},        {2, 136, {0.34, 0.42}, {4017, 1238}},
               {4, 34, {1.18, 1.21}, {1169, 434}},        {4, 68, {0.45, 0.93}, {3048, 565}},
               {4, 136, {0.29, 0.36}, {4782, 1469}}};
  const SimulatedCores on = knights_landing();
  const std::vector<PaperNetwork> all = networks();
  std::vector<Finding> rows;
  for (size_t n = 0; n < 2; ++n) {
    const std::vector<CoTask> tasks = co_tasks(step_of(all[n]), on);
    const double base = co_run(tasks, on.machine, {.inter_op = 1, .intra_op = kCores}).total_ms;
    for (const auto& setting : paper) {
      const double ms = co_run(tasks, on.machine, {.inter_op = setting.inter, .intra_op = setting.intra}).total_ms;
      const std::string row = fmt::format("{}, {} x {}", all[n].name, setting.inter, setting.intra);
      const bool misprint = n == 1 && setting.inter == 1 && setting.intra == 34;
      const std::string note = fitted_note(setting.speedup[n], base / ms);
      rows.push_back({"concurrency-table1", row, "speedup", setting.speedup[n], base / ms, "x",
                      misprint ? fmt::format("{}; the paper prints 1.21, its times give 1.08", note) : note});
      rows.push_back(
          {"concurrency-table1", row, "time of a step", setting.ms[n], ms, "ms", fitted_note(setting.ms[n], ms)});
    }
  }
  return rows;
}

std::vector<Finding> concurrency_table2() {
  std::vector<Finding> rows;
  for (const MeasuredOp& op : kMeasured) {
    const ThreadCurve curve = curve_with_optimum(op.threads, op.time_ms, kThreadMs, kCores);
    const std::string row = fmt::format("{} {}", op.type, op.shape);
    const HillClimb fine = climb(curve, 1), coarse = climb(curve, 4);
    auto add = [&](std::string quantity, std::optional<double> paper, double ours, std::string unit, std::string note) {
      rows.push_back({"concurrency-table2", row, std::move(quantity), paper, ours, std::move(unit), std::move(note)});
    };
    add("best threads", op.threads, fine.curve().best().threads, "threads",
        "simulated; found by climbing with interval 1 a curve fitted to this count and time");
    const int coarse_best = coarse.curve().best().threads;
    const bool tried = (op.threads - 1) % 4 == 0 || coarse_best == op.threads;  // all cores are tried as well
    add("best threads, interval 4", op.threads, coarse_best, "threads",
        tried ? fmt::format("simulated; 1, 5, 9, ... and {} are tried", kCores)
              : fmt::format("simulated; 1, 5, 9, ... and {} are tried, and {} is not among them", kCores, op.threads));
    add("time", op.time_ms, fine.curve().best_ms(), "ms", "simulated; fitted");
    add("lost with 68 threads", op.variance, 100 * (curve.time_ms(kCores) / fine.curve().best_ms() - 1), "%",
        op.threads == kCores ? "simulated; 68 threads are its best"
                             : "simulated; one cost a further thread for all nine ops, 0.0497 ms: near 68 threads the "
                               "real machine rises more steeply");
    add("lost by interval 4", {}, 100 * (coarse.curve().best_ms() / fine.curve().best_ms() - 1), "%",
        "simulated; the paper: less than 2 %");
  }
  return rows;
}

std::vector<Finding> concurrency_table3() {
  // Curves through the paper's points: alone with 68 threads, and 25 % and 17 % slower with 34.
  auto task = [](int32_t type, double ms, double loss) {
    CoTask t{.type = type, .curve = {}, .after = {}};
    t.curve.put({1, Affinity::close}, 34 * ms);
    t.curve.put({34, Affinity::close}, ms * (1 + loss));
    t.curve.put({68, Affinity::close}, ms);
    return t;
  };
  const std::vector<CoTask> tasks{task(0, 20.3, 0.25), task(1, 19.6, 0.17)};
  const CoMachine machine = knights_landing().machine;
  const double serial = co_run(tasks, machine, {.inter_op = 1, .intra_op = 68}).total_ms;
  const double second = co_run(tasks, machine, {.inter_op = 2, .intra_op = 68}).total_ms;
  const double halves = co_run(tasks, machine, {.inter_op = 2, .intra_op = 34}).total_ms;
  auto row = [&](const char* name, double paper_ms, double ms, const char* note) {
    return std::vector<Finding>{{"concurrency-table3", name, "time", paper_ms, ms, "ms", note},
                                {"concurrency-table3", name, "speedup", 41.1 / paper_ms, serial / ms, "x", note}};
  };
  std::vector<Finding> rows;
  for (const auto& part : {row("one after the other, 68", 41.1, serial,
                               "simulated; the two times alone, 20.3 and 19.6 ms, add up to 39.9"),
                           row("on second hardware threads, 68 + 68", 39.9, second,
                               "simulated; two hardware threads do 1.03 times the work of one, taken from this row"),
                           row("on half the cores each, 34 + 34", 29.8, halves,
                               "simulated; 25 % and 17 % slower as the paper says of each; its 29.8 ms is 17 % more "
                               "than that, for a reason it does not give")}) {
    rows.insert(rows.end(), part.begin(), part.end());
  }
  return rows;
}

namespace {

std::string interpolation_note(double paper, double ours) {
  const std::string what = "simulated; mean over the ops of a step, up to where each climb ended";
  if (std::abs(ours / paper - 1) <= 0.005) return what;
  return what + (ours > paper ? "; more than on a machine, since the times follow a law, without noise"
                              : "; less than on a machine: the law bends more between the counts tried");
}

}  // namespace

std::vector<Finding> concurrency_table5() {
  const int intervals[] = {2, 4, 8, 16};
  const double paper[3][4] = {{98.13, 95.45, 83.42, 31.12}, {97.16, 94.43, 51.54, 10.14}, {97.91, 94.22, 73.21, 21.21}};
  std::vector<Finding> rows;
  for (size_t i = 0; i < std::size(intervals); ++i) {
    const auto perfect = [](int threads) { return 1.0 / threads; };
    std::vector<double> ms;
    for (int p = 1; p <= kCores; ++p) ms.push_back(perfect(p));
    const double accuracy = interpolation_accuracy(climb(ThreadCurve::of(ms), intervals[i]).curve(), perfect, kCores);
    rows.push_back({"concurrency-table5", "T(p) = 1/p", fmt::format("accuracy, interval {}", intervals[i]),
                    std::nullopt, 100 * accuracy, "%", "what arithmetic allows for an op that scales perfectly"});
  }
  const SimulatedCores on = knights_landing();
  const std::vector<PaperNetwork> all = networks();
  for (size_t n = 0; n < all.size(); ++n) {
    const std::vector<CoTask> tasks = co_tasks(step_of(all[n]), on, kCores);
    for (size_t i = 0; i < std::size(intervals); ++i) {
      double climbed = 0, beyond = 0;
      for (const CoTask& task : tasks) {
        const ThreadCurve curve = climb(task.curve, intervals[i]).curve();
        const auto actual = [&](int p) { return task.curve.time_ms(p); };
        climbed +=
            100 * interpolation_accuracy(curve, actual, curve.most_threads()) / static_cast<double>(tasks.size());
        beyond += 100 * interpolation_accuracy(curve, actual, kCores) / static_cast<double>(tasks.size());
      }
      rows.push_back({"concurrency-table5", all[n].name, fmt::format("accuracy, interval {}", intervals[i]),
                      paper[n][i], climbed, "%", interpolation_note(paper[n][i], climbed)});
      rows.push_back({"concurrency-table5", all[n].name, fmt::format("up to 68 threads, interval {}", intervals[i]),
                      std::nullopt, beyond, "%",
                      "simulated; with the counts beyond the optimum, which no strategy uses"});
    }
  }
  return rows;
}

std::vector<Finding> concurrency_figure3() {
  const SimulatedCores on = knights_landing();
  std::vector<Finding> rows;
  double ours = 0, stated = 0;
  for (const PaperNetwork& network : networks()) {
    const Outcome outcome = run_strategies(co_tasks(step_of(network), on), on.machine);
    add_outcome(rows, "concurrency-figure3", network, outcome, true);
    ours += outcome.recommended / outcome.chosen / 3;
    stated += outcome.recommended / outcome.with4 / 3;
  }
  rows.push_back(
      {"concurrency-figure3", "average", "all four", 1.33, stated, "x", "simulated; as the paper states them"});
  rows.push_back({"concurrency-figure3", "average", "auto", 1.33, ours, "x",
                  "simulated; threads by the whole step leave cores to other ops; the paper's are by the op"});
  return rows;
}

std::vector<Finding> concurrency_16_cores() {
  const SimulatedCores on = sixteen_cores();
  std::vector<Finding> rows;
  for (const PaperNetwork& network : networks()) {
    add_outcome(rows, "concurrency-16-cores", network, run_strategies(co_tasks(step_of(network), on), on.machine),
                false);
  }
  return rows;
}

}  // namespace plimsoll
