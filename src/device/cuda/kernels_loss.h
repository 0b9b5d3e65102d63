// What cross entropies share: labels and the loss's attributes.
#pragma once

#include "device/cuda/kernels.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {

class CrossEntropyKernel : public CudaKernel {
 public:
  CrossEntropyKernel(const Context& context, const Graph& graph, const Op& op, size_t labels_at, int64_t classes)
      : CudaKernel(context, graph, op),
        rows_(graph.tensor(op.inputs[0]).shape[0]),
        classes_(classes),
        smoothing_(op.attributes.real("label_smoothing", 0)),
        labels_at_(labels_at),
        wide_(graph.tensor(op.inputs[labels_at]).dtype == DType::i64),
        ignores_(op.attributes.has("ignore_index")),
        ignored_(op.attributes.integer("ignore_index", -1)) {
    const std::string reduction = op.attributes.text("reduction", "");
    if (reduction == "mean") reduction_ = LossReduction::mean;
    if (reduction == "sum") reduction_ = LossReduction::sum;
  }

 protected:
  Labels labels() const {
    return {.narrow = wide_ ? nullptr : input<int32_t>(labels_at_),
            .wide = wide_ ? input<int64_t>(labels_at_) : nullptr,
            .ignored = ignored_,
            .ignores = ignores_};
  }

  int64_t rows_, classes_;
  double smoothing_;
  LossReduction reduction_ = LossReduction::mean_of_all;

 private:
  size_t labels_at_;
  bool wide_, ignores_;
  int64_t ignored_;
};

}  // namespace plimsoll::cuda
