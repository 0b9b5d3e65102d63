// Concat, Slice and SliceBackward. Most are copies of runs: the storage, whatever its order, is rows of which each tensor
// has a piece. Only blocked channels that do not begin or end with a block have to be moved between lanes.
//
//   two blocks of the source   [ . . . a b c | d e . . . . ]       one block of the result, lanes lo..hi from it:
//                                    |-- window --|                 [ existing | a b c d e | zeros ]
#include <fmt/format.h>

#include <cstring>

#include "device/cpu/own.h"
#include "device/cpu/own_move.h"
#include "device/cpu/own_vector.h"
#include "ops/move.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

// What one tensor gives to the result: positions [from, from + count) of its axis, to be found at `to`. Without a tensor:
// zeros.
struct Piece {
  int64_t length = 0;  // of the source's axis
  int64_t from = 0, to = 0, count = 0;
  bool zeros = false;
  const float* data = nullptr;
  // The same as elements of a row of the storage: where it is in the result's, how long, and where in the source's.
  int64_t at = 0, size = 0, source_row = 0, source_at = 0;
};

struct Geometry {
  int64_t rows = 1, run = 1;  // the storage is rows x axis x run
  bool lanes = false;         // blocked channels
};

Geometry geometry(const Tensor& tensor, size_t axis) {
  const Image image = image_of(tensor);
  const Shape& shape = tensor.shape;
  Shape order(shape.begin(), shape.end());
  std::vector<size_t> dims(shape.size());
  for (size_t d = 0; d < dims.size(); ++d) dims[d] = d;
  Geometry g;
  if (!tensor.layout.is_plain() && image.order == Image::Order::channels_last) dims = {0, 2, 3, 1};
  if (image.order == Image::Order::blocked) {
    g.lanes = axis == 1;
    g.run = 16;
    order[1] = image.blocks();
  }
  bool after = false;
  for (size_t d : dims) {
    if (d == axis) {
      after = true;
    } else {
      (after ? g.run : g.rows) *= order[d];
    }
  }
  return g;
}

PLIMSOLL_INLINE void copy(float* to, const float* from, int64_t count) {
  if (count > 4096) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  if (i < count) store(to + i, load(from + i, static_cast<int>(count - i)), static_cast<int>(count - i));
}

PLIMSOLL_INLINE void clear(float* to, int64_t count) {
  if (count > kLanes) {
    std::memset(to, 0, count * sizeof(float));
  } else {
    store(to, f32x16{}, static_cast<int>(count));
  }
}

constexpr int64_t kFewElements = 4;  // of a row

class Join : public OwnKernel {
 public:
  void run() override {
    size_t next = 0;
    for (Piece& piece : pieces_) piece.data = piece.zeros ? nullptr : input(next++);
    if (geometry_.lanes && !whole_blocks_) return move_lanes();
    const int64_t row = run_of(length_);
    for (Piece& piece : pieces_) {
      piece.at = run_of(piece.to);
      piece.size = run_of(piece.count);
      piece.source_row = run_of(piece.length);
      piece.source_at = run_of(piece.from);
    }
    for_each_part(parts_, [&](int part) {
      const Range range = share(geometry_.rows * row, part, parts_, geometry_.rows >= 8 * parts_ ? row : kLanes);
      if (row <= kFewElements && range.begin % row == 0 && range.end % row == 0) {
        const Range rows{range.begin / row, range.end / row};
        for (const Piece& piece : pieces_) copy_columns(piece, rows, row);
        return;
      }
      for (int64_t r = range.begin / row; r * row < range.end; ++r) {
        for (const Piece& piece : pieces_) copy_piece(piece, r, row, range);
      }
    });
  }

 protected:
  Join(const Graph& graph, const Op& op, int threads, std::vector<Piece> pieces)
      : OwnKernel(graph, op, threads), pieces_(std::move(pieces)) {
    const size_t axis = op.attributes.integer("axis");
    const Tensor& y = graph.tensor(op.outputs[0]);
    geometry_ = geometry(y, axis);
    image_ = image_of(y);
    length_ = y.shape[axis];
    for (const Piece& piece : pieces_) {
      const bool ends = piece.to + piece.count == length_ && piece.from + piece.count == piece.length;
      if (piece.from % 16 != 0 || piece.to % 16 != 0 || (piece.count % 16 != 0 && !ends)) whole_blocks_ = false;
    }
    for (TensorId id : op.inputs) {
      const Tensor& x = graph.tensor(id);
      if (x.dtype != DType::f32 && x.dtype != DType::i32) {
        throw Error(ErrorCode::unsupported, fmt::format("op '{}': tensor '{}' is {}; elements of four bytes are joined",
                                                        op.name, x.name, to_string(x.dtype)));
      }
      if (x.layout == y.layout || (x.layout.is_plain() && y.layout.is_plain())) continue;
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}' wants its tensors in one layout, but '{}' lies in '{}' and "
                              "'{}' in '{}'",
                              op.name, x.name, x.layout.tag, y.name, y.layout.tag));
    }
  }

 private:
  // Elements of a row of the storage that so many positions of the axis are, the last block of channels a whole one.
  int64_t run_of(int64_t positions) const {
    const int64_t unit = geometry_.lanes ? 16 : 1;
    return (positions + unit - 1) / unit * geometry_.run;
  }

  // What a piece gives to rows of few elements, one after the other: parts of complex numbers, coordinates.
  void copy_columns(const Piece& piece, Range rows, int64_t row) const {
    float* const to = output(0) + piece.at;
    const float* const from = piece.zeros ? nullptr : piece.data + piece.source_at;
    for (int64_t i = 0; i < piece.size; ++i) {
      if (piece.zeros) {
        for (int64_t r = rows.begin; r < rows.end; ++r) to[r * row + i] = 0;
      } else {
        for (int64_t r = rows.begin; r < rows.end; ++r) to[r * row + i] = from[r * piece.source_row + i];
      }
    }
  }

  // The part of piece `piece` of row `r` that lies in `range` of the result's storage.
  PLIMSOLL_INLINE void copy_piece(const Piece& piece, int64_t r, int64_t row, Range range) const {
    const int64_t begin = r * row + piece.at, end = begin + piece.size;
    const int64_t first = std::max(begin, range.begin), last = std::min(end, range.end);
    if (first >= last) return;
    if (piece.zeros) return clear(output(0) + first, last - first);
    copy(output(0) + first, piece.data + r * piece.source_row + piece.source_at + (first - begin), last - first);
  }

  void move_lanes() const {
    for_each_part(parts_, [&](int part) {
      const Range blocks = share(image_.images * image_.blocks(), part, parts_);
      for (int64_t b = blocks.begin; b < blocks.end; ++b) {
        for (const Piece& piece : pieces_) fill_block(piece, b / image_.blocks(), b % image_.blocks());
      }
    });
  }

  void fill_block(const Piece& piece, int64_t n, int64_t block) const {
    const int lo = static_cast<int>(std::max<int64_t>(0, piece.to - block * 16));
    const int hi = static_cast<int>(std::min<int64_t>(16, piece.to + piece.count - block * 16));
    if (lo >= hi) return;
    if (piece.zeros) return fill_zeros(n, block, lo);
    const int64_t source =
        piece.from + block * 16 - piece.to;  // the source's channel for lane 0, maybe before its first
    const int64_t source_blocks = (piece.length + 15) / 16;
    const int64_t left = (source + 16) / 16 - 1;  // rounded down: source is above -16
    const int shift = static_cast<int>(source - left * 16);
    const int64_t plane = image_.pixels * 16;
    const float* sources = piece.data + n * source_blocks * plane;
    const float* a = left >= 0 ? sources + left * plane : nullptr;
    const float* b = shift + hi > 16 ? sources + (left + 1) * plane : nullptr;
    float* to = output(0) + (n * image_.blocks() + block) * plane;
    const uint32_t kept = (1u << lo) - 1;  // lanes of the pieces before
    const f32x16 zeros{};
    for (int64_t i = 0; i < plane; i += 16) {
      f32x16 lanes = window(a != nullptr ? load(a + i) : zeros, b != nullptr ? load(b + i) : zeros, shift);
      if (hi < 16) lanes = first_lanes(lanes, hi);
      if (lo > 0) lanes = merge(kept, load(to + i), lanes);
      store(to + i, lanes);
    }
  }
  void fill_zeros(int64_t n, int64_t block, int lo) const {  // from lane lo on: what lies behind writes its own later
    const int64_t plane = image_.pixels * 16;
    float* to = output(0) + (n * image_.blocks() + block) * plane;
    for (int64_t i = 0; i < plane; i += 16) store(to + i, lo > 0 ? first_lanes(load(to + i), lo) : f32x16{});
  }
  PLIMSOLL_INLINE static f32x16 merge(uint32_t bits, f32x16 where_set, f32x16 elsewhere) {
    return bits_as<f32x16>(
        u32x16(bits_as<u32x16>(keep_lanes(bits, where_set)) | bits_as<u32x16>(keep_lanes(~bits & 0xFFFF, elsewhere))));
  }

  std::vector<Piece> pieces_;
  Geometry geometry_;
  Image image_;
  int64_t length_ = 0;
  bool whole_blocks_ = true;
};

class Concat : public Join {
 public:
  Concat(const Graph& graph, const Op& op, int threads) : Join(graph, op, threads, pieces(graph, op)) {}

 private:
  static std::vector<Piece> pieces(const Graph& graph, const Op& op) {
    const size_t axis = op.attributes.integer("axis");
    std::vector<Piece> result;
    int64_t to = 0;
    for (TensorId id : op.inputs) {
      const int64_t length = graph.tensor(id).shape[axis];
      result.push_back({.length = length, .to = to, .count = length});
      to += length;
    }
    return result;
  }
};

class Slice : public Join {
 public:
  Slice(const Graph& graph, const Op& op, int threads) : Join(graph, op, threads, {piece(graph, op)}) {}

 private:
  static Piece piece(const Graph& graph, const Op& op) {
    const size_t axis = op.attributes.integer("axis");
    return {.length = graph.tensor(op.inputs[0]).shape[axis],
            .from = op.attributes.integer("begin"),
            .count = op.attributes.integer("size")};
  }
};

class SliceBackward : public Join {
 public:
  SliceBackward(const Graph& graph, const Op& op, int threads) : Join(graph, op, threads, pieces(graph, op)) {}

 private:
  static std::vector<Piece> pieces(const Graph& graph, const Op& op) {
    const int64_t begin = op.attributes.integer("begin"), length = op.attributes.integer("length");
    const int64_t size = graph.tensor(op.inputs[0]).shape[op.attributes.integer("axis")], end = begin + size;
    std::vector<Piece> result;
    if (begin > 0) result.push_back({.length = begin, .count = begin, .zeros = true});
    result.push_back({.length = size, .to = begin, .count = size});
    if (end < length) result.push_back({.length = length - end, .to = end, .count = length - end, .zeros = true});
    return result;
  }
};

// The same for elements of any width, and in steps: one run an element of the axis.
class StepJoin final : public OwnKernel {
 public:
  StepJoin(const Graph& graph, const Op& op, int threads) : OwnKernel(graph, op, threads, AnyDType{}) {
    const size_t axis = op.attributes.integer("axis");
    const Tensor& y = graph.tensor(op.outputs[0]);
    const int64_t begin = op.attributes.integer("begin", 0), step = op.attributes.integer("step", 1);
    const Geometry g = geometry(y, axis);
    width_ = element_width(y);
    rows_ = g.rows;
    run_ = g.run;
    y_length_ = y.shape[axis];
    bytes_ = y.bytes().count;
    clears_ = op.type->name == "SliceBackward";
    int64_t to = 0;
    for (TensorId id : op.inputs) {
      const Tensor& x = graph.tensor(id);
      if (geometry(x, axis).run != run_ || geometry(x, axis).rows != rows_ ||
          x.layout.is_plain() != y.layout.is_plain()) {
        throw Error(
            ErrorCode::unsupported,
            fmt::format("op '{}' ({}) wants its tensors in one layout without blocks, but '{}' lies in '{}' and "
                        "'{}' in '{}'",
                        op.name, op.type->name, x.name, x.layout.tag, y.name, y.layout.tag));
      }
      const int64_t length = x.shape[axis];
      if (op.type->name == "Slice") strips_.push_back({length, begin, step, 0, 1, y_length_});
      if (op.type->name == "SliceBackward") strips_.push_back({length, 0, 1, begin, step, length});
      if (op.type->name == "Concat") strips_.push_back({length, 0, 1, to, 1, length});
      to += length;
    }
  }

  void run() override {
    if (clears_) {
      for_each_part(parts_, [&](int part) {
        const Range range = share(bytes_, part, parts_, 4096);
        std::memset(output<std::byte>(0) + range.begin, 0, range.end - range.begin);
      });
    }
    with_width(width_, [&](auto zero) {
      for (size_t i = 0; i < strips_.size(); ++i) move(strips_[i], input<decltype(zero)>(i));
    });
  }

 private:
  struct Strip {
    int64_t length;  // of the source's axis
    int64_t from, from_step, to, to_step, count;
  };

  template <class T>
  void move(const Strip& strip, const T* x) const {
    T* y = output<T>(0);
    for_each_part(parts_, [&](int part) {
      const Range range = share(rows_ * strip.count, part, parts_);
      int64_t row = range.begin / strip.count, k = range.begin % strip.count;
      for (int64_t left = range.end - range.begin; left > 0; ++row, k = 0) {
        const int64_t count = std::min(left, strip.count - k);
        const T* from = x + (row * strip.length + strip.from + k * strip.from_step) * run_;
        T* to = y + (row * y_length_ + strip.to + k * strip.to_step) * run_;
        move_positions(from, strip.from_step * run_, to, strip.to_step * run_, count);
        left -= count;
      }
    });
  }
  template <class T>
  PLIMSOLL_INLINE void move_positions(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t count) const {
    const int64_t bytes = run_ * static_cast<int64_t>(sizeof(T));
    if (from_step == run_ && to_step == run_) {
      copy_run(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from), count * bytes);
    } else if (run_ == 1) {
      for (int64_t k = 0; k < count; ++k) to[k * to_step] = from[k * from_step];
    } else {
      for (int64_t k = 0; k < count; ++k)
        copy_run(reinterpret_cast<std::byte*>(to + k * to_step),
                 reinterpret_cast<const std::byte*>(from + k * from_step), bytes);
    }
  }

  int64_t width_ = 4, rows_ = 1, run_ = 1, y_length_ = 1, bytes_ = 0;
  bool clears_ = false;
  std::vector<Strip> strips_;
};

// Four bytes and no steps: as all images do. The rest takes no blocks.
bool is_plain_join(const Graph& graph, const Op& op) {
  return element_width(graph.tensor(op.outputs[0])) == 4 && op.attributes.integer("step", 1) == 1;
}

std::vector<KernelSpec> join_specs(const Graph& graph, const Op& op, LayoutFamily family, int threads) {
  const bool any = is_plain_join(graph, op) || family == LayoutFamily::channels_last;
  if (any && graph.tensor(op.outputs[0]).dtype != DType::f64) return own_specs(graph, op, family, threads);
  return own_specs_row_major(graph, op, family, threads);
}

template <class K>
std::unique_ptr<Kernel> make_join(const Graph& graph, const Op& op, std::string_view kernel, int threads) {
  require_own(op, kernel);
  if (is_plain_join(graph, op)) return std::make_unique<K>(graph, op, threads);
  return std::make_unique<StepJoin>(graph, op, threads);
}

}  // namespace

std::vector<NamedFactory> concat_kernels() {
  return {{"Concat", {join_specs, make_join<Concat>}},
          {"Slice", {join_specs, make_join<Slice>}},
          {"SliceBackward", {join_specs, make_join<SliceBackward>}}};
}

}  // namespace plimsoll::cpu
