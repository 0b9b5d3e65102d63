// Layer norm, RMS norm and group norm (ops/norm.cpp) on row-major tensors. Rows of up to 8192 elements stay in the registers of
// some threads of a block (WholeRows); others are taken by a block a row, then by a thread an element.
#pragma once

#include "device/cuda/bodies/common.h"

namespace plimsoll::cuda {

struct NormRows {
  int64_t rows = 1;
  Divisor length = 1, groups = 0, pixels = 1;  // groups 0: element i of a row has gamma[i]
  Divisor group_channels = 1;
};
PLIMSOLL_BODY int64_t scale_at(const NormRows& rows, int64_t row, int64_t i) {
  if (rows.groups == 0) return i;
  return divide(row, rows.groups).remainder * rows.group_channels + divide(i, rows.pixels).quotient;
}

struct RowMoments {
  using Kind = EachBlock;
  using Value = SumPair;
  float* mean;  // null: RMS norm
  float* rstd;
  const float* x;
  int64_t length;
  double epsilon;
  PLIMSOLL_BODY double shift(int64_t row) const { return mean != nullptr ? static_cast<double>(x[row * length]) : 0.0; }
  PLIMSOLL_BODY SumPair partial(int64_t row, int thread) const {
    const double from = shift(row);
    SumPair sum;
    PLIMSOLL_UNROLL(4)
    for (int64_t i = thread; i < length; i += kBlock) {
      const double d = x[row * length + i] - from;
      sum.add({d, d * d});
    }
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t row, const SumPair& sum) const {
    const double n = static_cast<double>(length);
    double squares = sum.b;
    if (mean != nullptr) {
      squares -= sum.a * sum.a / n;
      if (squares < 0) squares = 0;
      mean[row] = static_cast<float>(shift(row) + sum.a / n);
    }
    rstd[row] = static_cast<float>(1 / sqrt(squares / n + epsilon));
  }
};

struct NormalizeRows {
  using Kind = EachFour;
  float* y;
  const float* x;
  const float* mean;  // null: RMS norm
  const float* rstd;
  const float* gamma;  // or null
  const float* beta;   // or null
  NormRows rows;
  PLIMSOLL_BODY void run(int64_t at) const { y[at] = of(at, x[at]); }
  PLIMSOLL_BODY void four(int64_t at) const {
    Four values = load_four(x + at);
    for (int k = 0; k < 4; ++k) values.v[k] = of(at + k, values.v[k]);
    store_four(y + at, values);
  }
  bool by_four() const { return lie_by_four(y, x); }
  PLIMSOLL_BODY float of(int64_t at, float v) const {
    const Division d = divide(at, rows.length);
    if (mean != nullptr) v -= mean[d.quotient];
    v *= rstd[d.quotient];
    if (gamma != nullptr) {
      const int64_t s = scale_at(rows, d.quotient, d.remainder);
      v *= gamma[s];
      if (beta != nullptr) v += beta[s];
    }
    return v;
  }
};

// What the backward pass reads of an element.
struct NormInputs {
  const float* x;
  const float* dy;
  const float* mean;  // null: RMS norm
  const float* rstd;
  const float* gamma;  // or null
  NormRows rows;
  PLIMSOLL_BODY float normal(int64_t row, int64_t i) const { return normal_of(row, x[row * rows.length + i]); }
  PLIMSOLL_BODY float normal_of(int64_t row, float v) const {
    return (mean != nullptr ? v - mean[row] : v) * rstd[row];
  }
  PLIMSOLL_BODY float gradient(int64_t row, int64_t i) const { return gradient_of(row, i, dy[row * rows.length + i]); }
  PLIMSOLL_BODY float gradient_of(int64_t row, int64_t i, float d) const {
    return gamma != nullptr ? d * gamma[scale_at(rows, row, i)] : d;
  }
};
struct RowGradients {  // a block a row: the means of g and of g * h
  using Kind = EachBlock;
  using Value = SumPair;
  NormInputs of;
  SumPair* means;
  PLIMSOLL_BODY SumPair partial(int64_t row, int thread) const {
    SumPair sum;
    PLIMSOLL_UNROLL(4)
    for (int64_t i = thread; i < of.rows.length; i += kBlock) {
      const double g = of.gradient(row, i);
      sum.add({g, g * of.normal(row, i)});
    }
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t row, const SumPair& sum) const {
    const double n = static_cast<double>(of.rows.length);
    means[row] = {of.mean != nullptr ? sum.a / n : 0.0, sum.b / n};
  }
};
struct NormalizeRowsBackward {
  using Kind = EachFour;
  float* dx;
  NormInputs of;
  const SumPair* means;
  PLIMSOLL_BODY float at_place(int64_t at, float value, float d) const {
    const Division place = divide(at, of.rows.length);
    const int64_t row = place.quotient;
    const SumPair& mean = means[row];
    return of.rstd[row] * (of.gradient_of(row, place.remainder, d) - static_cast<float>(mean.a) -
                           of.normal_of(row, value) * static_cast<float>(mean.b));
  }
  PLIMSOLL_BODY void run(int64_t at) const { dx[at] = at_place(at, of.x[at], of.dy[at]); }
  PLIMSOLL_BODY void four(int64_t at) const {
    Four values = load_four(of.x + at);
    const Four d = load_four(of.dy + at);
    for (int k = 0; k < 4; ++k) values.v[k] = at_place(at + k, values.v[k], d.v[k]);
    store_four(dx + at, values);
  }
  bool by_four() const { return lie_by_four(dx, of.x, of.dy); }
};

// Gamma's and beta's gradients: a thread a column of some rows, then a thread a column.
struct NormColumns {
  using Kind = EachElement;
  NormInputs of;
  SumPair* sums;  // [piece][column]
  int64_t rows_a_piece;
  PLIMSOLL_BODY void run(int64_t at) const {
    const Division d = divide(at, of.rows.length);
    SumPair sum;
    const int64_t end = smaller((d.quotient + 1) * rows_a_piece, of.rows.rows);
    PLIMSOLL_UNROLL(4)
    for (int64_t row = d.quotient * rows_a_piece; row < end; ++row) {
      const double g = of.dy[row * of.rows.length + d.remainder];
      sum.add({g * of.normal(row, d.remainder), g});
    }
    sums[at] = sum;
  }
};
struct NormColumnTotals {
  using Kind = EachElement;
  float* dgamma;
  float* dbeta;  // or null
  const SumPair* sums;
  int64_t columns, pieces;
  PLIMSOLL_BODY void run(int64_t column) const {
    SumPair sum;
    PLIMSOLL_UNROLL(8)
    for (int64_t p = 0; p < pieces; ++p) sum.add(sums[p * columns + column]);
    dgamma[column] = static_cast<float>(sum.a);
    if (dbeta != nullptr) dbeta[column] = static_cast<float>(sum.b);
  }
};
// The same of group norm: a block a channel.
struct NormChannels {
  using Kind = EachBlock;
  using Value = SumPair;
  float* dgamma;
  float* dbeta;  // or null
  NormInputs of;
  int64_t images;
  PLIMSOLL_BODY SumPair partial(int64_t c, int thread) const {
    const Division d = divide(c, of.rows.group_channels);
    SumPair sum;
    for (int64_t e = thread; e < images * of.rows.pixels; e += kBlock) {
      const Division at = divide(e, of.rows.pixels);
      const int64_t row = at.quotient * of.rows.groups + d.quotient;
      const int64_t i = d.remainder * of.rows.pixels + at.remainder;
      const double g = of.dy[row * of.rows.length + i];
      sum.add({g * of.normal(row, i), g});
    }
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t c, const SumPair& sum) const {
    dgamma[c] = static_cast<float>(sum.a);
    if (dbeta != nullptr) dbeta[c] = static_cast<float>(sum.b);
  }
};

// Rows of layer norm and RMS norm that threads hold in registers, kFours fours each: 2^shift threads a row, 256 a block.
struct WholeRows {
  static constexpr int kThreads = 256, kMostFours = 8;
  int64_t rows = 1, length = 4;
  int32_t shift = 5;
  double by_length = 0.25;  // 1 / length
  PLIMSOLL_BODY int lanes() const { return 1 << shift; }
  PLIMSOLL_BODY int of_block() const { return kThreads >> shift; }
  PLIMSOLL_BODY int fours() const { return static_cast<int>(length / 4); }
  PLIMSOLL_BODY int lane(int thread) const { return thread & (lanes() - 1); }
  PLIMSOLL_BODY int four(int thread, int u) const { return lane(thread) + (u << shift); }
  constexpr int fours_of_lane() const { return static_cast<int>((length / 4 + (1 << shift) - 1) >> shift); }
};
constexpr WholeRows whole_rows(int64_t rows, int64_t length) {
  WholeRows whole{.rows = rows, .length = length, .by_length = 1 / static_cast<double>(length)};
  while (whole.shift < 8 && whole.fours_of_lane() > 4) ++whole.shift;
  return whole;
}

// Sums of each row's threads, in three phases: what each thread has, then of eight threads each, then all.
template <class Value>
struct RowSums {
  static constexpr int kEach = 8;
  Value of_threads[WholeRows::kThreads], of_eights[WholeRows::kThreads / kEach];
  PLIMSOLL_BODY void add_eights(const WholeRows& rows, int thread) {
    if (thread >= WholeRows::kThreads / kEach) return;
    const int eights = rows.lanes() / kEach;
    const int first = (thread / eights << rows.shift) + (thread & (eights - 1));
    Value sum = of_threads[first];
    PLIMSOLL_UNROLL_ALL
    for (int k = 1; k < kEach; ++k) sum.add(of_threads[first + k * eights]);
    of_eights[thread] = sum;
  }
  PLIMSOLL_BODY Value total(const WholeRows& rows, int thread) const {
    const int first = (thread >> rows.shift << rows.shift) / kEach, count = rows.lanes() / kEach;
    Value sum = of_eights[first];
    PLIMSOLL_UNROLL(4)
    for (int k = 1; k < count; ++k) sum.add(of_eights[first + k]);
    return sum;
  }
};
PLIMSOLL_BODY float sum_of(const Four& four) { return (four.v[0] + four.v[1]) + (four.v[2] + four.v[3]); }

// Mean and standard deviation of a row, the latter by distances from the mean, and the row by them.
template <int kFours>
struct NormWholeRows {
  using Kind = EachTile;
  static constexpr int kThreads = WholeRows::kThreads, kPhases = 1, kFinishes = 4;
  static constexpr int kBlocksTogether = kFours <= 3 ? 5 : kFours <= 4 ? 4 : 3;
  struct Shared {
    RowSums<Sum> sums;
  };
  struct State {
    Four x[kFours];
    float from, mean;
  };
  float* y;
  float* mean;  // null: RMS norm
  float* rstd;
  const float* x;
  const float* gamma;  // or null
  const float* beta;   // or null
  WholeRows rows;
  double epsilon;

  PLIMSOLL_BODY int64_t row_at(int64_t block, int thread) const {
    return block * rows.of_block() + (thread >> rows.shift);
  }
  PLIMSOLL_BODY int rounds(int64_t) const { return 0; }
  PLIMSOLL_BODY bool skips(int64_t, int) const { return false; }
  template <int>
  PLIMSOLL_BODY void phase(int64_t, int, int, State&, Shared&) const {}

  PLIMSOLL_BODY void begin(int64_t block, int thread, State& state, Shared& shared) const {
    const int64_t row = row_at(block, thread);
    const int there = row < rows.rows ? rows.fours() : 0;
    const float* const at = x + row * rows.length;
    state.from = mean != nullptr && there != 0 ? *at : 0;  // near the mean: distances from it lose little
    PLIMSOLL_UNROLL_ALL
    for (int u = 0; u < kFours; ++u) {
      const int four = rows.four(thread, u);
      state.x[u] = four < there ? load_four(at + 4 * four) : Four{{state.from, state.from, state.from, state.from}};
    }
    Sum sum;
    PLIMSOLL_UNROLL_ALL
    for (int u = 0; u < kFours; ++u) {
      Four d = state.x[u];
      PLIMSOLL_UNROLL_ALL
      for (float& v : d.v) v -= state.from;
      if (mean != nullptr) sum.a += sum_of(d);
    }
    shared.sums.of_threads[thread] = sum;
  }
  template <int kFinish>
  PLIMSOLL_BODY void finish(int64_t block, int thread, State& state, Shared& shared) const {
    if (kFinish == 0 || kFinish == 2) shared.sums.add_eights(rows, thread);
    if (kFinish == 1) shared.sums.of_threads[thread] = squares(thread, state, shared);
    if (kFinish == 3) end(block, thread, state, shared);
  }
  PLIMSOLL_BODY Sum squares(int thread, State& state, const Shared& shared) const {
    const double distance = shared.sums.total(rows, thread).a * rows.by_length;
    const float from_there = static_cast<float>(distance);
    state.mean = static_cast<float>(state.from + distance);
    Sum sum;
    PLIMSOLL_UNROLL_ALL
    for (int u = 0; u < kFours; ++u) {
      Four d = state.x[u];
      PLIMSOLL_UNROLL_ALL
      for (float& v : d.v) {
        v = (v - state.from) - from_there;
        v *= v;
      }
      if (rows.four(thread, u) < rows.fours()) sum.a += sum_of(d);
    }
    return sum;
  }
  PLIMSOLL_BODY void end(int64_t block, int thread, const State& state, const Shared& shared) const {
    const int64_t row = row_at(block, thread);
    if (row >= rows.rows) return;
    const double variance = shared.sums.total(rows, thread).a * rows.by_length;
    const float by = 1 / sqrtf(static_cast<float>(variance + epsilon));
    if (rows.lane(thread) == 0) {
      rstd[row] = by;
      if (mean != nullptr) mean[row] = state.mean;
    }
    float* const to = y + row * rows.length;
    PLIMSOLL_UNROLL_ALL
    for (int u = 0; u < kFours; ++u) {
      const int four = rows.four(thread, u);
      if (four >= rows.fours()) continue;
      Four values = state.x[u];
      PLIMSOLL_UNROLL_ALL
      for (float& v : values.v) v = (v - state.mean) * by;
      if (gamma != nullptr) {
        const Four factors = load_four(gamma + 4 * four);
        PLIMSOLL_UNROLL_ALL
        for (int k = 0; k < 4; ++k) values.v[k] *= factors.v[k];
      }
      if (beta != nullptr) {
        const Four added = load_four(beta + 4 * four);
        PLIMSOLL_UNROLL_ALL
        for (int k = 0; k < 4; ++k) values.v[k] += added.v[k];
      }
      store_four(to + 4 * four, values);
    }
  }
};

// dx, and gamma's and beta's gradients over the rows of a block, of which each group of threads has one a round. Over the few
// rounds these sums are in single precision, over groups and blocks in double.
template <int kFours>
struct NormWholeRowsBackward {
  using Kind = EachTile;
  static constexpr int kThreads = WholeRows::kThreads, kPhases = 3, kFinishes = 4;
  static constexpr int kBlocksTogether = kFours <= 3 ? 3 : kFours <= 4 ? 2 : 1;
  struct Shared {
    RowSums<SumPair> sums;
    alignas(16) float columns[4 * kFours * kThreads];  // [group][column]
  };
  struct State {
    Four h[kFours], g[kFours];  // of a row
    Four dgamma[kFours], dbeta[kFours];
  };
  float* dx;
  double* sums;  // [block][gamma's columns, then beta's]; null: neither is asked for
  NormInputs of;
  WholeRows rows;
  int32_t rounds_of_block;
  bool has_beta;

  PLIMSOLL_BODY int64_t row_at(int64_t block, int round, int thread) const {
    return (block * rounds_of_block + round) * rows.of_block() + (thread >> rows.shift);
  }
  PLIMSOLL_BODY int rounds(int64_t) const { return rounds_of_block; }
  PLIMSOLL_BODY bool skips(int64_t block, int round) const { return row_at(block, round, 0) >= rows.rows; }
  PLIMSOLL_BODY void begin(int64_t, int, State& state, Shared&) const {
    PLIMSOLL_UNROLL_ALL
    for (int u = 0; u < kFours; ++u) state.dgamma[u] = state.dbeta[u] = {{0, 0, 0, 0}};
  }
  template <int kPhase>
  PLIMSOLL_BODY void phase(int64_t block, int round, int thread, State& state, Shared& shared) const {
    const int64_t row = row_at(block, round, thread);
    if (kPhase == 0) shared.sums.of_threads[thread] = read(row, thread, state);
    if (kPhase == 1) shared.sums.add_eights(rows, thread);
    if (kPhase == 2 && row < rows.rows) write(row, thread, state, shared.sums.total(rows, thread));
  }
  PLIMSOLL_BODY SumPair read(int64_t row, int thread, State& state) const {
    const bool is_row = row < rows.rows;
    const int there = is_row ? rows.fours() : 0;
    const int64_t at = row * rows.length;
    PLIMSOLL_UNROLL_ALL
    for (int u = 0; u < kFours; ++u) {
      const int four = rows.four(thread, u);
      const bool is_there = four < there;
      state.h[u] = is_there ? load_four(of.x + at + 4 * four) : Four{{0, 0, 0, 0}};
      state.g[u] = is_there ? load_four(of.dy + at + 4 * four) : Four{{0, 0, 0, 0}};
    }
    const float mean = is_row && of.mean != nullptr ? of.mean[row] : 0, rstd = is_row ? of.rstd[row] : 0;
    SumPair sum;
    PLIMSOLL_UNROLL_ALL
    for (int u = 0; u < kFours; ++u) {
      const int four = rows.four(thread, u);
      if (four >= there) continue;
      PLIMSOLL_UNROLL_ALL
      for (int k = 0; k < 4; ++k) {
        state.h[u].v[k] = (state.h[u].v[k] - mean) * rstd;
        state.dgamma[u].v[k] += state.g[u].v[k] * state.h[u].v[k];
        state.dbeta[u].v[k] += state.g[u].v[k];
      }
      if (of.gamma != nullptr) {
        const Four factors = load_four(of.gamma + 4 * four);
        PLIMSOLL_UNROLL_ALL
        for (int k = 0; k < 4; ++k) state.g[u].v[k] *= factors.v[k];
      }
      Four products;
      PLIMSOLL_UNROLL_ALL
      for (int k = 0; k < 4; ++k) products.v[k] = state.g[u].v[k] * state.h[u].v[k];
      sum.add({sum_of(state.g[u]), sum_of(products)});
    }
    return sum;
  }
  PLIMSOLL_BODY void write(int64_t row, int thread, const State& state, const SumPair& sum) const {
    const float of_g = of.mean != nullptr ? static_cast<float>(sum.a * rows.by_length) : 0;
    const float of_gh = static_cast<float>(sum.b * rows.by_length);
    const float rstd = of.rstd[row];
    float* const to = dx + row * rows.length;
    PLIMSOLL_UNROLL_ALL
    for (int u = 0; u < kFours; ++u) {
      const int four = rows.four(thread, u);
      if (four >= rows.fours()) continue;
      Four values;
      PLIMSOLL_UNROLL_ALL
      for (int k = 0; k < 4; ++k) values.v[k] = rstd * (state.g[u].v[k] - of_g - state.h[u].v[k] * of_gh);
      store_four(to + 4 * four, values);
    }
  }

  template <int kFinish>
  PLIMSOLL_BODY void finish(int64_t block, int thread, State& state, Shared& shared) const {
    if (sums == nullptr || (kFinish >= 2 && !has_beta)) return;
    if constexpr (kFinish == 0) {
      show(thread, state.dgamma, shared);
    } else if constexpr (kFinish == 2) {
      show(thread, state.dbeta, shared);
    } else {
      const int64_t length = rows.length, widths = has_beta ? 2 : 1;
      add_groups(thread, shared, sums + block * widths * length + (kFinish == 1 ? 0 : length));
    }
  }
  PLIMSOLL_BODY void show(int thread, const Four (&columns)[kFours], Shared& shared) const {
    float* const group = shared.columns + (thread >> rows.shift) * static_cast<int>(rows.length);
    PLIMSOLL_UNROLL_ALL
    for (int u = 0; u < kFours; ++u) {
      const int four = rows.four(thread, u);
      if (four < rows.fours()) store_four(group + 4 * four, columns[u]);
    }
  }
  PLIMSOLL_BODY void add_groups(int thread, const Shared& shared, double* to) const {
    const int length = static_cast<int>(rows.length), groups = rows.of_block();
    for (int column = thread; column < length; column += kThreads) {
      double sum = 0;
      for (int group = 0; group < groups; ++group) sum += shared.columns[group * length + column];
      to[column] = sum;
    }
  }
};

}  // namespace plimsoll::cuda
