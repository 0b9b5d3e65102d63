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
    if (scores.has_biases()) fill_biases<kThreads>(biases, scores, head, l, s, thread);
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
// so many that it multiplies more than it reads. Where products allow that, all threads have both (kBoth).
template <class Products, int kTileRows, int kTileKeys, bool kHasBoth = Products::kHoldsBoth&& kTileRows >= 64>
struct TileHalves : Products::template RowsByRows<kHasBoth ? 128 : 64, kTileRows, kTileKeys> {
  static constexpr bool kBoth = kHasBoth;
  static constexpr int kThreads = 128, kHalf = kThreads / 2, kRows = kTileRows, kKeys = kTileKeys;
  using Part = typename Products::template RowsByRows<kBoth ? kThreads : kHalf, kTileRows, kTileKeys>;
  bool of_scores, of_gradients;
  PLIMSOLL_BODY explicit TileHalves(int thread)
      : Part(kBoth ? thread : thread % kHalf), of_scores(kBoth || thread < kHalf), of_gradients(kBoth || !of_scores) {}
  // A thread's numbers: scores, or what becomes of them, and gradients.
  struct Numbers {
    float score[Part::kR][Part::kC], gradient[kBoth ? Part::kR : 1][Part::kC];
  };
};

// Phase 1 of both: scores turn to probabilities. Where a thread has both, done(i, j, probability, gradient, slope) says what
// it keeps of them; else the score, or the gradient, stays, and shared memory has the probabilities.
template <class Halves, class Shared, class Done>
PLIMSOLL_BODY void make_probabilities(typename Halves::Numbers& numbers, Shared& shared, const TileBackward& b, int l,
                                      int s, const Halves& half, const Done& done) {
  clear(numbers.score);
  half.add(numbers.score, half.of_scores ? shared.queries : shared.results,
           half.of_scores ? shared.keys : shared.values, half.of_scores ? b.heads.depth() : b.heads.value_depth());
  if constexpr (Halves::kBoth) {
    clear(numbers.gradient);
    half.add(numbers.gradient, shared.results, shared.values, b.heads.value_depth());
  }
  if (!half.of_scores) return;
  scale_scores(numbers.score, b.scores);
  const bool biased = b.scores.has_biases(), plain = b.scores.is_plain(l, Halves::kRows, s, Halves::kKeys);
  PLIMSOLL_UNROLL_ALL
  for (int i = 0; i < Halves::kR; ++i) {
    const float top = shared.tops[half.row_of(i)], log_sum = shared.log_sums[half.row_of(i)];
    const TileScores::Seen seen = b.scores.seen_by(l + half.row_of(i));
    PLIMSOLL_UNROLL_ALL
    for (int j = 0; j < Halves::kC; ++j) {
      float* const weight = shared.weights.at(half.row_of(i), half.column_of(j));
      const float bias = biased ? *weight : plain || seen.has(s + half.column_of(j)) ? 0 : -INFINITY;
      const float p = b.probability(numbers.score[i][j], bias, top, log_sum);
      if constexpr (Halves::kBoth) {
        done(i, j, p, numbers.gradient[i][j], b.inverse_cap == 0 ? 1 : b.slope(numbers.score[i][j]));
      } else {
        *weight = p;
      }
    }
  }
}
// Where a thread has both, it shows them in phase 2.
template <class Halves, class Shared>
PLIMSOLL_BODY void show_both(const typename Halves::Numbers& numbers, Shared& shared, const Halves& half) {
  PLIMSOLL_UNROLL_ALL
  for (int i = 0; i < Halves::kR; ++i) {
    PLIMSOLL_UNROLL_ALL
    for (int j = 0; j < Halves::kC; ++j) {
      *shared.weights.at(half.row_of(i), half.column_of(j)) = numbers.score[i][j];
      *shared.gradients.at(half.row_of(i), half.column_of(j)) = numbers.gradient[i][j];
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
    typename Halves::Numbers of_tile;
    float by_gradient[kR][kE], by_weight[kR][kE], dot[Halves::kR];
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
      make_probabilities(state.of_tile, shared, b, at.l, s, half,
                         [&](int i, int j, float p, float gradient, float slope) {
                           gradient = p * left(shared, half, i, j, gradient);
                           state.dot[i] += gradient;
                           state.of_tile.score[i][j] = p * slope, state.of_tile.gradient[i][j] = gradient * slope;
                         });
    } else if constexpr (kPhase == 2 && Halves::kBoth) {
      show_both(state.of_tile, shared, half);
    } else if constexpr (kPhase == 3 && Halves::kBoth) {
      return;
    } else if constexpr (kPhase == 2) {
      if (half.of_scores) return;
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < Halves::kR; ++i) {
        PLIMSOLL_UNROLL_ALL
        for (int j = 0; j < Halves::kC; ++j) {
          const int r = half.row_of(i), c = half.column_of(j);
          const float gradient = *shared.weights.at(r, c) * left(shared, half, i, j, state.of_tile.score[i][j]);
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
          const float slope = b.slope(state.of_tile.score[i][j]);
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
      if (!half.of_gradients) return;
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

 private:
  // What dropout leaves of the gradient of a probability.
  PLIMSOLL_BODY float left(const Shared& shared, const Halves& half, int i, int j, float gradient) const {
    if (!b.scores.drops()) return gradient;
    return shared.kept.is(half.row_of(i), half.column_of(j)) ? gradient * b.scores.dropout.scale : 0;
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
    typename Halves::Numbers of_tile;
    float out[Results::kR][Results::kC];
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
      make_probabilities(
          state.of_tile, shared, b, here.l, at.s, half, [&](int i, int j, float p, float gradient, float slope) {
            const Both both = both_of(shared, half, i, j, p, gradient);
            state.of_tile.score[i][j] = both.weight, state.of_tile.gradient[i][j] = both.gradient * slope;
          });
    } else if constexpr (kPhase == 2 && Halves::kBoth) {
      show_both(state.of_tile, shared, half);
    } else if constexpr (kPhase == 3 && Halves::kBoth) {
      return;
    } else if constexpr (kPhase == 2) {
      if (half.of_scores) return;
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < Halves::kR; ++i) {
        PLIMSOLL_UNROLL_ALL
        for (int j = 0; j < Halves::kC; ++j) {
          float* const weight = shared.weights.at(half.row_of(i), half.column_of(j));
          const Both both = both_of(shared, half, i, j, *weight, state.of_tile.score[i][j]);
          *weight = both.weight;
          *shared.gradients.at(half.row_of(i), half.column_of(j)) = both.gradient;
        }
      }
    } else if constexpr (kPhase == 3) {
      if (b.inverse_cap == 0 || !half.of_scores) return;
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < Halves::kR; ++i) {
        PLIMSOLL_UNROLL_ALL
        for (int j = 0; j < Halves::kC; ++j)
          *shared.gradients.at(half.row_of(i), half.column_of(j)) *= b.slope(state.of_tile.score[i][j]);
      }
    } else {
      const bool of_values = has_values(thread);
      Results(thread % Halves::kHalf)
          .add(state.out, of_values ? shared.weights : shared.gradients, of_values ? shared.results : shared.queries);
    }
  }
  template <int>
  PLIMSOLL_BODY void finish(int64_t block, int thread, State& state, Shared&) const {
    const Spot at = spot(block);
    const Results part(thread % Halves::kHalf);
    const bool of_values = has_values(thread);
    const int width = of_values ? b.heads.value_width : b.heads.width;
    float* const to = of_values ? dv : dk;
    PLIMSOLL_UNROLL_ALL
    for (int i = 0; i < Results::kR; ++i) {
      const int key = at.s + part.row_of(i);
      if (key >= b.scores.keys) continue;
      store_row(to + (at.key_head * b.scores.keys + key) * width, part, state.out, i, of_values ? 1 : b.scale, width,
                of_values ? b.heads.values_by_four : b.heads.by_four);
    }
  }

 private:
  PLIMSOLL_BODY static bool has_values(int thread) { return thread < Halves::kHalf; }
  // What dropout leaves of a probability, and the gradient of its score.
  struct Both {
    float weight, gradient;
  };
  PLIMSOLL_BODY Both both_of(const Shared& shared, const Halves& half, int i, int j, float p, float gradient) const {
    const int r = half.row_of(i);
    const float factor = !b.scores.drops() ? 1 : shared.kept.is(r, half.column_of(j)) ? b.scores.dropout.scale : 0;
    const bool fixed = b.fixed && shared.tops[r] == INFINITY;
    return {p * factor, fixed ? 0 : p * (gradient * factor - shared.dots[r])};
  }
};

}  // namespace plimsoll::cuda
