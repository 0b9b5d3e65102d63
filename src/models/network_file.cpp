#include "models/network_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/files.h"
#include "base/json_reader.h"
#include "graph/json_parts.h"
#include "models/graph_kind.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

using nlohmann::json;
constexpr int64_t kVersion = 1;
constexpr std::string_view kPrefix = "graph:";
constexpr std::string_view kBatch = "batch";
constexpr int64_t kMostBatch = int64_t{1} << 24;

// "batch" is 1, "197*batch" is 197; 0: it is neither.
int64_t batches_in(std::string_view text) {
  int64_t factor = 1;
  if (text != kBatch) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
    const std::string_view rest = text.substr(static_cast<size_t>(end - text.data()));
    if (error != std::errc() || factor < 1 || rest != fmt::format("*{}", kBatch)) return 0;
  }
  return factor;
}

// One of a file's two graphs.
class NetworkReader {
 public:
  NetworkReader(const JsonReader& section, std::string name, int64_t batch) : section_(section), batch_(batch) {
    network_.graph.name = std::move(name);
  }

  Network read() {
    section_.only({"tensors", "ops", "objectives", "frozen", "data", "labels", "correct", "outputs"});
    const JsonReader tensors = section_.member("tensors"), ops = section_.member("ops");
    for (size_t i = 0; i < tensors.size(); ++i) read_source(tensors.item(i));
    for (size_t i = 0; i < ops.size(); ++i) read_op(ops.item(i));
    read_fed();
    if (section_.has("outputs")) {
      const JsonReader outputs = section_.member("outputs");
      for (size_t i = 0; i < outputs.size(); ++i) add_output(tensor(outputs.item(i)));
    }
    read_objectives();
    try {
      check(network_.graph);
    } catch (const Error& error) {
      section_.fail(error.what());
    }
    return std::move(network_);
  }

 private:
  Graph& graph() { return network_.graph; }

  int64_t size(const JsonReader& r, int64_t least) const {
    if (!r.raw().is_string()) return r.integer(least, kMostElements);
    const int64_t factor = batches_in(r.text());
    if (factor == 0) r.expected("a size (an integer, \"batch\" or \"197*batch\")");
    if (factor > kMostElements / batch_)
      r.fail(fmt::format("is more than {} with a batch of {}", kMostElements, batch_));
    return factor * batch_;
  }
  Shape shape(const JsonReader& r) const {
    Shape shape;
    int64_t elements = 1;
    for (size_t i = 0; i < r.size(); ++i) {
      shape.push_back(size(r.item(i), 1));
      if (shape.back() > kMostElements / elements) r.fail(fmt::format("has more than {} elements", kMostElements));
      elements *= shape.back();
    }
    return shape;
  }

  TensorId tensor(const JsonReader& r) {
    const TensorId id = graph().find_tensor(r.text());
    if (!id.valid())
      r.fail(fmt::format("there is no tensor '{}' yet; ops stand after those that make their inputs", r.text()));
    return id;
  }
  // Of an optional member; an empty name stands for none.
  TensorId tensor_named(std::string_view member) {
    if (!section_.has(member) || section_.member(member).text().empty()) return {};
    return tensor(section_.member(member));
  }

  void read_source(const JsonReader& r) {
    r.only({"name", "shape", "dtype", "role", "init"});
    const JsonReader role = r.member("role");
    const Role known = read_role(role);
    if (known != Role::input && known != Role::hyperparameter && known != Role::parameter && known != Role::statistic)
      role.expected("what comes from outside (input, hyperparameter, parameter or statistic)");
    const Initializer init = r.has("init") ? read_initializer(r.member("init")) : Initializer{};
    try {
      graph().add_source(r.member("name").text(), shape(r.member("shape")), read_dtype(r.member("dtype")), known, init);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_input) throw;
      r.fail(error.what());
    }
  }

  void read_op(const JsonReader& r) {
    r.only({"type", "name", "layer", "inputs", "outputs", "attributes", "shapes", "source"});
    std::vector<TensorId> inputs;
    const JsonReader listed = r.member("inputs"), outputs = r.member("outputs");
    for (size_t i = 0; i < listed.size(); ++i) inputs.push_back(tensor(listed.item(i)));
    std::vector<std::string> names;
    for (size_t i = 0; i < outputs.size(); ++i) names.push_back(outputs.item(i).text());
    Attributes attributes;
    if (r.has("attributes")) {
      attributes = read_attributes(r.member("attributes"), [&](const JsonReader& item) {
        return item.raw().is_string() ? size(item, 1) : item.integer();
      });
    }
    const std::string& name = r.member("name").text();
    const std::string& layer = r.has("layer") ? r.member("layer").text() : name;
    try {
      const OpId id = graph().add_op(r.member("type").text(), name, layer, std::move(inputs), std::move(attributes),
                                     Phase::forward, std::move(names));
      check_shapes(r, graph().op(id));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_input) throw;
      r.fail(r.has("source") ? fmt::format("{} ({})", error.what(), r.member("source").text()) : error.what());
    }
  }

  // Where the file says what an op makes, that is what it makes here.
  void check_shapes(const JsonReader& r, const Op& op) {
    if (!r.has("shapes")) return;
    const JsonReader shapes = r.member("shapes");
    for (size_t i = 0; i < shapes.size() && i < op.outputs.size(); ++i) {
      const Tensor& made = graph().tensor(op.outputs[i]);
      if (const Shape stated = shape(shapes.item(i)); stated != made.shape) {
        shapes.item(i).fail(fmt::format("op '{}' ({}) makes '{}' of {}, not {}", op.name, op.type->name, made.name,
                                        to_string(made.shape), to_string(stated)));
      }
    }
  }

  void read_fed() {
    network_.data = tensor_named("data");
    network_.labels = tensor_named("labels");
    network_.correct = tensor_named("correct");
    for (TensorId id : {network_.data, network_.labels}) {
      if (id.valid() && graph().tensor(id).role != Role::input)
        section_.fail(fmt::format("'{}' is fed with batches, so its role is to be input", graph().tensor(id).name));
    }
    if (network_.correct.valid()) add_output(network_.correct);
  }

  void add_output(TensorId id) {
    if (!graph().tensor(id).producer.valid())
      section_.fail(fmt::format("no op makes the output '{}'", graph().tensor(id).name));
    graph().tensor(id).role = Role::output;
    if (std::find(graph().outputs.begin(), graph().outputs.end(), id) == graph().outputs.end())
      graph().outputs.push_back(id);
  }

  // Parameters that a list names; absent: all that are not frozen.
  std::vector<TensorId> parameters(const JsonReader& objective, const std::vector<TensorId>& frozen) {
    std::vector<TensorId> result;
    if (objective.has("parameters")) {
      const JsonReader list = objective.member("parameters");
      for (size_t i = 0; i < list.size(); ++i) {
        result.push_back(tensor(list.item(i)));
        if (graph().tensor(result.back()).role != Role::parameter)
          list.item(i).fail(fmt::format("'{}' is no parameter", list.item(i).text()));
      }
      return result;
    }
    for (const State& state : graph().states) {
      const bool is_frozen = std::find(frozen.begin(), frozen.end(), state.before) != frozen.end();
      if (graph().tensor(state.before).role == Role::parameter && !is_frozen) result.push_back(state.before);
    }
    return result;
  }

  void read_objectives() {
    std::vector<TensorId> frozen;
    if (section_.has("frozen")) {
      const JsonReader list = section_.member("frozen");
      for (size_t i = 0; i < list.size(); ++i) frozen.push_back(tensor(list.item(i)));
    }
    const JsonReader objectives = section_.member("objectives");
    if (objectives.size() == 0) objectives.expected("at least one loss");
    for (size_t i = 0; i < objectives.size(); ++i) {
      const JsonReader objective = objectives.item(i);
      objective.only({"loss", "parameters"});
      const JsonReader name = objective.member("loss");
      const TensorId loss = tensor(name);
      if (element_count(graph().tensor(loss).shape) != 1)
        name.fail(fmt::format("'{}' is {}; a loss is a scalar", name.text(), to_string(graph().tensor(loss).shape)));
      add_output(loss);
      network_.objectives.push_back({loss, parameters(objective, frozen)});
    }
  }

  const JsonReader section_;
  const int64_t batch_;
  Network network_;
};

bool names_batch(const json& value) {
  if (value.is_string()) return batches_in(value.get_ref<const std::string&>()) > 0;
  return value.is_structured() &&
         std::any_of(value.begin(), value.end(), [](const json& item) { return names_batch(item); });
}

void check_header(const JsonReader& file) {
  if (graph_kind(file) != GraphKind::network) {
    throw Error(
        ErrorCode::unsupported,
        "the file holds a graph of costs only: it can be planned (plan, compare, max), but there is nothing in it "
        "that could be run");
  }
  file.only({"format", "version", "name", "batch", "training", "evaluation"});
  file.member("version").integer(kVersion, kVersion);
}

bool takes_any_batch(const JsonReader& section) {
  const JsonReader tensors = section.member("tensors");
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (names_batch(tensors.item(i).member("shape").raw())) return true;
  }
  return false;
}

ModelInput input_of(const Network& network, int64_t batch) {
  ModelInput input{.batch = batch};
  if (network.data.valid()) {
    const Shape& shape = network.graph.tensor(network.data).shape;
    const bool images = shape.size() == 4;
    input.channels = images ? shape[1] : shape.empty() ? 1 : element_count(shape) / shape[0];
    input.height = images ? shape[2] : 1;
    input.width = images ? shape[3] : 1;
  }
  if (const TensorId scores = logits_of(network); scores.valid()) input.classes = network.graph.tensor(scores).shape[1];
  return input;
}

// Samples of as many elements are taken, whatever their shape.
void expect_input(const ModelInput& asked, const ModelInput& own) {
  if (own.channels == 0 && asked.channels > 0) {
    throw Error(
        ErrorCode::invalid_input,
        "the network is not fed with samples and a label of each, which is what --data gives; train it from Python, "
        "by plimsoll.compile");
  }
  const int64_t elements = asked.channels * asked.height * asked.width;
  const auto expect = [](int64_t wanted, int64_t there, std::string_view what) {
    if (wanted == 0 || wanted == there) return;
    throw Error(ErrorCode::invalid_input,
                fmt::format("the network was exported for {} {}, not {}; give other --data, or another --image-size",
                            there, what, wanted));
  };
  if (elements == 0 || elements != own.channels * own.height * own.width) {
    expect(asked.channels, own.channels, "channels");
    expect(asked.height, own.height, "rows of pixels");
    expect(asked.width, own.width, "columns of pixels");
  }
  if (own.classes == 0 || asked.classes <= own.classes) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("the network was exported for {} classes, and there are {}; give other --data", own.classes,
                          asked.classes));
}

}  // namespace

Network network_from_json(std::string_view text, int64_t batch, bool training) {
  const json document = parse_json(text);
  const JsonReader file(document);
  check_header(file);
  const int64_t stated = file.member("batch").integer(1, kMostBatch);
  const std::string_view section = training ? "training" : "evaluation";
  if (!file.has(section)) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("the network was exported without its {0}; export it with it", section));
  }
  if (batch != 0 && batch != stated && !takes_any_batch(file.member(section))) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("--batch {}: the network was exported for batches of {} alone; export it for any batch, or "
                            "leave --batch out",
                            batch, stated));
  }
  return NetworkReader(file.member(section), file.member("name").text(), batch != 0 ? batch : stated).read();
}

NetworkFileInfo read_network_info(const std::filesystem::path& path) {
  return read_named(path, [](const std::string& text) {
    const json document = parse_json(text);
    const JsonReader file(document);
    check_header(file);
    NetworkFileInfo info{.name = file.member("name").text(),
                         .batch = file.member("batch").integer(1, kMostBatch),
                         .any_batch = takes_any_batch(file.member("training")),
                         .has_evaluation = file.has("evaluation"),
                         .without_values = {},
                         .input = {}};
    const JsonReader tensors = file.member("training").member("tensors");
    for (size_t i = 0; i < tensors.size(); ++i) {
      const JsonReader tensor = tensors.item(i);
      if (tensor.member("role").text() == to_string(Role::statistic) && !tensor.has("init"))
        info.without_values.push_back(tensor.member("name").text());
    }
    info.input = input_of(network_from_json(text), info.batch);
    return info;
  });
}

std::string graph_name(const std::filesystem::path& file) { return std::string(kPrefix) + file.string(); }

std::optional<std::string> network_file_of(std::string_view model) {
  if (!model.starts_with(kPrefix)) return std::nullopt;
  return std::string(model.substr(kPrefix.size()));
}

bool has_evaluation(std::string_view model) {
  const auto file = network_file_of(model);
  return !file || read_network_info(*file).has_evaluation;
}

Network build_network_file(const std::string& file, const ModelInput& input) {
  return read_named(file, [&](const std::string& text) {
    Network network = network_from_json(text, input.batch, input.training);
    expect_input(input, input_of(network, input.batch));
    return network;
  });
}

}  // namespace plimsoll
