#include "device/cuda/convolution_engines.h"

#include <gtest/gtest.h>

namespace plimsoll::cuda {
namespace {

TEST(EngineNames, SayNumberAndKnobsAndWhatTheEngineNotesAndAreReadBack) {
  const std::pair<EngineConfiguration, const char*> examples[] = {
      {{.number = 0, .knobs = {}}, "eng0"},
      {{.number = 38, .knobs = {{2, 1}, {13, 0}, {12, -1}}}, "eng38_k2=1_k13=0_k12=-1"},
      {{.number = 44, .knobs = {{2, 4}}, .fused = true}, "fused_eng44_k2=4"},
      {{.number = 25, .knobs = {}, .deterministic = false}, "nondeterministic_eng25"},
      {{.number = 15, .knobs = {}, .fused = true, .deterministic = false, .winograd = true},
       "fused_nondeterministic_winograd_eng15"},
      {{.number = 7, .knobs = {}, .fft = true}, "fft_eng7"},
  };
  for (const auto& [configuration, name] : examples) {
    EXPECT_EQ(name_of(configuration), name);
    const std::optional<EngineConfiguration> read = parse_engine(name);
    ASSERT_TRUE(read.has_value()) << name;
    EXPECT_EQ(name_of(*read), name);
    EXPECT_EQ(read->number, configuration.number);
    EXPECT_EQ(read->knobs, configuration.knobs);
    EXPECT_EQ(read->fused, configuration.fused);
    EXPECT_EQ(read->deterministic, configuration.deterministic);
  }
}

TEST(EngineNames, AreNoneOfTheFixedFunctionsNorWhatIsCutOff) {
  for (const char* name : {"",
                           "implicit_precomp_gemm",
                           "winograd",
                           "winograd_nonfused",
                           "fft",
                           "fft_tiling",
                           "algo_0",
                           "eng",
                           "eng_k2=1",
                           "eng3_",
                           "eng3_k",
                           "eng3_k2",
                           "eng3_k2=",
                           "eng3_k2=1_",
                           "eng3 ",
                           "eng3_k2=1@4",
                           "eng99999999999999999999",
                           "fused_fused_eng3",
                           "winograd_fused_eng3",
                           "ENG3"}) {
    EXPECT_FALSE(parse_engine(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace plimsoll::cuda
