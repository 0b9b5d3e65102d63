#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <map>
#include <set>

#include "data/sources.h"
#include "plimsoll/data.h"
#include "plimsoll/error.h"
#include "tests/support/error_text.h"

namespace plimsoll {
namespace {

using testing::error_text;

std::vector<Image> read_all(const DataSet& data, Split split) {
  std::vector<Image> images(data.count(split));
  for (size_t i = 0; i < images.size(); ++i) data.read(split, static_cast<int64_t>(i), 0, images[i]);
  return images;
}

// The accuracy of the simplest classifier: the nearest mean of a class.
double nearest_mean_accuracy(const DataSet& data) {
  std::map<int32_t, std::vector<double>> sums;
  std::map<int32_t, int> counts;
  for (const Image& image : read_all(data, Split::train)) {
    auto& sum = sums[image.label];
    sum.resize(image.pixels.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += image.pixels[i];
    ++counts[image.label];
  }
  int right = 0;
  for (const Image& image : read_all(data, Split::test)) {
    double best = INFINITY;
    int32_t answer = -1;
    for (const auto& [label, sum] : sums) {
      double distance = 0;
      for (size_t i = 0; i < sum.size(); ++i) distance += std::pow(image.pixels[i] - sum[i] / counts[label], 2);
      if (distance < best) {
        best = distance;
        answer = label;
      }
    }
    right += answer == image.label;
  }
  return static_cast<double>(right) / static_cast<double>(data.count(Split::test));
}

TEST(Digits, SplitsThe1797ImagesFourToOneAlwaysTheSameWay) {
  const auto data = open_data("digits");
  EXPECT_EQ(data->info().train_count, 1437);
  EXPECT_EQ(data->info().test_count, 360);
  EXPECT_EQ(data->info().classes, 10);
  const std::vector<Image> train = read_all(*data, Split::train), test = read_all(*data, Split::test);
  int64_t ink = 0, labels = 0;
  for (const auto* split : {&train, &test}) {
    for (const Image& image : *split) {
      ASSERT_EQ(image.pixels.size(), 64U);
      for (uint8_t pixel : image.pixels) ink += pixel;
      labels += image.label;
    }
  }
  EXPECT_EQ(ink, 561718);  // of the file, counted by another program
  EXPECT_EQ(labels, 8070);
  const auto again = open_data("digits", {.seed = 99});
  EXPECT_EQ(read_all(*again, Split::test)[17].pixels, test[17].pixels);
}

TEST(Digits, AreLearntByTheNearestMean) { EXPECT_GT(nearest_mean_accuracy(*open_data("digits")), 0.85); }

TEST(Digits, AreReadFromTheFolderThatTheEnvironmentNames) {
  setenv("PLIMSOLL_DATA", "/nowhere", 1);
  const std::string message = error_text(ErrorCode::invalid_input, [] { open_data("digits"); });
  unsetenv("PLIMSOLL_DATA");
  EXPECT_EQ(message, "/nowhere/digits.csv.gz: cannot open for reading: No such file or directory");
}

TEST(Digits, NameLineAndColumnOfWhatIsWrong) {
  std::string row;
  for (int i = 0; i < 64; ++i) row += "3,";
  std::string good;
  for (int i = 0; i < 10; ++i) good += row + "7\n";
  EXPECT_EQ(parse_digits_csv(good, "f").labels, std::vector<uint8_t>(10, 7));
  const auto message = [](const std::string& text) {
    return error_text(ErrorCode::corrupt_file, [&] { parse_digits_csv(text, "f.csv"); });
  };
  EXPECT_EQ(message(good + "1,2,17," + row.substr(6) + "1"), "f.csv, line 11, column 3: pixel 17 is not in 0 to 16");
  EXPECT_EQ(message(good + "1,2"), "f.csv, line 11: 2 columns where there must be 65");
  EXPECT_EQ(message(good + row + "10\n"), "f.csv, line 11, column 65: label 10 is not in 0 to 9");
  EXPECT_EQ(message(good + row + "six\n"), "f.csv, line 11, column 65: label 'six' is not a whole number");
  EXPECT_EQ(message(good + row + "1,1\n"), "f.csv, line 11: too many columns where there must be 65");
  EXPECT_EQ(message(row + "1\n"), "f.csv: has 1 images; expected at least 10");
  EXPECT_EQ(message(""), "f.csv: has 0 images; expected at least 10");
}

TEST(Synthetic, CanBeLearntAtAnySize) {
  EXPECT_GT(nearest_mean_accuracy(*open_data("synthetic:500")), 0.99);
  EXPECT_GT(nearest_mean_accuracy(*open_data("synthetic:500", {.channels = 1, .height = 8, .width = 8})), 0.9);
  EXPECT_GT(nearest_mean_accuracy(*open_data("synthetic:300", {.height = 37, .width = 11, .classes = 3})), 0.99);
}

TEST(Synthetic, IsTheSameForTheSameSeedAndHasTheStatedMeanAndDeviation) {
  const DataOptions options{.channels = 3, .height = 64, .width = 64, .classes = 1000, .seed = 5};
  const auto data = open_data("synthetic:2000", options), again = open_data("synthetic:2000", options);
  Image a, b;
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < 200; ++i) {
    data->read(Split::train, i, 0, a);
    again->read(Split::train, i, 0, b);
    ASSERT_EQ(a.pixels, b.pixels);
    for (uint8_t pixel : a.pixels) {
      sum += pixel / 255.0;
      squares += pixel / 255.0 * pixel / 255.0;
    }
  }
  const double count = 200.0 * 64 * 64 * 3, mean = sum / count;
  EXPECT_NEAR(mean, data->info().mean[0], 0.01);
  EXPECT_NEAR(std::sqrt(squares / count - mean * mean), data->info().stddev[0], 0.01);
}

TEST(OpenData, NamesTheNearestKind) {
  EXPECT_EQ(error_text(ErrorCode::invalid_input, [] { open_data("digit"); }),
            "unknown data 'digit'; did you mean 'digits'? known: digits, mnist, cifar10, cifar100, images, synthetic, "
            "text, bytes, tokens");
  EXPECT_EQ(error_text(ErrorCode::invalid_input, [] { open_data("cifar10"); }),
            "data 'cifar10' needs a folder: --data cifar10:DIR");
  EXPECT_EQ(error_text(ErrorCode::invalid_input, [] { open_data("mnist:/nowhere"); }),
            "data 'mnist': there is no folder '/nowhere'");
  EXPECT_EQ(error_text(ErrorCode::invalid_input, [] { open_data("synthetic:many"); }),
            "data 'synthetic:many': expected a number of training images, as in synthetic:10000");
  EXPECT_EQ(error_text(ErrorCode::invalid_input, [] { open_data("digits:/tmp"); }),
            "data 'digits' takes no folder; PLIMSOLL_DATA names another place");
  EXPECT_EQ(error_text(ErrorCode::invalid_input, [] { open_data("digits", {.channels = 5}); }),
            "data 'digits' has images of 1 channels; the network takes 5");
}

}  // namespace
}  // namespace plimsoll
