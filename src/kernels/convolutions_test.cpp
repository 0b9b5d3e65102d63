#include "plimsoll/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/divided.h"
#include "plimsoll/error.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "plimsoll/plan.h"
#include "tests/support/error_text.h"

namespace plimsoll {
namespace {

constexpr std::string_view kHeader =
    "width,height,channels,batch,filters,kernel_width,kernel_height,pad_width,pad_height,stride_width,stride_height\n";

std::string error_of(const std::string& text) {
  try {
    convolutions_from_csv(text, "layers.csv");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ConvolutionFile, ReadsDeepBenchsColumns) {
  const auto rows = convolutions_from_csv(
      std::string(kHeader) + "700,161,1,4,32,20,5,0,1,2,3\r\n\n 7, 7,832 ,16,256,1,1,0,0,1,1", "x");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0], (Convolution{700, 161, 1, 4, 32, 20, 5, 0, 1, 2, 3}));
  EXPECT_EQ(rows[1], (Convolution{7, 7, 832, 16, 256, 1, 1, 0, 0, 1, 1}));
  EXPECT_EQ(to_string(rows[0]), "1x161x700, 32 of 5x20 /3x2, batch 4");
}

TEST(ConvolutionFile, TakesColumnsInAnyOrderAndFillsInPaddingAndStride) {
  const auto rows =
      convolutions_from_csv("batch,kernel_height,kernel_width,filters,channels,height,width\n8,3,5,16,4,20,30\n", "x");
  EXPECT_EQ(rows, (std::vector<Convolution>{{30, 20, 4, 8, 16, 5, 3, 0, 0, 1, 1}}));
}

TEST(ConvolutionFile, ErrorsNameLineAndColumn) {
  const std::string header(kHeader), row = "56,56,64,32,64,3,3,1,1,1,1\n";
  EXPECT_EQ(
      error_of(""),
      "layers.csv, line 1: expected a header with the columns width, height, channels, batch, ..., but the file is "
      "empty");
  EXPECT_EQ(error_of("width,height,depth\n"),
            "layers.csv, line 1, column 3: unknown column 'depth'; known: width, height, channels, batch, filters, "
            "kernel_width, kernel_height, pad_width, pad_height, stride_width, stride_height");
  EXPECT_EQ(error_of("width,height,width\n"), "layers.csv, line 1, column 3: two columns 'width'");
  EXPECT_EQ(error_of("width,height,channels\n"), "layers.csv, line 1: no column 'batch'");
  EXPECT_EQ(error_of(header), "layers.csv, line 1: there is a header but no convolution");
  EXPECT_EQ(error_of(header + row + "56,56,64,32\n"), "layers.csv, line 3: 4 columns where the header has 11");
  EXPECT_EQ(error_of(header + row + "56,56,64,3x,64,3,3,1,1,1,1\n"),
            "layers.csv, line 3, column 4: batch '3x' is not a whole number");
  EXPECT_EQ(error_of(header + "56,56,64,32,64,3,3,1,1,1,\n"),
            "layers.csv, line 2, column 11: stride_height '' is not a whole number");
  EXPECT_EQ(error_of(header + "56,56,0,32,64,3,3,1,1,1,1\n"),
            "layers.csv, line 2, column 3: channels 0 is not in 1 to 1048576");
  EXPECT_EQ(error_of(header + "56,56,64,32,64,3,3,-1,1,1,1\n"),
            "layers.csv, line 2, column 8: pad_width -1 is not in 0 to 1048576");
  EXPECT_EQ(error_of(header + "56,56,64,99999999999999999999,64,3,3,1,1,1,1\n"),
            "layers.csv, line 2, column 4: batch '99999999999999999999' is more than a 64-bit number holds");
  EXPECT_EQ(error_of(header + "5,56,64,32,64,9,3,1,1,1,1\n"),
            "layers.csv, line 2: kernel_width 9 is more than the padded width 7");
  EXPECT_EQ(error_of(header + "100000,100000,64,32,64,3,3,1,1,1,1\n"),
            "layers.csv, line 2: the input has more than 2^40 elements");
}

TEST(Convolutions, HaveTheOpsOfANetwork) {
  const Convolution c{.width = 30,
                      .height = 20,
                      .channels = 4,
                      .batch = 8,
                      .filters = 16,
                      .kernel_width = 5,
                      .kernel_height = 3,
                      .pad_width = 2,
                      .pad_height = 1,
                      .stride_width = 1,
                      .stride_height = 2};
  const Graph graph = convolution_graph(c);
  check(graph);
  const char* types[] = {"ConvForward", "ConvBackwardData", "ConvBackwardWeights"};
  const Shape outputs[] = {{8, 16, 10, 30}, {8, 4, 20, 30}, {16, 4, 3, 5}};
  for (ConvolutionPass pass : kConvolutionPasses) {
    const Op& op = graph.op(convolution_op(pass));
    EXPECT_EQ(op.type->name, types[static_cast<int>(pass)]);
    EXPECT_EQ(graph.tensor(op.outputs[0]).shape, outputs[static_cast<int>(pass)]);
  }
  EXPECT_EQ(testing::error_text(ErrorCode::invalid_input, [] { convolution_graph({.width = 3}); }),
            "convolution: height 0 is not in 1 to 1048576");
}

// As the paper counts kernels: three for every convolution, that of the first layer's data included.
TEST(Convolutions, OfTheZooAreAsManyAsThePaperSays) {
  const auto kernels = [](const char* model) {
    return std::size(kConvolutionPasses) * convolutions_of(build_model(model, {.batch = 32}).graph).size();
  };
  EXPECT_EQ(kernels("alexnet"), 15u);
  EXPECT_EQ(kernels("resnet50"), 159u);
}

TEST(Convolutions, OfANetworkAreReadBack) {
  Builder net("net", {.batch = 6, .channels = 3, .height = 20, .width = 30, .classes = 10});
  TensorId x = net.conv("a", net.data(), {.channels = 8, .kernel = {3, 5}, .stride = {2, 1}, .padding = {1, 2}});
  net.conv("b", x, {.channels = 4, .kernel = 1});
  net.conv("grouped", x, {.channels = 4, .kernel = 1, .groups = 2});
  EXPECT_EQ(convolutions_of(net.graph()),
            (std::vector<Convolution>{{30, 20, 3, 6, 8, 5, 3, 2, 1, 1, 2}, {30, 10, 8, 6, 4, 1, 1, 0, 0, 1, 1}}));
}

class OnASimulatedP100 : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = open_device("p100");
  CostTable costs_;
  const Convolution conv2_{.width = 27,
                           .height = 27,
                           .channels = 64,
                           .batch = 256,
                           .filters = 192,
                           .kernel_width = 5,
                           .kernel_height = 5,
                           .pad_width = 2,
                           .pad_height = 2};
};

TEST_F(OnASimulatedP100, DivisionsStayWithinTheLimitAndAreNeverSlower) {
  for (ConvolutionPass pass : kConvolutionPasses) {
    for (Bytes limit : {0_B, 8_MiB, 64_MiB, 512_MiB}) {
      double before = INFINITY;
      for (BatchSizes batches : {BatchSizes::undivided, BatchSizes::power_of_two, BatchSizes::all}) {
        const auto choice = fastest_convolution(conv2_, pass, *device_, costs_, limit, batches);
        ASSERT_TRUE(choice) << to_string(pass) << to_string(limit);
        EXPECT_LE(choice->kernel.workspace, limit);
        EXPECT_LE(choice->configuration.time_ms, before);
        before = choice->configuration.time_ms;
        const std::vector<MicroBatch> parts = parts_of(choice->kernel.name);
        EXPECT_EQ(parts.empty(), !choice->configuration.is_divided());
        int64_t sum = 0;
        for (const MicroBatch& part : parts) sum += part.batch;
        if (!parts.empty()) {
          EXPECT_EQ(sum, 256);
        }
      }
    }
  }
}

TEST_F(OnASimulatedP100, ALittleWorkspaceIsEnoughForFastKernelsOnParts) {
  const auto choose = [&](BatchSizes batches) {
    return fastest_convolution(conv2_, ConvolutionPass::forward, *device_, costs_, 64_MiB, batches)->configuration;
  };
  EXPECT_LT(choose(BatchSizes::power_of_two).time_ms, 0.8 * choose(BatchSizes::undivided).time_ms);
}

TEST_F(OnASimulatedP100, TheFrontHoldsTheFastestOfEveryLimit) {
  for (ConvolutionPass pass : kConvolutionPasses) {
    const std::vector<ConvolutionChoice> front =
        convolution_front(conv2_, pass, *device_, costs_, BatchSizes::power_of_two);
    ASSERT_FALSE(front.empty());
    for (const ConvolutionChoice& choice : front) {
      const auto fastest =
          fastest_convolution(conv2_, pass, *device_, costs_, choice.configuration.workspace, BatchSizes::power_of_two);
      EXPECT_EQ(fastest->configuration.time_ms, choice.configuration.time_ms);
    }
  }
}

std::string two_parts(const std::string& kernel) {
  return configuration_name(std::vector<MicroBatch>{{kernel, 3}, {kernel, 1}});
}

Bytes workspace_made(const Convolution& convolution, ConvolutionPass pass, const Device& device,
                     const KernelSpec& spec) {
  Graph graph = convolution_graph(convolution);
  const Op& op = graph.op(convolution_op(pass));
  for (size_t i = 0; i < op.inputs.size(); ++i) graph.tensor(op.inputs[i]).layout = spec.inputs[i];
  graph.tensor(op.outputs[0]).layout = spec.outputs[0];
  return make_kernel(device, graph, op, spec.name)->workspace();
}

TEST(Convolutions, MeasuredKernelsAreTakenAndOthersLeftOut) {
  const std::unique_ptr<Device> device = open_device("cpu", 1);
  const Convolution small{.width = 12,
                          .height = 12,
                          .channels = 16,
                          .batch = 4,
                          .filters = 16,
                          .kernel_width = 3,
                          .kernel_height = 3,
                          .pad_width = 1,
                          .pad_height = 1};
  CostTable costs;
  const MeasureOptions options{.seconds_per_kernel = 0.002, .batches = BatchSizes::power_of_two};
  const Convolution twice[] = {small, small};
  EXPECT_GT(measure_convolutions(twice, *device, costs, options), 0);
  EXPECT_EQ(measure_convolutions(twice, *device, costs, options), 0);
  for (ConvolutionPass pass : kConvolutionPasses) {
    const auto choice = fastest_convolution(small, pass, *device, costs, 16_MiB, BatchSizes::power_of_two);
    ASSERT_TRUE(choice);
    for (const ConvolutionChoice& each : convolution_front(small, pass, *device, costs, BatchSizes::power_of_two)) {
      EXPECT_EQ(workspace_made(small, pass, *device, each.kernel), each.kernel.workspace) << each.kernel.name;
    }
    KernelSpec halves = choice->kernel;
    halves.name = two_parts(choice->configuration.parts[0].kernel);
    EXPECT_TRUE(time_in_turn(small, pass, *device, halves, halves, 0.01));
    const auto whole = fastest_convolution(small, pass, *device, costs, 16_MiB, BatchSizes::undivided);
    const auto times = time_in_turn(small, pass, *device, whole->kernel, whole->kernel, 0.01);
    ASSERT_TRUE(times);
    EXPECT_GE(times->runs, 5);
    EXPECT_GT(times->a.time_ms, 0);
    EXPECT_GT(times->b.time_ms, 0);
  }
}

}  // namespace
}  // namespace plimsoll
