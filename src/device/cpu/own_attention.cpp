// Attention in blocks of queries: a block's scores with all keys lie in the workspace of the thread that has it, and
// nowhere else. Products are oneDNN's, each by one thread; heads and blocks are divided over the threads.
//
// Backward, a thread has whole heads of k and v, so that what all their queries add to dk and dv is added in one order.
// A mask's gradient takes a second walk, by the mask's rows, for the same reason.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "device/cpu/own_random.h"
#include "device/cpu/own_rows.h"
#include "device/cpu/product.h"
#include "ops/attention.h"

namespace plimsoll::cpu {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

typedef uint8_t u8x16 __attribute__((vector_size(16)));

// v where the bytes are not 0, else minus infinity.
PLIMSOLL_INLINE f32x16 where_set(const uint8_t* bytes, int count, f32x16 v) {
  u8x16 some{};
  std::memcpy(&some, bytes, static_cast<size_t>(count));
  return __builtin_convertvector(some, i32x16) != splat(int32_t{0}) ? v : splat(kMasked);
}

Attention attention_of(const Graph& graph, const Op& op) {
  std::vector<const Tensor*> tensors;
  for (TensorId id : op.inputs) tensors.push_back(&graph.tensor(id));
  return read_attention(op.attributes, tensors, op.type->name == "AttentionForward" ? 3 : 5);
}

int64_t up_to_line(int64_t bytes) { return (bytes + 63) / 64 * 64; }

class AttentionKernel : public OwnKernel {
 public:
  AttentionKernel(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads), a_(attention_of(graph, op)) {
    require_row_major(graph, op);
    parts_ = parts_for(a_.scores() * static_cast<int64_t>(sizeof(float)), threads);
    // Blocks whose scores stay in a core's cache, of equal sizes as far as that goes.
    const int64_t most = std::clamp<int64_t>(kBlockScores / a_.keys / 16 * 16, 16, 128);
    blocks_ = (a_.queries + most - 1) / most;
    rows_ = (a_.queries + blocks_ - 1) / blocks_;
    blocks_ = (a_.queries + rows_ - 1) / rows_;
    threshold_ = dropout_threshold(a_.dropout);
    keep_ = static_cast<float>(1 / (1 - a_.dropout));
    if (a_.dropout > 0) stream_.emplace(graph, op, static_cast<size_t>(a_.step_at), a_.scores());
  }

 protected:
  static constexpr int64_t kBlockScores = 64 * 1024;

  // A product for whole blocks of queries, and one for the last block where it is smaller; by part.
  class BlockProduct {
   public:
    template <class Sizes>  // sizes(rows) -> MatrixProducts
    void make(const AttentionKernel& kernel, const Op& op, const Sizes& sizes, bool adds = false) {
      const int64_t last = kernel.rows_of(kernel.blocks_ - 1);
      for (int part = 0; part < kernel.parts_; ++part) {
        whole_.push_back(make_product(op, sizes(kernel.rows_), adds));
        if (last != kernel.rows_) last_.push_back(make_product(op, sizes(last), adds));
      }
    }
    int64_t scratch() const {
      int64_t most = 0;
      for (const auto* list : {&whole_, &last_}) {
        for (const auto& product : *list) most = std::max(most, product->workspace().count);
      }
      return most;
    }
    void run(int part, bool last, const float* a, const float* b, float* y, void* scratch) const {
      Kernel& product = *(last && !last_.empty() ? last_ : whole_)[static_cast<size_t>(part)];
      void* const inputs[] = {const_cast<float*>(a), const_cast<float*>(b)};
      void* const output = y;
      product.bind(inputs, std::span(&output, 1), scratch);
      product.run();
    }

   private:
    std::vector<std::unique_ptr<Kernel>> whole_, last_;
  };

  // What a thread has of the workspace: `buffers` blocks of scores, the bits of a row's draws, the products' scratch.
  void lay_out_workspace(int buffers, int64_t scratch) {
    buffer_bytes_ = up_to_line(rows_ * a_.keys * static_cast<int64_t>(sizeof(float)));
    bits_at_ = buffers * buffer_bytes_;
    scratch_at_ = bits_at_ + (a_.dropout > 0 ? up_to_line(a_.keys / 8 + 32) : 0);
    part_bytes_ = scratch_at_ + up_to_line(scratch);
    workspace_bytes_ = {part_bytes_ * parts_};
  }
  std::byte* of_part(int part, int64_t at) const {
    return static_cast<std::byte*>(workspace_) + part * part_bytes_ + at;
  }
  float* buffer(int part, int i) const { return reinterpret_cast<float*>(of_part(part, i * buffer_bytes_)); }
  uint8_t* bits(int part) const { return reinterpret_cast<uint8_t*>(of_part(part, bits_at_)); }
  void* product_scratch(int part) const { return of_part(part, scratch_at_); }

  int64_t rows_of(int64_t block) const { return std::min(rows_, a_.queries - block * rows_); }
  bool is_last(int64_t block) const { return block == blocks_ - 1; }
  int64_t visible(int64_t l) const { return a_.causal ? std::min(a_.keys, l + 1) : a_.keys; }

  MatrixProducts scores_product(int64_t rows) const {
    return {.m = rows, .n = a_.keys, .k = a_.width, .transpose_a = false, .transpose_b = true, .batch = {}};
  }
  const float* queries_of(int64_t head, int64_t block) const {
    return input(0) + (head * a_.queries + block * rows_) * a_.width;
  }
  const float* keys_of(int64_t head) const { return input(1) + head / a_.groups * a_.keys * a_.width; }
  const float* values_of(int64_t head) const { return input(2) + head / a_.groups * a_.keys * a_.value_width; }

  // Calls body(score) with the function score(i, n) of a row: scaled, with the mask, from the products in `row`.
  template <class Body>
  PLIMSOLL_INLINE void with_scores(const float* row, int64_t head, int64_t l, const Body& body) const {
    const f32x16 scale = splat(static_cast<float>(a_.scale));
    const auto plain = [row, scale](int64_t i, auto n) { return load(row + i, n) * scale; };
    if (!a_.mask.present) return body(plain);
    const int64_t at = a_.mask.offset(head) + l * a_.mask.to_row;
    if (a_.mask.bytes) {
      const uint8_t* mask = input<uint8_t>(static_cast<size_t>(a_.mask_at)) + at;
      if (a_.mask.to_column != 0) {
        return body([=](int64_t i, auto n) { return where_set(mask + i, n, plain(i, n)); });
      }
      const bool set = *mask != 0;
      return body([=](int64_t i, auto n) { return set ? plain(i, n) : splat(kMasked); });
    }
    const float* mask = input(static_cast<size_t>(a_.mask_at)) + at;
    if (a_.mask.to_column != 0) return body([=](int64_t i, auto n) { return plain(i, n) + load(mask + i, n); });
    const f32x16 same = splat(*mask);
    body([=](int64_t i, auto n) { return plain(i, n) + same; });
  }

  // What dropout keeps of a row: kept(i, n, v) after draw_row.
  struct KeptBits {
    const uint8_t* bits;
    int64_t from;
    f32x16 scale;
    template <class Count>
    PLIMSOLL_INLINE f32x16 operator()(int64_t i, Count n, f32x16 v) const {
      return keep_lanes(any_bits(bits, from + i, n), v * scale);
    }
  };
  KeptBits draw_row(int part, int64_t head, int64_t l) const {
    const RandomStream stream = stream_->of(inputs_);
    const int64_t first = (head * a_.queries + l) * a_.keys, begin = first / 64 * 64;
    uint8_t* to = bits(part);
    for (int64_t i = begin; i < first + a_.keys; i += 64, to += 8) {
      const uint64_t kept = kept_bits_from(stream, i, threshold_);
      std::memcpy(to, &kept, sizeof kept);
    }
    return {bits(part), first - begin, splat(keep_)};
  }
  // Calls body(kept) with what dropout makes of values of this row.
  template <class Body>
  PLIMSOLL_INLINE void with_dropout(int part, int64_t head, int64_t l, const Body& body) const {
    if (a_.dropout > 0) return body(draw_row(part, head, l));
    body([](int64_t, auto, f32x16 v) { return v; });
  }

  Attention a_;
  std::optional<DrawnStream> stream_;
  int64_t blocks_ = 1, rows_ = 1;  // of queries

 private:
  uint32_t threshold_ = 0;
  float keep_ = 1;
  int64_t buffer_bytes_ = 0, bits_at_ = 0, scratch_at_ = 0, part_bytes_ = 0;
};

class AttentionForward : public AttentionKernel {
 public:
  AttentionForward(const Graph& graph, const Op& op, int threads) : AttentionKernel(graph, op, threads) {
    parts_ = static_cast<int>(std::min<int64_t>(parts_, a_.query_heads() * blocks_));
    scores_.make(*this, op, [this](int64_t rows) { return scores_product(rows); });
    results_.make(*this, op, [this](int64_t rows) {
      return MatrixProducts{.m = rows, .n = a_.value_width, .k = a_.keys, .batch = {}};
    });
    lay_out_workspace(1, std::max(scores_.scratch(), results_.scratch()));
  }

  void run() override {
    for_each_part(parts_, [&](int part) {
      const Range units = share(a_.query_heads() * blocks_, part, parts_);
      for (int64_t unit = units.begin; unit < units.end; ++unit) block(part, unit / blocks_, unit % blocks_);
    });
  }

 private:
  void block(int part, int64_t head, int64_t block) const {
    float* scores = buffer(part, 0);
    scores_.run(part, is_last(block), queries_of(head, block), keys_of(head), scores, product_scratch(part));
    for (int64_t r = 0; r < rows_of(block); ++r) {
      const int64_t l = block * rows_ + r;
      output(1)[head * a_.queries + l] = row(scores + r * a_.keys, part, head, l);
    }
    results_.run(part, is_last(block), scores, values_of(head),
                 output(0) + (head * a_.queries + block * rows_) * a_.value_width, product_scratch(part));
  }

  // Scores become probabilities; returns the logarithm of their sum before.
  float row(float* s, int part, int64_t head, int64_t l) const {
    const int64_t length = visible(l);
    float top = kMasked;
    with_scores(s, head, l, [&](const auto& score) {
      top = row_top(length, [&](int64_t i, auto n) {
        const f32x16 v = score(i, n);
        store(s + i, v, n);
        return v;
      });
    });
    if (top == kMasked) {
      std::fill(s, s + a_.keys, 0.0f);
      return -kMasked;
    }
    const f32x16 tops = splat(top);
    double sums[1];
    row_sums<1>(
        length,
        [&](int64_t i, auto n, auto& sum) {
          const f32x16 e = first_lanes(exponential_or_zero(load(s + i, n) - tops), n);
          store(s + i, e, n);
          sum[0] += e;
        },
        sums);
    const f32x16 scale = splat(static_cast<float>(1 / sums[0]));
    with_dropout(part, head, l, [&](const auto& kept) {
      over_row(length, [&](int64_t i, auto n) { store(s + i, kept(i, n, load(s + i, n) * scale), n); });
    });
    std::fill(s + length, s + a_.keys, 0.0f);
    return top + static_cast<float>(std::log(sums[0]));
  }

  BlockProduct scores_, results_;
};

class AttentionBackward : public AttentionKernel {
 public:
  AttentionBackward(const Graph& graph, const Op& op, int threads)
      : AttentionKernel(graph, op, threads), mask_gradient_(op.outputs.size() > 3) {
    find_mask_rows();
    const int64_t units = std::max(a_.heads, static_cast<int64_t>(mask_places_.size()) * mask_blocks_);
    parts_ = static_cast<int>(std::min<int64_t>(parts_, units));
    const int64_t keys = a_.keys, width = a_.width, value_width = a_.value_width;
    scores_.make(*this, op, [this](int64_t rows) { return scores_product(rows); });
    probabilities_.make(*this, op, [=](int64_t rows) {
      return MatrixProducts{.m = rows, .n = keys, .k = value_width, .transpose_b = true, .batch = {}};
    });
    queries_.make(*this, op,
                  [=](int64_t rows) { return MatrixProducts{.m = rows, .n = width, .k = keys, .batch = {}}; });
    for (const bool adds : {false, true}) {
      keys_[adds ? 1 : 0].make(
          *this, op,
          [=](int64_t rows) {
            return MatrixProducts{.m = keys, .n = width, .k = rows, .transpose_a = true, .batch = {}};
          },
          adds);
      values_[adds ? 1 : 0].make(
          *this, op,
          [=](int64_t rows) {
            return MatrixProducts{.m = keys, .n = value_width, .k = rows, .transpose_a = true, .batch = {}};
          },
          adds);
    }
    int64_t scratch = 0;
    for (const BlockProduct* product :
         {&scores_, &probabilities_, &queries_, &keys_[0], &keys_[1], &values_[0], &values_[1]}) {
      scratch = std::max(scratch, product->scratch());
    }
    lay_out_workspace(2, scratch);
  }

  void run() override {
    for_each_part(parts_, [&](int part) {
      const Range heads = share(a_.heads, part, parts_);
      for (int64_t h = heads.begin; h < heads.end; ++h) head_of_keys(part, h);
    });
    if (!mask_gradient_) return;
    const int64_t units = static_cast<int64_t>(mask_places_.size()) * mask_blocks_;
    for_each_part(parts_, [&](int part) {
      const Range range = share(units, part, parts_);
      for (int64_t unit = range.begin; unit < range.end; ++unit) {
        mask_rows(part, mask_places_[static_cast<size_t>(unit / mask_blocks_)], unit % mask_blocks_);
      }
    });
  }

 private:
  void head_of_keys(int part, int64_t h) const {
    float* dk = output(1) + h * a_.keys * a_.width;
    float* dv = output(2) + h * a_.keys * a_.value_width;
    bool adds = false;
    for (int64_t head = h * a_.groups; head < (h + 1) * a_.groups; ++head) {
      for (int64_t block = 0; block < blocks_; ++block) {
        score_gradients(part, head, block, static_cast<float>(a_.scale));
        const bool last = is_last(block);
        void* scratch = product_scratch(part);
        queries_.run(part, last, buffer(part, 1), keys_of(head),
                     output(0) + (head * a_.queries + block * rows_) * a_.width, scratch);
        keys_[adds ? 1 : 0].run(part, last, buffer(part, 1), queries_of(head, block), dk, scratch);
        values_[adds ? 1 : 0].run(part, last, buffer(part, 0), gradients_of(head, block), dv, scratch);
        adds = true;
      }
    }
  }

  const float* gradients_of(int64_t head, int64_t block) const {
    return input(3) + (head * a_.queries + block * rows_) * a_.value_width;
  }

  // Buffer 0 becomes the dropped probabilities, buffer 1 `factor` times the gradient of the scores.
  void score_gradients(int part, int64_t head, int64_t block, float factor) const {
    scores_.run(part, is_last(block), queries_of(head, block), keys_of(head), buffer(part, 0), product_scratch(part));
    probabilities_.run(part, is_last(block), gradients_of(head, block), values_of(head), buffer(part, 1),
                       product_scratch(part));
    for (int64_t r = 0; r < rows_of(block); ++r) {
      row(buffer(part, 0) + r * a_.keys, buffer(part, 1) + r * a_.keys, part, head, block * rows_ + r, factor);
    }
  }

  void row(float* s, float* d, int part, int64_t head, int64_t l, float factor) const {
    const int64_t length = visible(l);
    const f32x16 log_sum = splat(input(4)[head * a_.queries + l]), factors = splat(factor);
    with_dropout(part, head, l, [&](const auto& kept) {
      double sums[1];
      with_scores(s, head, l, [&](const auto& score) {
        row_sums<1>(
            length,
            [&](int64_t i, auto n, auto& sum) {
              const f32x16 p = first_lanes(exponential_or_zero(score(i, n) - log_sum), n);
              const f32x16 dp = kept(i, n, load(d + i, n));
              store(s + i, p, n);
              store(d + i, dp, n);
              sum[0] += p * dp;
            },
            sums);
      });
      const f32x16 dot = splat(static_cast<float>(sums[0]));
      over_row(length, [&](int64_t i, auto n) {
        const f32x16 p = load(s + i, n);
        store(d + i, p * (load(d + i, n) - dot) * factors, n);
        store(s + i, kept(i, n, p), n);
      });
    });
    std::fill(s + length, s + a_.keys, 0.0f);
    std::fill(d + length, d + a_.keys, 0.0f);
  }

  // The mask's rows, as units whose sums are their own: by where a head's mask lies, and by block of queries where each
  // query has a row.
  void find_mask_rows() {
    if (!mask_gradient_) return;
    for (int64_t head = 0; head < a_.query_heads(); ++head) mask_places_.push_back(a_.mask.offset(head));
    std::sort(mask_places_.begin(), mask_places_.end());
    mask_places_.erase(std::unique(mask_places_.begin(), mask_places_.end()), mask_places_.end());
    mask_blocks_ = a_.mask.to_row != 0 ? blocks_ : 1;
  }

  void mask_rows(int part, int64_t place, int64_t unit) const {
    const bool by_row = a_.mask.to_row != 0;
    const int64_t columns = a_.mask.to_column != 0 ? a_.keys : 1, rows = by_row ? rows_of(unit) : 1;
    float* gradient = output(3) + place + (by_row ? unit * rows_ * a_.mask.to_row : 0);
    std::fill(gradient, gradient + rows * columns, 0.0f);
    const int64_t first = by_row ? unit : 0, end = by_row ? unit + 1 : blocks_;
    for (int64_t head = 0; head < a_.query_heads(); ++head) {
      if (a_.mask.offset(head) != place) continue;
      for (int64_t block = first; block < end; ++block) {
        score_gradients(part, head, block, 1);
        for (int64_t r = 0; r < rows_of(block); ++r) {
          add_row(buffer(part, 1) + r * a_.keys, gradient + (by_row ? r * a_.mask.to_row : 0));
        }
      }
    }
  }
  void add_row(const float* d, float* gradient) const {
    if (a_.mask.to_column != 0) {
      return over_row(a_.keys,
                      [&](int64_t i, auto n) { store(gradient + i, load(gradient + i, n) + load(d + i, n), n); });
    }
    double sums[1];
    row_sums<1>(
        a_.keys, [&](int64_t i, auto n, auto& sum) { sum[0] += load(d + i, n); }, sums);
    *gradient += static_cast<float>(sums[0]);
  }

  bool mask_gradient_;
  std::vector<int64_t> mask_places_;
  int64_t mask_blocks_ = 0;
  BlockProduct scores_, probabilities_, queries_;
  BlockProduct keys_[2], values_[2];  // the first product of a head; those that add to it
};

}  // namespace

std::vector<NamedFactory> attention_kernels() {
  return {{"AttentionForward", {own_specs_row_major, make_own<AttentionForward>}},
          {"AttentionBackward", {own_specs_row_major, make_own<AttentionBackward>}}};
}

}  // namespace plimsoll::cpu
