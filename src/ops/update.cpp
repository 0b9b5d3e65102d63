// Optimizers as ops: one reads a parameter, its gradient and its states, and leaves the next ones in the same bytes.
// Every formula is that of PyTorch, term by term and in that order.
//
// With the attribute "scaled" the last input is a scalar by which the gradient is multiplied. Where it is below 0 there
// is nothing to update yet, and everything stays as it is. What the learning rate's input may hold beside it:
// plimsoll/ops.h.
#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>

#include "ops/families.h"
#include "ops/reference.h"
#include "ops/typed.h"

namespace plimsoll {
namespace {

void expect_scalar(const Tensor& tensor, std::string_view what, bool integer) {
  const bool right = integer ? tensor.dtype == DType::i64 : tensor.dtype == DType::f32 || tensor.dtype == DType::f64;
  if (right && tensor.shape.empty()) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {} of {}; the {} is a scalar of {}", tensor.name, to_string(tensor.shape),
                          to_string(tensor.dtype), what, integer ? "i64" : "f32 or f64"));
}

void expect_rate(const Tensor& tensor, int64_t settings) {
  if (tensor.shape.empty()) return expect_scalar(tensor, "learning rate", false);
  if (tensor.shape == Shape{settings} && (tensor.dtype == DType::f32 || tensor.dtype == DType::f64)) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {} of {}; a learning rate is a scalar, or the first of {} settings, of f32 or f64",
                          tensor.name, to_string(tensor.shape), to_string(tensor.dtype), settings));
}

// The parameter, its gradient and its states have one shape and one floating dtype.
void expect_like_parameter(std::span<const Tensor* const> in, std::initializer_list<size_t> others) {
  if (in[0]->dtype != DType::f32 && in[0]->dtype != DType::f64) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("'{}' is {}; a floating tensor is expected", in[0]->name, to_string(in[0]->dtype)));
  }
  for (size_t i : others) {
    expect_same_shape(*in[0], *in[i]);
    expect_same_dtype(*in[0], *in[i]);
  }
}

bool is_scaled(const Attributes& attributes) { return attributes.integer("scaled", 0) != 0; }

size_t with_scale(const Attributes& attributes, size_t inputs) { return inputs + (is_scaled(attributes) ? 1 : 0); }

void expect_scale(const Attributes& attributes, std::span<const Tensor* const> in) {
  if (is_scaled(attributes)) expect_scalar(*in.back(), "scale", false);
}

// The scale, or 1; nothing where it is no update, and the states are left as they are.
template <class T>
std::optional<T> scale_of(const Attributes& attributes, std::span<const TensorView> in,
                          std::initializer_list<std::pair<size_t, size_t>> states, std::span<const TensorView> out) {
  if (!is_scaled(attributes)) return T{1};
  const double scale = load(in.back(), 0);
  if (!(scale < 0)) return static_cast<T>(scale);
  for (const std::pair<size_t, size_t>& state : states) {
    const TensorView &from = in[state.first], &to = out[state.second];
    for_each_element(to, [&](int64_t i) { store(to, i, load(from, i)); });
  }
  return std::nullopt;
}

template <class Settings>
Settings settings_of(const Attributes& attributes, const TensorView& given) {
  Settings settings(attributes);
  with_floating_type(given,
                     [&](auto zero) { settings.read(elements<decltype(zero)>(given), element_count(given.shape)); });
  return settings;
}

TensorSpec next_of(const Tensor& state) { return {state.shape, state.dtype, state.role}; }

template <class T>
void sgd(const Attributes& attributes, const SgdSettings& settings, std::span<const TensorView> in,
         std::span<const TensorView> out) {
  const T lr = static_cast<T>(settings.learning_rate);
  const T momentum = static_cast<T>(settings.momentum);
  const T weight_decay = static_cast<T>(settings.weight_decay);
  const bool nesterov = settings.nesterov, has_momentum = out.size() > 1;
  const std::optional<T> scale =
      has_momentum ? scale_of<T>(attributes, in, {{0, 0}, {3, 1}}, out) : scale_of<T>(attributes, in, {{0, 0}}, out);
  if (!scale) return;
  const T *w = elements<T>(in[0]), *g = elements<T>(in[1]), *m = has_momentum ? elements<T>(in[3]) : nullptr;
  T *w_next = elements<T>(out[0]), *m_next = has_momentum ? elements<T>(out[1]) : nullptr;
  for (int64_t i = 0, n = element_count(in[0].shape); i < n; ++i) {
    T d = *scale * g[i] + weight_decay * w[i];
    if (has_momentum) {
      const T velocity = momentum * m[i] + d;
      d = nesterov ? d + momentum * velocity : velocity;
      m_next[i] = velocity;
    }
    w_next[i] = w[i] - lr * d;
  }
}

OpType sgd_update() {
  return {
      .name = "SgdUpdate",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            const bool has_momentum = attributes.real("momentum", 0) != 0;
            if (attributes.integer("nesterov", 0) != 0 && !has_momentum) {
              throw Error(ErrorCode::invalid_input, "nesterov needs a momentum that is not 0");
            }
            expect_inputs(in, with_scale(attributes, has_momentum ? 4 : 3));
            expect_rate(*in[2], SgdSettings::kCount);
            expect_scale(attributes, in);
            std::vector<TensorSpec> next = {next_of(*in[0])};
            expect_like_parameter(in, {1});
            if (has_momentum) {
              expect_like_parameter(in, {3});
              next.push_back(next_of(*in[3]));
            }
            return next;
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op& op) {
            std::vector<InPlace> pairs = {{0, 0, true}};
            if (op.outputs.size() > 1) pairs.push_back({1, 3, true});
            return pairs;
          },
      .work = [](const Graph& graph,
                 const Op& op) { return elementwise_work(graph, op, op.outputs.size() > 1 ? 6 : 4); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const auto settings = settings_of<SgdSettings>(op.attributes, in[2]);
            with_floating_type(in[0], [&](auto zero) { sgd<decltype(zero)>(op.attributes, settings, in, out); });
          },
      .changes_state = true,
  };
}

template <class T>
void adam(const Attributes& attributes, const AdamSettings& settings, double step, std::span<const TensorView> in,
          std::span<const TensorView> out) {
  const double learning_rate = settings.learning_rate, weight_decay = settings.weight_decay;
  const T keep = static_cast<T>(settings.decoupled ? 1 - learning_rate * weight_decay : 1);
  const T decay = static_cast<T>(settings.decoupled ? 0 : weight_decay);
  const T epsilon = static_cast<T>(settings.epsilon);
  const T b2 = static_cast<T>(settings.beta2()), c1 = static_cast<T>(settings.rest1);
  const T c2 = static_cast<T>(settings.rest2);
  const T step_size = static_cast<T>(learning_rate / (1 - std::pow(settings.beta1(), step)));
  const T correction = static_cast<T>(std::sqrt(1 - std::pow(settings.beta2(), step)));
  const T *w = elements<T>(in[0]), *g = elements<T>(in[1]), *m = elements<T>(in[4]), *v = elements<T>(in[5]);
  T *w_next = elements<T>(out[0]), *m_next = elements<T>(out[1]), *v_next = elements<T>(out[2]);
  const std::optional<T> scale = scale_of<T>(attributes, in, {{0, 0}, {4, 1}, {5, 2}}, out);
  if (!scale) return;
  for (int64_t i = 0, n = element_count(in[0].shape); i < n; ++i) {
    const T d = *scale * g[i] + decay * w[i];
    const T mean = m[i] + c1 * (d - m[i]);
    const T square = b2 * v[i] + c2 * d * d;
    w_next[i] = keep * w[i] - step_size * (mean / (std::sqrt(square) / correction + epsilon));
    m_next[i] = mean;
    v_next[i] = square;
  }
}

OpType adam_update() {
  return {
      .name = "AdamUpdate",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, with_scale(attributes, 6));
            expect_rate(*in[2], AdamSettings::kCount);
            expect_scale(attributes, in);
            expect_scalar(*in[3], "step number", true);
            expect_like_parameter(in, {1, 4, 5});
            return std::vector<TensorSpec>{next_of(*in[0]), next_of(*in[4]), next_of(*in[5])};
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0, true}, {1, 4, true}, {2, 5, true}};
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 14); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const double step = load(in[3], 0) + 1;  // PyTorch counts from 1
            const auto settings = settings_of<AdamSettings>(op.attributes, in[2]);
            with_floating_type(in[0], [&](auto zero) { adam<decltype(zero)>(op.attributes, settings, step, in, out); });
          },
      .changes_state = true,
  };
}

}  // namespace

std::vector<OpType> update_ops() { return of_kind(LayerKind::other, {sgd_update(), adam_update()}); }

}  // namespace plimsoll
