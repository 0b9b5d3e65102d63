// Weight gradients of depthwise convolutions, sixteen channels side by side. oneDNN's take many times its forward pass.
//
//   dw[c][r][s] = sum over n, h, w of x[n][c][h * stride - before + r * dilation][...] * dy[n][c][h][w]
//
// Some taps of one kernel row are summed at once, in registers, over a strip of output rows that stays in the first-level
// cache; then in floats over an image, and in doubles over images.
#include "device/cpu/own.h"
#include "device/cpu/own_vector.h"
#include "ops/window.h"

namespace plimsoll::cpu {
namespace {

constexpr int kMostTaps = 7;  // of a row at once
constexpr int64_t kStripBytes = 16 * 1024;

class DepthwiseBackwardWeights : public OwnKernel {
 public:
  DepthwiseBackwardWeights(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        x_(image_of(graph.tensor(op.inputs[0]))),
        dy_(image_of(graph.tensor(op.inputs[1]))),
        bias_(op.outputs.size() > 1) {
    const Shape &x = graph.tensor(op.inputs[0]).shape, &dw = graph.tensor(op.outputs[0]).shape;
    window_ = read_window(op.attributes, {dw[3], dw[4]}, image_size(x));
    window_.h.out = graph.tensor(op.inputs[1]).shape[2];
    window_.w.out = graph.tensor(op.inputs[1]).shape[3];
    strip_ = std::max<int64_t>(1, kStripBytes / (window_.w.out * kLanes * static_cast<int64_t>(sizeof(float))));
    // Of each part: two pieces of sums that other parts have the rest of, and the sums of an image.
    workspace_bytes_ = {parts_ * (2 * sums() * 8 + sums() * 4)};
  }

  void run() override {
    for_each_part(parts_, [&](int part) {
      const Range all = part_of(part);
      for (int64_t at = all.begin; at < all.end;) {
        const int64_t block = at / x_.images, end = std::min(all.end, (block + 1) * x_.images);
        double* to = piece(part, at == all.begin ? 0 : 1);
        std::fill(to, to + sums(), 0.0);
        for (int64_t n = at % x_.images; n < end - block * x_.images; ++n) add_image(part, n, block, to);
        if (end - at == x_.images) write(block, to);
        at = end;
      }
    });
    join_pieces();
  }

 private:
  int64_t taps() const { return window_.h.kernel * window_.w.kernel; }
  int64_t sums() const { return (taps() + 1) * kLanes; }  // the last: of dy alone
  int64_t blocks() const { return x_.blocks(); }
  // Numbers of images, block by block.
  Range part_of(int part) const { return share(blocks() * x_.images, part, parts_); }
  double* piece(int part, int which) const { return static_cast<double*>(workspace_) + (2 * part + which) * sums(); }
  float* of_image(int part) const {
    return reinterpret_cast<float*>(static_cast<double*>(workspace_) + 2 * parts_ * sums()) + part * sums();
  }

  // Blocks that more than one part has images of, in the order of the parts.
  void join_pieces() {
    for (int part = 0; part < parts_; ++part) {
      const Range range = part_of(part);
      if (range.begin == range.end) continue;
      const int64_t block = (range.end - 1) / x_.images;
      const bool begins = range.begin <= block * x_.images, ends = range.end == (block + 1) * x_.images;
      if (!begins || ends) continue;  // another's, or whole
      double* total = piece(part, range.begin == block * x_.images ? 0 : 1);
      for (int other = part + 1; other < parts_ && part_of(other).begin < (block + 1) * x_.images; ++other) {
        if (part_of(other).begin == part_of(other).end) continue;
        const double* more = piece(other, 0);
        for (int64_t i = 0; i < sums(); ++i) total[i] += more[i];
      }
      write(block, total);
    }
  }

  void write(int64_t block, const double* total) const {
    const int64_t first = block * kLanes, count = std::min(kLanes, x_.channels - first);
    for (int64_t c = 0; c < count; ++c) {
      for (int64_t t = 0; t < taps(); ++t)
        output(0)[(first + c) * taps() + t] = static_cast<float>(total[t * kLanes + c]);
      if (bias_) output(1)[first + c] = static_cast<float>(total[taps() * kLanes + c]);
    }
  }

  void add_image(int part, int64_t n, int64_t block, double* to) const {
    float* sum = of_image(part);
    std::fill(sum, sum + sums(), 0.0f);
    const int64_t left = x_.channels - block * kLanes;
    if (x_.order == Image::Order::blocked || left >= kLanes) {
      add_rows(n, block, kAll, sum);
    } else {
      add_rows(n, block, static_cast<int>(left), sum);
    }
    for (int64_t i = 0; i < sums(); ++i) to[i] += static_cast<double>(sum[i]);
  }

  template <class Count>
  void add_rows(int64_t n, int64_t block, Count lanes, float* sum) const {
    const float* x = input(0) + x_.at(n, block * kLanes, 0);
    const float* dy = input(1) + dy_.at(n, block * kLanes, 0);
    for (int64_t first = 0; first < window_.h.out; first += strip_) {
      const int64_t last = std::min(first + strip_, window_.h.out);
      for (int64_t r = 0; r < window_.h.kernel; ++r) {
        const WindowAxis::Range places = window_.h.places(r);
        const Range rows{std::max(first, places.first), std::min(last, places.last)};
        for (int64_t s = 0; s < window_.w.kernel; s += kMostTaps)
          add_taps(std::min<int64_t>(kMostTaps, window_.w.kernel - s), x, dy, r, s, rows, lanes,
                   sum + (r * window_.w.kernel + s) * kLanes);
      }
      if (bias_) add_bias(dy, {first, last}, lanes, sum + taps() * kLanes);
    }
  }

  template <class Count>
  void add_taps(int64_t count, const float* x, const float* dy, int64_t r, int64_t s, Range rows, Count lanes,
                float* sum) const {
    switch (count) {
      case 1: return add_taps_of<1>(x, dy, r, s, rows, lanes, sum);
      case 2: return add_taps_of<2>(x, dy, r, s, rows, lanes, sum);
      case 3: return add_taps_of<3>(x, dy, r, s, rows, lanes, sum);
      case 4: return add_taps_of<4>(x, dy, r, s, rows, lanes, sum);
      case 5: return add_taps_of<5>(x, dy, r, s, rows, lanes, sum);
      case 6: return add_taps_of<6>(x, dy, r, s, rows, lanes, sum);
      default: return add_taps_of<7>(x, dy, r, s, rows, lanes, sum);
    }
  }
  // Taps (r, s) to (r, s + kTaps), over these output rows.
  template <int kTaps, class Count>
  void add_taps_of(const float* x, const float* dy, int64_t r, int64_t s, Range rows, Count lanes, float* sum) const {
    const int64_t x_pixel = pixel(x_), dy_pixel = pixel(dy_);
    const int64_t step = window_.w.stride * x_pixel, tap = window_.w.dilation * x_pixel;
    WindowAxis::Range inside = window_.w.places(s);  // where all taps are
    for (int k = 1; k < kTaps; ++k) {
      const WindowAxis::Range places = window_.w.places(s + k);
      inside = {std::max(inside.first, places.first), std::min(inside.last, places.last)};
    }
    if (inside.last < inside.first) inside = {window_.w.out, window_.w.out};
    f32x16 a[kTaps];
    for (int k = 0; k < kTaps; ++k) a[k] = load(sum + k * kLanes);
    for (int64_t h = rows.begin; h < rows.end; ++h) {
      const float* from = x + (window_.h.position(h, r) * window_.w.in + window_.w.position(0, s)) * x_pixel;
      const float* by = dy + h * window_.w.out * dy_pixel;
      const auto at_border = [&](int64_t begin, int64_t end) {
        for (int64_t w = begin; w < end; ++w) {
          const f32x16 g = load(by + w * dy_pixel, lanes);
          for (int k = 0; k < kTaps; ++k) {
            const int64_t at = window_.w.position(w, s + k);
            if (at >= 0 && at < window_.w.in) a[k] += load(from + w * step + k * tap, lanes) * g;
          }
        }
      };
      at_border(0, inside.first);
      for (int64_t w = inside.first; w < inside.last; ++w) {
        const f32x16 g = load(by + w * dy_pixel, lanes);
        for (int k = 0; k < kTaps; ++k) a[k] += load(from + w * step + k * tap, lanes) * g;
      }
      at_border(inside.last, window_.w.out);
    }
    for (int k = 0; k < kTaps; ++k) store(sum + k * kLanes, a[k]);
  }

  template <class Count>
  void add_bias(const float* dy, Range rows, Count lanes, float* sum) const {
    f32x16 a = load(sum);
    for (int64_t p = rows.begin * window_.w.out; p < rows.end * window_.w.out; ++p)
      a += load(dy + p * pixel(dy_), lanes);
    store(sum, a);
  }

  static int64_t pixel(const Image& image) { return image.order == Image::Order::blocked ? kLanes : image.channels; }

  Image x_, dy_;
  bool bias_;
  Window window_;
  int64_t strip_ = 1;
};

std::vector<KernelSpec> specs(const Graph& graph, const Op& op, LayoutFamily family, int threads) {
  const Shape& dw = graph.tensor(op.outputs[0]).shape;  // [groups][1][1][R][S]
  const bool depthwise = dw.size() == 5 && dw[1] == 1 && dw[2] == 1 && op.attributes.integer("groups", 1) == dw[0];
  if (!depthwise || graph.tensor(op.inputs[0]).shape.size() != 4 || family == LayoutFamily::plain) return {};
  std::vector<KernelSpec> result = own_specs(graph, op, family, threads);
  result[0].outputs.assign(op.outputs.size(), Layout{});
  result[0].algorithm = Algorithm::direct;
  result[0].estimate = {.efficiency = 0.3};
  return result;
}

}  // namespace

std::vector<NamedFactory> depthwise_kernels() {
  return {{"ConvBackwardWeights", {specs, make_own<DepthwiseBackwardWeights>, "own"}}};
}

}  // namespace plimsoll::cpu
