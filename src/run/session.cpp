#include "run/session.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>

#include "base/names.h"
#include "plimsoll/execute.h"
#include "plimsoll/ops.h"
#include "plimsoll/placement.h"
#include "plimsoll/simulate.h"

namespace plimsoll {
namespace {

constexpr int kCalibrationRuns = 5;
constexpr double kCalibrationSeconds = 6;  // no further run is begun after this

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Cost summarize(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const size_t n = times.size();
  return {.source = Cost::Source::in_step,
          .time_ms = times[n / 2],
          .spread_ms = (times[n * 3 / 4 < n ? n * 3 / 4 : n - 1] - times[n / 4]) / 2,
          .runs = static_cast<int>(n)};
}

}  // namespace

void check_choices(std::string_view policy, std::string_view placement) {
  find_policy(policy);
  std::vector<std::string> known;
  for (const PlacementMethod& method : placement_methods()) {
    if (method.name == placement) return;
    known.emplace_back(method.name);
  }
  throw Error(ErrorCode::invalid_input, unknown_name("placement", placement, known));
}

BusyMeter::BusyMeter() { sample(total_, busy_, own_); }

void BusyMeter::sample(double& total, double& busy, double& own) {
  total = busy = own = 0;
  std::ifstream stat("/proc/stat");
  std::string cpu;
  stat >> cpu;
  for (int i = 0; i < 8; ++i) {  // user nice system idle iowait irq softirq steal
    double ticks = 0;
    stat >> ticks;
    total += ticks;
    if (i != 3 && i != 4) busy += ticks;
  }
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  own = (seconds(usage.ru_utime) + seconds(usage.ru_stime)) * static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double BusyMeter::others() const {
  double total = 0, busy = 0, own = 0;
  sample(total, busy, own);
  return total > total_ ? std::clamp(((busy - busy_) - (own - own_)) / (total - total_), 0.0, 1.0) : 0;
}

Session open_session(std::string_view name, int threads) {
  Session session;
  session.device = open_device(name, threads);
  session.database = std::make_unique<CostDatabase>(CostDatabase::default_path(), session.device->info());
  if (!session.database->notice().empty()) session.notices.push_back(session.database->notice());
  if (session.database->rates()) {
    session.costs = session.database->load();
    return session;
  }
  const BusyMeter busy;
  const MachineRates rates = probe_rates(*session.device);
  if (busy.others() <= kTooBusy) {
    session.database->save(rates);
    session.costs = session.database->load();
    return session;
  }
  // Probed again next time; entries that are there already are still good.
  CostTable table(rates);
  const CostTable known = session.database->load();
  for (const auto* entries : {&known.entries(), &known.in_step_entries()}) {
    for (const auto& [key, cost] : *entries) table.put(key, cost);
  }
  session.costs = std::move(table);
  return session;
}

int measure_missing(Session& session, const Network& network, const CompileOptions& options, const MeasureOptions& measure) {
  Network fused = network;
  run_fusion_passes(fused, options.fusion);
  const Network training = make_training_network(fused, options.optimizer);
  const int measured = measure_costs(training.graph, *session.device, session.costs, measure);
  if (measured > 0) session.database->save(session.costs);
  return measured;
}

Bytes minimum_memory(const Network& network, const Device& device, const CostTable& costs, CompileOptions options) {
  options.memory = 1_B;
  const auto result = compile_training(network, device, costs, options);
  return std::get<Infeasible>(result).minimum;
}

void calibrate(Session& session, Program& program) {
  const Graph& graph = program.network.graph;
  Executor executor(graph, program.plan, *session.device, {.record_times = true});
  executor.run_step();  // first touch, first use of every kernel
  std::vector<std::vector<double>> times(program.plan.steps.size());
  const double begun = now_s();
  for (int run = 0; run < kCalibrationRuns && (run == 0 || now_s() - begun < kCalibrationSeconds); ++run) {
    executor.run_step();
    for (size_t s = 0; s < times.size(); ++s) {
      times[s].push_back(executor.records()[s].end_ms - executor.records()[s].start_ms);
    }
  }
  keep_step_times(session, program, std::move(times));
  program.plan.predicted = simulate(graph, program.plan, session.costs);
}

void keep_step_times(Session& session, const Program& program, std::vector<std::vector<double>> times) {
  const Graph& graph = program.network.graph;
  // Ops of one signature share an entry: the median over all of their runs.
  std::map<CostKey, std::vector<double>> pooled;
  for (size_t s = 0; s < times.size(); ++s) {
    const Step& step = program.plan.steps[s];
    if (step.kernel.empty()) continue;
    auto& all = pooled[{op_signature(graph, graph.op(step.op)), step.kernel, step.threads}];
    all.insert(all.end(), times[s].begin(), times[s].end());
  }
  for (auto& [key, all] : pooled) session.costs.put(key, summarize(std::move(all)));
  session.database->save(session.costs);
}

}  // namespace plimsoll
