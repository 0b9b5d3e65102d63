// Losses and their gradients. Rows and chunks are summed apart and added in order, so that the sum does not depend on
// the number of threads.
#include "device/cpu/own_loss.h"

#include <fmt/format.h>

#include <cmath>

#include "device/cpu/own_lookups.h"
#include "device/cpu/own_rows.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

class SoftmaxCrossEntropyForward : public CrossEntropy {
 public:
  SoftmaxCrossEntropyForward(const Graph& graph, const Op& op, int threads) : CrossEntropy(graph, op, threads) {
    workspace_bytes_ = {rows_ * 2 * 8};
  }

  void run() override {
    double* losses = static_cast<double*>(workspace_);
    double* hits = losses + rows_;
    const double by = divisor();
    for_each_part(parts_, [&](int part) {
      const Range rows = share(rows_, part, parts_);
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        const RowLoss of_row = softmax_row(input(0) + r * classes_, output(1) + r * classes_, label_of(r));
        losses[r] = of_row.loss, hits[r] = of_row.hit;
      }
    });
    double loss = 0, correct = 0;
    for (int64_t r = 0; r < rows_; ++r) loss += losses[r], correct += hits[r];
    *output(0) = static_cast<float>(loss / by);
    *output(2) = static_cast<float>(correct);
  }
};

class SoftmaxCrossEntropyBackward : public CrossEntropy {
 public:
  using CrossEntropy::CrossEntropy;

  void run() override {
    const double scale = *input(2) / divisor();
    for_each_part(parts_, [&](int part) {
      const Range rows = share(rows_, part, parts_);
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        const float* p = input(0) + r * classes_;
        float* dz = output(0) + r * classes_;
        const int64_t label = label_of(r);
        if (label < 0) {
          std::fill(dz, dz + classes_, 0.0f);
          continue;
        }
        softmax_row_gradient(p, dz, label, scale);
      }
    });
  }
};

template <class Body>  // body(i, n) -> the terms of elements [i, i + n), zero in other lanes
double sum_of_chunk(int64_t begin, int64_t end, const Body& body) {
  f32x16 terms{};
  for_each_vector(begin, end, [&](int64_t i, auto n) { terms += body(i, n); });
  double lanes[16] = {};
  add_lanes(lanes, terms);
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

// A sum over all elements in chunks of fixed size. Their number, and so the workspace, does not depend on the layout,
// which is chosen after the workspace was asked: where padding asks for more of them, they are longer.
class SumOverElements : public OwnKernel {
 public:
  SumOverElements(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        elements_(storage_elements(graph.tensor(op.inputs[0]).shape, graph.tensor(op.inputs[0]).layout)),
        count_(static_cast<double>(element_count(graph.tensor(op.inputs[0]).shape))) {
    const int64_t elements = element_count(graph.tensor(op.inputs[0]).shape);
    chunks_ = (elements + kChunk - 1) / kChunk;
    if (chunks_ * kChunk < elements_) {
      length_ = (elements_ + chunks_ - 1) / chunks_;
      length_ = (length_ + kLanes - 1) / kLanes * kLanes;
    }
    workspace_bytes_ = {chunks_ * 8};
  }

 protected:
  static constexpr int64_t kChunk = kShardUnit;

  template <class Body>
  double sum(const Body& body) const {
    double* sums = static_cast<double*>(workspace_);
    sum_chunks(body, sums);
    double total = 0;
    for (int64_t k = 0; k < chunks_; ++k) total += sums[k];
    return total;
  }
  template <class Body>
  void sum_chunks(const Body& body, double* sums) const {
    for_each_part(parts_, [&](int part) {
      const Range range = share(chunks_, part, parts_);
      for (int64_t k = range.begin; k < range.end; ++k)
        sums[k] = sum_of_chunk(std::min(elements_, k * length_), std::min(elements_, (k + 1) * length_), body);
    });
  }
  template <class Body>
  void map(const Body& body) const {
    for_each_part(parts_, [&](int part) {
      const Range range = share(elements_, part, parts_, 4 * kLanes);
      for_each_vector(range.begin, range.end, body);
    });
  }

  int64_t elements_;
  double count_;

 private:
  int64_t chunks_ = 1, length_ = kChunk;
};

// Of a gradient, whatever its layout: padding is zero.
class GradientNorm : public SumOverElements {
 public:
  using SumOverElements::SumOverElements;
  void run() override {
    const float* g = input(0);
    *output(0) = static_cast<float>(std::sqrt(sum([=](int64_t i, auto n) {
      const f32x16 value = load(g + i, n);
      return value * value;
    })));
  }
};

// The same of an embedding's table, by the rows that were looked up.
class EmbeddingGradientNorm : public OwnKernel {
 public:
  EmbeddingGradientNorm(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        table_{op.attributes.integer("rows"), graph.tensor(op.inputs[0]).shape.back()},
        chunks_((element_count(table_) + kChunk - 1) / kChunk),
        lookups_(op, table_, graph.tensor(op.inputs[1])) {
    require_row_major(graph, op);
    workspace_bytes_ = {lookups_.workspace().count + chunks_ * 8};
  }
  void run() override {
    lookups_.sort(input(0), input<void>(1), workspace_);
    double* const sums = reinterpret_cast<double*>(static_cast<std::byte*>(workspace_) + lookups_.workspace().count);
    for_each_part(parts_, [&](int part) {
      const Range range = share(chunks_, part, parts_);
      Lookups::Place place = lookups_.begin();
      for (int64_t k = range.begin; k < range.end; ++k) sums[k] = sum_of_chunk_at(k, place);
    });
    double total = 0;
    for (int64_t k = 0; k < chunks_; ++k) total += sums[k];
    *output(0) = static_cast<float>(std::sqrt(total));
  }

 private:
  static constexpr int64_t kChunk = kShardUnit;  // as GradientNorm's
  double sum_of_chunk_at(int64_t k, Lookups::Place& place) const {
    alignas(64) float made[kChunk];
    const Range elements{k * kChunk, std::min(element_count(table_), (k + 1) * kChunk)};
    if (!lookups_.make(elements, place, made)) return 0;
    return sum_of_chunk(0, elements.end - elements.begin, [&](int64_t i, auto n) {
      const f32x16 value = load(made + i, n);
      return value * value;
    });
  }

  Shape table_;
  int64_t chunks_;
  Lookups lookups_;
};

// Adds as GradientNorm does, of a gradient that lies row-major.
class SquareSums : public SumOverElements {
 public:
  SquareSums(const Graph& graph, const Op& op, int threads) : SumOverElements(graph, op, threads) {
    workspace_bytes_ = {};
  }
  void run() override {
    const float* g = input(0);
    sum_chunks(
        [=](int64_t i, auto n) {
          const f32x16 value = load(g + i, n);
          return value * value;
        },
        static_cast<double*>(static_cast<void*>(output(0))));
  }
};

class NormOfSums : public OwnKernel {
 public:
  NormOfSums(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads), count_(element_count(graph.tensor(op.inputs[0]).shape)) {}
  void run() override {
    const double* sums = static_cast<const double*>(static_cast<const void*>(input(0)));
    double total = 0;
    for (int64_t i = 0; i < count_; ++i) total += sums[i];
    *output(0) = static_cast<float>(std::sqrt(total));
  }

 private:
  int64_t count_;
};

// With the attribute "row_major" in that order, so that the sum does not depend on a layout.
std::vector<KernelSpec> norm_specs(const Graph& graph, const Op& op, LayoutFamily family, int threads) {
  return op.attributes.integer("row_major", 0) != 0 ? own_specs_row_major(graph, op, family, threads)
                                                    : own_specs_any_layout(graph, op, family, threads);
}

class MeanSquaredErrorForward : public SumOverElements {
 public:
  MeanSquaredErrorForward(const Graph& graph, const Op& op, int threads) : SumOverElements(graph, op, threads) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
  }
  void run() override {
    const float* x = input(0);
    const float* target = input(1);
    const double total = sum([=](int64_t i, auto n) {
      const f32x16 d = load(x + i, n) - load(target + i, n);
      return d * d;
    });
    *output(0) = static_cast<float>(total / count_);
  }
};

class MeanSquaredErrorBackward : public SumOverElements {
 public:
  MeanSquaredErrorBackward(const Graph& graph, const Op& op, int threads) : SumOverElements(graph, op, threads) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
    workspace_bytes_ = {};
  }
  void run() override {
    const float* x = input(0);
    const float* target = input(1);
    float* dx = output(0);
    const f32x16 scale = splat(static_cast<float>(2 * static_cast<double>(*input(2)) / count_));
    map([=](int64_t i, auto n) { store(dx + i, scale * (load(x + i, n) - load(target + i, n)), n); });
  }
};

// The logits are images of one channel or rows: where a layout pads, only existing elements count, so plain is wanted.
class SigmoidCrossEntropyForward : public SumOverElements {
 public:
  SigmoidCrossEntropyForward(const Graph& graph, const Op& op, int threads)
      : SumOverElements(graph, op, threads), target_(op.attributes.real("target")) {
    require_unpadded(graph, op);
  }
  void run() override {
    const float* z = input(0);
    const f32x16 target = splat(static_cast<float>(target_));
    const double total = sum([=](int64_t i, auto n) {
      const f32x16 v = load(z + i, n);
      f32x16 tail = exponential(-maximum(-v, v));
      for (int k = 0; k < kLanes; ++k) tail[k] = std::log1p(tail[k]);
      return first_lanes(relu(v) + tail - v * target, n);
    });
    *output(0) = static_cast<float>(total / count_);
  }
  static void require_unpadded(const Graph& graph, const Op& op) {
    const Tensor& z = graph.tensor(op.inputs[0]);
    if (storage_elements(z.shape, z.layout) == element_count(z.shape)) return;
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}' wants '{}' in a layout without padding, not '{}'", op.name, z.name, z.layout.tag));
  }

 private:
  double target_;
};

class SigmoidCrossEntropyBackward : public SumOverElements {
 public:
  SigmoidCrossEntropyBackward(const Graph& graph, const Op& op, int threads)
      : SumOverElements(graph, op, threads), target_(op.attributes.real("target")) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
    SigmoidCrossEntropyForward::require_unpadded(graph, op);
    workspace_bytes_ = {};
  }
  void run() override {
    const float* z = input(0);
    float* dz = output(0);
    const f32x16 target = splat(static_cast<float>(target_));
    const f32x16 scale = splat(static_cast<float>(*input(1) / count_));
    map([=](int64_t i, auto n) { store(dz + i, scale * (sigmoid(load(z + i, n)) - target), n); });
  }

 private:
  double target_;
};

std::vector<KernelSpec> unpadded_specs(const Graph& graph, const Op& op, LayoutFamily family, int threads) {
  return own_specs(graph, op, family == LayoutFamily::blocked ? LayoutFamily::plain : family, threads);
}

}  // namespace

std::vector<NamedFactory> loss_kernels() {
  return {{"SoftmaxCrossEntropyForward", {own_specs, make_own<SoftmaxCrossEntropyForward>}},
          {"SoftmaxCrossEntropyBackward", {own_specs, make_own<SoftmaxCrossEntropyBackward>}},
          {"GradientNorm", {norm_specs, make_own<GradientNorm>}},
          {"EmbeddingGradientNorm", {own_specs_row_major, make_own<EmbeddingGradientNorm>}},
          {"SquareSums", {own_specs_row_major, make_own<SquareSums>}},
          {"NormOfSums", {own_specs_row_major, make_own<NormOfSums>}},
          {"MeanSquaredErrorForward", {own_specs_any_layout, make_own<MeanSquaredErrorForward>}},
          {"MeanSquaredErrorBackward", {own_specs_any_layout, make_own<MeanSquaredErrorBackward>}},
          {"SigmoidCrossEntropyForward", {unpadded_specs, make_own<SigmoidCrossEntropyForward>}},
          {"SigmoidCrossEntropyBackward", {unpadded_specs, make_own<SigmoidCrossEntropyBackward>}}};
}

}  // namespace plimsoll::cpu
