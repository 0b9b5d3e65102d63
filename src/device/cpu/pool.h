// The geometry that oneDNN's pooling and our own share.
#pragma once

#include "device/cpu/kernels.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {

struct Pool {
  bool max = false;
  bool backward = false;
  bool count_padding = true;   // average: padding counts as elements of value 0
  int64_t kernel[2] = {1, 1};  // height, width
  int64_t stride[2] = {1, 1};
  int64_t dilation[2] = {1, 1};
  int64_t begin[2] = {0, 0};     // padding before the first row, column
  int64_t end[2] = {0, 0};       // as stated; windows may reach beyond it when the output size is rounded up
  int64_t reach[2] = {0, 0};     // how far the last window reaches beyond the last row, column
  int64_t x[4] = {}, y[4] = {};  // sizes of image and result, logical N, C, H, W
  TensorId x_tensor, y_tensor, index_tensor;  // of a backward op: the gradients

  bool dilated() const { return dilation[0] != 1 || dilation[1] != 1; }
  // A window beyond the stated padding averages over what lies inside it only; oneDNN divides by the whole window.
  bool overhangs() const { return reach[0] > end[0] || reach[1] > end[1]; }
};
// Throws Error(unsupported) where the index of a window's element does not fit the index tensor.
Pool read_pool(const Graph& graph, const Op& op);

// Any window on any of the three image layouts, no faster than it must be: kernel "own".
std::unique_ptr<Kernel> make_own_pool(const Graph& graph, const Op& op, int threads);

}  // namespace plimsoll::cpu
