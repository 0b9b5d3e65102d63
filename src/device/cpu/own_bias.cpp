// A bias for every channel, and its gradient: batch norm's two walks with less to do.
#include "device/cpu/own_batch_norm.h"

namespace plimsoll::cpu {
namespace {

struct AddBias {
  const float* x;
  float* y;
  float* bias;  // zeros for channels that only fill a block

  struct ApplyValues {
    f32x16 bias;
  };
  template <class Lanes>
  PLIMSOLL_INLINE ApplyValues apply_values(const Lanes& lanes) const {
    return {lanes(bias)};
  }
  template <class Count>
  PLIMSOLL_INLINE void apply(int64_t i, Count n, const ApplyValues& k) const {
    store(y + i, load(x + i, n) + k.bias, n);
  }
};

class BiasForward : public OwnKernel {
 public:
  BiasForward(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads), image_(image_of(graph.tensor(op.inputs[0]))) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
    workspace_bytes_ = {image_.padded_channels() * 4};
  }
  void run() override {
    float* bias = static_cast<float*>(workspace_);
    std::copy(input(1), input(1) + image_.channels, bias);
    std::fill(bias + image_.channels, bias + image_.padded_channels(), 0.0f);
    apply_over_channels(image_, parts_, AddBias{input(0), output(0), bias});
  }

 private:
  Image image_;
};

struct SumGradient {
  const float* dy;
  float* db;

  struct SumValues {};
  template <class Lanes>
  PLIMSOLL_INLINE SumValues sum_values(const Lanes&) const {
    return {};
  }
  template <class Count>
  PLIMSOLL_INLINE void sum(int64_t i, Count n, const SumValues&, f32x16& first, f32x16&) const {
    first += load(dy + i, n);
  }
  void finish(int64_t c, double sum, double) const { db[c] = static_cast<float>(sum); }
};

class BiasBackward : public OwnKernel {
 public:
  BiasBackward(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads), image_(image_of(graph.tensor(op.inputs[0]))) {
    workspace_bytes_ = {channel_scratch(image_, parts_) * 8};
  }
  void run() override {
    sum_over_channels(image_, parts_, SumGradient{input(0), output(0)}, static_cast<double*>(workspace_));
  }

 private:
  Image image_;
};

}  // namespace

std::vector<NamedFactory> bias_kernels() {
  return {{"BiasForward", {own_specs, make_own<BiasForward>}}, {"BiasBackward", {own_specs, make_own<BiasBackward>}}};
}

}  // namespace plimsoll::cpu
