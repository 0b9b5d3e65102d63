// Pad: more elements at the ends of dimensions, constant ones or copies, or fewer where a size is below 0. The gradient of
// a constant padding is the same with all signs turned: what was added is cropped, what was cropped is zero.
#include "ops/pad.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ops/families.h"
#include "ops/move.h"
#include "ops/reference.h"
#include "ops/typed.h"

namespace plimsoll {
namespace {

PadMode pad_mode(const Attributes& attributes) {
  const std::string mode = attributes.text("mode", "constant");
  if (mode == "constant") return PadMode::constant;
  if (mode == "reflect") return PadMode::reflect;
  if (mode == "replicate") return PadMode::replicate;
  throw Error(ErrorCode::invalid_input,
              fmt::format("mode is '{}'; 'constant', 'reflect' or 'replicate' is expected", mode));
}

// With the padded tensor's sizes where `padded`, else with x's.
Padding padding_of(const Attributes& attributes, const Tensor& tensor, bool padded) {
  const std::vector<int64_t> begin = attributes.integers("begin"), end = attributes.integers("end");
  const size_t rank = tensor.shape.size();
  if (begin.size() != rank || end.size() != rank) {
    throw Error(ErrorCode::invalid_input, fmt::format("begin has {} sizes and end {}; '{}' has {} dimensions",
                                                      begin.size(), end.size(), tensor.name, rank));
  }
  Padding padding{.mode = pad_mode(attributes), .value = attributes.real("value", 0), .axes = {}};
  for (size_t d = 0; d < rank; ++d) {
    if (std::max(std::abs(begin[d]), std::abs(end[d])) > kMostElements) {
      throw Error(ErrorCode::invalid_input, fmt::format("dimension {} is padded by {} and {}", d, begin[d], end[d]));
    }
    const PadAxis axis{padded ? tensor.shape[d] - begin[d] - end[d] : tensor.shape[d], begin[d], end[d]};
    const int64_t most = std::max(begin[d], end[d]);
    if (axis.in < 1 || axis.out() < 1 || std::min(begin[d], end[d]) <= -axis.in) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("dimension {} of '{}', which is {}, has nothing left: {} and {} "
                              "are added",
                              d, tensor.name, to_string(tensor.shape), begin[d], end[d]));
    }
    if (padding.mode == PadMode::reflect && most >= axis.in) {
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("dimension {} has {} elements: a padding of {} cannot be their reflection", d, axis.in, most));
    }
    padding.axes.push_back(axis);
  }
  return padding;
}

// Calls body(element of the result, element of x or -1) for every element of the result.
template <class Body>
void for_each_padded(const Padding& padding, Body body) {
  int64_t count = 1;
  for (const PadAxis& axis : padding.axes) count *= axis.out();
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, at = 0, distance = 1;
    for (size_t d = padding.axes.size(); d-- > 0;) {
      const PadAxis& axis = padding.axes[d];
      const int64_t source = pad_source(padding.mode, axis, rest % axis.out());
      rest /= axis.out();
      at = source < 0 || at < 0 ? -1 : at + source * distance;
      distance *= axis.in;
    }
    body(i, at);
  }
}

std::vector<int64_t> negated(std::vector<int64_t> sizes) {
  for (int64_t& size : sizes) size = -size;
  return sizes;
}

OpType pad() {
  return {
      .name = "Pad",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            element_width(*in[0]);
            Shape shape;
            for (const PadAxis& axis : read_padding(attributes, *in[0]).axes) shape.push_back(axis.out());
            return std::vector<TensorSpec>{{shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            if (!wanted[0] || !dy[0].valid()) return std::vector<TensorId>{TensorId{}};
            const Attributes& forward = graph.op(id).attributes;
            const std::vector<int64_t> begin = forward.integers("begin"), end = forward.integers("end");
            if (pad_mode(forward) == PadMode::constant) {
              return std::vector<TensorId>{graph.output(add_backward(
                  graph, "Pad", id, "backward", {dy[0]}, {{"begin", negated(begin)}, {"end", negated(end)}}))};
            }
            const Attributes attributes = {{"begin", begin}, {"end", end}, {"mode", forward.text("mode")}};
            return std::vector<TensorId>{
                graph.output(add_backward(graph, "PadBackward", id, "backward", {dy[0]}, attributes))};
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 0); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const Padding padding = read_padding(op.attributes, {.name = "x",
                                                                 .shape = in[0].shape,
                                                                 .layout = {},
                                                                 .producer = {},
                                                                 .init = {},
                                                                 .block = {},
                                                                 .shard = {}});
            const int64_t width = storage_bytes({1}, in[0].dtype, {}).count;
            const std::byte* from = static_cast<const std::byte*>(in[0].data);
            std::byte* to = static_cast<std::byte*>(out[0].data);
            for_each_padded(padding, [&](int64_t i, int64_t at) {
              if (at < 0) return store(out[0], i, padding.value);
              std::memcpy(to + i * width, from + at * width, width);
            });
          },
  };
}

OpType pad_backward() {
  return {
      .name = "PadBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            const Padding padding = read_padding_backward(attributes, *in[0]);
            if (padding.mode == PadMode::constant) {
              throw Error(ErrorCode::invalid_input,
                          "mode is 'constant', whose gradient is a Pad; 'reflect' or 'replicate' is expected");
            }
            Shape shape;
            for (const PadAxis& axis : padding.axes) shape.push_back(axis.in);
            return std::vector<TensorSpec>{{shape, in[0]->dtype}};
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 1); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const Padding padding = read_padding_backward(op.attributes, {.name = "dy",
                                                                          .shape = in[0].shape,
                                                                          .layout = {},
                                                                          .producer = {},
                                                                          .init = {},
                                                                          .block = {},
                                                                          .shard = {}});
            with_floating_type(in[0], [&](auto zero) {
              using T = decltype(zero);
              std::fill_n(elements<T>(out[0]), element_count(out[0].shape), T{0});
              for_each_padded(padding,
                              [&](int64_t i, int64_t at) { elements<T>(out[0])[at] += elements<T>(in[0])[i]; });
            });
          },
  };
}

}  // namespace

Padding read_padding(const Attributes& attributes, const Tensor& x) { return padding_of(attributes, x, false); }
Padding read_padding_backward(const Attributes& attributes, const Tensor& dy) {
  return padding_of(attributes, dy, true);
}

std::vector<OpType> pad_ops() { return of_kind(LayerKind::concat, {pad(), pad_backward()}); }

}  // namespace plimsoll
