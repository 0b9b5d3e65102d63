#include "data/prepare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace plimsoll {
namespace {

DataInfo info_of(int64_t channels, int64_t height, int64_t width) {
  DataInfo info{.name = "test", .channels = channels, .height = height, .width = width};
  info.mean.assign(channels, 0);
  info.stddev.assign(channels, 1);
  return info;
}

// Grey values that count up, row after row.
Image counting(int64_t height, int64_t width) {
  Image image{.channels = 1, .height = height, .width = width};
  for (int64_t i = 0; i < height * width; ++i) image.pixels.push_back(static_cast<uint8_t>(i));
  return image;
}

std::vector<float> prepared(const Image& image, const DataInfo& info, const Augmentation* augmentation = nullptr,
                            const SampleKey& key = {}) {
  PrepareScratch scratch;
  std::vector<float> out(info.channels * info.height * info.width);
  prepare(image, info, augmentation, key, scratch, out);
  return out;
}

TEST(Prepare, NormalisesEachChannelIntoAPlaneOfItsOwn) {
  DataInfo info = info_of(3, 1, 2);
  info.mean = {0.5F, 0, 0.25F};
  info.stddev = {0.5F, 1, 0.25F};
  const Image image{.channels = 3, .height = 1, .width = 2, .maximum = 100, .pixels = {0, 10, 25, 100, 20, 50}};
  const std::vector<float> expected{-1, 1, 0.1F, 0.2F, 0, 1};
  const std::vector<float> out = prepared(image, info);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(out[i], expected[i], 1e-6) << i;
}

TEST(Prepare, PutsAPixelsChannelsSideBySideWithTheSameValues) {
  Image image{.channels = 3, .height = 5, .width = 6};
  for (int i = 0; i < 90; ++i) image.pixels.push_back(static_cast<uint8_t>(37 * i));
  const Augmentation augmentation{.flip = true, .padding = 2};
  for (const int64_t channels : {1, 3}) {
    DataInfo info = info_of(channels, 5, 6);
    info.mean.assign(channels, 0.4F);
    info.stddev.assign(channels, 0.3F);
    for (int64_t sample = 0; sample < 200; ++sample) {
      const SampleKey key{.seed = 1, .epoch = 2, .sample = sample};
      const std::vector<float> planes = prepared(image, info, &augmentation, key);
      std::vector<float> pixels(planes.size());
      PrepareScratch scratch;
      prepare(image, info, &augmentation, key, scratch, pixels, true);
      for (int64_t i = 0; i < std::ssize(planes); ++i)
        ASSERT_EQ(pixels[i % 30 * channels + i / 30], planes[i]) << "sample " << sample << ", element " << i;
    }
  }
}

TEST(Prepare, TurnsGreyIntoColourAndBack) {
  const Image grey{.channels = 1, .height = 1, .width = 1, .maximum = 1, .pixels = {1}};
  EXPECT_EQ(prepared(grey, info_of(3, 1, 1)), (std::vector<float>{1, 1, 1}));
  const Image colour{.channels = 3, .height = 1, .width = 1, .maximum = 255, .pixels = {255, 0, 255}};
  EXPECT_NEAR(prepared(colour, info_of(1, 1, 1))[0], 0.413, 1e-3);
}

TEST(Prepare, ShiftsAndMirrorsWithinTheImageAndFillsWithBlack) {
  const Image image = counting(5, 6);
  DataInfo info = info_of(1, 5, 6);
  info.mean = {0.5F};
  const float black = -0.5F;
  const Augmentation augmentation{.flip = true, .padding = 2};
  std::set<std::vector<float>> seen;
  for (int64_t sample = 0; sample < 2000; ++sample) {
    const std::vector<float> out = prepared(image, info, &augmentation, {.seed = 1, .epoch = 2, .sample = sample});
    if (!seen.insert(out).second) continue;
    // Some shift and mirroring must explain every pixel.
    int explanations = 0;
    for (int down = -2; down <= 2; ++down) {
      for (int right = -2; right <= 2; ++right) {
        for (bool flip : {false, true}) {
          bool same = true;
          for (int y = 0; y < 5; ++y) {
            for (int x = 0; x < 6; ++x) {
              const int from_y = y + down, from_x = (flip ? 5 - x : x) + right;
              const bool inside = from_y >= 0 && from_y < 5 && from_x >= 0 && from_x < 6;
              const float expected = inside ? static_cast<float>(from_y * 6 + from_x) / 255 - 0.5F : black;
              same &= std::abs(out[y * 6 + x] - expected) < 1e-6;
            }
          }
          explanations += same;
        }
      }
    }
    ASSERT_EQ(explanations, 1) << "sample " << sample;
  }
  EXPECT_EQ(seen.size(), 50U);  // 5 x 5 shifts, mirrored or not
}

TEST(Prepare, DependsOnSeedEpochAndSampleOnly) {
  const Image image = counting(8, 8);
  const DataInfo info = info_of(1, 8, 8);
  const Augmentation augmentation{.flip = true, .padding = 3, .resized_crop = true};
  const auto first = prepared(image, info, &augmentation, {.seed = 5, .epoch = 6, .sample = 7});
  EXPECT_EQ(first, prepared(image, info, &augmentation, {.seed = 5, .epoch = 6, .sample = 7}));
  EXPECT_NE(first, prepared(image, info, &augmentation, {.seed = 6, .epoch = 6, .sample = 7}));
  EXPECT_NE(first, prepared(image, info, &augmentation, {.seed = 5, .epoch = 7, .sample = 7}));
  EXPECT_NE(first, prepared(image, info, &augmentation, {.seed = 5, .epoch = 6, .sample = 8}));
}

// The definition, in double precision: every output pixel is the mean of the input under a triangle around its centre.
double scaled_pixel(const Image& image, const Box& box, int64_t height, int64_t width, int64_t y, int64_t x) {
  const double step_y = box.height / static_cast<double>(height), step_x = box.width / static_cast<double>(width);
  const double centre_y = box.top + (static_cast<double>(y) + 0.5) * step_y, reach_y = std::max(1.0, step_y);
  const double centre_x = box.left + (static_cast<double>(x) + 0.5) * step_x, reach_x = std::max(1.0, step_x);
  double sum = 0, weights = 0;
  for (int64_t i = 0; i < image.height; ++i) {
    for (int64_t j = 0; j < image.width; ++j) {
      const double weight = std::max(0.0, 1 - std::abs(static_cast<double>(i) + 0.5 - centre_y) / reach_y) *
                            std::max(0.0, 1 - std::abs(static_cast<double>(j) + 0.5 - centre_x) / reach_x);
      sum += weight * image.pixels[i * image.width + j];
      weights += weight;
    }
  }
  return sum / weights;
}

TEST(Scale, FollowsTheTriangleFilterAtAnySizeAndPlace) {
  Image image{.channels = 1, .height = 23, .width = 31};
  for (int i = 0; i < 23 * 31; ++i) image.pixels.push_back(static_cast<uint8_t>(i * i * 7919 % 256));
  std::vector<uint8_t> out;
  std::vector<float> scratch;
  const Box boxes[] = {{0, 0, 31, 23}, {3.3, 2.7, 20.5, 11.1}, {30, 22, 1, 1}, {0, 0, 2.5, 23}};
  for (const Box& box : boxes) {
    for (auto [height, width] : {std::pair<int64_t, int64_t>{5, 7}, {23, 31}, {64, 48}, {1, 1}}) {
      scale(image, box, height, width, out, scratch);
      ASSERT_EQ(std::ssize(out), height * width);
      for (int64_t y = 0; y < height; ++y) {
        for (int64_t x = 0; x < width; ++x) {
          EXPECT_NEAR(out[y * width + x], scaled_pixel(image, box, height, width, y, x), 0.51);
        }
      }
    }
  }
}

TEST(Scale, LeavesAnImageOfTheRightSizeAsItIs) {
  const Image image = counting(9, 11);
  std::vector<uint8_t> out;
  std::vector<float> scratch;
  scale(image, centre_box(image, 9, 11, 1), 9, 11, out, scratch);
  EXPECT_EQ(out, image.pixels);
}

TEST(CentreBox, LiesInTheMiddleWithTheAspectOfTheOutput) {
  const Image image{.channels = 3, .height = 300, .width = 400};
  const Box square = centre_box(image, 224, 224, 0.875);
  EXPECT_EQ(square.width, 262.5);
  EXPECT_EQ(square.height, 262.5);
  EXPECT_EQ(square.left, (400 - 262.5) / 2);
  EXPECT_EQ(square.top, (300 - 262.5) / 2);
  const Box wide = centre_box(image, 100, 200, 1);
  EXPECT_EQ(wide.width, 400);
  EXPECT_EQ(wide.height, 200);
  EXPECT_EQ(wide.left, 0);
  EXPECT_EQ(wide.top, 50);
}

// Unscaled, so that each pixel of the output is one of the image: all rows, columns 2 to 5.
TEST(Prepare, CutsATestImageOutOfTheMiddle) {
  const Image image = counting(4, 8);
  const std::vector<float> out = prepared(image, info_of(1, 4, 4));
  for (int y = 0; y < 4; ++y) {
    for (int x = 0; x < 4; ++x) {
      EXPECT_NEAR(out[y * 4 + x], static_cast<float>(y * 8 + x + 2) / 255, 1e-6) << y << ' ' << x;
    }
  }
}

TEST(RandomBox, StaysInsideWithTheStatedAreaAndAspect) {
  const Image image{.channels = 3, .height = 300, .width = 400};
  double smallest = 1, largest = 0;
  for (int64_t sample = 0; sample < 3000; ++sample) {
    const Box box = random_box(image, 224, 224, {.seed = 3, .epoch = 0, .sample = sample});
    ASSERT_GE(box.left, 0);
    ASSERT_GE(box.top, 0);
    ASSERT_LE(box.left + box.width, 400);
    ASSERT_LE(box.top + box.height, 300);
    const double share = box.width * box.height / (400.0 * 300), aspect = box.width / box.height;
    smallest = std::min(smallest, share);
    largest = std::max(largest, share);
    ASSERT_GT(aspect, 0.74);
    ASSERT_LT(aspect, 1.35);
    ASSERT_GT(share, 0.078);
  }
  EXPECT_LT(smallest, 0.1);
  EXPECT_GT(largest, 0.9);
}

TEST(RandomBox, FallsBackToTheCentreWhereNoBoxFits) {
  const Image line{.channels = 1, .height = 1, .width = 1000};
  const Box box = random_box(line, 8, 8, {});
  EXPECT_EQ(box.width, 1);
  EXPECT_EQ(box.height, 1);
  EXPECT_EQ(box.left, 499.5);
  EXPECT_EQ(box.top, 0);
}

}  // namespace
}  // namespace plimsoll
