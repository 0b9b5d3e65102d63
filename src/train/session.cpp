#include "train/session.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <thread>

#include "base/names.h"
#include "cost/measure.h"
#include "cost/probe.h"
#include "device/tier/tier.h"
#include "passes/passes.h"
#include "plan/placement/placement.h"
#include "plan/policy.h"
#include "plan/simulate.h"
#include "plan/together.h"
#include "plimsoll/execute.h"
#include "plimsoll/ops.h"
#include "plimsoll/remote_memory.h"
#include "train/sample_inputs.h"

namespace plimsoll {
namespace {

constexpr int kCalibrationRuns = 5;
constexpr double kCalibrationMs = 6000;  // no further run is begun after this
constexpr double kPredictionTolerance = 0.1;
constexpr double kMostScaled = 2;             // a step's times, to those of a usual one
constexpr double kLeastSecondsOfALook = 0.5;  // at how busy the machine is

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

namespace {

// Which disk a rate belongs to.
std::string key_of(const std::filesystem::path& folder) {
  struct stat status {};
  const bool known = ::stat(folder.c_str(), &status) == 0;
  std::error_code ignored;
  return fmt::format("disk {}:{} {}", known ? major(status.st_dev) : 0, known ? minor(status.st_dev) : 0,
                     std::filesystem::canonical(folder, ignored).string());
}

// What was found of the speeds then holds for this run alone; what fits does not depend on them.
std::string not_kept(const std::string& of_what, const LoadMeter& busy) {
  return fmt::format(
      "other processes kept the machine {:.0f} % busy while the speed of {} was probed: it is not kept but probed again "
      "next time, and times that are predicted now may be off",
      100 * busy.others(), of_what);
}

// What was found in little memory may be the speed of a cache.
std::string not_kept_for_room(const std::string& of_what, Bytes room) {
  return fmt::format(
      "the speed of {} was probed in {}, so it is not kept but probed again next time, and times that are predicted now "
      "may be off; with {} left for it, once, it is kept",
      of_what, to_string(room), to_string(kProbeRoom));
}

constexpr Bytes kProbedHostMemory = 64_MiB, kProbedDisk = 8_MiB;  // at least; for a moment, and only the first time

TierInfo rates_of(Session& session, const std::shared_ptr<Tier>& tier, const std::string& key, Bytes room,
                  const std::string& what) {
  std::optional<TierInfo> info = session.database->tier_rates(key);
  if (info && info->beside_compute() != copies_beside_compute(*session.device, *tier))
    info.reset();  // another version's
  if (!info) {
    const LoadMeter busy;
    info = probe_tier(*session.device, *tier, std::min(room, kProbeRoom));
    if (room < kProbeRoom) {
      session.notices.push_back(not_kept_for_room(what, room));
    } else if (busy.others() <= kTooBusy) {
      session.database->save(key, *info);
    } else {
      session.notices.push_back(not_kept(what, busy));
    }
  }
  info->name = tier->name();
  info->capacity = tier->capacity();
  return *info;
}

void add_tier(Session& session, const std::shared_ptr<Tier>& tier, const std::string& key, Bytes room) {
  session.tiers.push_back(rates_of(session, tier, key, room, fmt::format("the tier '{}'", tier->name())));
}

// Of other processes' memory where there is none to probe: a network of 10 Gbit/s.
TierInfo assumed_remote(Bytes capacity) {
  return {.name = "remote",
          .capacity = capacity,
          .out_gb_per_s = 1,
          .in_gb_per_s = 1,
          .latency_us = 100,
          .compute_share = 0.1};
}

void add_remote(Session& session, const TierOptions& options, Bytes probing) {
  if (options.remote) {
    add_tier(session, open_remote_tier(options.remote), "remote " + options.remote->network(), probing);
    session.remote = options.remote;
    return;
  }
  session.tiers.push_back(assumed_remote(*options.remote_memory));
  const TierInfo& tier = session.tiers.back();
  session.notices.push_back(
      fmt::format("--remote-memory: its speed is assumed, {:.0f} GB/s each way after {:.0f} us; `plimsoll train` under "
                  "mpirun measures it",
                  tier.out_gb_per_s, tier.latency_us));
}

void add_tiers(Session& session, const TierOptions& options, Bytes probing) {
  const DeviceInfo& device = session.device->info();
  session.tiers = device.tiers;
  if (device.simulated) {
    if (options.peer)
      throw Error(ErrorCode::invalid_input, fmt::format("--peer: the simulated device '{}' has no peers", device.name));
    if (options.spill)
      throw Error(ErrorCode::invalid_input, fmt::format("--spill: the simulated device '{}' has no disk", device.name));
    if (options.remote_memory) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("--remote-memory: the simulated device '{}' has no network", device.name));
    }
    for (TierInfo& tier : session.tiers) {
      if (options.host_memory && tier.name == "host") tier.capacity = *options.host_memory;
    }
    return;
  }
  if (options.host_memory) {
    add_tier(session, open_host_tier(std::max(*options.host_memory, kProbedHostMemory)), "host", probing);
    session.tiers.back().capacity = *options.host_memory;
  }
  if (options.peer) {
    const std::shared_ptr<Tier> tier = session.device->open_peer(*options.peer, options.peer_size);
    add_tier(session, tier, fmt::format("peer {}", tier->where()), probing);
    session.peer = *options.peer;
  }
  if (options.spill) {
    const Bytes room = options.spill_size ? *options.spill_size : spill_room(*options.spill);
    if (const Bytes free{spill_room(*options.spill).count / 9 * 10}; room > free) {
      throw Error(ErrorCode::invalid_input, fmt::format("--spill {}:{}: only {} are free there",
                                                        options.spill->string(), to_string(room), to_string(free)));
    }
    add_tier(session, open_disk_tier(*options.spill, std::max(room, kProbedDisk)), key_of(*options.spill), probing);
    session.tiers.back().capacity = room;
    session.spill = *options.spill;
  }
  if (options.remote_memory) add_remote(session, options, probing);
  auto speed = [](const TierInfo& t) { return t.out_gb_per_s + t.in_gb_per_s; };
  std::stable_sort(session.tiers.begin(), session.tiers.end(),
                   [&](const TierInfo& a, const TierInfo& b) { return speed(a) > speed(b); });
}

void open_device_and_costs(Session& session, std::string_view name, int threads, Bytes room, int neighbours) {
  session.device = open_device(name, threads);
  DeviceInfo info = session.device->info();
  if (neighbours > 0) info.key += fmt::format(", beside {} busy rank{}", neighbours, neighbours > 1 ? "s" : "");
  session.database = std::make_unique<CostDatabase>(CostDatabase::default_path(), info);
  if (!session.database->notice().empty()) session.notices.push_back(session.database->notice());
  if (session.database->rates()) {
    session.costs = session.database->load();
    return;
  }
  const LoadMeter busy;
  const bool short_of_room = room < kProbeRoom && !session.device->info().own_memory;
  MachineRates rates = short_of_room ? probe_rates(*session.device, room) : probe_rates(*session.device);
  rates.busy = !session.device->info().simulated && busy.others() > kTooBusy;
  if (session.device->info().simulated || (!rates.busy && !short_of_room)) {
    session.database->save(rates);
    session.costs = session.database->load();
    return;
  }
  const std::string device = fmt::format("device '{}'", name);
  session.notices.push_back(short_of_room ? not_kept_for_room(device, room) : not_kept(device, busy));
  // Entries that are there already are still good.
  CostTable table(rates);
  const CostTable known = session.database->load();
  for (const auto* entries : {&known.entries(), &known.in_step_entries()}) {
    for (const auto& [key, cost] : *entries) table.put(key, cost);
  }
  for (const auto& [first, second] : known.conflicts()) table.add_conflict(first, second);
  session.costs = std::move(table);
}

}  // namespace

TierOptions tiers_of(const TrainOptions& options) {
  return {.host_memory = options.host_memory,
          .spill = options.spill,
          .spill_size = options.spill_size,
          .peer = options.peer,
          .peer_size = options.peer_size,
          .remote_memory = options.remote_memory,
          .remote = options.remote};
}

CompileOptions compile_options_of(const TrainOptions& options, const Session& session, Bytes memory) {
  return {.memory = memory,
          .policy = options.policy,
          .placement = options.placement,
          .tiers = session.tiers,
          .optimizer = options.optimizer,
          .exact = options.exact,
          .workspace = options.workspace.value_or(Bytes{INT64_MAX}),
          .workspace_total = options.workspace_total,
          .batch_sizes = options.batch_sizes,
          .feeding = session.feeding,
          .feeds_every_input = options.feeds_ahead,
          .zero = options.zero};
}

Session open_session(std::string_view name, int threads, const TierOptions& tiers, Bytes room, int neighbours) {
  Session session;
  open_device_and_costs(session, name, threads, room, neighbours);
  add_tiers(session, tiers, room);
  return session;
}

void find_feeding(Session& session, Bytes room) {
  const DeviceInfo& device = session.device->info();
  if (!device.own_memory || device.simulated) return;
  try {
    const TierInfo host = rates_of(session, open_host_tier(kProbedHostMemory), "host", room, "the link to the device");
    session.feeding = Feeding{.second_buffer = true,
                              .latency_us = host.latency_us,
                              .gb_per_s = host.in_gb_per_s,
                              .arena_gb_per_s = session.costs.rates().memory_gb_per_s};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::device_failure) throw;
    session.notices.push_back(fmt::format(
        "the speed of the link to the device cannot be probed, so each batch comes before its step: {}", error.what()));
  }
}

// What earlier versions kept as "link ..." were single messages, which a burst lets through too fast.
std::string link_key(const Wire& wire) { return fmt::format("link, sustained {}", wire.key()); }

LinkInfo open_link(Session& session, Wire& wire, Bytes room, const std::function<void(const std::string&)>& notice,
                   bool again) {
  const std::string key = link_key(wire);
  const bool is_first = wire.rank() == 0;
  LinkInfo link{.ranks = wire.ranks()};
  if (is_first && !again) {
    if (const auto known = session.database->tier_rates(key)) {
      link.latency_us = known->latency_us;
      link.gb_per_s = known->out_gb_per_s;
      link.compute_share = known->compute_share;
    }
  }
  wire.communicator().broadcast(std::as_writable_bytes(std::span(&link, 1)));
  if (link.gb_per_s > 0) return link;
  const LoadMeter busy;
  link = probe_link(*session.device, wire, room);
  wire.communicator().broadcast(std::as_writable_bytes(std::span(&link, 1)));
  if (!is_first) return link;
  if (busy.others() > kTooBusy) {
    if (notice) notice(not_kept("the link between the ranks", busy));
    return link;
  }
  session.database->save(key, {.out_gb_per_s = link.gb_per_s,
                               .in_gb_per_s = link.gb_per_s,
                               .latency_us = link.latency_us,
                               .compute_share = link.compute_share});
  return link;
}

bool forget_busy_times(Session& session) {
  const CostTable& costs = session.costs;
  const auto has_busy = [](const std::map<CostKey, Cost>& entries) {
    return std::any_of(entries.begin(), entries.end(), [](const auto& entry) { return entry.second.busy; });
  };
  if (!has_busy(costs.entries()) && !has_busy(costs.in_step_entries())) return true;
  const double missing = kLeastSecondsOfALook - session.load.load().seconds;
  if (missing > 0) std::this_thread::sleep_for(std::chrono::duration<double>(missing));
  if (is_busy(session.load.load())) return false;
  for (CostKey& key : session.costs.forget_busy()) session.forgotten.insert(std::move(key));
  return true;
}

Measured measure_missing(Session& session, const Network& network, const CompileOptions& options,
                         const MeasureOptions& measure, std::span<const Device* const> beside) {
  const FusionOptions by_rows = fusion_on(*session.device, options.fusion);
  FusionOptions undivided = by_rows;  // compile_training compares both; not with exact, which chooses by rule
  undivided.off.emplace_back(kPointwiseLinearPass);
  std::vector<const Device*> devices{session.device.get()};
  devices.insert(devices.end(), beside.begin(), beside.end());
  std::set<CostKey> known;
  for (const auto& [key, cost] : session.costs.entries()) known.insert(key);
  Measured measured;
  std::vector<FusionOptions> ways{by_rows};
  if (!options.exact) ways.push_back(std::move(undivided));
  for (const FusionOptions& fusion : ways) {
    const Network training = make_training_step(network, options.optimizer, fusion);
    measured.kernels += measure_costs(training.graph, devices, session.costs, measure);
  }
  for (const auto& [key, cost] : session.costs.entries()) {
    if (known.contains(key)) continue;
    measured.busy += cost.busy;
    measured.again += session.forgotten.contains(key);
  }
  if (measured.kernels > 0) session.database->save(session.costs);
  return measured;
}

std::string busy_text(const Measured& measured, const CostDatabase& database) {
  if (measured.busy == 0) return {};
  return fmt::format("{} of these {} kernels were measured while other processes kept the machine busy: their times {}",
                     measured.busy, measured.kernels, fate_of_busy_times(database));
}

std::string fate_of_busy_times(const CostDatabase& database) {
  return database.is_kept() ? "are kept apart, and the next run that finds the machine quiet measures them anew"
                            : "may be off, and are of this run only, since measurements cannot be kept";
}

bool StepTimes::add(const Plan& plan, const Executor& executor) {
  if (++steps_ == 1) {  // first touch, first use of every kernel
    times_.resize(plan.steps.size());
    load_.restart();
    return false;
  }
  const std::vector<double> now = compute_times(plan, executor);
  double last_ms = 0;
  for (size_t s = 0; s < times_.size(); ++s) {
    times_[s].push_back(now[s]);
    last_ms = std::max(last_ms, executor.records()[s].end_ms);
  }
  together_ = ran_together(executor);
  ms_ += last_ms;
  return steps_ > kCalibrationRuns || ms_ >= kCalibrationMs;
}

void StepTimes::keep(Session& session, const Program& program) const {
  if (steps_ < 2) return;
  // A device with a clock of its own does not wait for the host's processors.
  keep_step_times(session, program, times_, together_, !session.device->info().asynchronous && is_busy(load_.load()));
}

CheckedPlan calibrate(Session& session, const Program& program, Memory memory) {
  const Graph& graph = program.network.graph;
  Plan serial = program.plan;
  serial.cores.inter_op = 1;  // what a step takes, and not what it takes beside others
  Executor executor(graph, serial, *session.device,
                    {.record_times = true,
                     .time_captured = true,
                     .messages = false,
                     .spill = session.spill,
                     .peer = session.peer,
                     .remote = session.remote},
                    std::move(memory));
  const SampleInputs inputs(graph);
  StepTimes times;
  const int uncaptured = session.device->info().asynchronous ? kRunsBeforeCapture : 0;
  for (int run = 0; run < uncaptured; ++run) {  // they are bound by the host
    inputs.write(executor);
    executor.run_step();
  }
  do {
    inputs.write(executor);
    executor.run_step();
  } while (!times.add(serial, executor));
  times.keep(session, program);
  Plan plan = program.plan;
  take_times(graph, plan, session.costs);
  return check_plan(graph, std::move(plan));
}

std::vector<double> compute_times(const Plan& plan, const Executor& executor) {
  std::vector<double> times;
  for (const StepRecord& step : executor.records()) {
    double ms = step.end_ms - step.start_ms;
    for (size_t i = 0; i < executor.copies().size(); ++i) {
      const StepRecord& copy = executor.copies()[i];
      const double together = std::min(step.end_ms, copy.end_ms) - std::max(step.start_ms, copy.start_ms);
      if (together > 0) ms -= together * plan.tiers[plan.moves[i].tier].tier.compute_share;
    }
    for (size_t i = 0; i < executor.messages().size(); ++i) {
      const StepRecord& message = executor.messages()[i];
      const double together = std::min(step.end_ms, message.end_ms) - std::max(step.start_ms, message.start_ms);
      if (together <= 0) continue;
      // Beside compute they last longer than alone, and take no more of it by that.
      const double alone = std::min(plan.collectives[i].time_ms / (message.end_ms - message.start_ms), 1.0);
      ms -= together * alone * plan.link.compute_share;
    }
    times.push_back(std::max(ms, 0.05 * (step.end_ms - step.start_ms)));
  }
  return times;
}

std::vector<bool> ran_together(const Executor& executor) {
  std::vector<bool> together;
  for (const StepRecord& record : executor.records()) together.push_back(record.together);
  return together;
}

void keep_step_times(Session& session, const Program& program, std::vector<std::vector<double>> times,
                     const std::vector<bool>& together, bool busy) {
  const Graph& graph = program.network.graph;
  // Ops of one signature share an entry: the median over all of their runs.
  std::map<CostKey, std::vector<double>> pooled;
  for (size_t s = 0; s < times.size(); ++s) {
    const Step& step = program.plan->steps[s];
    if (step.kernel.empty() || graph.op(step.op).type->is_collective) continue;
    const int threads = step.threads == session.device->info().threads ? 0 : step.threads;
    auto& all =
        pooled[{op_signature(graph, graph.op(step.op)), together[s] ? kernel_together(step.kernel) : step.kernel,
                threads, threads != 0 && step.affinity == Affinity::spread}];
    all.insert(all.end(), times[s].begin(), times[s].end());
  }
  for (auto& [key, all] : pooled) {
    if (all.empty()) continue;
    Cost cost = summarize(std::move(all));
    cost.busy = busy;
    session.costs.put(key, cost);
  }
  session.database->save(session.costs);
}

void correct_step_times(Session& session, const Program& program, const Executor& executor, double usual_ms,
                        bool busy) {
  Plan plan = *program.plan;
  predict(program.network.graph, plan, session.costs);
  double last_ms = 0;
  for (const auto& records : {executor.records(), executor.copies()}) {
    for (const StepRecord& record : records) last_ms = std::max(last_ms, record.end_ms);
  }
  if (std::abs(plan.predicted.step_time_ms / usual_ms - 1) <= kPredictionTolerance) return;
  if (last_ms < usual_ms / kMostScaled || last_ms > usual_ms * kMostScaled) return;  // another moment, or other threads
  std::vector<std::vector<double>> times;
  const std::vector<bool> alone = ran_alone(plan, executor);
  for (const double ms : compute_times(plan, executor)) {
    times.push_back(alone[times.size()] ? std::vector<double>{ms * usual_ms / last_ms} : std::vector<double>{});
  }
  keep_step_times(session, program, std::move(times), ran_together(executor), busy);
}

int busy_steps(const Program& program, const CostTable& costs) {
  const Graph& graph = program.network.graph;
  return static_cast<int>(std::count_if(program.plan->steps.begin(), program.plan->steps.end(), [&](const Step& step) {
    return !step.kernel.empty() && costs.predict(graph, graph.op(step.op), step.kernel, step.threads).busy;
  }));
}

std::vector<bool> ran_alone(const Plan& plan, const Executor& executor) {
  const std::span<const StepRecord> records = executor.records();
  std::vector<size_t> order;
  for (size_t s = 0; s < records.size(); ++s) {
    if (!plan.steps[s].kernel.empty()) order.push_back(s);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return records[a].start_ms < records[b].start_ms; });
  std::vector<bool> alone(records.size(), true);
  size_t last = 0;  // of those that have begun, the one that ends last
  for (size_t i = 1; i < order.size(); ++i) {
    if (records[order[i]].start_ms < records[order[last]].end_ms) alone[order[i]] = alone[order[last]] = false;
    if (records[order[i]].end_ms > records[order[last]].end_ms) last = i;
  }
  return alone;
}

std::string last_resort_text(const Program& program, const Device& device) {
  if (device.host_addressable()) return {};
  const Graph& graph = program.network.graph;
  std::string first, kernel;
  int ops = 0;
  for (OpId id{0}; id.index < graph.op_count(); ++id.index) {
    const Op& op = graph.op(id);
    const std::string& chosen = program.kernels[id.index].kernel;
    if (op.type->is_view || op.type->is_collective || chosen.empty()) continue;
    for (const LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last}) {
      const std::vector<KernelSpec> offered = device.kernels(graph, op, family);
      const auto slow = std::ranges::find_if(offered, [&](const KernelSpec& spec) {
        return spec.last_resort && chosen.find(spec.name) != std::string::npos;
      });
      if (slow == offered.end()) continue;
      if (ops++ == 0) first = op.name, kernel = slow->name;
      break;
    }
  }
  if (ops == 0) return {};
  return fmt::format("op '{}'{} runs by '{}', which is slow: the device's library has no other kernel for it", first,
                     ops > 1 ? fmt::format(" (and {} more)", ops - 1) : "", kernel);
}

}  // namespace plimsoll
