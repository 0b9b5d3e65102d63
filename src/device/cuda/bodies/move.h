// Elements of 1, 4 or 8 bytes in other places: permutations, parts of tensors, rows and elements by index. An index out
// of range gives ones in every bit, which is NaN: a kernel cannot refuse it. Where elements stay together, several of them
// are moved as one (movement.h).
#pragma once

#include "device/cuda/bodies/common.h"

namespace plimsoll::cuda {

inline constexpr int kMostDimensions = 8;

struct alignas(16) Sixteen {  // bytes
  uint32_t words[4];
};
template <class T>
PLIMSOLL_BODY T ones() {
  if constexpr (std::is_same_v<T, Sixteen>)
    return {{~0U, ~0U, ~0U, ~0U}};
  else
    return static_cast<T>(~T{0});
}

// Nested loops, outermost first, and how far a turn of each leads.
struct Walk {
  int32_t rank = 0;
  Divisor size[kMostDimensions];
  int64_t step[kMostDimensions] = {};
};
// `Index` keeps what is left of the turn, so that the compiler sees how many bits it has.
template <class Index>
PLIMSOLL_BODY int64_t walked_by(const Walk& walk, Index turn) {
  int64_t at = 0;
  for (int d = walk.rank - 1; d > 0; --d) {
    const Division here = divide(static_cast<int64_t>(turn), walk.size[d]);
    at += here.remainder * walk.step[d];
    turn = static_cast<Index>(here.quotient);
  }
  return walk.rank > 0 ? at + static_cast<int64_t>(turn) * walk.step[0] : 0;
}
PLIMSOLL_BODY int64_t walked(const Walk& walk, int64_t turn) {
  return is_narrow(turn) ? walked_by(walk, static_cast<uint32_t>(turn)) : walked_by(walk, turn);
}

// Where neither turns nor places take more than 32 bits.
PLIMSOLL_BODY uint32_t walked_narrow(const Walk& walk, uint32_t turn) {
  uint32_t at = 0;
  for (int d = walk.rank - 1; d > 0; --d) {
    const Division here = divide(static_cast<int64_t>(turn), walk.size[d]);
    at += static_cast<uint32_t>(here.remainder) * static_cast<uint32_t>(walk.step[d]);
    turn = static_cast<uint32_t>(here.quotient);
  }
  return walk.rank > 0 ? at + turn * static_cast<uint32_t>(walk.step[0]) : 0;
}

template <class T>
struct PermuteElements {
  using Kind = EachElement;
  T* to;
  const T* from;
  Walk walk;    // through the source, in the order of the target
  bool narrow;  // 32 bits hold every place
  PLIMSOLL_BODY void run(int64_t i) const {
    to[i] = from[narrow ? walked_narrow(walk, static_cast<uint32_t>(i)) : walked(walk, i)];
  }
};

// A transpose inside other loops. A thread turns a tile of four by four, so that it reads and writes sixteen bytes at
// once. 32 neighbours have eight tiles that follow each other in the target, by four in the source.
struct TransposeFours {
  using Kind = EachElement;
  float* to;
  const float* from;
  Walk from_outer, to_outer;
  int64_t rows, row_step;        // rows follow each other in the target: rows of them, so far apart in the source
  int64_t columns, column_step;  // the other way round
  Divisor row_groups, column_groups;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division lane = divide(i, 32);
    const Division by_row = divide(lane.quotient, row_groups);
    const Division by_column = divide(by_row.quotient, column_groups);
    const int64_t r = (by_row.remainder * 8 + lane.remainder % 8) * 4;
    const int64_t c = (by_column.remainder * 4 + lane.remainder / 8) * 4;
    if (r >= rows || c >= columns) return;
    const float* source = from + walked(from_outer, by_column.quotient) + r * row_step + c;
    float* target = to + walked(to_outer, by_column.quotient) + c * column_step + r;
    Four in[4];
    for (int k = 0; k < 4; ++k) in[k] = load_four(source + k * row_step);
    for (int k = 0; k < 4; ++k) store_four(target + k * column_step, {in[0].v[k], in[1].v[k], in[2].v[k], in[3].v[k]});
  }
  static PLIMSOLL_BODY int64_t groups(int64_t size, int64_t tiles) { return (size + 4 * tiles - 1) / (4 * tiles); }
};

// Rows of `length` elements between two storages with rows of other lengths: a part of a concatenation.
template <class T>
struct CopyRows {
  using Kind = EachElement;
  T* to;
  const T* from;
  Divisor length;
  int64_t to_row, from_row;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division d = divide(i, length);
    to[d.quotient * to_row + d.remainder] = from[d.quotient * from_row + d.remainder];
  }
};

// Positions begin, begin + step, ... of an axis: rows x length x inner to rows x count x inner.
template <class T>
struct TakeSteps {
  using Kind = EachElement;
  T* to;
  const T* from;
  int64_t length;
  Divisor count, inner;
  int64_t begin, step;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division element = divide(i, inner), position = divide(element.quotient, count);
    to[i] = from[(position.quotient * length + begin + position.remainder * step) * inner + element.remainder];
  }
};
// The way back, with zeros between.
template <class T>
struct SpreadSteps {
  using Kind = EachElement;
  T* to;
  const T* from;
  Divisor length;
  int64_t count;
  Divisor inner;
  int64_t begin;
  Divisor step;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division element = divide(i, inner), position = divide(element.quotient, length);
    T value{};
    if (position.remainder >= begin) {
      const Division taken = divide(position.remainder - begin, step);
      if (taken.remainder == 0 && taken.quotient < count)
        value = from[(position.quotient * count + taken.quotient) * inner + element.remainder];
    }
    to[i] = value;
  }
};

PLIMSOLL_BODY int64_t index_at(const void* indices, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(indices)[i] : static_cast<const int32_t*>(indices)[i];
}

// Index tensors of x's dimensions as one index of a row; -1 where one is out of range.
struct MakeRows {
  using Kind = EachElement;
  int64_t* rows;
  int32_t tensors;
  bool wraps;  // negative indices count from the end
  struct Of {
    const void* indices;
    bool wide;
    int64_t limit;
    Walk walk;
  } of[kMostDimensions];
  PLIMSOLL_BODY void run(int64_t i) const {
    int64_t row = 0;
    for (int k = 0; k < tensors; ++k) {
      int64_t index = index_at(of[k].indices, of[k].wide, walked(of[k].walk, i));
      if (wraps && index < 0) index += of[k].limit;
      row = row < 0 || index < 0 || index >= of[k].limit ? -1 : row * of[k].limit + index;
    }
    rows[i] = row;
  }
};

// outer x limit x inner to outer x count x inner.
template <class T>
struct TakeRows {
  using Kind = EachElement;
  T* y;
  const T* x;
  const int64_t* rows;
  int64_t limit;
  Divisor count, inner;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division element = divide(i, inner), place = divide(element.quotient, count);
    const int64_t row = rows[place.remainder];
    y[i] = row < 0 ? ones<T>() : x[(place.quotient * limit + row) * inner + element.remainder];
  }
};

// For every row of x the places that took it, as a list in their order: head, and the next of each. LinkWithinPieces links places
// of a piece, all pieces side by side; LinkPieces, a single block, links each piece to what is behind it, from the
// last to the first. Between them `next` has 2 * (how far the next place of the piece is; 0: there is none) + (whether there
// is one before).
struct TakenRows {
  static constexpr int kPiece = 512;
  const int64_t* rows;  // of places; less than 0: none
  int64_t count, padding;
  PLIMSOLL_BODY int64_t pieces() const { return (count + kPiece - 1) / kPiece; }
  PLIMSOLL_BODY int32_t at(int64_t place) const {
    return place < count && rows[place] != padding ? static_cast<int32_t>(rows[place]) : -1;
  }
};
struct LinkWithinPieces {
  using Kind = EachTile;
  static constexpr int kThreads = TakenRows::kPiece, kBlocksTogether = 2, kPhases = 0, kFinishes = 1;
  struct Shared {
    alignas(16) int32_t rows[kThreads];
  };
  struct State {};
  int32_t* next;
  TakenRows taken;
  PLIMSOLL_BODY int rounds(int64_t) const { return 0; }
  PLIMSOLL_BODY bool skips(int64_t, int) const { return true; }
  PLIMSOLL_BODY void begin(int64_t block, int thread, State&, Shared& shared) const {
    shared.rows[thread] = taken.at(block * kThreads + thread);
  }
  template <int>
  PLIMSOLL_BODY void finish(int64_t block, int thread, State&, Shared& shared) const {
    const int32_t row = shared.rows[thread];
    if (row < 0) return;
    int after = kThreads, before = 0;
    PLIMSOLL_UNROLL(8)
    for (int i = 0; i < kThreads; ++i) {
      if (shared.rows[i] != row) continue;
      if (i > thread) after = i < after ? i : after;
      if (i < thread) before = 1;
    }
    next[block * kThreads + thread] = 2 * (after < kThreads ? after - thread : 0) + before;
  }
};
struct LinkPieces {
  using Kind = EachTile;
  static constexpr int kThreads = TakenRows::kPiece, kBlocksTogether = 1, kPhases = 2, kFinishes = 0;
  struct Shared {};
  struct State {
    int32_t row, link;
  };
  int32_t* head;  // all -1 before
  int32_t* next;
  TakenRows taken;
  PLIMSOLL_BODY int rounds(int64_t) const { return static_cast<int>(taken.pieces()); }
  PLIMSOLL_BODY bool skips(int64_t, int) const { return false; }
  PLIMSOLL_BODY int64_t place(int round, int thread) const { return (taken.pieces() - 1 - round) * kThreads + thread; }
  PLIMSOLL_BODY void begin(int64_t, int thread, State& state, Shared&) const { load(0, thread, state); }
  template <int kPhase>
  PLIMSOLL_BODY void phase(int64_t, int round, int thread, State& state, Shared&) const {
    const int32_t here = static_cast<int32_t>(place(round, thread));
    if constexpr (kPhase == 0) {
      if (state.row >= 0) next[here] = state.link >= 2 ? here + state.link / 2 : head[state.row];
    } else {
      if (state.row >= 0 && state.link % 2 == 0) head[state.row] = here;
      if (round + 1 < rounds(0)) load(round + 1, thread, state);
    }
  }

 private:
  PLIMSOLL_BODY void load(int round, int thread, State& state) const {
    const int64_t here = place(round, thread);
    state.row = taken.at(here);
    state.link = state.row >= 0 ? next[here] : 0;
  }
};
struct AddRows {
  using Kind = EachElement;
  float* dx;
  const float* dy;
  const int32_t* head;
  const int32_t* next;
  Divisor limit;
  int64_t count;
  Divisor inner;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division element = divide(i, inner), place = divide(element.quotient, limit);
    float sum = 0;
    for (int32_t r = head[place.remainder]; r >= 0; r = next[r])
      sum += dy[(place.quotient * count + r) * inner + element.remainder];
    dx[i] = sum;
  }
};

// Every element has an index of its own along an axis.
template <class T>
struct GatherElements {
  using Kind = EachElement;
  T* y;
  const T* x;
  const void* indices;
  bool wide;
  int64_t limit, step;  // of x's axis
  Walk walk;            // through x, in the order of y, the axis standing still
  PLIMSOLL_BODY void run(int64_t i) const {
    const int64_t index = index_at(indices, wide, i);
    y[i] = index < 0 || index >= limit ? ones<T>() : x[walked(walk, i) + index * step];
  }
};
// A thread adds up a line along the axis; dx is zero before.
struct GatherLines {
  using Kind = EachElement;
  float* dx;
  const float* dy;
  const void* indices;
  bool wide;
  int64_t count, limit, x_step, y_step;  // along the axis
  Walk x_walk, y_walk;                   // the other dimensions
  PLIMSOLL_BODY void run(int64_t line) const {
    float* const to = dx + walked(x_walk, line);
    const int64_t from = walked(y_walk, line);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t at = from + k * y_step, index = index_at(indices, wide, at);
      if (index >= 0 && index < limit) to[index * x_step] += dy[at];
    }
  }
};

}  // namespace plimsoll::cuda
