// A plan's steps and copies over time, as chrome://tracing and Perfetto read them: one process for what was predicted,
// one for what was measured, in each a row for compute (or for every core), a row for every engine that copies, and a
// counter of live bytes.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/by_id.h"
#include "plimsoll/ops.h"
#include "report/report.h"

namespace plimsoll {
namespace {

using nlohmann::json;

constexpr int kPredicted = 1, kMeasured = 2;  // processes
constexpr int kFirstCoreRow = 1000;           // behind the engines

class Trace {
 public:
  Trace(const Graph& graph, const Plan& plan) : graph_(graph), plan_(plan), live_(live_bytes(plan)) {}

  void add_predicted() {
    name_process(kPredicted, "predicted");
    const ById<StepIndex, StepRecord> steps = predicted_steps();
    add_steps(kPredicted, steps);
    for (const EngineSpan& span : plan_.predicted.timeline) {
      if (span.engine == message_row()) {
        add_messages(kPredicted, span.index, span.start_ms, span.end_ms);
        continue;
      }
      if (span.engine != 0) add_copy(kPredicted, span.engine, span.index, span.start_ms, span.end_ms);
    }
  }

  void add_measured(std::span<const StepRecord> records, std::span<const StepRecord> copies,
                    std::span<const StepRecord> messages) {
    for (int32_t i = 0; i < static_cast<int32_t>(messages.size()); ++i)
      add_messages(kMeasured, i, messages[i].start_ms, messages[i].end_ms);
    name_process(kMeasured, "measured");
    add_steps(kMeasured, ById<StepIndex, StepRecord>(std::vector<StepRecord>(records.begin(), records.end())));
    for (int32_t i = 0; i < static_cast<int32_t>(copies.size()); ++i) {
      const Move& move = plan_.moves[i];
      const int engine = 2 * move.tier + (move.direction == Move::Direction::out ? 1 : 2);
      add_copy(kMeasured, engine, i, copies[i].start_ms, copies[i].end_ms);
    }
  }

  std::string text() && { return json{{"traceEvents", std::move(events_)}, {"displayTimeUnit", "ms"}}.dump(); }

 private:
  bool is_side_by_side() const { return plan_.cores.inter_op > 1; }
  const Op& op_of(StepIndex step) const { return graph_.op(plan_.steps[step].op); }
  // Views take no time: they have no bar, and begin when what is before them ends.
  bool takes_time(StepIndex step) const { return !op_of(step).type->is_view; }
  // Steps side by side have a row for each core that one begins on.
  int row_of(const StepRecord& record) const { return is_side_by_side() ? kFirstCoreRow + record.core : 0; }

  void name_process(int process, std::string_view name) {
    events_.push_back(
        {{"ph", "M"}, {"pid", process}, {"tid", 0}, {"name", "process_name"}, {"args", {{"name", name}}}});
    if (!is_side_by_side()) name_row(process, 0, "compute");
    for (size_t t = 0; t < plan_.tiers.size(); ++t) {
      name_row(process, static_cast<int>(2 * t + 1), "to " + plan_.tiers[t].tier.name);
      name_row(process, static_cast<int>(2 * t + 2), "from " + plan_.tiers[t].tier.name);
    }
    if (!plan_.collectives.empty()) name_row(process, message_row(), "messages");
  }

  void name_row(int process, int row, std::string_view name) {
    events_.push_back(
        {{"ph", "M"}, {"pid", process}, {"tid", row}, {"name", "thread_name"}, {"args", {{"name", name}}}});
  }

  void add_steps(int process, const ById<StepIndex, StepRecord>& records) {
    int last_core = -1;
    for (const StepRecord& record : records) last_core = std::max(last_core, record.core);
    for (int core = 0; core <= last_core && is_side_by_side(); ++core) {
      name_row(process, kFirstCoreRow + core, fmt::format("core {}", core));
    }
    for (StepIndex step : records.ids()) {
      if (takes_time(step)) add_step(process, step, records[step]);
    }
    add_live_bytes(process, records);
  }

  void add_step(int process, StepIndex index, const StepRecord& record) {
    const Step& step = plan_.steps[index];
    const Op& op = graph_.op(step.op);
    const Work work = op.type->work ? op.type->work(graph_, op) : Work{};
    json args = {{"step", index},
                 {"op", op.type->name},
                 {"layer", op.layer},
                 {"kernel", step.kernel},
                 {"workspace_bytes", step.workspace.count},
                 {"recompute", step.recompute},
                 {"threads", step.threads},
                 {"gflop", work.flops / 1e9},
                 {"least_bytes", work.bytes}};
    if (record.together) args["share_of_one_launch"] = true;
    if (op.type->name.starts_with("Conv")) {
      const bool sums = op.type->name.ends_with("BackwardWeights");
      const Shape& weights = graph_.tensor(sums ? op.outputs[0] : op.inputs[1]).shape;
      const auto sides = static_cast<int64_t>(graph_.tensor(op.inputs[0]).shape.size()) - 2;  // weights may have groups
      args["taps"] = Shape(weights.end() - sides, weights.end());
      args["stride"] = op.attributes.integers("stride", Shape(sides, 1));
    }
    events_.push_back({{"ph", "X"},
                       {"pid", process},
                       {"tid", row_of(record)},
                       {"name", op.name},
                       {"cat", std::string(to_string(op.phase))},
                       {"ts", record.start_ms * 1000},
                       {"dur", std::max(0.0, record.end_ms - record.start_ms) * 1000},
                       {"args", std::move(args)}});
  }

  void add_copy(int process, int engine, int32_t index, double start_ms, double end_ms) {
    const Move& move = plan_.moves[index];
    const Tensor& tensor = graph_.tensor(move.tensor);
    events_.push_back({{"ph", "X"},
                       {"pid", process},
                       {"tid", engine},
                       {"name", tensor.name},
                       {"ts", start_ms * 1000},
                       {"dur", (end_ms - start_ms) * 1000},
                       {"args", {{"tier", move.tier}, {"bytes", tensor.bytes().count}}}});
  }

  int message_row() const { return 1 + 2 * static_cast<int>(plan_.tiers.size()); }

  void add_messages(int process, int32_t index, double start_ms, double end_ms) {
    const Collective& collective = plan_.collectives[index];
    Bytes bytes;
    for (const StepIndex step : collective.steps) bytes += graph_.tensor(op_of(step).outputs[0]).bytes();
    events_.push_back({{"ph", "X"},
                       {"pid", process},
                       {"tid", message_row()},
                       {"name", fmt::format("{} gradients", collective.steps.size())},
                       {"ts", start_ms * 1000},
                       {"dur", (end_ms - start_ms) * 1000},
                       {"args", {{"bytes", bytes.count}, {"before_step", collective.before}}}});
  }

  // At the start of every step.
  void add_live_bytes(int process, const ById<StepIndex, StepRecord>& records) {
    double now_ms = 0;
    for (StepIndex step : records.ids()) {
      if (takes_time(step)) now_ms = records[step].start_ms;
      events_.push_back({{"ph", "C"},
                         {"pid", process},
                         {"name", "live MiB"},
                         {"ts", now_ms * 1000},
                         {"args", {{"MiB", static_cast<double>(live_[step].count) / 1048576.0}}}});
      if (takes_time(step)) now_ms = records[step].end_ms;
    }
  }

  // On paper a step is on the first core that is free, of as many as steps run at once.
  ById<StepIndex, StepRecord> predicted_steps() const {
    ById<StepIndex, StepRecord> records(plan_.steps.size());
    std::vector<EngineSpan> spans = plan_.predicted.timeline;
    std::erase_if(spans, [](const EngineSpan& span) { return span.engine != 0; });
    std::stable_sort(spans.begin(), spans.end(),
                     [](const EngineSpan& a, const EngineSpan& b) { return a.start_ms < b.start_ms; });
    std::vector<double> free_from(std::max(plan_.cores.inter_op, 1), 0);
    for (const EngineSpan& span : spans) {
      StepRecord& record = records[span.index];
      record = {span.start_ms, span.end_ms};
      if (!takes_time(span.index)) continue;
      constexpr double kRounding = 1e-9;
      auto core =
          std::find_if(free_from.begin(), free_from.end(), [&](double ms) { return ms <= span.start_ms + kRounding; });
      if (core == free_from.end()) core = std::min_element(free_from.begin(), free_from.end());
      record.core = static_cast<int32_t>(core - free_from.begin());
      *core = span.end_ms;
    }
    return records;
  }

  const Graph& graph_;
  const Plan& plan_;
  const ById<StepIndex, Bytes> live_;  // bytes that several stays share count once
  json events_ = json::array();
};

}  // namespace

std::string trace_json(const Graph& graph, const Plan& plan, std::span<const StepRecord> records,
                       std::span<const StepRecord> copies, std::span<const StepRecord> messages) {
  Trace trace(graph, plan);
  trace.add_predicted();
  if (!records.empty()) trace.add_measured(records, copies, messages);
  return std::move(trace).text();
}

}  // namespace plimsoll
