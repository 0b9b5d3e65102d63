#include "data/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr uint32_t kFlipSalt = 0xDA7A0000;
constexpr uint32_t kCropSalt = 0xDA7A0001;  // and one more for each attempt
constexpr int kCropAttempts = 10;
constexpr double kCentreShare = 0.875;  // of an image folder's test images: 224 of 256

// What one output position takes from the input: `count` weights that begin at input position `first`.
struct Taps {
  int64_t first = 0;
  std::vector<float> weights;
};

std::vector<Taps> make_taps(double begin, double length, int64_t input, int64_t output) {
  const double step = length / static_cast<double>(output);
  const double reach = std::max(1.0, step);
  std::vector<Taps> all(output);
  for (int64_t o = 0; o < output; ++o) {
    const double centre = begin + (static_cast<double>(o) + 0.5) * step;
    const int64_t first = std::max<int64_t>(0, static_cast<int64_t>(std::floor(centre - reach)));
    const int64_t end = std::min<int64_t>(input, static_cast<int64_t>(std::ceil(centre + reach)));
    Taps& taps = all[o];
    taps.first = std::clamp<int64_t>(first, 0, input - 1);
    double sum = 0;
    for (int64_t i = taps.first; i < end; ++i) {
      const double weight = std::max(0.0, 1 - std::abs((static_cast<double>(i) + 0.5 - centre) / reach));
      taps.weights.push_back(static_cast<float>(weight));
      sum += weight;
    }
    if (sum <= 0) {
      taps.weights.assign(1, 1);
      sum = 1;
    }
    for (float& weight : taps.weights) weight = static_cast<float>(weight / sum);
  }
  return all;
}

// Pixel value -> normalised float, for one channel.
struct Normalise {
  float scale, shift;
  float operator()(float value) const { return value * scale + shift; }
};

Normalise normalise_of(const DataInfo& info, int64_t channel, int maximum) {
  const float stddev = info.stddev[channel];
  return {1 / (static_cast<float>(maximum) * stddev), -info.mean[channel] / stddev};
}

// Where output pixels come from: shifted by (down, right), black outside; mirrored after the shift.
struct Shift {
  int64_t down = 0, right = 0;
  bool flip = false;
};

// The channel of an interleaved pixel that output channel c shows.
float channel_value(const uint8_t* pixel, int64_t input_channels, int64_t output_channels, int64_t c) {
  if (input_channels == output_channels) return pixel[c];
  if (input_channels == 1) return pixel[0];
  return 0.299F * pixel[0] + 0.587F * pixel[1] + 0.114F * pixel[2];
}

void write_planes(const uint8_t* pixels, int64_t input_channels, int maximum, const DataInfo& info, const Shift& shift,
                  std::span<float> out) {
  for (int64_t c = 0; c < info.channels; ++c) {
    const Normalise normalise = normalise_of(info, c, maximum);
    for (int64_t y = 0; y < info.height; ++y) {
      float* row = out.data() + (c * info.height + y) * info.width;
      const int64_t from_y = y + shift.down;
      if (from_y < 0 || from_y >= info.height) {
        std::fill_n(row, info.width, normalise(0));
        continue;
      }
      const uint8_t* from = pixels + from_y * info.width * input_channels;
      const int64_t begin = std::max<int64_t>(0, -shift.right), end = std::min(info.width, info.width - shift.right);
      std::fill_n(row, begin, normalise(0));
      for (int64_t x = begin; x < end; ++x) {
        row[x] = normalise(channel_value(from + (x + shift.right) * input_channels, input_channels, info.channels, c));
      }
      std::fill(row + end, row + info.width, normalise(0));
      if (shift.flip) std::reverse(row, row + info.width);
    }
  }
}

// The same values, a pixel's channels side by side.
void write_pixels(const uint8_t* pixels, int64_t input_channels, int maximum, const DataInfo& info, const Shift& shift,
                  std::span<float> out) {
  std::vector<Normalise> normalise;
  for (int64_t c = 0; c < info.channels; ++c) normalise.push_back(normalise_of(info, c, maximum));
  const std::vector<uint8_t> black(static_cast<size_t>(input_channels));
  float* to = out.data();
  for (int64_t y = 0; y < info.height; ++y) {
    const int64_t from_y = y + shift.down;
    const bool has_row = from_y >= 0 && from_y < info.height;
    for (int64_t x = 0; x < info.width; ++x) {
      const int64_t from_x = (shift.flip ? info.width - 1 - x : x) + shift.right;
      const bool inside = has_row && from_x >= 0 && from_x < info.width;
      const uint8_t* from = inside ? pixels + (from_y * info.width + from_x) * input_channels : black.data();
      for (int64_t c = 0; c < info.channels; ++c) {
        *to++ = normalise[c](channel_value(from, input_channels, info.channels, c));
      }
    }
  }
}

}  // namespace

Box centre_box(const Image& image, int64_t height, int64_t width, double share) {
  const double w = static_cast<double>(image.width), h = static_cast<double>(image.height);
  const double aspect = static_cast<double>(width) / static_cast<double>(height);
  Box box;
  box.width = std::min(w, h * aspect) * share;
  box.height = std::min(h, w / aspect) * share;
  box.left = (w - box.width) / 2;
  box.top = (h - box.height) / 2;
  return box;
}

Box random_box(const Image& image, int64_t height, int64_t width, const SampleKey& key) {
  const double w = static_cast<double>(image.width), h = static_cast<double>(image.height);
  for (int attempt = 0; attempt < kCropAttempts; ++attempt) {
    const RandomStream random{
        .seed = key.seed, .step = static_cast<uint64_t>(key.epoch), .salt = kCropSalt + static_cast<uint32_t>(attempt)};
    const int64_t draw = key.sample * 4;
    const double area = w * h * (0.08 + 0.92 * random.uniform(draw));
    const double aspect = std::exp(std::log(3.0 / 4) + std::log(16.0 / 9) * random.uniform(draw + 1));
    const double box_width = std::round(std::sqrt(area * aspect)), box_height = std::round(std::sqrt(area / aspect));
    if (box_width < 1 || box_height < 1 || box_width > w || box_height > h) continue;
    return {.left = std::floor(random.uniform(draw + 2) * (w - box_width + 1)),
            .top = std::floor(random.uniform(draw + 3) * (h - box_height + 1)),
            .width = box_width,
            .height = box_height};
  }
  return centre_box(image, height, width, 1);
}

void scale(const Image& image, const Box& box, int64_t height, int64_t width, std::vector<uint8_t>& out,
           std::vector<float>& scratch) {
  const int64_t channels = image.channels;
  const std::vector<Taps> across = make_taps(box.left, box.width, image.width, width);
  const std::vector<Taps> down = make_taps(box.top, box.height, image.height, height);
  const int64_t first_row = down.front().first;
  const int64_t end_row = down.back().first + static_cast<int64_t>(down.back().weights.size());
  const int64_t row_size = width * channels;

  scratch.resize((end_row - first_row) * row_size + row_size);
  for (int64_t y = first_row; y < end_row; ++y) {
    const uint8_t* from = image.pixels.data() + y * image.width * channels;
    float* to = scratch.data() + (y - first_row) * row_size;
    for (int64_t x = 0; x < width; ++x) {
      const Taps& taps = across[x];
      for (int64_t c = 0; c < channels; ++c) {
        float sum = 0;
        for (size_t i = 0; i < taps.weights.size(); ++i) {
          sum += taps.weights[i] * from[(taps.first + static_cast<int64_t>(i)) * channels + c];
        }
        to[x * channels + c] = sum;
      }
    }
  }
  out.resize(height * row_size);
  float* const sums = scratch.data() + (end_row - first_row) * row_size;
  for (int64_t y = 0; y < height; ++y) {
    const Taps& taps = down[y];
    std::fill_n(sums, row_size, 0.5F);  // rounds to nearest
    for (size_t i = 0; i < taps.weights.size(); ++i) {
      const float* from = scratch.data() + (taps.first - first_row + static_cast<int64_t>(i)) * row_size;
      for (int64_t x = 0; x < row_size; ++x) sums[x] += taps.weights[i] * from[x];
    }
    for (int64_t x = 0; x < row_size; ++x) {
      out[y * row_size + x] = static_cast<uint8_t>(std::clamp(sums[x], 0.0F, 255.0F));
    }
  }
}

int64_t smallest_side(const DataInfo& info, Split split) {
  const double side = static_cast<double>(std::max(info.height, info.width)) / kCentreShare;
  return static_cast<int64_t>(std::ceil(split == Split::train ? 2 * side : side));  // a crop is a part of the image
}

void prepare(const Image& image, const DataInfo& info, const Augmentation* augmentation, const SampleKey& key,
             PrepareScratch& scratch, std::span<float> out, bool channels_last) {
  const uint8_t* pixels = image.pixels.data();
  const bool crop = augmentation != nullptr && augmentation->resized_crop;
  if (crop || image.height != info.height || image.width != info.width) {
    const Box box = crop
                        ? random_box(image, info.height, info.width, key)
                        : centre_box(image, info.height, info.width, info.augmentation.resized_crop ? kCentreShare : 1);
    scale(image, box, info.height, info.width, scratch.scaled, scratch.rows);
    pixels = scratch.scaled.data();
  }
  Shift shift;
  if (augmentation != nullptr) {
    const RandomStream random{.seed = key.seed, .step = static_cast<uint64_t>(key.epoch), .salt = kFlipSalt};
    const auto draws = random.block(key.sample);
    const uint64_t positions = static_cast<uint64_t>(2 * augmentation->padding + 1);
    shift.flip = augmentation->flip && (draws[0] & 1) != 0;
    shift.down = static_cast<int64_t>(draws[1] * positions >> 32) - augmentation->padding;
    shift.right = static_cast<int64_t>(draws[2] * positions >> 32) - augmentation->padding;
  }
  (channels_last ? write_pixels : write_planes)(pixels, image.channels, image.maximum, info, shift, out);
}

}  // namespace plimsoll
