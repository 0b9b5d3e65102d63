// The backward pass of attention by tiles.
#pragma once

#include "device/cuda/bodies/attention_tiles.h"

namespace plimsoll::cuda {

// What both parts of the backward pass read.
struct TileBackward {
  const float* q;
  const float* k;
  const float* v;
  const float* dy;
  const float* log_sums;
  const TileRow* rows;  // or null: of log_sums
  TileScores scores;
  TileHeads heads;
  float scale;        // of products
  float inverse_cap;  // 1 / cap, or 0
  bool fixed;         // a query that sees no key gives its scores no gradient

  PLIMSOLL_BODY TileRow row(int64_t i) const { return rows != nullptr ? rows[i] : TileRow{log_sums[i] * kLog2E, 0}; }
  // Where one of its queries attends to all alike, no key is skipped.
  PLIMSOLL_BODY bool skips(int64_t head, int l, int tile_rows, int s, int columns) const {
    if (!scores.is_outside(l, tile_rows, s, columns)) return false;
    if (!scores.alike) return true;
    for (int i = l; i <= scores.last_query(l, tile_rows); ++i) {
      if (log_sums[head * scores.queries + i] == INFINITY) return false;
    }
    return true;
  }
  // Rows beyond the last have no probabilities.
  template <int kRows>
  PLIMSOLL_BODY void load_rows(float (&tops)[kRows], float (&sums)[kRows], int64_t head, int l, int thread) const {
    if (thread >= kRows) return;
    TileRow of_row{INFINITY, 0};
    if (l + thread < scores.queries) of_row = row(head * scores.queries + l + thread);
    tops[thread] = of_row.top;
    sums[thread] = of_row.log_sum;
  }
  template <int kThreads, int kRows, int kWidth>
  PLIMSOLL_BODY void load_queries(Tile<kRows, kWidth>& queries, Tile<kRows, kWidth>& results, int64_t head, int l,
                                  int thread) const {
    const int64_t first = head * scores.queries + l;
    load_tile<kThreads>(queries, q + first * heads.width, scores.queries - l, heads.width, heads.by_four, thread);
    load_tile<kThreads>(results, dy + first * heads.value_width, scores.queries - l, heads.value_width,
                        heads.values_by_four, thread);
  }
  template <int kThreads, int kKeys, int kWidth>
  PLIMSOLL_BODY void load_keys(Tile<kKeys, kWidth>& keys, int64_t key_head, int s, int thread) const {
    load_tile<kThreads>(keys, k + (key_head * scores.keys + s) * heads.width, scores.keys - s, heads.width,
                        heads.by_four, thread);
  }
  template <int kThreads, int kKeys, int kWidth>
  PLIMSOLL_BODY void load_values(Tile<kKeys, kWidth>& values, int64_t key_head, int s, int thread) const {
    load_tile<kThreads>(values, v + (key_head * scores.keys + s) * heads.value_width, scores.keys - s,
                        heads.value_width, heads.values_by_four, thread);
  }
  template <int kThreads, int kRows, int kKeys>
  PLIMSOLL_BODY void fill(Tile<kRows, kKeys>& biases, TileKept<kRows, kKeys>& kept, int64_t head, int l, int s,
                          int thread) const {
    if (!scores.is_plain(l, kRows, s, kKeys)) fill_biases<kThreads>(biases, scores, head, l, s, thread);
    if (scores.drops()) fill_kept<kThreads>(kept, scores, head, l, s, thread);
  }
  // Of a scaled score and its bias.
  PLIMSOLL_BODY float probability(float score, float bias, float top, float log_sum) const {
    if (scores.alike && top == INFINITY) return 1 / static_cast<float>(scores.keys);
    return power_of_two(score + bias - top - log_sum);
  }
  // What tanh lets through.
  PLIMSOLL_BODY float slope(float score) const {
    const float bent = score * inverse_cap;
    return 1 - bent * bent;
  }
};

// In both parts half of a block's threads have a tile's scores, the other half the gradients of its probabilities: each thread
// so many that it multiplies more than it reads.
template <class Products, int kTileRows, int kTileKeys>
struct TileHalves : Products::template RowsByRows<64, kTileRows, kTileKeys> {
  using Part = typename Products::template RowsByRows<64, kTileRows, kTileKeys>;
  static constexpr int kThreads = 128, kHalf = kThreads / 2, kRows = kTileRows, kKeys = kTileKeys;
  bool of_scores;
  PLIMSOLL_BODY explicit TileHalves(int thread) : Part(thread % kHalf), of_scores(thread < kHalf) {}
};

// Phase 1 of both: `score` is that of half of the threads, which turn it to probabilities and keep it, and the gradient of
// the other half.
template <class Halves, class Shared>
PLIMSOLL_BODY void make_probabilities(float (&score)[Halves::kR][Halves::kC], Shared& shared, const TileBackward& b,
                                      int l, int s, const Halves& half) {
  clear(score);
  half.add(score, half.of_scores ? shared.queries : shared.results, half.of_scores ? shared.keys : shared.values,
           half.of_scores ? b.heads.depth() : b.heads.value_depth());
  if (!half.of_scores) return;
  scale_scores(score, b.scores);
  const bool plain = b.scores.is_plain(l, Halves::kRows, s, Halves::kKeys);
  PLIMSOLL_UNROLL_ALL
  for (int i = 0; i < Halves::kR; ++i) {
    const float top = shared.tops[half.row_of(i)], log_sum = shared.log_sums[half.row_of(i)];
    PLIMSOLL_UNROLL_ALL
    for (int j = 0; j < Halves::kC; ++j) {
      float* const weight = shared.weights.at(half.row_of(i), half.column_of(j));
      *weight = b.probability(score[i][j], plain ? 0 : *weight, top, log_sum);
    }
  }
}

template <int kWidth, class Products>
struct AttentionTilesQueries {
  using Kind = EachTile;
  static constexpr int kRows = 64, kKeys = kWidth > 64 ? 32 : 64;
  using Halves = TileHalves<Products, kRows, kKeys>;
  static constexpr int kThreads = Halves::kThreads, kBlocksTogether = 2, kPhases = 5, kFinishes = 2;
  using Results = typename Products::template RowsByColumns<kThreads, kRows, kWidth, kKeys>;
  static constexpr int kR = Results::kR, kE = Results::kC;
  struct Shared {
    Tile<kRows, kWidth> queries, results;
    Tile<kKeys, kWidth> keys;
    union {
      Tile<kKeys, kWidth> values;
      Tile<kRows, kKeys> gradients;
    };
    Tile<kRows, kKeys> weights;  // biases, then probabilities; at last parts of dots
    float tops[kRows], log_sums[kRows];
    TileKept<kRows, kKeys> kept;
  };
  struct State {
    float score[Halves::kR][Halves::kC], by_gradient[kR][kE], by_weight[kR][kE], dot[Halves::kR];
  };

  float* dq;
  float* dots;
  TileBackward b;

  struct Spot {
    int64_t head;
    int l;
  };
  PLIMSOLL_BODY Spot spot(int64_t block) const {
    const Division at = divide(block, b.heads.heads);
    const int tiles = (b.scores.queries + kRows - 1) / kRows;
    return {at.remainder, (tiles - 1 - static_cast<int>(at.quotient)) * kRows};
  }
  static int64_t count(int64_t heads, int64_t queries) { return heads * ((queries + kRows - 1) / kRows); }
  PLIMSOLL_BODY int rounds(int64_t) const { return (b.scores.keys + kKeys - 1) / kKeys; }
  PLIMSOLL_BODY bool skips(int64_t block, int round) const {
    const Spot at = spot(block);
    return b.skips(at.head, at.l, kRows, round * kKeys, kKeys);
  }
  PLIMSOLL_BODY void begin(int64_t block, int thread, State& state, Shared& shared) const {
    const Spot at = spot(block);
    b.load_queries<kThreads>(shared.queries, shared.results, at.head, at.l, thread);
    b.load_rows(shared.tops, shared.log_sums, at.head, at.l, thread);
    clear(state.by_gradient);
    clear(state.by_weight);
    PLIMSOLL_UNROLL_ALL
    for (int i = 0; i < Halves::kR; ++i) state.dot[i] = 0;
  }
  template <int kPhase>
  PLIMSOLL_BODY void phase(int64_t block, int round, int thread, State& state, Shared& shared) const {
    const Spot at = spot(block);
    const Halves half(thread);
    const int s = round * kKeys;
    if constexpr (kPhase == 0) {
      const int64_t key_head = b.heads.key_head(at.head);
      b.load_keys<kThreads>(shared.keys, key_head, s, thread);
      b.load_values<kThreads>(shared.values, key_head, s, thread);
      b.fill<kThreads>(shared.weights, shared.kept, at.head, at.l, s, thread);
    } else if constexpr (kPhase == 1) {
      make_probabilities(state.score, shared, b, at.l, s, half);
    } else if constexpr (kPhase == 2) {
      if (half.of_scores) return;
      const bool drops = b.scores.drops();
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < Halves::kR; ++i) {
        PLIMSOLL_UNROLL_ALL
        for (int j = 0; j < Halves::kC; ++j) {
          const int r = half.row_of(i), c = half.column_of(j);
          float gradient = state.score[i][j];
          if (drops) gradient = shared.kept.is(r, c) ? gradient * b.scores.dropout.scale : 0;
          gradient *= *shared.weights.at(r, c);
          state.dot[i] += gradient;
          *shared.gradients.at(r, c) = gradient;
        }
      }
    } else if constexpr (kPhase == 3) {
      if (b.inverse_cap == 0 || !half.of_scores) return;
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < Halves::kR; ++i) {
        PLIMSOLL_UNROLL_ALL
        for (int j = 0; j < Halves::kC; ++j) {
          const float slope = b.slope(state.score[i][j]);
          *shared.weights.at(half.row_of(i), half.column_of(j)) *= slope;
          *shared.gradients.at(half.row_of(i), half.column_of(j)) *= slope;
        }
      }
    } else {
      Results(thread).add(state.by_gradient, state.by_weight, shared.gradients, shared.weights, shared.keys);
    }
  }
  template <int kFinish>
  PLIMSOLL_BODY void finish(int64_t block, int thread, State& state, Shared& shared) const {
    if constexpr (kFinish == 0) {
      const Halves half(thread);
      if (half.of_scores) return;
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < Halves::kR; ++i) *shared.weights.at(half.row_of(i), half.across) = state.dot[i];
    } else {
      const Spot at = spot(block);
      const Results part(thread);
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < kR; ++i) {
        const int r = part.row_of(i);
        if (at.l + r >= b.scores.queries) continue;
        float dot = 0;
        PLIMSOLL_UNROLL_ALL
        for (int a = 0; a < Halves::kAcross; ++a) dot += *shared.weights.at(r, a);
        const int64_t of_row = at.head * b.scores.queries + at.l + r;
        if (part.across == 0) dots[of_row] = dot;
        PLIMSOLL_UNROLL_ALL
        for (int e = 0; e < kE; ++e) state.by_gradient[i][e] -= dot * state.by_weight[i][e];
        store_row(dq + of_row * b.heads.width, part, state.by_gradient, i,
                  b.fixed && shared.tops[r] == INFINITY ? 0 : b.scale, b.heads.width, b.heads.by_four);
      }
    }
  }
};

// Half of the threads have dv, the other half dk.
template <int kWidth, class Products>
struct AttentionTilesKeys {
  using Kind = EachTile;
  static constexpr int kRows = kWidth > 64 ? 32 : 64, kKeys = 64;
  using Halves = TileHalves<Products, kRows, kKeys>;
  static constexpr int kThreads = Halves::kThreads, kBlocksTogether = 2, kPhases = 5, kFinishes = 1;
  using Results = typename Products::template ColumnsByColumns<Halves::kHalf, kKeys, kWidth, kRows>;
  struct Shared {
    Tile<kKeys, kWidth> keys;
    union {
      Tile<kKeys, kWidth> values;
      Tile<kRows, kKeys> gradients;
    };
    Tile<kRows, kWidth> queries, results;
    Tile<kRows, kKeys> weights;  // biases, then probabilities
    float tops[kRows], log_sums[kRows], dots[kRows];
    TileKept<kRows, kKeys> kept;
  };
  struct State {
    float score[Halves::kR][Halves::kC], out[Results::kR][Results::kC];
  };

  float* dk;
  float* dv;
  const float* dots;
  TileBackward b;
  Divisor key_heads;

  struct Spot {
    int64_t key_head;
    int s;
  };
  PLIMSOLL_BODY Spot spot(int64_t block) const {
    const Division at = divide(block, key_heads);
    return {at.remainder, static_cast<int>(at.quotient) * kKeys};
  }
  static int64_t count(int64_t heads, int64_t keys) { return heads * ((keys + kKeys - 1) / kKeys); }
  PLIMSOLL_BODY int tiles() const { return (b.scores.queries + kRows - 1) / kRows; }
  PLIMSOLL_BODY int rounds(int64_t) const { return static_cast<int>(b.heads.groups.value) * tiles(); }
  struct Round {
    int64_t head;
    int l;
  };
  PLIMSOLL_BODY Round of_round(int64_t key_head, int round) const {
    const int group = round / tiles();
    return {key_head * b.heads.groups.value + group, (round - group * tiles()) * kRows};
  }
  PLIMSOLL_BODY bool skips(int64_t block, int round) const {
    const Spot at = spot(block);
    const Round here = of_round(at.key_head, round);
    return b.skips(here.head, here.l, kRows, at.s, kKeys);
  }
  PLIMSOLL_BODY void begin(int64_t block, int thread, State& state, Shared& shared) const {
    const Spot at = spot(block);
    b.load_keys<kThreads>(shared.keys, at.key_head, at.s, thread);
    clear(state.out);
  }
  template <int kPhase>
  PLIMSOLL_BODY void phase(int64_t block, int round, int thread, State& state, Shared& shared) const {
    const Spot at = spot(block);
    const Round here = of_round(at.key_head, round);
    const Halves half(thread);
    if constexpr (kPhase == 0) {
      b.load_queries<kThreads>(shared.queries, shared.results, here.head, here.l, thread);
      b.load_values<kThreads>(shared.values, at.key_head, at.s, thread);
      b.load_rows(shared.tops, shared.log_sums, here.head, here.l, thread);
      if (thread < kRows)
        shared.dots[thread] =
            here.l + thread < b.scores.queries ? dots[here.head * b.scores.queries + here.l + thread] : 0;
      b.fill<kThreads>(shared.weights, shared.kept, here.head, here.l, at.s, thread);
    } else if constexpr (kPhase == 1) {
      make_probabilities(state.score, shared, b, here.l, at.s, half);
    } else if constexpr (kPhase == 2) {
      if (half.of_scores) return;
      const bool drops = b.scores.drops();
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < Halves::kR; ++i) {
        const float dot = shared.dots[half.row_of(i)];
        const bool fixed = b.fixed && shared.tops[half.row_of(i)] == INFINITY;
        PLIMSOLL_UNROLL_ALL
        for (int j = 0; j < Halves::kC; ++j) {
          const int r = half.row_of(i), c = half.column_of(j);
          float* const weight = shared.weights.at(r, c);
          const float p = *weight;
          float gradient = state.score[i][j];
          if (drops) {
            const float factor = shared.kept.is(r, c) ? b.scores.dropout.scale : 0;
            gradient *= factor;
            *weight = p * factor;
          }
          *shared.gradients.at(r, c) = fixed ? 0 : p * (gradient - dot);
        }
      }
    } else if constexpr (kPhase == 3) {
      if (b.inverse_cap == 0 || !half.of_scores) return;
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < Halves::kR; ++i) {
        PLIMSOLL_UNROLL_ALL
        for (int j = 0; j < Halves::kC; ++j)
          *shared.gradients.at(half.row_of(i), half.column_of(j)) *= b.slope(state.score[i][j]);
      }
    } else {
      Results(thread % Halves::kHalf)
          .add(state.out, half.of_scores ? shared.weights : shared.gradients,
               half.of_scores ? shared.results : shared.queries);
    }
  }
  template <int>
  PLIMSOLL_BODY void finish(int64_t block, int thread, State& state, Shared&) const {
    const Spot at = spot(block);
    const Results part(thread % Halves::kHalf);
    const Halves half(thread);
    const int width = half.of_scores ? b.heads.value_width : b.heads.width;
    float* const to = half.of_scores ? dv : dk;
    PLIMSOLL_UNROLL_ALL
    for (int i = 0; i < Results::kR; ++i) {
      const int key = at.s + part.row_of(i);
      if (key >= b.scores.keys) continue;
      store_row(to + (at.key_head * b.scores.keys + key) * width, part, state.out, i, half.of_scores ? 1 : b.scale,
                width, half.of_scores ? b.heads.values_by_four : b.heads.by_four);
    }
  }
};

}  // namespace plimsoll::cuda
