// Layouts and kernels: the search of layout_search.h for each family, and the rewriting of the graph by the cheapest.
#include <fmt/format.h>

#include <unordered_map>

#include "base/by_id.h"
#include "cost/signature.h"
#include "graph/topological_order.h"
#include "kernels/layout_search.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// Bytes of workspaces beyond what was asked for, where a family has no kernel with less.
Bytes excess(const LayoutAssignment& assignment, Bytes limit) {
  Bytes sum;
  for (const KernelSpec& kernel : assignment.kernels) {
    if (kernel.workspace > limit) sum += kernel.workspace - limit;
  }
  return sum;
}

LayoutAssignment cheapest_family(const Graph& graph, std::span<const OpId> order, KernelCandidates& candidates,
                                 const LayoutOptions& options) {
  std::vector<LayoutFamily> families = {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked};
  if (options.exact) families = {LayoutFamily::blocked, LayoutFamily::channels_last, LayoutFamily::plain};
  if (options.family) families = {*options.family};
  std::optional<LayoutAssignment> best;
  auto rank = [&](const LayoutAssignment& a) {
    return std::pair(excess(a, options.asked_limit), options.exact ? 0 : a.time_ms);
  };
  std::optional<Error> first_error;
  for (LayoutFamily family : families) {
    try {
      LayoutAssignment assignment = assign_layouts(graph, order, candidates, family, options);
      if (!best || rank(assignment) < rank(*best)) best = std::move(assignment);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      if (!first_error) first_error = error;
    }
    if (best && options.exact && excess(*best, options.asked_limit).count == 0) break;  // by rule: the first that can
  }
  if (!best) throw *first_error;
  return std::move(*best);
}

// Sets the layouts and appends the Reorder ops. Ids of tensors stay what they are: a tensor that the world outside
// wants in another layout than its producer makes becomes the result of the Reorder, and the producer gets a new one.
class Rewrite {
 public:
  Rewrite(Graph& graph, const LayoutAssignment& assignment) : graph_(graph), assignment_(assignment) {}

  void run(std::span<const OpId> order) {
    const ById<TensorId, std::optional<Layout>> outside = outside_layouts(graph_, assignment_.made);
    made_by_producer_.resize(outside.size());
    for (TensorId id : outside.ids()) {
      const Layout& made = assignment_.made[id];
      graph_.tensor(id).layout = made;
      made_by_producer_[id] = id;
      if (outside[id] && graph_.tensor(id).producer.valid() && !same_layout(*outside[id], made))
        hand_out(id, *outside[id]);
    }
    for (OpId id : order) {
      const KernelSpec& kernel = assignment_.kernels[id];
      for (size_t i = 0; i < kernel.inputs.size(); ++i) {
        const TensorId input = graph_.op(id).inputs[i];
        const TensorId wanted = in_layout(input, kernel.inputs[i], id);
        graph_.op(id).inputs[i] = wanted;
      }
    }
  }

 private:
  // Makes `id` the result, in layout `outside`, of a Reorder of what its producer makes.
  void hand_out(TensorId id, const Layout& outside) {
    const OpId producer = graph_.tensor(id).producer;
    const TensorId made = add_reorder(id, outside, producer, graph_.tensor(id).name + "/made");
    const OpId reorder = graph_.tensor(made).producer;
    graph_.tensor(made).layout = graph_.tensor(id).layout;
    graph_.tensor(id).layout = outside;
    for (TensorId& out : graph_.op(producer).outputs) {
      if (out == id) out = made;
    }
    graph_.op(reorder).inputs = {made};
    graph_.op(reorder).outputs = {id};
    graph_.tensor(made).producer = producer;
    graph_.tensor(id).producer = reorder;
    if (graph_.tensor(made).role == Role::output) graph_.tensor(made).role = Role::activation;
    made_by_producer_[id] = made;
  }

  TensorId in_layout(TensorId id, const Layout& wanted, OpId reader) {
    const TensorId made = made_by_producer_[id];
    if (same_layout(graph_.tensor(made).layout, wanted)) return made;
    if (same_layout(graph_.tensor(id).layout, wanted)) return id;
    const Phase phase = graph_.op(reader).phase;
    const Layout layout = wanted.is_plain() ? Layout{} : wanted;
    TensorId& copy = copies_[{made.index, layout.tag, phase}];
    if (!copy.valid()) {
      const std::string suffix = phase == Phase::forward ? "" : fmt::format("/{}", to_string(phase));
      copy = add_reorder(
          made, layout, reader,
          fmt::format("{}@{}{}", graph_.tensor(id).name, layout.tag.empty() ? "plain" : layout.tag, suffix));
    }
    return copy;
  }

  // A Reorder that belongs to op `owner`: its layer, its phase, its forward op.
  TensorId add_reorder(TensorId id, const Layout& to, OpId owner, std::string name) {
    std::string unique = name;
    for (int n = 2; graph_.find_tensor(unique).valid() || graph_.find_op(unique + "/reorder").valid(); ++n) {
      unique = fmt::format("{}/{}", name, n);
    }
    const Op& op = graph_.op(owner);
    const Role role = graph_.tensor(id).role;
    const Phase phase = op.phase;
    const OpId forward = op.forward;
    const OpId reorder =
        graph_.add_op("Reorder", unique + "/reorder", std::string(op.layer), {id}, {}, phase, {unique});
    graph_.op(reorder).forward = forward;
    const TensorId out = graph_.output(reorder);
    graph_.tensor(out).layout = to;
    if (role == Role::gradient) graph_.tensor(out).role = Role::gradient;
    return out;
  }

  Graph& graph_;
  const LayoutAssignment& assignment_;
  ById<TensorId, TensorId> made_by_producer_;  // by tensor: itself, but for those that were handed out
  std::map<std::tuple<int32_t, std::string, Phase>, TensorId> copies_;
};

// The cheapest kernel of a Reorder within the limit, or the one with the least workspace.
KernelSpec reorder_kernel(const Graph& graph, const Op& op, const Device& device, const CostTable& costs,
                          LayoutFamily family, const LayoutOptions& options) {
  std::vector<KernelSpec> specs = device.kernels(graph, op, family);
  for (const KernelSpec& spec : specs) costs.note(graph, op, spec);
  if (auto pin = options.pinned_kernels.find(op.name); pin != options.pinned_kernels.end()) {
    for (KernelSpec& spec : specs) {
      if (spec.name == pin->second) return std::move(spec);
    }
  }
  auto rank = [&](const KernelSpec& spec) {
    const bool fits = spec.workspace <= std::min(options.workspace_limit, options.asked_limit);
    const double ms = options.exact ? 0 : costs.cost(graph, op, spec).time_ms;
    return fits ? std::tuple(0, Bytes{}, ms) : std::tuple(1, spec.workspace, ms);
  };
  return *std::min_element(specs.begin(), specs.end(),
                           [&](const KernelSpec& a, const KernelSpec& b) { return rank(a) < rank(b); });
}

}  // namespace

LayoutResult choose_layouts(Graph& graph, const Device& device, const CostTable& given_costs,
                            const LayoutOptions& options) {
  // By rule means by rates that are the same on every run, and nothing measured.
  const CostTable fixed_costs = given_costs.unmeasured();
  const CostTable& costs = options.exact ? fixed_costs : given_costs;
  for (const Op& op : graph.ops()) {
    if (op.type->name == "Reorder") {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("the layouts of graph '{}' are chosen already: it has the op '{}'", graph.name, op.name));
    }
  }
  const std::vector<OpId> order = topological_order(graph);
  std::optional<KernelCandidates> fresh;
  if (options.candidates == nullptr) fresh.emplace(graph, device, costs, options.batch_sizes, options.exact);
  KernelCandidates& candidates = fresh ? *fresh : *options.candidates;
  const LayoutAssignment assignment = cheapest_family(graph, order, candidates, options);
  const int32_t ops_before = graph.op_count();
  Rewrite(graph, assignment).run(order);

  LayoutResult result{.family = assignment.family, .kernels = {}, .estimated_ms = assignment.time_ms};
  for (const KernelSpec& kernel : assignment.kernels) result.kernels.push_back({kernel.name, kernel.workspace});
  std::unordered_map<std::string, KernelChoice> reorders;
  for (int32_t i = ops_before; i < graph.op_count(); ++i) {
    const Op& op = graph.op({i});
    const bool pinned = options.pinned_kernels.contains(op.name);
    const std::string signature = pinned ? op.name : op_signature(graph, op);
    auto known = reorders.find(signature);
    if (known == reorders.end()) {
      const KernelSpec spec = reorder_kernel(graph, op, device, costs, assignment.family, options);
      known = reorders.emplace(signature, KernelChoice{spec.name, spec.workspace}).first;
    }
    result.kernels.push_back(known->second);
  }
  check(graph);
  return result;
}

}  // namespace plimsoll
