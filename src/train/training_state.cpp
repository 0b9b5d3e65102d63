// The training's state as JSON.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/json_reader.h"
#include "plan/cores_json.h"
#include "plimsoll/checkpoint.h"
#include "plimsoll/error.h"
#include "plimsoll/verify.h"
#include "train/old_settings.h"

namespace plimsoll {
namespace {

using nlohmann::json;

constexpr int64_t kFormatVersion = 3;  // 1: without a hash of the file's header; up to 2: settings as texts

// One list of the fields for both directions.
template <class State, class Visitor>
void visit_fields(State& s, Visitor&& field) {
  field("step", s.step);
  field("epoch", s.epoch);
  field("batch_in_epoch", s.batch_in_epoch);
  field("seed", s.seed);
  field("model", s.model);
  field("data", s.data);
  field("batch", s.batch);
  field("optimizer.name", s.optimizer.name);
  field("optimizer.momentum", s.optimizer.momentum);
  field("optimizer.nesterov", s.optimizer.nesterov);
  field("optimizer.weight_decay", s.optimizer.weight_decay);
  field("optimizer.beta1", s.optimizer.beta1);
  field("optimizer.beta2", s.optimizer.beta2);
  field("optimizer.epsilon", s.optimizer.epsilon);
  field("learning_rate", s.learning_rate);
  field("schedule", s.schedule);
  field("total_steps", s.total_steps);
  field("total_epochs", s.total_epochs);
  field("policy", s.policy);
  field("placement", s.placement);
  field("budget_bytes", s.budget.count);
  field("exact", s.exact);
  field("device", s.device);
  field("device_key", s.device_key);
  field("threads", s.threads);
  field("layout_family", s.layout_family);
  field("kernels", s.kernels);
  field("state_layouts", s.state_layouts);
  field("settings.image_size", s.settings.image_size);
  field("settings.classes", s.settings.classes);
  field("settings.augment", s.settings.augment);
  field("settings.warmup_epochs", s.settings.warmup_epochs);
  field("settings.warmup_lr", s.settings.warmup_lr);
  field("settings.min_lr", s.settings.min_lr);
  field("settings.decay_rate", s.settings.decay_rate);
  field("settings.decay_epochs", s.settings.decay_epochs);
  field("settings.inter_op", s.settings.inter_op);
  field("settings.intra_op", s.settings.intra_op);
  field("settings.climb_interval", s.settings.climb_interval);
}

// Those that are only there where they say something else than usual: what checkpoints had not from the beginning.
template <class State, class Visitor>
void visit_optional_fields(State& s, Visitor&& field) {
  static const OptimizerOptions usual;
  static const SavedSettings other;
  field("optimizer.freeze", s.optimizer.freeze, usual.freeze);
  field("optimizer.settings", s.optimizer.settings, usual.settings);
  field("optimizer.clip_grad_norm", s.optimizer.clip_grad_norm, usual.clip_grad_norm);
  field("optimizer.accumulate", s.optimizer.accumulate, usual.accumulate);
  field("optimizer.sync_batch_norm", s.optimizer.sync_batch_norm, usual.sync_batch_norm);
  field("settings.evaluate_every", s.settings.evaluate_every, other.evaluate_every);
  field("settings.strategies", s.settings.strategies, other.strategies);
  field("settings.process_memory", s.settings.process_memory, other.process_memory);
  field("settings.host_memory", s.settings.host_memory, other.host_memory);
  field("settings.spill", s.settings.spill, other.spill);
  field("settings.spill_size", s.settings.spill_size, other.spill_size);
  field("settings.peer", s.settings.peer, other.peer);
  field("settings.peer_size", s.settings.peer_size, other.peer_size);
  field("settings.remote_memory", s.settings.remote_memory, other.remote_memory);
  field("settings.ranks", s.settings.ranks, other.ranks);
  field("settings.zero_stage", s.settings.zero_stage, other.zero_stage);
  field("settings.zero_least", s.settings.zero_least.count, other.zero_least.count);
}

// "optimizer.name" is the field name in the object optimizer.
json* find(json& object, std::string_view path, bool create) {
  json* at = &object;
  while (true) {
    const size_t dot = path.find('.');
    const std::string key(path.substr(0, dot));
    if (!create && (!at->is_object() || !at->contains(key))) return nullptr;
    at = &(*at)[key];
    if (dot == std::string_view::npos) return at;
    path.remove_prefix(dot + 1);
  }
}

using Texts = std::map<std::string, std::string, std::less<>>;

[[noreturn]] void wrong(std::string_view path, std::string_view expected) {
  throw Error(ErrorCode::corrupt_file, fmt::format("training state: field '{}': expected {}", path, expected));
}

void take(const json& from, std::string_view path, std::string& to) {
  if (!from.is_string()) wrong(path, "a text");
  to = from.get<std::string>();
}
void take(const json& from, std::string_view path, bool& to) {
  if (!from.is_boolean()) wrong(path, "true or false");
  to = from.get<bool>();
}
void take(const json& from, std::string_view path, double& to) {
  if (!from.is_number()) wrong(path, "a number");
  to = from.get<double>();
}
void take(const json& from, std::string_view path, uint64_t& to) {
  if (!from.is_number_unsigned()) wrong(path, "a whole number, not negative");
  to = from.get<uint64_t>();
}
void take(const json& from, std::string_view path, int64_t& to) {
  uint64_t value = 0;
  take(from, path, value);
  if (value > uint64_t{INT64_MAX}) wrong(path, "a number below 2^63");
  to = static_cast<int64_t>(value);
}
void take(const json& from, std::string_view path, int& to) {
  int64_t value = 0;
  take(from, path, value);
  if (value > 1 << 20) wrong(path, "a number up to 1048576");
  to = static_cast<int>(value);
}
void take(const json& from, std::string_view path, std::vector<std::string>& to) {
  if (!from.is_array()) wrong(path, "a list of texts");
  for (const json& item : from) {
    if (!item.is_string()) wrong(path, "a list of texts");
    to.push_back(item.get<std::string>());
  }
}
void take(const json& from, std::string_view path, Texts& to) {
  if (!from.is_object()) wrong(path, "an object of texts");
  for (const auto& [key, value] : from.items()) {
    if (!value.is_string()) wrong(fmt::format("{}.{}", path, key), "a text");
    to[key] = value.get<std::string>();
  }
}
void take(const json& from, std::string_view path, OptimizerSettings& to) {
  if (!from.is_object()) wrong(path, "an object of numbers");
  for (const auto& [key, value] : from.items()) take(value, fmt::format("{}.{}", path, key), to[key]);
}

void take(const json& from, std::string_view path, Bytes& to) {
  take(from, path, to.count);
  if (to.count == 0) wrong(path, "a size of at least one byte");
}
void take(const json& from, std::string_view path, Strategies& to) {
  std::string names;
  take(from, path, names);
  try {
    to = strategies_named(names);
  } catch (const Error& error) {
    throw Error(ErrorCode::corrupt_file, fmt::format("training state: field '{}': {}", path, error.what()));
  }
}
template <class Value>
void take(const json& from, std::string_view path, std::optional<Value>& to) {
  take(from, path, to.emplace());
}

template <class Value>
json json_of(const Value& value) {
  return value;
}
json json_of(Bytes value) { return value.count; }
json json_of(const Strategies& value) { return to_string(value); }
template <class Value>
json json_of(const std::optional<Value>& value) {
  return json_of(*value);
}

// The same JSON as in plans, and the threads of ops.
json cores_json(const SavedCores& cores) {
  json object = cores_to_json(cores.sharing, cores.conflicts);
  json& ops = object["ops"] = json::object();
  for (const auto& [name, op] : cores.ops) ops[name] = {{"threads", op.threads}, {"affinity", to_string(op.affinity)}};
  return object;
}

SavedCores saved_cores_from(const JsonReader& r) {
  SavedCores cores;
  cores.sharing = cores_from_json(r, cores.conflicts, "ops");
  const JsonReader ops = r.member("ops");
  if (!ops.raw().is_object()) ops.expected("an object");
  for (const auto& [name, value] : ops.raw().items()) {
    const JsonReader op = ops.member(name);
    op.only({"threads", "affinity"});
    cores.ops[name] = {static_cast<int>(op.member("threads").integer(0, kMostThreads)),
                       affinity_from_json(op.member("affinity"))};
  }
  return cores;
}

// Folders may have names that are no UTF-8; no file that is text can keep these.
bool is_utf8(const std::vector<std::string>& texts) {
  try {
    return !json(texts).dump().empty();
  } catch (const json::exception&) {
    return false;
  }
}

json input_json(const SavedInput& input) {
  json object = {{"channels", input.channels},      {"height", input.height}, {"width", input.width},
                 {"classes", input.classes},        {"mean", input.mean},     {"stddev", input.stddev},
                 {"centre_crop", input.centre_crop}};
  if (!input.class_names.empty() && is_utf8(input.class_names)) object["class_names"] = input.class_names;
  return object;
}

std::vector<double> channel_numbers(const JsonReader& r, int64_t channels, double least) {
  constexpr double kMost = 1e6;
  std::vector<double> numbers;
  for (size_t i = 0; i < r.size(); ++i) {
    numbers.push_back(r.item(i).number());
    if (!(numbers.back() >= least && numbers.back() <= kMost))
      r.item(i).expected(fmt::format("a number from {} to {}", least, kMost));
  }
  if (static_cast<int64_t>(numbers.size()) != channels) r.expected(fmt::format("{} numbers, one a channel,", channels));
  return numbers;
}

SavedInput saved_input_from(const JsonReader& r) {
  r.only({"channels", "height", "width", "classes", "mean", "stddev", "centre_crop", "class_names"});
  SavedInput input{.channels = r.member("channels").integer(1, 1 << 16),
                   .height = r.member("height").integer(1, 1 << 16),
                   .width = r.member("width").integer(1, 1 << 16),
                   .classes = r.member("classes").integer(1, 1 << 24)};
  input.mean = channel_numbers(r.member("mean"), input.channels, -1e6);
  input.stddev = channel_numbers(r.member("stddev"), input.channels, 1e-6);
  input.centre_crop = r.member("centre_crop").boolean();
  if (!r.has("class_names")) return input;
  const JsonReader names = r.member("class_names");
  if (static_cast<int64_t>(names.size()) > input.classes)
    names.expected(fmt::format("at most {} names, one a class,", input.classes));
  for (size_t i = 0; i < names.size(); ++i) input.class_names.push_back(names.item(i).text());
  return input;
}

json so_far_json(const EpochSoFar& sums) {
  json object = {{"loss", sums.loss}, {"gradient_norm", sums.gradient_norm}, {"step_loss", sums.step_loss}};
  if (sums.correct) object["correct"] = *sums.correct;
  return object;
}

EpochSoFar so_far_from(const JsonReader& r) {
  r.only({"loss", "correct", "gradient_norm", "step_loss"});
  EpochSoFar sums{.loss = r.member("loss").number(),
                  .gradient_norm = r.member("gradient_norm").number(),
                  .step_loss = r.member("step_loss").number()};
  if (r.has("correct")) sums.correct = r.member("correct").number();
  return sums;
}

// A name that nothing reads is a field that was damaged, or one that a newer version would obey.
void check_field_names(const json& object) {
  std::set<std::string, std::less<>> known{"format_version", "cores", "input", "epoch_so_far", "weights_sha256"},
      parents;
  const TrainingState example;
  const auto know = [&](std::string_view path, const auto&...) {
    known.emplace(path);
    if (const size_t dot = path.find('.'); dot != std::string_view::npos) parents.emplace(path.substr(0, dot));
  };
  visit_fields(example, know);
  visit_optional_fields(example, know);
  const auto check = [&](const std::string& path) {
    if (known.contains(path)) return;
    throw Error(ErrorCode::corrupt_file, fmt::format("training state: field '{}' is not known", path));
  };
  for (const auto& [key, value] : object.items()) {
    if (!parents.contains(key)) check(key);
    if (!parents.contains(key) || !value.is_object()) continue;
    for (const auto& [inner, unused] : value.items()) check(fmt::format("{}.{}", key, inner));
  }
}

// What no training can have: such a file would fail later and elsewhere, or be run for ever.
void check_ranges(const TrainingState& s) {
  const auto whole = [](std::string_view path, int64_t value, int64_t most) {
    if (value > most) wrong(path, fmt::format("a whole number up to {}, not {}", most, value));
  };
  const auto number = [](std::string_view path, double value, double most, double least = 0) {
    if (!(value >= least && value <= most))
      wrong(path, fmt::format("a number from {} to {}, not {}", least, most, value));
  };
  constexpr int64_t kMostSteps = int64_t{1} << 40, kMostBatch = int64_t{1} << 24;
  whole("step", s.step, kMostSteps);
  whole("epoch", s.epoch, kMostSteps);
  whole("batch_in_epoch", s.batch_in_epoch, kMostSteps);
  whole("batch", s.batch, kMostBatch);
  whole("total_steps", s.total_steps, kMostSteps);
  whole("total_epochs", s.total_epochs, int64_t{1} << 30);
  whole("threads", s.threads, 4096);
  number("learning_rate", s.learning_rate, 1e9);
  number("optimizer.momentum", s.optimizer.momentum, 1);
  number("optimizer.weight_decay", s.optimizer.weight_decay, 1e9);
  number("optimizer.beta1", s.optimizer.beta1, 1);
  number("optimizer.beta2", s.optimizer.beta2, 1);
  number("optimizer.epsilon", s.optimizer.epsilon, 1);
  number("optimizer.clip_grad_norm", s.optimizer.clip_grad_norm, 1e9);
  whole("settings.image_size", s.settings.image_size, int64_t{1} << 16);
  whole("settings.classes", s.settings.classes, int64_t{1} << 24);
  whole("settings.warmup_epochs", s.settings.warmup_epochs, int64_t{1} << 30);
  number("settings.warmup_lr", s.settings.warmup_lr, 1e9);
  number("settings.min_lr", s.settings.min_lr, 1e9);
  number("settings.decay_rate", s.settings.decay_rate, 1);
  whole("settings.decay_epochs", s.settings.decay_epochs, int64_t{1} << 30);
  if (s.settings.decay_epochs < 1) wrong("settings.decay_epochs", "1 or more");
  whole("settings.evaluate_every", s.settings.evaluate_every, int64_t{1} << 30);
  whole("settings.inter_op", s.settings.inter_op, kMostThreads);
  whole("settings.intra_op", s.settings.intra_op, kMostThreads);
  whole("settings.climb_interval", s.settings.climb_interval, kMostThreads);
  whole("settings.zero_stage", s.settings.zero_stage, kMostShardingStage);
  for (const auto& [name, value] : s.optimizer.settings)
    number(fmt::format("optimizer.settings.{}", name), value, 1e9, -1e9);  // each has a range of its own
  if (s.optimizer.accumulate < 1) wrong("optimizer.accumulate", "a whole number from 1");
  whole("optimizer.accumulate", s.optimizer.accumulate, kMostAccumulated);
}

}  // namespace

std::string to_json(const TrainingState& state) {
  json object;
  object["format_version"] = kFormatVersion;
  visit_fields(state, [&](std::string_view path, const auto& value) { *find(object, path, true) = json_of(value); });
  visit_optional_fields(state, [&](std::string_view path, const auto& value, const auto& usual) {
    if (value != usual) *find(object, path, true) = json_of(value);
  });
  if (state.cores) object["cores"] = cores_json(*state.cores);
  if (state.input) object["input"] = input_json(*state.input);
  if (state.epoch_so_far) object["epoch_so_far"] = so_far_json(*state.epoch_so_far);
  if (!state.weights_sha256.empty()) object["weights_sha256"] = state.weights_sha256;
  try {
    return object.dump();
  } catch (const json::exception&) {
    throw Error(ErrorCode::invalid_input, "a training state's texts must be UTF-8");
  }
}

TrainingState training_state_from_json(std::string_view text, int64_t* version_found) {
  json object;
  try {
    object = json::parse(text.begin(), text.end());
  } catch (const json::exception& error) {
    std::string_view why = error.what();
    if (const size_t begin = why.find("] "); begin != std::string_view::npos) why.remove_prefix(begin + 2);
    throw Error(ErrorCode::corrupt_file, fmt::format("training state: not valid JSON: {}", why));
  }
  if (!object.is_object()) throw Error(ErrorCode::corrupt_file, "training state: expected an object");
  int64_t version = 0;
  if (!object.contains("format_version")) wrong("format_version", "a number; it is missing");
  take(object["format_version"], "format_version", version);
  if (version < 1) wrong("format_version", "1 or more");
  if (version > kFormatVersion) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("training state: has format version {}; this program reads up to {}", version, kFormatVersion));
  }
  if (version_found != nullptr) *version_found = version;
  TrainingState state;
  if (version < 3) state.cores = upgrade_settings(object);
  check_field_names(object);
  visit_fields(state, [&](std::string_view path, auto& value) {
    const json* field = find(object, path, false);
    if (field == nullptr)
      throw Error(ErrorCode::corrupt_file, fmt::format("training state: field '{}' is missing", path));
    take(*field, path, value);
  });
  visit_optional_fields(state, [&](std::string_view path, auto& value, const auto&) {
    if (const json* field = find(object, path, false)) take(*field, path, value);
  });
  check_ranges(state);
  try {
    if (object.contains("cores")) state.cores = saved_cores_from(JsonReader(object).member("cores"));
    if (object.contains("input")) state.input = saved_input_from(JsonReader(object).member("input"));
    if (object.contains("epoch_so_far")) state.epoch_so_far = so_far_from(JsonReader(object).member("epoch_so_far"));
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("training state: {}", error.what()));
  }
  if (object.contains("weights_sha256")) take(object["weights_sha256"], "weights_sha256", state.weights_sha256);
  return state;
}

}  // namespace plimsoll
