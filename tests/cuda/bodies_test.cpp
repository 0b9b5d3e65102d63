// The arithmetic of our kernels where it is done in two ways: divisions by a factor, and four elements at a time.
#include "device/cuda/bodies/bodies.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "device/cuda/kernels_expression.h"
#include "plimsoll/graph.h"

namespace plimsoll::cuda {
namespace {

constexpr int64_t kCount = 203;  // three more than whole fours

TEST(CudaDivisor, DividesAsDivisionDoes) {
  std::mt19937_64 random(7);
  std::vector<int64_t> divisors = {1, 2, 3, 5, 7, 9, 10, 11, 641, 1000, 50257, 112 * 112};
  for (int bits = 2; bits < 36; ++bits) {
    for (const int64_t off : {-1, 0, 1}) divisors.push_back((int64_t{1} << bits) + off);
  }
  for (int i = 0; i < 300; ++i) divisors.push_back(1 + static_cast<int64_t>(random() >> (28 + i % 35)));
  for (const int64_t d : divisors) {
    const Divisor divisor = d;
    EXPECT_EQ(static_cast<int64_t>(divisor), d);
    std::vector<int64_t> numbers = {0, 1, INT32_MAX, int64_t{1} << 31, UINT32_MAX, int64_t{1} << 32, INT64_MAX};
    for (int i = 0; i < 200; ++i) {
      const int64_t n = static_cast<int64_t>(random() >> (1 + i % 60)), multiple = n / d * d;
      numbers.insert(numbers.end(), {n, multiple, multiple + d - 1});
      if (multiple > 0) numbers.push_back(multiple - 1);
    }
    for (const int64_t n : numbers) {
      if (n < 0) continue;  // past what 64 bits hold
      const Division result = divide(n, divisor);
      ASSERT_EQ(result.quotient, n / d) << n << " / " << d;
      ASSERT_EQ(result.remainder, n % d) << n << " % " << d;
    }
  }
}

// Elements at an address that four of them have.
class Values {
 public:
  Values() = default;
  explicit Values(uint64_t seed, float low = -2, float high = 2) : fours_((kCount + 3) / 4) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> draw(low, high);
    for (int64_t i = 0; i < kCount; ++i) at()[i] = draw(random);
  }
  float* at() { return &fours_[0].v[0]; }
  const float* at() const { return &fours_[0].v[0]; }

 private:
  std::vector<Four> fours_;
};

// `make` gives the body for these outputs, which begin with the same values; some bodies read them.
template <class Make>
void expect_equal_bits(int outputs, const Make& make) {
  std::vector<Values> one_by_one, by_four;
  for (int i = 0; i < outputs; ++i) one_by_one.emplace_back(100 + static_cast<uint64_t>(i), 0.1F, 1);
  by_four = one_by_one;
  const auto first = make(one_by_one);
  const auto second = make(by_four);
  ASSERT_TRUE(second.by_four());
  for (int64_t i = 0; i < kCount; ++i) first.run(i);
  int64_t done = 0;
  for (; done + 4 <= kCount; done += 4) second.four(done);
  for (; done < kCount; ++done) second.run(done);
  for (int i = 0; i < outputs; ++i) {
    const auto k = static_cast<size_t>(i);
    EXPECT_EQ(std::memcmp(one_by_one[k].at(), by_four[k].at(), kCount * sizeof(float)), 0) << "output " << i;
  }
}
using Outputs = std::vector<Values>;

// Channels of an odd number of pixels; the last channel is cut.
Image image_of_layout(bool channels_last, int64_t c = 6, int64_t h = 3, int64_t w = 5) {
  return with_pixels({.n = 3,
                      .c = c,
                      .h = h,
                      .w = w,
                      .to_n = c * h * w,
                      .to_c = channels_last ? 1 : h * w,
                      .to_h = channels_last ? w * c : w,
                      .to_w = channels_last ? c : 1});
}

TEST(CudaByFour, GivesTheBitsOfElementsOneByOne) {
  const Values a(1), b(2), c(3);
  const float scale = 0.7F;
  const Activation kinds[] = {Activation::none, Activation::relu, Activation::leaky_relu, Activation::sigmoid,
                              Activation::tanh};
  expect_equal_bits(1, [&](Outputs& y) { return Constant{y[0].at(), 3}; });
  for (const Activation kind : kinds) {
    expect_equal_bits(1, [&](Outputs& y) { return Activate{y[0].at(), a.at(), kind, 0.1F}; });
    expect_equal_bits(1, [&](Outputs& y) { return ActivateBackward{y[0].at(), a.at(), b.at(), kind, 0.1F}; });
  }
  for (const bool relu : {false, true}) {
    expect_equal_bits(1, [&](Outputs& y) {
      return AddTerms{.y = y[0].at(), .terms = {a.at(), b.at(), c.at()}, .count = 3, .relu = relu};
    });
    for (const bool last : {false, true}) {
      expect_equal_bits(1, [&](Outputs& y) {
        return AddBias{.y = y[0].at(), .x = a.at(), .bias = b.at(), .image = image_of_layout(last), .relu = relu};
      });
    }
  }
  expect_equal_bits(1, [&](Outputs& y) { return ScaleBy{y[0].at(), a.at(), &scale}; });
}

TEST(CudaByFour, GivesTheBitsOfUpdatesOneByOne) {
  const Values w(1), g(2), m(3), v(4, 0.1F, 1);
  const float rate[5] = {0.1F, 0.01F, 0.9F, 0.001F, 1e-8F}, none = -1, half = 0.5F;
  const float factors[8] = {0.99F, 0.01F, 0.3F, 0.02F, 0.1F, 0.999F, 0.001F, 1e-8F};
  for (const float* scale : {static_cast<const float*>(nullptr), &none, &half}) {
    for (const bool has_momentum : {false, true}) {
      for (const bool settings : {false, true}) {
        expect_equal_bits(2, [&](Outputs& y) {
          return Sgd{.w_next = y[0].at(),
                     .m_next = has_momentum ? y[1].at() : nullptr,
                     .w = w.at(),
                     .g = g.at(),
                     .m = has_momentum ? m.at() : nullptr,
                     .learning_rate = rate,
                     .scale = scale,
                     .weight_decay = 0.02F,
                     .momentum = 0.8F,
                     .has_settings = settings,
                     .nesterov = settings};
        });
      }
    }
    expect_equal_bits(3, [&](Outputs& y) {
      return Adam{.w_next = y[0].at(),
                  .m_next = y[1].at(),
                  .v_next = y[2].at(),
                  .w = w.at(),
                  .g = g.at(),
                  .m = m.at(),
                  .v = v.at(),
                  .factors = factors,
                  .scale = scale};
    });
  }
  for (const int64_t count : {0, 2})
    expect_equal_bits(1, [&](Outputs& y) { return Accumulate{y[0].at(), w.at(), g.at(), &count}; });
}

// Whatever a compiler makes of them: an update by the gradient times a scale is that by the product, rounded.
TEST(CudaRounding, OfUpdatesIsAsTheySay) {
  const Values w(1), g(2), m(3), v(4, 0.1F, 1);
  const float rate = 0.1F, scale = 0.37F;
  const float factors[AdamFactors::kCount] = {0.99F, 0.01F, 0.1F, 0.03F, 0.1F, 0.999F, 0.001F, 1e-8F};
  Values w_next(5), m_next(6), v_next(7);
  const auto rounded = [](float x) {
    volatile float kept = x;
    return kept;
  };
  for (const bool nesterov : {false, true}) {
    const Sgd sgd{w_next.at(), m_next.at(), w.at(), g.at(), m.at(), &rate, &scale, 0.02F, 0.9F, false, nesterov};
    for (int64_t i = 0; i < kCount; ++i) {
      const float d = std::fmaf(0.02F, w.at()[i], rounded(scale * g.at()[i]));
      const float velocity = std::fmaf(0.9F, m.at()[i], d), step = nesterov ? std::fmaf(0.9F, velocity, d) : velocity;
      sgd.run(i);
      ASSERT_EQ(m_next.at()[i], velocity) << i;
      ASSERT_EQ(w_next.at()[i], std::fmaf(-rate, step, w.at()[i])) << i;
    }
  }
  const Adam adam{w_next.at(), m_next.at(), v_next.at(), w.at(), g.at(), m.at(), v.at(), factors, &scale};
  for (int64_t i = 0; i < kCount; ++i) {
    const float d = std::fmaf(factors[3], w.at()[i], rounded(scale * g.at()[i]));
    const float mean = std::fmaf(factors[4], rounded(d - m.at()[i]), m.at()[i]);
    const float square = std::fmaf(factors[5], v.at()[i], rounded(rounded(factors[6] * d) * d));
    const float step = mean / (rounded(std::sqrt(square) / factors[2]) + factors[7]);
    adam.run(i);
    ASSERT_EQ(m_next.at()[i], mean) << i;
    ASSERT_EQ(v_next.at()[i], square) << i;
    ASSERT_EQ(w_next.at()[i], std::fmaf(-factors[1], step, rounded(factors[0] * w.at()[i]))) << i;
  }
}

TEST(CudaByFour, GivesTheBitsOfNormsOneByOne) {
  const Values x(1), dy(2), gamma(3), beta(4), mean(5), inv(6, 0.5F, 1), dgamma(7), dbeta(8);
  std::vector<uint8_t> mask(kCount / 8 + 1);
  std::mt19937 random(3);
  for (uint8_t& byte : mask) byte = static_cast<uint8_t>(random());
  for (const bool masked : {false, true}) {
    for (const Image& image : {image_of_layout(false), image_of_layout(true), image_of_layout(true, 8)}) {
      expect_equal_bits(2, [&](Outputs& y) {
        return NormalizeBackward{.dx = y[0].at(),
                                 .dresidual = masked ? y[1].at() : nullptr,
                                 .x = x.at(),
                                 .dy = dy.at(),
                                 .gamma = gamma.at(),
                                 .mean = mean.at(),
                                 .inv_std = inv.at(),
                                 .dgamma = dgamma.at(),
                                 .dbeta = dbeta.at(),
                                 .mask = masked ? mask.data() : nullptr,
                                 .image = image,
                                 .one_by_n = 0.01F,
                                 .fours = channels_lie_by_four(image, gamma.at(), mean.at())};
      });
    }
  }
  std::vector<SumPair> means(kCount);
  for (SumPair& pair : means) pair = {0.01 * (random() % 100), 0.01 * (random() % 100)};
  for (const int64_t groups : {0, 2}) {
    const NormRows rows{.rows = 14, .length = 15, .groups = groups, .pixels = groups == 0 ? 1 : 3, .group_channels = 5};
    for (const bool centred : {false, true}) {
      const float* const of_rows = centred ? mean.at() : nullptr;
      expect_equal_bits(1, [&](Outputs& y) {
        return NormalizeRows{y[0].at(), x.at(), of_rows, inv.at(), gamma.at(), centred ? beta.at() : nullptr, rows};
      });
      expect_equal_bits(1, [&](Outputs& y) {
        return NormalizeRowsBackward{y[0].at(), {x.at(), dy.at(), of_rows, inv.at(), gamma.at(), rows}, means.data()};
      });
    }
  }
}

// A window of 3 x 3 that moves by 2, with padding before: fours of pixels, and of channels.
TEST(CudaByFour, GivesTheBitsOfPoolsOneByOne) {
  const Values dy(1);
  std::mt19937 random(5);
  std::vector<uint8_t> index(kCount);
  for (uint8_t& tap : index) tap = static_cast<uint8_t>(random() % 9);
  const auto slide = [](int64_t in, int64_t out) {
    return Slide{.in = in, .out = out, .kernel = 3, .stride = 2, .before = 1};
  };
  for (const bool last : {false, true}) {
    const Image large = image_of_layout(last, 4, 5, 8), small = image_of_layout(last, 4, 3, 4);
    const Slide h = slide(5, 3), w = slide(8, 4);
    expect_equal_bits(1, [&](Outputs& y) {
      return MaxPoolBackward{
          .dx = y[0].at(), .dy = dy.at(), .index = index.data(), .small = small, .large = large, .h = h, .w = w};
    });
  }
  const Image large = image_of_layout(true, 4, 9, 15), small = image_of_layout(true, 4, 5, 8);
  std::vector<Four> x(3 * 4 * 9 * 15 / 4);
  for (Four& four : x) {
    for (float& v : four.v) v = random() % 10 == 0 ? NAN : static_cast<float>(random() % 5);
  }
  std::vector<uint8_t> taps[2] = {std::vector<uint8_t>(kCount + 4), std::vector<uint8_t>(kCount + 4)};
  int made = 0;
  expect_equal_bits(1, [&](Outputs& y) {
    return MaxPool{.y = y[0].at(),
                   .index = taps[made++].data(),
                   .x = &x[0].v[0],
                   .small = small,
                   .large = large,
                   .h = slide(9, 5),
                   .w = slide(15, 8)};
  });
  EXPECT_EQ(taps[0], taps[1]);
}

TEST(CudaExpression, IsAChainWhereEveryStepTakesWhatTheOneBeforeMade) {
  Graph graph;
  const TensorId x = graph.add_source("x", {2, 4}, DType::f32, Role::input);
  const Op& op = graph.op(graph.add_op("ReluForward", "relu", "relu", {x}));
  const auto is_chain = [&op](std::string_view text) {
    const Expression expression = parse_expression(text);
    std::vector<PointwiseSource> inputs(static_cast<size_t>(input_count(expression)));
    return PreparedExpression(op, expression, {}, inputs).is_chain();
  };
  for (const char* chain : {"add(x0,x1)", "mul(x2,gelu_tanh_derivative(add(x0,x1)))", "square(x0)",
                            "clamp(mul(x0,2),-1,x1)", "t0=mul(x0,x1);mul(t0,t0)", "where(x0,0,1)"}) {
    EXPECT_TRUE(is_chain(chain)) << chain;
  }
  for (const char* tree : {"add(mul(x0,x1),mul(x2,x3))", "t0=mul(x0,x1);mul(t0,sigmoid(t0))", "add(x8,x0)"}) {
    EXPECT_FALSE(is_chain(tree)) << tree;
  }
  std::string deep = "x0";
  for (int i = 0; i < kMostChained; ++i) deep = "sin(" + deep + ")";
  EXPECT_TRUE(is_chain("abs(" + deep.substr(4)));
  EXPECT_FALSE(is_chain("abs(" + deep + ")"));
}

TEST(CudaByFour, GivesTheBitsOfSoftmaxAndLossOneByOne) {
  const Values x(1), dy(2), p(3, 0.1F, 0.2F);
  std::vector<SoftmaxRow> rows(kCount);
  std::vector<AxisRow> axis_rows(kCount);
  std::vector<double> sums(kCount);
  std::vector<int32_t> labels(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    rows[i].log_sum = axis_rows[i].log_sum = 1 + 0.01 * static_cast<double>(i);
    sums[i] = 0.02 * static_cast<double>(i);
    labels[i] = static_cast<int32_t>(i % 9) - 1;
  }
  const Labels of_rows{.narrow = labels.data(), .wide = nullptr, .ignored = -1, .ignores = false};
  const float scale = 0.3F;
  expect_equal_bits(1, [&](Outputs& y) { return SoftmaxProbabilities{y[0].at(), x.at(), rows.data(), 7}; });
  expect_equal_bits(1, [&](Outputs& y) { return SoftmaxBackward{y[0].at(), p.at(), of_rows, &scale, 7, 0.1F}; });
  expect_equal_bits(1, [&](Outputs& y) { return LogitGradients{y[0].at(), rows.data(), of_rows, &scale, 8, 7, 0.1F}; });
  for (const bool log : {false, true}) {
    for (const int64_t inner : {1, 3}) {
      const AxisPlace place{.length = 5, .inner = inner};
      expect_equal_bits(1, [&](Outputs& y) { return AxisSoftmax{y[0].at(), x.at(), axis_rows.data(), place, log}; });
      expect_equal_bits(
          1, [&](Outputs& y) { return AxisSoftmaxBackward{y[0].at(), x.at(), dy.at(), sums.data(), place, log}; });
    }
  }
}

TEST(CudaByFour, GivesTheBitsOfAttentionOneByOne) {
  const Values added(1), log_sums(2);
  const ScorePlace place{.first_head = 2, .queries = 3, .keys = 7};
  const int64_t step = 5, seed = 9;
  AttentionMask mask;
  mask.added = added.at();
  mask.rank = 1, mask.size[0] = 4, mask.stride[0] = 21, mask.to_row = 7, mask.to_column = 1;
  std::vector<AxisRow> rows(kCount);
  std::vector<double> dots(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    rows[i].log_sum = 0.01 * static_cast<double>(i);
    dots[i] = 0.02 * static_cast<double>(i);
  }
  for (const bool drops : {false, true}) {
    AttentionDropout dropout;
    if (drops) dropout = {.stream = {.step_number = &step, .seed = &seed}, .threshold = 1U << 30, .scale = 1.3F};
    expect_equal_bits(2, [&](Outputs& y) {
      return AttentionScores{.scores = y[0].at(),
                             .slopes = y[1].at(),
                             .log_sums = drops ? log_sums.at() : nullptr,
                             .mask = mask,
                             .place = place,
                             .scale = 0.3F,
                             .softcap = drops ? 0.5F : 0,
                             .alike = drops,
                             .left = 2,
                             .right = drops ? 3 : 0,
                             .documents = nullptr,
                             .heads_of_documents = 1};
    });
    expect_equal_bits(1, [&](Outputs& y) {
      return AttentionProbabilities{y[0].at(), rows.data(), place, dropout, drops};
    });
    expect_equal_bits(2, [&](Outputs& y) {
      return AttentionScoreGradients{.probabilities = y[0].at(),
                                     .gradients = y[1].at(),
                                     .dots = dots.data(),
                                     .slopes = drops ? added.at() : nullptr,
                                     .fixed_scores = drops ? log_sums.at() : nullptr,
                                     .place = place,
                                     .dropout = dropout,
                                     .factor = 0.4F};
    });
  }
  for (const float* slopes : {static_cast<const float*>(nullptr), added.at()}) {
    expect_equal_bits(1, [&](Outputs& y) { return ScaleScores{y[0].at(), slopes, 0.3F}; });
  }
}

// A part of a batch may begin anywhere.
TEST(CudaByFour, IsLeftOutWhereATensorBeginsBetweenFours) {
  Values y(1);
  const Values x(2);
  EXPECT_TRUE((Activate{y.at(), x.at(), Activation::relu, 0}).by_four());
  EXPECT_FALSE((Activate{y.at() + 1, x.at(), Activation::relu, 0}).by_four());
  EXPECT_FALSE((Activate{y.at(), x.at() + 2, Activation::relu, 0}).by_four());
}

}  // namespace
}  // namespace plimsoll::cuda
