#include "plan/placement/placement_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "plan/placement/judge.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

PlacementFile hard(const std::string& name) {
  const std::string file = PLIMSOLL_SOURCE_DIR "/data/placement/" + name + ".1048576.csv";
  return placement_file_from_csv(read_file(file), file);
}

TEST(HardProblems, OfMiniMallocAreSolvedAndTheSameEffortFindsTheSamePlacement) {
  struct Case {
    const char* name;
    int64_t bound;
  };
  for (const auto& [name, bound] : {Case{"A", 1048576}, Case{"B", 1048576}, Case{"C", 1039360}, Case{"E", 1048576}}) {
    const PlacementFile file = hard(name);
    // E takes some seconds; the rest is done within the effort of every plan.
    const int64_t effort = *name == 'E' ? 1'000'000'000 : PlacementOptions{}.effort;
    const Placement placement = place_offline(file.buffers, {.alignment = 1, .effort = effort, .seconds = 600});
    EXPECT_EQ(placement.height, Bytes{bound}) << name;
    EXPECT_EQ(judge(file.buffers, placement, 1), "") << name;
    if (*name == 'E') continue;
    EXPECT_EQ(place_offline(file.buffers, {.alignment = 1}).offsets, placement.offsets) << name;
  }
}

TEST(HardProblems, ThatCannotBeAreProvenImpossible) {
  PlacementFile file = hard("C");
  const Placement placement = place_offline(file.buffers, {.alignment = 1, .capacity = 1000000_B});
  EXPECT_GT(placement.proven_lower_bound, 1000000_B);
}

TEST(PlacementFile, HasItsColumnsInAnyOrder) {
  const PlacementFile file = placement_file_from_csv(
      "\xef\xbb\xbfsize, upper,lower,id,alignment,offset\r\n4, 3,0,b1,8,7\r\n\r\n5,9,3, b2 ,8,7", "x.csv");
  EXPECT_EQ(file.ids, (std::vector<std::string>{"b1", "b2"}));
  EXPECT_EQ(file.buffers[1].lower, 3);
  EXPECT_EQ(file.buffers[1].upper, 9);
  EXPECT_EQ(file.buffers[1].bytes, 5_B);
  EXPECT_EQ(file.alignment, 8);
}

TEST(PlacementFile, MayHoldOneBufferOfAllTheBytesThatANumberHolds) {
  const PlacementFile file = placement_file_from_csv("id,lower,upper,size\na,0,1,9223372036854775807\n", "x.csv");
  EXPECT_EQ(file.buffers[0].bytes, Bytes{INT64_MAX});
}

TEST(PlacementFile, IsWrittenWithOffsetsAndReadBack) {
  const PlacementFile file = placement_file_from_csv("id,lower,upper,size\nb1,0,3,4\nb2,3,9,5\n", "x.csv");
  const std::string text = to_csv(file, place_offline(file.buffers, {.alignment = 1}));
  EXPECT_EQ(text, "id,lower,upper,size,offset\nb1,0,3,4,0\nb2,3,9,5,0\n");
  EXPECT_EQ(placement_file_from_csv(text, "x.csv").ids, file.ids);
}

std::string refusal(std::string_view text) {
  try {
    placement_file_from_csv(text, "x.csv");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(PlacementFile, IsRefusedByFileAndLine) {
  const std::string header = "id,lower,upper,size\n";
  EXPECT_THAT(refusal(""), HasSubstr("x.csv, line 1: expected a header"));
  EXPECT_THAT(refusal("id,lower,size\n"), HasSubstr("x.csv, line 1: no column 'upper'"));
  EXPECT_THAT(refusal("id,lower,upper,size,size\n"), HasSubstr("two columns 'size'"));
  EXPECT_THAT(refusal("id,lower,upper,size,hint\n"), HasSubstr("unknown column 'hint'"));
  EXPECT_THAT(refusal("id,lower,upper,size,gaps\n"), HasSubstr("unsupported"));
  EXPECT_THAT(refusal(header + "a,0,1,5\nb,-3,1,5\n"), HasSubstr("x.csv, line 3: lower -3 is negative"));
  EXPECT_THAT(refusal(header + "a,0,1,-5\n"), HasSubstr("size -5 is negative"));
  EXPECT_THAT(refusal(header + "a,4,4,5\n"), HasSubstr("line 2: upper 4 is not more than lower 4"));
  EXPECT_THAT(refusal(header + "a,0,1,99999999999999999999\n"), HasSubstr("more than a 64-bit number"));
  EXPECT_THAT(refusal(header + "a,0,1,9223372036854775807\nb,2,3,1\n"), HasSubstr("line 3: the sizes up to here"));
  EXPECT_THAT(refusal(header + "a,0,1,5x\n"), HasSubstr("size '5x' is not a whole number"));
  EXPECT_THAT(refusal(header + "a,0,1,\n"), HasSubstr("size '' is not a whole number"));
  EXPECT_THAT(refusal(header + "a,0,1\n"), HasSubstr("3 columns where the header has 4"));
  EXPECT_THAT(refusal(header + "a,0,1,5,6\n"), HasSubstr("5 columns where the header has 4"));
  EXPECT_THAT(refusal(header + std::string(100000, ',') + "\n"), HasSubstr("too many columns"));
  EXPECT_THAT(refusal(header + "a,0,1,5\na,1,2,5\n"), HasSubstr("line 3: id 'a' was given in line 2"));
  EXPECT_THAT(refusal(header + ",0,1,5\n"), HasSubstr("the id is empty"));
  EXPECT_THAT(refusal("id,lower,upper,size,alignment\na,0,1,5,64\nb,0,1,5,32\n"),
              HasSubstr("line 3: alignment 32 differs"));
  EXPECT_THAT(refusal("id,lower,upper,size,alignment\na,0,1,5,0\n"), HasSubstr("alignment 0 is not in 1"));
  EXPECT_THAT(refusal("\x7f"
                      "ELF\x02\x01\x01"),
              HasSubstr("unknown column '?ELF"));
}

TEST(PlacementFile, WithTooManyBuffersIsRefusedAtTheFirstThatIsTooMany) {
  std::string text = "id,lower,upper,size\n";
  for (size_t i = 0; i <= kMostFileBuffers; ++i) text += std::to_string(i) + ",0,1,1\n";
  EXPECT_THAT(refusal(text), HasSubstr("line 1000002: more than 1000000 buffers"));
}

}  // namespace
}  // namespace plimsoll
