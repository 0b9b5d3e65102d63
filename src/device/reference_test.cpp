#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "plimsoll/device.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

template <class Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// y = relu(x) on x of two elements, and a batch norm over a batch of two.
struct Example {
  Graph graph;
  OpId relu, norm;
  Example() {
    const TensorId x = graph.add_source("x", {2, 1}, DType::f32, Role::input);
    relu = graph.add_op("ReluForward", "relu", "relu", {x});
    const TensorId gamma = graph.add_source("gamma", {1}, DType::f32, Role::parameter);
    const TensorId beta = graph.add_source("beta", {1}, DType::f32, Role::parameter);
    const TensorId mean = graph.add_source("mean", {1}, DType::f32, Role::statistic);
    const TensorId var = graph.add_source("var", {1}, DType::f32, Role::statistic);
    norm = graph.add_op("BatchNormForward", "norm", "norm", {x, gamma, beta, mean, var}, {{"training", int64_t{1}}});
  }
};

TEST(ReferenceDevice, RunsAnOpByItsReferenceKernel) {
  const Example example;
  const auto device = open_reference_device();
  const Op& op = example.graph.op(example.relu);
  const std::vector<KernelSpec> specs = device->kernels(example.graph, op, LayoutFamily::blocked);
  ASSERT_EQ(specs.size(), 1u);
  EXPECT_EQ(specs[0].name, "reference");
  EXPECT_TRUE(specs[0].inputs.at(0).is_plain());
  auto kernel = device->make_kernel(example.graph, op, "reference");
  float x[2] = {-1, 2}, y[2];
  void* in[] = {x};
  void* out[] = {y};
  kernel->bind(in, out, nullptr);
  kernel->run();
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 2);
}

TEST(ReferenceDevice, LeavesStatesAloneWhenARecomputationHasNoPlaceForThem) {
  const Example example;
  const auto device = open_reference_device();
  auto kernel = device->make_kernel(example.graph, example.graph.op(example.norm), "reference");
  float x[2] = {1, 3}, gamma = 1, beta = 0, running_mean = 10, running_var = 20, y[2], mean, inv_std;
  void* in[] = {x, &gamma, &beta, &running_mean, &running_var};
  void* out[] = {y, &mean, &inv_std, nullptr, nullptr};
  kernel->bind(in, out, nullptr);
  kernel->run();
  EXPECT_EQ(mean, 2);
  EXPECT_EQ(running_mean, 10);
  EXPECT_EQ(running_var, 20);
  void* in_place[] = {y, &mean, &inv_std, &running_mean, &running_var};
  kernel->bind(in, in_place, nullptr);
  kernel->run();
  EXPECT_FLOAT_EQ(running_mean, 9.2f);
  EXPECT_FLOAT_EQ(running_var, 18.2f);  // the unbiased variance is 2
}

TEST(ReferenceDevice, NamesWhatItCannotRun) {
  Example example;
  const auto device = open_reference_device();
  const Op op = example.graph.op(example.relu);
  EXPECT_EQ(message_of([&] { device->make_kernel(example.graph, op, "jit"); }),
            "op 'relu': the reference device has no kernel 'jit', only 'reference'");
  example.graph.tensor(op.inputs[0]).layout = {"ba"};
  EXPECT_EQ(message_of([&] { device->make_kernel(example.graph, op, "reference"); }),
            "op 'relu': the reference kernel takes row-major tensors, but 'x' lies as 'ba'");
}

TEST(ReferenceDevice, GivesAnAlignedArenaOrSaysHowMuchItCouldNot) {
  const auto device = open_reference_device();
  const auto arena = device->take_arena(10_KiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->base()) % 4096, 0u);
  EXPECT_EQ(arena->bytes(), 10_KiB);
  const std::vector<std::byte> sent{std::byte{1}, std::byte{2}};
  std::vector<std::byte> got(2);
  device->write(arena->base() + 100, sent);
  device->read(got, arena->base() + 100);
  EXPECT_EQ(got, sent);
  EXPECT_THAT(message_of([&] { device->take_arena({int64_t{1} << 60}); }),
              HasSubstr("an arena of 1.00 EiB is more than the machine's"));
}

}  // namespace
}  // namespace plimsoll
