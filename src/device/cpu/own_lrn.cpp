// Local response normalisation: y[c] = x[c] * s[c]^-beta, where s sums squares over a window of channels around c.
//
// Each line of channels is worked on in a small buffer with zeros at both ends, so that the window needs no special
// cases. Lanes are channels where channels lie side by side; in plain images they are sixteen pixels, and the buffer
// holds sixteen lines interleaved. Either way the window's next element is `unit` floats further on.
//
//   buffer   0 0 | q0 q1 q2 ... | 0 0      sum for c: `size` loads from position c on
#include <cmath>

#include "device/cpu/own.h"
#include "device/cpu/own_vector.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

struct Settings {
  int64_t size;
  float scale, beta, k;  // scale: alpha / size
};

PLIMSOLL_INLINE f32x16 inverse_power(f32x16 s, float beta) {
  if (beta == 0.75f) {
    const f32x16 root = square_root(s);
    return splat(1.0f) / (root * square_root(root));
  }
  if (beta == 0.5f) return splat(1.0f) / square_root(s);
  if (beta == 1.0f) return splat(1.0f) / s;
  float lanes[16];
  store(lanes, s);
  for (float& lane : lanes) lane = std::pow(lane, -beta);
  return load(lanes);
}

// Where a line of channels lies: vector v at base + v * step, `count` lanes of it there. A line has vectors() of them.
struct Line {
  int64_t base, step;
  int lanes;       // of every vector but the last
  int last_lanes;  // of the last
  int64_t vectors;
  int count(int64_t v) const { return v + 1 == vectors ? last_lanes : lanes; }
};

// Calls body(line, part) for every line of the image.
template <class Body>
void for_each_line(const Image& image, int parts, const Body& body) {
  const bool plain = image.order == Image::Order::plain, blocked = image.order == Image::Order::blocked;
  const int64_t per_image = plain ? (image.pixels + 15) / 16 : image.pixels;
  for_each_part(parts, [&](int part) {
    const Range lines = share(image.images * per_image, part, parts);
    for (int64_t l = lines.begin; l < lines.end; ++l) {
      const int64_t n = l / per_image, p = l % per_image;
      if (plain) {
        const int lanes = static_cast<int>(std::min<int64_t>(16, image.pixels - p * 16));
        body(Line{n * image.channels * image.pixels + p * 16, image.pixels, lanes, lanes, image.channels}, part);
        continue;
      }
      const int last = static_cast<int>(image.channels - (image.blocks() - 1) * 16);
      if (blocked) {
        body(Line{(n * image.blocks() * image.pixels + p) * 16, image.pixels * 16, 16, last, image.blocks()}, part);
      } else {
        body(Line{l * image.channels, 16, 16, last, image.blocks()}, part);
      }
    }
  });
}

PLIMSOLL_INLINE f32x16 load_lanes(const float* from, int count) { return count == 16 ? load(from) : load(from, count); }

class Lrn : public OwnKernel {
 public:
  Lrn(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads), image_(image_of(graph.tensor(op.inputs[0]))) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
    settings_.size = op.attributes.integer("size", 5);
    settings_.scale = static_cast<float>(op.attributes.real("alpha", 1e-4) / static_cast<double>(settings_.size));
    settings_.beta = static_cast<float>(op.attributes.real("beta", 0.75));
    settings_.k = static_cast<float>(op.attributes.real("k", 1));
    unit_ = image_.order == Image::Order::plain ? 16 : 1;
    const int64_t line = image_.order == Image::Order::plain ? image_.channels * 16 : image_.padded_channels();
    buffer_ = (line + settings_.size * unit_ + 31) / 16 * 16;
    workspace_bytes_ = {parts_ * kBuffers * buffer_ * 4};
  }

 protected:
  static constexpr int64_t kBuffers = 3;
  float* buffer(int part, int64_t which) const {
    return static_cast<float*>(workspace_) + (part * kBuffers + which) * buffer_;
  }
  void clear_buffers() const { std::fill(buffer(0, 0), buffer(parts_, 0), 0.0f); }

  PLIMSOLL_INLINE f32x16 window(const float* from) const {
    if (settings_.size == 5) {
      return ((load(from) + load(from + unit_)) + (load(from + 2 * unit_) + load(from + 3 * unit_))) +
             load(from + 4 * unit_);
    }
    f32x16 sum = load(from);
    for (int64_t t = 1; t < settings_.size; ++t) sum += load(from + t * unit_);
    return sum;
  }
  PLIMSOLL_INLINE void put_squares(const Line& line, const float* x, float* squares) const {
    float* to = squares + settings_.size / 2 * unit_;
    for (int64_t v = 0; v < line.vectors; ++v) {
      const f32x16 value = load_lanes(x + line.base + v * line.step, line.count(v));
      store(to + v * 16, value * value);
    }
  }
  PLIMSOLL_INLINE f32x16 scale_at(const float* squares, int64_t v) const {
    return splat(settings_.k) + splat(settings_.scale) * window(squares + v * 16);
  }
  // Blocked images have all lanes, those of no channel zero.
  PLIMSOLL_INLINE void put(float* to, f32x16 value, int count) const {
    if (count == 16) return store(to, value);
    if (image_.order == Image::Order::blocked) return store(to, first_lanes(value, count));
    store(to, value, count);
  }

  Image image_;
  Settings settings_;
  int64_t unit_ = 1;
  int64_t buffer_ = 0;  // floats
};

class LrnForward : public Lrn {
 public:
  using Lrn::Lrn;
  void run() override {
    const float* x = input(0);
    float* y = output(0);
    clear_buffers();
    for_each_line(image_, parts_, [&](const Line& line, int part) {
      float* squares = buffer(part, 0);
      put_squares(line, x, squares);
      for (int64_t v = 0; v < line.vectors; ++v) {
        const int64_t i = line.base + v * line.step;
        put(y + i, load_lanes(x + i, line.count(v)) * inverse_power(scale_at(squares, v), settings_.beta),
            line.count(v));
      }
    });
  }
};

// dx[j] = dy[j] s[j]^-beta - 2 beta scale x[j] * sum of dy x s^(-beta - 1) over the channels whose window holds j.
class LrnBackward : public Lrn {
 public:
  using Lrn::Lrn;
  void run() override {
    const float* x = input(0);
    const float* dy = input(1);
    float* dx = output(0);
    clear_buffers();
    const f32x16 factor = splat(2 * settings_.scale * settings_.beta);
    for_each_line(image_, parts_, [&](const Line& line, int part) {
      float* squares = buffer(part, 0);
      float* powers = buffer(part, 1);
      float* products = buffer(part, 2);
      float* put_products = products + (settings_.size - 1) / 2 * unit_;
      put_squares(line, x, squares);
      for (int64_t v = 0; v < line.vectors; ++v) {
        const int64_t i = line.base + v * line.step;
        const int count = line.count(v);
        const f32x16 s = scale_at(squares, v), power = inverse_power(s, settings_.beta);
        store(powers + v * 16, power);
        store(put_products + v * 16,
              first_lanes(load_lanes(dy + i, count) * load_lanes(x + i, count) * power / s, count));
      }
      for (int64_t v = 0; v < line.vectors; ++v) {
        const int64_t i = line.base + v * line.step;
        const int count = line.count(v);
        put(dx + i,
            load_lanes(dy + i, count) * load(powers + v * 16) -
                factor * load_lanes(x + i, count) * window(products + v * 16),
            count);
      }
    });
  }
};

}  // namespace

std::vector<NamedFactory> lrn_kernels() {
  return {{"LrnForward", {own_specs, make_own<LrnForward>}}, {"LrnBackward", {own_specs, make_own<LrnBackward>}}};
}

}  // namespace plimsoll::cpu
