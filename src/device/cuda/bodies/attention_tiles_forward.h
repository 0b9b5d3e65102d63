// The forward pass of attention by tiles.
#pragma once

#include "device/cuda/bodies/attention_tiles.h"

namespace plimsoll::cuda {

// kWidth: the most elements of a head's rows.
template <int kWidth, class Products>
struct AttentionTiles {
  using Kind = EachTile;
  static constexpr int kThreads = 128, kBlocksTogether = 2, kPhases = 4, kFinishes = 2;
  static constexpr int kRows = kWidth > 64 ? 64 : 128, kKeys = 64;
  using Scores = typename Products::template RowsByRows<kThreads, kRows, kKeys>;
  using Results = typename Products::template RowsByColumns<kThreads, kRows, kWidth, kKeys>;
  static constexpr int kR = Scores::kR, kC = Scores::kC, kE = Results::kC, kAcross = Scores::kAcross;
  // Where there is room for both, values are loaded while scores are computed, and the next keys while results are.
  static constexpr bool kAhead = Products::kLoadsAhead && kWidth <= 64;
  struct Apart {
    Tile<kKeys, kWidth> keys, values;
  };
  union InTurn {
    Tile<kKeys, kWidth> keys, values;
  };
  struct Shared {
    Tile<kRows, kWidth> queries;
    std::conditional_t<kAhead, Apart, InTurn> others;
    Tile<kRows, kKeys> weights;       // biases, then probabilities
    float by_thread[kRows][kAcross];  // of a row: the largest score that each thread has; at last sums
    TileKept<kRows, kKeys> kept;
  };
  struct State {
    float score[kR][kC], out[kR][kE], top[kR], sum[kR];
  };

  float* y;
  float* log_sums;
  TileRow* rows;  // or null; where it is not, it is all that comes out
  const float* q;
  const float* k;
  const float* v;
  TileScores scores;
  TileHeads heads;

  struct Spot {
    int64_t head;
    int l;
  };
  // Those that see most keys come first, where they do not see what comes after them.
  PLIMSOLL_BODY Spot spot(int64_t block) const {
    const Division at = divide(block, heads.heads);
    const int tiles = (scores.queries + kRows - 1) / kRows;
    return {at.remainder, (tiles - 1 - static_cast<int>(at.quotient)) * kRows};
  }
  static int64_t count(int64_t heads, int64_t queries) { return heads * ((queries + kRows - 1) / kRows); }
  PLIMSOLL_BODY int rounds(int64_t) const { return (scores.keys + kKeys - 1) / kKeys; }
  PLIMSOLL_BODY bool skips(int64_t block, int round) const {
    return scores.is_outside(spot(block).l, kRows, round * kKeys, kKeys);
  }
  // Of the first round from this one on that is not skipped, if there is one.
  PLIMSOLL_BODY void load_keys(const Spot& at, int round, int thread, Shared& shared) const {
    while (round < rounds(0) && scores.is_outside(at.l, kRows, round * kKeys, kKeys)) ++round;
    const int s = round * kKeys;
    if (s >= scores.keys) return;
    load_tile<kThreads>(shared.others.keys, k + (heads.key_head(at.head) * scores.keys + s) * heads.width,
                        scores.keys - s, heads.width, heads.by_four, thread);
  }
  PLIMSOLL_BODY void load_values(const Spot& at, int round, int thread, Shared& shared) const {
    const int s = round * kKeys;
    load_tile<kThreads>(shared.others.values, v + (heads.key_head(at.head) * scores.keys + s) * heads.value_width,
                        scores.keys - s, heads.value_width, heads.values_by_four, thread);
  }
  PLIMSOLL_BODY void begin(int64_t block, int thread, State& state, Shared& shared) const {
    const Spot at = spot(block);
    load_tile<kThreads>(shared.queries, q + (at.head * scores.queries + at.l) * heads.width, scores.queries - at.l,
                        heads.width, heads.by_four, thread);
    if (kAhead) load_keys(at, 0, thread, shared);
    clear(state.out);
    PLIMSOLL_UNROLL_ALL
    for (int i = 0; i < kR; ++i) state.top[i] = -INFINITY, state.sum[i] = 0;
  }
  template <int kPhase>
  PLIMSOLL_BODY void phase(int64_t block, int round, int thread, State& state, Shared& shared) const {
    const Spot at = spot(block);
    const Scores part(thread);
    const int s = round * kKeys;
    if constexpr (kPhase == 0) {
      if (!kAhead) load_keys(at, round, thread, shared);
      if (scores.has_biases()) fill_biases<kThreads>(shared.weights, scores, at.head, at.l, s, thread);
      if (scores.drops()) fill_kept<kThreads>(shared.kept, scores, at.head, at.l, s, thread);
    } else if constexpr (kPhase == 1) {
      if (kAhead && rows == nullptr) load_values(at, round, thread, shared);
      clear(state.score);
      part.add(state.score, shared.queries, shared.others.keys, heads.depth());
      scale_scores(state.score, scores);
      if (scores.has_biases()) {
        PLIMSOLL_UNROLL_ALL
        for (int i = 0; i < kR; ++i) {
          PLIMSOLL_UNROLL_ALL
          for (int j = 0; j < kC; ++j) state.score[i][j] += *shared.weights.at(part.row_of(i), part.column_of(j));
        }
      } else if (!scores.is_plain(at.l, kRows, s, kKeys)) {
        hide_unseen(state.score, part, scores, at.l, s);
      }
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < kR; ++i) {
        float top = state.score[i][0];
        PLIMSOLL_UNROLL_ALL
        for (int j = 1; j < kC; ++j) top = fmaxf(top, state.score[i][j]);
        shared.by_thread[part.row_of(i)][part.across] = top;
      }
    } else if constexpr (kPhase == 2) {
      if (!kAhead && rows == nullptr) load_values(at, round, thread, shared);
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < kR; ++i) {
        float top = state.top[i];
        PLIMSOLL_UNROLL_ALL
        for (int a = 0; a < kAcross; ++a) top = fmaxf(top, shared.by_thread[part.row_of(i)][a]);
        const float shift = top == -INFINITY ? 0 : top, factor = power_of_two(state.top[i] - shift);
        state.top[i] = top;
        state.sum[i] *= factor;
        PLIMSOLL_UNROLL_ALL
        for (int e = 0; e < kE; ++e) state.out[i][e] *= factor;
        PLIMSOLL_UNROLL_ALL
        for (int j = 0; j < kC; ++j) {
          state.score[i][j] = power_of_two(state.score[i][j] - shift);
          state.sum[i] += state.score[i][j];
        }
      }
      if (rows != nullptr) return;
      if (scores.drops()) {
        PLIMSOLL_UNROLL_ALL
        for (int i = 0; i < kR; ++i) {
          PLIMSOLL_UNROLL_ALL
          for (int j = 0; j < kC; ++j)
            state.score[i][j] *= shared.kept.is(part.row_of(i), part.column_of(j)) ? scores.dropout.scale : 0;
        }
      }
      if constexpr (!Results::reads_own()) {
        PLIMSOLL_UNROLL_ALL
        for (int i = 0; i < kR; ++i) {
          PLIMSOLL_UNROLL_ALL
          for (int j = 0; j < kC; ++j) *shared.weights.at(part.row_of(i), part.column_of(j)) = state.score[i][j];
        }
      }
    } else {
      if (kAhead) load_keys(at, round + 1, thread, shared);
      if (rows != nullptr) return;
      Results(thread).add_own(state.out, state.score, shared.weights, shared.others.values);
    }
  }
  template <int kFinish>
  PLIMSOLL_BODY void finish(int64_t block, int thread, State& state, Shared& shared) const {
    const Results part(thread);
    if constexpr (kFinish == 0) {
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < kR; ++i) shared.by_thread[part.row_of(i)][part.across] = state.sum[i];
    } else {
      const Spot at = spot(block);
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < kR; ++i) {
        const int l = at.l + part.row_of(i);
        if (l >= scores.queries) continue;
        float sum = 0;
        PLIMSOLL_UNROLL_ALL
        for (int a = 0; a < kAcross; ++a) sum += shared.by_thread[part.row_of(i)][a];
        const int64_t of_row = at.head * scores.queries + l;
        const bool blind = state.top[i] == -INFINITY;
        const float top = blind ? INFINITY : state.top[i], log_sum = blind ? 0 : log2f(sum);
        if (rows != nullptr) {
          if (part.across == 0) rows[of_row] = {top, log_sum};
          continue;
        }
        if (part.across == 0) log_sums[of_row] = (top + log_sum) * kLn2;
        store_row(y + of_row * heads.value_width, part, state.out, i, blind ? 0 : 1 / sum, heads.value_width,
                  heads.values_by_four);
      }
    }
  }
};

// After the tiles, where a query that sees no key attends to all alike: an element of y each.
struct AttentionBlindRows {
  using Kind = EachElement;
  float* y;
  const float* log_sums;
  const float* v;
  AttentionDropout dropout;
  Divisor queries, groups, value_width;
  int64_t keys;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division at = divide(i, value_width);
    const int64_t row = at.quotient;
    if (log_sums[row] != INFINITY) return;
    const int64_t head = divide(divide(row, queries).quotient, groups).quotient;
    const float* const values = v + head * keys * value_width + at.remainder;
    double sum = 0;
    for (int64_t s = 0; s < keys; ++s) {
      sum += static_cast<double>(kept(dropout, row * keys + s, 1 / static_cast<float>(keys))) * values[s * value_width];
    }
    y[i] = static_cast<float>(sum);
  }
};

}  // namespace plimsoll::cuda
