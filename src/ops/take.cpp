// Elements and rows by index tensors. Their gradients are sums of the rows that were taken more than once, always in the
// order of the indices. A network that adds rows at indices uses the gradients' ops: each is the other's gradient.
//
//   Embedding    y[i..., :] = weight[indices[i...], :]
//   IndexSelect  y[.., k, ..] = x[.., indices[k], ..] along one axis
//   Index        y[i..., :] = x[i0[i...], i1[i...], ..., :], where a negative index counts from the end
//   Gather       y[.., k, ..] = x[.., indices[.., k, ..], ..]: every element has an index of its own
#include "ops/take.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ops/families.h"
#include "ops/move.h"
#include "ops/reference.h"
#include "ops/typed.h"

namespace plimsoll {

Take embedding_take(const Shape& weight, const Shape& indices) {
  return {.outer = 1, .limit = weight[0], .count = element_count(indices), .inner = weight[1]};
}
Take index_select_take(const Shape& x, size_t axis, int64_t count) {
  Take take{.outer = 1, .limit = x[axis], .count = count, .inner = 1};
  for (size_t d = 0; d < axis; ++d) take.outer *= x[d];
  for (size_t d = axis + 1; d < x.size(); ++d) take.inner *= x[d];
  return take;
}
Take index_take(const Shape& x, size_t dimensions, int64_t count) {
  Take take{.outer = 1, .limit = 1, .count = count, .inner = 1};
  for (size_t d = 0; d < x.size(); ++d) (d < dimensions ? take.limit : take.inner) *= x[d];
  return take;
}

Shape joint_shape(std::span<const Tensor* const> indices) {
  Shape joint;
  for (const Tensor* tensor : indices) {
    const Shape& shape = tensor->shape;
    if (shape.size() > joint.size()) joint.insert(joint.begin(), shape.size() - joint.size(), 1);
    const size_t skipped = joint.size() - shape.size();
    for (size_t d = 0; d < shape.size(); ++d) {
      int64_t& size = joint[skipped + d];
      if (shape[d] == size || shape[d] == 1) continue;
      if (size != 1) {
        throw Error(ErrorCode::invalid_input, fmt::format("the indices '{}' are {}, which does not go together with {}",
                                                          tensor->name, to_string(shape), to_string(joint)));
      }
      size = shape[d];
    }
  }
  return joint;
}

std::vector<int64_t> joint_strides(const Shape& indices, const Shape& joint) {
  std::vector<int64_t> strides(joint.size());
  int64_t distance = 1;
  for (size_t d = indices.size(); d-- > 0;) {
    if (indices[d] != 1) strides[joint.size() - indices.size() + d] = distance;
    distance *= indices[d];
  }
  return strides;
}

void throw_bad_index(int64_t row, int64_t index, int64_t dimension, int64_t limit) {
  throw Error(ErrorCode::invalid_input, fmt::format("row {} of the indices is {}, but dimension {} has {} elements",
                                                    row, index, dimension, limit));
}

namespace {

void expect_indices(const Tensor& tensor) {
  if (tensor.dtype == DType::i32 || tensor.dtype == DType::i64) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {}; indices are i32 or i64", tensor.name, to_string(tensor.dtype)));
}

void expect_gradient_dtype(const Tensor& tensor) {
  if (tensor.dtype == DType::f32 || tensor.dtype == DType::f64) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {}; a gradient is f32 or f64", tensor.name, to_string(tensor.dtype)));
}

void expect_gradient_shape(const Tensor& dy, const Shape& shape) {
  if (dy.shape == shape) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {}; {} is expected", dy.name, to_string(dy.shape), to_string(shape)));
}

int64_t padding_index(const Attributes& attributes, int64_t rows) {
  const int64_t padding = attributes.integer("padding_index", -1);
  if (padding >= -1 && padding < rows) return padding;
  throw Error(ErrorCode::invalid_input,
              fmt::format("padding_index is {}; -1, which is none, or a row of the {} is expected", padding, rows));
}

int64_t index_in(const TensorView& indices, int64_t i, int64_t limit, int64_t dimension) {
  const int64_t index = index_at(indices.data, indices.dtype, i);
  if (index < 0 || index >= limit) throw_bad_index(i, index, dimension, limit);
  return index;
}

std::vector<int64_t> rows_of(const TensorView& indices, int64_t limit, int64_t dimension) {
  std::vector<int64_t> rows(element_count(indices.shape));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = index_in(indices, static_cast<int64_t>(i), limit, dimension);
  return rows;
}

// Of Index: the index tensors as one, into x's first dimensions taken together.
std::vector<int64_t> joint_rows(std::span<const TensorView> indices, const Shape& x, const Shape& joint) {
  std::vector<int64_t> rows(element_count(joint));
  for (size_t k = 0; k < indices.size(); ++k) {
    const std::vector<int64_t> strides = joint_strides(indices[k].shape, joint);
    for (size_t i = 0; i < rows.size(); ++i) {
      int64_t rest = static_cast<int64_t>(i), at = 0;
      for (size_t d = joint.size(); d-- > 0;) {
        at += rest % joint[d] * strides[d];
        rest /= joint[d];
      }
      int64_t index = index_at(indices[k].data, indices[k].dtype, at);
      if (index < -x[k] || index >= x[k]) throw_bad_index(at, index, static_cast<int64_t>(k), x[k]);
      if (index < 0) index += x[k];
      rows[i] = rows[i] * x[k] + index;
    }
  }
  return rows;
}

void take_rows(const Take& take, const std::vector<int64_t>& rows, const TensorView& x, const TensorView& y) {
  const int64_t bytes = take.inner * storage_bytes({1}, x.dtype, {}).count;
  const std::byte* from = static_cast<const std::byte*>(x.data);
  std::byte* to = static_cast<std::byte*>(y.data);
  for (int64_t outer = 0; outer < take.outer; ++outer) {
    for (int64_t r = 0; r < take.count; ++r)
      std::memcpy(to + (outer * take.count + r) * bytes, from + (outer * take.limit + rows[r]) * bytes, bytes);
  }
}

void add_rows(const Take& take, const std::vector<int64_t>& rows, int64_t padding, const TensorView& dy,
              const TensorView& dx) {
  with_floating_type(dy, [&](auto zero) {
    using T = decltype(zero);
    std::fill_n(elements<T>(dx), element_count(dx.shape), T{0});
    for (int64_t outer = 0; outer < take.outer; ++outer) {
      for (int64_t r = 0; r < take.count; ++r) {
        if (rows[r] == padding) continue;
        const T* from = elements<T>(dy) + (outer * take.count + r) * take.inner;
        T* to = elements<T>(dx) + (outer * take.limit + rows[r]) * take.inner;
        for (int64_t i = 0; i < take.inner; ++i) to[i] += from[i];
      }
    }
  });
}

Work rows_work(const Graph& graph, const Op& op) {
  double indices = 0;
  for (size_t i = 1; i < op.inputs.size(); ++i)
    indices += static_cast<double>(graph.tensor(op.inputs[i]).bytes().count);
  return {0, indices + 2 * static_cast<double>(bytes_of(graph, op.outputs).count)};
}

Work rows_backward_work(const Graph& graph, const Op& op) {
  return {static_cast<double>(element_count(graph.tensor(op.inputs[0]).shape)),
          static_cast<double>((bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs)).count)};
}

// The gradient's op reads the result's gradient and the index tensors.
std::vector<TensorId> rows_gradient(Graph& graph, OpId id, std::string_view type, TensorId dy, bool wanted,
                                    Attributes attributes) {
  const std::vector<TensorId> inputs = graph.op(id).inputs;
  std::vector<TensorId> result(inputs.size());
  if (!wanted || !dy.valid()) return result;
  std::vector<TensorId> back = {dy};
  back.insert(back.end(), inputs.begin() + 1, inputs.end());
  result[0] = graph.output(add_backward(graph, type, id, "backward", back, std::move(attributes)));
  return result;
}

OpType embedding() {
  return {
      .name = "Embedding",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_rank(*in[0], 2);
            element_width(*in[0]);
            expect_indices(*in[1]);
            padding_index(attributes, in[0]->shape[0]);
            Shape shape = in[1]->shape;
            shape.push_back(in[0]->shape[1]);
            return std::vector<TensorSpec>{{shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            const int64_t rows = graph.tensor(graph.op(id).inputs[0]).shape[0];
            return rows_gradient(
                graph, id, "EmbeddingBackward", dy[0], wanted[0],
                {{"rows", rows}, {"padding_index", graph.op(id).attributes.integer("padding_index", -1)}});
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = rows_work,
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            const Take take = embedding_take(in[0].shape, in[1].shape);
            take_rows(take, rows_of(in[1], take.limit, 0), in[0], out[0]);
          },
  };
}

OpType embedding_backward() {
  return {
      .name = "EmbeddingBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            const Shape table{attributes.integer("rows"), in[0]->shape.empty() ? 1 : in[0]->shape.back()};
            expect_lookups(attributes, table, *in[0], *in[1]);
            return std::vector<TensorSpec>{{table, in[0]->dtype}};
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = rows_backward_work,
      .reference = [](const Op& op, std::span<const TensorView> in,
                      std::span<const TensorView> out) { sum_lookups(op.attributes, in[0], in[1], out[0]); },
  };
}

void expect_one_dimension(const Tensor& indices) {
  if (indices.shape.size() == 1) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {}; indices of one dimension are expected", indices.name, to_string(indices.shape)));
}

OpType index_select() {
  return {
      .name = "IndexSelect",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            const size_t axis = axis_of(attributes, *in[0]);
            element_width(*in[0]);
            expect_indices(*in[1]);
            expect_one_dimension(*in[1]);
            Shape shape = in[0]->shape;
            shape[axis] = in[1]->shape[0];
            return std::vector<TensorSpec>{{shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            const int64_t axis = graph.op(id).attributes.integer("axis");
            return rows_gradient(graph, id, "IndexSelectBackward", dy[0], wanted[0],
                                 {{"axis", axis}, {"length", graph.tensor(graph.op(id).inputs[0]).shape[axis]}});
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = rows_work,
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const int64_t axis = op.attributes.integer("axis");
            const Take take = index_select_take(in[0].shape, axis, in[1].shape[0]);
            take_rows(take, rows_of(in[1], take.limit, axis), in[0], out[0]);
          },
  };
}

OpType index_select_backward() {
  return {
      .name = "IndexSelectBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_gradient_dtype(*in[0]);
            expect_indices(*in[1]);
            expect_one_dimension(*in[1]);
            const size_t axis = axis_of(attributes, *in[0]);
            Shape shape = in[0]->shape;
            shape[axis] = in[1]->shape[0];
            expect_gradient_shape(*in[0], shape);
            shape[axis] = attributes.integer("length");
            return std::vector<TensorSpec>{{shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dx, const std::vector<bool>& wanted) {
            return rows_gradient(graph, id, "IndexSelect", dx[0], wanted[0],
                                 {{"axis", graph.op(id).attributes.integer("axis")}});
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = rows_backward_work,
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const int64_t axis = op.attributes.integer("axis");
            const Take take = index_select_take(out[0].shape, axis, in[1].shape[0]);
            add_rows(take, rows_of(in[1], take.limit, axis), -1, in[0], out[0]);
          },
  };
}

// The shape of what x gives for index tensors of its first dimensions.
Shape indexed_shape(const Shape& x, std::span<const Tensor* const> indices) {
  for (const Tensor* tensor : indices) expect_indices(*tensor);
  if (indices.size() > x.size()) {
    throw Error(ErrorCode::invalid_input, fmt::format("{} index tensors for {}, which has {} dimensions",
                                                      indices.size(), to_string(x), x.size()));
  }
  Shape shape = joint_shape(indices);
  shape.insert(shape.end(), x.begin() + std::ssize(indices), x.end());
  return shape;
}

Shape joint_of(const Shape& y, const Shape& x, size_t dimensions) {
  return {y.begin(), y.end() - static_cast<int64_t>(x.size() - dimensions)};
}

OpType index_forward() {
  return {
      .name = "Index",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            if (in.size() < 2)
              throw Error(ErrorCode::invalid_input,
                          fmt::format("takes a tensor and one or more index tensors, got {} inputs", in.size()));
            element_width(*in[0]);
            return std::vector<TensorSpec>{{indexed_shape(in[0]->shape, in.subspan(1)), in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            return rows_gradient(graph, id, "IndexBackward", dy[0], wanted[0],
                                 {{"shape", graph.tensor(graph.op(id).inputs[0]).shape}});
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = rows_work,
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            const Shape joint = joint_of(out[0].shape, in[0].shape, in.size() - 1);
            take_rows(index_take(in[0].shape, in.size() - 1, element_count(joint)),
                      joint_rows(in.subspan(1), in[0].shape, joint), in[0], out[0]);
          },
  };
}

OpType index_backward() {
  return {
      .name = "IndexBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            if (in.size() < 2)
              throw Error(ErrorCode::invalid_input,
                          fmt::format("takes dy and one or more index tensors, got {} inputs", in.size()));
            expect_gradient_dtype(*in[0]);
            const Shape shape = attributes.integers("shape");
            expect_gradient_shape(*in[0], indexed_shape(shape, in.subspan(1)));
            return std::vector<TensorSpec>{{shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dx, const std::vector<bool>& wanted) {
            return rows_gradient(graph, id, "Index", dx[0], wanted[0], {});
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = rows_backward_work,
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            const Shape joint = joint_of(in[0].shape, out[0].shape, in.size() - 1);
            add_rows(index_take(out[0].shape, in.size() - 1, element_count(joint)),
                     joint_rows(in.subspan(1), out[0].shape, joint), -1, in[0], out[0]);
          },
  };
}

void expect_gather(const Tensor& tensor, const Shape& x, const Shape& indices, size_t axis) {
  bool fits = indices.size() == x.size();
  for (size_t d = 0; fits && d < x.size(); ++d) fits = d == axis || indices[d] <= x[d];
  if (fits) return;
  throw Error(
      ErrorCode::invalid_input,
      fmt::format("the indices '{}' are {}; as many dimensions as {} has are expected, and none larger but axis {}",
                  tensor.name, to_string(indices), to_string(x), axis));
}

// Calls body(element of y, element of x) for every element of y, in its order.
template <class Body>
void for_each_gathered(const TensorView& indices, const Shape& x, size_t axis, Body body) {
  const Shape& y = indices.shape;
  for_each_element(indices, [&](int64_t i) {
    int64_t rest = i, at = 0, distance = 1;
    for (size_t d = y.size(); d-- > 0;) {
      const int64_t own = rest % y[d];
      rest /= y[d];
      at += distance * (d == axis ? index_in(indices, i, x[axis], static_cast<int64_t>(axis)) : own);
      distance *= x[d];
    }
    body(i, at);
  });
}

OpType gather() {
  return {
      .name = "Gather",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            const size_t axis = axis_of(attributes, *in[0]);
            element_width(*in[0]);
            expect_indices(*in[1]);
            expect_gather(*in[1], in[0]->shape, in[1]->shape, axis);
            return std::vector<TensorSpec>{{in[1]->shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            return rows_gradient(graph, id, "GatherBackward", dy[0], wanted[0],
                                 {{"axis", graph.op(id).attributes.integer("axis")},
                                  {"shape", graph.tensor(graph.op(id).inputs[0]).shape}});
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = rows_work,
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const int64_t width = storage_bytes({1}, in[0].dtype, {}).count;
            const std::byte* from = static_cast<const std::byte*>(in[0].data);
            std::byte* to = static_cast<std::byte*>(out[0].data);
            for_each_gathered(in[1], in[0].shape, op.attributes.integer("axis"),
                              [&](int64_t i, int64_t at) { std::memcpy(to + i * width, from + at * width, width); });
          },
  };
}

OpType gather_backward() {
  return {
      .name = "GatherBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_gradient_dtype(*in[0]);
            expect_indices(*in[1]);
            expect_same_shape(*in[0], *in[1]);
            const Shape shape = attributes.integers("shape");
            expect_gather(*in[1], shape, in[1]->shape, axis_of(attributes, *in[0]));
            return std::vector<TensorSpec>{{shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dx, const std::vector<bool>& wanted) {
            return rows_gradient(graph, id, "Gather", dx[0], wanted[0],
                                 {{"axis", graph.op(id).attributes.integer("axis")}});
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = rows_backward_work,
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            with_floating_type(in[0], [&](auto zero) {
              using T = decltype(zero);
              std::fill_n(elements<T>(out[0]), element_count(out[0].shape), T{0});
              for_each_gathered(in[1], out[0].shape, op.attributes.integer("axis"),
                                [&](int64_t i, int64_t at) { elements<T>(out[0])[at] += elements<T>(in[0])[i]; });
            });
          },
  };
}

}  // namespace

void expect_lookups(const Attributes& attributes, const Shape& table, const Tensor& dy, const Tensor& indices) {
  expect_gradient_dtype(dy);
  expect_indices(indices);
  if (table.size() != 2)
    throw Error(ErrorCode::invalid_input, fmt::format("{} is no table of rows for '{}'", to_string(table), dy.name));
  padding_index(attributes, table[0]);
  Shape shape = indices.shape;
  shape.push_back(table[1]);
  expect_gradient_shape(dy, shape);
}

void sum_lookups(const Attributes& attributes, const TensorView& dy, const TensorView& indices,
                 const TensorView& table) {
  const Take take = embedding_take(table.shape, indices.shape);
  add_rows(take, rows_of(indices, take.limit, 0), attributes.integer("padding_index", -1), dy, table);
}

std::vector<OpType> take_ops() {
  // A lone index has no rows to divide: the indices, which stand first, say it.
  return of_kind(LayerKind::concat,
                 {in_parts(embedding(), {{1}, {0}}), in_parts(embedding_backward(), {{1, 0}, {}}), index_select(),
                  index_select_backward(), index_forward(), index_backward(), gather(), gather_backward()});
}

}  // namespace plimsoll
