// Files of graphs of costs only: our own format, to be written too, and two that others write.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <set>

#include "base/files.h"
#include "graph/json_parts.h"
#include "models/cost_graph_builder.h"
#include "models/graph_kind.h"
#include "plimsoll/network_file.h"

namespace plimsoll {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kCostGraphVersion = 1;
constexpr int64_t kMostCostBatch = int64_t{1} << 24;
constexpr Phase kPhases[] = {Phase::forward, Phase::backward, Phase::update};

// Of sizes and times that grow with the batch.
class Scale {
 public:
  Scale(int64_t stated, int64_t batch)
      : factor_(stated > 0 && batch > 0 ? static_cast<double>(batch) / static_cast<double>(stated) : 1) {}

  // `of`: an object, of which the share "scales" of a number grows with the batch.
  double ms(const JsonReader& of, double stated) const { return stated * factor(of); }
  int64_t bytes(const JsonReader& of, int64_t stated) const {
    const double scaled = std::ceil(static_cast<double>(stated) * factor(of) - 1e-6);
    if (factor_ == 1 || !of.has("scales")) return stated;
    if (scaled > static_cast<double>(kMostElements))
      throw Error(ErrorCode::invalid_input,
                  fmt::format("with this batch a tensor has more than {} bytes", kMostElements));
    return static_cast<int64_t>(scaled);
  }

 private:
  double factor(const JsonReader& of) const {
    if (!of.has("scales")) return 1;
    const JsonReader share = of.member("scales");
    const double scales = share.number();
    if (!(scales >= 0 && scales <= 1)) share.expected("a share from 0 to 1");
    return 1 + scales * (factor_ - 1);
  }
  double factor_;
};

// Our own format.
class CostGraphReader {
 public:
  CostGraphReader(const JsonReader& file, int64_t batch)
      : file_(file),
        stated_(file.has("batch") ? file.member("batch").integer(1, kMostCostBatch) : 0),
        scale_(stated_, batch) {}

  CostGraph read() {
    file_.only({"format", "version", "about", "name", "batch", "peak_bytes", "sources", "ops", "keep"});
    file_.member("version").integer(kCostGraphVersion, kCostGraphVersion);
    if (file_.has("name")) builder_.graph().name = file_.member("name").text();
    if (file_.has("sources")) {
      const JsonReader sources = file_.member("sources");
      for (size_t i = 0; i < sources.size(); ++i) read_source(sources.item(i));
    }
    const JsonReader ops = file_.member("ops");
    for (size_t i = 0; i < ops.size(); ++i) read_op(ops.item(i));
    if (file_.has("keep")) {
      const JsonReader keep = file_.member("keep");
      for (size_t i = 0; i < keep.size(); ++i) builder_.keep(tensor(keep.item(i)));
    }
    for (const auto& [source, next] : next_) builder_.set_next(next, source, tensor(next));
    CostGraph result = std::move(builder_).finish(file_);
    result.batch = stated_;
    return result;
  }

 private:
  Graph& graph() { return builder_.graph(); }

  TensorId tensor(const JsonReader& r) {
    const TensorId id = graph().find_tensor(r.text());
    if (!id.valid())
      r.fail(fmt::format("there is no tensor '{}' yet; ops stand after those that make their inputs", r.text()));
    return id;
  }

  void read_source(const JsonReader& r) {
    r.only({"name", "bytes", "role", "next", "scales"});
    const Role role = r.has("role") ? read_role(r.member("role")) : Role::parameter;
    if (role == Role::activation || role == Role::gradient || role == Role::output)
      r.member("role").expected(
          "what comes from outside (input, hyperparameter, parameter, optimizer_state or statistic)");
    const int64_t bytes = scale_.bytes(r, CostGraphBuilder::read_bytes(r.member("bytes")));
    const TensorId id = builder_.add_source(r, r.member("name").text(), bytes, role);
    if (r.has("next")) next_.emplace_back(id, r.member("next"));
  }

  // Which of the op's inputs has this name.
  static int input_named(const JsonReader& name, const JsonReader& inputs) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs.item(i).text() == name.text()) return static_cast<int>(i);
    }
    name.fail(fmt::format("'{}' is no input of the op", name.text()));
  }

  CostedOutput read_output(const JsonReader& r, const JsonReader& inputs) {
    r.only({"name", "bytes", "role", "may_overwrite", "must_overwrite", "once", "scales"});
    CostedOutput output{.name = r.member("name").text(),
                        .bytes = scale_.bytes(r, CostGraphBuilder::read_bytes(r.member("bytes")))};
    if (r.has("role")) output.role = read_role(r.member("role"));
    if (output.role == Role::output) r.member("role").fail("name it in \"keep\": then it is an output");
    if (r.has("may_overwrite")) {
      const JsonReader list = r.member("may_overwrite");
      for (size_t i = 0; i < list.size(); ++i) output.may_overwrite.push_back(input_named(list.item(i), inputs));
    }
    if (r.has("must_overwrite")) output.must_overwrite = input_named(r.member("must_overwrite"), inputs);
    if (r.has("once")) output.once = r.member("once").boolean();
    return output;
  }

  void read_op(const JsonReader& r) {
    r.only({"name", "layer", "ms", "workspace", "inputs", "outputs", "again", "view", "phase", "forward", "kind",
            "kernel", "scales"});
    CostedOp op{.name = r.member("name").text()};
    op.view = r.has("view") && r.member("view").boolean();
    if (r.has("ms")) op.ms = scale_.ms(r, CostGraphBuilder::read_ms(r.member("ms")));
    if (!op.view && !r.has("ms")) r.member("ms");  // is missing
    if (op.view && op.ms != 0) r.member("ms").expected("0, or nothing, since a view runs nothing,");
    if (r.has("workspace")) op.workspace = scale_.bytes(r, CostGraphBuilder::read_bytes(r.member("workspace")));
    const JsonReader inputs = r.member("inputs"), outputs = r.member("outputs");
    for (size_t i = 0; i < inputs.size(); ++i) op.inputs.push_back(tensor(inputs.item(i)));
    for (size_t i = 0; i < outputs.size(); ++i) op.outputs.push_back(read_output(outputs.item(i), inputs));
    if (r.has("again")) op.again = r.member("again").boolean();
    if (r.has("layer")) op.layer = r.member("layer").text();
    if (r.has("phase")) op.phase = read_named(r.member("phase"), kPhases);
    if (r.has("kernel")) op.kernel = r.member("kernel").text();
    if (r.has("forward")) {
      const JsonReader forward = r.member("forward");
      op.forward = graph().find_op(forward.text());
      if (!op.forward.valid()) forward.fail(fmt::format("there is no op '{}' yet", forward.text()));
    }
    if (r.has("kind")) {
      op.kind = r.member("kind").text();
      try {
        layer_kind_named(op.kind);
      } catch (const Error& error) {
        r.member("kind").fail(error.what());
      }
    }
    builder_.add_op(r, std::move(op));
  }

  const JsonReader& file_;
  const int64_t stated_;
  const Scale scale_;
  CostGraphBuilder builder_;
  std::vector<std::pair<TensorId, JsonReader>> next_;
};

// {"sources": [BYTES...], "nodes": [{"name", "ms", "out": [BYTES...], "in": [[NODE, OUTPUT] or ["source", INDEX]...]}...],
// "keep": [[NODE, OUTPUT]...], "peak_bytes"}: nodes in the order in which they run.
class NodeListReader {
 public:
  explicit NodeListReader(const JsonReader& file) : file_(file) {}

  CostGraph read() {
    file_.only({"about", "sources", "nodes", "keep", "peak_bytes"});
    if (file_.has("sources")) {
      const JsonReader sources = file_.member("sources");
      for (size_t i = 0; i < sources.size(); ++i) {
        const JsonReader source = sources.item(i);
        const int64_t bytes = CostGraphBuilder::read_bytes(source);
        sources_.push_back(
            bytes == 0 ? TensorId{} : builder_.add_source(source, fmt::format("source {}", i), bytes, Role::parameter));
      }
    }
    const JsonReader nodes = file_.member("nodes");
    for (size_t i = 0; i < nodes.size(); ++i) read_node(nodes.item(i));
    if (file_.has("keep")) {
      const JsonReader keep = file_.member("keep");
      for (size_t i = 0; i < keep.size(); ++i) {
        if (const TensorId id = tensor(keep.item(i)); id.valid()) builder_.keep(id);
      }
    }
    return std::move(builder_).finish(file_);
  }

 private:
  // Invalid: a source without bytes, of which there is nothing to plan.
  TensorId tensor(const JsonReader& r) {
    if (r.size() != 2) r.expected("[node, output] or [\"source\", index]");
    if (r.item(0).raw().is_string()) {
      if (r.item(0).text() != "source") r.item(0).expected("a node's index, or \"source\"");
      if (sources_.empty()) r.fail("there are no sources");
      return sources_[static_cast<size_t>(r.item(1).integer(0, std::ssize(sources_) - 1))];
    }
    const Graph& graph = builder_.graph();
    const int64_t node = r.item(0).integer(0);
    if (node >= graph.op_count())
      r.fail(fmt::format("there is no node {} yet: nodes stand in the order in which they run", node));
    const Op& op = graph.op({static_cast<int32_t>(node)});
    if (op.outputs.empty()) r.fail(fmt::format("node {} has no outputs", node));
    return op.outputs[static_cast<size_t>(r.item(1).integer(0, std::ssize(op.outputs) - 1))];
  }

  void read_node(const JsonReader& r) {
    r.only({"name", "ms", "out", "in"});
    CostedOp op{.name = r.has("name") ? r.member("name").text() : fmt::format("node {}", builder_.graph().op_count()),
                .ms = CostGraphBuilder::read_ms(r.member("ms"))};
    const JsonReader out = r.member("out"), in = r.member("in");
    for (size_t i = 0; i < out.size(); ++i)
      op.outputs.push_back({.name = {}, .bytes = CostGraphBuilder::read_bytes(out.item(i))});
    for (size_t i = 0; i < in.size(); ++i) {
      if (const TensorId id = tensor(in.item(i)); id.valid()) op.inputs.push_back(id);
    }
    builder_.add_op(r, std::move(op));
  }

  const JsonReader& file_;
  CostGraphBuilder builder_;
  std::vector<TensorId> sources_;
};

// networkx's node-link JSON: nodes with "id", "cost_cpu" and "cost_ram", and directed links. Nodes run in the order of the
// list as far as the links allow it; what nobody reads is a result, and kept.
class NodeLinkReader {
 public:
  explicit NodeLinkReader(const JsonReader& file) : file_(file), nodes_(file.member("nodes")) {}

  CostGraph read() {
    if (file_.has("directed") && !file_.member("directed").boolean()) file_.member("directed").expected("true");
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const JsonReader id = nodes_.item(i).member("id");
      if (!index_.emplace(id_text(id), i).second) id.fail(fmt::format("there are two nodes {}", id_text(id)));
    }
    read_links();
    for (const size_t node : order()) add(node);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (readers_[i].empty()) builder_.keep(builder_.graph().output(made_[i]));
    }
    return std::move(builder_).finish(file_);
  }

 private:
  static std::string id_text(const JsonReader& r) {
    if (!r.raw().is_string() && !r.raw().is_number_integer()) r.expected("a node's id (a text or an integer)");
    return r.raw().is_string() ? r.text() : r.raw().dump();
  }

  void read_links() {
    if (file_.has("links") && file_.has("edges"))
      file_.fail("it has \"links\" and \"edges\": networkx writes one of them");
    const JsonReader links = file_.member(file_.has("links") ? "links" : "edges");
    inputs_.resize(nodes_.size());
    readers_.resize(nodes_.size());
    std::set<std::pair<size_t, size_t>> seen;
    const auto end = [&](const JsonReader& r) {
      const auto node = index_.find(id_text(r));
      if (node == index_.end()) r.fail(fmt::format("there is no node {}", id_text(r)));
      return node->second;
    };
    for (size_t i = 0; i < links.size(); ++i) {
      const size_t from = end(links.item(i).member("source")), to = end(links.item(i).member("target"));
      if (!seen.emplace(from, to).second) continue;
      inputs_[to].push_back(from);
      readers_[from].push_back(to);
    }
  }

  std::vector<size_t> order() const {
    std::vector<size_t> waiting(nodes_.size()), order;
    std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      waiting[i] = inputs_[i].size();
      if (waiting[i] == 0) ready.push(i);
    }
    for (; !ready.empty();) {
      const size_t node = ready.top();
      ready.pop();
      order.push_back(node);
      for (const size_t reader : readers_[node]) {
        if (--waiting[reader] == 0) ready.push(reader);
      }
    }
    for (size_t i = 0; i < nodes_.size() && order.size() < nodes_.size(); ++i) {
      if (waiting[i] > 0) nodes_.item(i).fail("the links form a cycle, in which this node waits for its own result");
    }
    return order;
  }

  void add(size_t node) {
    const JsonReader r = nodes_.item(node);
    CostedOp op{.name = r.has("name") && r.member("name").raw().is_string()
                            ? fmt::format("{} {}", r.member("name").text(), id_text(r.member("id")))
                            : id_text(r.member("id")),
                .ms = CostGraphBuilder::read_ms(r.member("cost_cpu"))};
    for (const size_t input : inputs_[node]) op.inputs.push_back(builder_.graph().output(made_[input]));
    op.outputs.push_back({.name = {}, .bytes = read_ram(r.member("cost_ram"))});
    made_.resize(nodes_.size());
    made_[node] = builder_.add_op(r, std::move(op));
  }

  // Python writes whole numbers as 4.0, too.
  static int64_t read_ram(const JsonReader& r) {
    if (!r.raw().is_number_float()) return CostGraphBuilder::read_bytes(r);
    const double bytes = r.number();
    if (!(bytes >= 0 && bytes <= static_cast<double>(kMostElements)) || bytes != std::floor(bytes))
      r.expected(fmt::format("whole bytes from 0 to {}", kMostElements));
    return static_cast<int64_t>(bytes);
  }

  const JsonReader& file_;
  const JsonReader nodes_;
  std::map<std::string, size_t> index_;
  std::vector<std::vector<size_t>> inputs_, readers_;  // by place in the list
  std::vector<OpId> made_;
  CostGraphBuilder builder_;
};

// What the file says that keeping everything takes; zeros that have a byte here are no difference.
void check_peak(const JsonReader& file, const CostGraph& costs) {
  if (!file.has("peak_bytes")) return;
  const JsonReader peak = file.member("peak_bytes");
  const int64_t stated = peak.integer(0), found = keeping_everything(costs).count;
  if (std::abs(stated - found) > costs.graph.tensor_count())
    peak.fail(fmt::format("is {}, but with every value kept from the op that makes it to its last reader it is {}",
                          stated, found));
}

}  // namespace

CostGraph cost_graph_from_json(std::string_view text, int64_t batch) {
  const json document = parse_json(text);
  const JsonReader file(document);
  const GraphKind kind = graph_kind(file);
  if (kind == GraphKind::network)
    throw Error(ErrorCode::invalid_input,
                fmt::format("this is a network (\"{}\"), not a graph of costs", kNetworkFormat));
  if (batch != 0 && !(kind == GraphKind::cost_graph && file.has("batch")))
    throw Error(ErrorCode::invalid_input,
                "the graph does not say what scales with the batch: there is no \"batch\" in it");
  CostGraph costs = kind == GraphKind::cost_graph  ? CostGraphReader(file, batch).read()
                    : kind == GraphKind::node_list ? NodeListReader(file).read()
                                                   : NodeLinkReader(file).read();
  if (batch == 0 || batch == costs.batch) check_peak(file, costs);
  if (batch != 0) costs.batch = batch;
  return costs;
}

CostGraph read_cost_graph(const std::filesystem::path& file, int64_t batch) {
  CostGraph costs = read_named(file, [&](const std::string& text) { return cost_graph_from_json(text, batch); });
  if (costs.graph.name.empty()) costs.graph.name = file.stem().string();
  return costs;
}

GraphFile kind_of_graph_file(const std::filesystem::path& file) {
  return read_named(file, [](const std::string& text) {
    const json document = parse_json(text);
    return graph_kind(JsonReader(document)) == GraphKind::network ? GraphFile::network : GraphFile::costs;
  });
}

bool is_cost_graph(std::string_view model) {
  const auto file = network_file_of(model);
  return file && kind_of_graph_file(*file) == GraphFile::costs;
}

namespace {

ordered_json op_json(const CostGraph& costs, OpId id) {
  const Graph& graph = costs.graph;
  const Op& op = graph.op(id);
  ordered_json inputs = ordered_json::array(), outputs = ordered_json::array();
  for (TensorId input : op.inputs) inputs.push_back(graph.tensor(input).name);
  const std::vector<InPlace> pairs = op.type->in_place(graph, op);
  const std::vector<int> once = state_outputs(op);
  for (size_t o = 0; o < op.outputs.size(); ++o) {
    const Tensor& tensor = graph.tensor(op.outputs[o]);
    ordered_json output{{"name", tensor.name}, {"bytes", tensor.bytes().count}};
    if (tensor.role != Role::activation && tensor.role != Role::output) output["role"] = to_string(tensor.role);
    for (const InPlace& pair : pairs) {
      if (pair.output != static_cast<int>(o) || op.type->is_view) continue;
      const std::string& input = graph.tensor(op.inputs[static_cast<size_t>(pair.input)]).name;
      if (pair.required) {
        output["must_overwrite"] = input;
      } else {
        output["may_overwrite"].push_back(input);
      }
    }
    if (std::ranges::find(once, static_cast<int>(o)) != once.end()) output["once"] = true;
    outputs.push_back(std::move(output));
  }
  const KernelChoice& kernel = costs.kernels[static_cast<size_t>(id.index)];
  ordered_json j{{"name", op.name}};
  if (op.layer != op.name) j["layer"] = op.layer;
  if (op.type->is_view) {
    j["view"] = true;
  } else {
    j["ms"] = op.attributes.real("ms");
  }
  if (kernel.workspace.count > 0) j["workspace"] = kernel.workspace.count;
  j["inputs"] = std::move(inputs);
  j["outputs"] = std::move(outputs);
  if (op.type->changes_state) j["again"] = false;
  if (op.phase != Phase::forward) j["phase"] = to_string(op.phase);
  if (op.forward.valid()) j["forward"] = graph.op(op.forward).name;
  if (op.attributes.has("kind")) j["kind"] = op.attributes.text("kind");
  if (!op.type->is_view && kernel.kernel != "file") j["kernel"] = kernel.kernel;
  return j;
}

}  // namespace

std::string to_json(const CostGraph& costs) {
  const Graph& graph = costs.graph;
  std::string out =
      fmt::format("{{\n \"format\": \"{}\",\n \"version\": {},\n \"name\": {},\n \"peak_bytes\": {},\n \"sources\": [",
                  kCostGraphFormat, kCostGraphVersion, json(graph.name).dump(), keeping_everything(costs).count);
  std::string separator = "\n  ";
  std::map<TensorId, TensorId> next;
  for (const State& state : graph.states) next[state.before] = state.after;
  for (int32_t i = 0; i < graph.tensor_count(); ++i) {
    const Tensor& tensor = graph.tensor({i});
    if (tensor.producer.valid()) continue;
    ordered_json j{{"name", tensor.name}, {"bytes", tensor.bytes().count}, {"role", to_string(tensor.role)}};
    if (const auto after = next.find({i}); after != next.end() && after->second.index != i)
      j["next"] = graph.tensor(after->second).name;
    out += separator + j.dump();
    separator = ",\n  ";
  }
  out += "\n ],\n \"ops\": [";
  separator = "\n  ";
  for (OpId id{0}; id.index < graph.op_count(); ++id.index) {
    out += separator + op_json(costs, id).dump();
    separator = ",\n  ";
  }
  ordered_json keep = ordered_json::array();
  for (TensorId id : graph.outputs) keep.push_back(graph.tensor(id).name);
  return out + fmt::format("\n ],\n \"keep\": {}\n}}\n", keep.dump());
}

}  // namespace plimsoll
