#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_text.h"
#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

const std::vector<double> kNormX{-1, -0.2, 0.6, 1.4, 2.2, -0.7, 0.1, 0.9, -1.2, -0.4, 0.4, 3};
const std::vector<double> kNormDy{1, -2, 0.5, 0.3, 0.2, 0.7, -0.4, 1.1, -0.6, 0.9, 1.3, -0.8};
const Literal kNormGamma{{4}, {0.5, -1, 1.5, 2}}, kNormBeta{{4}, {0.1, 0.2, -0.3, 0.4}};

// layer_norm, rms_norm and group_norm with eps=1e-3 and their gradients in PyTorch 2.15, double precision.
TEST(LayerNorm, AgreesWithPyTorch) {
  const auto out = run_op("LayerNormForward", {{{3, 4}, kNormX}, kNormGamma, kNormBeta},
                          {{"axes", int64_t{1}}, {"epsilon", 1e-3}, {"affine", std::string("gamma_beta")}});
  EXPECT_THAT(out[0], agrees_with({-0.5704015232, 0.6469343488, 0.3704015232, 3.081606093, 0.8350269515, 1.436712014,
                                   -1.035026951, 0.9133521566, -0.4229800545, 0.738827935, -0.3475436413, 3.63296761}));
  const auto back =
      run_op("LayerNormBackward", {{{3, 4}, kNormX}, {{3, 4}, kNormDy}, {{3}, out[1]}, {{3}, out[2]}, kNormGamma},
             {{"axes", int64_t{1}}, {"affine", std::string("gamma_beta")}});
  EXPECT_THAT(back[0],
              agrees_with({-0.6757894255, 1.106228772, -0.1844266779, -0.2460126688, -0.7819430788, -0.3466561463,
                           -0.5793831088, 1.707982334, -0.3620366611, -0.593746238, 1.361551686, -0.4057687869}));
  EXPECT_THAT(back[1], agrees_with({-0.4192162003, -0.4567748535, 0.3782698723, -0.6086024439}));
  EXPECT_THAT(back[2], agrees_with({0.6, -0.4, 1.4, 0.6}));
}

TEST(RmsNorm, AgreesWithPyTorch) {
  const auto out = run_op("RmsNormForward", {{{3, 4}, kNormX}, kNormGamma},
                          {{"axes", int64_t{1}}, {"epsilon", 1e-3}, {"affine", std::string("gamma")}});
  EXPECT_THAT(out[0], agrees_with({-0.5452202862, 0.2180881145, 0.9813965152, 3.053233603, 0.8868372669, 0.564350988,
                                   0.1209323546, 1.451188255, -0.365758478, 0.2438389853, 0.365758478, 3.65758478}));
  const auto back = run_op("RmsNormBackward", {{{3, 4}, kNormX}, {{3, 4}, kNormDy}, {{3}, out[1]}, kNormGamma},
                           {{"axes", int64_t{1}}, {"affine", std::string("gamma")}});
  EXPECT_THAT(back[0],
              agrees_with({0.671638783, 2.206164844, 0.7419793313, 0.477278448, -0.677383634, -0.3231675141,
                           -0.5181842003, 1.463581496, -0.4071458643, -0.6233932587, 1.263470595, -0.414689378}));
  EXPECT_THAT(back[1], agrees_with({-0.2967954921, -0.1783245494, 0.6118742248, -0.2068953313}));
}

TEST(GroupNorm, AgreesWithPyTorch) {
  const auto out = run_op("GroupNormForward", {{{1, 4, 3}, kNormX}, kNormGamma, kNormBeta},
                          {{"groups", int64_t{2}}, {"epsilon", 1e-3}, {"affine", std::string("gamma_beta")}});
  EXPECT_THAT(out[0],
              agrees_with({-0.5060751883, -0.1555738746, 0.1949274391, -0.6908575057, -1.391860133, 1.149274391,
                           -0.7201997987, 0.1965997621, -2.209999085, -0.9242660322, 0.2981333821, 4.270931479}));
  const auto back = run_op("GroupNormBackward",
                           {{{1, 4, 3}, kNormX}, {{1, 4, 3}, kNormDy}, {{1, 2}, out[1]}, {{1, 2}, out[2]}, kNormGamma},
                           {{"groups", int64_t{2}}, {"affine", std::string("gamma_beta")}});
  EXPECT_THAT(back[0],
              agrees_with({0.6554462779, -0.6621481596, 0.4299539347, -0.05519988271, 0.02921093468, -0.3972631049,
                           -0.9253728169, 0.9929133773, -1.478414111, 0.7836719185, 1.594158643, -0.9669570113}));
  EXPECT_THAT(back[1], agrees_with({-0.09492743913, -0.07886279559, 1.240226072, -2.210505608}));
  EXPECT_THAT(back[2], agrees_with({-0.5, 1.2, 0.1, 1.4}));
}

TEST(Norms, GradientsAgreeWithFiniteDifferences) {
  struct Kind {
    std::string type;
    Shape x, affine_shape;
    Attributes attributes;
  };
  const std::vector<Kind> kinds = {
      {"LayerNorm", {3, 2, 5}, {5}, {{"axes", int64_t{1}}, {"epsilon", 1e-3}}},
      {"LayerNorm", {3, 2, 5}, {2, 5}, {{"axes", int64_t{2}}}},
      {"LayerNorm", {3, 4}, {3, 4}, {{"axes", int64_t{2}}}},
      {"RmsNorm", {3, 2, 5}, {5}, {{"axes", int64_t{1}}, {"epsilon", 1e-3}}},
      {"RmsNorm", {3, 2, 5}, {2, 5}, {{"axes", int64_t{2}}}},
      {"GroupNorm", {2, 6, 2, 2}, {6}, {{"groups", int64_t{3}}}},
      {"GroupNorm", {2, 4, 3}, {4}, {{"groups", int64_t{4}}, {"epsilon", 1e-3}}},
      {"GroupNorm", {2, 4}, {4}, {{"groups", int64_t{1}}}},
  };
  for (const Kind& kind : kinds) {
    for (const std::string affine : {"none", "gamma", "gamma_beta"}) {
      if (kind.type == "RmsNorm" && affine == "gamma_beta") continue;
      SCOPED_TRACE(kind.type + " " + to_string(kind.x) + " " + affine);
      Graph graph;
      std::vector<TensorId> inputs{graph.add_source("x", kind.x, DType::f64, Role::input)};
      if (affine != "none") inputs.push_back(graph.add_source("gamma", kind.affine_shape, DType::f64, Role::input));
      if (affine == "gamma_beta")
        inputs.push_back(graph.add_source("beta", kind.affine_shape, DType::f64, Role::input));
      Attributes attributes = kind.attributes;
      attributes.set("affine", affine);
      const OpId op = graph.add_op(kind.type + "Forward", "norm", "norm", inputs, attributes);
      EXPECT_EQ(check_gradients(graph, {graph.output(op)}, inputs), "");
    }
  }
}

TEST(Norms, NameWhatDoesNotFit) {
  EXPECT_THAT(refusal("LayerNormForward", {{{2, 3}, {}}}, {{"axes", int64_t{3}}}),
              HasSubstr("axes is 3, but 'in0' is 2x3: of its 2 dimensions, one or more are normalised"));
  EXPECT_THAT(
      refusal("LayerNormForward", {{{2, 3}, {}}, {{2}, {}}}, {{"axes", int64_t{1}}, {"affine", std::string("gamma")}}),
      HasSubstr("gamma 'in1' is 2; 3 is expected for 'in0' of 2x3"));
  EXPECT_THAT(refusal("LayerNormForward", {{{2, 3}, {}}, {{3}, {}}}, {{"axes", int64_t{1}}}),
              HasSubstr("takes 1 inputs, got 2"));
  EXPECT_THAT(refusal("RmsNormForward", {{{2, 3}, {}}}, {{"axes", int64_t{1}}, {"affine", std::string("gamma_beta")}}),
              HasSubstr("affine is 'gamma_beta'; 'none' or 'gamma' is expected"));
  EXPECT_THAT(refusal("GroupNormForward", {{{2, 6, 4}, {}}}, {{"groups", int64_t{4}}}),
              HasSubstr("'in0' is 2x6x4; two or more dimensions are expected, the second of them channels in 4 equal "
                        "groups"));
}

}  // namespace
}  // namespace plimsoll
