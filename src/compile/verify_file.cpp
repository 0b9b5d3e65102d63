#include "compile/verify_file.h"

#include <fmt/format.h>

#include <cmath>

#include "device/divided.h"
#include "kernels/layout.h"
#include "passes/embedding_gradient.h"
#include "passes/passes.h"
#include "passes/pooled_relu.h"
#include "plan/policy.h"
#include "plan/simulate.h"
#include "plimsoll/cost_graph.h"
#include "plimsoll/network_file.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

using Rule = Violation::Rule;

constexpr double kTolerance = 1e-9;  // of a number: what another machine may round otherwise

class FileChecker {
 public:
  FileChecker(const SavedPlan& saved, size_t limit)
      : saved_(saved), graph_(saved.graph), plan_(saved.plan), limit_(limit) {}

  std::vector<Violation> run() {
    found_ = verify(graph_, plan_, limit_);
    if (found_.empty()) {
      check_extent();
      check_prediction();
    }
    check_request();
    check_graph();
    if (saved_.edited) report(Rule::edited, "the file is not as it was saved: its fingerprint is that of another text");
    return std::move(found_);
  }

 private:
  void report(Rule rule, std::string message) {
    if (found_.size() < limit_) found_.push_back({rule, -1, std::move(message)});
  }

  // --- the plan ---

  // What is taken of the arena and the tiers is what stays and slots need, no more.
  void check_extent() {
    Bytes arena;
    for (const Stay& stay : plan_.stays) arena = std::max(arena, stay.offset + stay.bytes);
    if (plan_.feeding.second_buffer) {
      for (const FedInput& input : plan_.feeding.inputs) arena = std::max(arena, input.offset + input.bytes);
    }
    if (plan_.arena != arena)
      report(Rule::wrong_size,
             fmt::format("the arena has {} bytes; its stays end at {}", plan_.arena.count, arena.count));
    std::vector<Bytes> used(plan_.tiers.size());
    auto use = [&](int tier, TensorId tensor, Bytes slot) {
      Bytes& end = used[tier];
      end = std::max(end, slot + graph_.tensor(tensor).bytes());
    };
    for (const Move& move : plan_.moves) use(move.tier, move.tensor, move.slot);
    for (const Home& home : plan_.homes) use(home.tier, home.tensor, home.slot);
    for (size_t t = 0; t < used.size(); ++t) {
      if (plan_.tiers[t].used <= align_up(used[t], kSlotAlignment)) continue;
      report(Rule::out_of_tier, fmt::format("tier '{}': {} bytes are used; its slots end at {}",
                                            plan_.tiers[t].tier.name, plan_.tiers[t].used.count, used[t].count));
    }
  }

  void check_prediction() {
    if (plan_.lower_bound == 0_B && least_bytes(graph_, !plan_.tiers.empty()) > 0_B)
      report(Rule::wrong_bound, "lower_bound is missing");
    if (plan_.predicted.timeline.size() != plan_.steps.size() + plan_.moves.size() + plan_.collectives.size()) {
      return report(Rule::wrong_prediction, "the plan predicts nothing");
    }
    const Prediction found = simulate(graph_, plan_);
    const Prediction& claimed = plan_.predicted;
    const std::tuple<std::string_view, double, double> numbers[] = {
        {"step_time_ms", claimed.step_time_ms, found.step_time_ms},
        {"estimated_share", claimed.estimated_share, found.estimated_share},
        {"lower_bound_ms", claimed.lower_bound_ms, found.lower_bound_ms},
        {"copy_ms", claimed.copy_ms, found.copy_ms},
        {"stall_ms", claimed.stall_ms, found.stall_ms},
        {"recompute_ms", claimed.recompute_ms, found.recompute_ms},
        {"feed_ms", claimed.feed_ms, found.feed_ms},
        {"wall_time_ms", claimed.wall_time_ms, found.wall_time_ms}};
    for (const auto& [field, said, is] : numbers) {
      if (!same(said, is))
        report(Rule::wrong_prediction, fmt::format("{} is said to be {}; run on paper it is {}", field, said, is));
    }
    for (size_t i = 0; i < found.timeline.size(); ++i) {
      const EngineSpan &said = claimed.timeline[i], &is = found.timeline[i];
      if (said.engine == is.engine && said.index == is.index && same(said.start_ms, is.start_ms) &&
          same(said.end_ms, is.end_ms))
        continue;
      report(Rule::wrong_prediction,
             fmt::format(
                 "bar {} of the timeline is said to be {} on engine {} from {} to {} ms; run on paper it is {} on "
                 "engine {} from {} to {} ms",
                 i, said.index, said.engine, said.start_ms, said.end_ms, is.index, is.engine, is.start_ms, is.end_ms));
    }
  }

  static bool same(double a, double b) {
    return std::isfinite(a) && std::isfinite(b) && std::abs(a - b) <= kTolerance * std::max(std::abs(a), std::abs(b));
  }

  // --- what was asked for ---

  void wrong_request(std::string_view field, const std::string& why) {
    report(Rule::wrong_request, fmt::format("request.{}: {}", field, why));
  }

  void check_request() {
    const PlanRequest& request = saved_.request;
    if (plan_.graph_name != graph_.name) {
      report(Rule::wrong_graph,
             fmt::format("the plan is for graph '{}', the file has '{}'", plan_.graph_name, graph_.name));
    }
    if (plan_.budget != request.memory) {
      wrong_request("memory", fmt::format("{} bytes were asked for, the plan's budget is {}", request.memory.count,
                                          plan_.budget.count));
    }
    if (request.inter_op > 0 && plan_.cores.inter_op != request.inter_op) {
      wrong_request("inter_op", fmt::format("{} were asked for, the plan runs {} steps at once", request.inter_op,
                                            plan_.cores.inter_op));
    }
    const std::tuple<std::string_view, std::string_view, std::optional<Bytes>> capacities[] = {
        {"host_memory", "host", request.host_memory},
        {"spill_size", "disk", request.spill_size},
        {"peer_size", "peer", request.peer_size},
        {"remote_memory", "remote", request.remote_memory}};
    for (const auto& [field, tier, capacity] : capacities) {
      if (!capacity) continue;
      const auto use =
          std::find_if(plan_.tiers.begin(), plan_.tiers.end(), [&](const TierUse& u) { return u.tier.name == tier; });
      if (use == plan_.tiers.end()) continue;  // the plan does without it
      if (use->tier.capacity != *capacity) {
        wrong_request(field, fmt::format("{} bytes were asked for, tier '{}' has {}", capacity->count, tier,
                                         use->tier.capacity.count));
      }
    }
  }

  // The graph against that of what was asked for, before layouts. The papers' layer graphs are never run, and not
  // judged.
  void check_graph() {
    const PlanRequest& request = saved_.request;
    const bool layers = std::all_of(graph_.ops().begin(), graph_.ops().end(),
                                    [](const Op& op) { return op.type->name.starts_with("Layer"); });
    if (layers != request.paper_layers) return wrong_request("lowered", "the graph is another than was asked for");
    if (layers) return;
    if (holds_only_costs(graph_)) return check_costs();
    Graph expected;
    try {
      Network network = build_model(request.model, request.input);
      // What a device has no kernels for was not fused for it.
      FusionOptions fused;
      for (const auto& [type, pass] : {std::pair{"LinearCrossEntropy", kLinearLossPass},
                                       {"PointwiseLinear", kPointwiseLinearPass},
                                       {"Rotary", kRotaryPass},
                                       {"RmsNorm", kRmsNormPass}}) {
        const auto is_one = [&](const Op& op) { return op.type->name.starts_with(type); };
        if (std::ranges::none_of(graph_.ops(), is_one)) fused.off.emplace_back(pass);
      }
      FusionOptions step{.off = {"fuse_pointwise"}};
      if (std::ranges::none_of(graph_.ops(), reads_lookups)) step.off.emplace_back(kSparseEmbeddingPass);
      if (std::ranges::none_of(graph_.ops(), [&](const Op& op) { return is_behind_relu_gradient(graph_, op); }))
        step.off.emplace_back(kPooledReluPass);
      run_fusion_passes(network, fusion_for(request.optimizer, fused));
      run_rank_passes(network, request.optimizer);
      divide_parameters(network, request.optimizer.sharding, request.optimizer.ranks);
      network = make_training_network(network, request.optimizer);
      gather_again(network);
      run_training_passes(network, step);
      expected = std::move(network.graph);
    } catch (const Error& error) {
      return wrong_request("model", error.what());
    }
    for (TensorId id : expected.inputs) check_input(expected.tensor(id));
    for (const Op& op : expected.ops()) check_op(expected, op);
    for (const Tensor& tensor : expected.tensors()) check_tensor(tensor);
    if (expected.states.size() != graph_.states.size()) {
      wrong_request("optimizer", fmt::format("the graph has {} states; by what was asked for there are {}",
                                             graph_.states.size(), expected.states.size()));
    }
  }

  // A graph of costs is that of its file, all of it.
  void check_costs() {
    try {
      const auto file = network_file_of(saved_.request.model);
      if (!file) return wrong_request("model", fmt::format("'{}' is no graph of costs", saved_.request.model));
      const CostGraph costs = read_cost_graph(*file);
      const CostGraph asked = costs.batch > 0 ? read_cost_graph(*file, saved_.request.input.batch) : costs;
      if (fingerprint(asked.graph) != fingerprint(graph_)) wrong_request("model", "the graph is not that of its file");
    } catch (const Error& error) {
      wrong_request("model", error.what());
    }
  }

  // The images: batch, channels, height and width.
  void check_input(const Tensor& expected) {
    constexpr std::string_view kFields[] = {"batch", "channels", "height", "width"};
    const TensorId id = graph_.find_tensor(expected.name);
    if (!id.valid() || expected.shape.size() != std::size(kFields)) return;
    const Shape& shape = graph_.tensor(id).shape;
    for (size_t d = 0; d < shape.size() && d < expected.shape.size(); ++d) {
      if (shape[d] == expected.shape[d]) continue;
      wrong_request(kFields[d], fmt::format("'{}' has {} in the graph; by what was asked for {}", expected.name,
                                            shape[d], expected.shape[d]));
    }
  }

  void check_op(const Graph& expected_in, const Op& expected) {
    const OpId id = graph_.find_op(expected.name);
    const bool update = expected.phase == Phase::update;
    if (!id.valid())
      return wrong_request(update ? "optimizer" : "model", fmt::format("the graph has no op '{}'", expected.name));
    const Op& op = graph_.op(id);
    if (op.type != expected.type) {
      return wrong_request(update ? "optimizer" : "model",
                           fmt::format("op '{}' is a {} in the graph; by what was asked for a {}", op.name,
                                       op.type->name, expected.type->name));
    }
    for (const auto& [name, value] : expected.attributes.items()) {
      const auto& items = op.attributes.items();
      const auto it = items.find(name);
      if (it != items.end() && it->second == value) continue;
      wrong_request(update ? "optimizer." + name : "model",
                    fmt::format("op '{}' has another '{}' in the graph than was asked for", op.name, name));
    }
    if (op.outputs.size() != expected.outputs.size())
      return wrong_request("model", fmt::format("op '{}' has {} outputs in the graph", op.name, op.outputs.size()));
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (graph_.tensor(op.outputs[o]).shape == expected_in.tensor(expected.outputs[o]).shape) continue;
      wrong_request(
          "model",
          fmt::format(
              "op '{}' makes '{}' of another shape in the graph than was asked for (batch, classes or the model "
              "differ)",
              op.name, graph_.tensor(op.outputs[o]).name));
    }
  }

  void check_tensor(const Tensor& expected) {
    const TensorId id = graph_.find_tensor(expected.name);
    if (!id.valid()) return wrong_request("model", fmt::format("the graph has no tensor '{}'", expected.name));
    const Tensor& tensor = graph_.tensor(id);
    if (tensor.shape == expected.shape && tensor.dtype == expected.dtype && tensor.role == expected.role &&
        tensor.init == expected.init && tensor.block == expected.block && tensor.shard == expected.shard) {
      return;
    }
    wrong_request(
        "model",
        fmt::format("tensor '{}' is another in the graph than was asked for (batch, classes or the model differ)",
                    tensor.name));
  }

  const SavedPlan& saved_;
  const Graph& graph_;
  const Plan& plan_;
  const size_t limit_;
  std::vector<Violation> found_;
};

}  // namespace

std::vector<Violation> verify_file(const SavedPlan& saved, size_t limit) { return FileChecker(saved, limit).run(); }

std::vector<Violation> verify_workspaces(const Graph& graph, const Plan& plan, const Device& device, size_t limit) {
  std::vector<Violation> found;
  for (StepIndex s = 0; s < static_cast<StepIndex>(plan.steps.size()) && found.size() < limit; ++s) {
    const Step& step = plan.steps[s];
    const Op& op = graph.op(step.op);
    if (op.type->is_view || op.type->is_collective || op.type->is_of_rank) continue;  // a rank has none for these
    auto wrong = [&](const std::string& why) {
      found.push_back({Violation::Rule::wrong_workspace, s, fmt::format("step {} ('{}'): {}", s, op.name, why)});
    };
    try {
      const Bytes needed = make_kernel(device, graph, op, step.kernel, step.threads)->workspace();
      if (needed > step.workspace) {
        wrong(fmt::format("kernel '{}' needs a workspace of {} bytes, the plan has {}", step.kernel, needed.count,
                          step.workspace.count));
      }
    } catch (const Error& error) {
      wrong(error.what());
    }
  }
  return found;
}

}  // namespace plimsoll
