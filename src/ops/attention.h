// What an attention op is told by its shapes and attributes, for the reference and for the devices' kernels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll {

// Every query head attends by itself: scores[l,s] = capped(scale * q k') + mask, y = softmax(scores) v. Heads are counted over
// all dimensions before the last two; query heads h * groups .. h * groups + groups - 1 share head h of k and v.
struct Attention {
  int64_t heads = 1;                                          // of k and v
  int64_t groups = 1;                                         // query heads of each
  int64_t queries = 1, keys = 1, width = 1, value_width = 1;  // L, S, E, Ev
  double scale = 1;
  double softcap = 0;  // capped(x) = softcap * tanh(x / softcap); where it is 0, x
  // A query whose scores are all below this has nothing but large numbers that a mask adds. Its log_sum is as large, and has lost
  // how many there are.
  static constexpr double kLost = -1e3;
  // Query l attends to keys l - left .. l + right; kEvery: as far as there are keys.
  static constexpr int64_t kEvery = int64_t{1} << 40;
  int64_t left = kEvery, right = kEvery;
  bool sees(int64_t query, int64_t key) const { return key <= query + right && key >= query - left; }
  // Of several documents in a row, a query attends to its own alone: those keys whose ids [rows, keys] are its own.
  int64_t heads_of_documents = 1;  // query heads that read one row of ids
  int64_t documents_of(int64_t query_head) const { return query_head / heads_of_documents * keys; }
  double dropout = 0;
  uint32_t salt = 0;
  // What a query gets that may attend to no key: 0, or the mean of all values, as where each of its scores has the same large
  // negative number. The number took the score's place (alike), or was added to it (alike_with_gradient), so that q and k
  // have a gradient.
  enum class Blind : uint8_t { zero, alike, alike_with_gradient };
  Blind blind = Blind::zero;
  int64_t query_heads() const { return heads * groups; }
  int64_t scores() const { return query_heads() * queries * keys; }

  // The mask's strides along the dimensions of the query heads; all 0 where there is none.
  struct Mask {
    bool present = false, bytes = false;  // bytes: what is 0 is not attended to; else what is added
    std::vector<int64_t> sizes, strides;  // of the dimensions before the last two of q
    int64_t to_row = 0, to_column = 0;
    int64_t offset(int64_t query_head) const;
  } mask;
  // Which of the op's inputs they are; -1: none.
  int mask_at = -1, documents_at = -1, step_at = -1, seed_at = -1;
};

// `inputs` are q, k, v and whatever follows; `first_optional` is where the first of mask, documents and step_number
// stands: 3 in a forward op, 5 in a backward op. Throws Error(invalid_input) or Error(unsupported) that names what does not fit.
Attention read_attention(const Attributes& attributes, std::span<const Tensor* const> inputs, size_t first_optional);

}  // namespace plimsoll
