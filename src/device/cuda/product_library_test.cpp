#include "device/cuda/product_library.h"

#include <gtest/gtest.h>

namespace plimsoll::cuda {
namespace {

TEST(ProductNames, SayWhatIsSetAndAreReadBack) {
  const std::pair<ProductConfiguration, const char*> examples[] = {
      {{.algorithm = 0}, "algo0"},
      {{.algorithm = 21, .tile = 18, .stages = 15}, "algo21_tile18_stages15"},
      {{.algorithm = 21, .tile = 18, .stages = 15, .split_k = 4, .reduction = 2},
       "algo21_tile18_stages15_splitk4_reduction2"},
      {{.algorithm = 66, .tile = 20, .inner = 3, .cluster = 7, .swizzle = 1, .custom = 4294967295},
       "algo66_tile20_inner3_cluster7_swizzle1_custom4294967295"},
      {{.algorithm = 5, .split_k = -1}, "algo5_splitk-1"},
  };
  for (const auto& [configuration, name] : examples) {
    EXPECT_EQ(name_of(configuration), name);
    const std::optional<ProductConfiguration> read = parse_product_algorithm(name);
    ASSERT_TRUE(read.has_value()) << name;
    EXPECT_EQ(name_of(*read), name);
    EXPECT_EQ(read->algorithm, configuration.algorithm);
    EXPECT_EQ(read->custom, configuration.custom);
    EXPECT_EQ(read->split_k, configuration.split_k);
  }
}

TEST(ProductNames, AreNothingElse) {
  for (const char* name : {"", "no_workspace", "algo", "algo_tile1", "tile18", "_algo1", "algo1tile2", "algo1_",
                           "algo1_tile", "algo1_tile0", "algo1_splitk1", "algo01", "algo+1", "algo1_stages2_tile1",
                           "algo1_tile2_tile3", "algo99999999999999999999", "algo1_tile2:tf32", "algo1 "}) {
    EXPECT_FALSE(parse_product_algorithm(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace plimsoll::cuda
