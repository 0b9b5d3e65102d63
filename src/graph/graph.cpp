#include "plimsoll/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <set>

#include "base/by_id.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// A layout tag taken apart: the order of the outer dimensions and the inner blocks.
struct ParsedLayout {
  std::vector<int> order;                             // dimension at each outer position
  std::vector<std::pair<int, int64_t>> inner_blocks;  // (dimension, block), outermost first
};

[[noreturn]] void bad_tag(const Layout& layout, size_t rank) {
  throw Error(ErrorCode::invalid_input,
              fmt::format("layout '{}' does not describe a tensor of {} dimensions", layout.tag, rank));
}

ParsedLayout parse(const Layout& layout, size_t rank) {
  ParsedLayout parsed;
  if (layout.tag.empty()) {
    for (size_t d = 0; d < rank; ++d) parsed.order.push_back(static_cast<int>(d));
    return parsed;
  }
  size_t at = 0;
  std::vector<bool> seen(rank, false), blocked(rank, false);
  for (; at < layout.tag.size() && std::isalpha(static_cast<unsigned char>(layout.tag[at])); ++at) {
    const char letter = layout.tag[at];
    const bool capital = letter >= 'A' && letter <= 'Z';
    const size_t dim = letter - (capital ? 'A' : 'a');
    if (dim >= rank || seen[dim]) bad_tag(layout, rank);
    seen[dim] = true;
    blocked[dim] = capital;
    parsed.order.push_back(static_cast<int>(dim));
  }
  if (parsed.order.size() != rank) bad_tag(layout, rank);
  std::vector<bool> has_block(rank, false);
  while (at < layout.tag.size()) {
    int64_t block = 0;
    while (at < layout.tag.size() && std::isdigit(static_cast<unsigned char>(layout.tag[at])) && block < (1 << 20)) {
      block = block * 10 + (layout.tag[at++] - '0');
    }
    if (block <= 0 || at >= layout.tag.size() || layout.tag[at] < 'a') bad_tag(layout, rank);
    const size_t dim = layout.tag[at++] - 'a';
    if (dim >= rank || !blocked[dim]) bad_tag(layout, rank);
    has_block[dim] = true;
    parsed.inner_blocks.emplace_back(static_cast<int>(dim), block);
  }
  if (has_block != blocked) bad_tag(layout, rank);
  return parsed;
}

std::vector<int64_t> blocks_of(const ParsedLayout& parsed, size_t rank) {
  std::vector<int64_t> blocks(rank, 1);
  for (auto [dim, block] : parsed.inner_blocks) blocks[dim] *= block;
  return blocks;
}

// The offset of an element is the sum over its dimensions of part[dimension][coordinate].
std::vector<std::vector<int64_t>> offset_parts(const Shape& shape, const Layout& layout) {
  const size_t rank = shape.size();
  const ParsedLayout parsed = parse(layout, rank);
  const std::vector<int64_t> blocks = blocks_of(parsed, rank);
  std::vector<std::vector<int64_t>> part(rank);
  for (size_t d = 0; d < rank; ++d) part[d].assign(shape[d], 0);
  int64_t stride = 1;
  std::vector<int64_t> inner_divisor(rank,
                                     1);  // coordinate / divisor % block is the coordinate inside the next block out
  for (size_t i = parsed.inner_blocks.size(); i-- > 0;) {
    const auto [dim, block] = parsed.inner_blocks[i];
    const size_t d = dim;
    for (int64_t x = 0; x < shape[d]; ++x) part[d][x] += x / inner_divisor[d] % block * stride;
    inner_divisor[d] *= block;
    stride *= block;
  }
  for (size_t i = rank; i-- > 0;) {
    const size_t d = parsed.order[i];
    for (int64_t x = 0; x < shape[d]; ++x) part[d][x] += x / blocks[d] * stride;
    stride *= (shape[d] + blocks[d] - 1) / blocks[d];
  }
  return part;
}

// Walks elements [first, first + count) as pieces of rows along the last dimension: body(elements done, offset of the
// row, offsets within the row).
template <class Body>
void for_each_row_piece(const Shape& shape, const Layout& layout, int64_t first, int64_t count, Body body) {
  const auto part = offset_parts(shape, layout);
  const size_t last = shape.size() - 1;
  std::vector<int64_t> index(shape.size(), 0);
  for (int64_t rest = first, d = static_cast<int64_t>(last); d >= 0; --d) {
    index[d] = rest % shape[d];
    rest /= shape[d];
  }
  for (int64_t done = 0; done < count;) {
    int64_t base = 0;
    for (size_t d = 0; d < last; ++d) base += part[d][index[d]];
    const int64_t length = std::min(shape[last] - index[last], count - done);
    body(done, base, std::span<const int64_t>(part[last]).subspan(index[last], length));
    done += length;
    index[last] = 0;
    for (size_t d = last; d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
}

void copy_element(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes == 4) {
    std::memcpy(to, from, 4);
  } else {
    std::memcpy(to, from, bytes);
  }
}

// Every dimension at least 1, and no more elements than a tensor may have.
void expect_shape(const Shape& shape, const std::string& what) {
  int64_t elements = 1;
  for (int64_t d : shape) {
    if (d <= 0) throw Error(ErrorCode::invalid_input, fmt::format("{} has the shape {}", what, to_string(shape)));
    if (d > kMostElements / elements) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} has the shape {}: a tensor has at most 2^40 elements; lower --batch, --image-size or "
                              "--num-classes",
                              what, to_string(shape)));
    }
    elements *= d;
  }
}

template <class T>
const T& attribute(const std::map<std::string, Attribute, std::less<>>& items, std::string_view name,
                   std::string_view kind) {
  auto it = items.find(name);
  if (it == items.end()) throw Error(ErrorCode::invalid_input, fmt::format("attribute '{}' is missing", name));
  if (const T* value = std::get_if<T>(&it->second)) return *value;
  throw Error(ErrorCode::invalid_input, fmt::format("attribute '{}' is not {}", name, kind));
}

}  // namespace

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::f64: return "f64";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
    case DType::bit: return "bit";
  }
  return "?";
}

std::string_view to_string(Role role) {
  switch (role) {
    case Role::input: return "input";
    case Role::hyperparameter: return "hyperparameter";
    case Role::parameter: return "parameter";
    case Role::optimizer_state: return "optimizer_state";
    case Role::statistic: return "statistic";
    case Role::activation: return "activation";
    case Role::gradient: return "gradient";
    case Role::output: return "output";
  }
  return "?";
}

std::string_view to_string(Phase phase) {
  switch (phase) {
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::update: return "update";
  }
  return "?";
}

std::string_view to_string(Initializer::Kind kind) {
  switch (kind) {
    case Initializer::Kind::constant: return "constant";
    case Initializer::Kind::normal: return "normal";
    case Initializer::Kind::uniform: return "uniform";
  }
  return "?";
}

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  for (int64_t d : shape) count *= d;
  return count;
}

std::string to_string(const Shape& shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, "x"));
}

bool Layout::is_plain() const {
  for (size_t i = 0; i < tag.size(); ++i) {
    if (tag[i] != static_cast<char>('a' + i)) return false;
  }
  return true;
}

int64_t storage_elements(const Shape& shape, const Layout& layout) {
  if (layout.is_plain()) return element_count(shape);
  const ParsedLayout parsed = parse(layout, shape.size());
  const std::vector<int64_t> blocks = blocks_of(parsed, shape.size());
  int64_t count = 1;
  for (size_t d = 0; d < shape.size(); ++d) count *= (shape[d] + blocks[d] - 1) / blocks[d] * blocks[d];
  return count;
}

Bytes storage_bytes(const Shape& shape, DType dtype, const Layout& layout) {
  const int64_t count = storage_elements(shape, layout);
  switch (dtype) {
    case DType::f32:
    case DType::i32: return {count * 4};
    case DType::f64:
    case DType::i64: return {count * 8};
    case DType::u8: return {count};
    case DType::bit: return {(count + 7) / 8};
  }
  return {};
}

std::vector<int64_t> storage_offsets(const Shape& shape, const Layout& layout) {
  const auto part = offset_parts(shape, layout);
  std::vector<int64_t> offsets(element_count(shape), 0);
  int64_t repeat = 1;  // elements in one run of equal coordinate d
  for (size_t d = shape.size(); d-- > 0;) {
    for (size_t e = 0; e < offsets.size(); ++e) {
      offsets[e] += part[d][e / repeat % shape[d]];
    }
    repeat *= shape[d];
  }
  return offsets;
}

void scatter_elements(const Shape& shape, const Layout& layout, int64_t element_bytes, int64_t first, int64_t count,
                      const std::byte* from, std::byte* storage) {
  if (layout.is_plain()) {
    std::memcpy(storage + first * element_bytes, from, count * element_bytes);
    return;
  }
  for_each_row_piece(shape, layout, first, count, [&](int64_t done, int64_t base, std::span<const int64_t> parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      copy_element(storage + (base + parts[i]) * element_bytes, from + (done + static_cast<int64_t>(i)) * element_bytes,
                   element_bytes);
    }
  });
}

void gather_elements(const Shape& shape, const Layout& layout, int64_t element_bytes, int64_t first, int64_t count,
                     const std::byte* storage, std::byte* to) {
  if (layout.is_plain()) {
    std::memcpy(to, storage + first * element_bytes, count * element_bytes);
    return;
  }
  for_each_row_piece(shape, layout, first, count, [&](int64_t done, int64_t base, std::span<const int64_t> parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      copy_element(to + (done + static_cast<int64_t>(i)) * element_bytes, storage + (base + parts[i]) * element_bytes,
                   element_bytes);
    }
  });
}

Bytes Tensor::bytes() const { return storage_bytes(shape, dtype, layout); }

bool Attributes::has(std::string_view name) const { return items_.find(name) != items_.end(); }
int64_t Attributes::integer(std::string_view name) const { return attribute<int64_t>(items_, name, "an integer"); }
int64_t Attributes::integer(std::string_view name, int64_t otherwise) const {
  return has(name) ? integer(name) : otherwise;
}
double Attributes::real(std::string_view name) const {
  auto it = items_.find(name);
  if (it != items_.end()) {
    if (const int64_t* value = std::get_if<int64_t>(&it->second)) return static_cast<double>(*value);
  }
  return attribute<double>(items_, name, "a number");
}
double Attributes::real(std::string_view name, double otherwise) const { return has(name) ? real(name) : otherwise; }
const std::string& Attributes::text(std::string_view name) const {
  return attribute<std::string>(items_, name, "a text");
}
std::string Attributes::text(std::string_view name, std::string_view otherwise) const {
  return has(name) ? text(name) : std::string(otherwise);
}
const std::vector<int64_t>& Attributes::integers(std::string_view name) const {
  return attribute<std::vector<int64_t>>(items_, name, "a list of integers");
}
std::vector<int64_t> Attributes::integers(std::string_view name, std::vector<int64_t> otherwise) const {
  if (has(name)) return integers(name);
  return otherwise;
}
std::vector<double> Attributes::reals(std::string_view name) const {
  if (const auto it = items_.find(name); it != items_.end()) {
    if (const auto* list = std::get_if<std::vector<int64_t>>(&it->second)) return {list->begin(), list->end()};
  }
  return attribute<std::vector<double>>(items_, name, "a list of numbers");
}
std::vector<double> Attributes::reals(std::string_view name, std::vector<double> otherwise) const {
  if (has(name)) return reals(name);
  return otherwise;
}

TensorId Graph::add_source(std::string name, Shape shape, DType dtype, Role role, Initializer init) {
  expect_shape(shape, fmt::format("tensor '{}'", name));
  const TensorId id{tensor_count()};
  if (!tensor_names_.emplace(name, id).second) {
    throw Error(ErrorCode::invalid_input, fmt::format("there is already a tensor '{}'", name));
  }
  tensors_.push_back({.name = std::move(name),
                      .shape = std::move(shape),
                      .dtype = dtype,
                      .role = role,
                      .layout = {},
                      .producer = {},
                      .init = init,
                      .block = {},
                      .shard = {}});
  if (role == Role::input || role == Role::hyperparameter) inputs.push_back(id);
  if (role == Role::parameter || role == Role::optimizer_state || role == Role::statistic) states.push_back({id, id});
  return id;
}

OpId Graph::add_op(std::string_view type, std::string name, std::string layer, std::vector<TensorId> op_inputs,
                   Attributes attributes, Phase phase, std::vector<std::string> output_names) {
  const OpType& op_kind = op_type(type);
  std::vector<const Tensor*> input_tensors;
  for (TensorId id : op_inputs) {
    if (!id.valid() || id.index >= tensor_count()) {
      throw Error(ErrorCode::invalid_input, fmt::format("op '{}' ({}): an input does not exist", name, type));
    }
    input_tensors.push_back(&tensor(id));
  }
  std::vector<TensorSpec> specs;
  try {
    specs = op_kind.infer(attributes, input_tensors);
  } catch (const Error& error) {
    std::vector<std::string> shapes;
    for (const Tensor* t : input_tensors) shapes.push_back(fmt::format("{} {}", t->name, to_string(t->shape)));
    throw Error(error.code(),
                fmt::format("op '{}' ({}) on ({}): {}", name, type, fmt::join(shapes, ", "), error.what()));
  }
  const OpId id{op_count()};
  if (!op_names_.emplace(name, id).second) {
    throw Error(ErrorCode::invalid_input, fmt::format("there is already an op '{}'", name));
  }
  Op op{.type = &op_kind,
        .name = std::move(name),
        .layer = std::move(layer),
        .phase = phase,
        .forward = {},
        .inputs = std::move(op_inputs),
        .outputs = {},
        .attributes = std::move(attributes)};
  for (size_t i = 0; i < specs.size(); ++i) {
    const TensorId out{tensor_count()};
    std::string out_name = i < output_names.size() ? output_names[i] : fmt::format("{}:{}", op.name, i);
    if (!tensor_names_.emplace(out_name, out).second) {
      throw Error(ErrorCode::invalid_input, fmt::format("there is already a tensor '{}'", out_name));
    }
    expect_shape(specs[i].shape, fmt::format("op '{}' ({}): its output '{}'", op.name, type, out_name));
    Role role = specs[i].role;
    if (phase == Phase::backward && role == Role::activation) role = Role::gradient;
    tensors_.push_back({.name = std::move(out_name),
                        .shape = specs[i].shape,
                        .dtype = specs[i].dtype,
                        .role = role,
                        .layout = {},
                        .producer = id,
                        .init = {},
                        .block = {},
                        .shard = {}});
    op.outputs.push_back(out);
  }
  ops_.push_back(std::move(op));
  return id;
}

Graph Graph::from_parts(std::string name, std::vector<Tensor> tensors, std::vector<Op> ops) {
  Graph graph;
  graph.name = std::move(name);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!graph.tensor_names_.emplace(tensors[i].name, TensorId{static_cast<int32_t>(i)}).second) {
      throw Error(ErrorCode::invalid_input, fmt::format("there are two tensors '{}'", tensors[i].name));
    }
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!graph.op_names_.emplace(ops[i].name, OpId{static_cast<int32_t>(i)}).second) {
      throw Error(ErrorCode::invalid_input, fmt::format("there are two ops '{}'", ops[i].name));
    }
  }
  graph.tensors_ = std::move(tensors);
  graph.ops_ = std::move(ops);
  return graph;
}

TensorId Graph::find_tensor(std::string_view name) const {
  auto it = tensor_names_.find(name);
  return it == tensor_names_.end() ? TensorId{} : it->second;
}

OpId Graph::find_op(std::string_view name) const {
  auto it = op_names_.find(name);
  return it == op_names_.end() ? OpId{} : it->second;
}

std::vector<std::vector<OpId>> Graph::readers() const {
  ById<TensorId, std::vector<OpId>> result(tensor_count());
  for (OpId id{0}; id.index < op_count(); ++id.index) {
    for (TensorId input : op(id).inputs) {
      std::vector<OpId>& list = result[input];
      if (list.empty() || list.back() != id) list.push_back(id);
    }
  }
  return result;
}

namespace {

// Every structural rule, one after another; each throws on the first offender.
class GraphChecker {
 public:
  explicit GraphChecker(const Graph& graph) : graph_(graph) {}

  void run() {
    check_names();
    check_ops();
    check_cycles();
    check_ends();
    for (const State& state : graph_.states) check_state(state);
    try {
      whole_states(graph_);
    } catch (const Error& error) {
      fail(error.what());
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::invalid_input, fmt::format("graph '{}': {}", graph_.name, what));
  }
  bool exists(TensorId id) const { return id.valid() && id.index < graph_.tensor_count(); }

  void check_names() const {
    std::set<std::string_view> names;
    for (const Tensor& t : graph_.tensors()) {
      if (!names.insert(t.name).second) fail(fmt::format("two tensors are called '{}'", t.name));
    }
  }

  void check_ops() const {
    for (OpId id{0}; id.index < graph_.op_count(); ++id.index) {
      const Op& op = graph_.op(id);
      for (TensorId input : op.inputs) {
        if (!exists(input)) fail(fmt::format("an input of op '{}' does not exist", op.name));
      }
      for (TensorId output : op.outputs) {
        if (!exists(output)) fail(fmt::format("an output of op '{}' does not exist", op.name));
        if (graph_.tensor(output).producer != id) {
          fail(fmt::format("tensor '{}' is an output of '{}' but has another producer", graph_.tensor(output).name,
                           op.name));
        }
      }
    }
  }

  // Crosses ops out that wait for nobody; what is left waits for itself.
  void check_cycles() const {
    ById<OpId, int> waiting(graph_.op_count(), 0);
    ById<TensorId, std::vector<OpId>> reading(graph_.tensor_count());  // once per use, not per reader
    std::vector<OpId> ready;
    for (OpId id{0}; id.index < graph_.op_count(); ++id.index) {
      for (TensorId input : graph_.op(id).inputs) {
        waiting[id] += graph_.tensor(input).producer.valid() ? 1 : 0;
        reading[input].push_back(id);
      }
      if (waiting[id] == 0) ready.push_back(id);
    }
    int32_t done = 0;
    for (; !ready.empty(); ++done) {
      const OpId id = ready.back();
      ready.pop_back();
      for (TensorId out : graph_.op(id).outputs) {
        for (OpId reader : reading[out]) {
          if (--waiting[reader] == 0) ready.push_back(reader);
        }
      }
    }
    if (done == graph_.op_count()) return;
    for (OpId id{0}; id.index < graph_.op_count(); ++id.index) {
      if (waiting[id] > 0) fail(fmt::format("op '{}' waits for its own result", graph_.op(id).name));
    }
  }

  void check_ends() const {
    for (TensorId id : graph_.outputs) {
      if (!exists(id)) fail("an output does not exist");
    }
    for (TensorId id : graph_.inputs) {
      if (!exists(id)) fail("an input does not exist");
      if (graph_.tensor(id).producer.valid()) fail(fmt::format("input '{}' is made by an op", graph_.tensor(id).name));
    }
  }

  void check_state(const State& state) const {
    if (!exists(state.before) || !exists(state.after)) fail("a state does not exist");
    const Tensor& before = graph_.tensor(state.before);
    const Tensor& after = graph_.tensor(state.after);
    if (before.producer.valid()) fail(fmt::format("state '{}' is made by an op", before.name));
    if (before.shape != after.shape || before.dtype != after.dtype || before.layout != after.layout) {
      fail(fmt::format("state '{}' leaves the step as '{}' of another shape or layout", before.name, after.name));
    }
  }

  const Graph& graph_;
};

}  // namespace

void check(const Graph& graph) { GraphChecker(graph).run(); }

}  // namespace plimsoll
