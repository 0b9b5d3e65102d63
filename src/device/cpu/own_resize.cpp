// Images of another size. Interpolation and adaptive average pooling, forward and backward, are one map of rows after one
// of columns, each a sparse matrix: a result's row is a weighted sum of source rows, made in the workspace, and each
// element of it a weighted sum along that row. Backward takes the matrices transposed, so that no two threads add to one
// place. Whatever the layout, the storage is planes of height x width x run: blocked channels are runs of 16.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/cpu/own.h"
#include "device/cpu/own_move.h"
#include "device/cpu/own_vector.h"
#include "ops/resize.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

// For each element of the result, what it takes of the source.
struct LineMap {
  struct Entry {
    int32_t at;
    float weight;
  };
  int64_t source = 0, result = 0;
  std::vector<int64_t> first;  // of a result's entries; and one more
  std::vector<Entry> entries;

  std::span<const Entry> of(int64_t i) const {
    return {entries.data() + first[i], static_cast<size_t>(first[i + 1] - first[i])};
  }
};

// The same with equally many entries everywhere, where that adds few: those added weigh nothing.
LineMap evened(const LineMap& map) {
  int64_t most = 0;
  for (int64_t i = 0; i < map.result; ++i) most = std::max(most, std::ssize(map.of(i)));
  if (most == 0 || most * map.result > 2 * std::ssize(map.entries)) return map;
  LineMap even{.source = map.source, .result = map.result, .first = {0}, .entries = {}};
  for (int64_t i = 0; i < map.result; ++i) {
    const std::span<const LineMap::Entry> own = map.of(i);
    even.entries.insert(even.entries.end(), own.begin(), own.end());
    even.entries.resize((i + 1) * most, {own.empty() ? 0 : own.back().at, 0.0f});
    even.first.push_back(std::ssize(even.entries));
  }
  return even;
}

LineMap transposed(const LineMap& map) {
  LineMap back{.source = map.result, .result = map.source, .first = {}, .entries = {}};
  back.first.assign(map.source + 1, 0);
  for (const LineMap::Entry& entry : map.entries) ++back.first[entry.at + 1];
  for (int64_t i = 0; i < map.source; ++i) back.first[i + 1] += back.first[i];
  std::vector<int64_t> next(back.first.begin(), back.first.end() - 1);
  back.entries.resize(map.entries.size());
  for (int64_t i = 0; i < map.result; ++i) {
    for (const LineMap::Entry& entry : map.of(i))
      back.entries[next[entry.at]++] = {static_cast<int32_t>(i), entry.weight};
  }
  return back;
}

LineMap resize_map(const Resize& resize, const ResizeAxis& axis) {
  LineMap map{.source = axis.in, .result = axis.out, .first = {0}, .entries = {}};
  const int taps = taps_of(resize.mode);
  for (const ResizeTaps<float>& each : resize_taps<float>(resize, axis)) {
    for (int k = 0; k < taps; ++k) {
      if (each.weight[k] != 0) map.entries.push_back({static_cast<int32_t>(each.at[k]), each.weight[k]});
    }
    map.first.push_back(std::ssize(map.entries));
  }
  return map;
}

LineMap average_map(int64_t in, int64_t out) {
  LineMap map{.source = in, .result = out, .first = {0}, .entries = {}};
  for (int64_t o = 0; o < out; ++o) {
    const AdaptiveWindow window = adaptive_window(in, out, o);
    const float weight = 1 / static_cast<float>(window.last - window.first);
    for (int64_t i = window.first; i < window.last; ++i) map.entries.push_back({static_cast<int32_t>(i), weight});
    map.first.push_back(std::ssize(map.entries));
  }
  return map;
}

// The storage of an image tensor, in any of the layouts.
struct Planes {
  int64_t planes = 1, h = 1, w = 1, run = 1;
};
Planes planes_of(const Tensor& tensor) {
  const Image image = image_of(tensor);
  const Shape& s = tensor.shape;
  if (tensor.layout.is_plain()) return {s[0] * s[1], s[2], s[3], 1};
  if (image.order == Image::Order::blocked) return {s[0] * image.blocks(), s[2], s[3], 16};
  return {s[0], s[2], s[3], s[1]};
}

class SeparableMap : public OwnKernel {
 public:
  void run() override {
    const int64_t row = image_.run * columns_.source;
    for_each_part(parts_, [&](int part) {
      const Range range = share(image_.planes * rows_.result, part, parts_);
      float* const scratch = static_cast<float*>(workspace_) + part * room_;
      for (int64_t i = range.begin; i < range.end; ++i) {
        const float* source = input(0) + i / rows_.result * rows_.source * row;
        float* result = output(0) + i * image_.run * columns_.result;
        const std::span<const LineMap::Entry> entries = rows_.of(i % rows_.result);
        if (entries.empty()) {
          std::memset(result, 0, image_.run * columns_.result * sizeof(float));
        } else if (entries.size() == 1 && entries[0].weight == 1) {
          map_columns(source + entries[0].at * row, result);
        } else {
          add_source_rows(source, entries, row, scratch);
          map_columns(scratch, result);
        }
      }
    });
  }

 protected:
  SeparableMap(const Graph& graph, const Op& op, int threads, LineMap rows, LineMap columns)
      : OwnKernel(graph, op, threads),
        image_(planes_of(graph.tensor(op.inputs[0]))),
        rows_(std::move(rows)),
        columns_(std::move(columns)) {
    require_one_order(graph, op);
    room_ = (image_.run * columns_.source + kLanes - 1) / kLanes * kLanes;
    workspace_bytes_ = {parts_ * room_ * static_cast<int64_t>(sizeof(float))};
    if (image_.run > 1) return;
    columns_ = evened(columns_);
    count_ = columns_.first[1];
    for (int64_t o = 0; o < columns_.result; ++o) {
      if (columns_.first[o + 1] - columns_.first[o] != count_) count_ = 0;
    }
  }

 private:
  static void require_one_order(const Graph& graph, const Op& op) {
    const Tensor &x = graph.tensor(op.inputs[0]), &y = graph.tensor(op.outputs[0]);
    if (x.layout == y.layout || (x.layout.is_plain() && y.layout.is_plain())) return;
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}' wants its tensors in one layout, but '{}' lies in '{}' and '{}' in '{}'", op.name,
                            x.name, x.layout.tag, y.name, y.layout.tag));
  }

  PLIMSOLL_INLINE static void add_source_rows(const float* source, std::span<const LineMap::Entry> entries, int64_t row,
                                              float* to) {
    const auto sum = [&](int64_t i, auto n) {
      f32x16 v = splat(entries[0].weight) * load(source + entries[0].at * row + i, n);
      for (const LineMap::Entry& entry : entries.subspan(1))
        v += splat(entry.weight) * load(source + entry.at * row + i, n);
      store(to + i, v, n);
    };
    int64_t i = 0;
    for (; i + kLanes <= row; i += kLanes) sum(i, kAll);
    if (i < row) sum(i, static_cast<int>(row - i));
  }

  PLIMSOLL_INLINE void map_columns(const float* from, float* to) const {
    if (image_.run > 1) {
      for (int64_t o = 0; o < columns_.result; ++o) map_run(from, columns_.of(o), to + o * image_.run);
      return;
    }
    switch (count_) {
      case 1: return map_elements<1>(from, to);
      case 2: return map_elements<2>(from, to);
      case 3: return map_elements<3>(from, to);
      case 4: return map_elements<4>(from, to);
      case 5: return map_elements<5>(from, to);
      case 6: return map_elements<6>(from, to);
      case 8: return map_elements<8>(from, to);
      default: break;
    }
    for (int64_t o = 0; o < columns_.result; ++o) {
      float sum = 0;
      for (const LineMap::Entry& entry : columns_.of(o)) sum += entry.weight * from[entry.at];
      to[o] = sum;
    }
  }
  template <int kCount>
  PLIMSOLL_INLINE void map_elements(const float* from, float* to) const {
    const LineMap::Entry* entry = columns_.entries.data();
    for (int64_t o = 0; o < columns_.result; ++o, entry += kCount) {
      float sum = entry[0].weight * from[entry[0].at];
      for (int k = 1; k < kCount; ++k) sum += entry[k].weight * from[entry[k].at];
      to[o] = sum;
    }
  }
  PLIMSOLL_INLINE void map_run(const float* from, std::span<const LineMap::Entry> entries, float* to) const {
    const int64_t run = image_.run;
    const auto sum = [&](int64_t i, auto n) {
      f32x16 v{};
      for (const LineMap::Entry& entry : entries) v += splat(entry.weight) * load(from + entry.at * run + i, n);
      store(to + i, v, n);
    };
    int64_t i = 0;
    for (; i + kLanes <= run; i += kLanes) sum(i, kAll);
    if (i < run) sum(i, static_cast<int>(run - i));
  }

  Planes image_;  // of the source
  LineMap rows_, columns_;
  int64_t room_ = 0;   // floats of the workspace, for each part
  int64_t count_ = 0;  // of entries for each element of a row; 0: not the same everywhere
};

template <bool kBackward>
class ResizeKernel final : public SeparableMap {
 public:
  ResizeKernel(const Graph& graph, const Op& op, int threads)
      : SeparableMap(graph, op, threads, map(graph, op, true), map(graph, op, false)) {}

 private:
  static LineMap map(const Graph& graph, const Op& op, bool rows) {
    const Shape& x = graph.tensor(kBackward ? op.outputs[0] : op.inputs[0]).shape;
    const Resize resize = read_resize(op.attributes, {x[2], x[3]});
    const LineMap forward = resize_map(resize, rows ? resize.h : resize.w);
    return kBackward ? transposed(forward) : forward;
  }
};

template <bool kBackward>
class AdaptiveAverage final : public SeparableMap {
 public:
  AdaptiveAverage(const Graph& graph, const Op& op, int threads)
      : SeparableMap(graph, op, threads, map(graph, op, 2), map(graph, op, 3)) {}

 private:
  static LineMap map(const Graph& graph, const Op& op, size_t dimension) {
    const int64_t in = graph.tensor(op.inputs[0]).shape[dimension], out = graph.tensor(op.outputs[0]).shape[dimension];
    return kBackward ? transposed(average_map(out, in)) : average_map(in, out);
  }
};

// Windows of plain images are searched element by element, the others sixteen channels at once.
class AdaptiveMax final : public OwnKernel {
 public:
  AdaptiveMax(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        x_(planes_of(graph.tensor(op.inputs[0]))),
        y_(planes_of(graph.tensor(op.outputs[0]))) {
    require_one_layout(graph, op, graph.tensor(op.outputs[0]).shape);
    for (int64_t w = 0; w < y_.w; ++w) columns_.push_back(adaptive_window(x_.w, y_.w, w));
  }

  void run() override {
    for_each_part(parts_, [&](int part) {
      const Range range = share(y_.planes * y_.h, part, parts_);
      for (int64_t i = range.begin; i < range.end; ++i) {
        const float* x = input(0) + i / y_.h * x_.h * x_.w * x_.run;
        const AdaptiveWindow rows = adaptive_window(x_.h, y_.h, i % y_.h);
        for (int64_t w = 0; w < y_.w; ++w) {
          const AdaptiveWindow columns = columns_[w];
          const int64_t at = (i * y_.w + w) * y_.run;
          if (x_.run == 1) {
            find(x, rows, columns, output(0)[at], output<int32_t>(1)[at]);
            continue;
          }
          int64_t c = 0;
          for (; c + kLanes <= x_.run; c += kLanes) find_lanes(x + c, rows, columns, at + c, kAll);
          if (c < x_.run) find_lanes(x + c, rows, columns, at + c, static_cast<int>(x_.run - c));
        }
      }
    });
  }

 private:
  void find(const float* x, AdaptiveWindow rows, AdaptiveWindow columns, float& y, int32_t& index) const {
    int64_t best = rows.first * x_.w + columns.first;
    float most = x[best];
    for (int64_t h = rows.first; h < rows.last; ++h) {
      for (int64_t at = h * x_.w + columns.first; at < h * x_.w + columns.last; ++at) {
        if (!(x[at] > most) && !std::isnan(x[at])) continue;
        most = x[at];
        best = at;
      }
    }
    y = most;
    index = static_cast<int32_t>(best);
  }

  template <class Count>
  PLIMSOLL_INLINE void find_lanes(const float* x, AdaptiveWindow rows, AdaptiveWindow columns, int64_t to,
                                  Count n) const {
    const int64_t first = rows.first * x_.w + columns.first;
    f32x16 most = load(x + first * x_.run, n);
    i32x16 best = splat(static_cast<int32_t>(first));
    for (int64_t h = rows.first; h < rows.last; ++h) {
      for (int64_t at = h * x_.w + columns.first; at < h * x_.w + columns.last; ++at) {
        const f32x16 v = load(x + at * x_.run, n);
        const i32x16 wins = (v > most) | (v != v);
        most = choose(wins, v, most);
        best = choose(wins, splat(static_cast<int32_t>(at)), best);
      }
    }
    store(output(0) + to, most, n);
    store(output(1) + to, bits_as<f32x16>(best), n);
  }

  Planes x_, y_;
  std::vector<AdaptiveWindow> columns_;  // of x, by column of y
};

class AdaptiveMaxBackward final : public OwnKernel {
 public:
  AdaptiveMaxBackward(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        x_(planes_of(graph.tensor(op.outputs[0]))),
        y_(planes_of(graph.tensor(op.inputs[0]))) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
  }

  // A window's winner lies in its plane, in its place of the run.
  void run() override {
    const int64_t x_plane = x_.h * x_.w * x_.run, y_plane = y_.h * y_.w * y_.run;
    for_each_part(parts_, [&](int part) {
      const Range range = share(y_.planes, part, parts_);
      for (int64_t p = range.begin; p < range.end; ++p) {
        const float* dy = input(0) + p * y_plane;
        const int32_t* index = input<int32_t>(1) + p * y_plane;
        float* dx = output(0) + p * x_plane;
        std::memset(dx, 0, x_plane * sizeof(float));
        for (int64_t i = 0; i < y_plane; i += y_.run) {
          for (int64_t c = 0; c < y_.run; ++c) dx[index[i + c] * x_.run + c] += dy[i + c];
        }
      }
    });
  }

 private:
  Planes x_, y_;
};

}  // namespace

std::vector<NamedFactory> resize_kernels() {
  return {{"AdaptiveAvgPoolForward", {own_specs, make_own<AdaptiveAverage<false>>}},
          {"AdaptiveAvgPoolBackward", {own_specs, make_own<AdaptiveAverage<true>>}},
          {"AdaptiveMaxPoolForward", {own_specs, make_own<AdaptiveMax>}},
          {"AdaptiveMaxPoolBackward", {own_specs, make_own<AdaptiveMaxBackward>}},
          {"ResizeForward", {own_specs, make_own<ResizeKernel<false>>}},
          {"ResizeBackward", {own_specs, make_own<ResizeKernel<true>>}}};
}

}  // namespace plimsoll::cpu
