#include "device/simulated/analytic.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// A convolution y = conv(x, w), whichever of the three is computed: the algorithms transform all three alike.
struct Convolution {
  int64_t batch = 0, channels = 0, filters = 0, groups = 1;
  int64_t in_h = 0, in_w = 0, out_h = 0, out_w = 0, kernel_h = 0, kernel_w = 0;
  bool unit_stride = true;
};

// The image tensors and the window of a convolution op; false when the op is none, or a transposed one.
bool read_convolution(const Graph& graph, const Op& op, Convolution& c) {
  const std::string& type = op.type->name;
  if (op.type->kind != LayerKind::convolution || type.starts_with("ConvTranspose") || op.inputs.size() < 2)
    return false;
  const Shape *x = nullptr, *y = nullptr, *w = nullptr;
  const auto shape = [&](TensorId t) { return &graph.tensor(t).shape; };
  if (type == "ConvForward") {
    x = shape(op.inputs[0]), w = shape(op.inputs[1]), y = shape(op.outputs[0]);
  } else if (type == "ConvBackwardData") {
    y = shape(op.inputs[0]), w = shape(op.inputs[1]), x = shape(op.outputs[0]);
  } else {
    x = shape(op.inputs[0]), y = shape(op.inputs[1]), w = shape(op.outputs[0]);
  }
  if (x->size() != 4 || y->size() != 4 || w->size() < 4) return false;
  const auto one = std::vector<int64_t>{1, 1};
  c.batch = (*x)[0], c.channels = (*x)[1], c.filters = (*y)[1];
  c.in_h = (*x)[2], c.in_w = (*x)[3], c.out_h = (*y)[2], c.out_w = (*y)[3];
  c.kernel_h = (*w)[w->size() - 2], c.kernel_w = (*w)[w->size() - 1];
  c.groups = op.attributes.integer("groups", 1);
  c.unit_stride = op.attributes.integers("stride", one) == one && op.attributes.integers("dilation", one) == one;
  return true;
}

double direct_flops(const Convolution& c) {
  return 2.0 * static_cast<double>(c.batch * c.filters * c.out_h * c.out_w) *
         static_cast<double>(c.channels / c.groups * c.kernel_h * c.kernel_w);
}

// One image at a time is unrolled to a matrix: a column a window. All are written once and read once.
AnalyticKernel gemm(const Convolution& c) {
  const int64_t columns = c.channels / c.groups * c.kernel_h * c.kernel_w * c.out_h * c.out_w;
  return {.name = "analytic_gemm",
          .workspace = {4 * columns},
          .flops = direct_flops(c),
          .efficiency = 0.6,
          .extra_bytes = 8.0 * static_cast<double>(columns * c.groups * c.batch),
          .algorithm = Algorithm::gemm};
}

// Everything in the frequency domain, images padded to a power of two, or cut into overlapping tiles of 32x32. Groups
// take turns in one workspace.
AnalyticKernel fft(const Convolution& c, bool tiled) {
  const int64_t side = std::max(c.in_h, c.in_w), kernel = std::max(c.kernel_h, c.kernel_w);
  const int64_t tile = tiled ? 32 : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(side + kernel - 1)));
  const int64_t step = tile - kernel + 1;
  const int64_t tiles = tiled ? ((c.out_h + step - 1) / step) * ((c.out_w + step - 1) / step) : 1;
  const int64_t in = c.channels / c.groups, out = c.filters / c.groups;
  const int64_t maps = c.batch * (in + out) * tiles + in * out, points = tile * (tile / 2 + 1);
  const double transforms =
      5.0 * static_cast<double>(tile * tile) * std::log2(static_cast<double>(tile)) * static_cast<double>(maps);
  const double products = 8.0 * static_cast<double>(points * tiles * c.batch) * static_cast<double>(in * out);
  const double groups = static_cast<double>(c.groups);
  return {.name = tiled ? "analytic_fft_tiling" : "analytic_fft",
          .workspace = {maps * points * 8},
          .flops = groups * (transforms + products),
          .efficiency = 0.6,
          .extra_bytes = groups * 16.0 * static_cast<double>(maps * points),
          .algorithm = Algorithm::fft};
}

// F(4x4, 3x3): 36 products a tile and a pair of maps instead of 144, between transforms that pass through memory.
AnalyticKernel winograd(const Convolution& c) {
  const int64_t tiles = c.batch * ((c.out_h + 3) / 4) * ((c.out_w + 3) / 4);
  const int64_t in = c.channels / c.groups, out = c.filters / c.groups;
  const int64_t elements = 36 * (in * out + tiles * (in + out));
  const double groups = static_cast<double>(c.groups);
  return {.name = "analytic_winograd",
          .workspace = {4 * elements},
          .flops = groups * (72.0 * static_cast<double>(tiles) * static_cast<double>(in * out) +
                             8.0 * static_cast<double>(elements)),
          .efficiency = 0.6,
          .extra_bytes = groups * 8.0 * static_cast<double>(elements),
          .algorithm = Algorithm::winograd};
}

}  // namespace

std::vector<AnalyticKernel> analytic_kernels(const Graph& graph, const Op& op) {
  Convolution c;
  if (!read_convolution(graph, op, c)) {
    const bool dense = layer_kind(op) == LayerKind::convolution || layer_kind(op) == LayerKind::fully_connected;
    const double flops = op.type->work ? op.type->work(graph, op).flops : 0;
    return {{.name = "analytic", .workspace = {}, .flops = flops, .efficiency = dense ? 0.5 : 1}};
  }
  std::vector<AnalyticKernel> kernels{{.name = "analytic_implicit_gemm",
                                       .workspace = {},
                                       .flops = direct_flops(c),
                                       .efficiency = 0.45,
                                       .algorithm = Algorithm::gemm}};
  if (c.kernel_h * c.kernel_w > 1) kernels.push_back(gemm(c));
  const int64_t kernel = std::max(c.kernel_h, c.kernel_w);
  if (c.unit_stride && kernel > 1) {
    if (c.in_h <= 224 && c.in_w <= 224) kernels.push_back(fft(c, false));
    if (kernel <= 16 && std::max(c.in_h, c.in_w) + kernel - 1 > 32) kernels.push_back(fft(c, true));
    if (c.kernel_h == 3 && c.kernel_w == 3) kernels.push_back(winograd(c));
  }
  return kernels;
}

}  // namespace plimsoll
