#include <gmock/gmock.h>

#include "tests/cli/program.h"

namespace plimsoll::testing {
namespace {

using nlohmann::json;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class ConvolutionsCommand : public Cli {
 protected:
  std::string table(const std::string& rows) {
    const std::string file = path("layers.csv");
    std::ofstream(file)
        << "width,height,channels,batch,filters,kernel_width,kernel_height,pad_width,pad_height,stride_width,stride_height\n"
        << rows;
    return file;
  }
};

TEST_F(ConvolutionsCommand, MeasuresAndTellsUndividedFromDivided) {
  const std::string file = table("8,8,16,4,16,3,3,1,1,1,1\n9,7,4,2,8,1,1,0,0,2,2\n");
  Outcome outcome = run("convolutions " + file + " --workspace 16MiB --threads 1 --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<json> lines = outcome.lines();
  ASSERT_EQ(lines.size(), 6U);
  const char* passes[] = {"forward", "backward_data", "backward_weights"};
  for (size_t i = 0; i < lines.size(); ++i) {
    const json& line = lines[i];
    EXPECT_EQ(line["pass"], passes[i % 3]);
    EXPECT_EQ(line["width"], i < 3 ? 8 : 9);
    EXPECT_EQ(line["stride_height"], i < 3 ? 1 : 2);
    EXPECT_EQ(line["measured"], true);
    EXPECT_GT(line["undivided_ms"], 0.0);
    EXPECT_GT(line["divided_ms"], 0.0);
    EXPECT_LE(line["divided_ms"], line["undivided_ms"]);
    EXPECT_LE(line["undivided_workspace"], 16 << 20);
    EXPECT_LE(line["divided_workspace"], 16 << 20);
    const std::string configuration = line["configuration"];
    if (line["divided_ms"] == line["undivided_ms"]) {
      EXPECT_EQ(configuration, line["undivided_configuration"]);
    } else {
      EXPECT_THAT(configuration, HasSubstr("@"));
    }
  }
  outcome = run("convolutions " + file + " --workspace 0 --threads 1 --batch-sizes undivided");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("16x8x8, 16 of 3x3, batch 4"));
  EXPECT_THAT(outcome.out, HasSubstr(" 0 kernels measured now"));
}

TEST_F(ConvolutionsCommand, PredictsForASimulatedDevice) {
  const std::string file = table("27,27,64,256,192,5,5,2,2,1,1\n");
  const json undivided = run("convolutions " + file + " --device p100 --batch-sizes undivided --json -").lines().at(0);
  const json divided = run("convolutions " + file + " --device p100 --batch-sizes all --json -").lines().at(0);
  EXPECT_EQ(undivided["measured"], false);
  EXPECT_EQ(undivided["divided_ms"], undivided["undivided_ms"]);
  EXPECT_EQ(divided["undivided_ms"], undivided["undivided_ms"]);
  EXPECT_LT(divided["divided_ms"], undivided["divided_ms"]);
  EXPECT_THAT(divided["configuration"].get<std::string>(), HasSubstr("@"));
}

TEST_F(ConvolutionsCommand, NamesWhatIsWrong) {
  const std::string file = table("8,8,16,4,16,3,3,1,1,1,1\n8,8,16,four,16,3,3,1,1,1,1\n");
  Outcome outcome = run("convolutions " + file);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, EndsWith("layers.csv, line 3, column 4: batch 'four' is not a whole number\n"));
  const std::string good = table("8,8,16,4,16,3,3,1,1,1,1\n");
  const std::pair<const char*, const char*> cases[] = {{"--workspace 12q", "--workspace: "},
                                                       {"--batch-sizes powersOfTwo", "did you mean 'powerOfTwo'?"},
                                                       {"--device p10", "did you mean 'p100'?"},
                                                       {"--threads 0", "--threads"},
                                                       {"--json ''", "--json"}};
  for (const auto& [wrong, message] : cases) {
    outcome = run("convolutions " + good + " " + wrong);
    EXPECT_EQ(outcome.code, 2) << wrong;
    EXPECT_THAT(outcome.err, HasSubstr(message)) << wrong;
  }
  EXPECT_EQ(run("convolutions /nowhere/layers.csv").code, 2);
}

}  // namespace
}  // namespace plimsoll::testing
