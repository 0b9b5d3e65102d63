#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/error_text.h"
#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

// The numbers that scripts in PyTorch can make again.
Literal sequence(Shape shape, int64_t factor) {
  std::vector<double> values;
  for (int64_t i = 0; i < element_count(shape); ++i) values.push_back(static_cast<double>(i * factor % 11 - 5) / 4);
  return {std::move(shape), std::move(values)};
}

const Literal kKeys = sequence({2, 1, 4, 2}, 7), kValues = sequence({2, 1, 4, 3}, 5);

// The first of two heads.
Literal first_heads(const Literal& two) {
  Literal one{{two.shape[0], 1, two.shape[2], two.shape[3]}, {}};
  const size_t head = two.elements.size() / 4;
  for (size_t b : {0, 1}) {
    const auto begin = two.elements.begin() + static_cast<int64_t>(2 * b * head);
    one.elements.insert(one.elements.end(), begin, begin + static_cast<int64_t>(head));
  }
  return one;
}
const Literal kTwoHeads = sequence({2, 2, 3, 2}, 3), kTwoGradients = sequence({2, 2, 3, 3}, 4);
const Literal kQueries = first_heads(kTwoHeads), kGradients = first_heads(kTwoGradients);

// scaled_dot_product_attention and its gradients in PyTorch 2.15, double precision.
TEST(Attention, AgreesWithPyTorchOnSharedKeysWithAMask) {
  const Literal mask = sequence({2, 1, 1, 4}, 2);
  Attributes attributes{{"enable_gqa", int64_t{1}}};
  const auto out = run_op("AttentionForward", {kTwoHeads, kKeys, kValues, mask}, attributes);
  EXPECT_THAT(
      out[0],
      agrees_with({-0.3714408889, -0.002161954298, 0.1627280191,   -0.5446566179, 0.3162249249,  -0.5288943318,
                   -0.3927962666, 0.05436764138,   0.04112299779,  -0.5753366204, 0.3530070139,  -0.6151474265,
                   -0.4188133451, 0.1123292775,    -0.08290808501, -0.2514770261, -0.1524573667, -0.4381685101,
                   0.4099612317,  0.3346988591,    0.1599612317,   0.7060301708,  -0.4070904411, 0.4560301708,
                   0.3512324347,  0.3753136404,    0.1012324347,   0.6299865326,  -0.4316684716, 0.3799865326,
                   0.2971077361,  0.3907363498,    0.04710773609,  0.5915477829,  0.1287188865,  0.3415477829}));
  attributes.set("mask_gradient", int64_t{1});
  const auto back =
      run_op("AttentionBackward", {kTwoHeads, kKeys, kValues, kTwoGradients, {{2, 2, 3}, out[1]}, mask}, attributes);
  EXPECT_THAT(back[0],
              agrees_with({-0.5272672915,  0.2085018747,  -0.2748682206, 0.03219702034, -0.6492617714, 0.1610462665,
                           0.4200230383,   0.1078861385,  0.360428634,   0.3369470309,  0.2925806548,  0.3105985886,
                           -0.4229144797,  0.737823798,   0.1412192933,  -0.1364359728, 0.4213675987,  -0.7083627008,
                           -0.01010062684, -0.2898883718, 0.3116634333,  -0.6704247418, 0.01386284171, 0.02443715226}));
  EXPECT_THAT(back[1],
              agrees_with({-0.7517537641, -0.2411922892, 0.1051366795, -0.004658581223, 0.1799821128, 0.3190489002,
                           0.4666349718, -0.07319802976, -0.3412888725, -0.192377379, 0.5096129457, 0.09035264023,
                           -0.2851996709, 0.1322568426, 0.1168755977, -0.03023210388}));
  EXPECT_THAT(back[2],
              agrees_with({-0.7310850114, 0.2119162353,  0.2955145121,  -0.9183594855, 0.3718631963,  0.05640338608,
                           -0.8846143219, 0.6659928412,  0.02510592045, -1.215941181,  1.000227727,   -0.3770238186,
                           0.8295314505,  -0.3979131458, 0.2921121095,  1.01543045,    -1.537146186,  0.3731867837,
                           0.1983237818,  -0.188132031,  0.02613888056, 0.4567143174,  -0.3768086376, 0.05856222619}));
  EXPECT_THAT(back[3], agrees_with({0.8687176393, -0.07905067691, -1.73459976, 0.944932798, -0.770334417, 0.9409629507,
                                    -0.4290637831, 0.2584352494}));
}

TEST(Attention, AgreesWithPyTorchOnCausalOnes) {
  const Attributes attributes{{"causal", int64_t{1}}, {"scale", 0.5}};
  const auto out = run_op("AttentionForward", {kQueries, kKeys, kValues}, attributes);
  EXPECT_THAT(out[0], agrees_with({-1.25, 0, 1.25, -0.6349121445, 0.6150878555, 0.1735962528, -0.4555739461,
                                   0.09714927913, 0.5570311805, 0, 1.25, -0.25, 0.7981867777, -0.146826861,
                                   0.5481867777, 0.0450969136, 0.5916013975, -0.2049030864}));
  const auto back =
      run_op("AttentionBackward", {kQueries, kKeys, kValues, kGradients, {{2, 1, 3}, out[1]}}, attributes);
  EXPECT_THAT(back[0], agrees_with({0, 0, -0.2441533726, -0.2441533726, -0.3604293481, 0.05349393234, 0, 0,
                                    0.1472414339, -0.3926438236, 0.06706770651, -0.37383081}));
  EXPECT_THAT(back[1], agrees_with({-0.2486704501, 0.2430241032, 0.09815289357, -0.2806534923, 0.1505175565,
                                    0.03762938913, 0, 0, -0.1562402285, 0.1161585452, 0.1385144473, -0.08070698288,
                                    0.01772578115, -0.03545156229, 0, 0}));
  EXPECT_THAT(back[2], agrees_with({-1.979258997,
                                    -0.1352177158,
                                    1.708823566,
                                    -0.8305746097,
                                    0.07182891806,
                                    0.9742324458,
                                    -0.1901663931,
                                    0.0633887977,
                                    0.3169439885,
                                    0,
                                    0,
                                    0,
                                    0.69832456,
                                    0.5345095404,
                                    -0.5504533056,
                                    0.5909558023,
                                    -1.253550023,
                                    -0.1995466944,
                                    0.2107196377,
                                    -0.2809595169,
                                    0,
                                    0,
                                    0,
                                    0}));
}

// The second query may attend to nothing: its result and gradients are 0.
TEST(Attention, AgreesWithPyTorchOnQueriesThatAreMasked) {
  const Literal mask{{3, 4}, {1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0}, DType::u8};
  const auto out = run_op("AttentionForward", {kQueries, kKeys, kValues, mask});
  EXPECT_THAT(out[0], agrees_with({-0.6999340059, -0.170660678, 0.7944267638, 0, 0, 0, -0.25, 1, -0.5, -0.1329072276,
                                   0.5142940963, -0.3829072276, 0, 0, 0, 1, -0.5, 0.75}));
  EXPECT_TRUE(std::isinf(out[1][1]));
  const auto back = run_op("AttentionBackward", {kQueries, kKeys, kValues, kGradients, {{2, 1, 3}, out[1]}, mask});
  EXPECT_THAT(back[0], agrees_with({-0.7331904822, 0.4837272342, 0, 0, 0, 0, -0.76628362, 0.1481569511, 0, 0, 0, 0}));
  EXPECT_THAT(back[1], agrees_with({-0.5531444166, -0.2212577666, 0, 0, 0.4374491127, 0.1749796451, 0.1156953039,
                                    0.04627812157, -0.166261922, 0.08313096101, 0, 0, -0.01206998063, 0.006034990317,
                                    0.1783319026, -0.08916595132}));
  EXPECT_THAT(back[2], agrees_with({-0.792891259,
                                    -0.1585782518,
                                    0.4757347554,
                                    -0.75,
                                    0.25,
                                    1.25,
                                    -0.3276030328,
                                    -0.06552060656,
                                    0.1965618197,
                                    -0.1295057082,
                                    -0.02590114165,
                                    0.07770342495,
                                    0.1326310846,
                                    0.663155423,
                                    -0.2652621692,
                                    0.75,
                                    -1,
                                    0,
                                    0.06256903575,
                                    0.3128451787,
                                    -0.1251380715,
                                    0.05479987964,
                                    0.2739993982,
                                    -0.1095997593}));
}

// A window is what a mask of the same places gives; padding and causality hold together.
TEST(Attention, AttendsWithinAWindow) {
  const auto numbers = [](int64_t count, double from) {
    std::vector<double> result;
    for (int64_t i = 0; i < count; ++i) result.push_back(std::sin(from + 1.7 * static_cast<double>(i)));
    return result;
  };
  const Literal q{{6, 2}, numbers(12, 0)}, k{{7, 2}, numbers(14, 1)}, v{{7, 2}, numbers(14, 2)};
  const auto mask = [](int64_t left, int64_t right, int64_t padded) {
    Literal result{{6, 7}, {}, DType::u8};
    for (int64_t l = 0; l < 6; ++l) {
      for (int64_t s = 0; s < 7; ++s) result.elements.push_back(s <= l + right && s >= l - left && s < padded ? 1 : 0);
    }
    return result;
  };
  EXPECT_THAT(run_op("AttentionForward", {q, k, v}, {{"window_left", int64_t{2}}, {"window_right", int64_t{1}}})[0],
              agrees_with(run_op("AttentionForward", {q, k, v, mask(2, 1, 7)})[0]));
  EXPECT_THAT(run_op("AttentionForward", {q, k, v}, {{"causal", int64_t{1}}, {"window_left", int64_t{3}}})[0],
              agrees_with(run_op("AttentionForward", {q, k, v, mask(3, 0, 7)})[0]));
  const Literal padding{{1, 7}, {1, 1, 1, 1, 0, 0, 0}, DType::u8};
  EXPECT_THAT(run_op("AttentionForward", {q, k, v, padding}, {{"causal", int64_t{1}}})[0],
              agrees_with(run_op("AttentionForward", {q, k, v, mask(9, 0, 4)})[0]));
}

// Several documents in a row are what a mask of the same places gives, forward and backward, with a mask besides.
TEST(Attention, AttendsToItsOwnDocumentAlone) {
  const Literal q = sequence({2, 4, 5, 2}, 3), k = sequence({2, 2, 5, 2}, 7), v = sequence({2, 2, 5, 3}, 5);
  const Literal dy = sequence({2, 4, 5, 3}, 4);
  const std::vector<double> ids{7, 7, -1, -1, -1, 0, 1, 1, 0, 0};  // of the second row, one comes twice
  const auto same = [&](bool first_row, Literal padding) {
    Literal mask{{2, 1, 5, 5}, {}, DType::u8};
    for (size_t b : {0, 1}) {
      for (size_t l = 0; l < 5; ++l) {
        for (size_t s = 0; s < 5; ++s) {
          const double* row = ids.data() + (first_row ? 0 : 5 * b);
          mask.elements.push_back(row[l] == row[s] && padding.elements[5 * b + s] != 0 ? 1 : 0);
        }
      }
    }
    return mask;
  };
  const Literal none{{2, 1, 1, 5}, std::vector<double>(10, 1), DType::u8};
  const Literal padding{{2, 1, 1, 5}, {1, 1, 1, 0, 0, 1, 1, 1, 1, 0}, DType::u8};
  const Literal each{{2, 5}, ids, DType::i32}, shared{{1, 5}, {ids.begin(), ids.begin() + 5}, DType::i32};
  const Attributes plain{{"enable_gqa", int64_t{1}}, {"window_left", int64_t{2}}};
  Attributes documents = plain;
  documents.set("documents", int64_t{1});
  const auto expect_same = [&](std::vector<Literal> optional, const Literal& mask) {
    std::vector<Literal> forward{q, k, v}, backward{q, k, v, dy};
    const auto expected = run_op("AttentionForward", {q, k, v, mask}, plain);
    const Literal log_sum{{2, 4, 5}, expected[1]};
    const auto expected_back = run_op("AttentionBackward", {q, k, v, dy, log_sum, mask}, plain);
    backward.push_back(log_sum);
    forward.insert(forward.end(), optional.begin(), optional.end());
    backward.insert(backward.end(), optional.begin(), optional.end());
    EXPECT_THAT(run_op("AttentionForward", forward, documents)[0], agrees_with(expected[0]));
    const auto back = run_op("AttentionBackward", backward, documents);
    for (size_t i : {0, 1, 2}) EXPECT_THAT(back[i], agrees_with(expected_back[i]));
  };
  expect_same({each}, same(false, none));
  expect_same({shared}, same(true, none));
  expect_same({padding, each}, same(false, padding));
}

// cap * tanh(x / cap) of one query and two keys, written out: the mask is added behind it.
TEST(Attention, CapsScores) {
  const double cap = 0.5;
  const Literal q{{1, 1}, {2}}, k{{2, 1}, {0.3, -0.7}}, v{{2, 1}, {1, 3}}, mask{{1, 2}, {0.1, 0.4}};
  const auto p = [&](double of_mask) {
    const double first = cap * std::tanh(0.3 * 2 * 0.25 / cap) + of_mask * 0.1;
    const double second = cap * std::tanh(-0.7 * 2 * 0.25 / cap) + of_mask * 0.4;
    return std::exp(first) / (std::exp(first) + std::exp(second));
  };
  const Attributes capped{{"softcap", cap}, {"scale", 0.25}};
  EXPECT_THAT(run_op("AttentionForward", {q, k, v}, capped)[0], agrees_with({p(0) + 3 * (1 - p(0))}));
  EXPECT_THAT(run_op("AttentionForward", {q, k, v, mask}, capped)[0], agrees_with({p(1) + 3 * (1 - p(1))}));
  EXPECT_THAT(run_op("AttentionForward", {q, k, v}, {{"softcap", 1e9}, {"scale", 0.25}})[0],
              agrees_with(run_op("AttentionForward", {q, k, v}, {{"scale", 0.25}})[0]));
}

// A query that sees no key attends to all alike: as where its scores are equal, by a query of zeros or by equal keys.
TEST(Attention, AttendsToAllKeysAlikeWhereItSeesNone) {
  const Literal v = sequence({1, 4, 3}, 5), dy = sequence({1, 2, 3}, 4), hidden{{2, 1}, {0, 1}, DType::u8};
  const Literal none{{1, 2, 2}, {0, 0, 1, 0.5}}, queries = sequence({1, 2, 2}, 3);
  const Literal some = sequence({1, 4, 2}, 7), equal{{1, 4, 2}, {0.5, -1, 0.5, -1, 0.5, -1, 0.5, -1}};
  for (const double softcap : {0.0, 0.8}) {
    for (const auto& [q, k] : {std::pair(none, some), std::pair(queries, equal)}) {
      const Attributes plain{{"softcap", softcap}};
      const auto expected = run_op("AttentionForward", {q, k, v}, plain);
      const auto expected_back = run_op("AttentionBackward", {q, k, v, dy, {{1, 2}, expected[1]}}, plain);
      for (const int64_t blind : {1, 2}) {
        const Attributes attributes{{"softcap", softcap}, {"blind", blind}};
        const auto out = run_op("AttentionForward", {q, k, v, hidden}, attributes);
        EXPECT_THAT(out[0], agrees_with(expected[0]));
        EXPECT_TRUE(std::isinf(out[1][0]));
        const auto back = run_op("AttentionBackward", {q, k, v, dy, {{1, 2}, out[1]}, hidden}, attributes);
        EXPECT_THAT(back[2], agrees_with(expected_back[2]));
        if (blind == 2) {
          EXPECT_THAT(back[0], agrees_with(expected_back[0]));
          EXPECT_THAT(back[1], agrees_with(expected_back[1]));
        } else {
          EXPECT_THAT(std::vector<double>(back[0].begin(), back[0].begin() + 2), agrees_with({0, 0}));
        }
      }
    }
  }
}

// Where a mask adds the least number to every score, only the number counts, and of its size no log_sum tells how many there are.
TEST(Attention, OfScoresThatAreLostInAMaskAttendsToAllAlike) {
  const double least = std::numeric_limits<float>::lowest();
  const Literal q = sequence({1, 2, 2}, 3), k = sequence({1, 4, 2}, 7), v = sequence({1, 4, 3}, 5),
                dy = sequence({1, 2, 3}, 4);
  const Literal added{{1, 2, 4}, {least, least, least, least, 0, least, 0, 0}};
  const Literal hidden{{1, 2, 4}, {0, 0, 0, 0, 1, 0, 1, 1}, DType::u8};
  const Attributes alike{{"blind", int64_t{2}}};
  const auto out = run_op("AttentionForward", {q, k, v, added}),
             expected = run_op("AttentionForward", {q, k, v, hidden}, alike);
  EXPECT_THAT(out[0], agrees_with(expected[0]));
  const auto back = run_op("AttentionBackward", {q, k, v, dy, {{1, 2}, out[1]}, added});
  const auto expected_back = run_op("AttentionBackward", {q, k, v, dy, {{1, 2}, expected[1]}, hidden}, alike);
  for (size_t i : {0, 1, 2}) EXPECT_THAT(back[i], agrees_with(expected_back[i]));
}

TEST(Attention, GradientsAgreeWithFiniteDifferences) {
  struct Kind {
    Shape q, k, v, mask;
    bool causal = false;
    double dropout = 0;
    int64_t left = 1 << 20;
    std::vector<double> documents = {};
    double softcap = 0;
    int64_t blind = 0;
  };
  for (const Kind& kind : {Kind{{3, 4}, {5, 4}, {5, 2}, {}},
                           {{2, 2, 3, 4}, {2, 2, 3, 4}, {2, 2, 3, 4}, {}, true},
                           {{2, 4, 3, 2}, {2, 2, 5, 2}, {2, 2, 5, 3}, {4, 1, 5}},
                           {{2, 2, 3, 2}, {2, 2, 4, 2}, {2, 2, 4, 2}, {3, 4}},
                           {{2, 2, 3, 2}, {2, 2, 4, 2}, {2, 2, 4, 2}, {2, 1, 3, 1}, false, 0.4},
                           {{1, 2, 4, 2}, {1, 2, 4, 2}, {1, 2, 4, 2}, {}, true, 0.3},
                           {{1, 2, 6, 2}, {1, 1, 6, 2}, {1, 1, 6, 2}, {6, 6}, true, 0, 2},
                           {{1, 2, 6, 2}, {1, 1, 6, 2}, {1, 1, 6, 2}, {}, true, 0, 9, {0, 0, 0, 1, 1, 1}},
                           {{1, 2, 4, 2}, {1, 2, 4, 2}, {1, 2, 4, 2}, {4, 4}, false, 0.3, 9, {5, 2, 2, 5}},
                           {{2, 4, 3, 2}, {2, 2, 5, 2}, {2, 2, 5, 3}, {}, false, 0, 9, {}, 0.7},
                           {{2, 2, 4, 2}, {2, 2, 4, 2}, {2, 2, 4, 3}, {2, 1, 4}, true, 0.3, 2, {}, 1.3},
                           {{1, 2, 6, 2}, {1, 2, 3, 2}, {1, 2, 3, 2}, {}, false, 0, 1, {}, 0, 1},
                           {{1, 2, 6, 2}, {1, 1, 3, 2}, {1, 1, 3, 2}, {2, 6, 3}, false, 0.3, 1, {}, 0.7, 1}}) {
    SCOPED_TRACE(to_string(kind.q));
    Graph graph;
    std::vector<TensorId> inputs{graph.add_source("q", kind.q, DType::f64, Role::input),
                                 graph.add_source("k", kind.k, DType::f64, Role::input),
                                 graph.add_source("v", kind.v, DType::f64, Role::input)};
    if (!kind.mask.empty()) inputs.push_back(graph.add_source("mask", kind.mask, DType::f64, Role::input));
    const std::vector<TensorId> wanted = inputs;
    GradientCheckOptions options;
    if (!kind.documents.empty()) {
      inputs.push_back(graph.add_source("documents", {1, kind.q[2]}, DType::i32, Role::input));
      options.values["documents"] = kind.documents;
    }
    if (kind.dropout > 0) {
      inputs.push_back(graph.add_source("step", {}, DType::i64, Role::hyperparameter));
      inputs.push_back(graph.add_source("seed", {}, DType::i64, Role::hyperparameter));
      options.values["step"] = {3}, options.values["seed"] = {42};
    }
    const OpId op = graph.add_op("AttentionForward", "attention", "attention", inputs,
                                 {{"causal", int64_t{kind.causal}},
                                  {"window_left", kind.left},
                                  {"dropout", kind.dropout},
                                  {"softcap", kind.softcap},
                                  {"blind", kind.blind},
                                  {"enable_gqa", int64_t{1}},
                                  {"documents", int64_t{!kind.documents.empty()}},
                                  {"salt", int64_t{7}}});
    EXPECT_EQ(check_gradients(graph, {graph.output(op)}, wanted, options), "");
  }
}

// A mask that says only what is seen has no gradient, also where it comes of values that have one.
TEST(Attention, AComputedMaskOfBytesTakesNoGradient) {
  Graph graph;
  std::vector<TensorId> inputs{graph.add_source("q", {1, 3, 4}, DType::f64, Role::input),
                               graph.add_source("k", {1, 5, 4}, DType::f64, Role::input),
                               graph.add_source("v", {1, 5, 2}, DType::f64, Role::input)};
  const TensorId seen = graph.add_source("seen", {3, 5}, DType::f64, Role::input);
  std::vector<TensorId> wanted = inputs;
  wanted.push_back(seen);
  const OpId cast = graph.add_op("Cast", "cast", "cast", {seen}, {{"dtype", std::string("u8")}});
  inputs.push_back(graph.output(cast));
  const OpId op = graph.add_op("AttentionForward", "attention", "attention", inputs);
  GradientCheckOptions options;
  options.values["seen"] = {1.5, 0.5, 2.5, 0.5, 1.5, 0.5, 1.5, 1.5, 1.5, 0.5, 2.5, 2.5, 0.5, 0.5, 1.5};
  EXPECT_EQ(check_gradients(graph, {graph.output(op)}, wanted, options), "");
}

TEST(Attention, NamesWhatDoesNotFit) {
  const Literal q{{2, 4, 3, 8}, {}}, k{{2, 2, 5, 8}, {}}, v{{2, 2, 5, 6}, {}};
  const Attributes shared{{"enable_gqa", int64_t{1}}};
  EXPECT_EQ(refusal("AttentionForward", {q, k, v}, shared), "");
  EXPECT_THAT(refusal("AttentionForward", {q, k, v}),
              HasSubstr("'in0' is 2x4x3x8 and 'in1' is 2x2x5x8: what stands before the last two dimensions must be "
                        "equal (broadcast it by Expand), or with enable_gqa a multiple in the last of them"));
  EXPECT_THAT(refusal("AttentionForward", {q, {{2, 3, 5, 8}, {}}, v}, shared),
              HasSubstr("with enable_gqa the heads of the first are a multiple of the second's"));
  EXPECT_THAT(refusal("AttentionForward", {q, k, {{2, 2, 4, 6}, {}}}, shared),
              HasSubstr("'in1' is 2x2x5x8 and 'in2' is 2x2x4x6: all but their last dimensions must be equal"));
  EXPECT_THAT(refusal("AttentionForward", {q, k, v, {{3, 4}, {}}}, shared),
              HasSubstr("the mask 'in3' is 3x4, which does not broadcast to 2x4x3x5"));
  EXPECT_THAT(refusal("AttentionForward", {q, k, v, {{3, 5}, {}, DType::i32}}, shared),
              HasSubstr("the mask 'in3' is i32; u8, or f64 as 'in0' is expected"));
  EXPECT_THAT(refusal("AttentionForward", {q, q, q}, {{"window_left", int64_t{-1}}}),
              HasSubstr("window_left is -1; 0 or more is expected"));
  EXPECT_THAT(refusal("AttentionForward", {q, q, q}, {{"softcap", -2.0}}),
              HasSubstr("softcap is -2; a number above 0 is expected, or 0 for none"));
  EXPECT_THAT(refusal("AttentionForward", {q, q, q}, {{"blind", int64_t{3}}}),
              HasSubstr("blind is 3; 0, 1 or 2 is expected"));
  EXPECT_THAT(refusal("AttentionForward", {q, q, q}, {{"dropout", 0.5}}),
              HasSubstr("dropout is 0.5; step_number and seed are expected as the last inputs"));
  const Attributes documents{{"documents", int64_t{1}}};
  EXPECT_EQ(refusal("AttentionForward", {q, q, q, {{2, 3}, {}, DType::i32}}, documents), "");
  EXPECT_THAT(refusal("AttentionForward", {q, q, q}, documents),
              HasSubstr("documents is set; their ids are expected as an input behind the mask"));
  EXPECT_THAT(refusal("AttentionForward", {q, q, q, {{4, 3}, {}, DType::i32}}, documents),
              HasSubstr("'in3', the documents, is i32 4x3, and 'in0' is 2x4x3x8 with 3 keys; i32 of 1 or as many rows, "
                        "with an id for each query and its key, is expected"));
  EXPECT_THAT(refusal("AttentionForward", {q, q, q, {{2, 3}, {}, DType::i64}}, documents),
              HasSubstr("'in3', the documents, is i64 2x3"));
  EXPECT_THAT(refusal("AttentionForward", {q, k, k, {{2, 5}, {}, DType::i32}},
                      {{"documents", int64_t{1}}, {"enable_gqa", int64_t{1}}}),
              HasSubstr("'in0' is 2x4x3x8 with 5 keys"));
  const Literal mask{{3, 3}, {}}, number{{}, {}, DType::i64};
  EXPECT_THAT(refusal("AttentionForward", {q, q, q, mask, {{2, 3}, {}, DType::i32}, number, number}),
              HasSubstr("7 inputs; documents are taken where the attribute of that name is set"));
}

}  // namespace
}  // namespace plimsoll
