// Attention by tiles, as in FlashAttention (T. Dao, D. Fu, S. Ermon, A. Rudra, C. Re, 2022): the scores of a tile of
// queries with a tile of keys lie in the workspace of the thread that has it. Forward, the softmax is taken online (M.
// Milakov, N. Gimelshein, 2018): what earlier tiles have summed is scaled when a larger score comes. Tiles of which no
// score counts, by causality, window or mask, are left out, and of several documents in a row the keys before the first
// and behind the last that a tile's queries belong to.
//
// Scores stand with the queries in the lanes: S' = K Q', where only the tile of queries is turned over. So a query's
// maximum and sum need no sum over lanes, keys and values are read as they lie, and the scores are ready for both
// products behind them:
//
//   forward    S' = K Q'     Y += P V
//   backward   S' = K Q'     dP' = V dY'     dV += P' dY     dK += dS' Q     dQ += dS K
//
// Backward, a thread has whole heads of k and v, so that what all their queries add to dk and dv is added in one order. A
// tile of queries has all its keys' scores in the workspace, since dS needs a sum over them. A mask's gradient takes a
// second walk, by the mask's rows, for the same reason.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "device/cpu/own_product.h"
#include "device/cpu/own_random.h"
#include "device/cpu/own_rows.h"
#include "ops/attention.h"

namespace plimsoll::cpu {

inline constexpr float kMasked = -std::numeric_limits<float>::infinity();
inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr double kLn2 = 0.69314718055994530942;
inline constexpr int64_t kMostLanes = 64, kTileKeys = 192;  // the queries and the keys of a tile

// 2^x for x that is at most some few; relative error below 2e-7. Below -126 it stays at 1.2e-38.
PLIMSOLL_INLINE f32x16 power_of_two(f32x16 x) {
  const f32x16 rounder = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  x = maximum(splat(-126.0f), x);             // in this order it keeps what is not a number
  const f32x16 shifted = x + rounder;
  const f32x16 r = x - (shifted - rounder);
  f32x16 p = splat(1.3333558146428443e-3f);
  p = p * r + splat(9.6181291076284772e-3f);
  p = p * r + splat(5.5504108664821580e-2f);
  p = p * r + splat(2.4022650695910071e-1f);
  p = p * r + splat(6.9314718055994531e-1f);
  p = p * r + splat(1.0f);
  return bits_as<f32x16>(bits_as<u32x16>(p) + (bits_as<u32x16>(shifted) << splat(23u)));
}
PLIMSOLL_INLINE f32x16 zero_where_masked(f32x16 score, f32x16 v) {
  return choose(score == splat(kMasked), splat(0.0f), v);
}

inline Attention attention_of(const Graph& graph, const Op& op) {
  std::vector<const Tensor*> tensors;
  for (TensorId id : op.inputs) tensors.push_back(&graph.tensor(id));
  return read_attention(op.attributes, tensors, op.type->name == "AttentionForward" ? 3 : 5);
}

inline int64_t up_to(int64_t multiple, int64_t n) { return (n + multiple - 1) / multiple * multiple; }

template <int kWidth>
PLIMSOLL_INLINE void swap_blocks(f32x16 (&rows)[16]) {
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if ((i & kWidth) == 0) swap_blocks<kWidth>(rows[i], rows[i + kWidth]);
  }
}
// Lane j of row i becomes lane i of row j.
PLIMSOLL_INLINE void transpose(f32x16 (&rows)[16]) {
  swap_blocks<8>(rows);
  swap_blocks<4>(rows);
  swap_blocks<2>(rows);
  swap_blocks<1>(rows);
}

// Bit j of word i becomes bit i of word j.
inline void transpose_bits(uint64_t (&words)[64]) {
  uint64_t mask = 0x00000000FFFFFFFF;
  for (int width = 32; width != 0; width /= 2, mask ^= mask << width) {
    for (int k = 0; k < 64; k = (k + width + 1) & ~width) {
      const uint64_t swap = ((words[k] >> width) ^ words[k + width]) & mask;
      words[k] ^= swap << width;
      words[k + width] ^= swap;
    }
  }
}

class AttentionKernel : public OwnKernel {
 public:
  AttentionKernel(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads), a_(attention_of(graph, op)) {
    require_row_major(graph, op);
    parts_ = parts_for(a_.scores() * static_cast<int64_t>(sizeof(float)), threads);
    lanes_ = std::min(kMostLanes, up_to(kLanes, a_.queries));
    tiles_ = (a_.queries + lanes_ - 1) / lanes_;
    threshold_ = dropout_threshold(a_.dropout);
    keep_ = static_cast<float>(1 / (1 - a_.dropout));
    turned_factor_ = static_cast<float>(a_.softcap != 0 ? a_.scale / a_.softcap : a_.scale * kLog2E);
    if (a_.dropout > 0) stream_.emplace(graph, op, static_cast<size_t>(a_.step_at), a_.scores());
  }

 protected:
  // What lies in a thread's part of the workspace; reserved when the kernel is made.
  int64_t reserve(int64_t bytes) {
    const int64_t at = part_bytes_;
    part_bytes_ += up_to(64, bytes);
    return at;
  }
  int64_t reserve_floats(int64_t count) { return reserve(count * static_cast<int64_t>(sizeof(float))); }
  void reserve_shared() {
    turned_at_ = reserve_floats(a_.width * lanes_);
    if (a_.mask.present) bias_at_ = reserve_floats(kTileKeys * lanes_);
    if (a_.dropout > 0) kept_at_ = reserve(kTileKeys * 8);
    if (a_.documents_at >= 0) documents_at_ = reserve(lanes_ * static_cast<int64_t>(sizeof(int32_t)));
  }
  void finish_workspace() { workspace_bytes_ = {part_bytes_ * parts_}; }
  template <class T = float>
  T* of_part(int part, int64_t at) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(workspace_) + part * part_bytes_ + at);
  }

  // A tile of queries of a head, and the keys that any of them sees.
  struct Queries {
    int64_t head, first, count;
    int64_t keys_begin, keys_end;
    // Where there are documents: their ids by key, those of the tile's queries, and the least and the most of them.
    const int32_t *of_keys = nullptr, *of_lanes = nullptr;
    int32_t least = 0, most = 0;
    bool is_of_one_document(int64_t key, int64_t count) const {
      return least == most &&
             std::all_of(of_keys + key, of_keys + key + count, [&](int32_t id) { return id == least; });
    }
  };
  Queries queries_of(int64_t head, int64_t tile) const {
    const int64_t first = tile * lanes_, count = std::min(lanes_, a_.queries - first);
    const int64_t end = std::min(a_.keys, first + count - 1 + std::min(a_.right, a_.keys) + 1);
    const int64_t begin = std::min(end, std::max<int64_t>(0, first - std::min(a_.left, a_.queries)));
    return {head, first, count, begin, end};
  }
  // The same, without the keys at both ends that are of other documents.
  Queries queries_of(int part, int64_t head, int64_t tile) const {
    Queries q = queries_of(head, tile);
    if (a_.documents_at < 0) return q;
    q.of_keys = input<int32_t>(static_cast<size_t>(a_.documents_at)) + a_.documents_of(head);
    const int32_t* own = q.of_keys + q.first;
    const auto [least, most] = std::minmax_element(own, own + q.count);
    q.least = *least, q.most = *most;
    const auto is_other = [&](int64_t key) { return q.of_keys[key] < q.least || q.of_keys[key] > q.most; };
    while (q.keys_begin < q.keys_end && is_other(q.keys_begin)) ++q.keys_begin;
    while (q.keys_begin < q.keys_end && is_other(q.keys_end - 1)) --q.keys_end;
    int32_t* lanes = of_part<int32_t>(part, documents_at_);
    std::fill(std::copy(own, own + q.count, lanes), lanes + lanes_, q.least);
    q.of_lanes = lanes;
    return q;
  }
  // The most keys that a tile of queries sees.
  int64_t most_keys() const {
    int64_t most = 1;
    for (int64_t tile = 0; tile < tiles_; ++tile) {
      const Queries q = queries_of(0, tile);
      most = std::max(most, q.keys_end - q.keys_begin);
    }
    return most;
  }

  int64_t row(const Queries& q) const { return q.head * a_.queries + q.first; }
  const float* keys_of(int64_t head) const { return input(1) + head / a_.groups * a_.keys * a_.width; }
  const float* values_of(int64_t head) const { return input(2) + head / a_.groups * a_.keys * a_.value_width; }

  // Rows become columns, times `factor`; the lanes behind them are zero.
  void turn(const float* rows, int64_t count, int64_t width, float factor, float* to) const {
    for (int64_t c = 0; c < lanes_; c += kLanes) {
      for (int64_t e = 0; e < width; e += kLanes) {
        const int columns = static_cast<int>(std::min(kLanes, width - e));
        f32x16 block[16];
        for (int i = 0; i < 16; ++i) {
          const float* from = rows + (c + i) * width + e;
          block[i] = c + i >= count ? f32x16{} : columns == kLanes ? load(from) : load(from, columns);
          block[i] = block[i] * splat(factor);
        }
        transpose(block);
        for (int i = 0; i < columns; ++i) store(to + (e + i) * lanes_ + c, block[i]);
      }
    }
  }

  // Turns a tile's products into scores in powers of two, where they are capped; and writes what tanh lets through, if asked.
  void cap(int64_t count, float* scores, float* slopes) const {
    if (a_.softcap == 0) return;
    const f32x16 factor = splat(static_cast<float>(a_.softcap) * kLog2E);
    for (int64_t i = 0; i < count * lanes_; i += kLanes) {
      const f32x16 bent = hyperbolic_tangent(load(scores + i));
      store(scores + i, bent * factor);
      if (slopes != nullptr) store(slopes + i, splat(1.0f) - bent * bent);
    }
  }

  // What is added to a tile's scores, in powers of two. A mask that is the same for all queries is a number a key.
  struct Bias {
    const float* scores = nullptr;  // none: nothing is added
    bool by_key = false;
    PLIMSOLL_INLINE f32x16 at(int64_t j, int64_t lanes, int64_t c) const {
      return by_key ? splat(scores[j]) : load(scores + j * lanes + c);
    }
  };
  // Returns false where the mask leaves nothing of the tile.
  bool read_mask(int part, const Queries& q, int64_t key, int64_t count, Bias& bias) const {
    if (!a_.mask.present) return true;
    float* to = of_part(part, bias_at_);
    bias = {to, a_.mask.to_row == 0};
    const int64_t rows = bias.by_key ? 1 : q.count, stride = bias.by_key ? 1 : lanes_;
    const int64_t at = a_.mask.offset(q.head) + q.first * a_.mask.to_row + key * a_.mask.to_column;
    bool any = false;
    const auto fill = [&](const auto* mask, const auto& value) {
      for (int64_t r = 0; r < rows; ++r) {
        const auto* from = mask + r * a_.mask.to_row;
        for (int64_t j = 0; j < count; ++j) {
          const float v = value(from[j * a_.mask.to_column]);
          any = any || v != kMasked;
          to[j * stride + r] = v;
        }
      }
    };
    if (a_.mask.bytes) {
      fill(input<uint8_t>(static_cast<size_t>(a_.mask_at)) + at, [](uint8_t v) { return v != 0 ? 0.0f : kMasked; });
    } else {
      // What is finite stays so: a query of which every score has the least number attends to all keys alike.
      fill(input(static_cast<size_t>(a_.mask_at)) + at,
           [](float v) { return v == kMasked ? v : std::max(v * kLog2E, std::numeric_limits<float>::lowest()); });
    }
    if (any && !bias.by_key) {
      for (int64_t j = 0; j < count; ++j) std::fill(to + j * stride + rows, to + j * stride + lanes_, 0.0f);
    }
    return any;
  }

  // Calls body(score) with score(j, c, v): lanes [c, c + 16) of key `key` + j, minus infinity where one sees it not.
  template <class Body>
  PLIMSOLL_INLINE void with_scores(const Queries& q, int64_t key, int64_t count, const Bias& bias,
                                   const Body& body) const {
    const int64_t last = q.first + q.count - 1;
    const bool of_others = q.of_keys != nullptr && !q.is_of_one_document(key, count);
    const bool whole = (a_.right >= a_.keys || key + count - 1 <= q.first + a_.right) &&
                       (a_.left >= a_.queries || key >= last - a_.left) && !of_others;
    if (whole && bias.scores == nullptr) return body([](int64_t, int64_t, f32x16 v) PLIMSOLL_INLINED { return v; });
    if (whole) return body([&](int64_t j, int64_t c, f32x16 v) PLIMSOLL_INLINED { return v + bias.at(j, lanes_, c); });
    const i32x16 lane = lane_numbers();
    const auto most = [](int64_t n) { return static_cast<int32_t>(std::min<int64_t>(n, 1 << 30)); };
    const int32_t left = most(a_.left), right = most(a_.right), away = static_cast<int32_t>(key - q.first);
    const auto within = [&](int64_t j, int64_t c, f32x16 v) PLIMSOLL_INLINED {
      const i32x16 behind = splat(away + static_cast<int32_t>(j - c)) - lane;  // how far the key is behind the query
      if (bias.scores != nullptr) v = v + bias.at(j, lanes_, c);
      v = choose(behind <= splat(right), v, splat(kMasked));
      return choose(behind >= splat(-left), v, splat(kMasked));
    };
    if (!of_others) return body(within);
    body([&](int64_t j, int64_t c, f32x16 v) PLIMSOLL_INLINED {
      return choose(load(q.of_lanes + c) == splat(q.of_keys[key + j]), within(j, c, v), splat(kMasked));
    });
  }

  // Draws what dropout keeps of a tile: a word of lanes for each key.
  void draw(int part, const Queries& q, int64_t key, int64_t count) const {
    uint64_t* kept = of_part<uint64_t>(part, kept_at_);
    const RandomStream stream = stream_->of(inputs_);
    for (int64_t j = 0; j < count; j += 64) {
      uint64_t words[64] = {};
      for (int64_t r = 0; r < q.count; ++r) {
        const int64_t first = (row(q) + r) * a_.keys + key + j, shift = first % 64;
        words[r] = kept_bits_from(stream, first - shift, threshold_) >> shift;
        if (shift > 0 && j + 64 - shift < count) {
          words[r] |= kept_bits_from(stream, first - shift + 64, threshold_) << (64 - shift);
        }
      }
      transpose_bits(words);
      std::copy_n(words, std::min<int64_t>(64, count - j), kept + j);
    }
  }
  // Calls body(kept) with kept(j, c): the bits of sixteen lanes.
  template <class Body>
  PLIMSOLL_INLINE void with_dropout(int part, const Queries& q, int64_t key, int64_t count, const Body& body) const {
    if (a_.dropout == 0) return body(std::false_type{}, [](int64_t, int64_t) PLIMSOLL_INLINED { return 0xffffu; });
    draw(part, q, key, count);
    const uint64_t* kept = of_part<uint64_t>(part, kept_at_);
    body(std::true_type{},
         [kept](int64_t j, int64_t c) PLIMSOLL_INLINED { return static_cast<uint32_t>(kept[j] >> c) & 0xffffu; });
  }

  // Of a query that may attend to no key: what stays of the probability that all keys have alike.
  class Alike {
   public:
    Alike(const AttentionKernel& kernel, int64_t row) : kernel_(kernel), first_(row * kernel.a_.keys) {
      if (kernel.stream_) random_ = kernel.stream_->of(kernel.inputs_);
    }
    float probability() const { return 1 / static_cast<float>(kernel_.a_.keys); }
    float kept(int64_t key, float value) const {
      if (!kernel_.stream_) return value;
      return random_.bits(first_ + key) >= kernel_.threshold_ ? value * kernel_.keep_ : 0;
    }

   private:
    const AttentionKernel& kernel_;
    int64_t first_;
    RandomStream random_;
  };
  bool are_alike(float log_sum) const { return log_sum == -kMasked && a_.blind != Attention::Blind::zero; }

  Attention a_;
  int64_t lanes_ = 0, tiles_ = 0;  // queries of a tile, and tiles of a head
  int64_t turned_at_ = 0;          // the queries, turned over
  float keep_ = 1;
  float turned_factor_ = 1;  // of the queries, when they are turned over

 private:
  std::optional<DrawnStream> stream_;
  uint32_t threshold_ = 0;
  int64_t part_bytes_ = 0, bias_at_ = 0, kept_at_ = 0, documents_at_ = 0;
};

}  // namespace plimsoll::cpu
