// Fully connected layers, and convolutions of one tap, by AMX (own_amx.h).
#include "device/cpu/own_amx.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "device/cpu/own_row_blocks.h"
#include "device/cpu/own_vector.h"

#if defined(__AVX512F__) && defined(__x86_64__) && defined(__linux__)
#define PLIMSOLL_HAS_AMX 1
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#endif

namespace plimsoll::cpu {
#ifdef PLIMSOLL_HAS_AMX
namespace amx {
namespace {

#define PLIMSOLL_AMX __attribute__((target("amx-tile,amx-bf16"), noinline))

constexpr int64_t kLines = 16, kPairs = 16, kStep = 2 * kPairs;  // of a tile; a step is the depth of one
constexpr int64_t kTileWords = kLines * kPairs;                  // each of two parts
constexpr int64_t kParts = 3;                                    // of a float
constexpr int64_t kPanel = 2 * kLines;                           // lines that are multiplied at a time
constexpr int64_t kMostDepth = 1024;
constexpr int64_t kNearSteps = 6;  // of a panel of b, which lie in the nearest cache for all rows of a block
constexpr int64_t kMostRows = 256;
constexpr int64_t kBlockBytes = 1024 * 1024;       // of a's block of rows
constexpr int64_t kSharedBytes = 8 * 1024 * 1024;  // of b's block of columns

int64_t rounded(int64_t count, int64_t grain) { return (count + grain - 1) / grain * grain; }

// As many equal blocks as it takes, none larger than `most`.
int64_t block_of(int64_t count, int64_t most, int64_t grain) {
  const int64_t blocks = (count + most - 1) / most;
  return rounded((count + blocks - 1) / blocks, grain);
}

bool processor_has_it() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  if ((d & kBf16) == 0 || (d & kTile) == 0) return false;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & (1u << 27)) == 0) return false;  // xgetbv
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kTileStates = 3u << 17;
  return (low & kTileStates) == kTileStates;
}
bool is_permitted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
// oneDNN's variable holds for our kernels as well.
bool may_be_used() {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    const char* value = std::getenv(name);
    if (value != nullptr)
      return std::string_view(value).find("AMX") != std::string_view::npos || std::string_view(value) == "ALL" ||
             std::string_view(value) == "DEFAULT";
  }
  return true;
}

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, unused[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
PLIMSOLL_AMX void begin_tiles() {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) {
    shapes.row_bytes[tile] = 64;
    shapes.rows[tile] = 16;
  }
  asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
}
PLIMSOLL_AMX void end_tiles() { asm volatile("tilerelease" : : : "memory"); }

// Adds two panels' product over steps [first, end) of `steps` to the sums of those before. A panel lies by part, step, half; sums
// by quarter of the result. The compiler does not know that tiles are read and written.
PLIMSOLL_AMX void multiply_panels(const uint32_t* a, const uint32_t* b, int64_t steps, int64_t first, int64_t end,
                                  float* sums) {
  asm volatile("" : : : "memory");
  const int64_t part = steps * 2 * kTileWords;
#define PLIMSOLL_LOAD_A(which)                               \
  _tile_loadd(4, a + (which)*part + s * 2 * kTileWords, 64); \
  _tile_loadd(5, a + (which)*part + (s * 2 + 1) * kTileWords, 64);
#define PLIMSOLL_LOAD_B(which)                               \
  _tile_loadd(6, b + (which)*part + s * 2 * kTileWords, 64); \
  _tile_loadd(7, b + (which)*part + (s * 2 + 1) * kTileWords, 64);
#define PLIMSOLL_MULTIPLY  \
  _tile_dpbf16ps(0, 4, 6); \
  _tile_dpbf16ps(1, 4, 7); \
  _tile_dpbf16ps(2, 5, 6); \
  _tile_dpbf16ps(3, 5, 7);
  if (first == 0) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, 64);
    _tile_loadd(1, sums + kTileWords, 64);
    _tile_loadd(2, sums + 2 * kTileWords, 64);
    _tile_loadd(3, sums + 3 * kTileWords, 64);
  }
  for (int64_t s = first; s < end; ++s) {
    PLIMSOLL_LOAD_A(2)
    PLIMSOLL_LOAD_B(0)
    PLIMSOLL_MULTIPLY
    PLIMSOLL_LOAD_A(1)
    PLIMSOLL_MULTIPLY
    PLIMSOLL_LOAD_B(1)
    PLIMSOLL_MULTIPLY
    PLIMSOLL_LOAD_A(0)
    PLIMSOLL_MULTIPLY
    PLIMSOLL_LOAD_B(2)
    PLIMSOLL_MULTIPLY
    PLIMSOLL_LOAD_B(0)
    PLIMSOLL_MULTIPLY
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + kTileWords, 64);
  _tile_stored(2, sums + 2 * kTileWords, 64);
  _tile_stored(3, sums + 3 * kTileWords, 64);
  asm volatile("" : : : "memory");
#undef PLIMSOLL_LOAD_A
#undef PLIMSOLL_LOAD_B
#undef PLIMSOLL_MULTIPLY
}

// The parts of two floats, side by side.
struct Words {
  u32x16 high, middle, low;
};
PLIMSOLL_INLINE u32x16 upper(f32x16 v) { return bits_as<u32x16>(v) & splat(0xffff0000u); }
PLIMSOLL_INLINE u32x16 side_by_side(u32x16 first, u32x16 second) { return (first >> 16) | second; }
PLIMSOLL_INLINE Words words_of(f32x16 first, f32x16 second) {
  Words words;
  u32x16 x = upper(first), y = upper(second);
  words.high = side_by_side(x, y);
  first = first - bits_as<f32x16>(x);
  second = second - bits_as<f32x16>(y);
  x = upper(first);
  y = upper(second);
  words.middle = side_by_side(x, y);
  words.low = side_by_side(upper(first - bits_as<f32x16>(x)), upper(second - bits_as<f32x16>(y)));
  return words;
}

PLIMSOLL_INLINE void turn(u32x16 (&rows)[16]) {
  u32x16 t[16];
  const auto mix = [&](auto& from, auto& to, int distance, auto low, auto high) {
    for (int i = 0; i < 16; ++i) {
      if ((i & distance) != 0) continue;
      to[i] = low(from[i], from[i + distance]);
      to[i + distance] = high(from[i], from[i + distance]);
    }
  };
  const auto as_512 = [](u32x16 v) { return bits_as<__m512i>(v); };
  const auto back = [](__m512i v) { return bits_as<u32x16>(v); };
  mix(
      rows, t, 1, [&](u32x16 x, u32x16 y) { return back(_mm512_unpacklo_epi32(as_512(x), as_512(y))); },
      [&](u32x16 x, u32x16 y) { return back(_mm512_unpackhi_epi32(as_512(x), as_512(y))); });
  mix(
      t, rows, 2, [&](u32x16 x, u32x16 y) { return back(_mm512_unpacklo_epi64(as_512(x), as_512(y))); },
      [&](u32x16 x, u32x16 y) { return back(_mm512_unpackhi_epi64(as_512(x), as_512(y))); });
  mix(
      rows, t, 4, [&](u32x16 x, u32x16 y) { return back(_mm512_shuffle_i32x4(as_512(x), as_512(y), 0x88)); },
      [&](u32x16 x, u32x16 y) { return back(_mm512_shuffle_i32x4(as_512(x), as_512(y), 0xdd)); });
  mix(
      t, rows, 8, [&](u32x16 x, u32x16 y) { return back(_mm512_shuffle_i32x4(as_512(x), as_512(y), 0x88)); },
      [&](u32x16 x, u32x16 y) { return back(_mm512_shuffle_i32x4(as_512(x), as_512(y), 0xdd)); });
  for (int i = 0; i < 16; i += 4) std::swap(rows[i + 1], rows[i + 2]);
}

PLIMSOLL_INLINE f32x16 load_first(const float* from, int64_t count) {
  return count >= kLanes ? load(from) : count <= 0 ? f32x16{} : load(from, static_cast<int>(count));
}

PLIMSOLL_INLINE void keep(const Words& words, int64_t part, uint32_t* to) {
  std::memcpy(to, &words.high, sizeof words.high);
  std::memcpy(to + part, &words.middle, sizeof words.middle);
  std::memcpy(to + 2 * part, &words.low, sizeof words.low);
}

// Cuts these lines of a factor into panels, for the steps of a block of depth; what a last panel lacks is zero. Rows of tiles are
// lines, or pairs. Memory is read as it lies: a line along its depth, or pairs of rows along all lines.
class Cutting {
 public:
  Cutting(const Factor& factor, Range lines, Range depth, bool rows_are_lines, uint32_t* to)
      : factor_(factor), lines_(lines), depth_(depth), rows_are_lines_(rows_are_lines), to_(to) {
    steps_ = (depth.end - depth.begin + kStep - 1) / kStep;
    part_ = steps_ * 2 * kTileWords;
  }

  void run() const {
    const int64_t tiles = rounded(lines_.end - lines_.begin, kPanel) / kLines;
    if (rows_are_lines_ && factor_.depth == 1) {
      for (int64_t tile = 0; tile < tiles; ++tile) {
        for (int64_t row = 0; row < kLines; ++row) {
          for (int64_t s = 0; s < steps_; ++s) keep(row_of_line(tile, row, s), part_, place(tile, s) + row * kPairs);
        }
      }
    } else if (!rows_are_lines_ && factor_.depth != 1) {
      for (int64_t s = 0; s < steps_; ++s) {
        for (int64_t row = 0; row < kPairs; ++row) {
          for (int64_t tile = 0; tile < tiles; ++tile)
            keep(row_of_pair(tile, row, s), part_, place(tile, s) + row * kPairs);
        }
      }
    } else if (factor_.depth == 1) {
      for (int64_t tile = 0; tile < tiles; ++tile) {
        for (int64_t s = 0; s < steps_; ++s)
          keep_turned(tile, s, [&](int64_t row) { return row_of_line(tile, row, s); });
      }
    } else {
      for (int64_t s = 0; s < steps_; ++s) {
        for (int64_t tile = 0; tile < tiles; ++tile)
          keep_turned(tile, s, [&](int64_t row) { return row_of_pair(tile, row, s); });
      }
    }
  }

 private:
  uint32_t* place(int64_t tile, int64_t s) const {
    return to_ + tile / 2 * kParts * part_ + (2 * s + tile % 2) * kTileWords;
  }
  PLIMSOLL_INLINE Words row_of_line(int64_t tile, int64_t row, int64_t s) const {
    const int64_t line = lines_.begin + tile * kLines + row, k = depth_.begin + s * kStep;
    const float* from = factor_.from + line * factor_.line + k;
    const int64_t count = line < lines_.end ? depth_.end - k : 0;
    return words_of(load_first(from, count), load_first(from + kPairs, count - kPairs));
  }
  PLIMSOLL_INLINE Words row_of_pair(int64_t tile, int64_t row, int64_t s) const {
    const int64_t line = lines_.begin + tile * kLines, k = depth_.begin + s * kStep + row;
    const float* from = factor_.from + line + k * factor_.depth;
    const int64_t count = lines_.end - line;
    return words_of(load_first(from, k < depth_.end ? count : 0),
                    load_first(from + kPairs * factor_.depth, k + kPairs < depth_.end ? count : 0));
  }
  template <class Row>
  PLIMSOLL_INLINE void keep_turned(int64_t tile, int64_t s, const Row& row) const {
    u32x16 high[16], middle[16], low[16];
    for (int64_t i = 0; i < 16; ++i) {
      const Words words = row(i);
      high[i] = words.high;
      middle[i] = words.middle;
      low[i] = words.low;
    }
    turn(high);
    turn(middle);
    turn(low);
    uint32_t* const to = place(tile, s);
    for (int64_t i = 0; i < 16; ++i) keep({high[i], middle[i], low[i]}, part_, to + i * kPairs);
  }

  Factor factor_;
  Range lines_, depth_;
  bool rows_are_lines_;
  uint32_t* to_;
  int64_t steps_ = 0, part_ = 0;
};

// Before they are written.
void fetch_results(const Product& p, int64_t row, int64_t column) {
  const float* y = p.y + row * p.columns + column;
  const int64_t rows = std::min(p.rows - row, kPanel);
  for (int64_t r = 0; r < rows; ++r) {
    __builtin_prefetch(y + r * p.columns, 1);
    __builtin_prefetch(y + r * p.columns + kLines, 1);
  }
}

// Of the sums of two panels what exists.
void write_sums(const Product& p, int64_t row, int64_t column, bool adds, bool is_last, const float* sums) {
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t first = column + half * kLines, count = std::min<int64_t>(p.columns - first, kLanes);
    if (count <= 0) return;
    const int lanes = static_cast<int>(count);
    const f32x16 bias = is_last && p.bias != nullptr ? load(p.bias + first, lanes) : f32x16{};
    for (int64_t r = 0; r < std::min(p.rows - row, kPanel); ++r) {
      float* y = p.y + (row + r) * p.columns + first;
      f32x16 sum = load(sums + (r / kLines * 2 + half) * kTileWords + r % kLines * kPairs);
      if (adds) sum = sum + load(y, lanes);
      if (is_last) {
        sum = sum + bias;
        if (p.relu) sum = relu(sum);
      }
      store(y, sum, lanes);
    }
  }
}

}  // namespace

bool is_there() {
  static const bool there = may_be_used() && processor_has_it() && is_permitted();
  return there;
}

Blocks::Blocks(int64_t rows, int64_t columns, int64_t depth, int parts) : parts_(parts) {
  depth_ = block_of(depth, kMostDepth, kStep);
  const int64_t line_bytes = kParts * depth_ * 2;
  columns_ = block_of(columns, std::max<int64_t>(kSharedBytes / line_bytes / kPanel, parts) * kPanel, kPanel);
  by_columns_ = rows < parts * kPanel || (rows < columns && rows < 4 * parts * kPanel);
  const int64_t own = by_columns_ ? rows : (rows + parts - 1) / parts;
  const int64_t most = std::clamp(kBlockBytes / line_bytes / kPanel * kPanel, kPanel, kMostRows);
  rows_ = std::min(most, rounded(own, kPanel));
  a_bytes_ = rows_ * line_bytes;
  b_bytes_ = columns_ * line_bytes;
}

void Blocks::run(const Product& p, std::byte* workspace) const {
  for (int64_t column = 0; column < p.columns; column += columns_) {
    for (int64_t k = 0; k < p.depth; k += depth_)
      run_block(p, {column, std::min(column + columns_, p.columns)}, {k, std::min(k + depth_, p.depth)}, workspace);
  }
}

void Blocks::run_block(const Product& p, Range columns, Range depth, std::byte* workspace) const {
  auto* const all_b = reinterpret_cast<uint32_t*>(workspace);
  const int64_t column_panels = (columns.end - columns.begin + kPanel - 1) / kPanel;
  const int64_t steps = (depth.end - depth.begin + kStep - 1) / kStep, panel_words = kParts * steps * 2 * kTileWords;
  for_each_part(parts_, [&](int part) {
    const Range own = share(columns.end - columns.begin, part, parts_, kPanel);
    if (own.begin == own.end) return;
    Cutting(p.b, {columns.begin + own.begin, columns.begin + own.end}, depth, false,
            all_b + own.begin / kPanel * panel_words)
        .run();
  });
  for_each_part(parts_, [&](int part) {
    const Range rows = by_columns_ ? Range{0, p.rows} : share(p.rows, part, parts_, kPanel);
    const Range panels = by_columns_ ? share(column_panels, part, parts_) : Range{0, column_panels};
    if (rows.begin == rows.end || panels.begin == panels.end) return;
    auto* const own_a = reinterpret_cast<uint32_t*>(workspace + b_bytes_ + part * a_bytes_);
    alignas(64) float sums[kMostRows / kPanel][4 * kTileWords];
    begin_tiles();
    for (int64_t begin = rows.begin; begin < rows.end; begin += rows_) {
      const int64_t end = std::min(begin + rows_, rows.end);
      Cutting(p.a, {begin, end}, depth, true, own_a).run();
      for (int64_t i = panels.begin; i < panels.end; ++i) {
        for (int64_t s = 0; s < steps; s += kNearSteps) {
          for (int64_t row = begin; row < end; row += kPanel) {
            const int64_t at = (row - begin) / kPanel;
            if (s + kNearSteps >= steps) fetch_results(p, row, columns.begin + i * kPanel);
            multiply_panels(own_a + at * panel_words, all_b + i * panel_words, steps, s,
                            std::min(s + kNearSteps, steps), sums[at]);
          }
        }
        for (int64_t row = begin; row < end; row += kPanel) {
          write_sums(p, row, columns.begin + i * kPanel, depth.begin > 0, depth.end == p.depth,
                     sums[(row - begin) / kPanel]);
        }
      }
    }
    end_tiles();
  });
}

}  // namespace amx

namespace {

constexpr std::string_view kName = "own:amx";
constexpr int64_t kFewest = 64;  // rows, columns and depth: fewer leave the tiles empty

// The layer as a product: x is rows x ins, the weights outs x ins.
struct Layer {
  enum class Pass : uint8_t { forward, data, weights } pass = Pass::forward;
  int64_t rows = 0, ins = 0, outs = 0;

  int64_t lines() const { return pass == Pass::weights ? outs : rows; }
  int64_t columns() const { return pass == Pass::forward ? outs : ins; }
  int64_t depth() const { return pass == Pass::forward ? ins : pass == Pass::data ? outs : rows; }
};

std::optional<Layer> read_layer(const Graph& graph, const Op& op) {
  const std::string& type = op.type->name;
  Layer layer;
  layer.pass = type.ends_with("BackwardData")      ? Layer::Pass::data
               : type.ends_with("BackwardWeights") ? Layer::Pass::weights
                                                   : Layer::Pass::forward;
  const bool sums = layer.pass == Layer::Pass::weights;
  const Shape& w = graph.tensor(sums ? op.outputs[0] : op.inputs[1]).shape;
  const Tensor& from = graph.tensor(op.inputs[0]);  // x, or dy
  if (w.size() < 2 || from.dtype != DType::f32) return std::nullopt;
  layer.outs = w[0];
  layer.ins = w[1];
  if (type.starts_with("Conv")) {
    const auto all = [&](std::string_view name, int64_t usual, int64_t wanted) {
      return std::ranges::all_of(op.attributes.integers(std::string(name), {usual}),
                                 [&](int64_t i) { return i == wanted; });
    };
    if (w.size() != 4 || w[2] != 1 || w[3] != 1 || op.attributes.integer("groups", 1) != 1 || !all("stride", 1, 1) ||
        !all("padding", 0, 0))
      return std::nullopt;
    layer.rows = from.shape[0] * from.shape[2] * from.shape[3];
  } else {
    layer.rows = element_count(from.shape) / (layer.pass == Layer::Pass::data ? layer.outs : layer.ins);
  }
  const bool large = std::min({layer.rows, layer.ins, layer.outs}) >= kFewest;
  return large ? std::optional(layer) : std::nullopt;
}

class AmxKernel final : public OwnKernel {
 public:
  AmxKernel(const Graph& graph, const Op& op, const Layer& layer, int threads)
      : OwnKernel(graph, op, threads),
        layer_(layer),
        relu_(op.attributes.text("activation", "none") == "relu"),
        has_bias_(layer.pass == Layer::Pass::weights ? op.outputs.size() > 1 : op.inputs.size() > 2),
        blocks_(layer.lines(), layer.columns(), layer.depth(), parts_) {
    workspace_bytes_ = Bytes{blocks_.workspace_bytes()};
    for (const auto* list : {&op.inputs, &op.outputs}) {
      for (TensorId id : *list) {
        const Tensor& t = graph.tensor(id);
        const bool image = op.type->name.starts_with("Conv") && t.shape.size() == 4;
        if (image && image_of(t).order != Image::Order::channels_last && image_of(t).pixels > 1)
          wrong_ = fmt::format("op '{}' ({}): kernel '{}' takes images channels last, and '{}' is not", op.name,
                               op.type->name, kName, t.name);
      }
    }
  }

  // Not before: a workspace is asked for while no layouts are chosen.
  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) override {
    if (!wrong_.empty()) throw Error(ErrorCode::unsupported, wrong_);
    OwnKernel::bind(inputs, outputs, workspace);
  }

  void run() override {
    const int64_t ins = layer_.ins, outs = layer_.outs;
    amx::Product p{.rows = layer_.lines(), .columns = layer_.columns(), .depth = layer_.depth(), .y = output(0)};
    switch (layer_.pass) {
      case Layer::Pass::forward:
        p.a = {input(0), ins, 1};
        p.b = {input(1), ins, 1};
        p.bias = has_bias_ ? input(2) : nullptr;
        p.relu = relu_;
        break;
      case Layer::Pass::data:
        p.a = {input(0), outs, 1};
        p.b = {input(1), 1, ins};
        break;
      case Layer::Pass::weights:
        p.a = {input(1), 1, outs};
        p.b = {input(0), 1, ins};
        break;
    }
    blocks_.run(p, static_cast<std::byte*>(workspace_));
    if (layer_.pass == Layer::Pass::weights && has_bias_) sum_bias();
  }

 private:
  void sum_bias() const {
    for_each_part(parts_, [&](int part) {
      const Range own = share(layer_.outs, part, parts_, kLanes);
      for (int64_t c = own.begin; c < own.end; c += kLanes) {
        const int lanes = static_cast<int>(std::min<int64_t>(own.end - c, kLanes));
        double sums[kLanes] = {};
        for (int64_t row = 0; row < layer_.rows; row += kRowsOfASum) {
          f32x16 sum{};
          for (int64_t r = row; r < std::min(row + kRowsOfASum, layer_.rows); ++r)
            sum = sum + load(input(1) + r * layer_.outs + c, lanes);
          add_lanes(sums, sum);
        }
        for (int i = 0; i < lanes; ++i) output(1)[c + i] = static_cast<float>(sums[i]);
      }
    });
  }

  static constexpr int64_t kRowsOfASum = 64;  // in single precision
  Layer layer_;
  bool relu_, has_bias_;
  amx::Blocks blocks_;
  std::string wrong_;
};

std::vector<KernelSpec> amx_specs(const Graph& graph, const Op& op, LayoutFamily family, int threads) {
  const bool images = op.type->name.starts_with("Conv");
  if (!amx::is_there() || (images && family != LayoutFamily::channels_last)) return {};
  const auto layer = read_layer(graph, op);
  if (!layer) return {};
  std::vector<KernelSpec> specs = own_specs(graph, op, images ? family : LayoutFamily::plain, threads);
  KernelSpec& spec = specs.front();
  spec.name = kName;
  spec.exact = false;  // --exact takes kernels that other processors have as well
  spec.algorithm = Algorithm::gemm;
  // Cutting is counted as the products of so many lines.
  const auto filled = [](int64_t lines) { return static_cast<double>(lines) / static_cast<double>(lines + 60); };
  spec.estimate = {.efficiency = 1.3 * filled(layer->lines()) * filled(layer->columns())};
  if (layer->pass == Layer::Pass::weights) {
    spec.outputs.assign(op.outputs.size(), Layout{});
  } else {
    for (size_t i = 1; i < op.inputs.size(); ++i) spec.inputs[i] = Layout{};
  }
  return specs;
}

std::unique_ptr<Kernel> make_amx(const Graph& graph, const Op& op, std::string_view kernel, int threads) {
  const auto layer = read_layer(graph, op);
  if (kernel != kName || !layer || !amx::is_there())
    throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}): no kernel '{}'", op.name, op.type->name, kernel));
  return std::make_unique<AmxKernel>(graph, op, *layer, threads);
}

}  // namespace

std::vector<NamedFactory> amx_kernels() {
  const KernelFactory factory{amx_specs, make_amx, kName};
  std::vector<NamedFactory> kernels;
  for (std::string_view type : {"FullyConnectedForward", "FullyConnectedBackwardData", "FullyConnectedBackwardWeights",
                                "ConvForward", "ConvBackwardData", "ConvBackwardWeights"})
    kernels.push_back({type, factory});
  return kernels;
}
#else
bool amx::is_there() { return false; }
std::vector<NamedFactory> amx_kernels() { return {}; }
#endif

}  // namespace plimsoll::cpu
