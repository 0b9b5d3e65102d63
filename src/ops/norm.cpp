// Normalisation of rows by their own mean and variance, which are left for the backward pass as mean and rstd
// (1 / sqrt(variance + epsilon)); the variance is the biased one, as in PyTorch.
//
//   LayerNorm   a row is the last `axes` dimensions; gamma and beta have their shape
//   RmsNorm     the same without a mean: rstd is 1 / sqrt(mean of squares + epsilon)
//   GroupNorm   x[N,C,...]; a row is one image's channels of one of `groups` groups; gamma and beta are [C]
//
// J. Ba et al., "Layer normalization" (2016); B. Zhang, R. Sennrich, "Root mean square layer normalization" (2019);
// Y. Wu, K. He, "Group normalization" (2018).
//
//   forward    x[, gamma[, beta]]                 ->  y[, mean], rstd
//   backward   x, dy[, mean], rstd[, gamma]       ->  dx[, dgamma[, dbeta]]
//
// The attribute affine ("none", "gamma", "gamma_beta") says which of gamma and beta there are.
#include <fmt/format.h>

#include <cmath>

#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

enum class Norm : uint8_t { layer, rms, group };

bool has_mean(Norm norm) { return norm != Norm::rms; }

// How many of gamma and beta there are.
int affine_count(const Attributes& attributes, Norm norm) {
  const std::string affine = attributes.text("affine", "none");
  if (affine == "none") return 0;
  if (affine == "gamma") return 1;
  if (affine == "gamma_beta" && norm != Norm::rms) return 2;
  throw Error(ErrorCode::invalid_input,
              fmt::format("affine is '{}'; {} is expected", affine,
                          norm == Norm::rms ? "'none' or 'gamma'" : "'none', 'gamma' or 'gamma_beta'"));
}

// The rows of x, and of which element of gamma and beta the i-th of a row is.
struct NormRows {
  int64_t rows = 1, length = 1;
  int64_t groups = 0, pixels = 1;  // groups 0: element i has gamma[i]
  Shape affine, statistics;        // shapes of gamma and beta, and of mean and rstd
  int64_t scale_at(int64_t row, int64_t i) const {
    return groups == 0 ? i : row % groups * (length / pixels) + i / pixels;
  }
};

NormRows rows_of(const Attributes& attributes, Norm norm, const Shape& shape, std::string_view name) {
  NormRows r;
  const int64_t rank = static_cast<int64_t>(shape.size());
  if (norm == Norm::group) {
    r.groups = attributes.integer("groups");
    if (rank < 2 || r.groups < 1 || shape[1] % r.groups != 0) {
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("'{}' is {}; two or more dimensions are expected, the second of them channels in {} equal "
                      "groups",
                      name, to_string(shape), r.groups));
    }
    r.rows = shape[0] * r.groups;
    r.affine = {shape[1]};
    r.statistics = {shape[0], r.groups};
    for (int64_t d = 2; d < rank; ++d) r.pixels *= shape[static_cast<size_t>(d)];
  } else {
    const int64_t axes = attributes.integer("axes", 1);
    if (axes < 1 || axes > rank) {
      throw Error(ErrorCode::invalid_input, fmt::format("axes is {}, but '{}' is {}: of its {} dimensions, one or more "
                                                        "are normalised",
                                                        axes, name, to_string(shape), rank));
    }
    r.statistics = {shape.begin(), shape.end() - axes};
    r.affine = {shape.end() - axes, shape.end()};
    r.rows = element_count(r.statistics);
  }
  r.length = element_count(shape) / std::max<int64_t>(r.rows, 1);
  if (r.length == 0 || r.rows == 0) {
    throw Error(ErrorCode::invalid_input, fmt::format("'{}' is {}; it has no elements", name, to_string(shape)));
  }
  return r;
}

double norm_epsilon(const Attributes& attributes) {
  const double epsilon = attributes.real("epsilon", 1e-5);
  if (epsilon >= 0) return epsilon;
  throw Error(ErrorCode::invalid_input, fmt::format("epsilon is {}; it is at least 0", epsilon));
}

void expect_tensor(const Tensor& x, const Tensor& other, const Shape& shape, std::string_view what) {
  expect_same_dtype(x, other);
  if (other.shape == shape) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("{} '{}' is {}; {} is expected for '{}' of {}", what, other.name, to_string(other.shape),
                          to_string(shape), x.name, to_string(x.shape)));
}

std::vector<TensorSpec> infer_norm(Norm norm, const Attributes& attributes, std::span<const Tensor* const> in) {
  const int affine = affine_count(attributes, norm);
  expect_inputs(in, static_cast<size_t>(1 + affine));
  norm_epsilon(attributes);
  const Tensor& x = *in[0];
  const NormRows rows = rows_of(attributes, norm, x.shape, x.name);
  if (affine > 0) expect_tensor(x, *in[1], rows.affine, "gamma");
  if (affine > 1) expect_tensor(x, *in[2], rows.affine, "beta");
  std::vector<TensorSpec> out{{x.shape, x.dtype}};
  if (has_mean(norm)) out.push_back({rows.statistics, x.dtype});
  out.push_back({rows.statistics, x.dtype});
  return out;
}

std::vector<TensorSpec> infer_norm_backward(Norm norm, const Attributes& attributes,
                                            std::span<const Tensor* const> in) {
  const int affine = affine_count(attributes, norm);
  const size_t saved = has_mean(norm) ? 2 : 1;
  expect_inputs(in, 2 + saved + (affine > 0 ? 1 : 0));
  const Tensor& x = *in[0];
  const NormRows rows = rows_of(attributes, norm, x.shape, x.name);
  expect_same_shape(x, *in[1]);
  expect_same_dtype(x, *in[1]);
  for (size_t i = 0; i < saved; ++i) expect_tensor(x, *in[2 + i], rows.statistics, "statistic");
  if (affine > 0) expect_tensor(x, *in[2 + saved], rows.affine, "gamma");
  std::vector<TensorSpec> out{{x.shape, x.dtype}};
  for (int i = 0; i < affine; ++i) out.push_back({rows.affine, x.dtype});
  return out;
}

std::vector<TensorId> norm_gradient(Norm norm, const std::string& backward, Graph& graph, OpId id,
                                    std::span<const TensorId> dy, const std::vector<bool>& wanted) {
  const Op op = graph.op(id);
  std::vector<TensorId> result(op.inputs.size());
  if (!dy[0].valid()) return result;
  std::vector<TensorId> inputs{op.inputs[0], dy[0]};
  for (size_t i = 1; i < op.outputs.size(); ++i) inputs.push_back(op.outputs[i]);
  if (op.inputs.size() > 1) inputs.push_back(op.inputs[1]);
  Attributes attributes{{"affine", op.attributes.text("affine", "none")}};
  if (norm == Norm::group) {
    attributes.set("groups", op.attributes.integer("groups"));
  } else {
    attributes.set("axes", op.attributes.integer("axes", 1));
  }
  const OpId back = add_backward(graph, backward, id, "backward", inputs, std::move(attributes));
  for (size_t i = 0; i < result.size(); ++i) {
    if (wanted[i]) result[i] = graph.output(back, i);
  }
  return result;
}

void run_norm(Norm norm, const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const NormRows rows = rows_of(op.attributes, norm, in[0].shape, "x");
  const double epsilon = norm_epsilon(op.attributes), n = static_cast<double>(rows.length);
  for (int64_t r = 0; r < rows.rows; ++r) {
    const int64_t first = r * rows.length;
    double mean = 0, squares = 0;
    if (has_mean(norm)) {
      for (int64_t i = 0; i < rows.length; ++i) mean += load(in[0], first + i);
      mean /= n;
      store(out[1], r, mean);
    }
    for (int64_t i = 0; i < rows.length; ++i) {
      const double d = load(in[0], first + i) - mean;
      squares += d * d;
    }
    const double rstd = 1 / std::sqrt(squares / n + epsilon);
    store(out.back(), r, rstd);
    for (int64_t i = 0; i < rows.length; ++i) {
      const int64_t s = rows.scale_at(r, i);
      const double gamma = in.size() > 1 ? load(in[1], s) : 1, beta = in.size() > 2 ? load(in[2], s) : 0;
      store(out[0], first + i, (load(in[0], first + i) - mean) * rstd * gamma + beta);
    }
  }
}

// With g = dy * gamma and h = (x - mean) * rstd: dx = rstd * (g - mean of g - h * mean of g * h); RmsNorm has no mean
// of g.
void run_norm_backward(Norm norm, const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const NormRows rows = rows_of(op.attributes, norm, in[0].shape, "x");
  const bool centred = has_mean(norm);
  const size_t rstd_at = centred ? 3 : 2, gamma_at = rstd_at + 1;
  const double n = static_cast<double>(rows.length);
  std::vector<double> dgamma(static_cast<size_t>(element_count(rows.affine))), dbeta(dgamma.size());
  for (int64_t r = 0; r < rows.rows; ++r) {
    const int64_t first = r * rows.length;
    const double mean = centred ? load(in[2], r) : 0, rstd = load(in[rstd_at], r);
    const auto gradient_at = [&](int64_t i) {
      return load(in[1], first + i) * (in.size() > gamma_at ? load(in[gamma_at], rows.scale_at(r, i)) : 1);
    };
    const auto normal_at = [&](int64_t i) { return (load(in[0], first + i) - mean) * rstd; };
    double sum = 0, product = 0;
    for (int64_t i = 0; i < rows.length; ++i) {
      sum += gradient_at(i);
      product += gradient_at(i) * normal_at(i);
      const auto s = static_cast<size_t>(rows.scale_at(r, i));
      dgamma[s] += load(in[1], first + i) * normal_at(i);
      dbeta[s] += load(in[1], first + i);
    }
    for (int64_t i = 0; i < rows.length; ++i) {
      store(out[0], first + i, rstd * (gradient_at(i) - (centred ? sum / n : 0) - normal_at(i) * product / n));
    }
  }
  for (size_t s = 0; s < dgamma.size(); ++s) {
    if (out.size() > 1) store(out[1], static_cast<int64_t>(s), dgamma[s]);
    if (out.size() > 2) store(out[2], static_cast<int64_t>(s), dbeta[s]);
  }
}

std::vector<OpType> make_norm(Norm norm, const std::string& name) {
  OpType forward{
      .name = name + "Forward",
      .infer = [norm](const Attributes& attributes,
                      std::span<const Tensor* const> in) { return infer_norm(norm, attributes, in); },
      .gradient = [norm, backward = name + "Backward"](
                      Graph& graph, OpId id, std::span<const TensorId> dy,
                      const std::vector<bool>& wanted) { return norm_gradient(norm, backward, graph, id, dy, wanted); },
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0}};
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 8); },
      .reference = [norm](const Op& op, std::span<const TensorView> in,
                          std::span<const TensorView> out) { run_norm(norm, op, in, out); },
  };
  OpType backward{
      .name = name + "Backward",
      .infer = [norm](const Attributes& attributes,
                      std::span<const Tensor* const> in) { return infer_norm_backward(norm, attributes, in); },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 1}, {0, 0}};  // the sums of a row are complete before it is written
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 14); },
      .reference = [norm](const Op& op, std::span<const TensorView> in,
                          std::span<const TensorView> out) { run_norm_backward(norm, op, in, out); },
  };
  const bool centred = has_mean(norm);
  const BatchDivision forward_parts{{0}, centred ? std::vector<int>{0, 1, 2} : std::vector<int>{0, 1}};
  const BatchDivision backward_parts{centred ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{0, 1, 2}, {0}};
  return {in_parts(std::move(forward), forward_parts), in_parts(std::move(backward), backward_parts)};
}

}  // namespace

std::vector<OpType> norm_ops() {
  std::vector<OpType> types;
  for (const auto& [norm, name] :
       {std::pair(Norm::layer, "LayerNorm"), std::pair(Norm::rms, "RmsNorm"), std::pair(Norm::group, "GroupNorm")}) {
    for (OpType& type : make_norm(norm, name)) types.push_back(std::move(type));
  }
  return of_kind(LayerKind::batch_norm, std::move(types));
}

}  // namespace plimsoll
