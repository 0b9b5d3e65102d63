// Pooling for the shapes that oneDNN has no right kernel for: plain loops over windows, threads over images.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "device/cpu/pool.h"

namespace plimsoll::cpu {
namespace {

// Where element (n, c, h, w) of an image tensor lies: n * image + c / block * blocks + c % block * channel + (h * W +
// w) * pixel.
struct Strides {
  int64_t image = 0, outer_channel = 0, inner_channel = 0, pixel = 0, block = 1;
  int64_t channels = 0;  // with padding
  int64_t at(int64_t n, int64_t c, int64_t pixel_number) const {
    return n * image + c / block * outer_channel + c % block * inner_channel + pixel_number * pixel;
  }
};

Strides strides_of(const Tensor& tensor) {
  const int64_t channels = tensor.shape[1], pixels = tensor.shape[2] * tensor.shape[3];
  if (tensor.layout.is_plain()) return {channels * pixels, pixels, 0, 1, 1, channels};
  if (tensor.layout.tag == "acdb") return {channels * pixels, 1, 0, channels, 1, channels};
  if (tensor.layout.tag == "aBcd16b") {
    const int64_t padded = (channels + 15) / 16 * 16;
    return {padded * pixels, 16 * pixels, 1, 16, 16, padded};
  }
  throw Error(ErrorCode::unsupported,
              fmt::format("no pooling on the layout '{}' of '{}'", tensor.layout.tag, tensor.name));
}

struct Window {  // the part of a window that lies in the image, and by what an average divides
  int64_t first[2], last[2], start[2];
  float divisor = 1;
};

class OwnPool final : public Kernel {
 public:
  OwnPool(const Graph& graph, const Op& op, int threads)
      : pool_(read_pool(graph, op)),
        x_(strides_of(graph.tensor(pool_.x_tensor))),
        y_(strides_of(graph.tensor(pool_.y_tensor))),
        x_bytes_(graph.tensor(pool_.x_tensor).bytes()),
        threads_(threads) {
    if (pool_.max) index_ = strides_of(graph.tensor(pool_.index_tensor));
  }

  Bytes workspace() const override { return {}; }

  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void*) override {
    x_data_ = static_cast<float*>(pool_.backward ? outputs[0] : inputs[0]);
    y_data_ = static_cast<float*>(pool_.backward ? inputs[0] : outputs[0]);
    if (pool_.max) index_data_ = static_cast<uint8_t*>(pool_.backward ? inputs[1] : outputs[1]);
  }

  void run() override {
    const int64_t images = pool_.x[0];
#pragma omp parallel for num_threads(threads_) schedule(static)
    for (int64_t n = 0; n < images; ++n) {
      if (pool_.backward) std::memset(x_data_ + n * x_.image, 0, x_bytes_.count / images);
      for (int64_t h = 0; h < pool_.y[2]; ++h) {
        for (int64_t w = 0; w < pool_.y[3]; ++w) run_window(n, h * pool_.y[3] + w, window_at(h, w));
      }
    }
  }

 private:
  Window window_at(int64_t h, int64_t w) const {
    Window window;
    const int64_t position[2] = {h, w};
    int64_t counted = 1;
    for (int d = 0; d < 2; ++d) {
      const int64_t size = pool_.x[d + 2], start = position[d] * pool_.stride[d] - pool_.begin[d];
      const int64_t end = start + (pool_.kernel[d] - 1) * pool_.dilation[d] + 1;
      window.start[d] = start;
      // The first tap inside.
      window.first[d] =
          start >= 0 ? start : start + (-start + pool_.dilation[d] - 1) / pool_.dilation[d] * pool_.dilation[d];
      window.last[d] = std::min(end, size);
      counted *= pool_.count_padding ? std::min(end, size + pool_.end[d]) - start : window.last[d] - window.first[d];
    }
    window.divisor = static_cast<float>(std::max<int64_t>(counted, 1));
    return window;
  }

  void run_window(int64_t n, int64_t y_pixel, const Window& window) {
    for (int64_t c = 0; c < y_.channels; ++c) {
      float& y = y_data_[y_.at(n, c, y_pixel)];
      if (pool_.max) {
        uint8_t& index = index_data_[index_.at(n, c, y_pixel)];
        pool_.backward ? spread_max(n, c, window, y, index) : find_max(n, c, window, y, index);
      } else {
        pool_.backward ? spread_average(n, c, window, y) : find_average(n, c, window, y);
      }
    }
  }

  void find_max(int64_t n, int64_t c, const Window& window, float& y, uint8_t& index) const {
    bool first = true;
    y = 0;
    index = 0;
    for_each_pixel(window, [&](int64_t h, int64_t w) {
      const float value = x_data_[x_.at(n, c, h * pool_.x[3] + w)];
      if (!first && !(value > y)) return;
      first = false;
      y = value;
      index = static_cast<uint8_t>((h - window.start[0]) / pool_.dilation[0] * pool_.kernel[1] +
                                   (w - window.start[1]) / pool_.dilation[1]);
    });
  }
  void spread_max(int64_t n, int64_t c, const Window& window, float dy, uint8_t index) {
    const int64_t h = window.start[0] + index / pool_.kernel[1] * pool_.dilation[0];
    const int64_t w = window.start[1] + index % pool_.kernel[1] * pool_.dilation[1];
    if (h < 0 || w < 0 || h >= pool_.x[2] || w >= pool_.x[3]) return;
    x_data_[x_.at(n, c, h * pool_.x[3] + w)] += dy;
  }
  void find_average(int64_t n, int64_t c, const Window& window, float& y) const {
    float sum = 0;
    for_each_pixel(window, [&](int64_t h, int64_t w) { sum += x_data_[x_.at(n, c, h * pool_.x[3] + w)]; });
    y = sum / window.divisor;
  }
  void spread_average(int64_t n, int64_t c, const Window& window, float dy) {
    const float part = dy / window.divisor;
    for_each_pixel(window, [&](int64_t h, int64_t w) { x_data_[x_.at(n, c, h * pool_.x[3] + w)] += part; });
  }

  template <class Body>
  void for_each_pixel(const Window& window, const Body& body) const {
    for (int64_t h = window.first[0]; h < window.last[0]; h += pool_.dilation[0]) {
      for (int64_t w = window.first[1]; w < window.last[1]; w += pool_.dilation[1]) body(h, w);
    }
  }

  Pool pool_;
  Strides x_, y_, index_;
  Bytes x_bytes_;
  int threads_;
  float *x_data_ = nullptr, *y_data_ = nullptr;
  uint8_t* index_data_ = nullptr;
};

}  // namespace

std::unique_ptr<Kernel> make_own_pool(const Graph& graph, const Op& op, int threads) {
  return std::make_unique<OwnPool>(graph, op, threads);
}

}  // namespace plimsoll::cpu
