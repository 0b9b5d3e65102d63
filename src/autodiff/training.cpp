#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <set>

#include "autodiff/backward.h"
#include "autodiff/optimizers.h"
#include "autodiff/update_rules.h"
#include "base/names.h"
#include "plimsoll/autodiff.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

State& state_of(Graph& graph, TensorId before) {
  for (State& state : graph.states) {
    if (state.before == before) return state;
  }
  throw Error(ErrorCode::invalid_input, fmt::format("'{}' is no state of the graph", graph.tensor(before).name));
}

TensorId hyperparameter(Graph& graph, std::string_view name, DType dtype, const Shape& shape = {}) {
  const TensorId there = graph.find_tensor(name);
  if (!there.valid()) return graph.add_source(std::string(name), shape, dtype, Role::hyperparameter);
  const Tensor& t = graph.tensor(there);
  if (t.producer.valid() || t.shape != shape || t.dtype != dtype) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("'{}' must be {} from outside", name,
                            shape.empty() ? fmt::format("a {} scalar", to_string(dtype))
                                          : fmt::format("{} of {}", to_string(shape), to_string(dtype))));
  }
  return there;
}

void add_output(Graph& graph, TensorId id) {
  if (!id.valid()) return;
  graph.tensor(id).role = Role::output;
  if (std::find(graph.outputs.begin(), graph.outputs.end(), id) == graph.outputs.end()) graph.outputs.push_back(id);
}

// Ranks draw what one process draws for the whole batch: the number of a rank's part follows the seed (base/random.h).
void draw_by_part(Graph& graph) {
  const TensorId seed = graph.find_tensor("seed");
  if (seed.valid() && graph.tensor(seed).role == Role::hyperparameter) graph.tensor(seed).shape = {2};
}

// Running statistics: what the last op of a chain leaves is what the next step finds.
void pair_statistics(Graph& graph) {
  for (const Op& op : graph.ops()) {
    if (op.type->state_outputs.empty()) continue;
    for (const InPlace& pair : op.type->in_place(graph, op)) {
      if (!pair.required) continue;
      const TensorId before = op.inputs.at(pair.input);
      const TensorId after = op.outputs.at(pair.output);
      for (State& state : graph.states) {
        if (state.after == before) state.after = after;
      }
    }
  }
}

// The layer of the op that made a tensor, for ops that stand beside it.
std::string layer_of(const Graph& graph, TensorId id) {
  const OpId producer = graph.tensor(id).producer;
  return producer.valid() ? graph.op(producer).layer : graph.tensor(id).name;
}

// What ranks have each of its own, running statistics of its part of the batch, becomes the first rank's on all of them.
void share_statistics(Graph& graph, int ranks, TensorId scale) {
  for (State& state : graph.states) {
    const Tensor left = graph.tensor(state.after);  // a copy: the tensor list grows below
    if (left.role != Role::statistic || state.after == state.before) continue;
    if (graph.op(left.producer).type->name == "SyncBatchNormForward") continue;  // the same on all of them already
    const std::string& name = graph.tensor(state.before).name;
    std::vector<TensorId> inputs = {state.after};
    Attributes attributes{{"ranks", int64_t{ranks}}};
    if (scale.valid()) {
      inputs.push_back(scale);
      attributes.set("scaled", int64_t{1});
    }
    state.after = graph.output(graph.add_op("Broadcast", name + "/broadcast", layer_of(graph, state.after), inputs,
                                            attributes, Phase::update, {name + ".of_first_rank"}));
  }
}

// The parameters that an op reads, each once.
std::vector<TensorId> parameters_of(const Op& op, const std::map<TensorId, size_t>& objective_of) {
  std::vector<TensorId> result;
  for (TensorId input : op.inputs) {
    if (objective_of.contains(input) && std::find(result.begin(), result.end(), input) == result.end()) {
      result.push_back(input);
    }
  }
  return result;
}

std::map<TensorId, size_t> objective_of_parameters(const Network& network) {
  std::map<TensorId, size_t> objective_of;
  for (size_t i = 0; i < network.objectives.size(); ++i) {
    for (TensorId parameter : network.objectives[i].parameters) {
      if (objective_of.emplace(parameter, i).second) continue;
      throw Error(ErrorCode::invalid_input,
                  fmt::format("parameter '{}' is listed twice to be trained", network.graph.tensor(parameter).name));
    }
  }
  return objective_of;
}

// Takes the parameters that are not to be trained from the objectives. A block of a split layer goes with its whole.
void leave_frozen(Network& network, const std::vector<std::string>& patterns) {
  const auto name_of = [&](TensorId id) -> const std::string& {
    const Tensor& tensor = network.graph.tensor(id);
    return whole_name(tensor);
  };
  std::vector<std::string> names;
  for (const Objective& objective : network.objectives) {
    for (TensorId parameter : objective.parameters) names.push_back(name_of(parameter));
  }
  std::set<std::string> frozen;
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (const std::string& name : names) {
      if (fnmatch(pattern.c_str(), name.c_str(), 0) != 0) continue;
      frozen.insert(name);
      any = true;
    }
    if (any) continue;
    const std::string near = nearest_name(pattern, names);
    throw Error(ErrorCode::invalid_input,
                fmt::format("--freeze '{}': no parameter of {} has such a name; its parameters are called as '{}'",
                            pattern, network.graph.name, near.empty() ? names.at(0) : near));
  }
  for (Objective& objective : network.objectives)
    std::erase_if(objective.parameters, [&](TensorId id) { return frozen.contains(name_of(id)); });
  if (!frozen.empty() && std::all_of(network.objectives.begin(), network.objectives.end(),
                                     [](const Objective& o) { return o.parameters.empty(); })) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("--freeze: all {} parameters of {} are frozen, so there is nothing to train", names.size(),
                            network.graph.name));
  }
}

// A parameter whose gradient is there, and which nothing but its update will read any more.
struct ReadyUpdate {
  TensorId parameter, gradient;
};

// With several ranks the sum does not depend on whether the gradient is divided among them.
TensorId append_norm(Graph& graph, const ReadyUpdate& ready, int ranks) {
  const Tensor p = graph.tensor(ready.parameter);  // a copy: the tensor list grows below
  const std::string name = p.name + "/gradient_norm";
  const std::string layer = layer_of(graph, ready.gradient);
  const auto add = [&](std::string_view type, const std::string& op, TensorId input, const Attributes& attributes) {
    return graph.output(graph.add_op(type, op, layer, {input}, attributes, Phase::backward));
  };
  if (p.shard.is_shard()) {
    const TensorId sums = add("SquareSums", name + "/sums", ready.gradient, {});
    const Shape all{graph.tensor(sums).shape[0] * ranks};
    const TensorId gathered = add("AllGather", name + "/all_gather", sums, {{"ranks", int64_t{ranks}}, {"shape", all}});
    return add("NormOfSums", name, gathered, {});
  }
  Attributes attributes;
  if (ranks > 1) attributes.set("row_major", int64_t{1});
  return add("GradientNorm", name, ready.gradient, attributes);
}

// What the updates of a step share.
struct UpdateInputs {
  std::vector<TensorId> learning_rates;    // by group
  std::vector<OptimizerOptions> groups;    // the settings of each
  std::map<std::string, size_t> group_of;  // by parameter; where there are several
  TensorId step_number;
  TensorId accumulated, scale;  // where gradients are summed over batches; else invalid
};

UpdateInputs update_inputs(Graph& graph, const OptimizerOptions& options) {
  UpdateInputs inputs;
  if (options.groups.empty()) inputs.groups.push_back(options);
  for (const ParameterGroup& group : options.groups) {
    OptimizerOptions& settings = inputs.groups.emplace_back(options);
    settings.momentum = group.momentum;
    settings.nesterov = group.nesterov;
    settings.weight_decay = group.weight_decay;
    settings.beta1 = group.beta1;
    settings.beta2 = group.beta2;
    settings.epsilon = group.epsilon;
    for (const auto& [name, value] : group.settings) settings.settings[name] = value;
    check(settings);
    for (const std::string& name : group.parameters) {
      if (inputs.group_of.emplace(name, inputs.groups.size() - 1).second) continue;
      throw Error(ErrorCode::invalid_input, fmt::format("parameter '{}' belongs to two groups of the optimizer", name));
    }
  }
  Shape rate;
  const bool by_rule = goes_by_rule(inputs.groups[0]);
  if (!options.groups.empty() && !by_rule) rate = {options.name == "sgd" ? SgdSettings::kCount : AdamSettings::kCount};
  for (size_t i = 0; i < inputs.groups.size(); ++i)
    inputs.learning_rates.push_back(hyperparameter(graph, learning_rate_name(i), DType::f32, rate));
  const bool sums = options.accumulate > 1;
  if (options.name != "sgd" && !by_rule)
    inputs.step_number = hyperparameter(graph, sums ? "update_number" : "step_number", DType::i64);
  if (!sums) return inputs;
  inputs.accumulated = hyperparameter(graph, "accumulated", DType::i64);
  inputs.scale = hyperparameter(graph, "gradient_scale", DType::f32);
  return inputs;
}

// A state beside a parameter, named after it. A block's state is a block of the whole's, a piece's a piece.
TensorId add_state_of(Graph& graph, const Tensor& parameter, std::string_view suffix, const Shape& shape,
                      double first = 0) {
  RowBlock block = parameter.block;
  Shard shard = parameter.shard;
  if (block.is_block()) block.whole += fmt::format(".{}", suffix);
  std::string name = block.is_block() ? block_name(block, whole_shape(parameter).at(0))
                                      : fmt::format("{}.{}", shard.is_shard() ? shard.whole : parameter.name, suffix);
  if (shard.is_shard()) {
    shard.whole = name;
    name = shard_name(shard);
  }
  const TensorId id = graph.add_source(name, shape, parameter.dtype, Role::optimizer_state, {.mean = first});
  graph.tensor(id).block = block;
  graph.tensor(id).shard = shard;
  return id;
}

// What a collective makes of what it has `sent`, once it is complete.
TensorId append_wait(Graph& graph, OpId collective, std::vector<TensorId> sent, const std::string& name,
                     const std::string& output) {
  sent.insert(sent.begin(), graph.output(collective));
  const std::string layer = graph.op(collective).layer;
  return graph.output(graph.add_op("Wait", name, layer, std::move(sent), {}, Phase::update, {output}));
}

// A piece that an update has changed goes to all ranks, where the parameter itself is whole.
void append_gather(Graph& graph, TensorId piece, TensorId changed, TensorId scale) {
  const Op taken = graph.op(graph.tensor(piece).producer);  // a copy: the op list grows below
  const TensorId parameter = taken.inputs[0];
  const std::string name = graph.tensor(parameter).name;
  std::vector<TensorId> inputs = {parameter, changed};
  Attributes attributes{{"ranks", graph.tensor(piece).shard.ranks}};
  if (scale.valid()) {
    inputs.push_back(scale);
    attributes.set("scaled", int64_t{1});
  }
  const OpId op = graph.add_op("AllGatherParameter", name + "/all_gather", taken.layer, inputs, attributes,
                               Phase::update, {name + ".next"});
  state_of(graph, parameter).after = graph.output(op);
  append_wait(graph, op, {inputs.begin() + 1, inputs.end()}, name + "/wait", name + "/wait:0");
}

// What an update leaves, where the parameter and its states are found by the next step.
void append_ends(Graph& graph, TensorId parameter, TensorId changed, TensorId scale) {
  const Tensor& p = graph.tensor(parameter);
  if (p.shard.is_shard() && p.producer.valid()) {
    append_gather(graph, parameter, changed, scale);
  } else {
    state_of(graph, parameter).after = changed;
  }
}

// By formulas: an op for each state, and one for the parameter, which has the settings as attributes.
void append_update_by_rule(Graph& graph, const UpdateTensors& tensors, const OptimizerOptions& options,
                           const std::string& layer) {
  const Tensor p = graph.tensor(tensors.parameter);  // a copy: the tensor list grows below
  const UpdateRule& rule = update_rule(options.name);
  const OptimizerSettings settings = all_settings(options);
  Formulas formulas(graph, tensors, settings, layer, [&](std::string_view suffix, const Shape& shape, double first) {
    return add_state_of(graph, p, suffix, shape, first);
  });
  Attributes attributes{{"optimizer", std::string(rule.name)}};
  for (const auto& [name, value] : settings) attributes.set(name, value);
  const TensorId changed = formulas.finish(rule.formulas(formulas), attributes);
  append_ends(graph, tensors.parameter, changed, tensors.scale);
  for (const auto& [before, after] : formulas.states()) state_of(graph, before).after = after;
}

// By the settings of the parameter's group.
void append_update_of_group(Graph& graph, const ReadyUpdate& ready, const UpdateInputs& inputs, TensorId scale) {
  size_t group = 0;
  if (!inputs.group_of.empty()) {
    const std::string& name = whole_name(graph.tensor(ready.parameter));
    const auto place = inputs.group_of.find(name);
    if (place == inputs.group_of.end()) {
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("parameter '{}' belongs to no group of the optimizer; add it to one, or freeze it", name));
    }
    group = place->second;
  }
  append_update(graph, ready.parameter, ready.gradient, inputs.groups[group], inputs.learning_rates[group],
                inputs.step_number, scale);
}

// Adds the gradient to the parameter's sum. Returns the sum with it.
TensorId append_sum(Graph& graph, const ReadyUpdate& ready, TensorId accumulated) {
  const Tensor p = graph.tensor(ready.parameter);  // a copy: the tensor list grows below
  const std::string layer = layer_of(graph, ready.gradient);
  const TensorId sum = add_state_of(graph, p, "gradient_sum", p.shape);
  // A parameter that is gathered need not be there for it.
  const TensorId like = is_gathered(graph, ready.parameter) ? ready.gradient : ready.parameter;
  const OpId op =
      graph.add_op("AccumulateGradient", p.name + "/accumulate", layer, {like, ready.gradient, sum, accumulated}, {},
                   Phase::update, {graph.tensor(sum).name + ".next"});
  state_of(graph, sum).after = graph.output(op);
  return graph.output(op);
}

// The mean of the ranks' gradients, or of their sums.
TensorId append_all_reduce(Graph& graph, const ReadyUpdate& ready, int ranks, TensorId scale) {
  const std::string name = graph.tensor(ready.parameter).name + "/all_reduce";
  const std::string layer = layer_of(graph, ready.gradient);
  std::vector<TensorId> inputs = {ready.parameter, ready.gradient};
  Attributes attributes{{"ranks", int64_t{ranks}}};
  if (scale.valid()) {
    inputs.push_back(scale);
    attributes.set("scaled", int64_t{1});
  }
  return graph.output(graph.add_op("AllReduce", name, layer, inputs, attributes, Phase::update));
}

// This rank's piece of the mean, and of what it is to update.
ReadyUpdate append_reduce_scatter(Graph& graph, const ReadyUpdate& ready, int ranks, TensorId scale) {
  const Tensor whole = graph.tensor(ready.parameter);  // a copy: the tensor list grows below
  const std::string layer = layer_of(graph, ready.gradient);
  ReadyUpdate result;
  if (is_gathered(graph, ready.parameter)) {
    result.parameter = piece_of(graph, ready.parameter);
  } else {
    const Shard shard{whole.name, whole.shape, ranks};
    result.parameter = graph.output(graph.add_op("TakeShard", whole.name + "/take_shard", layer, {ready.parameter},
                                                 {{"ranks", int64_t{ranks}}}, Phase::update, {shard_name(shard)}));
    graph.tensor(result.parameter).shard = shard;
    graph.tensor(result.parameter).block = whole.block;
  }
  std::vector<TensorId> inputs = {ready.gradient};
  Attributes attributes{{"ranks", int64_t{ranks}}};
  if (scale.valid()) {
    inputs.push_back(scale);
    attributes.set("scaled", int64_t{1});
  }
  const std::string name = whole.name + "/reduce_scatter";
  const OpId op = graph.add_op("ReduceScatter", name, layer, inputs, attributes, Phase::update);
  result.gradient = append_wait(graph, op, inputs, name + "/wait", name + "/wait:0");
  return result;
}

// What the update of a parameter reads: its gradient summed over batches and averaged over ranks, as far as it is.
ReadyUpdate append_reductions(Graph& graph, ReadyUpdate ready, const OptimizerOptions& options, TensorId accumulated,
                              TensorId scale) {
  const bool divided =
      options.ranks > 1 && (is_gathered(graph, ready.parameter) ||
                            is_divided(graph.tensor(ready.parameter).shape, options.sharding, options.ranks));
  if (divided && accumulated.valid() && options.sharding.stage >= 2 &&
      !options.sharding.whole_sums) {  // the sum is a piece, too
    ready = append_reduce_scatter(graph, ready, options.ranks, {});
    ready.gradient = append_sum(graph, ready, accumulated);
    return ready;
  }
  if (accumulated.valid()) ready.gradient = append_sum(graph, ready, accumulated);
  if (divided) return append_reduce_scatter(graph, ready, options.ranks, scale);
  if (options.ranks > 1) ready.gradient = append_all_reduce(graph, ready, options.ranks, scale);
  return ready;
}

// Of gradients that are not summed: scales all of an objective by one factor. Of sums: the updates do it. Returns the
// norm that they had together.
TensorId append_clip(Graph& graph, std::vector<ReadyUpdate>& ready, const std::vector<TensorId>& norms, double max_norm,
                     const std::string& name, TensorId& scale) {
  if (scale.valid()) {
    std::vector<TensorId> inputs = norms;
    inputs.push_back(scale);
    const OpId clip = graph.add_op("ClipScale", name, name, inputs, {{"max_norm", max_norm}, {"scaled", int64_t{1}}},
                                   Phase::backward);
    scale = graph.output(clip);
    return graph.output(clip, 1);
  }
  const OpId clip = graph.add_op("ClipScale", name, name, norms, {{"max_norm", max_norm}}, Phase::backward);
  for (ReadyUpdate& update : ready) {
    const std::string scaled = graph.tensor(update.parameter).name + "/clip";
    const std::string layer = layer_of(graph, update.gradient);
    update.gradient = graph.output(
        graph.add_op("ScaleGradient", scaled, layer, {update.gradient, graph.output(clip)}, {}, Phase::backward));
  }
  return graph.output(clip, 1);
}

// What waits until all gradients of one objective are there, since they are clipped together.
struct WaitingUpdates {
  std::vector<ReadyUpdate> updates;
  std::vector<TensorId> norms;
};

void append_clipped_updates(Network& network, std::vector<WaitingUpdates>& by_objective,
                            const OptimizerOptions& options, const UpdateInputs& inputs) {
  Graph& graph = network.graph;
  const bool one = by_objective.size() == 1;
  for (size_t i = 0; i < by_objective.size(); ++i) {
    auto& [updates, norms] = by_objective[i];
    if (updates.empty()) continue;
    const std::string name = one ? "clip_grad_norm" : fmt::format("clip_grad_norm.{}", i);
    TensorId scale = inputs.scale;
    const TensorId norm = append_clip(graph, updates, norms, options.clip_grad_norm, name, scale);
    if (one) network.gradient_norm = norm;
    add_output(graph, norm);
    for (const ReadyUpdate& ready : updates) append_update_of_group(graph, ready, inputs, scale);
  }
}

std::vector<TensorId> find_unreached(const std::map<TensorId, size_t>& objective_of,
                                     const std::vector<Backward>& backwards) {
  std::vector<TensorId> result;
  for (const auto& [parameter, objective] : objective_of) {
    if (!backwards[objective].gradient(parameter).valid()) result.push_back(parameter);
  }
  return result;
}

void check_that_gradients_reach_all(const Network& network, const std::map<TensorId, size_t>& objective_of,
                                    const std::vector<TensorId>& unreached) {
  if (unreached.empty()) return;
  const Graph& graph = network.graph;
  throw Error(ErrorCode::invalid_input,
              fmt::format("no gradient of the loss '{}' reaches the parameter '{}'",
                          graph.tensor(network.objectives[objective_of.at(unreached[0])].loss).name,
                          graph.tensor(unreached[0]).name));
}

// The same network, which leaves these parameters as they are.
Network without_training(Network network, const std::vector<TensorId>& parameters) {
  for (Objective& objective : network.objectives) {
    std::erase_if(objective.parameters,
                  [&](TensorId id) { return std::find(parameters.begin(), parameters.end(), id) != parameters.end(); });
  }
  return network;
}

}  // namespace

void check(const OptimizerOptions& options) {
  check_settings(options);
  if (options.accumulate < 1) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("--accumulate {}: an update takes at least 1 batch", options.accumulate));
  }
  if (options.sharding.stage < 0 || options.sharding.stage > kMostShardingStage) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("ZeRO has no stage {}; give 0 to {}", options.sharding.stage, kMostShardingStage));
  }
  if (options.sharding.stage > 0 && updates_whole_parameters(options)) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{} updates every parameter as a whole, which ZeRO (--zero {}) divides among the ranks; give "
                    "--zero 0, or another --optimizer",
                    options.name, options.sharding.stage));
  }
  if (!options.nesterov) return;
  if (options.name != "sgd") {
    throw Error(
        ErrorCode::invalid_input,
        fmt::format("--nesterov is a form of sgd's momentum, which {} does not have; leave it out", options.name));
  }
  if (options.momentum == 0)
    throw Error(ErrorCode::invalid_input, "--nesterov needs a --momentum above 0; raise it, or leave --nesterov out");
}

std::string learning_rate_name(size_t group) {
  return group == 0 ? "learning_rate" : fmt::format("learning_rate.{}", group);
}

void append_update(Graph& graph, TensorId parameter, TensorId gradient, const OptimizerOptions& options,
                   TensorId learning_rate, TensorId step_number, TensorId scale) {
  check(options);
  const Tensor p = graph.tensor(parameter);  // a copy: the tensor list grows below
  std::string layer = p.name;
  if (const OpId producer = graph.tensor(gradient).producer; producer.valid()) layer = graph.op(producer).layer;

  if (goes_by_rule(options)) {
    return append_update_by_rule(
        graph, {.parameter = parameter, .gradient = gradient, .learning_rate = learning_rate, .scale = scale}, options,
        layer);
  }
  std::vector<TensorId> states;
  const auto state = [&](std::string_view suffix) { states.push_back(add_state_of(graph, p, suffix, p.shape)); };
  std::string type;
  std::vector<TensorId> inputs = {parameter, gradient, learning_rate};
  Attributes attributes;
  if (options.name == "sgd") {
    type = "SgdUpdate";
    if (options.momentum != 0) state("momentum");
    attributes = {{"momentum", options.momentum},
                  {"weight_decay", options.weight_decay},
                  {"nesterov", int64_t{options.nesterov}}};
  } else {
    type = "AdamUpdate";
    inputs.push_back(step_number);
    state("exp_avg");
    state("exp_avg_sq");
    attributes = {{"beta1", options.beta1},
                  {"beta2", options.beta2},
                  {"epsilon", options.epsilon},
                  {"weight_decay", options.weight_decay},
                  {"decoupled", int64_t{options.name == "adamw"}}};
  }
  inputs.insert(inputs.end(), states.begin(), states.end());
  if (scale.valid()) {
    inputs.push_back(scale);
    attributes.set("scaled", int64_t{1});
  }
  std::vector<std::string> names = {p.name + ".next"};
  for (TensorId id : states) names.push_back(graph.tensor(id).name + ".next");
  const OpId op = graph.add_op(type, p.name + "/update", layer, inputs, attributes, Phase::update, names);
  append_ends(graph, parameter, graph.output(op, 0), scale);
  for (size_t i = 0; i < states.size(); ++i) state_of(graph, states[i]).after = graph.output(op, i + 1);
}

Network make_training_network(const Network& forward, const OptimizerOptions& options) {
  check(options);
  Network network = forward;
  leave_frozen(network, options.freeze);
  Graph& graph = network.graph;
  network.accumulate = options.accumulate;
  const UpdateInputs inputs = update_inputs(graph, options);
  if (options.ranks > 1) draw_by_part(graph);
  pair_statistics(graph);

  const std::map<TensorId, size_t> objective_of = objective_of_parameters(network);
  std::vector<Backward> backwards;
  // An update ends the old value, so it is created only when no op of any objective will need to read that any more.
  std::map<TensorId, int> visits_left;
  for (const Objective& objective : network.objectives) {
    add_output(graph, objective.loss);
    const Backward& backward = backwards.emplace_back(graph, std::span(&objective.loss, 1), objective.parameters);
    for (OpId op : backward.ops()) {
      for (TensorId parameter : parameters_of(graph.op(op), objective_of)) ++visits_left[parameter];
    }
  }
  add_output(graph, network.correct);

  std::vector<WaitingUpdates> waiting(network.objectives.size());  // where gradients are clipped
  for (size_t i = 0; i < network.objectives.size(); ++i) {
    if (network.objectives[i].parameters.empty()) continue;
    const TensorId loss = network.objectives[i].loss;
    backwards[i].accumulate(loss, append_seed(graph, loss));
    const std::span<const OpId> ops = backwards[i].ops();
    for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
      const std::vector<TensorId> parameters = parameters_of(graph.op(*op), objective_of);
      backwards[i].visit(*op);
      for (TensorId parameter : parameters) {
        if (--visits_left[parameter] > 0) continue;
        const size_t owner = objective_of.at(parameter);
        ReadyUpdate ready{parameter, backwards[owner].gradient(parameter)};
        if (!ready.gradient.valid()) continue;
        ready = append_reductions(graph, ready, options, inputs.accumulated, inputs.scale);
        if (options.clip_grad_norm == 0) {
          append_update_of_group(graph, ready, inputs, inputs.scale);
          continue;
        }
        waiting[owner].updates.push_back(ready);
        waiting[owner].norms.push_back(append_norm(graph, waiting[owner].updates.back(), options.ranks));
      }
    }
  }
  append_clipped_updates(network, waiting, options, inputs);
  if (options.ranks > 1) share_statistics(graph, options.ranks, inputs.scale);
  const std::vector<TensorId> unreached = find_unreached(objective_of, backwards);
  if (options.leave_unreached && !unreached.empty() && unreached.size() < objective_of.size())
    return make_training_network(without_training(forward, unreached), options);
  check_that_gradients_reach_all(network, objective_of, unreached);
  return network;
}

}  // namespace plimsoll
