// Permute, as few loops as will do (ops/move.h). Three cases: one run, which is a plain copy; runs that both sides share;
// and transposes, in tiles that are read and written by whole cache lines:
//
//   source, b innermost             target, a innermost
//   a0  [b0 b1 b2 ... b15]          b0  [a0 a1 a2 ... a15]      a tile is turned in registers: log2(lanes) times,
//   a1  [b0 b1 b2 ... b15]    ->    b1  [a0 a1 a2 ... a15]      row i and row i + lanes/2 are interleaved
#include <algorithm>
#include <cstring>
#include <utility>

#include "device/cpu/own.h"
#include "device/cpu/own_move.h"
#include "device/cpu/own_vector.h"
#include "ops/move.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

// Vectors of a tile's row: a register, of bytes 16, since a tile is square and has to stay in registers.
#ifdef __AVX512F__
constexpr int kRegister = 64;
#else
constexpr int kRegister = 32;
#endif
template <class T>
struct TileRow;
template <>
struct TileRow<uint8_t> {
  typedef uint8_t V __attribute__((vector_size(16)));
};
template <>
struct TileRow<uint32_t> {
  typedef uint32_t V __attribute__((vector_size(kRegister)));
};
template <>
struct TileRow<uint64_t> {
  typedef uint64_t V __attribute__((vector_size(kRegister)));
};
template <class T>
inline constexpr int64_t kTileSide = sizeof(typename TileRow<T>::V) / sizeof(T);

template <class V, size_t... I>
PLIMSOLL_INLINE V interleave_low(V a, V b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, (I % 2 == 0 ? I / 2 : sizeof...(I) + I / 2)...);
}
template <class V, size_t... I>
PLIMSOLL_INLINE V interleave_high(V a, V b, std::index_sequence<I...>) {
  constexpr size_t n = sizeof...(I);
  return __builtin_shufflevector(a, b, (I % 2 == 0 ? n / 2 + I / 2 : n + n / 2 + I / 2)...);
}

template <class T>
PLIMSOLL_INLINE void turn_tile(typename TileRow<T>::V* rows) {
  constexpr int n = static_cast<int>(kTileSide<T>);
  constexpr std::make_index_sequence<static_cast<size_t>(n)> lanes{};
  typename TileRow<T>::V other[n];
  for (int turned = 1; turned < n; turned *= 2) {
    for (int i = 0; i < n / 2; ++i) {
      other[2 * i] = interleave_low(rows[i], rows[i + n / 2], lanes);
      other[2 * i + 1] = interleave_high(rows[i], rows[i + n / 2], lanes);
    }
    for (int i = 0; i < n; ++i) rows[i] = other[i];
  }
}

// Rows of `from` are `from_row` elements apart, and become columns of `to`.
template <class T, bool kPastCaches>
PLIMSOLL_INLINE void move_tile(const T* from, int64_t from_row, T* to, int64_t to_row) {
  constexpr int64_t n = kTileSide<T>;
  typename TileRow<T>::V rows[n];
  for (int64_t i = 0; i < n; ++i) std::memcpy(&rows[i], from + i * from_row, sizeof rows[i]);
  turn_tile<T>(rows);
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (kPastCaches && sizeof rows[i] == kRegister) {
      stream(reinterpret_cast<float*>(to + i * to_row), rows[i]);
    } else {
      std::memcpy(to + i * to_row, &rows[i], sizeof rows[i]);
    }
  }
}

// A few rows become narrow columns: element by element, since masked stores are slow on some processors.
template <class T, int64_t kRows>
PLIMSOLL_INLINE void interleave_rows(const T* from, int64_t from_row, T* to, int64_t to_row, int64_t columns) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < kRows; ++r) to[c * to_row + r] = from[r * from_row + c];
  }
}

// The same for a tile at the edge.
template <class T>
PLIMSOLL_INLINE void move_edge(const T* from, int64_t from_row, T* to, int64_t to_row, int64_t rows, int64_t columns) {
  constexpr int64_t n = kTileSide<T>;
  switch (rows) {
    case 1: return interleave_rows<T, 1>(from, from_row, to, to_row, columns);
    case 2: return interleave_rows<T, 2>(from, from_row, to, to_row, columns);
    case 3: return interleave_rows<T, 3>(from, from_row, to, to_row, columns);
    case 4: return interleave_rows<T, 4>(from, from_row, to, to_row, columns);
    default: break;
  }
  typename TileRow<T>::V tile[n] = {};
  for (int64_t i = 0; i < rows; ++i) std::memcpy(&tile[i], from + i * from_row, columns * sizeof(T));
  turn_tile<T>(tile);
  for (int64_t i = 0; i < columns; ++i) std::memcpy(to + i * to_row, &tile[i], rows * sizeof(T));
}

constexpr int64_t kSide = 64;             // of a block of tiles
constexpr int64_t kPiece = 64 * 1024;     // bytes of a run that one thread copies at once
constexpr int64_t kPastCaches = 8 << 20;  // targets of more bytes are written past the caches

class Permute : public OwnKernel {
 public:
  Permute(const Graph& graph, const Op& op, int threads) : OwnKernel(graph, op, threads, AnyDType{}) {
    const Tensor &x = graph.tensor(op.inputs[0]), &y = graph.tensor(op.outputs[0]);
    width_ = element_width(x);
    bytes_ = y.bytes().count;
    outer_ = permute_loops(x, y, op.attributes.integers("dims"));
    column_ = outer_.back();
    outer_.pop_back();
    if (width_ == 4 && column_.from == 1 && column_.size == 2 && !outer_.empty()) take_pairs();
    if (column_.from != 1) {
      const auto run = std::find_if(outer_.begin(), outer_.end(), [](const MoveLoop& loop) { return loop.from == 1; });
      row_ = *run;
      outer_.erase(run);
    }
    require_few_loops(op, outer_);
    turns_ = turns_of(outer_);
    past_caches_ =
        bytes_ > kPastCaches && row_.to * width_ % 64 == 0 &&
        std::all_of(outer_.begin(), outer_.end(), [&](const MoveLoop& loop) { return loop.to * width_ % 64 == 0; });
  }

  void run() override {
    if (input<std::byte>(0) == output<std::byte>(0)) return;  // only dimensions of size one change their places
    if (column_.from == 1) return copy_runs();
    const bool aligned = reinterpret_cast<uintptr_t>(output<std::byte>(0)) % 64 == 0;
    with_width(width_, [&](auto zero) {
      using T = decltype(zero);
      past_caches_&& aligned ? transpose<T, true>() : transpose<T, false>();
    });
  }

 private:
  // Two neighbours that stay together, as the parts of complex numbers do, are one element.
  void take_pairs() {
    width_ *= 2;
    for (MoveLoop& loop : outer_) {
      loop.from /= 2;
      loop.to /= 2;
    }
    column_ = outer_.back();
    outer_.pop_back();
  }

  void copy_runs() const {
    const int64_t run = column_.size * width_, pieces = (run + kPiece - 1) / kPiece;
    for_each_part(parts_, [&](int part) {
      const Range range = share(turns_ * pieces, part, parts_);
      int64_t piece = range.begin % pieces;
      Odometer at(outer_, range.begin / pieces);
      for (int64_t i = range.begin; i < range.end; ++i) {
        const int64_t begin = piece * kPiece;
        copy_run(output<std::byte>(0) + at.to * width_ + begin, input<std::byte>(0) + at.from * width_ + begin,
                 std::min(kPiece, run - begin));
        if (++piece == pieces) {
          piece = 0;
          at.next();
        }
      }
    });
  }

  template <class T, bool kStream>
  void transpose() const {
    const int64_t rows = (row_.size + kSide - 1) / kSide, columns = (column_.size + kSide - 1) / kSide;
    for_each_part(parts_, [&](int part) {
      const Range range = share(turns_ * rows * columns, part, parts_);
      int64_t column = range.begin % columns, row = range.begin / columns % rows;
      Odometer at(outer_, range.begin / columns / rows);
      for (int64_t i = range.begin; i < range.end; ++i) {
        move_block<T, kStream>(input<T>(0) + at.from, output<T>(0) + at.to, column * kSide, row * kSide);
        if (++column < columns) continue;
        column = 0;
        if (++row < rows) continue;
        row = 0;
        at.next();
      }
      if (kStream) finish_streaming();
    });
  }

  template <class T, bool kStream>
  void move_block(const T* from, T* to, int64_t a, int64_t b) const {
    constexpr int64_t n = kTileSide<T>;
    const int64_t a_end = std::min(column_.size, a + kSide), b_end = std::min(row_.size, b + kSide);
    const T* block = from + a * column_.from + b;
    int64_t block_row = column_.from;
    alignas(64) T copy[sizeof(T) == 1 ? kSide * kSide : 1];
    if constexpr (sizeof(T) == 1) {  // a tile's row is less than a cache line: each line is read once
      for (int64_t i = 0; i < a_end - a; ++i) std::memcpy(copy + i * kSide, block + i * block_row, b_end - b);
      block = copy;
      block_row = kSide;
    }
    for (int64_t j = b; j < b_end; j += n) {
      for (int64_t i = a; i < a_end; i += n) {
        const T* source = block + (i - a) * block_row + (j - b);
        T* target = to + j * row_.to + i;
        if (i + n <= a_end && j + n <= b_end) {
          move_tile<T, kStream>(source, block_row, target, row_.to);
        } else {
          move_edge(source, block_row, target, row_.to, std::min(n, a_end - i), std::min(n, b_end - j));
        }
      }
    }
  }

  int64_t width_ = 4, bytes_ = 0;
  std::vector<MoveLoop> outer_;
  MoveLoop column_, row_;  // innermost in the target; and in the source, where that is another one
  int64_t turns_ = 1;      // of the outer loops
  bool past_caches_ = false;
};

// Where images lie channels last, either side may be such an image: the permutation may then be a plain copy.
std::vector<KernelSpec> permute_specs(const Graph& graph, const Op& op, LayoutFamily family, int) {
  std::vector<KernelSpec> specs = {{.name = "own", .inputs = {{}}, .outputs = {{}}}};
  if (family != LayoutFamily::channels_last || graph.tensor(op.inputs[0]).shape.size() != 4) return specs;
  const Layout last = family_layout(family, 4);
  specs.push_back({.name = "own:to_last", .inputs = {{}}, .outputs = {last}});
  specs.push_back({.name = "own:from_last", .inputs = {last}, .outputs = {{}}});
  specs.push_back({.name = "own:last", .inputs = {last}, .outputs = {last}});
  return specs;
}

std::unique_ptr<Kernel> make_permute(const Graph& graph, const Op& op, std::string_view kernel, int threads) {
  if (kernel != "own:to_last" && kernel != "own:from_last" && kernel != "own:last") require_own(op, kernel);
  return std::make_unique<Permute>(graph, op, threads);
}

}  // namespace

std::vector<NamedFactory> permute_kernels() { return {{"Permute", {permute_specs, make_permute}}}; }

}  // namespace plimsoll::cpu
