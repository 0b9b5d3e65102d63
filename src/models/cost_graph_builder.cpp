#include "models/cost_graph_builder.h"

#include <fmt/format.h>

#include <algorithm>

namespace plimsoll {
namespace {

constexpr double kMostMs = 1e15;
constexpr int32_t kMostOps = 1'000'000;  // sums of as many sizes and times stay numbers

// Nothing has no place in an arena.
int64_t at_least_one(int64_t bytes) { return std::max<int64_t>(bytes, 1); }

// What the graph refuses, with the place in the file.
template <class Body>
auto at_place(const JsonReader& place, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_input) throw;
    place.fail(error.what());
  }
}

}  // namespace

double CostGraphBuilder::read_ms(const JsonReader& r) {
  const double ms = r.number();
  if (!(ms >= 0 && ms <= kMostMs)) r.expected(fmt::format("milliseconds from 0 to {}", kMostMs));
  return ms;
}

void CostGraphBuilder::note(TensorId id, TensorId in_bytes_of) {
  bytes_of_.push_back(in_bytes_of.valid() ? bytes_of_[in_bytes_of] : id);
  viewed_.push_back(id);
  overwriter_.emplace_back();
}

TensorId CostGraphBuilder::add_source(const JsonReader& place, std::string name, int64_t bytes, Role role) {
  return at_place(place, [&] {
    const TensorId id = graph().add_source(std::move(name), {at_least_one(bytes)}, DType::u8, role);
    note(id, {});
    return id;
  });
}

void CostGraphBuilder::check_inputs(const JsonReader& place, const CostedOp& op) const {
  const Graph& graph = result_.graph;
  for (TensorId input : op.inputs) {
    const std::string& by = overwriter_[viewed_[input]];
    if (!by.empty())
      place.fail(fmt::format("it reads '{}', which '{}' has overwritten before", graph.tensor(input).name, by));
  }
  for (const CostedOutput& output : op.outputs) {
    std::vector<int> overwritten = output.may_overwrite;
    if (output.must_overwrite >= 0) overwritten.push_back(output.must_overwrite);
    for (int i : overwritten) {
      const Tensor& input = graph.tensor(op.inputs.at(static_cast<size_t>(i)));
      if (input.bytes().count != output.bytes)
        place.fail(fmt::format("an output of {} bytes cannot lie in those of '{}', which has {}", output.bytes,
                               input.name, input.bytes().count));
    }
    if (output.once && output.must_overwrite < 0)
      place.fail("an output that is made once must lie in another's bytes: give its \"must_overwrite\"");
    if (output.must_overwrite < 0) continue;
    const TensorId input = op.inputs[static_cast<size_t>(output.must_overwrite)];
    const std::string& name = graph.tensor(input).name;
    if (viewed_[input] != input)
      place.fail(fmt::format("'{}' is a view, which cannot be overwritten; name what it shows", name));
    const auto shows_it = [&](TensorId other) { return viewed_[other] == input; };
    if (std::ranges::count_if(op.inputs, shows_it) > 1)
      place.fail(fmt::format("'{}', which it must overwrite, is two of its inputs, by itself or as a view", name));
    const auto same = [&](const CostedOutput& other) { return other.must_overwrite == output.must_overwrite; };
    if (std::ranges::count_if(op.outputs, same) > 1)
      place.fail(fmt::format("two of its outputs must overwrite '{}'", name));
  }
}

OpId CostGraphBuilder::add_op(const JsonReader& place, CostedOp op) {
  if (graph().op_count() == kMostOps) place.fail(fmt::format("there are more than {} ops", kMostOps));
  if (op.view && (op.inputs.size() != 1 || op.outputs.size() != 1))
    place.fail(fmt::format("a view has one input and one output, not {} and {}", op.inputs.size(), op.outputs.size()));
  for (CostedOutput& output : op.outputs) output.bytes = at_least_one(output.bytes);
  if (op.view) {
    const Tensor& shown = graph().tensor(op.inputs[0]);
    if (shown.bytes().count != op.outputs[0].bytes)
      place.fail(fmt::format("a view has the bytes of what it shows: '{}' has {}, not {}", shown.name,
                             shown.bytes().count, op.outputs[0].bytes));
  }
  check_inputs(place, op);
  Attributes attributes{{"ms", op.ms}};
  if (op.workspace > 0) attributes.set("workspace", op.workspace);
  if (!op.kind.empty()) attributes.set("kind", op.kind);
  std::vector<int64_t> bytes, in_place, state_outputs;
  std::vector<std::string> names;
  for (size_t o = 0; o < op.outputs.size(); ++o) {
    const CostedOutput& output = op.outputs[o];
    bytes.push_back(output.bytes);
    names.push_back(output.name.empty() ? fmt::format("{}:{}", op.name, o) : output.name);
    const auto add_pair = [&](int input, int64_t required) {
      in_place.insert(in_place.end(), {static_cast<int64_t>(o), input, required});
    };
    if (output.must_overwrite >= 0) add_pair(output.must_overwrite, 1);
    for (int input : output.may_overwrite) add_pair(input, 0);
    if (output.once) state_outputs.push_back(static_cast<int64_t>(o));
  }
  if (!op.view && !bytes.empty()) attributes.set("bytes", std::move(bytes));
  if (!in_place.empty()) attributes.set("in_place", std::move(in_place));
  if (!state_outputs.empty()) attributes.set("state_outputs", std::move(state_outputs));
  const std::string_view type = op.view ? "CostedView" : op.again ? "Costed" : "CostedOnce";
  const OpId id = at_place(place, [&] {
    const std::string& layer = op.layer.empty() ? op.name : op.layer;
    return graph().add_op(type, op.name, layer, op.inputs, std::move(attributes), op.phase, std::move(names));
  });
  graph().op(id).forward = op.forward;
  for (size_t o = 0; o < op.outputs.size(); ++o) {
    const TensorId made = graph().output(id, o);
    if (op.outputs[o].role != Role::activation) graph().tensor(made).role = op.outputs[o].role;
    const int overwritten = op.outputs[o].must_overwrite;
    note(made, op.view ? op.inputs[0] : overwritten >= 0 ? op.inputs[static_cast<size_t>(overwritten)] : TensorId{});
    if (op.view) viewed_[made] = viewed_[op.inputs[0]];
    if (overwritten >= 0) overwriter_[op.inputs[static_cast<size_t>(overwritten)]] = op.name;
  }
  result_.kernels.push_back({op.view ? "" : op.kernel.empty() ? "file" : std::move(op.kernel), {op.workspace}});
  return id;
}

void CostGraphBuilder::keep(TensorId id) {
  if (!kept_.insert(id).second) return;
  Tensor& tensor = graph().tensor(id);
  if (tensor.producer.valid()) tensor.role = Role::output;
  graph().outputs.push_back(id);
}

void CostGraphBuilder::set_next(const JsonReader& place, TensorId source, TensorId next) {
  const auto state = std::ranges::find(graph().states, source, &State::before);
  const std::string& name = graph().tensor(source).name;
  if (state == graph().states.end()) place.fail(fmt::format("'{}' does not stay, so nothing comes after it", name));
  if (viewed_[next] != next || bytes_of_[next] != source || next == source)
    place.fail(fmt::format("'{}' does not lie in the bytes of '{}': its \"must_overwrite\" is to lead there",
                           graph().tensor(next).name, name));
  state->after = next;
}

CostGraph CostGraphBuilder::finish(const JsonReader& file) && {
  if (graph().op_count() == 0) file.fail("there are no ops in it");
  for (const State& state : graph().states) {
    const std::string& by = overwriter_[state.after];
    if (!by.empty())
      file.fail(fmt::format(
          "'{}' overwrites '{}', which stays: the source's \"next\" is to name the last that lies in its bytes", by,
          graph().tensor(state.after).name));
  }
  for (TensorId id : graph().outputs) {
    const std::string& by = overwriter_[viewed_[id]];
    if (!by.empty())
      file.fail(fmt::format("'{}' overwrites '{}', which is kept to the end", by, graph().tensor(id).name));
  }
  return std::move(result_);
}

}  // namespace plimsoll
