// Maximum pooling: for any window, and for square ones of 2 or 3 with a stride of two, which most networks have; what these
// loop over is known to the compiler, so that all of it is read before any of it is waited for.
#pragma once

#include "device/cuda/bodies/window.h"

namespace plimsoll::cuda {

struct MaxPool {
  using Kind = EachFour;
  float* y;
  uint8_t* index;
  const float* x;
  Image small, large;
  Slide h, w;
  // Whether v, which comes later, takes the place of the best; the first not-a-number stays.
  PLIMSOLL_BODY static bool wins(float v, float best) { return v > best || (v != v && best == best); }
  PLIMSOLL_BODY void run(int64_t i) const {
    const Spot s = spot(small, i);
    const Taps rows = taps_inside(h, s.h), columns = taps_inside(w, s.w);
    const int64_t left = tap(w, s.w, columns.first), across = w.dilation * large.to_w;
    int64_t winner = -1;
    float best = 0;
    for (int64_t r = rows.first; r < rows.last; ++r) {
      const float* from = x + at(large, s.n, s.c, tap(h, s.h, r), left);
      for (int64_t c = columns.first; c < columns.last; ++c, from += across) {
        const float v = *from;
        if (winner >= 0 && !wins(v, best)) continue;
        best = v, winner = r * w.kernel + c;
      }
    }
    y[i] = best;
    index[i] = static_cast<uint8_t>(winner);
  }
  PLIMSOLL_BODY void four(int64_t i) const {
    const Spot s = spot(small, i);
    const Taps rows = taps_inside(h, s.h), columns = taps_inside(w, s.w);
    const int64_t left = tap(w, s.w, columns.first), across = w.dilation * large.to_w;
    Four best{};
    uint32_t winners = 0xffffffff;
    for (int64_t r = rows.first; r < rows.last; ++r) {
      const float* from = x + at(large, s.n, s.c, tap(h, s.h, r), left);
      for (int64_t c = columns.first; c < columns.last; ++c, from += across) {
        const Four v = load_four(from);
        const uint32_t number = static_cast<uint32_t>(r * w.kernel + c) & 255;
        const bool none = r == rows.first && c == columns.first;
        for (int k = 0; k < 4; ++k) {
          if (!none && !wins(v.v[k], best.v[k])) continue;
          best.v[k] = v.v[k];
          winners = (winners & ~(255U << (8 * k))) | number << (8 * k);
        }
      }
    }
    store_four(y + i, best);
    *reinterpret_cast<uint32_t*>(index + i) = winners;
  }
  bool by_four() const {
    return is_channels_last(large) && has_channels_by_four(large) && lie_by_four(x, y) &&
           reinterpret_cast<uintptr_t>(index) % 4 == 0;
  }
};

struct MaxPoolBackward {
  using Kind = EachFour;
  float* dx;
  const float* dy;
  const uint8_t* index;
  Image small, large;
  Slide h, w;
  PLIMSOLL_BODY float sum_of_row(int64_t row, int64_t first_tap, int64_t iw) const {
    const Taps columns = places_around(w, iw);
    float sum = 0;
    for (int64_t ow = columns.first; ow < columns.last; ++ow) {
      const int64_t c = tap_on(w, ow, iw), from = row + ow * small.to_w;
      if (c >= 0 && index[from] == first_tap + c) sum += dy[from];
    }
    return sum;
  }
  PLIMSOLL_BODY void run(int64_t i) const {
    const Spot s = spot(large, i);
    const Taps rows = places_around(h, s.h);
    float sum = 0;
    for (int64_t oh = rows.first; oh < rows.last; ++oh) {
      const int64_t r = tap_on(h, oh, s.h);
      if (r >= 0) sum += sum_of_row(at(small, s.n, s.c, oh, 0), r * w.kernel, s.w);
    }
    dx[i] = sum;
  }
  PLIMSOLL_BODY void four(int64_t i) const {
    const Spot s = spot(large, i);
    const Taps rows = places_around(h, s.h);
    Four sum{};
    for (int64_t oh = rows.first; oh < rows.last; ++oh) {
      const int64_t r = tap_on(h, oh, s.h);
      if (r < 0) continue;
      const int64_t row = at(small, s.n, s.c, oh, 0), first_tap = r * w.kernel;
      if (is_channels_last(large)) {
        add_pixels(sum, row, first_tap, s.w);
      } else {
        for (int k = 0; k < 4; ++k) sum.v[k] += sum_of_row(row, first_tap, s.w + k);
      }
    }
    store_four(dx + i, sum);
  }
  PLIMSOLL_BODY void add_pixels(Four& sum, int64_t row, int64_t first_tap, int64_t iw) const {
    const Taps columns = places_around(w, iw);
    Four own{};
    for (int64_t ow = columns.first; ow < columns.last; ++ow) {
      const int64_t c = tap_on(w, ow, iw), from = row + ow * small.to_w;
      if (c < 0) continue;
      const Four g = load_four(dy + from);
      const uint32_t winners = *reinterpret_cast<const uint32_t*>(index + from);
      for (int k = 0; k < 4; ++k) {
        if (static_cast<int64_t>((winners >> (8 * k)) & 255) == first_tap + c) own.v[k] += g.v[k];
      }
    }
    for (int k = 0; k < 4; ++k) sum.v[k] += own.v[k];
  }
  bool by_four() const {
    if (!lie_by_four(dx)) return false;
    if (!is_channels_last(large)) return large.to_w == 1 && (large.w & 3) == 0;
    return has_channels_by_four(large) && lie_by_four(dy) && reinterpret_cast<uintptr_t>(index) % 4 == 0;
  }
};

// Windows of kKernel x kKernel every two elements.
template <int kKernel>
struct ByTwo {
  static constexpr int kPlaces = (kKernel + 1) / 2;      // that reach an element, in one direction
  static constexpr int kPlacesOfFour = kKernel / 2 + 2;  // that reach one of four in a row
  int32_t in = 0, out = 0, before = 0;
  ByTwo() = default;
  explicit ByTwo(const Slide& s)
      : in(static_cast<int32_t>(s.in)), out(static_cast<int32_t>(s.out)), before(static_cast<int32_t>(s.before)) {}
  PLIMSOLL_BODY int begin(int o) const { return 2 * o - before; }
  // The first place that reaches element i, or 0 where that would be less.
  PLIMSOLL_BODY int first_place(int i) const {
    const int reach = i + before - kKernel + 2;
    return reach < 0 ? 0 : reach / 2;
  }
  PLIMSOLL_BODY bool is_there(int o, int i) const { return o < out && begin(o) <= i; }
};

template <int kKernel>
struct MaxPoolByTwo {
  using Kind = EachFour;
  float* y;
  uint8_t* index;
  const float* x;
  Image small, large;
  ByTwo<kKernel> h, w;
  // take(tap, address): those that lie inside, in their order.
  template <class Take>
  PLIMSOLL_BODY void each_tap(int64_t i, const Take& take) const {
    const Spot s = spot(small, i);
    const int top = h.begin(static_cast<int>(s.h)), left = w.begin(static_cast<int>(s.w));
    const float* const image = x + at(large, s.n, s.c, 0, 0);
    PLIMSOLL_UNROLL_ALL
    for (int r = 0; r < kKernel; ++r) {
      PLIMSOLL_UNROLL_ALL
      for (int c = 0; c < kKernel; ++c) {
        const int row = top + r, column = left + c;
        const bool inside = row >= 0 && row < h.in && column >= 0 && column < w.in;
        take(r * kKernel + c, inside ? image + row * large.to_h + column * large.to_w : nullptr);
      }
    }
  }
  PLIMSOLL_BODY void run(int64_t i) const {
    float values[kKernel * kKernel];
    uint32_t there = 0;
    each_tap(i, [&](int tap, const float* from) {
      values[tap] = from != nullptr ? *from : 0;
      there |= from != nullptr ? 1U << tap : 0;
    });
    int winner = -1;
    float best = 0;
    PLIMSOLL_UNROLL_ALL
    for (int tap = 0; tap < kKernel * kKernel; ++tap) {
      if ((there >> tap & 1) == 0 || (winner >= 0 && !MaxPool::wins(values[tap], best))) continue;
      best = values[tap], winner = tap;
    }
    y[i] = best;
    index[i] = static_cast<uint8_t>(winner);
  }
  PLIMSOLL_BODY void four(int64_t i) const {
    Four values[kKernel * kKernel];
    uint32_t there = 0;
    each_tap(i, [&](int tap, const float* from) {
      values[tap] = from != nullptr ? load_four(from) : Four{};
      there |= from != nullptr ? 1U << tap : 0;
    });
    Four best{};
    int winners[4] = {-1, -1, -1, -1};
    PLIMSOLL_UNROLL_ALL
    for (int tap = 0; tap < kKernel * kKernel; ++tap) {
      if ((there >> tap & 1) == 0) continue;
      PLIMSOLL_UNROLL_ALL
      for (int k = 0; k < 4; ++k) {
        if (winners[k] >= 0 && !MaxPool::wins(values[tap].v[k], best.v[k])) continue;
        best.v[k] = values[tap].v[k], winners[k] = tap;
      }
    }
    store_four(y + i, best);
    uint32_t bytes = 0;
    PLIMSOLL_UNROLL_ALL
    for (int k = 0; k < 4; ++k) bytes |= (static_cast<uint32_t>(winners[k]) & 255) << (8 * k);
    *reinterpret_cast<uint32_t*>(index + i) = bytes;
  }
  bool by_four() const {
    return is_channels_last(large) && has_channels_by_four(large) && lie_by_four(x, y) &&
           reinterpret_cast<uintptr_t>(index) % 4 == 0;
  }
};

template <int kKernel>
struct MaxPoolByTwoBackward {
  using Kind = EachFour;
  float* dx;
  const float* dy;
  const uint8_t* index;
  Image small, large;
  ByTwo<kKernel> h, w;
  // add(place's offset, the tap by which its window lies on the row's first element), for each of the kColumns places from the
  // first that reaches column iw on, in each row of places; and next_row() behind each.
  template <int kColumns, class Add, class NextRow>
  PLIMSOLL_BODY void each_place(const Spot& s, int last_column, const Add& add, const NextRow& next_row) const {
    const int ih = static_cast<int>(s.h), top = h.first_place(ih), left = w.first_place(static_cast<int>(s.w));
    const int64_t image = at(small, s.n, s.c, 0, 0);
    PLIMSOLL_UNROLL_ALL
    for (int r = 0; r < h.kPlaces; ++r) {
      const int oh = top + r;
      PLIMSOLL_UNROLL_ALL
      for (int c = 0; c < kColumns; ++c) {
        const int ow = left + c;
        if (h.is_there(oh, ih) && w.is_there(ow, last_column))
          add(image + oh * small.to_h + ow * small.to_w, (ih - h.begin(oh)) * kKernel, w.begin(ow));
      }
      next_row();
    }
  }
  PLIMSOLL_BODY void run(int64_t i) const {
    const Spot s = spot(large, i);
    const int iw = static_cast<int>(s.w);
    float sum = 0, own = 0;
    each_place<ByTwo<kKernel>::kPlaces>(
        s, iw,
        [&](int64_t from, int first_tap, int begin) {
          if (index[from] == first_tap + iw - begin) own += dy[from];
        },
        [&] { sum += own, own = 0; });
    dx[i] = sum;
  }
  PLIMSOLL_BODY void four(int64_t i) const {
    const Spot s = spot(large, i);
    const int iw = static_cast<int>(s.w);
    Four sum{}, own{};
    const auto next_row = [&] {
      PLIMSOLL_UNROLL_ALL
      for (int k = 0; k < 4; ++k) sum.v[k] += own.v[k], own.v[k] = 0;
    };
    if (is_channels_last(large)) {
      each_place<ByTwo<kKernel>::kPlaces>(
          s, iw,
          [&](int64_t from, int first_tap, int begin) {
            const Four g = load_four(dy + from);
            const uint32_t winners = *reinterpret_cast<const uint32_t*>(index + from);
            PLIMSOLL_UNROLL_ALL
            for (int k = 0; k < 4; ++k) {
              if (static_cast<int>(winners >> (8 * k) & 255) == first_tap + iw - begin) own.v[k] += g.v[k];
            }
          },
          next_row);
    } else {
      each_place<ByTwo<kKernel>::kPlacesOfFour>(
          s, iw + 3,
          [&](int64_t from, int first_tap, int begin) {
            const float g = dy[from];
            const int column = index[from] - first_tap;  // of the window, if the winner is in this row
            PLIMSOLL_UNROLL_ALL
            for (int k = 0; k < 4; ++k) {
              if (column == iw + k - begin && column >= 0 && column < kKernel) own.v[k] += g;
            }
          },
          next_row);
    }
    store_four(dx + i, sum);
  }
  bool by_four() const {
    if (!lie_by_four(dx)) return false;
    if (!is_channels_last(large)) return large.to_w == 1 && (large.w & 3) == 0;
    return has_channels_by_four(large) && lie_by_four(dy) && reinterpret_cast<uintptr_t>(index) % 4 == 0;
  }
};

}  // namespace plimsoll::cuda
