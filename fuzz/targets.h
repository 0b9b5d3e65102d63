// One function a reader of foreign bytes: it may throw plimsoll::Error and nothing else, and what it accepts must hold
// what it promises. libFuzzer drives them (fuzz/), and tests/fuzz runs them over mutated samples.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/by_id.h"
#include "base/files.h"
#include "compile/plan_file.h"
#include "cost/cost_file.h"
#include "data/decode.h"
#include "data/sources.h"
#include "models/catalog.h"
#include "ops/expression.h"
#include "plan/placement/placement_file.h"
#include "plan/policy.h"
#include "plan/route.h"
#include "plimsoll/autodiff.h"
#include "plimsoll/bytes.h"
#include "plimsoll/checkpoint.h"
#include "plimsoll/compile.h"
#include "plimsoll/cost_graph.h"
#include "plimsoll/error.h"
#include "plimsoll/graph.h"
#include "plimsoll/kernels.h"
#include "plimsoll/models.h"
#include "plimsoll/network_file.h"
#include "plimsoll/plan.h"
#include "plimsoll/verify.h"
#include "train/resume.h"
#include "train/safetensors.h"
#include "train/weights_file.h"

namespace plimsoll::fuzz {

// Two layers and an update, and that of a table by what is looked up in it: every role, a fan-out and states.
inline Graph example_graph() {
  Graph graph;
  graph.name = "example";
  const TensorId x = graph.add_source("data", {2, 3}, DType::f32, Role::input);
  const TensorId rate = graph.add_source("learning_rate", {}, DType::f32, Role::hyperparameter);
  const TensorId w = graph.add_source("fc.weight", {4, 3}, DType::f32, Role::parameter,
                                      {.kind = Initializer::Kind::normal, .scale = 0.1});
  const TensorId m = graph.add_source("fc.weight.momentum", {4, 3}, DType::f32, Role::optimizer_state);
  const TensorId y = graph.output(graph.add_op("FullyConnectedForward", "fc/forward", "fc", {x, w}));
  const TensorId z = graph.output(graph.add_op("ReluForward", "relu/forward", "relu", {y}));
  const TensorId dw = graph.output(graph.add_op("FullyConnectedBackwardWeights", "fc/backward", "fc", {x, z},
                                                {{"bias", int64_t{0}}}, Phase::backward));
  const OpId update =
      graph.add_op("SgdUpdate", "fc/update", "fc", {w, dw, rate, m}, {{"momentum", 0.9}}, Phase::update);
  for (size_t i = 0; i < 2; ++i) graph.states[i].after = graph.output(update, i);
  graph.outputs.push_back(z);
  const TensorId ids = graph.add_source("ids", {2}, DType::i64, Role::input);
  const TensorId words = graph.add_source("words.weight", {5, 3}, DType::f32, Role::parameter);
  const TensorId rows = graph.output(graph.add_op("Embedding", "words/forward", "words", {words, ids}));
  const OpId lookups = graph.add_op("EmbeddingSgdUpdate", "words/update", "words", {words, rows, rate, ids},
                                    {{"padding_index", int64_t{4}}}, Phase::update);
  graph.states[2].after = graph.output(lookups);
  return graph;
}

// A plan that gives every tensor its own bytes for the whole step, and a state's next value those of the state.
inline Plan example_plan(const Graph& graph) {
  Plan plan{
      .graph_name = graph.name, .graph_fingerprint = fingerprint(graph), .device_name = "cpu", .policy = "baseline"};
  const StepIndex last = graph.op_count() - 1;
  for (int32_t i = 0; i <= last; ++i) plan.steps.push_back({.op = {i}, .kernel = "reference"});
  ById<TensorId, Bytes> offsets(graph.tensor_count());
  for (TensorId id : offsets.ids()) {
    const Tensor& tensor = graph.tensor(id);
    Bytes offset = plan.arena;
    StepIndex until = last;
    for (const State& state : graph.states) {
      if (state.before == state.after) continue;
      if (state.after == id) offset = offsets[state.before];
      if (state.before == id) until = graph.tensor(state.after).producer.index;
    }
    offsets[id] = offset;
    const StepIndex first = tensor.producer.valid() ? tensor.producer.index : 0;
    plan.stays.push_back({id, offset, align_up(tensor.bytes(), 64), first, until});
    plan.arena = std::max(plan.arena, offset + align_up(tensor.bytes(), 64));
  }
  plan.budget = plan.arena;
  return plan;
}

// The same with all that a plan can have: a parameter that lies in a tier between steps, an activation that leaves and
// comes back, and one that is made again.
inline Plan example_plan_with_moves(const Graph& graph) {
  Plan plan = example_plan(graph);
  plan.cores.inter_op = 2;
  const auto out = Move::Direction::out, in = Move::Direction::in;
  const StepIndex steps = static_cast<StepIndex>(plan.steps.size());
  const TensorId w = graph.states[0].before, y = graph.output({0}), z = graph.outputs[0];
  plan.tiers = {{{"host", 1_MiB, 8, 8, 10, 0.1}, 8_KiB}, {{"disk", 1_GiB, 1, 2, 100, 0}, 4_KiB}};
  plan.homes = {{w, 0, 0_B}};
  plan.moves = {{in, w, 0, 0_B, -1, 0}, {out, y, 1, 0_B, 0, 1}, {out, graph.states[0].after, 0, 0_B, steps - 1, steps}};
  plan.moves.push_back({out, z, 0, 4_KiB, 1, 2});
  plan.moves.push_back({in, z, 0, 4_KiB, 2, 3});
  // The activation once more, between the backward pass and the update.
  plan.steps.insert(plan.steps.begin() + 3, {.op = {1}, .kernel = "reference", .recompute = true});
  for (Stay& stay : plan.stays) {
    if (stay.first >= 3) ++stay.first;
    ++stay.last;
  }
  plan.moves[2].after = steps;
  plan.moves[2].before = steps + 1;
  plan.predicted.timeline = {{0, 3, 0, 1.5}, {1, 0, 0, 0.25}, {2, 4, 1, 2}};
  return plan;
}

inline void require(bool promise, const char* what) {
  if (!promise) throw std::logic_error(what);
}

// Runs a reader; its refusals are answers.
template <class Reader>
void accept_or_refuse(Reader&& reader) {
  try {
    reader();
  } catch (const Error& error) {
    require(error.code() != ErrorCode::internal, "a reader unrecoverable itself");
    require(error.what()[0] != '\0', "an error without a message");
  }
}

inline void read_size(std::string_view input) {
  accept_or_refuse([&] {
    const Bytes bytes = parse_bytes(input);
    require(bytes.count >= 0, "a negative size");
    to_string(bytes);
  });
}

inline void read_digits(std::string_view input) {
  accept_or_refuse([&] {
    const DigitsTable table = parse_digits_csv(input, "digits.csv");
    require(table.pixels.size() == 64 * table.labels.size(), "64 pixels an image");
    for (uint8_t pixel : table.pixels) require(pixel <= 16, "a pixel out of range");
    for (uint8_t label : table.labels) require(label < 10, "a label out of range");
  });
}

inline void read_gzip(std::string_view input) {
  accept_or_refuse([&] { require(inflate_gzip(input, "x.gz", 1_MiB).size() <= 1 << 20, "more than the limit"); });
}

inline void read_idx(std::string_view input) {
  for (size_t rank : {1, 3}) {
    accept_or_refuse([&] {
      const IdxHeader header =
          parse_idx_header(std::as_bytes(std::span(input)), static_cast<int64_t>(input.size()), rank, "x");
      int64_t bytes = header.data_offset;
      int64_t product = 1;
      for (int64_t d : header.dimensions) product *= d;
      require(bytes + product == static_cast<int64_t>(input.size()), "an idx file of another size");
    });
  }
}

inline void read_cifar(std::string_view input) {
  Image image;
  for (int classes : {10, 100}) {
    accept_or_refuse([&] {
      const int64_t count = cifar_record_count(classes, static_cast<int64_t>(input.size()), "x");
      const int64_t bytes = cifar_record_bytes(classes);
      for (int64_t i = 0; i < count; ++i) {
        parse_cifar_record(classes, std::as_bytes(std::span(input)).subspan(i * bytes, bytes), i, "x", image);
        require(image.label >= 0 && image.label < classes, "a label out of range");
      }
    });
  }
}

// Of the first byte the ids' bytes, of the second the vocabulary, of the third whether tokens are masked.
inline void read_tokens(std::string_view input) {
  if (input.size() < 3) return;
  const int64_t id_bytes = int64_t{1} << static_cast<uint8_t>(input[0]) % 3;
  const int64_t vocabulary = static_cast<uint8_t>(input[1]) * 100 + 1;
  const bool masked = static_cast<uint8_t>(input[2]) % 2 != 0;
  input.remove_prefix(3);
  accept_or_refuse([&] {
    const int64_t count = token_count(static_cast<int64_t>(input.size()), id_bytes, "x");
    std::vector<int32_t> window(static_cast<size_t>(count));
    parse_tokens(std::as_bytes(std::span(input)), id_bytes, 0, vocabulary, "x", window);
    for (int32_t id : window) require(id >= 0 && id < vocabulary, "an id that the vocabulary has not");
    const TokenWindows windows{.context = masked ? count : count - 1,
                               .mask = masked ? std::optional<int32_t>(0) : std::nullopt};
    if (windows.context == 0) return;
    std::vector<int32_t> ids(static_cast<size_t>(windows.context)), labels(ids.size());
    label_window(window, windows, vocabulary, {1, 2, 3}, -1, ids, labels);
    for (int32_t id : ids) require(id >= 0 && id < vocabulary, "an id that the vocabulary has not");
    for (int32_t label : labels) require(label >= -1 && label < vocabulary, "a label that the vocabulary has not");
  });
}

inline void read_image(std::string_view input) {
  Image image;
  for (int64_t smallest_side : {0, 16}) {
    accept_or_refuse([&] {
      decode_image(input, "x", smallest_side, image);
      require(image.width > 0 && image.height > 0, "an empty image");
      require(static_cast<int64_t>(image.pixels.size()) == 3 * image.width * image.height, "an image of another size");
    });
  }
}

// The input is a whole file: length, header, data.
inline void read_safetensors(std::string_view input) {
  accept_or_refuse([&] {
    if (input.size() < 8) return;
    uint64_t length = 0;
    std::memcpy(&length, input.data(), 8);
    if (length > input.size() - 8) return;
    const int64_t data = static_cast<int64_t>(input.size() - 8 - length);
    const SafetensorsHeader header = parse_safetensors_header(input.substr(8, length), data, "x");
    int64_t at = 0;
    for (const SafetensorsEntry& entry : header.entries) {
      require(entry.begin == at && entry.end >= entry.begin, "a hole or an overlap");
      require(entry.end - entry.begin == element_count(entry.shape) * safetensors_dtype_bytes(entry.dtype),
              "a wrong size");
      at = entry.end;
    }
    require(at == data, "bytes of no tensor");
    if (const auto state = header.metadata.find("plimsoll"); state != header.metadata.end()) {
      training_state_from_json(state->second);
    }
  });
}

// A whole file of weights, as `train --weights` takes them for a small network.
inline const Network& weights_network() {
  static const Network network =
      build_model("mlp:4", {.batch = 1, .channels = 1, .height = 2, .width = 2, .classes = 3});
  return network;
}
inline void read_weights(std::string_view input) {
  const int file = ::memfd_create("weights", 0);
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  require(file >= 0 && ::write(file, input.data(), input.size()) == static_cast<ssize_t>(input.size()),
          "no file in memory");
  accept_or_refuse([&] {
    const WeightsFile weights(path);
    const WeightsMatch match = match_weights(weights, weights_network(), true);
    to_text(match);
    classes_of(weights, weights_network());
    for (const auto& [name, entry] : match.taken) {
      const Tensor& tensor = weights_network().graph.tensor(weights_network().graph.find_tensor(name));
      std::vector<float> values(static_cast<size_t>(element_count(tensor.shape)));
      weights.read(entry, 0, values);
    }
  });
  ::close(file);
}

inline void read_training_state(std::string_view input) {
  accept_or_refuse([&] {
    const std::string text = to_json(training_state_from_json(input));
    require(to_json(training_state_from_json(text)) == text, "a state that changes when it is read back");
  });
}

inline void read_graph(std::string_view input) {
  accept_or_refuse([&] {
    const Graph graph = graph_from_json(input);
    check(graph);
    to_text(graph);
    require(fingerprint(graph_from_json(to_json(graph))) == fingerprint(graph),
            "a graph that changes when it is read back");
  });
}

// A plan of the graph below; what can be read, the verifier must be able to judge.
inline void read_plan(std::string_view input) {
  static const Graph graph = example_graph();
  accept_or_refuse([&] {
    const Plan plan = plan_from_json(input, graph);
    verify(graph, plan);
    to_json(plan, graph);
  });
}

// A whole saved plan: what can be read, the verifier must be able to judge.
inline void read_saved_plan(std::string_view input) {
  accept_or_refuse([&] {
    const SavedPlan saved = saved_plan_from_json(input);
    require(saved.request.input.batch > 0, "a batch of nothing");
    verify(saved.graph, saved.plan);
  });
}

// A network that can be read has a training step, or says why it has none.
inline void read_network(std::string_view input) {
  for (const int64_t batch : {0, 3}) {
    accept_or_refuse([&] {
      const Network network = network_from_json(input, batch);
      require(!network.objectives.empty(), "nothing to train by");
      make_training_network(network, {});
    });
  }
}

// A graph of costs that can be read can be planned: every policy's plan is safe, or there is none.
inline void read_cost_graph(std::string_view input) {
  for (const int64_t batch : {0, 3}) {
    accept_or_refuse([&] {
      const CostGraph costs = cost_graph_from_json(input, batch);
      require(fingerprint(cost_graph_from_json(to_json(costs)).graph) == fingerprint(costs.graph),
              "a graph of costs that changes when it is read back");
      const Route route = listed_route(costs.graph);
      const CostTable table = costs_of(costs);
      PolicyInput asked{.graph = costs.graph, .route = route, .kernels = costs.kernels, .costs = table, .device = {}};
      asked.device.tiers = {{.name = "host", .capacity = 1_MiB, .out_gb_per_s = 1, .in_gb_per_s = 1}};
      asked.budget = {keeping_everything(costs).count / 4 * 3};
      for (const std::string_view policy : {"liveness", "auto"}) {
        const PlanOrInfeasible result = find_policy(policy).plan(asked);
        if (const Plan* plan = std::get_if<Plan>(&result)) check_plan(costs.graph, *plan);
      }
    });
  }
}

// An expression of a Pointwise op, and its derivatives, which are expressions again.
inline void read_expression(std::string_view input) {
  accept_or_refuse([&] {
    const Expression expression = parse_expression(input);
    const std::string text = to_string(expression);
    require(to_string(parse_expression(text)) == text, "an expression that changes when it is read back");
    std::vector<double> inputs(kMostExpressionInputs, 0.5), values(expression.nodes.size());
    evaluate(expression, inputs, values);
    ExpressionBuilder builder;
    std::vector<int32_t> nodes;
    for (int32_t i = 0; i < kMostExpressionInputs; ++i) nodes.push_back(builder.input(i));
    const int32_t result = builder.insert(expression, nodes);
    for (int32_t derivative : builder.differentiate(result, builder.number(1), nodes)) {
      if (derivative >= 0) require(!to_string(builder.take(derivative)).empty(), "a derivative without a text");
    }
  });
}

inline void read_model_name(std::string_view input) {
  accept_or_refuse([&] {
    const ModelName name = parse_model_name(input);
    require(!name.kind.empty() && input.starts_with(name.kind), "another network");
    for (const char* option : {"hidden", "blocks"}) {
      accept_or_refuse([&] {
        for (int64_t number : name.options.list(option, {1, 2, 3, 4})) require(number > 0, "a width of nothing");
      });
    }
    for (const char* option : {"depth", "growth", "z", "width"}) {
      accept_or_refuse([&] {
        const int64_t number = name.options.integer(option, 1, 1, 1000);
        require(number >= 1 && number <= 1000, "a number out of range");
      });
    }
    accept_or_refuse([&] {
      const double fraction = name.options.fraction("dropout", 0.5);
      require(fraction >= 0 && fraction < 1, "a fraction out of range");
    });
  });
}

inline void read_data_spec(std::string_view input) {
  accept_or_refuse([&] {
    const DataSpec spec = parse_data_spec(input);
    require(input.starts_with(spec.kind), "another kind");
    require(spec.count > 0, "no images");
    require(spec.kind == "digits" || spec.kind == "synthetic" || spec.kind == "text" || !spec.folder.empty(),
            "no folder");
  });
}

// A training state as `--resume` takes it.
inline void read_train_options(std::string_view input) {
  accept_or_refuse([&] {
    const TrainingState state = training_state_from_json(input);
    const TrainOptions options = saved_options(state);
    require(options.schedule.lr >= 0 && options.schedule.min_lr >= 0 && options.schedule.warmup_lr >= 0,
            "a negative rate");
    require(options.schedule.decay_epochs > 0 && options.image_size >= 0 && options.classes >= 0, "a negative number");
    check_place(state, 10, "x");
    CompileOptions compile;
    pin(compile, state);
  });
}

// What can be read can be placed, written and read back.
inline void read_placement(std::string_view input) {
  accept_or_refuse([&] {
    const PlacementFile file = placement_file_from_csv(input, "x.csv");
    const Placement placement = place_offline(file.buffers, {.alignment = file.alignment, .effort = 1000});
    for (size_t i = 0; i < file.buffers.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const Buffer &a = file.buffers[i], &b = file.buffers[j];
        if (a.upper <= b.lower || b.upper <= a.lower || a.bytes.count == 0 || b.bytes.count == 0) continue;
        require(placement.offsets[i] + a.bytes <= placement.offsets[j] ||
                    placement.offsets[j] + b.bytes <= placement.offsets[i],
                "two buffers on one byte");
      }
    }
    const std::string text = to_csv(file, placement);
    require(to_csv(placement_file_from_csv(text, "x.csv"), placement) == text,
            "a problem that changes when it is read back");
  });
}

// What can be read is a convolution, and reads back from what is written of it.
inline void read_convolutions(std::string_view input) {
  accept_or_refuse([&] {
    const std::vector<Convolution> rows = convolutions_from_csv(input, "x.csv");
    require(!rows.empty() && rows.size() <= kMostConvolutions, "a table of another size");
    std::string text;
    for (size_t i = 0; i < std::size(kConvolutionColumns); ++i)
      text += std::string(i == 0 ? "" : ",") + std::string(kConvolutionColumns[i]);
    for (const Convolution& row : rows) {
      check(row);
      for (size_t i = 0; i < std::size(kConvolutionColumns); ++i)
        text += (i == 0 ? "\n" : ",") + std::to_string(field(row, i));
    }
    require(convolutions_from_csv(text, "x.csv") == rows, "a table that changes when it is read back");
  });
}

// A kernel's name: parts that are accepted have rows and read back.
inline void read_configuration(std::string_view input) {
  accept_or_refuse([&] {
    const std::vector<MicroBatch> parts = parts_of(input);
    for (const MicroBatch& part : parts)
      require(part.batch > 0 && !part.kernel.empty(), "a part without rows or kernel");
    require(parts.empty() || parts_of(configuration_name(parts)) == parts, "parts that change when they are read back");
  });
}

// What can be read can be written and read back.
inline void read_costs(std::string_view input) {
  DeviceInfo device;
  device.key = "cpu";
  accept_or_refuse([&] {
    const CostTable table = costs_from_json(input, "x.json", device);
    for (const auto* list : {&table.entries(), &table.in_step_entries()}) {
      for (const auto& [key, cost] : *list) {
        require(cost.time_ms > 0 && cost.time_ms <= 1e9 && cost.workspace.count <= int64_t{1} << 50,
                "a cost that cannot be");
        require(!key.signature.empty() && !key.kernel.empty(), "a cost of nothing");
      }
    }
    const std::string text = costs_to_json(table, device);
    require(costs_to_json(costs_from_json(text, "x.json", device), device) == text,
            "costs that change when they are read back");
    CostTable other;
    merge_costs(table, other);
    require(merge_costs(table, other) == 0, "costs that are added twice");
  });
}

struct Target {
  const char* name;
  void (*read)(std::string_view input);
};
inline constexpr Target kTargets[] = {
    {"size", read_size},
    {"digits", read_digits},
    {"gzip", read_gzip},
    {"idx", read_idx},
    {"cifar", read_cifar},
    {"tokens", read_tokens},
    {"image", read_image},
    {"safetensors", read_safetensors},
    {"weights", read_weights},
    {"training_state", read_training_state},
    {"graph", read_graph},
    {"expression", read_expression},
    {"plan", read_plan},
    {"saved_plan", read_saved_plan},
    {"network", read_network},
    {"cost_graph", read_cost_graph},
    {"model_name", read_model_name},
    {"data_spec", read_data_spec},
    {"train_options", read_train_options},
    {"placement", read_placement},
    {"convolutions", read_convolutions},
    {"configuration", read_configuration},
    {"costs", read_costs},
};

}  // namespace plimsoll::fuzz
