// Recurrent layers: RecurrentForward takes x[T,N,G*H], w[G*H,H], h0[N,H], of an LSTM c0[N,H], and perhaps b[G*H]; it gives
// y[T,N,H], of an LSTM c[T,N,H], and what the backward pass needs of the gates[T,N,4*H]. See recurrent.h.
//
// RecurrentBackward goes through the steps from the last to the first. The weights' gradient needs no order: it is that of
// a fully connected layer over all steps at once.
#include "ops/recurrent.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "base/names.h"
#include "ops/families.h"
#include "ops/layer_inputs.h"
#include "ops/reference.h"
#include "ops/typed.h"

namespace plimsoll {

Cell cell_named(std::string_view name) {
  if (name == "lstm") return Cell::lstm;
  if (name == "gru") return Cell::gru;
  if (name == "tanh") return Cell::tanh;
  if (name == "relu") return Cell::relu;
  throw Error(ErrorCode::invalid_input, unknown_name("cell", name, {"lstm", "gru", "tanh", "relu"}));
}

Recurrence recurrence_of(const Attributes& attributes, const Shape& sequence, const Shape& weights) {
  return {.cell = cell_named(attributes.text("cell")),
          .reverse = attributes.integer("reverse", 0) != 0,
          .steps = sequence[0],
          .rows = sequence[1],
          .width = weights[1]};
}

BackwardInputs backward_inputs(Cell cell, size_t count) {
  if (cell == Cell::lstm) return {.c = 2, .kept = 3, .c0 = 4, .dc = count > 5 ? 5u : 0u};
  if (cell == Cell::gru) return {.y = 2, .kept = 3, .h0 = 4};
  return {.y = 2};
}

namespace {

void expect_shape(const Tensor& tensor, const Shape& shape) {
  if (tensor.shape == shape) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {}; {} is expected", tensor.name, to_string(tensor.shape), to_string(shape)));
}

// Checks that the weights fit the cell.
Recurrence read_recurrence(const Attributes& attributes, const Tensor& sequence, const Tensor& weights) {
  expect_rank(sequence, 3);
  expect_rank(weights, 2);
  expect_same_dtype(sequence, weights);
  const Recurrence r = recurrence_of(attributes, sequence.shape, weights.shape);
  expect_shape(weights, {r.gates() * r.width, r.width});
  return r;
}

Shape sequence_of(const Recurrence& r, int64_t widths) { return {r.steps, r.rows, widths * r.width}; }

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

// One row of one step: x and s hold the gates' two parts; h_before, c_before and the results are `width` long.
template <class T>
void step_forward(const Recurrence& r, const T* x, const double* s, const T* h_before, const T* c_before, T* h, T* c,
                  T* kept) {
  const int64_t width = r.width;
  for (int64_t j = 0; j < width; ++j) {
    const auto gate = [&](int64_t g) { return static_cast<double>(x[g * width + j]) + s[g * width + j]; };
    const auto keep = [&](int64_t g, double value) { kept[g * width + j] = static_cast<T>(value); };
    switch (r.cell) {
      case Cell::lstm: {
        const double in = sigmoid_of(gate(0)), forget = sigmoid_of(gate(1)), g = std::tanh(gate(2));
        const double out = sigmoid_of(gate(3)), cell = forget * c_before[j] + in * g;
        keep(0, in), keep(1, forget), keep(2, g), keep(3, out);
        c[j] = static_cast<T>(cell);
        h[j] = static_cast<T>(out * std::tanh(cell));
        break;
      }
      case Cell::gru: {
        const double reset = sigmoid_of(gate(0)), z = sigmoid_of(gate(1)), s_n = s[2 * width + j];
        const double n = std::tanh(static_cast<double>(x[2 * width + j]) + reset * s_n);
        keep(0, reset), keep(1, z), keep(2, n), keep(3, s_n);
        h[j] = static_cast<T>((1 - z) * n + z * h_before[j]);
        break;
      }
      case Cell::tanh: h[j] = static_cast<T>(std::tanh(gate(0))); break;
      case Cell::relu: h[j] = static_cast<T>(std::max(gate(0), 0.0)); break;
    }
  }
}

template <class T>
void recurrent_forward(const Recurrence& r, std::span<const TensorView> in, std::span<const TensorView> out) {
  const bool lstm = r.cell == Cell::lstm;
  const size_t bias_at = lstm ? 4 : 3;
  const int64_t width = r.width, gates = r.gates() * width;
  const T *x = elements<T>(in[0]), *w = elements<T>(in[1]);
  const T* b = in.size() > bias_at ? elements<T>(in[bias_at]) : nullptr;
  T* y = elements<T>(out[0]);
  T* c = lstm ? elements<T>(out[1]) : nullptr;
  T* kept = r.kept() > 0 ? elements<T>(out[lstm ? 2 : 1]) : nullptr;
  std::vector<double> s(gates);
  for (int64_t i = 0; i < r.steps; ++i) {
    const int64_t now = r.place(i) * r.rows, before = i > 0 ? r.place(i - 1) * r.rows : 0;
    for (int64_t n = 0; n < r.rows; ++n) {
      const T* h_before = (i > 0 ? y + before * width : elements<T>(in[2])) + n * width;
      const T* c_before = !lstm ? nullptr : (i > 0 ? c + before * width : elements<T>(in[3])) + n * width;
      for (int64_t g = 0; g < gates; ++g) {
        s[g] = b ? static_cast<double>(b[g]) : 0.0;
        for (int64_t j = 0; j < width; ++j) s[g] += static_cast<double>(w[g * width + j]) * h_before[j];
      }
      step_forward<T>(r, x + (now + n) * gates, s.data(), h_before, c_before, y + (now + n) * width,
                      lstm ? c + (now + n) * width : nullptr, kept ? kept + (now + n) * 4 * width : nullptr);
    }
  }
}

// One row of one step. dh and dc hold the gradients of h and c, and afterwards what goes to those of the step before
// without passing through the weights; dx and ds are those of the gates' two parts.
template <class T>
void step_backward(const Recurrence& r, const T* h, const T* h_before, const T* c, const T* c_before, const T* kept,
                   double* dh, double* dc, double* dx, double* ds) {
  const int64_t width = r.width;
  for (int64_t j = 0; j < width; ++j) {
    const auto gate = [&](int64_t g) { return static_cast<double>(kept[g * width + j]); };
    switch (r.cell) {
      case Cell::lstm: {
        const double in = gate(0), forget = gate(1), g = gate(2), out = gate(3),
                     bent = std::tanh(static_cast<double>(c[j]));
        dc[j] += dh[j] * out * (1 - bent * bent);
        dx[j] = dc[j] * g * in * (1 - in);
        dx[width + j] = dc[j] * c_before[j] * forget * (1 - forget);
        dx[2 * width + j] = dc[j] * in * (1 - g * g);
        dx[3 * width + j] = dh[j] * bent * out * (1 - out);
        dc[j] *= forget;
        dh[j] = 0;
        for (int64_t k = 0; k < 4; ++k) ds[k * width + j] = dx[k * width + j];
        break;
      }
      case Cell::gru: {
        const double reset = gate(0), z = gate(1), n = gate(2), s_n = gate(3), dn = dh[j] * (1 - z) * (1 - n * n);
        dx[j] = ds[j] = dn * s_n * reset * (1 - reset);
        dx[width + j] = ds[width + j] = dh[j] * (h_before[j] - n) * z * (1 - z);
        dx[2 * width + j] = dn;
        ds[2 * width + j] = dn * reset;
        dh[j] *= z;
        break;
      }
      case Cell::tanh: dx[j] = ds[j] = dh[j] * (1 - static_cast<double>(h[j]) * h[j]), dh[j] = 0; break;
      case Cell::relu: dx[j] = ds[j] = h[j] > 0 ? dh[j] : 0, dh[j] = 0; break;
    }
  }
}

template <class T>
void recurrent_backward(const Recurrence& r, std::span<const TensorView> in, std::span<const TensorView> out) {
  const BackwardInputs at = backward_inputs(r.cell, in.size());
  const int64_t width = r.width, gates = r.gates() * width;
  const auto given = [&](size_t i) { return i > 0 ? elements<T>(in[i]) : nullptr; };
  const T *dy = elements<T>(in[0]), *w = elements<T>(in[1]), *y = given(at.y), *c = given(at.c), *kept = given(at.kept);
  const T *h0 = given(at.h0), *c0 = given(at.c0), *given_dc = given(at.dc);
  T *dx_out = elements<T>(out[0]), *dh0 = elements<T>(out[1]);
  std::vector<double> dh(width), dc(width), dx(gates), ds(gates);
  for (int64_t n = 0; n < r.rows; ++n) {
    std::fill(dh.begin(), dh.end(), 0.0);
    std::fill(dc.begin(), dc.end(), 0.0);
    for (int64_t i = r.steps; i-- > 0;) {
      const int64_t now = r.place(i) * r.rows + n, before = i > 0 ? r.place(i - 1) * r.rows + n : 0;
      const auto row = [&](const T* all, int64_t place) { return all ? all + place * width : nullptr; };
      const auto earlier = [&](const T* all, const T* first) { return i > 0 ? row(all, before) : row(first, n); };
      for (int64_t j = 0; j < width; ++j) {
        dh[j] += dy[now * width + j];
        if (given_dc) dc[j] += given_dc[now * width + j];
      }
      step_backward<T>(r, row(y, now), earlier(y, h0), row(c, now), earlier(c, c0),
                       kept ? kept + now * 4 * width : nullptr, dh.data(), dc.data(), dx.data(), ds.data());
      for (int64_t g = 0; g < gates; ++g) {
        dx_out[now * gates + g] = static_cast<T>(dx[g]);
        if (r.cell == Cell::gru) elements<T>(out[2])[now * gates + g] = static_cast<T>(ds[g]);
        for (int64_t j = 0; j < width; ++j) dh[j] += ds[g] * w[g * width + j];
      }
    }
    for (int64_t j = 0; j < width; ++j) {
      dh0[n * width + j] = static_cast<T>(dh[j]);
      if (r.cell == Cell::lstm) elements<T>(out[2])[n * width + j] = static_cast<T>(dc[j]);
    }
  }
}

Work recurrent_work(const Graph& graph, const Op& op) {
  const double weights = static_cast<double>(element_count(graph.tensor(op.inputs[1]).shape));
  const Shape& sequence = graph.tensor(op.inputs[0]).shape;
  return {2 * weights * static_cast<double>(sequence[0] * sequence[1]),
          static_cast<double>((bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs)).count)};
}

// h of the step before each step, as rows.
TensorId rows_before(Graph& graph, OpId id, const Recurrence& r) {
  const Op op = graph.op(id);
  const auto add = [&](std::string_view type, std::string_view suffix, std::vector<TensorId> inputs, Attributes more) {
    return graph.output(add_backward(graph, type, id, suffix, std::move(inputs), std::move(more)));
  };
  const Shape rows = {r.steps * r.rows, r.width};
  if (r.steps == 1) return op.inputs[2];
  const TensorId first = add("Reshape", "first", {op.inputs[2]}, {{"shape", Shape{1, r.rows, r.width}}});
  const TensorId later = add("Slice", "later", {op.outputs[0]},
                             {{"axis", int64_t{0}}, {"begin", int64_t{r.reverse}}, {"size", r.steps - 1}});
  const TensorId all = add("Concat", "before", r.reverse ? std::vector{later, first} : std::vector{first, later},
                           {{"axis", int64_t{0}}});
  return add("Reshape", "rows_before", {all}, {{"shape", rows}});
}

std::vector<TensorId> recurrent_gradient(Graph& graph, OpId id, std::span<const TensorId> dy,
                                         const std::vector<bool>& wanted) {
  const Op op = graph.op(id);
  const Recurrence r = recurrence_of(op.attributes, graph.tensor(op.inputs[0]).shape, graph.tensor(op.inputs[1]).shape);
  const bool lstm = r.cell == Cell::lstm, has_dc = lstm && dy[1].valid();
  std::vector<TensorId> result(op.inputs.size());
  if (!dy[0].valid() && !has_dc) return result;
  TensorId d = dy[0];
  if (!d.valid()) {
    const Tensor& y = graph.tensor(op.outputs[0]);
    d = graph.output(add_backward(graph, "Constant", id, "zeros", {},
                                  {{"shape", y.shape}, {"value", 0.0}, {"dtype", std::string(to_string(y.dtype))}}));
  }
  std::vector<TensorId> inputs = {d, op.inputs[1]};
  if (lstm) {
    inputs.insert(inputs.end(), {op.outputs[1], op.outputs[2], op.inputs[3]});
    if (has_dc) inputs.push_back(dy[1]);
  } else {
    inputs.push_back(op.outputs[0]);
    if (r.cell == Cell::gru) inputs.insert(inputs.end(), {op.outputs[1], op.inputs[2]});
  }
  const OpId back = add_backward(graph, "RecurrentBackward", id, "backward", inputs, op.attributes);
  result[0] = graph.output(back, 0);
  result[2] = graph.output(back, 1);
  if (lstm) result[3] = graph.output(back, 2);
  const size_t bias_at = lstm ? 4 : 3;
  const bool bias = op.inputs.size() > bias_at && wanted[bias_at];
  if (wanted[1] || bias) {
    const TensorId gates = graph.output(back, r.cell == Cell::gru ? 2 : 0);
    const Shape rows = {r.steps * r.rows, r.gates() * r.width};
    const TensorId flat = graph.output(add_backward(graph, "Reshape", id, "rows", {gates}, {{"shape", rows}}));
    const OpId weights = add_backward(graph, "FullyConnectedBackwardWeights", id, "weights",
                                      {rows_before(graph, id, r), flat}, {{"bias", int64_t{bias}}});
    result[1] = graph.output(weights, 0);
    if (bias) result[bias_at] = graph.output(weights, 1);
  }
  return result;
}

OpType recurrent_forward_op() {
  return {
      .name = "RecurrentForward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 3, 5);
            const Recurrence r = read_recurrence(attributes, *in[0], *in[1]);
            const bool lstm = r.cell == Cell::lstm;
            expect_inputs(in, lstm ? 4 : 3, lstm ? 5 : 4);
            expect_shape(*in[0], sequence_of(r, r.gates()));
            for (size_t i = 2; i < (lstm ? 4u : 3u); ++i) expect_shape(*in[i], {r.rows, r.width});
            if (in.size() > (lstm ? 4 : 3)) expect_bias(*in.back(), *in[0], r.gates() * r.width);
            std::vector<TensorSpec> specs = {{sequence_of(r, 1), in[0]->dtype}};
            if (lstm) specs.push_back(specs[0]);
            if (r.kept() > 0) specs.push_back({sequence_of(r, r.kept()), in[0]->dtype});
            return specs;
          },
      .gradient = recurrent_gradient,
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = recurrent_work,
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const Recurrence r = recurrence_of(op.attributes, in[0].shape, in[1].shape);
            with_floating_type(in[0], [&](auto zero) { recurrent_forward<decltype(zero)>(r, in, out); });
          },
  };
}

OpType recurrent_backward_op() {
  return {
      .name = "RecurrentBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 3, 6);
            const Recurrence r = read_recurrence(attributes, *in[0], *in[1]);
            const BackwardInputs at = backward_inputs(r.cell, in.size());
            const size_t least = r.cell == Cell::lstm || r.cell == Cell::gru ? 5 : 3;
            expect_inputs(in, least, r.cell == Cell::lstm ? 6 : least);
            for (size_t i : {at.y, at.c, at.dc}) {
              if (i > 0) expect_shape(*in[i], sequence_of(r, 1));
            }
            for (size_t i : {at.h0, at.c0}) {
              if (i > 0) expect_shape(*in[i], {r.rows, r.width});
            }
            if (at.kept > 0) expect_shape(*in[at.kept], sequence_of(r, r.kept()));
            std::vector<TensorSpec> specs = {{sequence_of(r, r.gates()), in[0]->dtype},
                                             {{r.rows, r.width}, in[0]->dtype}};
            if (r.cell == Cell::lstm) specs.push_back(specs[1]);
            if (r.cell == Cell::gru) specs.push_back(specs[0]);
            return specs;
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = recurrent_work,
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const Recurrence r = recurrence_of(op.attributes, in[0].shape, in[1].shape);
            with_floating_type(in[0], [&](auto zero) { recurrent_backward<decltype(zero)>(r, in, out); });
          },
  };
}

}  // namespace

std::vector<OpType> recurrent_ops() {
  return of_kind(LayerKind::fully_connected, {recurrent_forward_op(), recurrent_backward_op()});
}

}  // namespace plimsoll
