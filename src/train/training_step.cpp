#include "plimsoll/training_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "autodiff/update_rules.h"
#include "base/by_id.h"
#include "base/clock.h"
#include "base/names.h"
#include "plimsoll/communicator.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr int64_t kChunk = 1 << 20;  // of a checkpoint
constexpr const char* kChannelsLast = "acdb";

template <class T>
void write_scalar(Executor& executor, TensorId id, T value) {
  if (id.valid()) executor.write(id, std::as_bytes(std::span(&value, 1)));
}
float read_scalar(const Executor& executor, TensorId id) {
  float value = 0;
  executor.read(id, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

// The settings that follow a learning rate in its input, as its updates were compiled: the rate alone where it is a scalar.
std::vector<float> compiled_settings(const Graph& graph, TensorId rate) {
  for (const Op& op : graph.ops()) {
    if (graph.tensor(rate).shape.empty() || std::ranges::find(op.inputs, rate) == op.inputs.end()) continue;
    return graph.tensor(rate).shape[0] == SgdSettings::kCount ? SgdSettings(op.attributes).values()
                                                              : AdamSettings(op.attributes).values();
  }
  return std::vector<float>(element_count(graph.tensor(rate).shape));
}

// Of an update by formulas, the optimizer and the settings that it was compiled with; nothing where it is another.
void read_rule(const Graph& graph, TensorId rate, GroupUpdate& group) {
  const std::string &name = graph.tensor(rate).name, factors = factor_name(name, "");
  const auto is_of_group = [&](TensorId id) {
    return id == rate || (graph.tensor(id).role == Role::hyperparameter && graph.tensor(id).name.starts_with(factors));
  };
  for (const Op& op : graph.ops()) {
    if (!op.attributes.has("optimizer") || std::ranges::none_of(op.inputs, is_of_group)) continue;
    group.rule = &update_rule(op.attributes.text("optimizer"));
    for (const auto& [name, usual] : group.rule->usual)
      group.settings.emplace(name, op.attributes.real(std::string(name), usual));
    return;
  }
}

void expect_size(const Graph& graph, TensorId id, size_t given, const char* what) {
  const int64_t wanted = id.valid() ? element_count(graph.tensor(id).shape) : 0;
  if (static_cast<int64_t>(given) == wanted) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("a batch of '{}' has {} {}, not {}", graph.name, wanted, what, given));
}

// Where a tensor lies between training steps: tier (-1: the arena), place and layout.
using RestingPlace = std::tuple<int, int64_t, Layout>;
ById<TensorId, RestingPlace> resting_places(const Graph& graph, const Plan& plan) {
  ById<TensorId, RestingPlace> places(graph.tensor_count());
  for (const Stay& stay : plan.stays) {
    if (!stay.is_workspace() && stay.first == 0)
      places[stay.tensor] = {-1, stay.offset.count, graph.tensor(stay.tensor).layout};
  }
  for (const Home& home : plan.homes)
    places[home.tensor] = {home.tier, home.slot.count, graph.tensor(home.tensor).layout};
  return places;
}

}  // namespace

void StateTensor::expect(DType wanted) const {
  if (dtype == wanted) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' has elements of type {}, not {}", name, to_string(dtype), to_string(wanted)));
}

TrainingStep::TrainingStep(Program program, const Device& device, const ExecuteOptions& options, Memory memory,
                           Bytes arena)
    : device_(device), options_(options), program_(std::make_unique<Program>(std::move(program))) {
  const Plan& plan = program_->plan;
  if (!memory.arena) memory.arena = device.take_arena(std::max(plan.arena, arena));
  executor_ = std::make_unique<Executor>(program_->network.graph, plan, device, options_, std::move(memory));
  find_tensors();
}

TrainingStep::~TrainingStep() = default;

void TrainingStep::find_tensors() {
  const Graph& graph = program_->network.graph;
  learning_rates_.clear();
  for (size_t i = 0; graph.find_tensor(learning_rate_name(i)).valid(); ++i)
    learning_rates_.push_back(graph.find_tensor(learning_rate_name(i)));
  const bool set_before = groups_.size() == learning_rates_.size();
  for (size_t i = 0; i < learning_rates_.size() && !set_before; ++i) {
    GroupUpdate& group = groups_.emplace_back();
    read_rule(graph, learning_rates_[i], group);
    if (group.rule != nullptr) continue;
    group.values = compiled_settings(graph, learning_rates_[i]);
    group.is_empty = std::ranges::none_of(
        graph.ops(), [&](const Op& op) { return std::ranges::find(op.inputs, learning_rates_[i]) != op.inputs.end(); });
  }
  told_.resize(groups_.size());
  factors_.clear();
  for (size_t i = 0; i < groups_.size(); ++i) {
    std::vector<TensorId>& places = factors_.emplace_back();
    if (groups_[i].rule == nullptr) continue;
    for (const auto& [name, value] : groups_[i].rule->factors(groups_[i].settings, {}))
      places.push_back(graph.find_tensor(factor_name(graph.tensor(learning_rates_[i]).name, name)));
  }
  step_number_ = graph.find_tensor("step_number");
  seed_tensor_ = graph.find_tensor("seed");
  count_tensor_ = graph.find_tensor("accumulated");
  scale_ = graph.find_tensor("gradient_scale");
  update_number_ = graph.find_tensor("update_number");
  wholes_ = whole_states(graph);
  states_.clear();
  for (const WholeState& state : wholes_) states_.push_back({state.name, state.shape, state.dtype, state.role});
}

void TrainingStep::initialize(uint64_t seed) {
  executor_->initialize(seed);
  start_at(0, seed);
}

void TrainingStep::start_at(int64_t step, uint64_t seed, int64_t accumulated) {
  number_ = step;
  seed_ = seed;
  accumulated_ = accumulated;
}

void TrainingStep::go_on_from(const TrainingStep& other) {
  start_at(other.number_, other.seed_, other.accumulated_);
  for (size_t i = 0; i < other.told_.size(); ++i) {
    if (other.told_[i] != nullptr && other.told_[i] != told_[i]) tell(i, other.told_[i]);
  }
}

void TrainingStep::feed(const Batch& batch) {
  if (!batch.ids.empty()) return feed_tokens(batch.ids, batch.labels);
  if (batch.channels_last) return feed_channels_last(batch);
  feed(batch.data, program_->network.labels.valid() ? batch.labels : std::span<const int32_t>());
}

bool TrainingStep::takes_channels_last() const {
  const Network& network = program_->network;
  return network.data.valid() && network.graph.tensor(network.data).layout.tag == kChannelsLast;
}

void TrainingStep::feed_channels_last(const Batch& batch) {
  const Network& network = program_->network;
  expect_size(network.graph, network.data, batch.data.size(), "elements");
  executor_->write(network.data, Layout{kChannelsLast}, std::as_bytes(batch.data));
  if (!network.labels.valid()) return;
  expect_size(network.graph, network.labels, batch.labels.size(), "labels");
  executor_->write(network.labels, std::as_bytes(batch.labels));
}

void TrainingStep::feed_next(const Batch& batch) {
  const Network& network = program_->network;
  const bool tokens = !batch.ids.empty();
  const size_t elements = tokens ? batch.ids.size() : batch.data.size();
  expect_size(network.graph, network.data, elements, tokens ? "tokens" : "elements");
  executor_->write_next(network.data, batch.channels_last ? Layout{kChannelsLast} : Layout{},
                        tokens ? std::as_bytes(batch.ids) : std::as_bytes(batch.data));
  if (!network.labels.valid()) return;
  expect_size(network.graph, network.labels, batch.labels.size(), "labels");
  executor_->write_next(network.labels, Layout{}, std::as_bytes(batch.labels));
}

void TrainingStep::feed_next(std::string_view input, std::span<const std::byte> elements) {
  executor_->write_next(find_input(input), Layout{}, elements);
}

void TrainingStep::feed(std::span<const float> data, std::span<const int32_t> labels) {
  const Network& network = program_->network;
  expect_size(network.graph, network.data, data.size(), "elements");
  expect_size(network.graph, network.labels, labels.size(), "labels");
  executor_->write(network.data, std::as_bytes(data));
  if (network.labels.valid()) executor_->write(network.labels, std::as_bytes(labels));
}

void TrainingStep::feed_tokens(std::span<const int32_t> ids, std::span<const int32_t> labels) {
  const Network& network = program_->network;
  expect_size(network.graph, network.data, ids.size(), "tokens");
  expect_size(network.graph, network.labels, labels.size(), "labels");
  executor_->write(network.data, std::as_bytes(ids));
  executor_->write(network.labels, std::as_bytes(labels));
}

void TrainingStep::feed(std::string_view input, std::span<const std::byte> elements) {
  executor_->write(find_input(input), elements);
}

const Tensor& TrainingStep::input(std::string_view name) const {
  return program_->network.graph.tensor(find_input(name));
}

void TrainingStep::feed_as_it_lies(std::string_view input, std::span<const std::byte> elements) {
  const TensorId id = find_input(input);
  executor_->write(id, program_->network.graph.tensor(id).layout, elements);
}

void TrainingStep::feed_next_as_it_lies(std::string_view input, std::span<const std::byte> elements) {
  const TensorId id = find_input(input);
  executor_->write_next(id, program_->network.graph.tensor(id).layout, elements);
}

std::byte* TrainingStep::place_of(std::string_view input) { return executor_->place_of(find_input(input)); }
std::byte* TrainingStep::next_place_of(std::string_view input) { return executor_->next_place_of(find_input(input)); }

StateTensor TrainingStep::output(std::string_view name) const {
  const Graph& graph = program_->network.graph;
  const TensorId id = find_tensor(graph.outputs, "output", name);
  const Tensor& tensor = graph.tensor(id);
  StateTensor result{.name = tensor.name, .shape = tensor.shape, .dtype = tensor.dtype};
  result.elements.resize(storage_bytes(tensor.shape, tensor.dtype, {}).count);
  executor_->read(id, result.elements);
  return result;
}

TensorId TrainingStep::find_tensor(std::span<const TensorId> among, std::string_view what,
                                   std::string_view name) const {
  std::vector<std::string> names;
  for (TensorId id : among) {
    const Tensor& tensor = program_->network.graph.tensor(id);
    if (tensor.name == name) return id;
    names.push_back(tensor.name);
  }
  throw Error(ErrorCode::invalid_input, unknown_name(what, name, names));
}

TensorId TrainingStep::find_input(std::string_view name) const {
  return find_tensor(program_->network.graph.inputs, "input", name);
}

double TrainingStep::run(double learning_rate, int64_t batches) {
  start(learning_rate, batches);
  return finish();
}

double TrainingStep::run(std::span<const double> learning_rates, int64_t batches) {
  start(learning_rates, batches);
  return finish();
}

void TrainingStep::start(double learning_rate, int64_t batches) {
  rates_.assign(learning_rates_.size(), learning_rate);
  start(rates_, batches);
}

void TrainingStep::start(std::span<const double> learning_rates, int64_t batches) {
  if (learning_rates.size() != learning_rates_.size()) {
    throw Error(ErrorCode::invalid_input, fmt::format("{} learning rates were given, for {} groups of the optimizer",
                                                      learning_rates.size(), learning_rates_.size()));
  }
  const int64_t most = program_->network.accumulate;
  const int64_t wanted = batches > 0 ? batches : most;
  updates_ = accumulated_ + 1 >= wanted;
  for (size_t i = 0; i < learning_rates.size(); ++i) {
    write_settings(i, learning_rates[i]);
  }
  write_scalar(*executor_, step_number_, number_ * most + accumulated_);  // no two batches draw alike
  write_scalar(*executor_, update_number_, number_);
  write_scalar(*executor_, count_tensor_, accumulated_);
  write_scalar(*executor_, scale_, updates_ ? 1 / static_cast<float>(accumulated_ + 1) : -1.0F);
  if (seed_tensor_.valid()) {
    const Communicator* ranks = device_.communicator();
    const std::array seed{static_cast<int64_t>(seed_), int64_t{ranks != nullptr ? ranks->rank() : 0}};
    const int64_t wanted = element_count(program_->network.graph.tensor(seed_tensor_).shape);
    executor_->write(seed_tensor_, std::as_bytes(std::span(seed).first(static_cast<size_t>(wanted))));
  }
  started_ = Clock::now();
  executor_->start_step();
}

// What is not the learning rate's follows it there, or is an input of its own.
void TrainingStep::write_settings(size_t i, double learning_rate) {
  GroupUpdate& group = groups_[i];
  if (group.rule == nullptr) {
    group.values[0] = static_cast<float>(learning_rate);
    executor_->write(learning_rates_[i], std::as_bytes(std::span(group.values)));
    return;
  }
  const Factors factors =
      group.rule->factors(group.settings, {learning_rate, number_ + 1 - group.behind, group.mu_product});
  for (size_t k = 0; k < factors.size(); ++k)
    write_scalar(*executor_, factors_[i][k], static_cast<float>(factors[k].second));
}

double TrainingStep::finish() {
  executor_->finish_step();
  const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  accumulated_ = updates_ ? 0 : accumulated_ + 1;
  number_ += updates_ ? 1 : 0;
  const std::optional<double> ms = executor_->device_ms();
  return ms ? *ms / 1000 : seconds;
}

void TrainingStep::set_group(size_t group, const ParameterGroup& settings) {
  tell(group, std::make_shared<const ParameterGroup>(settings));
}

void TrainingStep::tell(size_t group, std::shared_ptr<const ParameterGroup> told) {
  if (group < groups_.size() && groups_[group].is_empty) {
    told_[group] = std::move(told);
    return;
  }
  const ParameterGroup& settings = *told;
  if (group >= groups_.size() || (groups_[group].rule == nullptr && groups_[group].values.size() == 1)) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("the step was compiled without a group {} of its own settings", group));
  }
  Attributes attributes{{"weight_decay", settings.weight_decay}, {"momentum", settings.momentum}};
  GroupUpdate& update = groups_[group];
  if (update.rule != nullptr) {
    set_rule(update, settings);
  } else if (update.values.size() == SgdSettings::kCount) {
    update.values = SgdSettings(attributes).values();
  } else {
    attributes.set("beta1", settings.beta1);
    attributes.set("beta2", settings.beta2);
    attributes.set("epsilon", settings.epsilon);
    update.values = AdamSettings(attributes).values();
  }
  told_[group] = std::move(told);
}

void TrainingStep::set_rule(GroupUpdate& update, const ParameterGroup& settings) {
  const OptimizerSettings now = all_settings({.name = std::string(update.rule->name),
                                              .momentum = settings.momentum,
                                              .nesterov = settings.nesterov,
                                              .weight_decay = settings.weight_decay,
                                              .beta1 = settings.beta1,
                                              .beta2 = settings.beta2,
                                              .epsilon = settings.epsilon,
                                              .settings = settings.settings});
  if (!same_form(now, update.settings)) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("{} was compiled with other formulas than these settings ask for", update.rule->name));
  }
  update.settings = now;
  update.behind = settings.behind;
  update.mu_product = settings.mu_product;
}

double TrainingStep::loss() const {
  double sum = 0;
  for (const Objective& objective : program_->network.objectives) sum += read_scalar(*executor_, objective.loss);
  return sum;
}

std::optional<double> TrainingStep::correct() const {
  if (!program_->network.correct.valid()) return std::nullopt;
  return read_scalar(*executor_, program_->network.correct);
}

std::optional<double> TrainingStep::gradient_norm() const {
  if (!program_->network.gradient_norm.valid()) return std::nullopt;
  return read_scalar(*executor_, program_->network.gradient_norm);
}

size_t TrainingStep::find_state(std::string_view name) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].name == name) return i;
    names.push_back(states_[i].name);
  }
  throw Error(ErrorCode::invalid_input, unknown_name("state", name, names));
}

StateTensor TrainingStep::state(std::string_view name) const {
  const size_t i = find_state(name);
  StateTensor result{.name = states_[i].name, .shape = states_[i].shape, .dtype = states_[i].dtype};
  result.elements.resize(states_[i].bytes().count);
  read_state(i, {}, result.elements);
  return result;
}

TrainingStep::OwnStates TrainingStep::own_states() const {
  OwnStates states;
  for (const WholeState& whole : wholes_) {
    for (const TensorId part : whole.parts) {
      const Tensor& tensor = program_->network.graph.tensor(part);
      states.emplace_back(storage_bytes(tensor.shape, tensor.dtype, {}).count);
      executor_->read(part, states.back());
    }
  }
  return states;
}

void TrainingStep::set_own_states(const OwnStates& states) {
  size_t i = 0;
  for (const WholeState& whole : wholes_) {
    for (const TensorId part : whole.parts) executor_->write(part, states.at(i++));
  }
}

std::span<std::byte> TrainingStep::state_bytes(std::string_view name) {
  const std::vector<TensorId>& parts = wholes_[find_state(name)].parts;
  if (parts.size() != 1 || program_->network.graph.tensor(parts[0]).shard.is_shard()) return {};
  return executor_->bytes_at_rest(parts[0]);
}

void TrainingStep::set_state(const StateTensor& state) {
  const size_t i = find_state(state.name);
  const CheckpointTensor& mine = states_[i];
  if (state.shape != mine.shape || state.dtype != mine.dtype ||
      static_cast<int64_t>(state.elements.size()) != mine.bytes().count) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("state '{}' is {} {} with {} bytes, not {} {} with {}", mine.name, to_string(mine.shape),
                            to_string(mine.dtype), mine.bytes().count, to_string(state.shape), to_string(state.dtype),
                            state.elements.size()));
  }
  write_state(i, {}, state.elements);
}

void TrainingStep::expect_within(size_t i, Bytes offset, size_t bytes) const {
  const int64_t size = states_[i].bytes().count;
  if (offset.count >= 0 && offset.count <= size && static_cast<int64_t>(bytes) <= size - offset.count) return;
  throw Error(ErrorCode::invalid_input, fmt::format("state '{}' has {} bytes, not bytes {} to {}", states_[i].name,
                                                    size, offset.count, offset.count + static_cast<int64_t>(bytes)));
}

void TrainingStep::set_state(std::string_view name, Bytes offset, std::span<const std::byte> elements) {
  const size_t i = find_state(name);
  expect_within(i, offset, elements.size());
  write_state(i, offset, elements);
}

void TrainingStep::read_state(std::string_view name, Bytes offset, std::span<std::byte> into) const {
  const size_t i = find_state(name);
  expect_within(i, offset, into.size());
  read_state(i, offset, into);
}

// Calls action(tensor, first element in it, bytes) for each part of state number `i` that has some of `bytes`.
template <class Byte, class Action>
void TrainingStep::for_each_part(size_t i, Bytes offset, std::span<Byte> bytes, const Action& action) const {
  int64_t at = offset.count;
  for (TensorId part : wholes_[i].parts) {
    const Tensor& tensor = program_->network.graph.tensor(part);
    const Shape& shape = whole_shape(tensor);
    const int64_t size = storage_bytes(shape, tensor.dtype, {}).count;
    if (at < size && !bytes.empty()) {
      const size_t count = std::min(size - at, static_cast<int64_t>(bytes.size()));
      action(part, at / (size / element_count(shape)), bytes.first(count));
      bytes = bytes.subspan(count);
      at += static_cast<int64_t>(count);
    }
    at -= size;
  }
}

// Calls action(rank, first element in its piece, bytes) for each rank's piece of a tensor that has some of `bytes`, which
// begin with element `first` of the whole.
template <class Byte, class Action>
void for_each_piece(const Tensor& tensor, int64_t first, std::span<Byte> bytes, const Action& action) {
  const int64_t size = storage_bytes({1}, tensor.dtype, {}).count, piece = element_count(tensor.shape);
  while (!bytes.empty()) {
    const int64_t at = first % piece;
    const int64_t count = std::min(std::ssize(bytes) / size, piece - at);
    action(static_cast<int>(first / piece), at, bytes.first(count * size));
    bytes = bytes.subspan(count * size);
    first += count;
  }
}

void TrainingStep::read_state(size_t i, Bytes offset, std::span<std::byte> into) const {
  Communicator* const ranks = device_.communicator();
  for_each_part(i, offset, into, [&](TensorId part, int64_t first, std::span<std::byte> elements) {
    const Tensor& tensor = program_->network.graph.tensor(part);
    if (!tensor.shard.is_shard() || ranks == nullptr) return executor_->read(part, first, elements);
    for_each_piece(tensor, first, elements, [&](int rank, int64_t at, std::span<std::byte> bytes) {
      if (rank == ranks->rank()) executor_->read(part, at, bytes);
      ranks->broadcast(bytes, rank);
    });
  });
}

// What lies behind the whole in the last piece stays as it is: nobody reads it.
void TrainingStep::write_state(size_t i, Bytes offset, std::span<const std::byte> from) {
  const Communicator* const ranks = device_.communicator();
  for_each_part(i, offset, from, [&](TensorId part, int64_t first, std::span<const std::byte> elements) {
    const Tensor& tensor = program_->network.graph.tensor(part);
    if (!tensor.shard.is_shard() || ranks == nullptr) return executor_->write(part, first, elements);
    for_each_piece(tensor, first, elements, [&](int rank, int64_t at, std::span<const std::byte> bytes) {
      if (rank == ranks->rank()) executor_->write(part, at, bytes);
    });
  });
}

bool TrainingStep::is_divided() const {
  const Graph& graph = program_->network.graph;
  return device_.communicator() != nullptr && std::ranges::any_of(graph.states, [&](const State& state) {
           return graph.tensor(state.before).shard.is_shard();
         });
}

TensorSource TrainingStep::state_source() const {
  return [this](size_t i, Bytes offset, std::span<std::byte> into) { read_state(i, offset, into); };
}

std::string TrainingStep::weights_sha256() const { return plimsoll::weights_sha256(states_, state_source()); }

void TrainingStep::load(const Checkpoint& checkpoint) {
  checkpoint.check_contents();
  std::vector<std::byte> chunk;
  for (size_t i = 0; i < states_.size(); ++i) {
    const size_t from = checkpoint.find(states_[i].name, states_[i].shape, states_[i].dtype);
    const int64_t bytes = states_[i].bytes().count;
    for (int64_t at = 0; at < bytes; at += kChunk) {
      chunk.resize(std::min(kChunk, bytes - at));
      checkpoint.read(from, {at}, chunk);
      write_state(i, {at}, chunk);
    }
  }
}

std::vector<StateTensor> TrainingStep::states_that_move(const Plan& next) const {
  const Graph& graph = program_->network.graph;
  const auto now = resting_places(graph, program_->plan), then = resting_places(graph, next);
  std::vector<StateTensor> moved;
  for (const WholeState& whole : wholes_) {
    if (std::any_of(whole.parts.begin(), whole.parts.end(), [&](TensorId part) { return now[part] != then[part]; })) {
      moved.push_back(state(whole.name));
    }
  }
  return moved;
}

Bytes TrainingStep::measured_peak() const { return std::max(peak_before_swap_, executor_->measured_peak()); }

void TrainingStep::swap(CheckedPlan plan) {
  const Plan& now = program_->plan;
  if (plan->graph_fingerprint != now.graph_fingerprint) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("the plan is for another graph: '{}' {:016x}, but '{}' {:016x} is trained here",
                            plan->graph_name, plan->graph_fingerprint, now.graph_name, now.graph_fingerprint));
  }
  const std::vector<StateTensor> moved = states_that_move(plan);
  const std::vector<std::pair<TensorId, std::vector<std::byte>>> next = what_comes_next();
  peak_before_swap_ = measured_peak();
  executor_ = std::make_unique<Executor>(program_->network.graph, plan, device_, options_, executor_->memory());
  program_->plan = std::move(plan);  // an executor reads its plan, so the old one goes after its executor
  for (const StateTensor& state : moved) set_state(state);
  for (const auto& [input, elements] : next) {
    const Layout& layout = program_->network.graph.tensor(input).layout;
    has_second_buffer() ? executor_->write_next(input, layout, elements) : executor_->write(input, layout, elements);
  }
}

// The batch that was fed for the next step, as it lies.
std::vector<std::pair<TensorId, std::vector<std::byte>>> TrainingStep::what_comes_next() const {
  std::vector<std::pair<TensorId, std::vector<std::byte>>> next;
  if (!executor_->has_next()) return next;
  for (const FedInput& input : program_->plan->feeding.inputs)
    next.emplace_back(input.tensor, executor_->read_next(input.tensor));
  return next;
}

}  // namespace plimsoll
