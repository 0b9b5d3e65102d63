#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "plimsoll/plan.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

std::string error_of(std::string_view name) {
  try {
    parts_of(name);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "no error";
}

TEST(Configuration, PartsAreInOrderWithTheirKernels) {
  const std::vector<MicroBatch> parts = parts_of("jit_wino_4x3:avx512_core@16*3+jit:avx512_core@8");
  const MicroBatch fast{"jit_wino_4x3:avx512_core", 16};
  EXPECT_EQ(parts, (std::vector<MicroBatch>{fast, fast, fast, {"jit:avx512_core", 8}}));
}

TEST(Configuration, APlainNameHasNoPartsAtSignsIncluded) {
  EXPECT_TRUE(parts_of("").empty());
  EXPECT_TRUE(parts_of("jit:avx512_core").empty());
  EXPECT_TRUE(parts_of("jit:avx512_core@abcd").empty());
  EXPECT_TRUE(parts_of("brgemm:avx512_core@AB16b64a").empty());
  EXPECT_EQ(parts_of("jit:avx512_core@abcd@2*2").at(1).kernel, "jit:avx512_core@abcd");
}

TEST(Configuration, OnePartIsThePlainKernel) {
  const std::vector<MicroBatch> one = {{"direct", 64}};
  EXPECT_EQ(configuration_name(one), "direct");
}

TEST(Configuration, NonsenseIsRefusedWithTheReason) {
  EXPECT_THAT(error_of("a@16"), HasSubstr("at least two parts"));
  EXPECT_THAT(error_of("a@16+"), HasSubstr("has no batch"));
  EXPECT_THAT(error_of("a@16+b"), HasSubstr("'b' has no batch"));
  EXPECT_THAT(error_of("+a@16"), HasSubstr("has no batch"));
  EXPECT_THAT(error_of("a@16+@8"), HasSubstr("no kernel"));
  EXPECT_THAT(error_of("a@0*2"), HasSubstr("at least one row"));
  EXPECT_THAT(error_of("a@1*0+b@2"), HasSubstr("at least one row"));
  EXPECT_THAT(error_of("a@1@2*2"), HasSubstr("two batches"));
  EXPECT_THAT(error_of("a@99999999999999999999*2"), HasSubstr("too large"));
  EXPECT_THAT(error_of("a@1*4000000000"), HasSubstr("more than 4096 parts"));
}

TEST(Configuration, AnyNameReadsBackToItsParts) {
  std::mt19937_64 random(1);
  for (int n = 0; n < 500; ++n) {
    std::vector<MicroBatch> parts(2 + random() % 20);
    for (MicroBatch& part : parts) {
      part = {random() % 2 ? "jit:avx512_core" : "gemm:jit@acdb", static_cast<int64_t>(1 + random() % 3)};
    }
    EXPECT_EQ(parts_of(configuration_name(parts)), parts) << configuration_name(parts);
  }
}

}  // namespace
}  // namespace plimsoll
