// From a stored image to what the network reads: cropped, scaled, mirrored, normalised floats.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plimsoll/data.h"

namespace plimsoll {

// Which draws a sample gets. Equal keys give equal results.
struct SampleKey {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t sample = 0;
};

// A part of an image, in pixels from its top left corner.
struct Box {
  double left = 0, top = 0, width = 0, height = 0;
};

// The largest part of an image with the aspect of height x width, in the middle, scaled by `share`.
Box centre_box(const Image& image, int64_t height, int64_t width, double share);
// As torchvision's RandomResizedCrop: 8 to 100 % of the area, aspect 3:4 to 4:3.
Box random_box(const Image& image, int64_t height, int64_t width, const SampleKey& key);

// Scales a part of an image to height x width by a triangle filter that widens with the reduction, as PIL does it.
// `scratch` is reused between calls.
void scale(const Image& image, const Box& box, int64_t height, int64_t width, std::vector<uint8_t>& out,
           std::vector<float>& scratch);

// Memory that one thread reuses from sample to sample.
struct PrepareScratch {
  Image image;
  std::vector<uint8_t> scaled;
  std::vector<float> rows;
  std::vector<int32_t> window;  // of a text
};

// The smallest side that read() is to give for this data set.
int64_t smallest_side(const DataInfo& info, Split split);

// Turns image into `out`, channels x height x width of info, or height x width x channels: the same values. Augmentation
// applies when `augmentation` is given.
void prepare(const Image& image, const DataInfo& info, const Augmentation* augmentation, const SampleKey& key,
             PrepareScratch& scratch, std::span<float> out, bool channels_last = false);

}  // namespace plimsoll
