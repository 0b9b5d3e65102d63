#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "plimsoll/models.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

struct AmxCase {
  int64_t rows, ins, outs;
};

// As Linux tells it; the tests run with oneDNN's variable as well, which forbids it.
bool processor_has_amx() {
  if (std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr) return false;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("flags")) return line.find(" amx_bf16") != std::string::npos;
  }
  return false;
}

// Runs the op's kernel "own:amx" on what fills its inputs; false where the device has none.
bool run_by_amx(const Graph& graph, const Op& op, int threads, const std::vector<std::vector<float>>& inputs,
                std::vector<std::vector<float>>& outputs, LayoutFamily family = LayoutFamily::plain) {
  const auto device = open_device("cpu", threads);
  for (const KernelSpec& spec : device->kernels(graph, op, family)) {
    if (spec.name != "own:amx") continue;
    const auto kernel = device->make_kernel(graph, op, spec.name, threads);
    EXPECT_LE(kernel->workspace(), spec.workspace);
    const auto workspace = device->take_arena(kernel->workspace());
    std::vector<void*> in, out;
    for (const auto& values : inputs) in.push_back(const_cast<float*>(values.data()));
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      outputs.emplace_back(element_count(graph.tensor(op.outputs[i]).shape), NAN);
      out.push_back(outputs.back().data());
    }
    kernel->bind(in, out, workspace->base());
    kernel->run();
    return true;
  }
  return false;
}

struct AmxLayer {
  Graph graph;
  TensorId x, w, bias, y;
  OpId forward;

  AmxLayer(const AmxCase& c, const Attributes& attributes = {}) {
    x = graph.add_source("x", {c.rows, c.ins}, DType::f32, Role::activation);
    w = graph.add_source("w", {c.outs, c.ins}, DType::f32, Role::parameter);
    bias = graph.add_source("b", {c.outs}, DType::f32, Role::parameter);
    forward = graph.add_op("FullyConnectedForward", "fc", "fc", {x, w, bias}, attributes);
    y = graph.output(forward);
  }
};

std::vector<float> random_values(std::mt19937& draw, int64_t count, float spread = 1) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> power(-spread, spread);
  std::vector<float> values(count);
  for (float& v : values) v = normal(draw) * std::exp2(power(draw));
  return values;
}

// The squared error of results, as a share of that of a chain of multiply-adds. a(row, k) and b(k, column) are the factors.
template <class A, class B>
double error_beside_a_chain(const std::vector<float>& found, int64_t columns, int64_t depth, const A& a, const B& b,
                            const float* bias = nullptr) {
  constexpr int64_t kEvery = 13;  // of the results is looked at
  double squares = 0, of_chain = 0;
  for (int64_t at = 0; at < std::ssize(found); at += kEvery) {
    const int64_t row = at / columns, column = at % columns;
    double exact = bias != nullptr ? bias[column] : 0;
    float chain = 0;
    for (int64_t k = 0; k < depth; ++k) {
      exact += static_cast<double>(a(row, k)) * b(k, column);
      chain = std::fma(a(row, k), b(k, column), chain);
    }
    if (bias != nullptr) chain += bias[column];
    squares += (found[at] - exact) * (found[at] - exact);
    of_chain += (chain - exact) * (chain - exact);
  }
  return squares / of_chain;
}

TEST(OwnAmx, IsNoLessExactThanAChainOfMultiplyAdds) {
  if (!processor_has_amx()) GTEST_SKIP() << "this processor has no AMX, or may not use it";
  constexpr double kMostError = 1;
  std::mt19937 draw(3);
  for (const int threads : {1, 2, 3}) {
    for (const AmxCase c : {AmxCase{64, 64, 64}, {65, 79, 97}, {300, 70, 500}, {70, 2100, 65}, {1100, 65, 69}}) {
      SCOPED_TRACE(::testing::Message() << c.rows << "x" << c.ins << "x" << c.outs << ", threads " << threads);
      const AmxLayer layer(c);
      const auto x = random_values(draw, c.rows * c.ins, 3), w = random_values(draw, c.outs * c.ins, 3);
      const auto bias = random_values(draw, c.outs), dy = random_values(draw, c.rows * c.outs, 3);
      std::vector<std::vector<float>> out;
      ASSERT_TRUE(run_by_amx(layer.graph, layer.graph.op(layer.forward), threads, {x, w, bias}, out));
      const auto x_at = [&](int64_t r, int64_t i) { return x[r * c.ins + i]; };
      const auto w_at = [&](int64_t o, int64_t i) { return w[o * c.ins + i]; };
      const auto dy_at = [&](int64_t r, int64_t o) { return dy[r * c.outs + o]; };
      const auto turned = [](const auto& of) { return [&of](int64_t i, int64_t j) { return of(j, i); }; };
      EXPECT_LE(error_beside_a_chain(out[0], c.outs, c.ins, x_at, turned(w_at), bias.data()), kMostError);

      Graph g;
      const TensorId gy = g.add_source("dy", {c.rows, c.outs}, DType::f32, Role::gradient);
      const TensorId gw = g.add_source("w", {c.outs, c.ins}, DType::f32, Role::parameter);
      const TensorId gx = g.add_source("x", {c.rows, c.ins}, DType::f32, Role::activation);
      const OpId data = g.add_op("FullyConnectedBackwardData", "d", "fc", {gy, gw});
      const OpId weights = g.add_op("FullyConnectedBackwardWeights", "w", "fc", {gx, gy}, {{"bias", int64_t{1}}});
      out.clear();
      ASSERT_TRUE(run_by_amx(g, g.op(data), threads, {dy, w}, out));
      EXPECT_LE(error_beside_a_chain(out[0], c.ins, c.outs, dy_at, w_at), kMostError);
      out.clear();
      ASSERT_TRUE(run_by_amx(g, g.op(weights), threads, {x, dy}, out));
      EXPECT_LE(error_beside_a_chain(out[0], c.ins, c.rows, turned(dy_at), x_at), kMostError);
      for (int64_t o = 0; o < c.outs; ++o) {
        double sum = 0;
        for (int64_t r = 0; r < c.rows; ++r) sum += dy_at(r, o);
        EXPECT_NEAR(out[1][o], sum, 1e-4 * std::sqrt(c.rows * 8));
      }
    }
  }
}

// Channels last, a convolution of one tap is a layer whose rows are pixels.
TEST(OwnAmx, RunsConvolutionsOfOneTap) {
  if (!processor_has_amx()) GTEST_SKIP() << "this processor has no AMX, or may not use it";
  std::mt19937 draw(5);
  constexpr int64_t kImages = 3, kHeight = 7, kWidth = 5, kIns = 70, kOuts = 96, kRows = kImages * kHeight * kWidth;
  const auto x = random_values(draw, kRows * kIns), w = random_values(draw, kOuts * kIns);
  const auto dy = random_values(draw, kRows * kOuts), bias = random_values(draw, kOuts);
  const AmxLayer layer({kRows, kIns, kOuts});
  Graph rows, images;
  const TensorId row_x = rows.add_source("x", {kRows, kIns}, DType::f32, Role::activation);
  const TensorId row_dy = rows.add_source("dy", {kRows, kOuts}, DType::f32, Role::gradient);
  const TensorId row_w = rows.add_source("w", {kOuts, kIns}, DType::f32, Role::parameter);
  const TensorId image_x = images.add_source("x", {kImages, kIns, kHeight, kWidth}, DType::f32, Role::activation);
  const TensorId image_dy = images.add_source("dy", {kImages, kOuts, kHeight, kWidth}, DType::f32, Role::gradient);
  const TensorId image_w = images.add_source("w", {kOuts, kIns, 1, 1}, DType::f32, Role::parameter);
  const TensorId image_bias = images.add_source("b", {kOuts}, DType::f32, Role::parameter);
  const Attributes to_data{{"input_size", std::vector<int64_t>{kHeight, kWidth}}};
  const Attributes to_weights{{"kernel", std::vector<int64_t>{1, 1}}, {"bias", int64_t{1}}};
  const struct {
    const Graph* graph;
    OpId op;
    const Graph* images;
    OpId convolution;
    std::vector<std::vector<float>> inputs;
  } passes[] = {
      {&layer.graph,
       layer.forward,
       &images,
       images.add_op("ConvForward", "f", "c", {image_x, image_w, image_bias}),
       {x, w, bias}},
      {&rows,
       rows.add_op("FullyConnectedBackwardData", "d", "fc", {row_dy, row_w}),
       &images,
       images.add_op("ConvBackwardData", "d", "c", {image_dy, image_w}, to_data),
       {dy, w}},
      {&rows,
       rows.add_op("FullyConnectedBackwardWeights", "w", "fc", {row_x, row_dy}, {{"bias", int64_t{1}}}),
       &images,
       images.add_op("ConvBackwardWeights", "w", "c", {image_x, image_dy}, to_weights),
       {x, dy}},
  };
  for (const TensorId id : {image_x, image_dy}) images.tensor(id).layout = {"acdb"};
  for (const auto& pass : {passes[0].convolution, passes[1].convolution})
    images.tensor(images.output(pass)).layout = {"acdb"};
  for (const auto& pass : passes) {
    std::vector<std::vector<float>> expected, found;
    ASSERT_TRUE(run_by_amx(*pass.graph, pass.graph->op(pass.op), 2, pass.inputs, expected));
    ASSERT_TRUE(run_by_amx(images, images.op(pass.convolution), 2, pass.inputs, found, LayoutFamily::channels_last));
    EXPECT_EQ(found, expected) << images.op(pass.convolution).type->name;
  }
  const OpId strided =
      images.add_op("ConvForward", "s", "c", {image_x, image_w}, {{"stride", std::vector<int64_t>{2, 2}}});
  std::vector<std::vector<float>> none;
  EXPECT_FALSE(run_by_amx(images, images.op(strided), 1, {x, w}, none, LayoutFamily::channels_last));
}

// What is not finite is seen in the result, and the largest numbers do not become infinite on the way.
TEST(OwnAmx, ShowsWhatIsNotFinite) {
  if (!processor_has_amx()) GTEST_SKIP() << "this processor has no AMX, or may not use it";
  const AmxCase c{70, 64, 80};
  const AmxLayer layer(c, {{"activation", std::string("none")}});
  constexpr float kInfinite = std::numeric_limits<float>::infinity(), kLargest = std::numeric_limits<float>::max();
  std::vector<float> x(c.rows * c.ins, 1.0f), w(c.outs * c.ins, 0.25f), bias(c.outs, 0.5f);
  x[0 * c.ins + 7] = kInfinite;
  x[1 * c.ins + 63] = -kInfinite;
  x[2 * c.ins + 31] = NAN;
  for (int64_t i = 0; i < c.ins; ++i) x[3 * c.ins + i] = i == 5 ? kLargest : 0;
  std::vector<std::vector<float>> out;
  ASSERT_TRUE(run_by_amx(layer.graph, layer.graph.op(layer.forward), 1, {x, w, bias}, out));
  for (int64_t o = 0; o < c.outs; ++o) {
    EXPECT_FALSE(std::isfinite(out[0][0 * c.outs + o]));
    EXPECT_FALSE(std::isfinite(out[0][1 * c.outs + o]));
    EXPECT_TRUE(std::isnan(out[0][2 * c.outs + o]));
    EXPECT_EQ(out[0][3 * c.outs + o], kLargest / 4);
    EXPECT_EQ(out[0][4 * c.outs + o], 16.5f);
  }
}

}  // namespace
}  // namespace plimsoll
