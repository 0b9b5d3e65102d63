// Group norm on images that are row-major or channels last. Both directions take two sums for each channel of each
// image, from which those of its groups follow, and then write the image; gamma's and beta's gradients are the channels'
// sums over the images, in their order.
//
//   forward    about the channel's first element s:   x - s     and (x - s)^2
//   backward   with h = (x - mean) * rstd:            dy        and dy * h
#include <fmt/format.h>

#include <cmath>

#include "device/cpu/own_rows.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

struct ChannelSums {
  double first, second;
};

// One image's channels, whose values lie by channel: `pixels` neighbours each when row-major, or rows of all channels.
class GroupNorm : public OwnKernel {
 public:
  GroupNorm(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        image_(image_of(graph.tensor(op.inputs[0]))),
        groups_(op.attributes.integer("groups")),
        group_channels_(image_.channels / groups_) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
    if (image_.order == Image::Order::blocked) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}' ({}) wants '{}' row-major or channels last, not as '{}'", op.name, op.type->name,
                              graph.tensor(op.inputs[0]).name, graph.tensor(op.inputs[0]).layout.tag));
    }
    padded_ = image_.padded_channels();
    // Sums of channels that lie side by side are cut by pixels, whoever adds them up. Few images: the threads share each.
    pieces_ = (image_.pixels + kPiece - 1) / kPiece;
    shared_ = rows() && image_.images < parts_ && pieces_ > 1;
    sums_at_ = 0;
    pieces_at_ = image_.images * padded_ * static_cast<int64_t>(sizeof(ChannelSums));
    values_at_ = pieces_at_ + (shared_ ? pieces_ : parts_) * padded_ * static_cast<int64_t>(sizeof(ChannelSums));
    workspace_bytes_ = {values_at_ + parts_ * kValues * padded_ * static_cast<int64_t>(sizeof(float))};
  }

 protected:
  static constexpr int kValues = 4;  // floats a channel that a thread keeps of an image

  bool rows() const { return image_.order == Image::Order::channels_last; }
  std::byte* scratch(int64_t at) const { return static_cast<std::byte*>(workspace_) + at; }
  ChannelSums* sums(int64_t n) const { return reinterpret_cast<ChannelSums*>(scratch(sums_at_)) + n * padded_; }
  float* values(int part, int k) const {
    return reinterpret_cast<float*>(scratch(values_at_)) + (part * kValues + k) * padded_;
  }
  void clear_beyond(int part) const {  // channels that only fill a vector
    for (int k = 0; k < kValues; ++k) std::fill(values(part, k) + image_.channels, values(part, k) + padded_, 0.0f);
  }
  // Whether this part leaves what all parts of an image find.
  bool tells(int part) const { return !shared_ || part == 0; }
  int64_t storage_of(int64_t n) const { return n * image_.channels * image_.pixels; }

  // Of image n and some groups: prepare(n, groups, part) sets values(part, k)[c], finish the same after the sums;
  // term(i, count, values, a, b) and apply(i, count, values) work on vectors, with the values of sixteen channels or
  // sixteen times one channel's.
  template <class Self>
  void for_each_image(const Self& self) const {
    const Range all{0, groups_};
    if (!rows()) {  // a group's channels lie one after the other
      for_each_part(parts_, [&](int part) {
        const Range units = share(image_.images * groups_, part, parts_);
        for (int64_t unit = units.begin; unit < units.end; ++unit) {
          const int64_t n = unit / groups_;
          const Range group{unit % groups_, unit % groups_ + 1};
          self.prepare(n, group, part);
          sum_planes(self, n, group, part);
          self.finish(n, group, part);
          apply_planes(self, n, group, part);
        }
      });
    } else if (!shared_) {
      for_each_part(parts_, [&](int part) {
        const Range images = share(image_.images, part, parts_);
        for (int64_t n = images.begin; n < images.end; ++n) {
          self.prepare(n, all, part);
          std::fill(sums(n), sums(n) + padded_, ChannelSums{});
          for (int64_t p = 0; p < pieces_; ++p) {
            sum_piece(self, n, part, p, piece(part));
            add_piece(n, piece(part));
          }
          self.finish(n, all, part);
          apply_pixels(self, n, part, {0, image_.pixels});
        }
      });
    } else {
      for (int64_t n = 0; n < image_.images; ++n) share_image(self, n, all);
    }
  }

  Image image_;
  int64_t groups_, group_channels_, padded_ = 0;

 private:
  static constexpr int64_t kPiece = 256;  // pixels

  ChannelSums* piece(int64_t i) const { return reinterpret_cast<ChannelSums*>(scratch(pieces_at_)) + i * padded_; }

  template <class Self>
  void share_image(const Self& self, int64_t n, Range groups) const {
    for_each_part(parts_, [&](int part) {
      self.prepare(n, groups, part);
      const Range pieces = share(pieces_, part, parts_);
      for (int64_t p = pieces.begin; p < pieces.end; ++p) sum_piece(self, n, part, p, piece(p));
    });
    std::fill(sums(n), sums(n) + padded_, ChannelSums{});
    for (int64_t p = 0; p < pieces_; ++p) add_piece(n, piece(p));
    for_each_part(parts_, [&](int part) {
      self.finish(n, groups, part);
      apply_pixels(self, n, part, share(image_.pixels, part, parts_));
    });
  }

  struct Lanes {  // the values of sixteen channels
    const float* at;
    int64_t stride;
    PLIMSOLL_INLINE f32x16 operator()(int k) const { return load(at + k * stride); }
  };
  struct One {  // of one channel
    const float* at;
    int64_t stride;
    PLIMSOLL_INLINE f32x16 operator()(int k) const { return splat(at[k * stride]); }
  };

  template <class Self>
  void sum_planes(const Self& self, int64_t n, Range group, int part) const {
    for (int64_t c = group.begin * group_channels_; c < group.end * group_channels_; ++c) {
      const int64_t first = storage_of(n) + c * image_.pixels;
      const auto v = self.sum_values(One{values(part, 0) + c, padded_});
      double pair[2];
      row_sums<2>(
          image_.pixels, [&](int64_t i, auto count, auto& a) { self.term(first + i, count, v, a[0], a[1]); }, pair);
      sums(n)[c] = {pair[0], pair[1]};
    }
  }
  template <class Self>
  void apply_planes(const Self& self, int64_t n, Range group, int part) const {
    for (int64_t c = group.begin * group_channels_; c < group.end * group_channels_; ++c) {
      const int64_t first = storage_of(n) + c * image_.pixels;
      const auto v = self.apply_values(One{values(part, 0) + c, padded_});
      over_row(image_.pixels, [&](int64_t i, auto count) { self.apply(first + i, count, v); });
    }
  }

  template <class Self>
  void sum_piece(const Self& self, int64_t n, int part, int64_t piece, ChannelSums* to) const {
    const int64_t first = storage_of(n), last = std::min(image_.pixels, (piece + 1) * kPiece);
    std::fill(to, to + padded_, ChannelSums{});
    for (int64_t begin = piece * kPiece; begin < last; begin += 16) {
      const int64_t end = std::min(last, begin + 16);
      over_row(image_.channels, [&](int64_t c, auto count) {
        const auto v = self.sum_values(Lanes{values(part, 0) + c, padded_});
        f32x16 a0{}, a1{}, b0{}, b1{};
        int64_t p = begin;
        for (; p + 2 <= end; p += 2) {
          self.term(first + p * image_.channels + c, count, v, a0, b0);
          self.term(first + (p + 1) * image_.channels + c, count, v, a1, b1);
        }
        if (p < end) self.term(first + p * image_.channels + c, count, v, a0, b0);
        float a[16], b[16];
        store(a, a0 + a1);
        store(b, b0 + b1);
        for (int k = 0; k < kLanes; ++k) {
          to[c + k].first += static_cast<double>(a[k]);
          to[c + k].second += static_cast<double>(b[k]);
        }
      });
    }
  }
  void add_piece(int64_t n, const ChannelSums* from) const {
    ChannelSums* const to = sums(n);
    for (int64_t c = 0; c < padded_; ++c) {
      to[c].first += from[c].first;
      to[c].second += from[c].second;
    }
  }
  template <class Self>
  void apply_pixels(const Self& self, int64_t n, int part, Range pixels) const {
    const int64_t first = storage_of(n);
    for (int64_t p = pixels.begin; p < pixels.end; ++p) {
      over_row(image_.channels, [&](int64_t c, auto count) {
        self.apply(first + p * image_.channels + c, count, self.apply_values(Lanes{values(part, 0) + c, padded_}));
      });
    }
  }

  int64_t pieces_ = 1;
  bool shared_ = false;
  int64_t sums_at_ = 0, pieces_at_ = 0, values_at_ = 0;
};

template <class T>
class GroupNormForward : public GroupNorm {
 public:
  GroupNormForward(const Graph& graph, const Op& op, int threads)
      : GroupNorm(graph, op, threads), epsilon_(op.attributes.real("epsilon", 1e-5)) {}
  void run() override { for_each_image(*this); }

  // Values 0: the shift, then the mean; 1: the scale; 2: beta.
  void prepare(int64_t n, Range groups, int part) const {
    float* shift = values(part, 0);
    clear_beyond(part);
    for (int64_t c = groups.begin * group_channels_; c < groups.end * group_channels_; ++c)
      shift[c] = input<T>(0)[storage_of(n) + image_.at(0, c, 0)];
  }
  struct SumValues {
    f32x16 shift;
  };
  template <class Values>
  PLIMSOLL_INLINE SumValues sum_values(const Values& v) const {
    return {v(0)};
  }
  template <class Count>
  PLIMSOLL_INLINE void term(int64_t i, Count count, const SumValues& v, f32x16& a, f32x16& b) const {
    const f32x16 d = first_lanes(load(input<T>(0) + i, count) - v.shift, count);
    a += d;
    b += d * d;
  }
  void finish(int64_t n, Range groups, int part) const {
    const double pixels = static_cast<double>(image_.pixels), count = pixels * static_cast<double>(group_channels_);
    const ChannelSums* channel = sums(n);
    float *shift = values(part, 0), *scale = values(part, 1), *offset = values(part, 2);
    for (int64_t g = groups.begin; g < groups.end; ++g) {
      const int64_t begin = g * group_channels_, end = begin + group_channels_;
      double mean = 0, squares = 0;
      for (int64_t c = begin; c < end; ++c) mean += channel[c].first + pixels * static_cast<double>(shift[c]);
      mean /= count;
      for (int64_t c = begin; c < end; ++c) {
        const double from_shift = channel[c].first / pixels, d = static_cast<double>(shift[c]) + from_shift - mean;
        squares += std::max(0.0, channel[c].second - channel[c].first * from_shift) + pixels * d * d;
      }
      const double rstd = 1 / std::sqrt(squares / count + epsilon_);
      if (tells(part)) {
        output<T>(1)[n * groups_ + g] = static_cast<T>(mean);
        output<T>(2)[n * groups_ + g] = static_cast<T>(rstd);
      }
      for (int64_t c = begin; c < end; ++c) {
        shift[c] = static_cast<float>(mean);
        scale[c] = static_cast<float>(rstd * static_cast<double>(inputs_.size() > 1 ? input<T>(1)[c] : T{1}));
        offset[c] = inputs_.size() > 2 ? input<T>(2)[c] : T{0};
      }
    }
  }
  struct ApplyValues {
    f32x16 mean, scale, offset;
  };
  template <class Values>
  PLIMSOLL_INLINE ApplyValues apply_values(const Values& v) const {
    return {v(0), v(1), v(2)};
  }
  template <class Count>
  PLIMSOLL_INLINE void apply(int64_t i, Count count, const ApplyValues& v) const {
    store(output<T>(0) + i, (load(input<T>(0) + i, count) - v.mean) * v.scale + v.offset, count);
  }

 private:
  double epsilon_;
};

template <class T>
class GroupNormBackward : public GroupNorm {
 public:
  using GroupNorm::GroupNorm;

  void run() override {
    for_each_image(*this);
    for (size_t k = 1; k < outputs_.size(); ++k) {
      for (int64_t c = 0; c < image_.channels; ++c) {
        double sum = 0;
        for (int64_t n = 0; n < image_.images; ++n) sum += k == 1 ? sums(n)[c].second : sums(n)[c].first;
        output<T>(k)[c] = static_cast<T>(sum);
      }
    }
  }

  // Values 0: the mean; 1: rstd, then what is taken from every element; 2 and 3: the factors of dy and of x - mean.
  void prepare(int64_t n, Range groups, int part) const {
    float *mean = values(part, 0), *rstd = values(part, 1);
    clear_beyond(part);
    for (int64_t c = groups.begin * group_channels_; c < groups.end * group_channels_; ++c) {
      mean[c] = input<T>(2)[n * groups_ + c / group_channels_];
      rstd[c] = input<T>(3)[n * groups_ + c / group_channels_];
    }
  }
  struct SumValues {
    f32x16 mean, rstd;
  };
  template <class Values>
  PLIMSOLL_INLINE SumValues sum_values(const Values& v) const {
    return {v(0), v(1)};
  }
  template <class Count>
  PLIMSOLL_INLINE void term(int64_t i, Count count, const SumValues& v, f32x16& a, f32x16& b) const {
    const f32x16 dy = load(input<T>(1) + i, count);  // 0 in lanes that do not exist
    a += dy;
    b += dy * ((load(input<T>(0) + i, count) - v.mean) * v.rstd);
  }
  void finish(int64_t n, Range groups, int part) const {
    const double count = static_cast<double>(image_.pixels * group_channels_);
    const ChannelSums* channel = sums(n);
    float *rstd = values(part, 1), *scale = values(part, 2), *factor = values(part, 3);
    for (int64_t g = groups.begin; g < groups.end; ++g) {
      const int64_t begin = g * group_channels_, end = begin + group_channels_;
      double sum = 0, product = 0;
      auto gamma = [&](int64_t c) { return static_cast<double>(inputs_.size() > 4 ? input<T>(4)[c] : T{1}); };
      for (int64_t c = begin; c < end; ++c) {
        sum += gamma(c) * channel[c].first;
        product += gamma(c) * channel[c].second;
      }
      const double r = static_cast<double>(input<T>(3)[n * groups_ + g]);
      for (int64_t c = begin; c < end; ++c) {
        scale[c] = static_cast<float>(r * gamma(c));
        factor[c] = static_cast<float>(r * r * product / count);
        rstd[c] = static_cast<float>(r * sum / count);
      }
    }
  }
  struct ApplyValues {
    f32x16 mean, offset, scale, factor;
  };
  template <class Values>
  PLIMSOLL_INLINE ApplyValues apply_values(const Values& v) const {
    return {v(0), v(1), v(2), v(3)};
  }
  template <class Count>
  PLIMSOLL_INLINE void apply(int64_t i, Count count, const ApplyValues& v) const {
    const f32x16 dy = load(input<T>(1) + i, count), x = load(input<T>(0) + i, count);
    store(output<T>(0) + i, v.scale * dy - v.factor * (x - v.mean) - v.offset, count);
  }
};

// No padding that sums would have to leave out.
std::vector<KernelSpec> group_norm_specs(const Graph& graph, const Op& op, LayoutFamily family, int threads) {
  return own_specs(graph, op, family == LayoutFamily::blocked ? LayoutFamily::plain : family, threads);
}

}  // namespace

std::vector<NamedFactory> group_norm_kernels() {
  return {{"GroupNormForward", {group_norm_specs, make_own<GroupNormForward<float>>}},
          {"GroupNormBackward", {group_norm_specs, make_own<GroupNormBackward<float>>}}};
}

}  // namespace plimsoll::cpu
