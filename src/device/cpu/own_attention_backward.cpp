// Attention, backward (own_attention.h).
#include "device/cpu/own_attention.h"

namespace plimsoll::cpu {
namespace {

class AttentionBackward : public AttentionKernel {
 public:
  AttentionBackward(const Graph& graph, const Op& op, int threads)
      : AttentionKernel(graph, op, threads), mask_gradient_(op.outputs.size() > 3) {
    find_mask_rows();
    if (a_.heads < parts_) slices_ = static_cast<int>(std::min(parts_ / a_.heads, a_.groups * tiles_));
    const int64_t units = std::max(a_.heads * slices_, static_cast<int64_t>(mask_places_.size()) * mask_tiles_);
    parts_ = static_cast<int>(std::min<int64_t>(parts_, units));
    reserve_shared();
    if (slices_ > 1) slice_at_ = reserve_floats(a_.keys * (a_.width + a_.value_width));
    const int64_t keys = most_keys();
    turned_gradient_at_ = reserve_floats(a_.value_width * lanes_);
    p_at_ = reserve_floats(keys * lanes_);
    ds_at_ = reserve_floats(keys * lanes_);
    if (a_.softcap != 0) slopes_at_ = reserve_floats(keys * lanes_);
    dq_at_ = reserve_floats(lanes_ * a_.width);
    numbers_at_ = reserve_floats(3 * lanes_);
    left_out_at_ = reserve((keys + kTileKeys - 1) / kTileKeys);
    if (a_.blind != Attention::Blind::zero) alike_at_ = reserve_floats(a_.keys);
    finish_workspace();
  }

  void run() override {
    const auto units = static_cast<int>(a_.heads * slices_), key_parts = std::min(parts_, units);
    for_each_part(key_parts, [&](int part) {
      const Range range = share(units, part, key_parts);
      for (int64_t unit = range.begin; unit < range.end; ++unit) queries_of_slice(part, unit / slices_, unit % slices_);
    });
    if (slices_ > 1) add_slices();
    if (!mask_gradient_) return;
    const int64_t mask_units = static_cast<int64_t>(mask_places_.size()) * mask_tiles_;
    for_each_part(parts_, [&](int part) {
      const Range range = share(mask_units, part, parts_);
      for (int64_t unit = range.begin; unit < range.end; ++unit) {
        mask_rows(part, mask_places_[static_cast<size_t>(unit / mask_tiles_)], unit % mask_tiles_);
      }
    });
  }

 private:
  // Calls body(key, count, p, ds) for the tiles of keys that are not left out, with where their scores lie.
  template <class Body>
  void for_each_tile(int part, const Queries& q, const Body& body) const {
    const uint8_t* left_out = of_part<uint8_t>(part, left_out_at_);
    for (int64_t key = q.keys_begin; key < q.keys_end; key += kTileKeys) {
      const int64_t from = key - q.keys_begin;
      if (left_out[from / kTileKeys] != 0) continue;
      body(key, std::min(kTileKeys, q.keys_end - key), of_part(part, p_at_) + from * lanes_,
           of_part(part, ds_at_) + from * lanes_);
    }
  }

  // What a slice of a head of keys adds to its gradients; where there are several, each is a part's, and the first writes the output.
  float* keys_gradient(int64_t h, int64_t slice) const {
    return slice == 0 ? output(1) + h * a_.keys * a_.width : of_part(static_cast<int>(h * slices_ + slice), slice_at_);
  }
  float* values_gradient(int64_t h, int64_t slice) const {
    return slice == 0 ? output(2) + h * a_.keys * a_.value_width : keys_gradient(h, slice) + a_.keys * a_.width;
  }

  // Every slices-th tile of the queries that attend to a head of keys.
  void queries_of_slice(int part, int64_t h, int64_t slice) const {
    float *dk = keys_gradient(h, slice), *dv = values_gradient(h, slice);
    std::fill(dk, dk + a_.keys * a_.width, 0.0f);
    std::fill(dv, dv + a_.keys * a_.value_width, 0.0f);
    float* dq = of_part(part, dq_at_);
    for (int64_t head = h * a_.groups; head < (h + 1) * a_.groups; ++head) {
      for (int64_t tile = 0; tile < tiles_; ++tile) {
        if ((head * tiles_ + tile) % slices_ != slice) continue;
        const Queries q = queries_of(part, head, tile);
        score_gradients(part, q, Of::products);
        const int64_t rows = std::min(lanes_, up_to(8, q.count));
        std::fill(dq, dq + rows * a_.width, 0.0f);
        for_each_tile(part, q, [&](int64_t key, int64_t count, const float* p, const float* ds) {
          multiply<true>({count, a_.value_width, q.count}, {p, lanes_, 1}, input(3) + row(q) * a_.value_width,
                         a_.value_width, dv + key * a_.value_width, a_.value_width);
          multiply<true>({count, a_.width, q.count}, {ds, lanes_, 1}, input(0) + row(q) * a_.width, a_.width,
                         dk + key * a_.width, a_.width);
          multiply<true>({rows, a_.width, count}, {ds, 1, lanes_}, keys_of(head) + key * a_.width, a_.width, dq,
                         a_.width);
        });
        std::copy_n(dq, q.count * a_.width, output(0) + row(q) * a_.width);
        for (int64_t r = 0; r < q.count; ++r) {
          if (are_alike(input(4)[row(q) + r])) add_alike(part, q, r, dk, dv);
        }
      }
    }
  }

  void add_slices() const {
    for_each_part(parts_, [&](int part) {
      const Range rows = share(a_.heads * a_.keys, part, parts_);
      for (int64_t at = rows.begin; at < rows.end; ++at) {
        const int64_t h = at / a_.keys, key = at % a_.keys;
        for (int64_t slice = 1; slice < slices_; ++slice) {
          add(keys_gradient(h, 0), keys_gradient(h, slice), key, a_.width);
          add(values_gradient(h, 0), values_gradient(h, slice), key, a_.value_width);
        }
      }
    });
  }
  static void add(float* sum, const float* what, int64_t row, int64_t width) {
    for (int64_t e = row * width; e < (row + 1) * width; ++e) sum[e] += what[e];
  }

  // Of a query that may attend to no key: the gradient of its scores, and what it adds to dv.
  const float* alike_gradients(int part, const Queries& q, int64_t r, float* dv) const {
    const Alike alike(*this, row(q) + r);
    const float *dy = input(3) + (row(q) + r) * a_.value_width, *values = values_of(q.head);
    float* gradients = of_part(part, alike_at_);
    float dot = 0;
    for (int64_t key = 0; key < a_.keys; ++key) {
      const float* value = values + key * a_.value_width;
      float sum = 0;
      for (int64_t e = 0; e < a_.value_width; ++e) sum += dy[e] * value[e];
      gradients[key] = alike.kept(key, sum);
      dot += gradients[key] * alike.probability();
      if (dv == nullptr) continue;
      const float kept = alike.kept(key, alike.probability());
      for (int64_t e = 0; e < a_.value_width; ++e) dv[key * a_.value_width + e] += kept * dy[e];
    }
    for (int64_t key = 0; key < a_.keys; ++key) gradients[key] = alike.probability() * (gradients[key] - dot);
    return gradients;
  }
  void add_alike(int part, const Queries& q, int64_t r, float* dk, float* dv) const {
    const float* gradients = alike_gradients(part, q, r, dv);
    if (a_.blind != Attention::Blind::alike_with_gradient) return;
    const float *query = input(0) + (row(q) + r) * a_.width, *keys = keys_of(q.head);
    float* dq = output(0) + (row(q) + r) * a_.width;
    const float scale = static_cast<float>(a_.scale);
    for (int64_t k = 0; k < a_.keys; ++k) {
      const float* key = keys + k * a_.width;
      float slope = 1;
      if (a_.softcap != 0) {
        float product = 0;
        for (int64_t e = 0; e < a_.width; ++e) product += query[e] * key[e];
        const float bent = std::tanh(product * turned_factor_);
        slope -= bent * bent;
      }
      const float gradient = gradients[k] * scale * slope;
      for (int64_t e = 0; e < a_.width; ++e) {
        dq[e] += gradient * key[e];
        dk[k * a_.width + e] += gradient * query[e];
      }
    }
  }

  // Where a tile's slopes lie; null where scores are not capped.
  float* slopes_of(int part, const Queries& q, int64_t key) const {
    return a_.softcap == 0 ? nullptr : of_part(part, slopes_at_) + (key - q.keys_begin) * lanes_;
  }

  static bool is_lost(float log_sum) { return log_sum < static_cast<float>(Attention::kLost); }
  // Of the queries whose log_sum says no more than the size of their scores: the largest score in its place, and the probability of
  // a key that has it.
  void find_lost(int part, const Queries& q, const float* turned, float* log_sums, float* shares) const {
    const auto for_each_score = [&](const auto& body) {
      for_each_tile(part, q, [&](int64_t key, int64_t count, float* p, float*) {
        Bias bias;
        if (!read_mask(part, q, key, count, bias)) return;
        multiply<false>({count, lanes_, a_.width}, {keys_of(q.head) + key * a_.width, a_.width, 1}, turned, lanes_, p,
                        lanes_);
        cap(count, p, nullptr);
        with_scores(q, key, count, bias, [&](const auto& score) {
          for (int64_t c = 0; c < lanes_; c += kLanes) {
            for (int64_t j = 0; j < count; ++j) {
              const f32x16 v = score(j, c, load(p + j * lanes_ + c));
              for (int i = 0; i < kLanes; ++i) body(c + i, v[i]);
            }
          }
        });
      });
    };
    float tops[kMostLanes], sums[kMostLanes] = {};
    std::fill(tops, tops + kMostLanes, kMasked);
    for_each_score([&](int64_t r, float v) { tops[r] = std::max(tops[r], v); });
    for_each_score([&](int64_t r, float v) { sums[r] += is_lost(tops[r]) ? std::exp2(v - tops[r]) : 0; });
    for (int64_t r = 0; r < lanes_; ++r) {
      if (is_lost(log_sums[r]) && sums[r] > 0) log_sums[r] = tops[r], shares[r] = 1 / sums[r];
    }
  }

  // The dropped probabilities, and the gradient of the scores or of q k', of all keys that the queries see.
  enum class Of : uint8_t { scores, products };
  void score_gradients(int part, const Queries& q, Of of) const {
    float *turned = of_part(part, turned_at_), *turned_gradient = of_part(part, turned_gradient_at_);
    turn(input(0) + row(q) * a_.width, q.count, a_.width, turned_factor_, turned);
    turn(input(3) + row(q) * a_.value_width, q.count, a_.value_width, 1, turned_gradient);
    float* log_sums = of_part(part, numbers_at_);
    float *dots = log_sums + lanes_, *shares = dots + lanes_;
    for (int64_t r = 0; r < lanes_; ++r) log_sums[r] = r < q.count ? input(4)[row(q) + r] * kLog2E : -kMasked;
    std::fill(dots, dots + lanes_, 0.0f);
    std::fill(shares, shares + lanes_, 1.0f);
    uint8_t* left_out = of_part<uint8_t>(part, left_out_at_);
    std::fill(left_out, left_out + (q.keys_end - q.keys_begin + kTileKeys - 1) / kTileKeys, uint8_t{0});
    if (std::any_of(log_sums, log_sums + lanes_, is_lost)) find_lost(part, q, turned, log_sums, shares);
    for_each_tile(part, q, [&](int64_t key, int64_t count, float* p, float* ds) {
      Bias bias;
      if (!read_mask(part, q, key, count, bias)) {
        left_out[(key - q.keys_begin) / kTileKeys] = 1;
        return;
      }
      multiply<false>({count, lanes_, a_.width}, {keys_of(q.head) + key * a_.width, a_.width, 1}, turned, lanes_, p,
                      lanes_);
      cap(count, p, slopes_of(part, q, key));
      multiply<false>({count, lanes_, a_.value_width}, {values_of(q.head) + key * a_.value_width, a_.value_width, 1},
                      turned_gradient, lanes_, ds, lanes_);
      with_scores(q, key, count, bias, [&](const auto& score) {
        with_dropout(part, q, key, count, [&](auto drops, const auto& kept) {
          for (int64_t c = 0; c < lanes_; c += kLanes) {
            const f32x16 log_sum = load(log_sums + c), share = load(shares + c);
            const f32x16 keep = splat(keep_);
            f32x16 dot{}, other{};
            const auto products_of = [&](int64_t j) PLIMSOLL_INLINED {
              float *p_at = p + j * lanes_ + c, *ds_at = ds + j * lanes_ + c;
              const f32x16 v = score(j, c, load(p_at)) - log_sum;
              const f32x16 probability = zero_where_masked(v, power_of_two(v)) * share;
              if constexpr (decltype(drops)::value) {
                // What falls is marked by its sign.
                const f32x16 dp = keep_lanes(kept(j, c), load(ds_at) * keep);
                store(p_at, keep_lanes(kept(j, c), probability + probability) - probability);
                store(ds_at, dp);
                return probability * dp;
              } else {
                store(p_at, probability);
                return probability * load(ds_at);
              }
            };
            int64_t j = 0;
            for (; j + 2 <= count; j += 2) dot += products_of(j), other += products_of(j + 1);
            if (j < count) dot += products_of(j);
            store(dots + c, load(dots + c) + (dot + other));
          }
        });
      });
    });
    const bool drops = a_.dropout > 0;
    for_each_tile(part, q, [&](int64_t key, int64_t count, float* p, float* ds) {
      const f32x16 factor = splat(of == Of::products ? static_cast<float>(a_.scale) : 1.0f), keep = splat(keep_);
      const float* slopes = of == Of::products ? slopes_of(part, q, key) : nullptr;
      for (int64_t c = 0; c < lanes_; c += kLanes) {
        const f32x16 dot = load(dots + c);
        for (int64_t j = 0; j < count; ++j) {
          float *p_at = p + j * lanes_ + c, *ds_at = ds + j * lanes_ + c;
          const f32x16 marked = load(p_at);
          const f32x16 probability = drops ? maximum(-marked, marked) : marked;
          const f32x16 gradient = probability * (load(ds_at) - dot) * factor;
          store(ds_at, slopes == nullptr ? gradient : gradient * load(slopes + j * lanes_ + c));
          if (drops) store(p_at, relu(marked) * keep);
        }
      }
    });
  }

  // The mask's rows, as units whose sums are their own: by where a head's mask lies, and by tile of queries where each
  // query has a row.
  void find_mask_rows() {
    if (!mask_gradient_) return;
    for (int64_t head = 0; head < a_.query_heads(); ++head) mask_places_.push_back(a_.mask.offset(head));
    std::sort(mask_places_.begin(), mask_places_.end());
    mask_places_.erase(std::unique(mask_places_.begin(), mask_places_.end()), mask_places_.end());
    mask_tiles_ = a_.mask.to_row != 0 ? tiles_ : 1;
  }

  void mask_rows(int part, int64_t place, int64_t unit) const {
    const bool by_row = a_.mask.to_row != 0;
    const int64_t columns = a_.mask.to_column != 0 ? a_.keys : 1;
    const int64_t rows = by_row ? std::min(lanes_, a_.queries - unit * lanes_) : 1;
    float* gradient = output(3) + place + (by_row ? unit * lanes_ * a_.mask.to_row : 0);
    std::fill(gradient, gradient + rows * columns, 0.0f);
    const int64_t first = by_row ? unit : 0, end = by_row ? unit + 1 : tiles_;
    for (int64_t head = 0; head < a_.query_heads(); ++head) {
      if (a_.mask.offset(head) != place) continue;
      for (int64_t tile = first; tile < end; ++tile) {
        const Queries q = queries_of(part, head, tile);
        score_gradients(part, q, Of::scores);
        for_each_tile(part, q, [&](int64_t key, int64_t count, const float*, const float* ds) {
          for (int64_t r = 0; r < q.count; ++r) {
            float* to = gradient + (by_row ? r * a_.mask.to_row : 0) + key * a_.mask.to_column;
            for (int64_t j = 0; j < count; ++j) to[j * a_.mask.to_column] += ds[j * lanes_ + r];
          }
        });
        if (a_.blind != Attention::Blind::alike_with_gradient) continue;
        for (int64_t r = 0; r < q.count; ++r) {
          if (!are_alike(input(4)[row(q) + r])) continue;
          const float* ds = alike_gradients(part, q, r, nullptr);
          float* to = gradient + (by_row ? r * a_.mask.to_row : 0);
          for (int64_t key = 0; key < a_.keys; ++key) to[key * a_.mask.to_column] += ds[key];
        }
      }
    }
  }

  int slices_ = 1;  // of the queries of a head of keys, where there are more threads than such heads
  int64_t slice_at_ = 0;
  bool mask_gradient_;
  std::vector<int64_t> mask_places_;
  int64_t mask_tiles_ = 0;
  int64_t turned_gradient_at_ = 0, p_at_ = 0, ds_at_ = 0, slopes_at_ = 0, dq_at_ = 0, numbers_at_ = 0, left_out_at_ = 0,
          alike_at_ = 0;
};

}  // namespace

std::vector<NamedFactory> attention_forward_kernels();

std::vector<NamedFactory> attention_kernels() {
  std::vector<NamedFactory> kernels = attention_forward_kernels();
  kernels.push_back({"AttentionBackward", {own_specs_row_major, make_own<AttentionBackward>}});
  return kernels;
}

}  // namespace plimsoll::cpu
