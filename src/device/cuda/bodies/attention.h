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
  Divisor size[kMostHeadDimensions];
  int64_t stride[kMostHeadDimensions] = {};
  int64_t to_row = 0, to_column = 0;
  int32_t rank = 0;
};
PLIMSOLL_BODY int64_t mask_offset(const AttentionMask& mask, int64_t of_head) {
  int64_t offset = 0;
  uint32_t head = static_cast<uint32_t>(of_head);
  for (int d = mask.rank - 1; d >= 0; --d) {
    const Division here = divide(static_cast<int64_t>(head), mask.size[d]);
    offset += here.remainder * mask.stride[d];
    head = static_cast<uint32_t>(here.quotient);
  }
  return offset;
}

// Where element i of the scores belongs; `head` counts over all heads.
struct ScorePlace {
  int64_t first_head = 0;
  Divisor queries = 1, keys = 1;
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

// A score that is added to this is lost in it, and a sum of exponentials is not lost in doubles, as it would be in a float's least.
inline constexpr float kLeastAdded = -1e10f;

struct AttentionScores {  // in place: scaled and masked; with log_sums made probabilities
  using Kind = EachFour;
  float* scores;
  float* slopes;          // or null: where what tanh lets through of each goes, if scores are capped
  const float* log_sums;  // or null
  AttentionMask mask;
  ScorePlace place;
  float scale, softcap;      // 0: not capped
  bool alike;                // a query that sees no key attends to all alike
  int64_t left, right;       // how far before and behind its own place a query sees
  const int32_t* documents;  // or null: a query sees keys of its own id, in the row of so many heads
  Divisor heads_of_documents;
  PLIMSOLL_BODY void run(int64_t i) const { scores[i] = of(i, scores[i]); }
  PLIMSOLL_BODY void four(int64_t i) const {
    Four values = load_four(scores + i);
    for (int k = 0; k < 4; ++k) values.v[k] = of(i + k, values.v[k]);
    store_four(scores + i, values);
  }
  bool by_four() const { return lie_by_four(scores); }
  PLIMSOLL_BODY float of(int64_t i, float score) const {
    const ScoreSpot spot = score_spot(place, i);
    float v = score * scale;
    if (softcap != 0) {
      const float bent = tanhf(v / softcap);
      v = softcap * bent;
      if (slopes != nullptr) slopes[i] = 1 - bent * bent;
    }
    if (spot.s > spot.l + right || spot.s < spot.l - left) v = -INFINITY;
    if (documents != nullptr) {
      const int32_t* const ids =
          documents +
          divide(static_cast<int64_t>(static_cast<uint32_t>(spot.head)), heads_of_documents).quotient * place.keys;
      if (ids[spot.l] != ids[spot.s]) v = -INFINITY;
    }
    const int64_t at = mask_offset(mask, spot.head) + spot.l * mask.to_row + spot.s * mask.to_column;
    if (mask.allowed != nullptr && mask.allowed[at] == 0) v = -INFINITY;
    if (mask.added != nullptr) v += mask.added[at] == -INFINITY ? -INFINITY : fmaxf(mask.added[at], kLeastAdded);
    if (log_sums == nullptr) return v;
    if (alike && log_sums[spot.row] == INFINITY) return 1 / static_cast<float>(place.keys.value);
    return static_cast<float>(exp(static_cast<double>(v) - log_sums[spot.row]));
  }
};
struct AttentionProbabilities {  // in place
  using Kind = EachFour;
  float* scores;
  const AxisRow* rows;  // of these heads
  ScorePlace place;
  AttentionDropout dropout;
  bool alike;
  PLIMSOLL_BODY float of(int64_t i, float score) const {
    const double log_sum = rows[divide(i, place.keys).quotient].log_sum;
    const float p = alike && log_sum == INFINITY ? 1 / static_cast<float>(place.keys.value)
                                                 : static_cast<float>(exp(score - log_sum));
    return kept(dropout, score_spot(place, i).draw, p);
  }
  PLIMSOLL_BODY void run(int64_t i) const { scores[i] = of(i, scores[i]); }
  PLIMSOLL_BODY void four(int64_t i) const {
    Four values = load_four(scores + i);
    for (int k = 0; k < 4; ++k) values.v[k] = of(i + k, values.v[k]);
    store_four(scores + i, values);
  }
  bool by_four() const { return lie_by_four(scores); }
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
  using Kind = EachFour;
  float* probabilities;
  float* gradients;
  const double* dots;
  const float* slopes;        // or null
  const float* fixed_scores;  // or null: the log_sums; a query that sees no key gives its scores no gradient
  ScorePlace place;
  AttentionDropout dropout;
  float factor;
  PLIMSOLL_BODY void change(int64_t i, float& p, float& gradient) const {
    const int64_t draw = score_spot(place, i).draw;
    const float dot = static_cast<float>(dots[divide(i, place.keys).quotient]);
    gradient = p * (kept(dropout, draw, gradient) - dot) * factor;
    if (slopes != nullptr) gradient *= slopes[i];
    if (fixed_scores != nullptr && fixed_scores[score_spot(place, i).row] == INFINITY) gradient = 0;
    p = kept(dropout, draw, p);
  }
  PLIMSOLL_BODY void run(int64_t i) const {
    float p = probabilities[i], gradient = gradients[i];
    change(i, p, gradient);
    probabilities[i] = p;
    gradients[i] = gradient;
  }
  PLIMSOLL_BODY void four(int64_t i) const {
    Four p = load_four(probabilities + i), gradient = load_four(gradients + i);
    for (int k = 0; k < 4; ++k) change(i + k, p.v[k], gradient.v[k]);
    store_four(probabilities + i, p);
    store_four(gradients + i, gradient);
  }
  bool by_four() const { return lie_by_four(probabilities, gradients); }
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
    const int64_t rows = mask.to_row != 0 ? place.queries.value : 1,
                  columns = mask.to_column != 0 ? place.keys.value : 1;
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
  using Kind = EachFour;
  float* scores;
  const float* slopes;  // or null
  float scale;
  PLIMSOLL_BODY float of(int64_t i, float v) const { return v * scale * (slopes != nullptr ? slopes[i] : 1); }
  PLIMSOLL_BODY void run(int64_t i) const { scores[i] = of(i, scores[i]); }
  PLIMSOLL_BODY void four(int64_t i) const {
    Four values = load_four(scores + i);
    for (int k = 0; k < 4; ++k) values.v[k] = of(i + k, values.v[k]);
    store_four(scores + i, values);
  }
  bool by_four() const { return lie_by_four(scores); }
};

}  // namespace plimsoll::cuda
