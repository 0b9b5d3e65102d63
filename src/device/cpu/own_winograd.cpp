// Convolutions of 3 x 3 taps by Winograd's F(4x4, 3x3) (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks",
// 2016): 36 products of matrices do the work of 144. Images lie channels last or blocked, weights row-major, as the file has
// them, so it stands beside kernels of every family.
//
//   forward            y[tile]  = A' (U x V) A     U = G w G',  V = B' x[tile] B
//   backward, data     the same of dy, with the taps turned round and channels exchanged
//   backward, weights  dw = G' (sum over tiles of V x (A dy[tile] A')) G
//
// Sixteen channels side by side are transformed at once. Products are oneDNN's. The forward pass and that to the data go by
// blocks of tiles, each from its transform to its result by one thread, so that what lies between stays in that core's
// cache. The gradient of the weights is a sum over all tiles: there the 36 products are divided among the threads.
#include "device/cpu/own_row_blocks.h"
#include "device/cpu/own_vector.h"
#include "ops/window.h"

namespace plimsoll::cpu {
namespace {

constexpr std::string_view kName = "own:winograd";
constexpr int kTile = 4, kTaps = 3, kPatch = kTile + kTaps - 1;  // pixels of a side: written, weighed, read
constexpr int kProducts = kPatch * kPatch;
constexpr int64_t kFewestTiles = 32;                 // fewer do not pay for the transform of the weights
constexpr int64_t kBlockBytes = 3 * 512 * 1024;      // of a thread's tiles, transformed
constexpr int64_t kSumBlockBytes = 8 * 1024 * 1024;  // of all tiles that a sum takes at a time
constexpr int64_t kWeightsBytes = 5 * 512 * 1024;    // of weights, transformed, that are at hand at a time
constexpr int64_t kMostInputBytes =
    6 * 1024 * 1024;                     // of a thread's transformed pixels, while output channels go by blocks
constexpr int64_t kFewestChannels = 64;  // of such a block
constexpr int64_t kBlockTiles = 64;      // at least, so that products are worth their start
// Floats between matrices: their sizes are powers of two, which share few lines of a cache.
constexpr int64_t kApart = 80;

// The sides of the convolution that is computed: of the pass to the data, `in` is dy.
struct Winograd {
  bool backward_data = false, sums = false;
  int64_t in_channels = 0, out_channels = 0;
  int64_t in_h = 0, in_w = 0, out_h = 0, out_w = 0;
  int64_t before_h = 0, before_w = 0;
  int64_t images = 0, tiles_h = 0, tiles_w = 0;

  int64_t tiles() const { return images * tiles_h * tiles_w; }
  int64_t tile_bytes() const { return kProducts * (in_channels + out_channels) * static_cast<int64_t>(sizeof(float)); }
};

std::optional<Winograd> read_winograd(const Graph& graph, const Op& op) {
  Winograd g{.backward_data = op.type->name == "ConvBackwardData", .sums = op.type->name == "ConvBackwardWeights"};
  const Tensor& in = graph.tensor(op.inputs[0]);
  const Tensor& out = graph.tensor(g.sums ? op.inputs[1] : op.outputs[0]);
  const Shape& w = graph.tensor(g.sums ? op.outputs[0] : op.inputs[1]).shape;
  const auto all = [&](std::string_view attribute, int64_t value) {
    const Shape values = op.attributes.integers(attribute, {value});
    return std::ranges::all_of(values, [&](int64_t v) { return v == value; });
  };
  if (in.shape.size() != 4 || w.size() != 4 || w[2] != kTaps || w[3] != kTaps) return std::nullopt;
  if (op.attributes.integer("groups", 1) != 1 || !all("stride", 1) || !all("dilation", 1)) return std::nullopt;
  g.in_channels = in.shape[1];
  g.out_channels = out.shape[1];
  if (g.in_channels % kLanes != 0 || g.out_channels % kLanes != 0) return std::nullopt;
  const Shape padding = op.attributes.integers("padding", {0, 0, 0, 0});
  if (std::max(padding[0], padding[1]) >= kTaps) return std::nullopt;
  g.before_h = g.backward_data ? kTaps - 1 - padding[0] : padding[0];
  g.before_w = g.backward_data ? kTaps - 1 - padding[1] : padding[1];
  g.images = in.shape[0];
  g.in_h = in.shape[2];
  g.in_w = in.shape[3];
  g.out_h = out.shape[2];
  g.out_w = out.shape[3];
  g.tiles_h = (g.out_h + kTile - 1) / kTile;
  g.tiles_w = (g.out_w + kTile - 1) / kTile;
  return g.tiles() < kFewestTiles ? std::nullopt : std::optional(g);
}

// The transforms of a row or column, whose elements lie `step` vectors apart.
PLIMSOLL_INLINE void transform_in(f32x16* to, int to_step, const f32x16* d, int step) {  // B'
  const f32x16 four = splat(4.0f), five = splat(5.0f);
  const f32x16 d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step], d5 = d[5 * step];
  const f32x16 a = d4 - four * d2, b = d3 - four * d1, c = d4 - d2, e = d3 - d1, e2 = e + e;
  to[0] = four * d0 - five * d2 + d4;
  to[to_step] = a + b;
  to[2 * to_step] = a - b;
  to[3 * to_step] = c + e2;
  to[4 * to_step] = c - e2;
  to[5 * to_step] = four * d1 - five * d3 + d5;
}
PLIMSOLL_INLINE void transform_out(f32x16* to, int to_step, const f32x16* m, int step) {  // A'
  const f32x16 a = m[step] + m[2 * step], b = m[step] - m[2 * step];
  const f32x16 c = m[3 * step] + m[4 * step], d = m[3 * step] - m[4 * step];
  to[0] = m[0] + a + c;
  to[to_step] = b + (d + d);
  to[2 * to_step] = a + splat(4.0f) * c;
  to[3 * to_step] = b + splat(8.0f) * d + m[5 * step];
}
PLIMSOLL_INLINE void transform_gradient(f32x16* to, int to_step, const f32x16* y, int step) {  // A
  const f32x16 y0 = y[0], y1 = y[step], y2 = y[2 * step], y3 = y[3 * step];
  const f32x16 a = y0 + y2, b = y1 + y3, c = y0 + splat(4.0f) * y2, d = y1 + y1 + splat(8.0f) * y3;
  to[0] = y0;
  to[to_step] = a + b;
  to[2 * to_step] = a - b;
  to[3 * to_step] = c + d;
  to[4 * to_step] = c - d;
  to[5 * to_step] = y3;
}
PLIMSOLL_INLINE void transform_weights(f32x16* to, int to_step, const f32x16* w, int step) {  // G
  const f32x16 a = (w[0] + w[2 * step]) * splat(-1.0f / 6), b = w[step] * splat(-1.0f / 6);
  const f32x16 c = w[0] * splat(1.0f / 24) + w[2 * step] * splat(1.0f / 6), d = w[step] * splat(1.0f / 12);
  to[0] = w[0] * splat(0.25f);
  to[to_step] = a + b;
  to[2 * to_step] = a - b;
  to[3 * to_step] = c + d;
  to[4 * to_step] = c - d;
  to[5 * to_step] = w[2 * step];
}
PLIMSOLL_INLINE void transform_sums(f32x16* to, int to_step, const f32x16* u, int step) {  // G'
  const f32x16 sixth = splat(-1.0f / 6);
  const f32x16 a = (u[step] + u[2 * step]) * sixth, b = (u[step] - u[2 * step]) * sixth;
  const f32x16 c = u[3 * step] + u[4 * step], d = u[3 * step] - u[4 * step];
  to[0] = u[0] * splat(0.25f) + a + c * splat(1.0f / 24);
  to[to_step] = b + d * splat(1.0f / 12);
  to[2 * to_step] = a + c * splat(1.0f / 6) + u[5 * step];
}

struct Place {
  int64_t n, y, x;
};

class WinogradKernel final : public OwnKernel {
 public:
  WinogradKernel(const Graph& graph, const Op& op, const Winograd& g, int threads)
      : OwnKernel(graph, op, threads), g_(g), relu_(op.attributes.text("activation", "none") == "relu") {
    in_ = image_of(graph.tensor(op.inputs[0]));
    out_ = image_of(graph.tensor(g_.sums ? op.inputs[1] : op.outputs[0]));
    has_bias_ = g_.sums ? op.outputs.size() > 1 : op.inputs.size() > 2;
    choose_blocks();
    WorkspaceLayout layout;
    weights_at_ = layout.place_floats(kProducts * weights_size());
    for (int part = 0; part < blocks_at_once(); ++part) {
      in_at_.push_back(layout.place_floats(kProducts * in_size()));
      out_at_.push_back(layout.place_floats(kProducts * out_size()));
    }
    for (int part = 0; part < parts_; ++part) {
      Products& products = products_.emplace_back();
      products.sets.make(op, block_, last_, 1, [this](int64_t tiles) { return shapes(tiles); });
      if (g_.sums && block_ < g_.tiles())
        products.adds.make(
            op, block_, last_, 1, [this](int64_t tiles) { return shapes(tiles); }, true);
      scratch_at_.push_back(layout.place(std::max(products.sets.scratch(), products.adds.scratch())));
    }
    workspace_bytes_ = layout.bytes();
  }

  void run() override {
    if (g_.sums) return run_sums();
    if (channels_ < g_.out_channels) return run_by_channels();
    for_each_part(parts_, [&](int part) { make_weights(part, 0); });
    const int64_t blocks = (g_.tiles() + block_ - 1) / block_;
    for_each_part(parts_, [&](int part) {
      const Range own = share(blocks, part, parts_);
      for (int64_t block = own.begin; block < own.end; ++block) {
        const Range tiles = tiles_of(block);
        transform_inputs(tiles, tiles.begin, at(in_at_[part]));
        multiply(part, tiles, 0);
      }
    });
  }

 private:
  struct Products {
    BlockProduct sets, adds;  // adds: to what earlier blocks have summed
  };

  // Where the transformed weights are more than a cache holds beside the tiles, and a thread's tiles are one block, output
  // channels go by blocks, too.
  void choose_blocks() {
    const int64_t tiles = g_.tiles(), bytes = g_.sums ? kSumBlockBytes : kBlockBytes;
    const int64_t floats = kProducts * g_.in_channels * static_cast<int64_t>(sizeof(float));
    const int64_t all = (tiles + parts_ - 1) / parts_;
    channels_ = g_.out_channels;
    int64_t most = std::max(kBlockTiles, bytes / g_.tile_bytes());
    if (!g_.sums && floats * g_.out_channels > kWeightsBytes && floats * all <= kMostInputBytes) {
      most = std::max(most, all);
      while (floats * channels_ > kWeightsBytes && channels_ % (4 * kLanes) == 0 && channels_ > kFewestChannels)
        channels_ /= 2;
    }
    int64_t blocks = (tiles + most - 1) / most;
    if (!g_.sums) blocks = (blocks + parts_ - 1) / parts_ * parts_;  // as many for each
    block_ = (tiles + blocks - 1) / blocks;
    last_ = tiles - (tiles - 1) / block_ * block_;
  }
  int blocks_at_once() const { return g_.sums ? 1 : parts_; }
  Range tiles_of(int64_t block) const {
    return {std::min(block * block_, g_.tiles()), std::min((block + 1) * block_, g_.tiles())};
  }

  MatrixProducts shapes(int64_t tiles) const {
    if (g_.sums) return {.m = g_.in_channels, .n = g_.out_channels, .k = tiles, .transpose_a = true, .batch = {}};
    return {.m = tiles, .n = channels_, .k = g_.in_channels, .batch = {}};
  }

  // Floats of one of the 36 matrices.
  int64_t weights_size() const { return g_.in_channels * channels_ + kApart; }
  int64_t in_size() const { return block_ * g_.in_channels + kApart; }
  int64_t out_size() const { return block_ * channels_ + kApart; }
  float* at(int64_t bytes) const { return reinterpret_cast<float*>(static_cast<std::byte*>(workspace_) + bytes); }

  Place place_of(int64_t tile) const {
    const int64_t row = tile / g_.tiles_w;
    return {row / g_.tiles_h, row % g_.tiles_h * kTile, tile % g_.tiles_w * kTile};
  }
  static int64_t pixel(const Image& image) { return image.order == Image::Order::blocked ? kLanes : image.channels; }

  // Where the weight lies by which input channel `in` reaches output channel `out`; taps follow each other, from the last to
  // the first in the pass to the data.
  int64_t weight_at(int64_t in, int64_t out) const {
    return (g_.backward_data ? in * g_.out_channels + out : out * g_.in_channels + in) * kTaps * kTaps;
  }
  static int64_t tap_at(bool turned, int tap) { return turned ? kTaps * kTaps - 1 - tap : tap; }

  // The part's share of matrices of input channels x output channels, those from `out` on. The rows that are shared are
  // those of the weights, whose bytes lie one after the other.
  void make_weights(int part, int64_t out) const {
    const Range outs{out, out + channels_}, ins{0, g_.in_channels};
    const Range& columns = g_.backward_data ? outs : ins;
    const Range& all = g_.backward_data ? ins : outs;
    const Range own = share(all.end - all.begin, part, parts_, kLanes);
    for (int64_t row = all.begin + own.begin; row < all.begin + own.end; row += kLanes) {
      for (int64_t column = columns.begin; column < columns.end; column += kLanes) {
        if (g_.backward_data) {
          make_weights_of(row, column, column - out);
        } else {
          make_weights_of(column, row, row - out);
        }
      }
    }
  }
  void make_weights_of(int64_t in, int64_t out, int64_t to_column) const {
    float block[kLanes][kTaps * kTaps][kLanes];  // by input channel, tap, output channel
    for (int64_t o = 0; o < kLanes; ++o) {
      for (int64_t i = 0; i < kLanes; ++i) {
        const float* from = input(1) + weight_at(in + i, out + o);
        for (int tap = 0; tap < kTaps * kTaps; ++tap) block[i][tap][o] = from[tap_at(g_.backward_data, tap)];
      }
    }
    for (int64_t i = 0; i < kLanes; ++i) {
      f32x16 taps[kTaps * kTaps], rows[kPatch * kTaps], to[kProducts];
      for (int tap = 0; tap < kTaps * kTaps; ++tap) taps[tap] = load(block[i][tap]);
      for (int j = 0; j < kTaps; ++j) transform_weights(rows + j, kTaps, taps + j, kTaps);
      for (int p = 0; p < kPatch; ++p) transform_weights(to + p * kPatch, 1, rows + p * kTaps, 1);
      float* u = at(weights_at_) + (in + i) * channels_ + to_column;
      for (int p = 0; p < kProducts; ++p) store(u + p * weights_size(), to[p]);
    }
  }

  // Matrices of tiles x input channels, from the row of `first` on.
  void transform_inputs(Range tiles, int64_t first, float* to) const {
    const int64_t step = pixel(in_);
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
      const Place place = place_of(tile);
      const int64_t y0 = place.y - g_.before_h, x0 = place.x - g_.before_w;
      const bool inside = y0 >= 0 && x0 >= 0 && y0 + kPatch <= g_.in_h && x0 + kPatch <= g_.in_w;
      for (int64_t c = 0; c < g_.in_channels; c += kLanes) {
        const float* image = input(0) + in_.at(place.n, c, 0);
        f32x16 patch[kProducts], between[kProducts], v[kProducts];
        for (int64_t i = 0; i < kPatch; ++i) {
          for (int64_t j = 0; j < kPatch; ++j) {
            const int64_t y = y0 + i, x = x0 + j;
            const bool exists = inside || (y >= 0 && x >= 0 && y < g_.in_h && x < g_.in_w);
            patch[i * kPatch + j] = exists ? load(image + (y * g_.in_w + x) * step) : f32x16{};
          }
        }
        for (int j = 0; j < kPatch; ++j) transform_in(between + j, kPatch, patch + j, kPatch);
        for (int i = 0; i < kPatch; ++i) transform_in(v + i * kPatch, 1, between + i * kPatch, 1);
        float* row = to + (tile - first) * g_.in_channels + c;
        for (int p = 0; p < kProducts; ++p) store(row + p * in_size(), v[p]);
      }
    }
  }

  // Output channels from `first` on, of tiles that were transformed.
  void multiply(int part, Range tiles, int64_t first) const {
    for (int p = 0; p < kProducts; ++p) {
      products_[part].sets.run(tiles.end - tiles.begin != block_, at(in_at_[part]) + p * in_size(),
                               at(weights_at_) + p * weights_size(), at(out_at_[part]) + p * out_size(),
                               at(scratch_at_[part]));
    }
    write_outputs(tiles, first, at(out_at_[part]));
  }

  void run_by_channels() const {
    for_each_part(parts_, [&](int part) { transform_inputs(tiles_of(part), tiles_of(part).begin, at(in_at_[part])); });
    for (int64_t first = 0; first < g_.out_channels; first += channels_) {
      for_each_part(parts_, [&](int part) { make_weights(part, first); });
      for_each_part(parts_, [&](int part) {
        const Range tiles = tiles_of(part);
        if (tiles.end > tiles.begin) multiply(part, tiles, first);
      });
    }
  }

  void write_outputs(Range tiles, int64_t first, const float* from) const {
    const int64_t step = pixel(out_);
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
      const Place place = place_of(tile);
      const int64_t rows = std::min<int64_t>(kTile, g_.out_h - place.y),
                    columns = std::min<int64_t>(kTile, g_.out_w - place.x);
      for (int64_t c = 0; c < channels_; c += kLanes) {
        const float* row = from + (tile - tiles.begin) * channels_ + c;
        f32x16 m[kProducts], between[kTile * kPatch], y[kTile * kTile];
        for (int p = 0; p < kProducts; ++p) m[p] = load(row + p * out_size());
        for (int j = 0; j < kPatch; ++j) transform_out(between + j, kPatch, m + j, kPatch);
        for (int i = 0; i < kTile; ++i) transform_out(y + i * kTile, 1, between + i * kPatch, 1);
        const f32x16 bias = has_bias_ ? load(input(2) + first + c) : f32x16{};
        float* image = output(0) + out_.at(place.n, first + c, place.y * g_.out_w + place.x);
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < columns; ++j) {
            const f32x16 sum = y[i * kTile + j] + bias;
            store(image + (i * g_.out_w + j) * step, relu_ ? relu(sum) : sum);
          }
        }
      }
    }
  }

  // Matrices of tiles x channels of dy.
  void transform_gradients(Range tiles, int64_t first, float* to) const {
    const int64_t step = pixel(out_);
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
      const Place place = place_of(tile);
      for (int64_t c = 0; c < g_.out_channels; c += kLanes) {
        const float* image = input(1) + out_.at(place.n, c, place.y * g_.out_w + place.x);
        f32x16 dy[kTile * kTile], between[kPatch * kTile], m[kProducts];
        for (int64_t i = 0; i < kTile; ++i) {
          for (int64_t j = 0; j < kTile; ++j) {
            const bool exists = place.y + i < g_.out_h && place.x + j < g_.out_w;
            dy[i * kTile + j] = exists ? load(image + (i * g_.out_w + j) * step) : f32x16{};
          }
        }
        for (int j = 0; j < kTile; ++j) transform_gradient(between + j, kTile, dy + j, kTile);
        for (int i = 0; i < kPatch; ++i) transform_gradient(m + i * kPatch, 1, between + i * kTile, 1);
        float* row = to + (tile - first) * g_.out_channels + c;
        for (int p = 0; p < kProducts; ++p) store(row + p * out_size(), m[p]);
      }
    }
  }

  void run_sums() const {
    float* const v = at(in_at_[0]);
    float* const m = at(out_at_[0]);
    for (int64_t begin = 0; begin < g_.tiles(); begin += block_) {
      const int64_t tiles = std::min(block_, g_.tiles() - begin);
      for_each_part(parts_, [&](int part) {
        const Range own = share(tiles, part, parts_);
        transform_inputs({begin + own.begin, begin + own.end}, begin, v);
        transform_gradients({begin + own.begin, begin + own.end}, begin, m);
      });
      for_each_part(parts_, [&](int part) {
        const BlockProduct& product = begin == 0 ? products_[part].sets : products_[part].adds;
        const Range own = share(kProducts, part, parts_);
        for (int64_t p = own.begin; p < own.end; ++p) {
          product.run(tiles != block_, v + p * in_size(), m + p * out_size(), at(weights_at_) + p * weights_size(),
                      at(scratch_at_[part]));
        }
      });
    }
    for_each_part(parts_, [&](int part) {
      write_weights(share(g_.in_channels, part, parts_, kLanes));
      if (has_bias_) sum_bias(share(g_.out_channels, part, parts_, kLanes));
    });
  }

  void write_weights(Range in) const {
    float* w = output(0);
    float block[kLanes][kTaps * kTaps][kLanes];
    for (int64_t first = in.begin; first < in.end; first += kLanes) {
      for (int64_t out = 0; out < g_.out_channels; out += kLanes) {
        for (int64_t i = 0; i < kLanes; ++i) {
          const float* u = at(weights_at_) + (first + i) * g_.out_channels + out;
          f32x16 sums[kProducts], between[kTaps * kPatch], taps[kTaps * kTaps];
          for (int p = 0; p < kProducts; ++p) sums[p] = load(u + p * weights_size());
          for (int j = 0; j < kPatch; ++j) transform_sums(between + j, kPatch, sums + j, kPatch);
          for (int t = 0; t < kTaps; ++t) transform_sums(taps + t * kTaps, 1, between + t * kPatch, 1);
          for (int tap = 0; tap < kTaps * kTaps; ++tap) store(block[i][tap], taps[tap]);
        }
        for (int64_t o = 0; o < kLanes; ++o) {
          for (int64_t i = 0; i < kLanes; ++i) {
            float* to = w + weight_at(first + i, out + o);
            for (int tap = 0; tap < kTaps * kTaps; ++tap) to[tap] = block[i][tap][o];
          }
        }
      }
    }
  }

  void sum_bias(Range channels) const {
    for (int64_t c = channels.begin; c < channels.end; c += kLanes) {
      double sums[kLanes] = {};
      for (int64_t n = 0; n < g_.images; ++n) {
        const float* image = input(1) + out_.at(n, c, 0);
        f32x16 sum{};
        for (int64_t p = 0; p < g_.out_h * g_.out_w; ++p) sum += load(image + p * pixel(out_));
        add_lanes(sums, sum);
      }
      for (int64_t i = 0; i < kLanes; ++i) output(1)[c + i] = static_cast<float>(sums[i]);
    }
  }

  Winograd g_;
  bool relu_ = false, has_bias_ = false;
  Image in_, out_;                  // of a gradient of weights, `out` is dy
  int64_t block_ = 0, last_ = 0;    // tiles
  int64_t channels_ = 0;            // outputs at a time
  std::vector<Products> products_;  // by part
  int64_t weights_at_ = 0;
  std::vector<int64_t> in_at_, out_at_, scratch_at_;
};

// As a multiple of what a machine's products reach, measured with AVX-512 on 14 x 14 to 56 x 56 pixels: the transform of the
// weights, and products of few rows, cost as much as so many tiles, and that of pixels pays over many channels.
double efficiency(const Winograd& g) {
  const auto channels = [](int64_t count) { return 16.0 / static_cast<double>(count); };
  const double tiles = static_cast<double>(g.tiles());
  const double used = static_cast<double>(g.images * g.out_h * g.out_w) / (tiles * kTile * kTile);
  return 2.9 * used * tiles / (tiles + 80) / (1 + channels(g.in_channels) + channels(g.out_channels));
}

std::vector<KernelSpec> winograd_specs(const Graph& graph, const Op& op, LayoutFamily family, int threads) {
  if (family == LayoutFamily::plain) return {};
  const auto g = read_winograd(graph, op);
  if (!g) return {};
  std::vector<KernelSpec> specs = own_specs(graph, op, family, threads);
  KernelSpec& spec = specs.front();
  spec.name = kName;
  spec.algorithm = Algorithm::winograd;
  spec.estimate = {.efficiency = efficiency(*g)};
  if (g->sums) {
    spec.outputs.assign(op.outputs.size(), Layout{});
  } else {
    for (size_t i = 1; i < op.inputs.size(); ++i) spec.inputs[i] = Layout{};
  }
  return specs;
}

std::unique_ptr<Kernel> make_winograd(const Graph& graph, const Op& op, std::string_view kernel, int threads) {
  const auto g = read_winograd(graph, op);
  if (kernel != kName || !g)
    throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}): no kernel '{}'", op.name, op.type->name, kernel));
  return std::make_unique<WinogradKernel>(graph, op, *g, threads);
}

}  // namespace

std::vector<NamedFactory> winograd_kernels() {
  const KernelFactory factory{winograd_specs, make_winograd, kName};
  return {{"ConvForward", factory}, {"ConvBackwardData", factory}, {"ConvBackwardWeights", factory}};
}

}  // namespace plimsoll::cpu
