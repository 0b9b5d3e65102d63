// Concat and Slice. Most are copies of runs: the storage, whatever its order, is rows of which each tensor has a piece.
// Only blocked channels that do not begin or end with a block have to be moved between lanes.
//
//   two blocks of the source   [ . . . a b c | d e . . . . ]       one block of the result, lanes lo..hi from it:
//                                    |-- window --|                 [ existing | a b c d e | zeros ]
#include <fmt/format.h>

#include <cstring>

#include "device/cpu/own.h"
#include "device/cpu/own_vector.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

// What one tensor gives to the result: positions [from, from + count) of its axis, to be found at `to`.
struct Piece {
  int64_t length = 0;  // of the source's axis
  int64_t from = 0, to = 0, count = 0;
  const float* data = nullptr;
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

// Sixteen of the 32 lanes of a and b, from lane `first` on.
PLIMSOLL_INLINE f32x16 window(f32x16 a, f32x16 b, int first) {
#ifdef __AVX512F__
  const __m512i index = _mm512_add_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                         _mm512_set1_epi32(first));
  return f32x16(_mm512_permutex2var_ps(__m512(a), index, __m512(b)));
#else
  float lanes[32];
  store(lanes, a);
  store(lanes + 16, b);
  return load(lanes + first);
#endif
}

class Join : public OwnKernel {
 public:
  void run() override {
    for (size_t i = 0; i < pieces_.size(); ++i) pieces_[i].data = input(i);
    if (geometry_.lanes && !whole_blocks_) return move_lanes();
    const int64_t unit = geometry_.lanes ? 16 : 1;  // of the axis, to a step of it in storage
    const int64_t row = (length_ + unit - 1) / unit * geometry_.run;
    for_each_part(parts_, [&](int part) {
      const Range range = share(geometry_.rows * row, part, parts_, geometry_.rows >= 8 * parts_ ? row : kLanes);
      for (int64_t r = range.begin / row; r * row < range.end; ++r) {
        for (const Piece& piece : pieces_) copy_piece(piece, r, row, unit, range);
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
  // The part of piece `piece` of row `r` that lies in `range` of the result's storage.
  PLIMSOLL_INLINE void copy_piece(const Piece& piece, int64_t r, int64_t row, int64_t unit, Range range) const {
    const int64_t begin = r * row + piece.to / unit * geometry_.run;
    const int64_t end = begin + (piece.count + unit - 1) / unit * geometry_.run;
    const int64_t first = std::max(begin, range.begin), last = std::min(end, range.end);
    if (first >= last) return;
    const int64_t source_row = (piece.length + unit - 1) / unit * geometry_.run;
    copy(output(0) + first, piece.data + r * source_row + piece.from / unit * geometry_.run + (first - begin),
         last - first);
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

}  // namespace

std::vector<NamedFactory> concat_kernels() {
  return {{"Concat", {own_specs, make_own<Concat>}}, {"Slice", {own_specs, make_own<Slice>}}};
}

}  // namespace plimsoll::cpu
