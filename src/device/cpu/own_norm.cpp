// Layer norm and RMS norm: a row is read twice while it is in the cache, and written once. The sums of gamma's and
// beta's gradients run in floats over some rows, then in doubles, a sum for each thread; these are added in order.
#include <fmt/format.h>

#include <cmath>

#include "device/cpu/own_rows.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

// Rows of the last `axes` dimensions.
struct Rows {
  int64_t count = 1, length = 1;
};
Rows read_rows(const Graph& graph, const Op& op) {
  const Shape& shape = graph.tensor(op.inputs[0]).shape;
  const size_t leading = shape.size() - static_cast<size_t>(op.attributes.integer("axes", 1));
  Rows rows;
  for (size_t d = 0; d < shape.size(); ++d) (d < leading ? rows.count : rows.length) *= shape[d];
  return rows;
}

// kCentred: layer norm. Its sums run around the mean of the row's first elements: so neither a large mean eats their digits, nor do
// the differences add up to something large.
template <class T, bool kCentred>
class RowNormForward : public OwnKernel {
 public:
  RowNormForward(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads), rows_(read_rows(graph, op)), epsilon_(op.attributes.real("epsilon", 1e-5)) {
    require_row_major(graph, op);
  }

  void run() override {
    const T* gamma = inputs_.size() > 1 ? input<T>(1) : nullptr;
    const T* beta = inputs_.size() > 2 ? input<T>(2) : nullptr;
    for_each_part(parts_, [&](int part) {
      const Range range = share(rows_.count, part, parts_);
      for (int64_t r = range.begin; r < range.end; ++r) row(r, gamma, beta);
    });
  }

 private:
  void row(int64_t r, const T* gamma, const T* beta) const {
    const T* x = input<T>(0) + r * rows_.length;
    T* y = output<T>(0) + r * rows_.length;
    const double n = static_cast<double>(rows_.length);
    float mean = 0;
    double squares = 0;
    if constexpr (kCentred) {
      const int some = static_cast<int>(std::min<int64_t>(kLanes, rows_.length));
      const f32x16 shift = splat(sum_of_lanes(load(x, some)) / static_cast<float>(some));
      double sums[2];
      row_sums<2>(
          rows_.length,
          [&](int64_t i, auto count, auto& a) {
            const f32x16 d = first_lanes(load(x + i, count) - shift, count);
            a[0] += d;
            a[1] += d * d;
          },
          sums);
      mean = static_cast<float>(static_cast<double>(shift[0]) + sums[0] / n);
      squares = std::max(0.0, sums[1] - sums[0] * sums[0] / n);
      output<T>(1)[r] = mean;
    } else {
      double sums[1];
      row_sums<1>(
          rows_.length,
          [&](int64_t i, auto count, auto& a) {
            const f32x16 v = load(x + i, count);
            a[0] += v * v;
          },
          sums);
      squares = sums[0];
    }
    const float rstd = static_cast<float>(1 / std::sqrt(squares / n + epsilon_));
    output<T>(kCentred ? 2 : 1)[r] = rstd;
    const f32x16 means = splat(mean), scale = splat(rstd);
    auto write = [&](auto affine) {
      over_row(rows_.length, [&](int64_t i, auto count) {
        f32x16 v = load(x + i, count);
        if constexpr (kCentred) v -= means;
        v *= scale;
        if constexpr (decltype(affine)::value > 0) v *= load(gamma + i, count);
        if constexpr (decltype(affine)::value > 1) v += load(beta + i, count);
        store(y + i, v, count);
      });
    };
    if (beta != nullptr) {
      write(std::integral_constant<int, 2>());
    } else if (gamma != nullptr) {
      write(std::integral_constant<int, 1>());
    } else {
      write(std::integral_constant<int, 0>());
    }
  }

  Rows rows_;
  double epsilon_;
};

template <class T, bool kCentred>
class RowNormBackward : public OwnKernel {
 public:
  RowNormBackward(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads), rows_(read_rows(graph, op)), affine_(static_cast<int>(op.outputs.size()) - 1) {
    require_row_major(graph, op);
    parts_ = static_cast<int>(std::min<int64_t>(parts_, (rows_.count + kBlock - 1) / kBlock));
    padded_ = (rows_.length + kLanes - 1) / kLanes * kLanes;
    // By part and by gamma or beta: a double each, then a float each.
    workspace_bytes_ = {parts_ * affine_ * padded_ * static_cast<int64_t>(sizeof(double) + sizeof(float))};
  }

  void run() override {
    for_each_part(parts_, [&](int part) {
      switch (affine_) {
        case 0: return some_rows<0>(part);
        case 1: return some_rows<1>(part);
        default: return some_rows<2>(part);
      }
    });
    for (int k = 0; k < affine_; ++k) {
      T* gradient = output<T>(static_cast<size_t>(1 + k));
      for (int64_t i = 0; i < rows_.length; ++i) {
        double sum = 0;
        for (int part = 0; part < parts_; ++part) sum += totals(part, k)[i];
        gradient[i] = static_cast<T>(sum);
      }
    }
  }

 private:
  static constexpr int64_t kBlock = 32;  // rows whose sums run in floats

  double* totals(int part, int k) const { return static_cast<double*>(workspace_) + (part * affine_ + k) * padded_; }
  float* partials(int part, int k) const {
    return reinterpret_cast<float*>(static_cast<double*>(workspace_) + parts_ * affine_ * padded_) +
           (part * affine_ + k) * padded_;
  }

  template <int kAffine>
  void some_rows(int part) const {
    for (int k = 0; k < kAffine; ++k) std::fill(totals(part, k), totals(part, k) + padded_, 0.0);
    const Range range = share(rows_.count, part, parts_, kBlock);
    for (int64_t begin = range.begin; begin < range.end; begin += kBlock) {
      for (int k = 0; k < kAffine; ++k) std::fill(partials(part, k), partials(part, k) + padded_, 0.0f);
      for (int64_t r = begin; r < std::min(range.end, begin + kBlock); ++r) row<kAffine>(r, part);
      for (int k = 0; k < kAffine; ++k) {
        double* total = totals(part, k);
        const float* partial = partials(part, k);
        for (int64_t i = 0; i < padded_; ++i) total[i] += static_cast<double>(partial[i]);
      }
    }
  }

  template <int kAffine>
  void row(int64_t r, int part) const {
    const T* x = input<T>(0) + r * rows_.length;
    const T* dy = input<T>(1) + r * rows_.length;
    T* dx = output<T>(0) + r * rows_.length;
    const T* gamma = kAffine > 0 ? input<T>(kCentred ? 4 : 3) : nullptr;
    float* dgamma = kAffine > 0 ? partials(part, 0) : nullptr;
    float* dbeta = kAffine > 1 ? partials(part, 1) : nullptr;
    const f32x16 mean = splat(kCentred ? input<T>(2)[r] : T{0}), rstd = splat(input<T>(kCentred ? 3 : 2)[r]);
    auto normal = [&](int64_t i, auto count) {
      f32x16 v = load(x + i, count);
      if constexpr (kCentred) v -= mean;
      return v * rstd;
    };
    auto gradient = [&](f32x16 d, int64_t i, auto count) {
      if constexpr (kAffine > 0) d *= load(gamma + i, count);
      return d;
    };
    double sums[2];
    row_sums<2>(
        rows_.length,
        [&](int64_t i, auto count, auto& a) {  // what is beyond the row has dy = 0
          const f32x16 d = load(dy + i, count), h = normal(i, count), g = gradient(d, i, count);
          if constexpr (kCentred) a[0] += g;
          a[1] += g * h;
          if constexpr (kAffine > 0) store(dgamma + i, load(dgamma + i) + d * h);
          if constexpr (kAffine > 1) store(dbeta + i, load(dbeta + i) + d);
        },
        sums);
    const double n = static_cast<double>(rows_.length);
    const f32x16 sum = splat(static_cast<float>(sums[0] / n)), product = splat(static_cast<float>(sums[1] / n));
    over_row(rows_.length, [&](int64_t i, auto count) {
      f32x16 v = gradient(load(dy + i, count), i, count) - normal(i, count) * product;
      if constexpr (kCentred) v -= sum;
      store(dx + i, v * rstd, count);
    });
  }

  Rows rows_;
  int affine_;
  int64_t padded_ = 0;
};

}  // namespace

void require_row_major(const Graph& graph, const Op& op) {
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (TensorId id : *list) {
      const Tensor& tensor = graph.tensor(id);
      if (tensor.layout.is_plain()) continue;
      throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}) wants '{}' row-major, not as '{}'", op.name,
                                                      op.type->name, tensor.name, tensor.layout.tag));
    }
  }
}

std::vector<NamedFactory> group_norm_kernels();

std::vector<NamedFactory> norm_kernels() {
  std::vector<NamedFactory> kernels{
      {"LayerNormForward", {own_specs_row_major, make_own<RowNormForward<float, true>>}},
      {"LayerNormBackward", {own_specs_row_major, make_own<RowNormBackward<float, true>>}},
      {"RmsNormForward", {own_specs_row_major, make_own<RowNormForward<float, false>>}},
      {"RmsNormBackward", {own_specs_row_major, make_own<RowNormBackward<float, false>>}},
  };
  for (const NamedFactory& kernel : group_norm_kernels()) kernels.push_back(kernel);
  return kernels;
}

}  // namespace plimsoll::cpu
