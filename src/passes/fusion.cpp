// Fusion on a forward network. A pass finds chains of ops, each of which one op can do; `rewrite` makes the graph anew
// with that op in the place of the chain's last. A chain is fused only if what passes between its ops has no other
// reader, so every input of the fused op is there at the last op's place, and no cycle can come of it: an operand of a
// residual sum that depended on the batch norm in the chain would have to read the chain's inner tensor.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/by_id.h"
#include "base/clock.h"
#include "base/names.h"
#include "passes/embedding_gradient.h"
#include "passes/linear_cross_entropy.h"
#include "passes/passes.h"
#include "passes/pointwise.h"
#include "passes/pointwise_linear.h"
#include "passes/pooled_relu.h"
#include "passes/rebuilder.h"
#include "passes/rms_norm.h"
#include "passes/rotary.h"
#include "passes/slice_gradients.h"
#include "passes/split.h"
#include "passes/sync_batch_norm.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// One op instead of several.
struct Rewrite {
  std::vector<OpId> chain;  // in the order of the graph
  std::string type;
  std::vector<TensorId> inputs;  // of the graph before
  Attributes attributes;
  std::vector<TensorId>
      outputs;  // tensors of the graph before that the fused op's outputs take the place of, in its order
};

// What a pattern asks about a graph.
class View {
 public:
  explicit View(const Network& network)
      : graph(network.graph), uses_(graph.tensor_count(), 0), reader_(uses_.size()), kept_(uses_.size(), false) {
    for (int32_t i = 0; i < graph.op_count(); ++i) {
      for (TensorId id : graph.op({i}).inputs) {
        ++uses_[id];
        reader_[id] = {i};
      }
    }
    for (TensorId id : graph.outputs) kept_[id] = true;
    for (const State& state : graph.states) kept_[state.after] = true;
    for (const Objective& objective : network.objectives) kept_[objective.loss] = true;
  }

  // The op that reads `tensor` if nothing else does, once, and the tensor is wanted for nothing else; if it is of
  // `type`.
  OpId only_reader(TensorId tensor, std::string_view type) const {
    if (uses_[tensor] != 1 || kept_[tensor]) return {};
    const Op& reader = graph.op(reader_[tensor]);
    return reader.type->name == type && reader.phase == Phase::forward ? reader_[tensor] : OpId{};
  }
  bool is_read(TensorId tensor) const { return uses_[tensor] > 0; }

  const Graph& graph;

 private:
  ById<TensorId, int> uses_;
  ById<TensorId, OpId> reader_;
  ById<TensorId, bool> kept_;
};

bool is_activated(const Op& op) { return op.attributes.text("activation", "none") != "none"; }

// A batch norm to which a residual or an activation may be added: its other outputs serve the backward pass alone.
bool is_open_batch_norm(const View& view, const Op& op) {
  if (op.type->name != "BatchNormForward" || op.phase != Phase::forward || is_activated(op) || op.inputs.size() != 5)
    return false;
  return std::none_of(op.outputs.begin() + 1, op.outputs.end(), [&](TensorId id) { return view.is_read(id); });
}

// The chain's first op with the last one's result for its own, and what follows: "relu" when `relu` is an op.
Rewrite extend(const Graph& graph, std::vector<OpId> chain, bool relu) {
  const Op& first = graph.op(chain.front());
  Rewrite rewrite{chain, first.type->name, first.inputs, first.attributes, first.outputs};
  rewrite.outputs[0] = graph.op(chain.back()).outputs[0];
  if (relu) rewrite.attributes.set("activation", std::string("relu"));
  return rewrite;
}

// BatchNorm -> Add -> ReLU, or without the ReLU.
std::optional<Rewrite> batch_norm_add_relu(const View& view, OpId id) {
  const Graph& graph = view.graph;
  const Op& norm = graph.op(id);
  if (!is_open_batch_norm(view, norm)) return {};
  const OpId add_id = view.only_reader(norm.outputs[0], "Add");
  if (!add_id.valid()) return {};
  const Op& add = graph.op(add_id);
  if (add.inputs.size() != 2 || is_activated(add)) return {};
  const TensorId residual = add.inputs[add.inputs[0] == norm.outputs[0] ? 1 : 0];
  const OpId relu = view.only_reader(add.outputs[0], "ReluForward");
  std::vector<OpId> chain{id, add_id};
  if (relu.valid()) chain.push_back(relu);
  Rewrite rewrite = extend(graph, chain, relu.valid());
  rewrite.inputs.push_back(residual);
  return rewrite;
}

std::optional<Rewrite> batch_norm_relu(const View& view, OpId id) {
  if (!is_open_batch_norm(view, view.graph.op(id))) return {};
  const OpId relu = view.only_reader(view.graph.op(id).outputs[0], "ReluForward");
  if (!relu.valid()) return {};
  return extend(view.graph, {id, relu}, true);
}

std::optional<Rewrite> op_relu(const View& view, OpId id, std::string_view type) {
  const Op& op = view.graph.op(id);
  if (op.type->name != type || op.phase != Phase::forward || is_activated(op)) return {};
  const OpId relu = view.only_reader(op.outputs[0], "ReluForward");
  if (!relu.valid()) return {};
  return extend(view.graph, {id, relu}, true);
}

std::optional<Rewrite> conv_relu(const View& view, OpId id) {
  if (auto rewrite = op_relu(view, id, "ConvForward")) return rewrite;
  return op_relu(view, id, "FullyConnectedForward");
}

std::optional<Rewrite> add_relu(const View& view, OpId id) { return op_relu(view, id, "Add"); }

struct FusionPass {
  std::string_view name;
  std::optional<Rewrite> (*match)(const View&, OpId first);
};

constexpr FusionPass kFusionPasses[] = {
    {"fuse_batch_norm_add_relu", batch_norm_add_relu},
    {"fuse_batch_norm_relu", batch_norm_relu},
    {"fuse_conv_relu", conv_relu},
    {"fuse_add_relu", add_relu},
};

// Matches that share no op, the earlier op in the graph first.
std::vector<Rewrite> find_rewrites(const Network& network, const FusionPass& pass) {
  const Graph& graph = network.graph;
  const View view(network);
  ById<OpId, bool> taken(graph.op_count(), false);
  auto is_taken = [&](OpId id) { return taken[id]; };
  std::vector<Rewrite> rewrites;
  for (int32_t i = 0; i < graph.op_count(); ++i) {
    if (is_taken({i})) continue;
    std::optional<Rewrite> rewrite = pass.match(view, {i});
    if (!rewrite || std::any_of(rewrite->chain.begin(), rewrite->chain.end(), is_taken)) continue;
    for (OpId id : rewrite->chain) taken[id] = true;
    rewrites.push_back(std::move(*rewrite));
  }
  return rewrites;
}

// "bn1+relu1"; a name that several ops of the chain share stands once.
std::string joined_layer(const Graph& graph, const std::vector<OpId>& chain) {
  std::string joined, last;
  for (OpId id : chain) {
    const std::string& layer = graph.op(id).layer;
    if (layer.empty() || layer == last) continue;
    joined += (joined.empty() ? "" : "+") + layer;
    last = layer;
  }
  return joined;
}

// The op of `rewrite` in the place of the chain's last.
void fuse(Rebuilder& rebuilder, const Graph& before, const Rewrite& rewrite) {
  const std::string layer = joined_layer(before, rewrite.chain);
  std::string name = layer + "/forward";
  for (int i = 2; rebuilder.is_taken(name); ++i) name = fmt::format("{}/forward.{}", layer, i);
  rebuilder.replace(rewrite.chain, rewrite.type, name, layer, rebuilder.map(rewrite.inputs), rewrite.attributes,
                    rewrite.outputs);
}

int fuse_all(Network& network, const FusionPass& pass) {
  const std::vector<Rewrite> rewrites = find_rewrites(network, pass);
  std::vector<std::vector<OpId>> chains;
  for (const Rewrite& rewrite : rewrites) chains.push_back(rewrite.chain);
  replace_ops(network, chains,
              [&](Rebuilder& rebuilder, const Graph& before, size_t i) { fuse(rebuilder, before, rewrites[i]); });
  return static_cast<int>(rewrites.size());
}

constexpr std::string_view kSplitPass = "split_fully_connected";
constexpr std::string_view kPointwisePass = "fuse_pointwise";

// `action` changes the network and returns how many rewrites it made.
template <class Action>
PassReport run_pass(Network& network, std::string_view name, const Action& action) {
  const Stopwatch watch;
  const int rewrites = action();
  if (rewrites > 0) {
    try {
      check(network.graph);
    } catch (const Error& error) {
      throw Error(ErrorCode::internal, fmt::format("after pass '{}': {}", name, error.what()));
    }
  }
  return {std::string(name), rewrites, watch.ms()};
}

}  // namespace

std::vector<std::string_view> fusion_pass_names() {
  std::vector<std::string_view> names;
  for (const FusionPass& pass : kFusionPasses) names.push_back(pass.name);
  names.push_back(kRmsNormPass);
  names.push_back(kRotaryPass);
  names.push_back(kLinearLossPass);
  names.push_back(kPointwisePass);
  names.push_back(kPointwiseLinearPass);
  names.push_back(kSplitPass);
  names.push_back(kSparseEmbeddingPass);
  names.push_back(kSliceGradientsPass);
  names.push_back(kPooledReluPass);
  return names;
}

std::vector<PassReport> run_fusion_passes(Network& network, const FusionOptions& options) {
  const std::vector<std::string_view> names = fusion_pass_names();
  for (const std::string& off : options.off) {
    if (std::find(names.begin(), names.end(), off) != names.end()) continue;
    throw Error(ErrorCode::invalid_input, unknown_name("fusion pass", off, {names.begin(), names.end()}));
  }
  auto is_on = [&](std::string_view name) {
    return std::find(options.off.begin(), options.off.end(), name) == options.off.end();
  };
  std::vector<PassReport> reports;
  for (const FusionPass& pass : kFusionPasses) {
    if (is_on(pass.name)) reports.push_back(run_pass(network, pass.name, [&] { return fuse_all(network, pass); }));
  }
  // Before pointwise ops are fused.
  if (is_on(kRmsNormPass)) {
    reports.push_back(run_pass(network, kRmsNormPass, [&] { return fuse_rms_norm(network); }));
  }
  if (is_on(kRotaryPass)) {
    reports.push_back(run_pass(network, kRotaryPass, [&] { return fuse_rotary(network); }));
  }
  if (is_on(kLinearLossPass)) {
    reports.push_back(run_pass(network, kLinearLossPass, [&] { return fuse_linear_cross_entropy(network); }));
  }
  if (is_on(kPointwisePass))
    reports.push_back(run_pass(network, kPointwisePass, [&] { return fuse_pointwise(network, Phase::forward); }));
  if (is_on(kPointwiseLinearPass)) {
    reports.push_back(run_pass(network, kPointwiseLinearPass, [&] { return fuse_pointwise_linear(network, options); }));
  }
  if (is_on(kSplitPass)) {  // last: the blocks take a fused activation with them
    reports.push_back(run_pass(network, kSplitPass, [&] { return split_fully_connected(network, options); }));
  }
  return reports;
}

FusionOptions fusion_for(const OptimizerOptions& optimizer, FusionOptions fusion) {
  if (updates_whole_parameters(optimizer)) fusion.off.emplace_back(kSplitPass);
  return fusion;
}

std::vector<PassReport> run_rank_passes(Network& network, const OptimizerOptions& options) {
  if (options.ranks < 2 || !options.sync_batch_norm) return {};
  return {run_pass(network, "sync_batch_norm", [&] { return synchronise_batch_norm(network, options.ranks); })};
}

std::vector<PassReport> run_training_passes(Network& training, const FusionOptions& options) {
  auto is_on = [&](std::string_view name) {
    return std::find(options.off.begin(), options.off.end(), name) == options.off.end();
  };
  std::vector<PassReport> reports;
  if (is_on(kLinearLossPass)) {
    reports.push_back(run_pass(training, "fuse_linear_cross_entropy_training",
                               [&] { return fuse_linear_cross_entropy_training(training); }));
  }
  if (is_on(kSparseEmbeddingPass)) {  // before additions are fused
    reports.push_back(
        run_pass(training, kSparseEmbeddingPass, [&] { return keep_embedding_gradients_sparse(training); }));
  }
  if (is_on(kSliceGradientsPass)) {
    reports.push_back(run_pass(training, kSliceGradientsPass, [&] { return join_slice_gradients(training); }));
  }
  if (is_on(kPooledReluPass)) {
    reports.push_back(run_pass(training, kPooledReluPass, [&] { return pass_relu_gradients_before_pools(training); }));
  }
  if (is_on(kPointwisePass)) {
    reports.push_back(
        run_pass(training, "fuse_pointwise_backward", [&] { return fuse_pointwise(training, Phase::backward); }));
  }
  return reports;
}

bool runs_wide_layers_by_rows(const Op& op) { return op.type->name.starts_with("PointwiseLinear"); }

}  // namespace plimsoll
