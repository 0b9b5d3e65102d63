#include "cost/signature.h"

#include <fmt/format.h>

#include <algorithm>

#include "plimsoll/cost.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

void append(std::string& text, const Attribute& attribute) {
  if (const auto* i = std::get_if<int64_t>(&attribute)) fmt::format_to(std::back_inserter(text), "{}", *i);
  if (const auto* d = std::get_if<double>(&attribute)) fmt::format_to(std::back_inserter(text), "{}", *d);
  if (const auto* s = std::get_if<std::string>(&attribute)) text += *s;
  if (const auto* l = std::get_if<std::vector<int64_t>>(&attribute)) {
    fmt::format_to(std::back_inserter(text), "[{}]", fmt::join(*l, ","));
  }
  if (const auto* l = std::get_if<std::vector<double>>(&attribute)) {
    fmt::format_to(std::back_inserter(text), "[{}]", fmt::join(*l, ","));
  }
}

// What tells two ops of a network apart but changes nothing about their cost.
bool is_cost_free(std::string_view attribute) { return attribute == "salt"; }

void append_head(std::string& text, const Op& op) {
  text += op.type->name;
  bool first = true;
  for (const auto& [name, value] : op.attributes.items()) {
    if (is_cost_free(name)) continue;
    text += first ? '{' : ' ';
    first = false;
    text += name;
    text += '=';
    append(text, value);
  }
  if (!first) text += '}';
}

void append_tensor(std::string& text, const Shape& shape, DType dtype, const Layout* layout) {
  if (text.back() != '(') text += ", ";
  text += to_string(shape);
  text += ' ';
  text += to_string(dtype);
  if (layout != nullptr && !layout->is_plain()) {
    text += ' ';
    text += layout->tag;
  }
}

// layout_of(position) is the layout of the tensor there, or null to leave it out; with rows, the op's part of so many.
template <class LayoutOf>
std::string signature(const Graph& graph, const Op& op, LayoutOf layout_of, int64_t rows = 0) {
  std::string text;
  text.reserve(160);
  append_head(text, op);
  size_t position = 0;
  auto append_side = [&](const std::vector<TensorId>& ids, const std::vector<int>& divided) {
    text += '(';
    for (size_t i = 0; i < ids.size(); ++i) {
      const Tensor& t = graph.tensor(ids[i]);
      const Layout* layout = layout_of(position++);
      if (rows == 0 || std::find(divided.begin(), divided.end(), static_cast<int>(i)) == divided.end()) {
        append_tensor(text, t.shape, t.dtype, layout);
      } else {
        Shape part = t.shape;
        part[0] = rows;
        append_tensor(text, part, t.dtype, layout);
      }
    }
    text += ')';
  };
  append_side(op.inputs, op.type->division.inputs);
  text += "->";
  append_side(op.outputs, op.type->division.outputs);
  return text;
}

const Tensor& tensor_at(const Graph& graph, const Op& op, size_t position) {
  return graph.tensor(position < op.inputs.size() ? op.inputs[position] : op.outputs[position - op.inputs.size()]);
}

const Layout* stated_layout(const Op& op, const KernelSpec& spec, size_t position) {
  const bool input = position < op.inputs.size();
  const std::vector<Layout>& side = input ? spec.inputs : spec.outputs;
  const size_t i = input ? position : position - op.inputs.size();
  return i < side.size() ? &side[i] : nullptr;
}

// Updates run over the storage element by element: their cost does not depend on where elements lie.
bool layouts_count(const Op& op) { return !op.type->changes_state; }

}  // namespace

bool same_layout(const Layout& a, const Layout& b) { return a.tag == b.tag || (a.is_plain() && b.is_plain()); }

std::string signature_without_layouts(const Graph& graph, const Op& op) {
  return signature(graph, op, [](size_t) -> const Layout* { return nullptr; });
}

std::string reorder_signature(const Shape& shape, DType dtype, const Layout& from, const Layout& to) {
  std::string text = "Reorder(";
  append_tensor(text, shape, dtype, &from);
  text += ")->(";
  append_tensor(text, shape, dtype, &to);
  text += ')';
  return text;
}

bool layout_is_open(const Graph& graph, const Op& op, const KernelSpec& spec, size_t position) {
  const Layout* stated = stated_layout(op, spec, position);
  if (stated != nullptr && stated->tag == kAnyLayout.tag) return true;
  if (!op.type->changes_state || op.inputs.empty()) return false;
  const Shape& shape = graph.tensor(op.inputs[0]).shape;
  if (shape.size() < 2 || tensor_at(graph, op, position).shape != shape) return false;
  return std::ranges::none_of(op.inputs, [&](TensorId id) {
    const Shape& other = graph.tensor(id).shape;
    return other.size() == shape.size() && other != shape;
  });
}

std::string op_signature(const Graph& graph, const Op& op) {
  const bool counts = layouts_count(op);
  return signature(graph, op, [&](size_t i) { return counts ? &tensor_at(graph, op, i).layout : nullptr; });
}

std::string op_signature(const Graph& graph, const Op& op, const KernelSpec& kernel) {
  return part_signature(graph, op, kernel, 0);
}

std::string part_signature(const Graph& graph, const Op& op, const KernelSpec& kernel, int64_t rows) {
  const bool counts = layouts_count(op);
  auto layout_of = [&](size_t i) -> const Layout* {
    if (!counts) return nullptr;
    const Layout* stated = stated_layout(op, kernel, i);
    return stated == nullptr || stated->tag == kAnyLayout.tag ? &tensor_at(graph, op, i).layout : stated;
  };
  return signature(graph, op, layout_of, rows);
}

}  // namespace plimsoll
