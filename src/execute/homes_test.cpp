#include "execute/homes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "plimsoll/error.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

struct Case {
  Shape shape;
  Layout layout;
  bool by_rows;  // else all rows lie among each other
};

// A state of a layout that has its home in a tier.
class HomesOf : public ::testing::TestWithParam<Case> {
 protected:
  HomesOf() {
    weights_ = graph_.add_source("weights", GetParam().shape, DType::f32, Role::parameter);
    graph_.tensor(weights_).layout = GetParam().layout;
    bytes_ = graph_.tensor(weights_).bytes();
    plan_.homes.push_back({.tensor = weights_, .tier = 0, .slot = {4096}});
    tier_ = open_disk_tier(folder_.path(), align_up(bytes_, kSlotAlignment) + 4_KiB);
    tier_->reserve(tier_->capacity());
  }
  std::vector<float> numbers(float first) const {
    std::vector<float> values(element_count(GetParam().shape));
    std::iota(values.begin(), values.end(), first);
    return values;
  }
  // In chunks of a length that fits no row and no block.
  void write(Homes& homes, const std::vector<float>& values, size_t chunk) {
    for (size_t at = 0; at < values.size(); at += chunk) {
      const size_t count = std::min(chunk, values.size() - at);
      homes.write(weights_, 4, static_cast<int64_t>(at), std::as_bytes(std::span(values).subspan(at, count)));
      most_held_ = std::max(most_held_, homes.held());
    }
  }
  std::vector<float> read(Homes& homes, size_t chunk) {
    std::vector<float> values(element_count(GetParam().shape));
    for (size_t at = 0; at < values.size(); at += chunk) {
      const size_t count = std::min(chunk, values.size() - at);
      homes.read(weights_, 4, static_cast<int64_t>(at), std::as_writable_bytes(std::span(values).subspan(at, count)));
      most_held_ = std::max(most_held_, homes.held());
    }
    return values;
  }
  // As a step finds it.
  std::vector<float> storage() {
    std::vector<float> values(bytes_.count / 4);
    tier_->open_channel()->read(tier_->slot({4096}, bytes_), reinterpret_cast<std::byte*>(values.data()));
    return values;
  }
  Homes homes() { return Homes(graph_, plan_, std::span(&tier_, 1)); }

  TemporaryFolder folder_;
  Graph graph_;
  TensorId weights_;
  Bytes bytes_;
  Plan plan_;
  std::shared_ptr<Tier> tier_;
  Bytes most_held_;
};

TEST_P(HomesOf, ConvertsInChunksOfAnyLength) {
  Homes homes = this->homes();
  const std::vector<float> first = numbers(1), second = numbers(-1e6F);
  for (const std::vector<float>& values : {first, second}) {
    write(homes, values, 77'777);
    EXPECT_EQ(homes.held(), 0_B) << "nothing is kept of a tensor that is complete";
    EXPECT_EQ(read(homes, 65'536), values);
    std::vector<float> laid_out(bytes_.count / 4);
    scatter_elements(GetParam().shape, GetParam().layout, 4, 0, std::ssize(values),
                     reinterpret_cast<const std::byte*>(values.data()), reinterpret_cast<std::byte*>(laid_out.data()));
    EXPECT_EQ(storage(), laid_out) << "padding is zero";
  }
}

TEST_P(HomesOf, HoldsFewRowsAtATimeWhereTheLayoutLetsThem) {
  EXPECT_EQ(Homes::converts_by_rows(GetParam().layout), GetParam().by_rows);
  Homes homes = this->homes();
  write(homes, numbers(1), 65'536);
  read(homes, 65'536);
  if (GetParam().by_rows) {
    EXPECT_LE(most_held_, Homes::kHeldBytes);
    EXPECT_GT(bytes_, Homes::kHeldBytes) << "else the test says nothing";
  } else {
    EXPECT_EQ(most_held_, bytes_);
  }
}

TEST_P(HomesOf, ChangesSomeElementsAndLeavesTheOthers) {
  Homes homes = this->homes();
  std::vector<float> values = numbers(1);
  write(homes, values, 100'000);
  const size_t middle = values.size() / 2;
  const std::vector<float> few{-1, -2, -3};
  homes.write(weights_, 4, static_cast<int64_t>(middle), std::as_bytes(std::span(few)));
  homes.flush();
  std::copy(few.begin(), few.end(), values.begin() + static_cast<ptrdiff_t>(middle));
  EXPECT_EQ(read(homes, 123'456), values);
}

INSTANTIATE_TEST_SUITE_P(Layouts, HomesOf,
                         ::testing::Values(Case{{512, 512, 3, 3}, {"ABcd16b16a"}, true},
                                           Case{{500, 300, 3, 3}, {"ABcd16b16a"}, true},
                                           Case{{1001, 1500}, {"AB16b64a"}, true},
                                           Case{{450, 700, 2, 2}, {"Acdb16a"}, true},
                                           Case{{40, 64, 31, 29}, {"acdb"}, true}, Case{{1000, 1500}, {"ba"}, false},
                                           Case{{200, 500, 3, 3}, {"cdba"}, false}));

}  // namespace
}  // namespace plimsoll
