#include "fallback.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>

#include "arrays.h"
#include "plimsoll/ops.h"

namespace plimsoll::python {
namespace {

namespace nb = nanobind;
constexpr double kFlops = 10;  // an element, as a guess

// Lives for ever: op types do.
nb::object& callee() {
  static nb::object& instance = *new nb::object;
  return instance;
}

nb::list arrays(std::span<const TensorView> views) {
  nb::list list;
  for (const TensorView& view : views) {
    const std::vector<size_t> shape(view.shape.begin(), view.shape.end());
    const nb::ndarray<nb::device::cpu> array(view.data, shape.size(), shape.data(), nb::handle(), nullptr,
                                             dlpack_of(view.dtype));
    list.append(nb::cast(array, nb::rv_policy::reference));
  }
  return list;
}

nb::list numbers(const std::vector<int64_t>& values) {
  nb::list list;
  for (int64_t value : values) list.append(value);
  return list;
}

void call(const Op& op, bool backward, std::span<const TensorView> in, std::span<const TensorView> out) {
  const nb::gil_scoped_acquire gil;
  try {
    callee()(op.attributes.text("function"), backward, arrays(in), arrays(out),
             numbers(op.attributes.integers("given", {})), numbers(op.attributes.integers("wanted", {})));
  } catch (const nb::python_error& error) {
    throw Error(ErrorCode::device_failure, fmt::format("op '{}', which PyTorch computes: {}", op.name, error.what()));
  }
}

DType dtype_named(std::string_view name) {
  for (DType type : {DType::f32, DType::f64, DType::i32, DType::i64, DType::u8}) {
    if (to_string(type) == name) return type;
  }
  throw Error(ErrorCode::invalid_input, fmt::format("'{}' is no type of a fallback's result", name));
}

std::vector<TensorSpec> results_of(const Attributes& attributes, std::span<const Tensor* const>) {
  const std::vector<int64_t>& sizes = attributes.integers("shapes");
  std::vector<TensorSpec> specs;
  size_t at = 0;
  for (const auto part : std::views::split(std::string_view(attributes.text("dtypes")), ',')) {
    const std::string_view dtype(part.begin(), part.end());
    const size_t rank = at < sizes.size() ? static_cast<size_t>(std::max<int64_t>(sizes[at], 0)) : sizes.size();
    if (at + 1 + rank > sizes.size())
      throw Error(ErrorCode::invalid_input, "'shapes' has fewer sizes than 'dtypes' has names");
    const auto begin = sizes.begin() + static_cast<std::ptrdiff_t>(at + 1);
    specs.push_back({Shape(begin, begin + static_cast<std::ptrdiff_t>(rank)), dtype_named(dtype)});
    at += 1 + rank;
  }
  return specs;
}

std::vector<TensorSpec> gradients_of(const Attributes& attributes, std::span<const Tensor* const> in) {
  const size_t first = attributes.integers("given").size();
  std::vector<TensorSpec> specs;
  for (int64_t i : attributes.integers("wanted")) {
    const size_t at = first + static_cast<size_t>(i);
    if (i < 0 || at >= in.size()) throw Error(ErrorCode::invalid_input, fmt::format("there is no input {}", i));
    specs.push_back({in[at]->shape, in[at]->dtype});
  }
  return specs;
}

std::vector<TensorId> add_gradient(Graph& graph, OpId id, std::span<const TensorId> dy,
                                   const std::vector<bool>& wanted) {
  const Op forward = graph.op(id);  // a copy: adding an op moves the list
  std::vector<TensorId> result(forward.inputs.size());
  std::vector<int64_t> given, asked;
  std::vector<TensorId> inputs;
  for (int64_t k : forward.attributes.integers("differentiable", {})) {
    if (!dy[k].valid()) continue;
    given.push_back(k);
    inputs.push_back(dy[k]);
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] && graph.tensor(forward.inputs[i]).dtype == DType::f32) asked.push_back(static_cast<int64_t>(i));
  }
  if (given.empty() || asked.empty()) return result;
  inputs.insert(inputs.end(), forward.inputs.begin(), forward.inputs.end());
  const OpId back = graph.add_op(
      "FallbackBackward", forward.name + "/backward", forward.layer, std::move(inputs),
      {{"function", forward.attributes.text("function")}, {"given", given}, {"wanted", asked}}, Phase::backward);
  graph.op(back).forward = id;
  for (size_t k = 0; k < asked.size(); ++k) result[asked[k]] = graph.op(back).outputs[k];
  return result;
}

Work guessed_work(const Graph& graph, const Op& op) {
  Work work;
  for (const std::vector<TensorId>* ids : {&op.inputs, &op.outputs}) {
    for (TensorId id : *ids) {
      work.bytes += static_cast<double>(graph.tensor(id).bytes().count);
      work.flops += kFlops * static_cast<double>(element_count(graph.tensor(id).shape));
    }
  }
  return work;
}

OpType type(std::string name, bool backward) {
  return {.name = std::move(name),
          .infer = backward ? gradients_of : results_of,
          .gradient = {},
          .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
          .work = guessed_work,
          .reference = [backward](const Op& op, std::span<const TensorView> in,
                                  std::span<const TensorView> out) { call(op, backward, in, out); },
          .kind = LayerKind::activation};
}

}  // namespace

void register_fallback(nb::object call) {
  const bool is_first = !callee().is_valid();
  callee() = std::move(call);
  if (!is_first) return;
  OpType forward = type("FallbackForward", false);
  forward.gradient = add_gradient;
  register_op(std::move(forward));
  register_op(type("FallbackBackward", true));
}

}  // namespace plimsoll::python
