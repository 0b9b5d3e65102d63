// Dropout, ones by chance, and normal noise: every element's draw is found from its row-major index, sixteen counters at
// a time.
//
// A counter gives four draws, for four elements next to each other in row-major order. Where the storage is row-major,
// sixteen counters make the keep bits of 64 elements. Where channels lie side by side, the lanes are sixteen channels,
// and their four draws belong to four pixels.
#include "device/cpu/own_random.h"

#include "device/cpu/own_rows.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

class Dropout : public OwnKernel {
 public:
  Dropout(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        image_(image_of(graph.tensor(op.inputs[0]))),
        stream_(graph, op, 1, element_count(graph.tensor(op.inputs[0]).shape)) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
    p_ = op.attributes.real("p");
    threshold_ = dropout_threshold(p_);
    scale_ = static_cast<float>(1 / (1 - p_));
    row_major_ = image_.order == Image::Order::plain ||
                 (image_.pixels == 1 && (image_.order == Image::Order::channels_last || image_.channels % 16 == 0));
  }

  void run() override {
    const RandomStream stream = stream_.of(inputs_);
    if (row_major_) return row_major(stream);
    const int64_t groups = image_.images * image_.blocks();
    for_each_part(parts_, [&](int part) {
      const Range range = share(groups, part, parts_);
      for (int64_t g = range.begin; g < range.end; ++g) group(stream, g / image_.blocks(), g % image_.blocks());
    });
  }

 private:
  void row_major(const RandomStream& stream) const {
    for_each_part(parts_, [&](int part) {
      const Range range = share(image_.elements(), part, parts_, 64);
      drop_elements(stream, range.begin, range.end, p_, input(0) + range.begin, output(0) + range.begin);
    });
  }

  // One image's pixels of sixteen channels side by side.
  void group(const RandomStream& stream, int64_t n, int64_t block) const {
    const bool blocked = image_.order == Image::Order::blocked;
    const int64_t channel = block * 16;
    const int64_t base =
        blocked ? (n * image_.blocks() + block) * image_.pixels * 16 : n * image_.pixels * image_.channels + channel;
    const int64_t step = blocked ? 16 : image_.channels;
    const int count = static_cast<int>(std::min<int64_t>(16, image_.channels - channel));
    const f32x16 scale = splat(scale_);
    const float* x = input(0) + base;
    float* y = output(0) + base;
    auto put = [&](int64_t p, uint32_t bits) {
      if (count == 16 || blocked) {  // a block's last lanes are zeros already
        store(y + p * step, keep_lanes(bits, load(x + p * step) * scale));
      } else {
        store(y + p * step, keep_lanes(bits, load(x + p * step, count) * scale), count);
      }
    };
    const int64_t first =
        stream.first + (n * image_.channels + channel) * image_.pixels;  // the draw of lane 0, pixel 0
    if (image_.pixels % 4 == 0 && first % 4 == 0) {
      const u32x16 lane_counter = bits_as<u32x16>(lane_numbers()) * splat(static_cast<uint32_t>(image_.pixels / 4));
      for (int64_t p = 0; p < image_.pixels; p += 4) {
        const Draws draws = draw(stream, splat(static_cast<uint32_t>((first + p) / 4)) + lane_counter);
        for (int k = 0; k < 4; ++k) put(p + k, bits_at_least(draws.word[k], threshold_));
      }
      return;
    }
    for (int64_t p = 0; p < image_.pixels; ++p) {
      u32x16 index, word;
      for (int lane = 0; lane < kLanes; ++lane) {
        const int64_t i = first + lane * image_.pixels + p;
        index[lane] = static_cast<uint32_t>(i / 4);
        word[lane] = static_cast<uint32_t>(i % 4);
      }
      const Draws draws = draw(stream, index);
      u32x16 mine = draws.word[0];
      for (uint32_t k = 1; k < 4; ++k) mine = choose(word == splat(k), draws.word[k], mine);
      put(p, bits_at_least(mine, threshold_));
    }
  }

  Image image_;
  DrawnStream stream_;
  double p_ = 0;
  uint32_t threshold_ = 0;
  float scale_ = 1;
  bool row_major_ = true;
};

// Row-major only.
class Bernoulli : public OwnKernel {
 public:
  Bernoulli(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        elements_(element_count(graph.tensor(op.outputs[0]).shape)),
        stream_(graph, op, 0, elements_),
        never_(op.attributes.real("p") == 0),
        threshold_(never_ ? 0 : dropout_threshold(1 - op.attributes.real("p"))) {
    require_row_major(graph, op);
  }

  void run() override {
    const RandomStream stream = stream_.of(inputs_);
    float* y = output(0);
    for_each_part(parts_, [&](int part) {
      const Range range = share(elements_, part, parts_, 64);
      for (int64_t i = range.begin; i < range.end; i += 64) {
        uint64_t ones = never_ ? 0 : kept_bits_from(stream, i, threshold_);
        for (int64_t at = i; at < std::min(range.end, i + 64); at += kLanes, ones >>= kLanes) {
          const f32x16 values = keep_lanes(static_cast<uint32_t>(ones & 0xFFFF), splat(1.0f));
          if (at + kLanes <= range.end) {
            store(y + at, values);
          } else {
            store(y + at, values, static_cast<int>(range.end - at));
          }
        }
      }
    });
  }

 private:
  int64_t elements_;
  DrawnStream stream_;
  bool never_;
  uint32_t threshold_;
};

// Small tensors (a generator's input): one draw after the other.
class RandomNormal : public OwnKernel {
 public:
  RandomNormal(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        image_(image_of(graph.tensor(op.outputs[0]))),
        stream_(graph, op, 0, element_count(graph.tensor(op.outputs[0]).shape)),
        mean_(op.attributes.real("mean", 0)),
        stddev_(op.attributes.real("stddev", 1)) {
    parts_ = element_count(graph.tensor(op.outputs[0]).shape) < 512 ? 1 : threads;
  }

  void run() override {
    const RandomStream stream = stream_.of(inputs_);
    float* z = output(0);
    for_each_part(parts_, [&](int part) {
      const Range rows = share(image_.images * image_.channels, part, parts_);
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        const int64_t n = row / image_.channels, c = row % image_.channels;
        for (int64_t p = 0; p < image_.pixels; ++p) {
          z[image_.at(n, c, p)] = static_cast<float>(mean_ + stddev_ * stream.normal(row * image_.pixels + p));
        }
      }
    });
    clear_padding(z, image_);
  }

 private:
  Image image_;
  DrawnStream stream_;
  double mean_, stddev_;
};

}  // namespace

std::vector<NamedFactory> random_kernels() {
  return {{"Bernoulli", {own_specs_row_major, make_own<Bernoulli>}},
          {"DropoutForward", {own_specs, make_own<Dropout>}},
          {"DropoutBackward", {own_specs, make_own<Dropout>}},
          {"RandomNormal", {own_specs, make_own<RandomNormal>}}};
}

}  // namespace plimsoll::cpu
