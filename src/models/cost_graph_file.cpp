#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"
#include "base/json_reader.h"
#include "plimsoll/cost_graph.h"
#include "plimsoll/network_file.h"

namespace plimsoll {
namespace {

using nlohmann::json;

constexpr std::string_view kKernel = "file";
constexpr double kMostMs = 1e15;

int64_t size_of(const JsonReader& r) { return r.integer(0, kMostElements); }
// Nothing has no place in an arena: it takes as little as there is.
int64_t stored(int64_t bytes) { return std::max<int64_t>(bytes, 1); }

double ms_of(const JsonReader& r) {
  const double ms = r.number();
  if (!(ms >= 0 && ms <= kMostMs)) r.expected(fmt::format("milliseconds from 0 to {}", kMostMs));
  return ms;
}

template <class Body>
void at(const JsonReader& place, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_input) throw;
    place.fail(error.what());
  }
}

// {"sources": [BYTES...], "nodes": [{"name", "ms", "out": [BYTES...], "in": [[NODE, OUTPUT] | ["source", INDEX]...]}...],
// "keep": [[NODE, OUTPUT]...], "peak_bytes"}: nodes in the order in which they run.
class NodesReader {
 public:
  explicit NodesReader(const JsonReader& file) : file_(file) {}

  CostGraph read() {
    file_.only({"about", "sources", "nodes", "keep", "peak_bytes"});
    if (file_.has("sources")) {
      const JsonReader sources = file_.member("sources");
      for (size_t i = 0; i < sources.size(); ++i) {
        const int64_t bytes = size_of(sources.item(i));
        sources_.push_back(bytes == 0 ? TensorId{} : graph().add_source(fmt::format("source {}", i), {bytes}, DType::u8, Role::parameter));
      }
    }
    const JsonReader nodes = file_.member("nodes");
    for (size_t i = 0; i < nodes.size(); ++i) read_node(nodes.item(i));
    if (file_.has("keep")) {
      const JsonReader keep = file_.member("keep");
      for (size_t i = 0; i < keep.size(); ++i) {
        const TensorId id = tensor(keep.item(i));
        if (!id.valid() || !graph().tensor(id).producer.valid()) continue;  // a source stays
        if (std::ranges::find(graph().outputs, id) != graph().outputs.end()) continue;
        graph().tensor(id).role = Role::output;
        graph().outputs.push_back(id);
      }
    }
    return std::move(result_);
  }

 private:
  Graph& graph() { return result_.graph; }

  // Invalid: a source without bytes, of which there is nothing to plan.
  TensorId tensor(const JsonReader& r) {
    if (r.size() != 2) r.expected("[node, output] or [\"source\", index]");
    if (r.item(0).raw().is_string()) {
      if (r.item(0).text() != "source") r.item(0).expected("a node's index, or \"source\"");
      if (sources_.empty()) r.fail("there are no sources");
      return sources_[static_cast<size_t>(r.item(1).integer(0, std::ssize(sources_) - 1))];
    }
    const int64_t node = r.item(0).integer(0);
    if (node >= graph().op_count())
      r.fail(fmt::format("there is no node {} yet: nodes stand in the order in which they run", node));
    const Op& op = graph().op({static_cast<int32_t>(node)});
    if (op.outputs.empty()) r.fail(fmt::format("node {} has no outputs", node));
    return op.outputs[static_cast<size_t>(r.item(1).integer(0, std::ssize(op.outputs) - 1))];
  }

  void read_node(const JsonReader& r) {
    r.only({"name", "ms", "out", "in"});
    std::vector<int64_t> bytes;
    const JsonReader out = r.member("out"), in = r.member("in");
    for (size_t i = 0; i < out.size(); ++i) bytes.push_back(stored(size_of(out.item(i))));
    std::vector<TensorId> inputs;
    for (size_t i = 0; i < in.size(); ++i) {
      if (const TensorId id = tensor(in.item(i)); id.valid()) inputs.push_back(id);
    }
    const std::string name = r.has("name") ? r.member("name").text() : fmt::format("node {}", graph().op_count());
    const double ms = ms_of(r.member("ms"));
    at(r, [&] { graph().add_op("Costed", name, name, std::move(inputs), {{"ms", ms}, {"bytes", std::move(bytes)}}); });
    result_.kernels.push_back({std::string(kKernel), {}});
  }

  const JsonReader& file_;
  CostGraph result_;
  std::vector<TensorId> sources_;
};

}  // namespace

CostGraph cost_graph_from_json(std::string_view text) {
  const json document = parse_json(text);
  const JsonReader file(document);
  CostGraph result = NodesReader(file).read();
  if (result.graph.op_count() == 0) file.fail("there are no ops in it");
  return result;
}

bool is_cost_graph(std::string_view model) {
  const auto file = network_file_of(model);
  std::error_code ignored;
  if (!file || !std::filesystem::is_regular_file(*file, ignored)) return false;
  try {
    const json document = parse_json(read_file(*file));
    return document.is_object() && !document.contains("format") && document.contains("nodes");
  } catch (const Error&) {
    return false;  // whoever reads it says what is wrong
  }
}

CostGraph read_cost_graph(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  try {
    CostGraph result = cost_graph_from_json(text);
    if (result.graph.name.empty()) result.graph.name = file.stem().string();
    return result;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", file.string(), error.what()));
  }
}

}  // namespace plimsoll
