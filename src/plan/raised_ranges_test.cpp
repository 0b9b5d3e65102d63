#include "plan/raised_ranges.h"

#include <gtest/gtest.h>

#include <random>

namespace plimsoll {
namespace {

TEST(RaisedRanges, AreAsNumbersRaisedOneByOne) {
  std::mt19937_64 random(7);
  const auto draw = [&](size_t below) { return random() % below; };
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<int64_t> numbers(1 + draw(40));
    for (int64_t& number : numbers) number = static_cast<int64_t>(draw(100));
    RaisedRanges ranges(numbers);
    for (int i = 0; i < 50; ++i) {
      const size_t begin = draw(numbers.size()), end = begin + 1 + draw(numbers.size() - begin);
      const auto by = static_cast<int64_t>(draw(60)) - 30;
      ranges.raise(begin, end, by);
      for (size_t k = begin; k < end; ++k) numbers[k] += by;
      const size_t from = draw(numbers.size()), to = from + 1 + draw(numbers.size() - from);
      int64_t largest = INT64_MIN;
      for (size_t k = from; k < to; ++k) largest = std::max(largest, numbers[k]);
      EXPECT_EQ(ranges.largest(from, to), largest);
      const auto most = static_cast<int64_t>(draw(160)) - 30;
      size_t first = to;
      while (first > from && numbers[first - 1] <= most) --first;
      EXPECT_EQ(ranges.first_after_above(from, to, most), first);
      EXPECT_EQ(ranges.first_after_above(from, from, most), from);
    }
  }
}

}  // namespace
}  // namespace plimsoll
