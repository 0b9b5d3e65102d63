// Plans as JSON: tensors and ops by name, a step, a stay, a move on a line each, so that two plans can be compared as
// text.
#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "base/json_reader.h"
#include "plan/cores_json.h"
#include "plimsoll/plan.h"
#include "plimsoll/verify.h"

namespace plimsoll {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
constexpr std::string_view kFormat = "plimsoll plan";
constexpr int64_t kVersion =
    2;  // 1 had no times of steps, and said nothing of the cores but how many steps run at once

std::string other_version(int64_t mine) {
  return fmt::format("version {} was expected; a plan of another version must be made again, by `plimsoll plan --save`",
                     mine);
}

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

ordered_json step_json(const Step& step, const Graph& graph) {
  ordered_json j = {{"op", graph.op(step.op).name}, {"kernel", step.kernel}};
  if (step.threads != 0) j["threads"] = step.threads;
  if (step.recompute) j["recompute"] = true;
  if (step.workspace.count != 0) j["workspace"] = step.workspace.count;
  if (step.affinity != Affinity::close) j["affinity"] = to_string(step.affinity);
  if (step.time_ms != 0) j["time_ms"] = step.time_ms;
  if (step.estimated) j["estimated"] = true;
  return j;
}

ordered_json stay_json(const Stay& stay, const Graph& graph) {
  ordered_json j;
  if (!stay.is_workspace()) j["tensor"] = graph.tensor(stay.tensor).name;
  j["offset"] = stay.offset.count;
  j["bytes"] = stay.bytes.count;
  j["first"] = stay.first;
  j["last"] = stay.last;
  return j;
}

ordered_json move_json(const Move& move, const Graph& graph) {
  return {{"direction", move.direction == Move::Direction::out ? "out" : "in"},
          {"tensor", graph.tensor(move.tensor).name},
          {"tier", move.tier},
          {"slot", move.slot.count},
          {"after", move.after},
          {"before", move.before}};
}

ordered_json home_json(const Home& home, const Graph& graph) {
  return {{"tensor", graph.tensor(home.tensor).name}, {"tier", home.tier}, {"slot", home.slot.count}};
}

ordered_json tier_json(const TierUse& use, const Graph&) {
  return {{"name", use.tier.name},
          {"capacity", use.tier.capacity.count},
          {"out_gb_per_s", use.tier.out_gb_per_s},
          {"in_gb_per_s", use.tier.in_gb_per_s},
          {"latency_us", use.tier.latency_us},
          {"compute_share", use.tier.compute_share},
          {"used", use.used.count}};
}

ordered_json link_json(const LinkInfo& link) {
  return {{"ranks", link.ranks},
          {"latency_us", link.latency_us},
          {"gb_per_s", link.gb_per_s},
          {"compute_share", link.compute_share}};
}

ordered_json feeding_json(const Feeding& feeding, const Graph& graph) {
  ordered_json inputs = ordered_json::array();
  for (const FedInput& input : feeding.inputs) {
    ordered_json j = {{"tensor", graph.tensor(input.tensor).name}, {"bytes", input.bytes.count}};
    if (feeding.second_buffer) j["offset"] = input.offset.count;
    inputs.push_back(std::move(j));
  }
  return {{"second_buffer", feeding.second_buffer},
          {"latency_us", feeding.latency_us},
          {"gb_per_s", feeding.gb_per_s},
          {"arena_gb_per_s", feeding.arena_gb_per_s},
          {"inputs", std::move(inputs)}};
}

ordered_json collective_json(const Collective& collective, const Graph&) {
  return {{"steps", collective.steps}, {"before", collective.before}, {"time_ms", collective.time_ms}};
}

ordered_json prediction_json(const Prediction& p) {
  ordered_json timeline = ordered_json::array();
  for (const EngineSpan& span : p.timeline) timeline.push_back({span.engine, span.index, span.start_ms, span.end_ms});
  ordered_json j = {{"peak", p.peak.count},
                    {"peak_step", p.peak_step},
                    {"step_time_ms", p.step_time_ms},
                    {"estimated_share", p.estimated_share},
                    {"lower_bound_ms", p.lower_bound_ms},
                    {"offload", p.offload.count},
                    {"prefetch", p.prefetch.count},
                    {"copy_ms", p.copy_ms},
                    {"stall_ms", p.stall_ms},
                    {"recompute_steps", p.recompute_steps},
                    {"recompute_ms", p.recompute_ms}};
  if (p.communication_ms != 0) {
    j["communication_ms"] = p.communication_ms;
    j["communication_stall_ms"] = p.communication_stall_ms;
  }
  if (p.wall_time_ms != 0) {
    j["feed_ms"] = p.feed_ms;
    j["wall_time_ms"] = p.wall_time_ms;
  }
  j["timeline"] = std::move(timeline);
  return j;
}

template <class Items, class MakeJson>
std::string lines(const Items& items, const Graph& graph, const MakeJson& make) {
  std::string text = "[";
  for (const auto& item : items) text += (text.size() > 1 ? ",\n  " : "\n  ") + make(item, graph).dump();
  return text + "\n ]";
}

// Reading.
class PlanReader {
 public:
  PlanReader(const JsonReader& file, const Graph& graph) : file_(file), graph_(graph) {}

  Plan read() {
    file_.only({"format", "version",     "graph",        "device",    "policy", "placement",  "budget",
                "arena",  "lower_bound", "plan_time_ms", "predicted", "cores",  "steps",      "stays",
                "moves",  "homes",       "tiers",        "feeding",   "link",   "collectives"});
    if (file_.member("format").text() != kFormat) file_.member("format").expected(fmt::format("\"{}\"", kFormat));
    if (file_.member("version").integer(1) != kVersion) file_.member("version").fail(other_version(kVersion));
    read_graph(file_.member("graph"));
    const JsonReader device = file_.member("device");
    device.only({"name", "key", "threads"});
    plan_.device_name = device.member("name").text();
    plan_.device_key = device.member("key").text();
    if (device.has("threads"))
      plan_.device_threads = static_cast<int>(device.member("threads").integer(0, kMostThreads));
    plan_.policy = file_.member("policy").text();
    plan_.placement = file_.member("placement").text();
    plan_.budget = bytes(file_.member("budget"));
    plan_.arena = bytes(file_.member("arena"));
    plan_.lower_bound = bytes(file_.member("lower_bound"));
    plan_.plan_time_ms = file_.member("plan_time_ms").number();
    const JsonReader steps = file_.member("steps"), stays = file_.member("stays"), moves = file_.member("moves");
    const JsonReader homes = file_.member("homes"), tiers = file_.member("tiers");
    for (size_t i = 0; i < steps.size(); ++i) plan_.steps.push_back(step(steps.item(i)));
    for (size_t i = 0; i < stays.size(); ++i) plan_.stays.push_back(stay(stays.item(i)));
    for (size_t i = 0; i < tiers.size(); ++i) plan_.tiers.push_back(tier(tiers.item(i)));
    for (size_t i = 0; i < moves.size(); ++i) plan_.moves.push_back(move(moves.item(i)));
    for (size_t i = 0; i < homes.size(); ++i) plan_.homes.push_back(home(homes.item(i)));
    if (file_.has("feeding")) read_feeding(file_.member("feeding"));
    if (file_.has("link")) read_link(file_.member("link"));
    if (file_.has("cores")) read_cores(file_.member("cores"));
    if (file_.has("collectives")) {
      const JsonReader collectives = file_.member("collectives");
      for (size_t i = 0; i < collectives.size(); ++i) plan_.collectives.push_back(collective(collectives.item(i)));
    }
    read_prediction(file_.member("predicted"));
    return std::move(plan_);
  }

 private:
  static Bytes bytes(const JsonReader& r) { return {r.integer(0)}; }
  static int32_t small(const JsonReader& r, int32_t least = 0) {
    return static_cast<int32_t>(r.integer(least, std::numeric_limits<int32_t>::max()));
  }
  StepIndex step_index(const JsonReader& r, StepIndex least, StepIndex most) const {
    return static_cast<StepIndex>(r.integer(least, most));
  }
  StepIndex last_step() const { return std::max<StepIndex>(static_cast<StepIndex>(plan_.steps.size()) - 1, 0); }

  void read_graph(const JsonReader& r) {
    r.only({"name", "fingerprint"});
    plan_.graph_name = r.member("name").text();
    const JsonReader print = r.member("fingerprint");
    const std::string& text = print.text();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), plan_.graph_fingerprint, 16);
    if (error != std::errc() || end != text.data() + text.size() || text.size() != 16)
      print.expected("16 hexadecimal digits");
    if (const uint64_t mine = fingerprint(graph_); plan_.graph_fingerprint != mine) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("the plan was made for graph '{}' (fingerprint {}), not for '{}' (fingerprint {})",
                              plan_.graph_name, text, graph_.name, hex(mine)));
    }
  }

  TensorId tensor(const JsonReader& r) const {
    const TensorId id = graph_.find_tensor(r.text());
    if (!id.valid()) r.fail(fmt::format("graph '{}' has no tensor '{}'", graph_.name, r.text()));
    return id;
  }

  OpId op(const std::string& name, const JsonReader& r) const {
    const OpId id = graph_.find_op(name);
    if (!id.valid()) r.fail(fmt::format("graph '{}' has no op '{}'", graph_.name, name));
    return id;
  }
  OpId op(const JsonReader& r) const { return op(r.text(), r); }

  void read_cores(const JsonReader& r) {
    NamePairs conflicts;
    plan_.cores = cores_from_json(r, conflicts);
    for (const auto& [a, b] : conflicts) plan_.cores.conflicts.emplace_back(op(a, r), op(b, r));
    for (const StepIndex step : plan_.cores.order) {
      if (step > last_step())
        r.member("order").fail(fmt::format("the plan has steps 0 to {}, not {}", last_step(), step));
    }
  }

  static std::string kernel(const JsonReader& r) {
    try {
      parts_of(r.text());
    } catch (const Error& error) {
      r.fail(error.what());
    }
    return r.text();
  }

  Step step(const JsonReader& r) const {
    r.only({"op", "kernel", "threads", "recompute", "workspace", "affinity", "time_ms", "estimated"});
    Step s;
    s.op = op(r.member("op"));
    s.kernel = kernel(r.member("kernel"));
    if (r.has("threads")) s.threads = small(r.member("threads"));
    if (r.has("recompute")) s.recompute = r.member("recompute").boolean();
    if (r.has("workspace")) s.workspace = bytes(r.member("workspace"));
    if (r.has("affinity")) s.affinity = affinity_from_json(r.member("affinity"));
    if (r.has("time_ms")) s.time_ms = r.member("time_ms").number();
    if (r.has("estimated")) s.estimated = r.member("estimated").boolean();
    return s;
  }

  Stay stay(const JsonReader& r) const {
    r.only({"tensor", "offset", "bytes", "first", "last"});
    Stay s;
    if (r.has("tensor")) s.tensor = tensor(r.member("tensor"));
    s.offset = bytes(r.member("offset"));
    s.bytes = bytes(r.member("bytes"));
    s.first = step_index(r.member("first"), 0, last_step());
    s.last = step_index(r.member("last"), s.first, last_step());
    return s;
  }

  Move move(const JsonReader& r) const {
    r.only({"direction", "tensor", "tier", "slot", "after", "before"});
    Move m;
    const JsonReader direction = r.member("direction");
    if (direction.text() != "out" && direction.text() != "in") direction.expected("\"out\" or \"in\"");
    m.direction = direction.text() == "out" ? Move::Direction::out : Move::Direction::in;
    m.tensor = tensor(r.member("tensor"));
    m.tier = small(r.member("tier"));
    m.slot = bytes(r.member("slot"));
    m.after = step_index(r.member("after"), -1, last_step());
    m.before = step_index(r.member("before"), m.after + 1, last_step() + 1);
    return m;
  }

  Home home(const JsonReader& r) const {
    r.only({"tensor", "tier", "slot"});
    return {.tensor = tensor(r.member("tensor")), .tier = small(r.member("tier")), .slot = bytes(r.member("slot"))};
  }

  static TierUse tier(const JsonReader& r) {
    r.only({"name", "capacity", "out_gb_per_s", "in_gb_per_s", "latency_us", "compute_share", "used"});
    return {.tier = {.name = r.member("name").text(),
                     .capacity = bytes(r.member("capacity")),
                     .out_gb_per_s = r.member("out_gb_per_s").number(),
                     .in_gb_per_s = r.member("in_gb_per_s").number(),
                     .latency_us = r.member("latency_us").number(),
                     .compute_share = r.member("compute_share").number()},
            .used = bytes(r.member("used"))};
  }

  void read_feeding(const JsonReader& r) {
    r.only({"inputs", "second_buffer", "latency_us", "gb_per_s", "arena_gb_per_s"});
    Feeding& feeding = plan_.feeding;
    feeding.second_buffer = r.member("second_buffer").boolean();
    feeding.latency_us = r.member("latency_us").number();
    feeding.gb_per_s = r.member("gb_per_s").number();
    feeding.arena_gb_per_s = r.member("arena_gb_per_s").number();
    const JsonReader inputs = r.member("inputs");
    for (size_t i = 0; i < inputs.size(); ++i) {
      const JsonReader input = inputs.item(i);
      if (feeding.second_buffer) {
        input.only({"tensor", "bytes", "offset"});
      } else {
        input.only({"tensor", "bytes"});
      }
      feeding.inputs.push_back({.tensor = tensor(input.member("tensor")),
                                .offset = feeding.second_buffer ? bytes(input.member("offset")) : 0_B,
                                .bytes = bytes(input.member("bytes"))});
    }
  }

  void read_link(const JsonReader& r) {
    r.only({"ranks", "latency_us", "gb_per_s", "compute_share"});
    plan_.link = {.ranks = small(r.member("ranks"), 1),
                  .latency_us = r.member("latency_us").number(),
                  .gb_per_s = r.member("gb_per_s").number(),
                  .compute_share = r.member("compute_share").number()};
  }

  Collective collective(const JsonReader& r) const {
    r.only({"steps", "before", "time_ms"});
    Collective c;
    const JsonReader steps = r.member("steps");
    for (size_t i = 0; i < steps.size(); ++i) c.steps.push_back(step_index(steps.item(i), 0, last_step()));
    c.before = step_index(r.member("before"), 0, last_step() + 1);
    c.time_ms = r.member("time_ms").number();
    return c;
  }

  void read_prediction(const JsonReader& r) {
    r.only({"peak", "peak_step", "step_time_ms", "estimated_share", "lower_bound_ms", "offload", "prefetch", "copy_ms",
            "stall_ms", "communication_ms", "communication_stall_ms", "recompute_steps", "recompute_ms", "feed_ms",
            "wall_time_ms", "timeline"});
    Prediction& p = plan_.predicted;
    p.peak = bytes(r.member("peak"));
    p.peak_step = step_index(r.member("peak_step"), 0, last_step());
    p.step_time_ms = r.member("step_time_ms").number();
    p.estimated_share = r.member("estimated_share").number();
    p.lower_bound_ms = r.member("lower_bound_ms").number();
    p.offload = bytes(r.member("offload"));
    p.prefetch = bytes(r.member("prefetch"));
    p.copy_ms = r.member("copy_ms").number();
    p.stall_ms = r.member("stall_ms").number();
    p.recompute_steps = small(r.member("recompute_steps"));
    p.recompute_ms = r.member("recompute_ms").number();
    if (r.has("communication_ms")) {
      p.communication_ms = r.member("communication_ms").number();
      p.communication_stall_ms = r.member("communication_stall_ms").number();
    }
    if (r.has("wall_time_ms")) {
      p.feed_ms = r.member("feed_ms").number();
      p.wall_time_ms = r.member("wall_time_ms").number();
    }
    const JsonReader timeline = r.member("timeline");
    for (size_t i = 0; i < timeline.size(); ++i) {
      const JsonReader span = timeline.item(i);
      if (span.size() != 4) span.fail("engine, index, start and end were expected");
      const int messages = 1 + 2 * static_cast<int>(plan_.tiers.size());
      const int engine = static_cast<int>(span.item(0).integer(0, messages));
      const size_t count = engine == 0          ? plan_.steps.size()
                           : engine == messages ? plan_.collectives.size()
                                                : plan_.moves.size();
      const int64_t index = span.item(1).integer(0, static_cast<int64_t>(count) - 1);
      p.timeline.push_back({engine, static_cast<int32_t>(index), span.item(2).number(), span.item(3).number()});
    }
  }

  const JsonReader& file_;
  const Graph& graph_;
  Plan plan_;
};

}  // namespace

std::string to_json(const Plan& plan, const Graph& graph) {
  auto text = [](std::string_view value) { return json(value).dump(); };
  std::string out = "{\n";
  out += fmt::format(" \"format\": {},\n \"version\": {},\n", text(kFormat), kVersion);
  out += fmt::format(" \"graph\": {{\"name\": {}, \"fingerprint\": {}}},\n", text(plan.graph_name),
                     text(hex(plan.graph_fingerprint)));
  out += fmt::format(" \"device\": {{\"name\": {}, \"key\": {}, \"threads\": {}}},\n", text(plan.device_name),
                     text(plan.device_key), plan.device_threads);
  out += fmt::format(" \"policy\": {},\n \"placement\": {},\n", text(plan.policy), text(plan.placement));
  out += fmt::format(" \"budget\": {},\n \"arena\": {},\n \"lower_bound\": {},\n", plan.budget.count, plan.arena.count,
                     plan.lower_bound.count);
  out += fmt::format(" \"plan_time_ms\": {},\n \"predicted\": {},\n", json(plan.plan_time_ms).dump(),
                     prediction_json(plan.predicted).dump());
  if (plan.cores != CoreSharing{}) {
    NamePairs conflicts;
    for (const auto& [a, b] : plan.cores.conflicts) conflicts.emplace_back(graph.op(a).name, graph.op(b).name);
    out += fmt::format(" \"cores\": {},\n", cores_to_json(plan.cores, conflicts).dump());
  }
  out += fmt::format(" \"steps\": {},\n", lines(plan.steps, graph, step_json));
  out += fmt::format(" \"stays\": {},\n", lines(plan.stays, graph, stay_json));
  out += fmt::format(" \"moves\": {},\n", lines(plan.moves, graph, move_json));
  out += fmt::format(" \"homes\": {},\n", lines(plan.homes, graph, home_json));
  if (plan.feeding != Feeding{}) out += fmt::format(" \"feeding\": {},\n", feeding_json(plan.feeding, graph).dump());
  if (plan.link != LinkInfo{}) out += fmt::format(" \"link\": {},\n", link_json(plan.link).dump());
  if (!plan.collectives.empty())
    out += fmt::format(" \"collectives\": {},\n", lines(plan.collectives, graph, collective_json));
  out += fmt::format(" \"tiers\": {}\n}}\n", lines(plan.tiers, graph, tier_json));
  return out;
}

Plan plan_from_json(std::string_view text, const Graph& graph) {
  const json document = parse_json(text);
  const JsonReader file(document);
  return PlanReader(file, graph).read();
}

}  // namespace plimsoll
