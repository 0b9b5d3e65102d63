// Every reader over valid inputs and some thousand damaged ones, the same on every run.
#include <gtest/gtest.h>

#include <random>

#include "fuzz/seeds.h"
#include "fuzz/targets.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll::fuzz {
namespace {

constexpr int kRounds = 3000;

// One damage of the kinds that find most: flipped bits, extreme numbers, pieces lost, doubled, or from elsewhere.
void damage(std::string& input, const std::vector<std::string>& seeds, std::mt19937& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : random() % n; };
  const size_t at = below(input.size()), length = 1 + below(std::min<size_t>(input.size() - at + 1, 16));
  static constexpr std::string_view kExtremes[] = {std::string_view("\0\0\0\0", 4),
                                                   "\xff\xff\xff\xff",
                                                   "\x7f\xff\xff\xff",
                                                   std::string_view("\0\0\0\x80", 4),
                                                   "-1",
                                                   "9223372036854775808",
                                                   "1e999",
                                                   "null",
                                                   "[[[[[[[[",
                                                   "\"",
                                                   "\xc3\x28",
                                                   ",",
                                                   "{}",
                                                   "NaN"};
  switch (random() % 8) {
    case 0:
      if (!input.empty()) input[at] = static_cast<char>(input[at] ^ (1 << random() % 8));
      break;
    case 1:
      if (!input.empty()) input[at] = static_cast<char>(random());
      break;
    case 2: input.resize(at); break;
    case 3: input.erase(at, length); break;
    case 4: input.insert(at, input.substr(at, length)); break;
    case 5: {
      const std::string_view extreme = kExtremes[random() % std::size(kExtremes)];
      input.replace(at, std::min(extreme.size(), input.size() - at), extreme);
      break;
    }
    case 6: input.insert(at, kExtremes[random() % std::size(kExtremes)]); break;
    case 7: {
      const std::string& other = seeds[random() % seeds.size()];
      input = input.substr(0, at) + other.substr(below(other.size()));
      break;
    }
  }
}

class Readers : public ::testing::TestWithParam<Target> {};

TEST_P(Readers, AcceptOrRefuseWhateverComes) {
  const Target& target = GetParam();
  const std::vector<std::string> valid = seeds(target.name);
  ASSERT_FALSE(valid.empty());
  for (const std::string& seed : valid) target.read(seed);
  target.read("");
  for (unsigned round = 0; round < kRounds; ++round) {
    std::mt19937 random(round);
    std::string input = valid[round % valid.size()];
    for (unsigned n = random() % 4 + 1; n > 0; --n) damage(input, valid, random);
    try {
      target.read(input);
    } catch (const std::exception& error) {
      ADD_FAILURE() << target.name << ", round " << round << ": " << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Readers, ::testing::ValuesIn(kTargets),
                         [](const ::testing::TestParamInfo<Target>& info) { return std::string(info.param.name); });

TEST(Seeds, AreValid) {
  EXPECT_EQ(parse_digits_csv(digits_seed(), "x").labels.size(), 10U);
  EXPECT_EQ(inflate_gzip(gzip_seed(), "x"), digits_seed());
  for (const std::string& image : seeds("image")) {
    Image decoded;
    EXPECT_NO_THROW(decode_image(image, "x", 0, decoded));
  }
  const Graph graph = graph_from_json(to_json(example_graph()));
  for (const std::string& plan : seeds("plan")) {
    for (const Violation& violation : verify_safety(graph, plan_from_json(plan, graph)))
      ADD_FAILURE() << violation.message;
  }
  EXPECT_EQ(saved_plan_from_json(saved_plan_seed()).request.model, "resnet20");
  for (const std::string& network : seeds("network")) EXPECT_NO_THROW(network_from_json(network, 3));
  for (const std::string& text : seeds("expression")) EXPECT_NO_THROW(parse_expression(text)) << text;
  for (const std::string& name : seeds("model_name")) EXPECT_NO_THROW(parse_model_name(name)) << name;
  for (const std::string& csv : seeds("placement")) EXPECT_NO_THROW(placement_file_from_csv(csv, "x"));
  for (const std::string& csv : seeds("convolutions")) EXPECT_NO_THROW(convolutions_from_csv(csv, "x"));
  for (const std::string& spec : seeds("data_spec")) EXPECT_NO_THROW(parse_data_spec(spec)) << spec;
  const TrainingState state = training_state_from_json(train_options_seed());
  EXPECT_EQ(saved_options(state).schedule.decay_epochs, 3);
  EXPECT_NO_THROW(check_place(state, 10, "x"));
  const TemporaryFolder folder;
  write_file_atomically(folder.path() / "w", weights_seed());
  EXPECT_EQ(match_weights(WeightsFile(folder.path() / "w"), weights_network(), false).taken.size(),
            weights_network().graph.states.size());
  const std::string safetensors = safetensors_seed();
  EXPECT_EQ(parse_safetensors_header(safetensors.substr(8, safetensors.size() - 8 - 37), 37, "x").entries.size(), 3U);
}

}  // namespace
}  // namespace plimsoll::fuzz
