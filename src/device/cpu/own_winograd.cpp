// Convolutions by Winograd's minimal filtering (own_winograd.h). Images lie channels last or blocked, weights row-major, as the
// file has them, so it stands beside kernels of every family.
//
//   forward            y[tile]  = A' (U x V) A     U = G w G',  V = B' x[tile] B
//   backward, data     the same of dy, with the taps turned round and channels exchanged
//   backward, weights  dw = G' (sum over tiles of V x (A dy[tile] A')) G
//
// Of a transposed convolution the first two change places, and in the third x and dy.
//
//   taps     stride   products of matrices of a tile, which do the work of
//   3 x 3         1    36   144
//   5 x 5         1    36   100
//   3 x 3         2    81   144
//   4 x 4         2   100   256
//   5 x 5         2   121   400
//
// Sixteen channels side by side are transformed at once. What is transformed lies as its products read it: the tiles' rows
// one after the other, the other factor by panels of at most 64 columns, so that nothing is packed. Work is cut so that what
// is written last stays in a core's cache until it is read:
//
//   by tiles     A thread takes a block of tiles from its transform to its result, panel by panel. Transformed weights are shared.
//   by panels    Where the weights are many and the tiles few, all tiles are transformed first; then a thread takes panels
//                of output channels, whose weights it transforms a few input channels at a time.
//   sums         The gradient of the weights is a sum over all tiles. With few weights a thread sums over its own tiles, so that
//                threads have only these sums to exchange: their caches may be far apart. By panels where all tiles fit
//                at once: sums are transformed as soon as they are whole. Else tiles go by rounds, and threads divide the products.
#include "device/cpu/own_winograd.h"
#include "device/cpu/own_product.h"
#include "device/cpu/own_row_blocks.h"

namespace plimsoll::cpu {
namespace {

constexpr std::string_view kName = "own:winograd";
constexpr int64_t kFewestTiles = 8;                  // fewer do not pay for the transform of the weights
constexpr int64_t kPanel = 4 * kLanes;               // columns of a product that lie together, at most
constexpr int64_t kDepth = 128;                      // input channels of a panel whose weights lie there at a time
constexpr int64_t kBlockBytes = 256 * 1024;          // of a thread's block of tiles, transformed
constexpr int64_t kFewestBlockTiles = 24;            // of it, so that weights are read for many
constexpr int64_t kSumBlockBytes = 4 * 1024 * 1024;  // of all tiles that a sum takes at a time
constexpr int64_t kOwnSumBlockBytes = 512 * 1024;    // the same of a thread with sums of its own
constexpr int64_t kMostOwnSums = 12 * 1024 * 1024;   // of all threads, where each has its own
constexpr int64_t kWeightsBytes = 3 * 1024 * 1024;   // of transformed weights that may be shared, whatever the tiles
constexpr int64_t kMostPanelTiles = 128;             // of which a thread holds a panel's results
// Floats between matrices, and between rows: their sizes are powers of two, which share few lines of a cache.
constexpr int64_t kApart = 80, kRowApart = 16;

// The convolution that is computed. `in` is what is transformed by V: dy in the pass to the data. Of sums, `out` is the other
// operand.
struct Winograd {
  bool to_data = false, sums = false;
  size_t in_slot = 0, out_slot = 0;  // `out_slot`: an operand's, of sums; else a result's
  bool odd_padding = false;          // at both sides
  int taps = 0, stride = 0;
  int64_t in_channels = 0, out_channels = 0;
  int64_t in_h = 0, in_w = 0, out_h = 0, out_w = 0;
  int64_t in_before_h = 0, in_before_w = 0, out_before_h = 0, out_before_w = 0;
  int64_t images = 0, tiles_h = 0, tiles_w = 0;
  double saves = 0, used = 0;  // multiplications for each that is done; the part of the tiles' places that are pixels

  int64_t tiles() const { return images * tiles_h * tiles_w; }
};

// Calls act.operator()<Pass>() with the pass that it is; false where there is none.
template <int taps, int stride, class Act>
bool with_pass_of(const Winograd& g, const Act& act) {
  if (g.taps != taps || g.stride != stride) return false;
  using winograd::Pass, winograd::To;
  if (!g.to_data) {
    act.template operator()<Pass<taps, stride, To::results>>();
  } else if (stride == 1 || !g.odd_padding) {
    act.template operator()<Pass<taps, stride, To::pixels>>();
  } else if constexpr (stride == 2) {
    act.template operator()<Pass<taps, stride, To::pixels_behind_odd_padding>>();
  }
  return true;
}
template <class Act>
bool with_pass(const Winograd& g, const Act& act) {
  return with_pass_of<3, 1>(g, act) || with_pass_of<5, 1>(g, act) || with_pass_of<3, 2>(g, act) ||
         with_pass_of<4, 2>(g, act) || with_pass_of<5, 2>(g, act);
}

std::optional<Winograd> read_winograd(const Graph& graph, const Op& op) {
  const std::string& type = op.type->name;
  const bool transposed = type.starts_with("ConvTranspose");
  Winograd g{.to_data = type == "ConvBackwardData" || type == "ConvTransposeForward",
             .sums = type.ends_with("BackwardWeights")};
  g.in_slot = g.sums && transposed ? 1 : 0;
  g.out_slot = g.sums && !transposed ? 1 : 0;
  const Tensor& in = graph.tensor(op.inputs[g.in_slot]);
  const Tensor& out = graph.tensor(g.sums ? op.inputs[g.out_slot] : op.outputs[0]);
  const Shape& w = graph.tensor(g.sums ? op.outputs[0] : op.inputs[1]).shape;
  if (in.shape.size() != 4 || w.size() != 4 || w[2] != w[3] || w[2] > 5) return std::nullopt;
  const Shape strides = op.attributes.integers("stride", {1}), dilations = op.attributes.integers("dilation", {1});
  if (op.attributes.integer("groups", 1) != 1 || std::ranges::any_of(dilations, [](int64_t d) { return d != 1; }) ||
      strides.front() != strides.back() || strides.front() > 2)
    return std::nullopt;
  g.taps = static_cast<int>(w[2]);
  g.stride = static_cast<int>(strides.front());
  g.in_channels = in.shape[1];
  g.out_channels = out.shape[1];
  if (g.in_channels % kLanes != 0 || g.out_channels % kLanes != 0) return std::nullopt;
  const Shape padding = op.attributes.integers("padding", {0, 0, 0, 0});
  if (std::max(padding[0], padding[1]) >= g.taps) return std::nullopt;
  g.odd_padding = padding[0] % 2 == 1 && padding[1] % 2 == 1;
  g.images = in.shape[0];
  g.in_h = in.shape[2];
  g.in_w = in.shape[3];
  g.out_h = out.shape[2];
  g.out_w = out.shape[3];
  const bool known = with_pass(g, [&]<class P>() {
    g.in_before_h = P::in_before(padding[0]);
    g.in_before_w = P::in_before(padding[1]);
    g.out_before_h = P::out_before(padding[0]);
    g.out_before_w = P::out_before(padding[1]);
    g.tiles_h = (g.out_h + g.out_before_h + P::kOutStep - 1) / P::kOutStep;
    g.tiles_w = (g.out_w + g.out_before_w + P::kOutStep - 1) / P::kOutStep;
    constexpr double kSaves = static_cast<double>(P::kTile * P::kTaps) / P::kPoints;
    g.saves = kSaves * kSaves;
    const int64_t pixels = g.to_data ? g.in_h * g.in_w : g.out_h * g.out_w;
    g.used = static_cast<double>(g.images * pixels) / static_cast<double>(g.tiles() * P::kTile * P::kTile);
  });
  return !known || g.tiles() < kFewestTiles ? std::nullopt : std::optional(g);
}

// The image of a tile, and the first pixels that it reads and writes; they may lie before the image.
struct Place {
  int64_t n, in_y, in_x, out_y, out_x;
};

template <class P>
class WinogradKernel final : public OwnKernel {
  static constexpr int kPoints = P::kPoints, kProducts = kPoints * kPoints;
  static constexpr int kTaps = P::kTaps, kIn = P::kIn, kOut = P::kOut;

 public:
  WinogradKernel(const Graph& graph, const Op& op, const Winograd& g, int threads)
      : OwnKernel(graph, op, threads), g_(g), relu_(op.attributes.text("activation", "none") == "relu") {
    in_ = image_of(graph.tensor(op.inputs[g_.in_slot]));
    out_ = image_of(graph.tensor(g_.sums ? op.inputs[g_.out_slot] : op.outputs[0]));
    has_bias_ = g_.sums ? op.outputs.size() > 1 : op.inputs.size() > 2;
    const int64_t vectors = g_.out_channels / kLanes;
    panels_ = (vectors * kLanes + kPanel - 1) / kPanel;
    widest_ = (vectors + panels_ - 1) / panels_ * kLanes;
    in_row_ = g_.in_channels + kRowApart;
    choose_blocks();
    WorkspaceLayout layout;
    for (int part = 0; part < parts_; ++part) {
      const auto place = [&](std::vector<int64_t>& at, bool shared, int64_t size) {
        at.push_back(part > 0 && shared ? at[0] : layout.place_floats(kProducts * size));
      };
      place(weights_at_, !by_panels_ && !own_sums_, weights_size());
      place(in_at_, (g_.sums || by_panels_) && !own_sums_, in_size());
      place(out_at_, g_.sums && !own_sums_, out_size());
    }
    workspace_bytes_ = layout.bytes();
  }

  void run() override {
    if constexpr (!P::kToPixels) {
      if (g_.sums) return own_sums_ ? run_own_sums() : by_panels_ ? run_sums_by_panels() : run_sums();
    }
    by_panels_ ? run_by_panels() : run_by_tiles();
  }

 private:
  // Whether threads that take whole panels have about as much to do.
  bool panels_divide() const {
    const int64_t most = (panels_ + parts_ - 1) / parts_;
    return 4 * panels_ >= 3 * most * parts_;
  }
  void choose_blocks() {
    constexpr int64_t kFloat = sizeof(float), kRows = product::rows_of(product::kMostVectors);
    const int64_t tiles = g_.tiles();
    const int64_t weights = kProducts * g_.in_channels * g_.out_channels * kFloat;
    if (g_.sums) {
      const int64_t tile = kProducts * (g_.in_channels + g_.out_channels) * kFloat;
      own_sums_ = tiles >= parts_ && tiles * tile > weights && parts_ * weights <= kMostOwnSums;
      if (own_sums_) {
        const int64_t most = std::max<int64_t>(kPanel, kOwnSumBlockBytes / tile);
        const int64_t own = (tiles + parts_ - 1) / parts_, blocks = (own + most - 1) / most;
        block_ = (own + blocks - 1) / blocks;
        return;
      }
      const int64_t most = std::max<int64_t>(kPanel, kSumBlockBytes / tile);
      by_panels_ = tiles <= most && weights > kWeightsBytes && panels_divide();
      const int64_t rounds = (tiles + most - 1) / most;
      block_ = (tiles + rounds - 1) / rounds;
      return;
    }
    by_panels_ = tiles <= kMostPanelTiles && weights > kWeightsBytes && panels_divide();
    if (by_panels_) {
      block_ = tiles;
      return;
    }
    const int64_t own = (tiles + parts_ - 1) / parts_;
    const int64_t most = std::max(kFewestBlockTiles, kBlockBytes / (kProducts * (g_.in_channels + widest_) * kFloat));
    const int64_t blocks = (own + most - 1) / most;
    block_ = ((own + blocks - 1) / blocks + kRows - 1) / kRows * kRows;
  }

  // A panel of output channels.
  struct Panel {
    int64_t begin, width;
  };
  Panel panel(int64_t index) const {
    const Range own = share(g_.out_channels, static_cast<int>(index), static_cast<int>(panels_), kLanes);
    return {own.begin, own.end - own.begin};
  }

  // Floats of one of the matrices. Those of a panel follow those of the panel before it; of weights that are a thread's
  // own, there is one panel of kDepth input channels.
  int64_t weights_size() const {
    return by_panels_ ? std::min(kDepth, g_.in_channels) * widest_ + kApart : g_.in_channels * g_.out_channels + kApart;
  }
  int64_t in_size() const { return block_ * in_row_ + kApart; }
  int64_t out_size() const { return block_ * (g_.sums ? g_.out_channels : widest_) + kApart; }
  float* at(int64_t bytes) const { return reinterpret_cast<float*>(static_cast<std::byte*>(workspace_) + bytes); }

  Place place_of(int64_t tile) const {
    const int64_t row = tile / g_.tiles_w, y = row % g_.tiles_h, x = tile % g_.tiles_w;
    return {row / g_.tiles_h, y * P::kInStep - g_.in_before_h, x * P::kInStep - g_.in_before_w,
            y * P::kOutStep - g_.out_before_h, x * P::kOutStep - g_.out_before_w};
  }
  // Of so many pixels from the first one on, those of an image's side that exist.
  static Range inside(int64_t first, int64_t count, int64_t side) {
    return {std::max<int64_t>(0, -first), std::min(count, side - first)};
  }
  // Floats to the next pixel.
  static int64_t pixel(const Image& image) { return image.order == Image::Order::blocked ? kLanes : image.channels; }

  // Where the weight lies by which input channel `in` reaches output channel `out`; taps follow each other.
  int64_t weight_at(int64_t in, int64_t out) const {
    return (g_.to_data ? in * g_.out_channels + out : out * g_.in_channels + in) * kTaps * kTaps;
  }

  // The weights of a panel, rows of its width by input channel.
  void make_weights(Range ins, const Panel& panel, float* to) const {
    for (int64_t out = 0; out < panel.width; out += kLanes) {
      for (int64_t in = ins.begin; in < ins.end; in += kLanes) {
        make_weights_of(in, panel.begin + out, to + (in - ins.begin) * panel.width + out, panel.width);
      }
    }
  }
  void make_weights_of(int64_t in, int64_t out, float* to, int64_t to_row) const {
    float block[kLanes][kTaps * kTaps][kLanes];  // by input channel, tap, output channel
    for (int64_t o = 0; o < kLanes; ++o) {
      for (int64_t i = 0; i < kLanes; ++i) {
        const float* from = input(1) + weight_at(in + i, out + o);
        for (int tap = 0; tap < kTaps * kTaps; ++tap) block[i][tap][o] = from[tap];
      }
    }
    for (int64_t i = 0; i < kLanes; ++i) {
      f32x16 taps[kTaps * kTaps], rows[kPoints * kTaps], u[kProducts];
      for (int tap = 0; tap < kTaps * kTaps; ++tap) taps[tap] = load(block[i][tap]);
      for (int j = 0; j < kTaps; ++j) P::weights(rows + j, kTaps, taps + j, kTaps);
      for (int p = 0; p < kPoints; ++p) P::weights(u + p * kPoints, 1, rows + p * kTaps, 1);
      for (int p = 0; p < kProducts; ++p) store(to + i * to_row + p * weights_size(), u[p]);
    }
  }

  // Calls act(tile, channels) in the order in which an image's bytes lie: tile by tile, or sixteen channels at a time.
  template <class Act>
  static void in_order_of(const Image& image, Range tiles, Range channels, const Act& act) {
    if (image.order != Image::Order::blocked) {
      for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) act(tile, channels);
      return;
    }
    for (int64_t c = channels.begin; c < channels.end; c += kLanes) {
      for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) act(tile, Range{c, c + kLanes});
    }
  }

  // Matrices of tiles x input channels, from the row of `first` on.
  void transform_inputs(Range tiles, int64_t first, float* to) const {
    in_order_of(in_, tiles, {0, g_.in_channels}, [&](int64_t tile, Range channels) {
      const Place place = place_of(tile);
      const int64_t y0 = place.in_y, x0 = place.in_x;
      float* row = to + (tile - first) * in_row_;
      if (y0 >= 0 && x0 >= 0 && y0 + kIn <= g_.in_h && x0 + kIn <= g_.in_w) {
        transform_patch(place.n, y0, x0, channels, row, [](int64_t, int64_t) { return std::true_type{}; });
      } else {
        transform_patch(place.n, y0, x0, channels, row, [&](int64_t i, int64_t j) {
          return y0 + i >= 0 && x0 + j >= 0 && y0 + i < g_.in_h && x0 + j < g_.in_w;
        });
      }
    });
  }
  template <class Exists>
  void transform_patch(int64_t n, int64_t y0, int64_t x0, Range channels, float* row, const Exists& exists) const {
    const int64_t step = pixel(in_), image_row = g_.in_w * step, size = in_size();
    for (int64_t c = channels.begin; c < channels.end; c += kLanes) {
      const float* image = input(g_.in_slot) + in_.at(n, c, 0) + (y0 * g_.in_w + x0) * step;
      f32x16 between[kPoints * kIn];
      for (int j = 0; j < kIn; ++j) {
        f32x16 column[kIn];
        if (j >= kIn - P::kInStep) {  // the next tile of the row reads what this one has not read
          for (int i = 0; i < kIn; ++i) __builtin_prefetch(image + i * image_row + (j + P::kInStep) * step);
        }
        for (int i = 0; i < kIn; ++i) column[i] = exists(i, j) ? load(image + i * image_row + j * step) : f32x16{};
        P::in(between + j, kIn, column, 1);
      }
      for (int i = 0; i < kPoints; ++i) {
        f32x16 v[kPoints];
        P::in(v, 1, between + i * kIn, 1);
        for (int j = 0; j < kPoints; ++j) store(row + c + (i * kPoints + j) * size, v[j]);
      }
    }
  }

  void run_by_tiles() const {
    for_each_part(parts_, [&](int part) {
      const Range ins = share(g_.in_channels, part, parts_, kLanes);
      for (int64_t i = 0; i < panels_; ++i) {
        const Panel p = panel(i);
        make_weights(ins, p, at(weights_at_[0]) + p.begin * g_.in_channels + ins.begin * p.width);
      }
    });
    for_each_part(parts_, [&](int part) {
      const Range own = share(g_.tiles(), part, parts_);
      for (int64_t begin = own.begin; begin < own.end; begin += block_) {
        const Range tiles{begin, std::min(begin + block_, own.end)};
        transform_inputs(tiles, tiles.begin, at(in_at_[part]));
        for (int64_t i = 0; i < panels_; ++i) {
          const Panel p = panel(i);
          multiply_panel(part, tiles, p, {0, g_.in_channels}, at(weights_at_[0]) + p.begin * g_.in_channels);
          write_outputs(tiles, p, at(out_at_[part]));
        }
      }
    });
  }

  // y = a b, or y += a b; rows of b and y have no gaps.
  static void multiply_or_add(bool adds, const ProductSizes& sizes, const ProductFactor& a, const float* b, float* y) {
    if (adds) {
      multiply<true>(sizes, a, b, sizes.columns, y, sizes.columns);
    } else {
      multiply<false>(sizes, a, b, sizes.columns, y, sizes.columns);
    }
  }
  // The results of a panel, of these input channels alone or added to those of the ones before.
  void multiply_panel(int part, Range tiles, const Panel& panel, Range ins, const float* weights) const {
    const ProductSizes sizes{.rows = tiles.end - tiles.begin, .columns = panel.width, .depth = ins.end - ins.begin};
    for (int p = 0; p < kProducts; ++p) {
      const float* v = at(in_at_[part]) + p * in_size() + ins.begin;
      multiply_or_add(ins.begin > 0, sizes, {v, in_row_, 1}, weights + p * weights_size(),
                      at(out_at_[part]) + p * out_size());
    }
  }

  void run_by_panels() const {
    const Range tiles{0, g_.tiles()};
    for_each_part(parts_, [&](int part) {
      const Range own = share(g_.tiles(), part, parts_);
      transform_inputs(own, 0, at(in_at_[0]));
    });
    for_each_part(parts_, [&](int part) {
      const Range own = share(panels_, part, parts_);
      float* const weights = at(weights_at_[part]);
      for (int64_t i = own.begin; i < own.end; ++i) {
        const Panel p = panel(i);
        for (int64_t in = 0; in < g_.in_channels; in += kDepth) {
          const Range ins{in, std::min(in + kDepth, g_.in_channels)};
          make_weights(ins, p, weights);
          multiply_panel(part, tiles, p, ins, weights);
        }
        write_outputs(tiles, p, at(out_at_[part]));
      }
    });
  }

  void write_outputs(Range tiles, const Panel& panel, const float* from) const {
    const int64_t step = pixel(out_), size = out_size();
    in_order_of(out_, tiles, {0, panel.width}, [&](int64_t tile, Range channels) {
      const Place place = place_of(tile);
      const Range rows = inside(place.out_y, kOut, g_.out_h), columns = inside(place.out_x, kOut, g_.out_w);
      for (int64_t c = channels.begin; c < channels.end; c += kLanes) {
        const float* row = from + (tile - tiles.begin) * panel.width + c;
        f32x16 between[kOut * kPoints];
        for (int j = 0; j < kPoints; ++j) {
          f32x16 column[kPoints];
          for (int i = 0; i < kPoints; ++i) column[i] = load(row + (i * kPoints + j) * size);
          P::out(between + j, kPoints, column, 1);
        }
        const int64_t channel = panel.begin + c;
        const f32x16 bias = has_bias_ ? load(input(2) + channel) : f32x16{};
        float* image = output(0) + out_.at(place.n, channel, 0) + (place.out_y * g_.out_w + place.out_x) * step;
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          f32x16 y[kOut];
          for (int j = 0; j < kOut; ++j) __builtin_prefetch(image + (i * g_.out_w + j + kOut) * step, 1);
          P::out(y, 1, between + i * kPoints, 1);
          for (int64_t j = columns.begin; j < columns.end; ++j) {
            const f32x16 sum = y[j] + bias;
            store(image + (i * g_.out_w + j) * step, relu_ ? relu(sum) : sum);
          }
        }
      }
    });
  }

  // Matrices of tiles x channels of dy, by panels.
  void transform_gradients(Range tiles, int64_t first, int64_t count, float* to) const {
    const int64_t step = pixel(out_), size = out_size();
    for (int64_t index = 0; index < panels_; ++index) {
      const Panel p = panel(index);
      in_order_of(out_, tiles, {0, p.width}, [&](int64_t tile, Range channels) {
        const Place place = place_of(tile);
        const Range rows = inside(place.out_y, kOut, g_.out_h), columns = inside(place.out_x, kOut, g_.out_w);
        for (int64_t c = channels.begin; c < channels.end; c += kLanes) {
          const float* image = input(g_.out_slot) + out_.at(place.n, p.begin + c, place.out_y * g_.out_w + place.out_x);
          f32x16 between[kPoints * kOut];
          for (int64_t j = 0; j < kOut; ++j) {
            f32x16 column[kOut];
            for (int64_t i = 0; i < kOut; ++i) __builtin_prefetch(image + (i * g_.out_w + j + kOut) * step);
            for (int64_t i = 0; i < kOut; ++i)
              column[i] = i < rows.end && j < columns.end ? load(image + (i * g_.out_w + j) * step) : f32x16{};
            P::gradient(between + j, kOut, column, 1);
          }
          float* row = to + p.begin * count + (tile - first) * p.width + c;
          for (int i = 0; i < kPoints; ++i) {
            f32x16 m[kPoints];
            P::gradient(m, 1, between + i * kOut, 1);
            for (int j = 0; j < kPoints; ++j) store(row + (i * kPoints + j) * size, m[j]);
          }
        }
      });
    }
  }

  // One of the products of a panel, over tiles that `part` has or shares: rows of its width by input channel.
  void sum(int part, int64_t product, int64_t tiles, const Panel& panel, Range ins, bool adds, float* to) const {
    const ProductSizes sizes{.rows = ins.end - ins.begin, .columns = panel.width, .depth = tiles};
    const float* v = at(in_at_[part]) + product * in_size() + ins.begin;
    const float* m = at(out_at_[part]) + product * out_size() + panel.begin * tiles;
    multiply_or_add(adds, sizes, {v, 1, in_row_}, m, to);
  }
  void transform_both(Range tiles) const {
    for_each_part(parts_, [&](int part) {
      const Range own = share(tiles.end - tiles.begin, part, parts_);
      const Range all{tiles.begin + own.begin, tiles.begin + own.end};
      transform_inputs(all, tiles.begin, at(in_at_[0]));
      transform_gradients(all, tiles.begin, tiles.end - tiles.begin, at(out_at_[0]));
    });
  }

  // Each part has tiles.
  void run_own_sums() const {
    for_each_part(parts_, [&](int part) {
      const Range own = share(g_.tiles(), part, parts_);
      for (int64_t begin = own.begin; begin < own.end; begin += block_) {
        const Range tiles{begin, std::min(begin + block_, own.end)};
        const int64_t count = tiles.end - tiles.begin;
        transform_inputs(tiles, begin, at(in_at_[part]));
        transform_gradients(tiles, begin, count, at(out_at_[part]));
        for (int64_t product = 0; product < kProducts; ++product) {
          for (int64_t i = 0; i < panels_; ++i) {
            const Panel p = panel(i);
            sum(part, product, count, p, {0, g_.in_channels}, begin > own.begin,
                at(weights_at_[part]) + product * weights_size() + p.begin * g_.in_channels);
          }
        }
      }
    });
    for_each_part(parts_, [&](int part) {
      const Range ins = share(g_.in_channels, part, parts_, kLanes);
      for (int64_t i = 0; i < panels_; ++i) {
        const Panel p = panel(i);
        const int64_t first = p.begin * g_.in_channels + ins.begin * p.width;
        for (int other = 1; other < parts_; ++other) add_sums(other, first, (ins.end - ins.begin) * p.width);
        write_weights(ins, p, at(weights_at_[0]) + first);
      }
      if (has_bias_) sum_bias(part);
    });
  }
  // Another part's sums to those of the first, of so many weights from `first` on.
  void add_sums(int other, int64_t first, int64_t count) const {
    for (int64_t product = 0; product < kProducts; ++product) {
      float* const to = at(weights_at_[0]) + product * weights_size() + first;
      const float* const from = at(weights_at_[other]) + product * weights_size() + first;
      for (int64_t i = 0; i < count; i += kLanes) store(to + i, load(to + i) + load(from + i));
    }
  }

  void run_sums() const {
    float* const sums = at(weights_at_[0]);
    for (int64_t begin = 0; begin < g_.tiles(); begin += block_) {
      const Range tiles{begin, std::min(begin + block_, g_.tiles())};
      transform_both(tiles);
      for_each_part(parts_, [&](int part) {
        const Range own = share(kProducts * panels_, part, parts_);
        for (int64_t item = own.begin; item < own.end; ++item) {
          const Panel p = panel(item % panels_);
          const int64_t product = item / panels_;
          sum(part, product, tiles.end - tiles.begin, p, {0, g_.in_channels}, begin > 0,
              sums + product * weights_size() + p.begin * g_.in_channels);
        }
      });
    }
    for_each_part(parts_, [&](int part) {
      const Range ins = share(g_.in_channels, part, parts_, kLanes);
      for (int64_t i = 0; i < panels_; ++i) {
        const Panel p = panel(i);
        write_weights(ins, p, sums + p.begin * g_.in_channels + ins.begin * p.width);
      }
      if (has_bias_) sum_bias(part);
    });
  }

  void run_sums_by_panels() const {
    transform_both({0, g_.tiles()});
    for_each_part(parts_, [&](int part) {
      const Range own = share(panels_, part, parts_);
      float* const sums = at(weights_at_[part]);
      for (int64_t i = own.begin; i < own.end; ++i) {
        const Panel p = panel(i);
        for (int64_t in = 0; in < g_.in_channels; in += kDepth) {
          const Range ins{in, std::min(in + kDepth, g_.in_channels)};
          for (int64_t product = 0; product < kProducts; ++product)
            sum(part, product, g_.tiles(), p, ins, false, sums + product * weights_size());
          write_weights(ins, p, sums);
        }
      }
      if (has_bias_) sum_bias(part);
    });
  }

  // Of a panel's sums, rows of its width from that of the first input channel on.
  void write_weights(Range ins, const Panel& panel, const float* sums) const {
    float block[kLanes][kTaps * kTaps][kLanes];
    for (int64_t in = ins.begin; in < ins.end; in += kLanes) {
      for (int64_t out = 0; out < panel.width; out += kLanes) {
        for (int64_t i = 0; i < kLanes; ++i) {
          const float* u = sums + (in - ins.begin + i) * panel.width + out;
          f32x16 sum[kProducts], between[kTaps * kPoints], taps[kTaps * kTaps];
          for (int p = 0; p < kProducts; ++p) sum[p] = load(u + p * weights_size());
          for (int j = 0; j < kPoints; ++j) P::sums(between + j, kPoints, sum + j, kPoints);
          for (int t = 0; t < kTaps; ++t) P::sums(taps + t * kTaps, 1, between + t * kPoints, 1);
          for (int tap = 0; tap < kTaps * kTaps; ++tap) store(block[i][tap], taps[tap]);
        }
        for (int64_t o = 0; o < kLanes; ++o) {
          for (int64_t i = 0; i < kLanes; ++i) {
            float* to = output(0) + weight_at(in + i, panel.begin + out + o);
            for (int tap = 0; tap < kTaps * kTaps; ++tap) to[tap] = block[i][tap][o];
          }
        }
      }
    }
  }

  // Over dy, the second operand.
  void sum_bias(int part) const {
    const Image& dy = g_.in_slot == 1 ? in_ : out_;
    const Range channels = share(dy.channels, part, parts_, kLanes);
    const int64_t pixels = g_.in_slot == 1 ? g_.in_h * g_.in_w : g_.out_h * g_.out_w;
    for (int64_t c = channels.begin; c < channels.end; c += kLanes) {
      double sums[kLanes] = {};
      for (int64_t n = 0; n < g_.images; ++n) {
        const float* image = input(1) + dy.at(n, c, 0);
        f32x16 sum{};
        for (int64_t p = 0; p < pixels; ++p) sum += load(image + p * pixel(dy));
        add_lanes(sums, sum);
      }
      for (int64_t i = 0; i < kLanes; ++i) output(1)[c + i] = static_cast<float>(sums[i]);
    }
  }

  Winograd g_;
  bool relu_ = false, has_bias_ = false;
  Image in_, out_;
  bool by_panels_ = false, own_sums_ = false;
  int64_t panels_ = 0, widest_ = 0;                   // of output channels
  int64_t in_row_ = 0;                                // floats to the next tile's row
  int64_t block_ = 0;                                 // tiles that lie transformed at a time
  std::vector<int64_t> weights_at_, in_at_, out_at_;  // by part; shared ones are the same
};

// As a multiple of what a machine's products reach, measured with AVX-512 on 14 x 14 to 56 x 56 pixels: the transform of the
// weights costs as much as so many tiles, and that of pixels pays over many channels.
double efficiency(const Winograd& g) {
  const auto channels = [](int64_t count) { return 8.0 / static_cast<double>(count); };
  const double tiles = static_cast<double>(g.tiles());
  return 0.925 * g.saves * g.used * tiles / (tiles + 30) / (1 + channels(g.in_channels) + channels(g.out_channels));
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
  std::unique_ptr<Kernel> made;
  with_pass(*g, [&]<class P>() { made = std::make_unique<WinogradKernel<P>>(graph, op, *g, threads); });
  return made;
}

}  // namespace

std::vector<NamedFactory> winograd_kernels() {
  const KernelFactory factory{winograd_specs, make_winograd, kName};
  std::vector<NamedFactory> kernels;
  for (std::string_view type : {"ConvForward", "ConvBackwardData", "ConvBackwardWeights", "ConvTransposeForward",
                                "ConvTransposeBackwardData", "ConvTransposeBackwardWeights"})
    kernels.push_back({type, factory});
  return kernels;
}

}  // namespace plimsoll::cpu
