// What batch norm's two directions share: two sums over every channel, then a pass over every element that uses them.
//
// A Pass says what is summed and what the second pass does; the functions here walk the layout so that the second pass
// finds in the cache what the first one read, and so that all threads are busy with few channels too.
//
//   planes: plain, blocked          rows: channels last
//   n0 [c0 ......][c1 ......]       n0 p0 [c0 c1 c2 ...]     A plane is one channel's pixels in one image, or sixteen
//   n1 [c0 ......][c1 ......]       n0 p1 [c0 c1 c2 ...]     channels' when blocked. A row is one pixel's channels.
//
// Sums run in sixteen float lanes for some hundred elements, then in doubles. Which elements meet in a sum depends on
// the shape and the number of parts only.
#pragma once

#include "device/cpu/own.h"
#include "device/cpu/own_vector.h"

namespace plimsoll::cpu {

// A pass without ApplyValues is over when the sums are there.
template <class Pass>
inline constexpr bool kApplies = requires {
  typename Pass::ApplyValues;
};

template <class Pass>
PLIMSOLL_INLINE void sum_run(const Pass& pass, int64_t i, int64_t end, const typename Pass::SumValues& k, double* first,
                             double* second) {
  constexpr int64_t kRun = 64 * kLanes * 4;  // elements between two additions to the doubles
  while (i + 4 * kLanes <= end) {
    f32x16 a0{}, a1{}, a2{}, a3{}, b0{}, b1{}, b2{}, b3{};
    const int64_t stop = std::min(end, i + kRun);
    for (; i + 4 * kLanes <= stop; i += 4 * kLanes) {
      pass.sum(i, kAll, k, a0, b0);
      pass.sum(i + kLanes, kAll, k, a1, b1);
      pass.sum(i + 2 * kLanes, kAll, k, a2, b2);
      pass.sum(i + 3 * kLanes, kAll, k, a3, b3);
    }
    add_lanes(first, (a0 + a1) + (a2 + a3));
    add_lanes(second, (b0 + b1) + (b2 + b3));
  }
  f32x16 a{}, b{};
  for (; i + kLanes <= end; i += kLanes) pass.sum(i, kAll, k, a, b);
  if (i < end) pass.sum(i, static_cast<int>(end - i), k, a, b);
  add_lanes(first, a);
  add_lanes(second, b);
}

template <class Pass>
PLIMSOLL_INLINE void apply_run(const Pass& pass, int64_t i, int64_t end, const typename Pass::ApplyValues& k) {
  for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
    pass.apply(i, kAll, k);
    pass.apply(i + kLanes, kAll, k);
  }
  for (; i + kLanes <= end; i += kLanes) pass.apply(i, kAll, k);
  if (i < end) pass.apply(i, static_cast<int>(end - i), k);
}

// Plain and blocked images. `lanes` is 1 or 16, the channels of a plane.
template <int kChannels>
class PlaneWalk {
 public:
  PlaneWalk(const Image& image, int parts)
      : image_(image),
        parts_(parts),
        plane_(image.pixels * kChannels),
        groups_(kChannels == 1 ? image.channels : image.blocks()) {}

  // Groups of channels go to the parts whole, as many as share out evenly; for the rest the parts share the pixels.
  template <class Pass>
  void run(const Pass& pass, double* scratch) const {
    const int64_t whole = groups_ / parts_ * parts_;
    if (whole > 0) {
      for_each_part(parts_, [&](int part) {
        double sums[2 * kLanes];
        const Range groups = share(whole, part, parts_);
        for (int64_t g = groups.begin; g < groups.end; ++g) {
          std::fill(sums, sums + 2 * kLanes, 0.0);
          sum(pass, g, {0, image_.images * plane_}, sums);
          finish(pass, g, sums, 1);
          if constexpr (kApplies<Pass>) apply(pass, g, {0, image_.images * plane_});
        }
        finish_streaming();
      });
    }
    for (int64_t g = whole; g < groups_; ++g) {
      for_each_part(parts_, [&](int part) {
        double* sums = scratch + part * 2 * kLanes;
        std::fill(sums, sums + 2 * kLanes, 0.0);
        sum(pass, g, part_of_group(part), sums);
      });
      finish(pass, g, scratch, parts_);
      if constexpr (kApplies<Pass>)
        for_each_part(parts_, [&](int part) {
          apply(pass, g, part_of_group(part));
          finish_streaming();
        });
    }
  }
  template <class Pass>
  void apply_only(const Pass& pass) const {
    for_each_part(parts_, [&](int part) {
      for (int64_t g = 0; g < groups_; ++g) apply(pass, g, part_of_group(part));
      finish_streaming();
    });
  }

 private:
  // Positions in a group: image n's plane is [n, n + 1) * plane_.
  Range part_of_group(int part) const { return share(image_.images * plane_, part, parts_, kLanes * 8); }

  template <class Body>
  PLIMSOLL_INLINE void each_run(int64_t group, Range range, const Body& body) const {
    for (int64_t at = range.begin; at < range.end;) {
      const int64_t n = at / plane_, end = std::min(range.end, (n + 1) * plane_);
      const int64_t base = (n * groups_ + group - n) * plane_;  // storage position minus position in the group
      body(base + at, base + end);
      at = end;
    }
  }
  template <class Body>
  PLIMSOLL_INLINE void each_run_backwards(int64_t group, Range range, const Body& body) const {
    for (int64_t end = range.end; end > range.begin;) {
      const int64_t n = (end - 1) / plane_, at = std::max(range.begin, n * plane_);
      const int64_t base = (n * groups_ + group - n) * plane_;
      body(base + at, base + end);
      end = at;
    }
  }
  PLIMSOLL_INLINE static auto lanes_of(int64_t group) {
    return [group](const float* values) {
      if constexpr (kChannels == 1)
        return splat(values[group]);
      else
        return load(values + group * kLanes);
    };
  }
  template <class Pass>
  void sum(const Pass& pass, int64_t group, Range range, double* sums) const {
    const auto k = pass.sum_values(lanes_of(group));
    each_run(group, range, [&](int64_t i, int64_t end) { sum_run(pass, i, end, k, sums, sums + kLanes); });
  }
  template <class Pass>
  void apply(const Pass& pass, int64_t group, Range range) const {
    const auto k = pass.apply_values(lanes_of(group));
    // The images read last are those still in the cache.
    each_run_backwards(group, range, [&](int64_t i, int64_t end) { apply_run(pass, i, end, k); });
  }
  template <class Pass>
  void finish(const Pass& pass, int64_t group, double* sums, int count) const {
    for (int part = 1; part < count; ++part) {
      for (int64_t i = 0; i < 2 * kLanes; ++i) sums[i] += sums[part * 2 * kLanes + i];
    }
    if constexpr (kChannels == 1) {
      for (int64_t i = 1; i < kLanes; ++i) {
        sums[0] += sums[i];
        sums[kLanes] += sums[kLanes + i];
      }
    }
    const int64_t first = group * kChannels, count_of = std::min<int64_t>(kChannels, image_.channels - first);
    for (int64_t i = 0; i < count_of; ++i) pass.finish(first + i, sums[i], sums[kLanes + i]);
  }

  Image image_;
  int parts_;
  int64_t plane_, groups_;
};

// Channels last. Parts share the rows, in eighths so that no two write one byte of a mask.
class RowWalk {
 public:
  RowWalk(const Image& image, int parts) : image_(image), parts_(parts), rows_(image.images * image.pixels) {}

  template <class Pass>
  void run(const Pass& pass, double* scratch) const {
    const int64_t padded = image_.padded_channels();
    for_each_part(parts_, [&](int part) {
      double* sums = scratch + part * 2 * padded;
      std::fill(sums, sums + 2 * padded, 0.0);
      const Range rows = share(rows_, part, parts_, 8);
      for (int64_t r = rows.begin; r < rows.end; r += kTile) {
        sum_tile(pass, r, std::min(rows.end, r + kTile), sums, sums + padded);
      }
    });
    for (int part = 1; part < parts_; ++part) {
      const double* sums = scratch + part * 2 * padded;
      for (int64_t i = 0; i < 2 * padded; ++i) scratch[i] += sums[i];
    }
    for (int64_t c = 0; c < image_.channels; ++c) pass.finish(c, scratch[c], scratch[padded + c]);
    if constexpr (kApplies<Pass>) apply_only(pass);
  }
  template <class Pass>
  void apply_only(const Pass& pass) const {
    for_each_part(parts_, [&](int part) {
      const Range rows = share(rows_, part, parts_, 8);
      for (int64_t end = rows.end; end > rows.begin;) {  // the rows read last are those still in the cache
        const int64_t begin = std::max(rows.begin, end - kTile);
        apply_tile(pass, begin, end);
        end = begin;
      }
      finish_streaming();
    });
  }

 private:
  static constexpr int64_t kTile = 64;  // rows between two additions to the doubles

  PLIMSOLL_INLINE static auto lanes_of(int64_t channel) {
    return [channel](const float* values) { return load(values + channel); };
  }
  template <class Pass>
  void sum_tile(const Pass& pass, int64_t begin, int64_t end, double* first, double* second) const {
    const int64_t channels = image_.channels;
    int64_t c = 0;
    for (; c + 4 * kLanes <= channels; c += 4 * kLanes) {
      const auto k0 = pass.sum_values(lanes_of(c)), k1 = pass.sum_values(lanes_of(c + kLanes));
      const auto k2 = pass.sum_values(lanes_of(c + 2 * kLanes)), k3 = pass.sum_values(lanes_of(c + 3 * kLanes));
      f32x16 a0{}, a1{}, a2{}, a3{}, b0{}, b1{}, b2{}, b3{};
      for (int64_t r = begin; r < end; ++r) {
        const int64_t i = r * channels + c;
        pass.sum(i, kAll, k0, a0, b0);
        pass.sum(i + kLanes, kAll, k1, a1, b1);
        pass.sum(i + 2 * kLanes, kAll, k2, a2, b2);
        pass.sum(i + 3 * kLanes, kAll, k3, a3, b3);
      }
      add_lanes(first + c, a0), add_lanes(first + c + kLanes, a1);
      add_lanes(first + c + 2 * kLanes, a2), add_lanes(first + c + 3 * kLanes, a3);
      add_lanes(second + c, b0), add_lanes(second + c + kLanes, b1);
      add_lanes(second + c + 2 * kLanes, b2), add_lanes(second + c + 3 * kLanes, b3);
    }
    for (; c < channels; c += kLanes) {
      const auto k = pass.sum_values(lanes_of(c));
      f32x16 a{}, b{};
      const int count = static_cast<int>(std::min(kLanes, channels - c));
      if (count == kLanes) {
        for (int64_t r = begin; r < end; ++r) pass.sum(r * channels + c, kAll, k, a, b);
      } else {
        for (int64_t r = begin; r < end; ++r) pass.sum(r * channels + c, count, k, a, b);
      }
      add_lanes(first + c, a);
      add_lanes(second + c, b);
    }
  }
  template <class Pass>
  void apply_tile(const Pass& pass, int64_t begin, int64_t end) const {
    const int64_t channels = image_.channels;
    for (int64_t r = begin; r < end; ++r) {
      int64_t c = 0;
      for (; c + kLanes <= channels; c += kLanes) {
        pass.apply(r * channels + c, kAll, pass.apply_values(lanes_of(c)));
      }
      if (c < channels) {
        pass.apply(r * channels + c, static_cast<int>(channels - c), pass.apply_values(lanes_of(c)));
      }
    }
  }

  Image image_;
  int parts_;
  int64_t rows_;
};

template <class Pass>
void apply_over_channels(const Image& image, int parts, const Pass& pass) {
  switch (image.order) {
    case Image::Order::plain: return PlaneWalk<1>(image, parts).apply_only(pass);
    case Image::Order::blocked: return PlaneWalk<16>(image, parts).apply_only(pass);
    case Image::Order::channels_last: return RowWalk(image, parts).apply_only(pass);
  }
}

// The doubles that run() wants as scratch.
inline int64_t channel_scratch(const Image& image, int parts) {
  return image.order == Image::Order::channels_last ? parts * 2 * image.padded_channels() : parts * 2 * kLanes;
}

template <class Pass>
void sum_over_channels(const Image& image, int parts, const Pass& pass, double* scratch) {
  switch (image.order) {
    case Image::Order::plain: return PlaneWalk<1>(image, parts).run(pass, scratch);
    case Image::Order::blocked: return PlaneWalk<16>(image, parts).run(pass, scratch);
    case Image::Order::channels_last: return RowWalk(image, parts).run(pass, scratch);
  }
}

}  // namespace plimsoll::cpu
