// y[...,M,N] = a[...,M,K] b[...,K,N]; the dimensions before the matrices are a batch and broadcast as numpy's do.
//
// With transpose_a (transpose_b) a lies as [...,K,M] (b as [...,N,K]). The attribute batch, y's dimensions before the
// matrices, may ask for fewer of them, or for 1 where there are more: products are summed over these. So the gradient of
// an input that was broadcast is a MatMul as well.
#include "ops/matmul.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/families.h"
#include "ops/reference.h"
#include "ops/typed.h"

namespace plimsoll {
namespace {

Shape batch_of(const Shape& shape) { return {shape.begin(), shape.end() - 2}; }

// The size of dimension d of `rank` when the shape's last dimensions are aligned with it; 1 where it has none.
int64_t aligned(const Shape& shape, size_t d, size_t rank) {
  return d + shape.size() < rank ? 1 : shape[d + shape.size() - rank];
}

Shape broadcast_batch(const Tensor& a, const Tensor& b) {
  const Shape x = batch_of(a.shape), y = batch_of(b.shape);
  Shape result(std::max(x.size(), y.size()));
  for (size_t d = 0; d < result.size(); ++d) {
    const int64_t i = aligned(x, d, result.size()), j = aligned(y, d, result.size());
    if (i != j && i != 1 && j != 1) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("'{}' is {} and '{}' is {}; what stands before the matrices must be equal or 1", a.name,
                              to_string(a.shape), b.name, to_string(b.shape)));
    }
    result[d] = i == 1 ? j : i;
  }
  return result;
}

// y's batch: the whole one, or what the attribute asks for.
Shape result_batch(const Attributes& attributes, const Shape& whole) {
  const Shape wanted = attributes.integers("batch", whole);
  bool fits = wanted.size() <= whole.size();
  for (size_t d = 0; fits && d < whole.size(); ++d) {
    const int64_t size = aligned(wanted, d, whole.size());
    fits = size == 1 || size == whole[d];
  }
  if (fits) return wanted;
  throw Error(ErrorCode::invalid_input,
              fmt::format("batch is {}; the products are {}, which can be summed to 1 or left", to_string(wanted),
                          to_string(whole)));
}

using Dimension = MatrixProducts::Dimension;

// The strides of a tensor's matrices along the dimensions of the whole batch.
std::vector<int64_t> batch_strides(const Shape& batch, const Shape& whole, int64_t matrix) {
  std::vector<int64_t> strides(whole.size());
  int64_t stride = matrix;
  for (size_t d = whole.size(); d-- > 0;) {
    const int64_t size = aligned(batch, d, whole.size());
    strides[d] = size == 1 ? 0 : stride;
    stride *= size;
  }
  return strides;
}

bool follows(const Dimension& outer, const Dimension& inner) {
  const auto fits = [&](int64_t o, int64_t i) { return o == i * inner.size; };
  return fits(outer.a, inner.a) && fits(outer.b, inner.b) && fits(outer.y, inner.y);
}

// Takes the innermost dimension into the matrices, if they lie so.
bool fold(MatrixProducts& p) {
  if (p.batch.empty()) return false;
  const Dimension d = p.batch.back();
  if (!p.transpose_a && d.b == 0 && d.a == p.m * p.k && d.y == p.m * p.n) {
    p.m *= d.size;
  } else if (p.transpose_a && !p.transpose_b && d.y == 0 && d.a == p.k * p.m && d.b == p.k * p.n) {
    p.k *= d.size;
  } else {
    return false;
  }
  p.batch.pop_back();
  return true;
}

struct MatrixSizes {
  int64_t m, n, k;
};
MatrixSizes matrix_sizes(const Attributes& attributes, const Tensor& a, const Tensor& b) {
  for (const Tensor* tensor : {&a, &b}) {
    if (tensor->shape.size() >= 2) continue;
    throw Error(ErrorCode::invalid_input,
                fmt::format("'{}' is {}; two or more dimensions are expected", tensor->name, to_string(tensor->shape)));
  }
  const bool ta = attributes.integer("transpose_a", 0) != 0, tb = attributes.integer("transpose_b", 0) != 0;
  const auto at = [](const Tensor& tensor, bool last) { return *(tensor.shape.end() - (last ? 1 : 2)); };
  const MatrixSizes sizes{.m = at(a, ta), .n = at(b, !tb), .k = at(a, !ta)};
  if (at(b, tb) != sizes.k) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("'{}' is {}{} and '{}' is {}{}: rows of {} cannot be multiplied with columns of {}", a.name,
                            to_string(a.shape), ta ? " transposed" : "", b.name, to_string(b.shape),
                            tb ? " transposed" : "", sizes.k, at(b, tb)));
  }
  return sizes;
}

std::vector<TensorSpec> infer_matmul(const Attributes& attributes, std::span<const Tensor* const> in) {
  expect_inputs(in, 2);
  expect_same_dtype(*in[0], *in[1]);
  const MatrixSizes sizes = matrix_sizes(attributes, *in[0], *in[1]);
  Shape shape = result_batch(attributes, broadcast_batch(*in[0], *in[1]));
  shape.push_back(sizes.m);
  shape.push_back(sizes.n);
  return {{std::move(shape), in[0]->dtype}};
}

std::vector<TensorId> matmul_gradient(Graph& graph, OpId id, std::span<const TensorId> dy,
                                      const std::vector<bool>& wanted) {
  const Op op = graph.op(id);
  std::vector<TensorId> result(2);
  if (!dy[0].valid()) return result;
  const TensorId a = op.inputs[0], b = op.inputs[1];
  const int64_t ta = op.attributes.integer("transpose_a", 0) != 0, tb = op.attributes.integer("transpose_b", 0) != 0;
  const Shape whole = broadcast_batch(graph.tensor(a), graph.tensor(b));
  if (op.attributes.integers("batch", whole) != whole) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("op '{}' (MatMul): sums over the batch have no gradient; sum by an op of its own", op.name));
  }
  const auto product = [&](const char* suffix, TensorId left, TensorId right, int64_t turn_left, int64_t turn_right,
                           TensorId of) {
    Attributes attributes{{"transpose_a", turn_left}, {"transpose_b", turn_right}};
    const Shape batch = batch_of(graph.tensor(of).shape);
    if (batch != whole) attributes.set("batch", batch);
    return graph.output(add_backward(graph, "MatMul", id, suffix, {left, right}, std::move(attributes)));
  };
  // y = A B with A = a or a', B = b or b'. dA = dy B', dB = A' dy, each turned over where the input is.
  if (wanted[1]) {
    result[1] = tb != 0 ? product("backward_b", dy[0], a, 1, ta, b) : product("backward_b", a, dy[0], 1 - ta, 0, b);
  }
  if (wanted[0]) {
    result[0] = ta != 0 ? product("backward_a", b, dy[0], tb, 1, a) : product("backward_a", dy[0], b, 0, 1 - tb, a);
  }
  return result;
}

template <class T>
void multiply_matrices(const MatrixProducts& p, const T* a, const T* b, T* y, int64_t elements) {
  std::vector<double> sums(static_cast<size_t>(elements));
  for (const MatrixOffsets& at : matrix_offsets(p.batch)) {
    for (int64_t i = 0; i < p.m; ++i) {
      double* const row = sums.data() + at.y + i * p.n;
      for (int64_t l = 0; l < p.k; ++l) {
        const double factor = a[at.a + (p.transpose_a ? l * p.m + i : i * p.k + l)];
        for (int64_t j = 0; j < p.n; ++j) {
          row[j] += factor * static_cast<double>(b[at.b + (p.transpose_b ? j * p.k + l : l * p.n + j)]);
        }
      }
    }
  }
  for (int64_t i = 0; i < elements; ++i) y[i] = static_cast<T>(sums[static_cast<size_t>(i)]);
}

}  // namespace

int64_t MatrixProducts::products() const {
  int64_t count = 1;
  for (const Dimension& d : batch) count *= d.size;
  return count;
}

bool MatrixProducts::sums() const {
  return std::any_of(batch.begin(), batch.end(), [](const Dimension& d) { return d.y == 0; });
}

MatrixProducts matrix_products(const Attributes& attributes, const Tensor& a, const Tensor& b) {
  const MatrixSizes sizes = matrix_sizes(attributes, a, b);
  MatrixProducts p{.m = sizes.m,
                   .n = sizes.n,
                   .k = sizes.k,
                   .transpose_a = attributes.integer("transpose_a", 0) != 0,
                   .transpose_b = attributes.integer("transpose_b", 0) != 0,
                   .batch = {}};
  const Shape whole = broadcast_batch(a, b);
  const auto of_a = batch_strides(batch_of(a.shape), whole, p.m * p.k);
  const auto of_b = batch_strides(batch_of(b.shape), whole, p.k * p.n);
  const auto of_y = batch_strides(result_batch(attributes, whole), whole, p.m * p.n);
  for (size_t d = 0; d < whole.size(); ++d) {
    if (whole[d] == 1) continue;
    const Dimension next{whole[d], of_a[d], of_b[d], of_y[d]};
    if (!p.batch.empty() && follows(p.batch.back(), next)) {
      p.batch.back() = {p.batch.back().size * next.size, next.a, next.b, next.y};
    } else {
      p.batch.push_back(next);
    }
  }
  while (fold(p)) {
  }
  std::stable_partition(p.batch.begin(), p.batch.end(), [](const Dimension& d) { return d.y != 0; });
  return p;
}

std::vector<MatrixOffsets> matrix_offsets(const std::vector<MatrixProducts::Dimension>& batch) {
  std::vector<MatrixOffsets> offsets(1);
  for (const Dimension& d : batch) {
    std::vector<MatrixOffsets> next;
    for (const MatrixOffsets& at : offsets) {
      for (int64_t i = 0; i < d.size; ++i) {
        next.push_back({at.a + i * d.a, at.b + i * d.b, at.y + i * d.y, at.adds || (d.y == 0 && i > 0)});
      }
    }
    offsets = std::move(next);
  }
  return offsets;
}

std::vector<OpType> matmul_ops() {
  OpType type{
      .name = "MatMul",
      .infer = infer_matmul,
      .gradient = matmul_gradient,
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work =
          [](const Graph& graph, const Op& op) {
            const MatrixProducts p =
                matrix_products(op.attributes, graph.tensor(op.inputs[0]), graph.tensor(op.inputs[1]));
            return Work{2.0 * static_cast<double>(p.m * p.n * p.k) * static_cast<double>(p.products()),
                        static_cast<double>((bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs)).count)};
          },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            Tensor a, b;
            a.shape = in[0].shape, b.shape = in[1].shape;
            const MatrixProducts p = matrix_products(op.attributes, a, b);
            with_floating_type(in[0], [&](auto zero) {
              using T = decltype(zero);
              multiply_matrices<T>(p, elements<T>(in[0]), elements<T>(in[1]), elements<T>(out[0]),
                                   element_count(out[0].shape));
            });
          },
  };
  return of_kind(LayerKind::fully_connected, {std::move(type)});
}

}  // namespace plimsoll
