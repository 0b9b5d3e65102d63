// Attention, forward (own_attention.h).
#include "device/cpu/own_attention.h"

namespace plimsoll::cpu {
namespace {

class AttentionForward : public AttentionKernel {
 public:
  AttentionForward(const Graph& graph, const Op& op, int threads) : AttentionKernel(graph, op, threads) {
    parts_ = static_cast<int>(std::min<int64_t>(parts_, a_.query_heads() * tiles_));
    reserve_shared();
    stride_ = up_to(kLanes, a_.value_width);
    scores_at_ = reserve_floats(kTileKeys * lanes_);
    result_at_ = reserve_floats(lanes_ * stride_);
    numbers_at_ = reserve_floats(3 * lanes_);
    finish_workspace();
  }

  void run() override {
    // Tiles of one number over all heads follow each other in turn, so that causality leaves every thread as much.
    const int64_t units = a_.query_heads() * tiles_;
    for_each_part(parts_, [&](int part) {
      for (int64_t unit = part; unit < units; unit += parts_)
        tile(part, queries_of(part, unit / tiles_, unit % tiles_));
    });
  }

 private:
  void tile(int part, const Queries& q) const {
    float* turned = of_part(part, turned_at_);
    turn(input(0) + row(q) * a_.width, q.count, a_.width, turned_factor_, turned);
    float* scores = of_part(part, scores_at_);
    float* result = of_part(part, result_at_);
    float* tops = of_part(part, numbers_at_);
    float *sums = tops + lanes_, *scales = sums + lanes_;
    std::fill(tops, tops + lanes_, kMasked);
    std::fill(sums, sums + lanes_, 0.0f);
    const int64_t rows = std::min(lanes_, up_to(8, q.count));
    bool adds = false;
    for (int64_t key = q.keys_begin; key < q.keys_end; key += kTileKeys) {
      const int64_t count = std::min(kTileKeys, q.keys_end - key);
      Bias bias;
      if (!read_mask(part, q, key, count, bias)) continue;
      multiply<false>({count, lanes_, a_.width}, {keys_of(q.head) + key * a_.width, a_.width, 1}, turned, lanes_,
                      scores, lanes_);
      cap(count, scores, nullptr);
      bool rescale = false;
      with_scores(q, key, count, bias, [&](const auto& score) {
        with_dropout(part, q, key, count, [&](auto drops, const auto& kept) {
          for (int64_t c = 0; c < lanes_; c += kLanes) {
            const f32x16 before = load(tops + c);
            f32x16 top = before;
            for (int64_t j = 0; j < count; ++j) top = maximum(score(j, c, load(scores + j * lanes_ + c)), top);
            const f32x16 base = choose(top == splat(kMasked), splat(0.0f), top);
            const f32x16 scale = zero_where_masked(before, power_of_two(before - base));
            f32x16 sum{}, other{};
            const auto exponential_of = [&](int64_t j) PLIMSOLL_INLINED {
              float* at = scores + j * lanes_ + c;
              const f32x16 v = score(j, c, load(at));
              const f32x16 p = zero_where_masked(v, power_of_two(v - base));
              store(at, decltype(drops)::value ? keep_lanes(kept(j, c), p) : p);
              return p;
            };
            int64_t j = 0;
            for (; j + 2 <= count; j += 2) sum += exponential_of(j), other += exponential_of(j + 1);
            if (j < count) sum += exponential_of(j);
            store(tops + c, top);
            store(sums + c, load(sums + c) * scale + (sum + other));
            store(scales + c, scale);
          }
        });
      });
      if (adds) {
        for (int64_t r = 0; r < q.count; ++r) rescale = rescale || scales[r] != 1;
      }
      if (rescale) {
        for (int64_t r = 0; r < q.count; ++r) {
          const f32x16 scale = splat(scales[r]);
          for (int64_t e = 0; e < stride_; e += kLanes) {
            float* at = result + r * stride_ + e;
            store(at, load(at) * scale);
          }
        }
      }
      const float* values = values_of(q.head) + key * a_.value_width;
      const ProductSizes sizes{rows, a_.value_width, count};
      if (adds) {
        multiply<true>(sizes, {scores, 1, lanes_}, values, a_.value_width, result, stride_);
      } else {
        multiply<false>(sizes, {scores, 1, lanes_}, values, a_.value_width, result, stride_);
      }
      adds = true;
    }
    for (int64_t r = 0; r < q.count; ++r) {
      float* y = output(0) + (row(q) + r) * a_.value_width;
      const bool none = tops[r] == kMasked, is_least = tops[r] == std::numeric_limits<float>::lowest();
      output(1)[row(q) + r] =
          none       ? -kMasked
          : is_least ? tops[r]
                     : static_cast<float>(static_cast<double>(tops[r]) * kLn2 + std::log(static_cast<double>(sums[r])));
      if (none) {
        std::fill(y, y + a_.value_width, 0.0f);
        if (are_alike(output(1)[row(q) + r])) add_alike(q, r, y);
        continue;
      }
      const f32x16 scale = splat(keep_ / sums[r]);
      over_row(a_.value_width, [&](int64_t e, auto n) { store(y + e, load(result + r * stride_ + e, n) * scale, n); });
    }
  }

  void add_alike(const Queries& q, int64_t r, float* y) const {
    const Alike alike(*this, row(q) + r);
    const float* values = values_of(q.head);
    for (int64_t key = 0; key < a_.keys; ++key) {
      const f32x16 kept = splat(alike.kept(key, alike.probability()));
      const float* value = values + key * a_.value_width;
      over_row(a_.value_width, [&](int64_t e, auto n) { store(y + e, load(y + e, n) + kept * load(value + e, n), n); });
    }
  }

  int64_t stride_ = 0;  // of the results' rows
  int64_t scores_at_ = 0, result_at_ = 0, numbers_at_ = 0;
};

}  // namespace

std::vector<NamedFactory> attention_forward_kernels() {
  return {{"AttentionForward", {own_specs_row_major, make_own<AttentionForward>}}};
}

}  // namespace plimsoll::cpu
