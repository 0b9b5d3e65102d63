// Attention (ops/attention.cpp) beside its products: scores of some heads at a time, [head][query][key].
#pragma once

#include "device/cuda/bodies/random.h"
#include "device/cuda/bodies/softmax.h"

namespace plimsoll::cuda {

inline constexpr int kMostHeadDimensions = 8;

// The mask of each head, however it is broadcast.
struct AttentionMask {
  const float* added = nullptr;      // or null
  const uint8_t* allowed = nullptr;  // or null
  int64_t size[kMostHeadDimensions] = {};
  int64_t stride[kMostHeadDimensions] = {};
  int64_t to_row = 0, to_column = 0;
  int32_t rank = 0;
};
PLIMSOLL_BODY int64_t mask_offset(const AttentionMask& mask, int64_t head) {
  int64_t offset = 0;
  for (int d = mask.rank - 1; d >= 0; --d) {
    const Division here = divide(head, mask.size[d]);
    offset += here.remainder * mask.stride[d];
    head = here.quotient;
  }
  return offset;
}

// Where element i of the scores belongs; `head` counts over all heads.
struct ScorePlace {
  int64_t first_head = 0, queries = 1, keys = 1;
};
struct ScoreSpot {
  int64_t head, l, s, row, draw;  // row: among those of all heads
};
PLIMSOLL_BODY ScoreSpot score_spot(const ScorePlace& place, int64_t i) {
  const Division by_key = divide(i, place.keys);
  const Division by_query = divide(by_key.quotient, place.queries);
  const int64_t head = place.first_head + by_query.quotient, row = head * place.queries + by_query.remainder;
  return {head, by_query.remainder, by_key.remainder, row, row * place.keys + by_key.remainder};
}

struct AttentionDropout {
  Stream stream;  // without a step's number none falls
  uint32_t threshold = 0;
  float scale = 1;
};
PLIMSOLL_BODY float kept(const AttentionDropout& dropout, int64_t draw, float value) {
  if (dropout.stream.step_number == nullptr) return value;
  return draw_of(dropout.stream, draw) >= dropout.threshold ? value * dropout.scale : 0;
}

struct AttentionScores {  // in place: scaled and masked; with log_sums made probabilities
  using Kind = EachElement;
  float* scores;
  const float* log_sums;  // or null
  AttentionMask mask;
  ScorePlace place;
  float scale;
  int64_t left, right;       // how far before and behind its own place a query sees
  const int32_t* documents;  // or null: a query sees keys of its own id, in the row of so many heads
  int64_t heads_of_documents;
  PLIMSOLL_BODY void run(int64_t i) const {
    const ScoreSpot spot = score_spot(place, i);
    float v = scores[i] * scale;
    if (spot.s > spot.l + right || spot.s < spot.l - left) v = -INFINITY;
    if (documents != nullptr) {
      const int32_t* const ids = documents + divide(spot.head, heads_of_documents).quotient * place.keys;
      if (ids[spot.l] != ids[spot.s]) v = -INFINITY;
    }
    const int64_t at = mask_offset(mask, spot.head) + spot.l * mask.to_row + spot.s * mask.to_column;
    if (mask.allowed != nullptr && mask.allowed[at] == 0) v = -INFINITY;
    if (mask.added != nullptr) v += mask.added[at];
    if (log_sums != nullptr) v = static_cast<float>(exp(static_cast<double>(v) - log_sums[spot.row]));
    scores[i] = v;
  }
};
struct AttentionProbabilities {  // in place
  using Kind = EachElement;
  float* scores;
  const AxisRow* rows;  // of these heads
  ScorePlace place;
  AttentionDropout dropout;
  PLIMSOLL_BODY void run(int64_t i) const {
    const double log_sum = rows[divide(i, place.keys).quotient].log_sum;
    scores[i] = kept(dropout, score_spot(place, i).draw, static_cast<float>(exp(scores[i] - log_sum)));
  }
};

struct AttentionDots {  // a block a row: the sum of p * dp
  using Kind = EachBlock;
  using Value = Sum;
  double* dots;
  const float* probabilities;
  const float* gradients;
  ScorePlace place;
  AttentionDropout dropout;
  PLIMSOLL_BODY Sum partial(int64_t row, int thread) const {
    Sum sum;
    for (int64_t s = thread; s < place.keys; s += kBlock) {
      const int64_t i = row * place.keys + s;
      sum.a += static_cast<double>(probabilities[i]) * kept(dropout, score_spot(place, i).draw, gradients[i]);
    }
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t row, const Sum& sum) const { dots[row] = sum.a; }
};
struct AttentionScoreGradients {  // in place: probabilities dropped, gradients of the scores
  using Kind = EachElement;
  float* probabilities;
  float* gradients;
  const double* dots;
  ScorePlace place;
  AttentionDropout dropout;
  float factor;
  PLIMSOLL_BODY void run(int64_t i) const {
    const int64_t draw = score_spot(place, i).draw;
    const float p = probabilities[i], dot = static_cast<float>(dots[divide(i, place.keys).quotient]);
    gradients[i] = p * (kept(dropout, draw, gradients[i]) - dot) * factor;
    probabilities[i] = kept(dropout, draw, p);
  }
};
struct AttentionMaskGradient {  // an element of the mask each
  using Kind = EachElement;
  float* dmask;
  const float* gradients;
  AttentionMask mask;
  ScorePlace place;
  int64_t heads;
  bool adds;  // to what earlier heads gave
  PLIMSOLL_BODY void run(int64_t i) const {
    const int64_t rows = mask.to_row != 0 ? place.queries : 1, columns = mask.to_column != 0 ? place.keys : 1;
    const Division by_matrix = divide(i, rows * columns);
    const Division spot = divide(by_matrix.remainder, columns);
    double sum = 0;
    for (int64_t h = 0; h < heads; ++h) {
      if (mask_offset(mask, place.first_head + h) != i - by_matrix.remainder) continue;
      for (int64_t l = spot.quotient; l < place.queries; l += rows) {
        for (int64_t s = spot.remainder; s < place.keys; s += columns) {
          sum += gradients[(h * place.queries + l) * place.keys + s];
        }
      }
    }
    dmask[i] = static_cast<float>(adds ? dmask[i] + sum : sum);
  }
};
struct ScaleScores {
  using Kind = EachElement;
  float* scores;
  float scale;
  PLIMSOLL_BODY void run(int64_t i) const { scores[i] *= scale; }
};

}  // namespace plimsoll::cuda
