// Graphs as JSON: tensors and ops in their order, a line each, referring to each other by name.
#include <fmt/format.h>

#include <cmath>

#include "base/json_reader.h"
#include "graph/json_parts.h"
#include "plimsoll/graph.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
constexpr std::string_view kFormat = "plimsoll graph";
constexpr int64_t kVersion = 1;

constexpr Phase kPhases[] = {Phase::forward, Phase::backward, Phase::update};

ordered_json real_json(double value, std::string_view of) {
  if (!std::isfinite(value))
    throw Error(ErrorCode::invalid_input, fmt::format("'{}' has the value {}, which cannot be saved", of, value));
  return value;
}

ordered_json tensor_json(const Tensor& t) {
  ordered_json j = {{"name", t.name}, {"shape", t.shape}, {"dtype", to_string(t.dtype)}, {"role", to_string(t.role)}};
  if (!t.layout.tag.empty()) j["layout"] = t.layout.tag;
  if (t.init != Initializer{}) {
    j["init"] = {{"kind", to_string(t.init.kind)},
                 {"mean", real_json(t.init.mean, t.name)},
                 {"scale", real_json(t.init.scale, t.name)}};
  }
  if (t.block.is_block()) j["block"] = {{"whole", t.block.whole}, {"first", t.block.first}, {"rows", t.block.rows}};
  if (t.shard.is_shard()) j["shard"] = {{"whole", t.shard.whole}, {"shape", t.shard.shape}, {"ranks", t.shard.ranks}};
  return j;
}

ordered_json attributes_json(const Op& op) {
  ordered_json j = ordered_json::object();
  for (const auto& [name, attribute] : op.attributes.items()) {
    if (const double* real = std::get_if<double>(&attribute)) {
      if (std::isinf(*real)) {
        j[name] = *real > 0 ? "inf" : "-inf";
      } else {
        j[name] = real_json(*real, op.name);
      }
    } else if (const auto* reals = std::get_if<std::vector<double>>(&attribute)) {
      j[name] = ordered_json::array();
      for (double each : *reals) j[name].push_back(real_json(each, op.name));
    } else {
      std::visit([&, &key = name](const auto& value) { j[key] = value; }, attribute);
    }
  }
  return j;
}

ordered_json op_json(const Graph& graph, const Op& op) {
  auto names = [&](const std::vector<TensorId>& ids) {
    ordered_json list = ordered_json::array();
    for (TensorId id : ids) list.push_back(graph.tensor(id).name);
    return list;
  };
  ordered_json j = {{"type", op.type->name}, {"name", op.name}, {"layer", op.layer}, {"phase", to_string(op.phase)}};
  if (op.forward.valid()) j["forward"] = graph.op(op.forward).name;
  j["inputs"] = names(op.inputs);
  j["outputs"] = names(op.outputs);
  if (!op.attributes.items().empty()) j["attributes"] = attributes_json(op);
  return j;
}

// Tensors and ops refer to each other in both directions, so the names are collected first.
class GraphReader {
 public:
  explicit GraphReader(const JsonReader& file) : file_(file) {}

  Graph read() {
    file_.only({"format", "version", "name", "tensors", "ops", "inputs", "outputs", "states"});
    if (file_.member("format").text() != kFormat) file_.member("format").expected(fmt::format("\"{}\"", kFormat));
    file_.member("version").integer(kVersion, kVersion);
    const JsonReader tensors = file_.member("tensors"), ops = file_.member("ops");
    for (size_t i = 0; i < tensors.size(); ++i) read_tensor(tensors.item(i), static_cast<int32_t>(i));
    for (size_t i = 0; i < ops.size(); ++i) {
      const JsonReader name = ops.item(i).member("name");
      if (!op_ids_.emplace(name.text(), OpId{static_cast<int32_t>(i)}).second)
        name.fail(fmt::format("there are two ops '{}'", name.text()));
    }
    for (size_t i = 0; i < ops.size(); ++i) read_op(ops.item(i), {static_cast<int32_t>(i)});
    Graph graph = Graph::from_parts(file_.member("name").text(), std::move(tensors_), std::move(ops_));
    graph.inputs = ids(file_.member("inputs"));
    graph.outputs = ids(file_.member("outputs"));
    const JsonReader states = file_.member("states");
    for (size_t i = 0; i < states.size(); ++i) {
      const JsonReader pair = states.item(i);
      if (pair.size() != 2) pair.fail("two names were expected: the state before and after the step");
      graph.states.push_back({tensor_id(pair.item(0)), tensor_id(pair.item(1))});
    }
    check_shapes(graph, ops);
    try {
      check(graph);
    } catch (const Error& error) {
      throw Error(ErrorCode::corrupt_file, error.what());
    }
    return graph;
  }

 private:
  void read_tensor(const JsonReader& r, int32_t index) {
    r.only({"name", "shape", "dtype", "role", "layout", "init", "block", "shard"});
    Tensor t;
    const JsonReader name = r.member("name"), shape = r.member("shape");
    t.name = name.text();
    if (!tensor_ids_.emplace(t.name, TensorId{index}).second)
      name.fail(fmt::format("there are two tensors '{}'", t.name));
    int64_t elements = 1;
    for (size_t i = 0; i < shape.size(); ++i) {
      t.shape.push_back(shape.item(i).integer(1, kMostElements / elements));
      elements *= t.shape.back();
    }
    t.dtype = read_dtype(r.member("dtype"));
    t.role = read_role(r.member("role"));
    if (r.has("layout")) {
      const JsonReader layout = r.member("layout");
      t.layout.tag = layout.text();
      try {
        t.bytes();
      } catch (const Error& error) {
        layout.fail(error.what());
      }
    }
    if (r.has("init")) t.init = read_initializer(r.member("init"));
    if (r.has("block")) {
      const JsonReader block = r.member("block");
      block.only({"whole", "first", "rows"});
      t.block = {block.member("whole").text(), block.member("first").integer(0, kMostElements),
                 block.member("rows").integer(1, kMostElements)};
    }
    if (r.has("shard")) {
      const JsonReader shard = r.member("shard");
      shard.only({"whole", "shape", "ranks"});
      t.shard = {shard.member("whole").text(), {}, shard.member("ranks").integer(1, kMostElements)};
      const JsonReader whole = shard.member("shape");
      int64_t left = kMostElements;
      for (size_t i = 0; i < whole.size(); ++i) {
        t.shard.shape.push_back(whole.item(i).integer(1, left));
        left /= t.shard.shape.back();
      }
    }
    tensors_.push_back(std::move(t));
  }

  void read_op(const JsonReader& r, OpId id) {
    r.only({"type", "name", "layer", "phase", "forward", "inputs", "outputs", "attributes"});
    Op op;
    const JsonReader type = r.member("type");
    try {
      op.type = &op_type(type.text());
    } catch (const Error& error) {
      type.fail(error.what());
    }
    op.name = r.member("name").text();
    op.layer = r.member("layer").text();
    op.phase = read_named(r.member("phase"), kPhases);
    if (r.has("forward")) {
      const JsonReader forward = r.member("forward");
      const auto it = op_ids_.find(forward.text());
      if (it == op_ids_.end()) forward.fail(fmt::format("there is no op '{}'", forward.text()));
      op.forward = it->second;
    }
    op.inputs = ids(r.member("inputs"));
    const JsonReader outputs = r.member("outputs");
    op.outputs = ids(outputs);
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      OpId& producer = tensors_[op.outputs[i].index].producer;
      if (producer.valid()) outputs.item(i).fail(fmt::format("'{}' is made by two ops", outputs.item(i).text()));
      producer = id;
    }
    if (r.has("attributes")) op.attributes = read_attributes(r.member("attributes"));
    ops_.push_back(std::move(op));
  }

  TensorId tensor_id(const JsonReader& r) const {
    const auto it = tensor_ids_.find(r.text());
    if (it == tensor_ids_.end()) r.fail(fmt::format("there is no tensor '{}'", r.text()));
    return it->second;
  }
  std::vector<TensorId> ids(const JsonReader& r) const {
    std::vector<TensorId> result;
    for (size_t i = 0; i < r.size(); ++i) result.push_back(tensor_id(r.item(i)));
    return result;
  }

  // The outputs are what the op type makes of the inputs.
  static void check_shapes(const Graph& graph, const JsonReader& ops) {
    for (int32_t i = 0; i < graph.op_count(); ++i) {
      const Op& op = graph.op({i});
      const JsonReader place = ops.item(i);
      std::vector<const Tensor*> inputs;
      for (TensorId id : op.inputs) inputs.push_back(&graph.tensor(id));
      std::vector<TensorSpec> specs;
      try {
        specs = op.type->infer(op.attributes, inputs);
      } catch (const Error& error) {
        place.fail(fmt::format("op '{}' ({}): {}", op.name, op.type->name, error.what()));
      }
      if (specs.size() != op.outputs.size()) {
        place.fail(fmt::format("op '{}' ({}) makes {} tensors, not {}", op.name, op.type->name, specs.size(),
                               op.outputs.size()));
      }
      for (size_t o = 0; o < specs.size(); ++o) {
        const Tensor& t = graph.tensor(op.outputs[o]);
        if (t.shape == specs[o].shape && t.dtype == specs[o].dtype) continue;
        place.fail(fmt::format("op '{}' ({}) makes '{}' of {} {}, not {} {}", op.name, op.type->name, t.name,
                               to_string(specs[o].shape), to_string(specs[o].dtype), to_string(t.shape),
                               to_string(t.dtype)));
      }
    }
  }

  const JsonReader& file_;
  std::vector<Tensor> tensors_;
  std::vector<Op> ops_;
  std::map<std::string, TensorId, std::less<>> tensor_ids_;
  std::map<std::string, OpId, std::less<>> op_ids_;
};

}  // namespace

std::string to_json(const Graph& graph) {
  std::string out = "{\n";
  out += fmt::format(" \"format\": \"{}\",\n \"version\": {},\n \"name\": {},\n", kFormat, kVersion,
                     json(graph.name).dump());
  std::string separator = "\n  ";
  out += " \"tensors\": [";
  for (const Tensor& t : graph.tensors()) {
    out += separator + tensor_json(t).dump();
    separator = ",\n  ";
  }
  separator = "\n  ";
  out += "\n ],\n \"ops\": [";
  for (const Op& op : graph.ops()) {
    out += separator + op_json(graph, op).dump();
    separator = ",\n  ";
  }
  auto names = [&](const std::vector<TensorId>& ids) {
    ordered_json list = ordered_json::array();
    for (TensorId id : ids) list.push_back(graph.tensor(id).name);
    return list.dump();
  };
  ordered_json states = ordered_json::array();
  for (const State& state : graph.states)
    states.push_back({graph.tensor(state.before).name, graph.tensor(state.after).name});
  out += fmt::format("\n ],\n \"inputs\": {},\n \"outputs\": {},\n \"states\": {}\n}}\n", names(graph.inputs),
                     names(graph.outputs), states.dump());
  return out;
}

Graph graph_from_json(std::string_view text) {
  const json document = parse_json(text);
  const JsonReader file(document);
  return GraphReader(file).read();
}

}  // namespace plimsoll
