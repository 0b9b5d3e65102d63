// The three convolutions as plain loops over taps, which ConvForward.. and ConvTransposeForward.. share: a transposed
// convolution's forward pass is the data gradient of a convolution with the same weights, and the other way round.
#pragma once

#include "ops/window.h"

namespace plimsoll {

// A convolution from the image of window.in (C channels) to the one of window.out (K channels). The weights are in
// memory [group][K / groups][C / groups][D][R][S].
struct ConvShape {
  int64_t n = 0, c = 0, k = 0, groups = 1;
  Window window;

  int64_t group_c() const { return c / groups; }
  int64_t group_k() const { return k / groups; }
};

// y[N,K,out] = conv(x[N,C,in], w) + b, and ReLU; `b` may be null. Sums in double.
void conv_forward(const ConvShape& shape, const TensorView& x, const TensorView& w, const TensorView* b, bool relu,
                  const TensorView& y);
// dx[N,C,in] from dy[N,K,out]; `b`, per channel of C, may be null (transposed convolution's bias).
void conv_backward_data(const ConvShape& shape, const TensorView& dy, const TensorView& w, const TensorView* b,
                        const TensorView& dx);
// dw from x[N,C,in] and dy[N,K,out].
void conv_backward_weights(const ConvShape& shape, const TensorView& x, const TensorView& dy, const TensorView& dw);

// Sums dy[N,K,...] over all dimensions but the second.
void sum_channels(const TensorView& dy, const TensorView& db);

}  // namespace plimsoll
