// Kernels by configuration against the reference: every op that runs in parts, in every layout family, at odd batches
// and in uneven parts by different kernels.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "device/cuda/device.h"
#include "device/divided.h"
#include "ops/micro_op.h"
#include "plimsoll/cost.h"
#include "plimsoll/plan.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/harness.h"
#include "tests/cuda/fake_door.h"

namespace plimsoll::conformance {
namespace {

constexpr uint64_t kSeed = 20260711;
constexpr LayoutFamily kFamilies[] = {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked};

// A device whose make_kernel takes configurations.
class Dividing : public Device {
 public:
  explicit Dividing(const Device& whole) : whole_(whole) {}
  const DeviceInfo& info() const override { return whole_.info(); }
  std::vector<KernelSpec> kernels(const Graph& g, const Op& op, LayoutFamily f) const override {
    return whole_.kernels(g, op, f);
  }
  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view kernel,
                                      int threads) const override {
    return plimsoll::make_kernel(whole_, graph, op, kernel, threads);
  }
  std::unique_ptr<Arena> take_arena(Bytes bytes) const override { return whole_.take_arena(bytes); }
  bool host_addressable() const override { return whole_.host_addressable(); }
  std::unique_ptr<Queues> open_queues() const override { return whole_.open_queues(); }
  void write(std::byte* to, std::span<const std::byte> from) const override { whole_.write(to, from); }
  void read(std::span<std::byte> to, const std::byte* from) const override { whole_.read(to, from); }

 private:
  const Device& whole_;
};

std::vector<Case> divisible_cases() {
  std::vector<Case> cases;
  int64_t batch = 2;
  for (ConvolutionShape shape : convolution_shapes()) {
    shape.n = 2 + batch++ % 6;
    add_convolution_cases(cases, shape, false);
  }
  for (ConvolutionShape shape : transposed_shapes()) {
    shape.n = 2 + batch++ % 6;
    add_convolution_cases(cases, shape, true);
  }
  for (const Case& one : all_cases()) {
    const bool convolution = one.type.starts_with("Conv");
    if (!convolution && op_type(one.type).division.possible()) cases.push_back(one);
  }
  return cases;
}

Graph with_layouts(const Subject& subject, const KernelSpec& spec) {
  Graph graph = subject.graph;
  const Op& op = graph.op(subject.op);
  for (size_t i = 0; i < op.inputs.size(); ++i) graph.tensor(op.inputs[i]).layout = spec.inputs[i];
  for (size_t i = 0; i < op.outputs.size(); ++i) graph.tensor(op.outputs[i]).layout = spec.outputs[i];
  return graph;
}

bool fits(const KernelSpec& offered, const KernelSpec& spec) {
  auto same = [](const std::vector<Layout>& a, const std::vector<Layout>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Layout& x, const Layout& y) {
      return x == kAnyLayout || x == y || (x.is_plain() && y.is_plain());
    });
  };
  return same(offered.inputs, spec.inputs) && same(offered.outputs, spec.outputs);
}

// A division of the batch at random, each part by any kernel for these layouts; nothing where none runs a part.
std::optional<KernelSpec> random_configuration(const Device& device, const Graph& graph, const Op& op,
                                               const KernelSpec& spec, LayoutFamily family, std::mt19937_64& random) {
  const int64_t batch = divisible_batch(graph, op);
  std::vector<MicroBatch> parts;
  Bytes most;
  bool exact = spec.exact;
  for (int64_t left = batch; left > 0;) {
    const int64_t largest = std::min(left, batch - 1);
    const int64_t rows = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(largest));
    const MicroOp micro = micro_op(graph, op, rows);
    std::vector<KernelSpec> kernels;
    for (KernelSpec& offered : device.kernels(micro.graph, micro.graph.op(micro.op), family)) {
      if (fits(offered, spec) && is_aligned_at(graph, op, batch - left, device.row_alignment(op, offered.name)))
        kernels.push_back(std::move(offered));
    }
    if (kernels.empty()) return std::nullopt;
    const KernelSpec& kernel = kernels[random() % kernels.size()];
    most = std::max(most, part_workspace(kernel.workspace));
    exact = exact && kernel.exact;
    parts.push_back({kernel.name, rows});
    left -= rows;
  }
  KernelSpec divided = spec;
  divided.name = configuration_name(parts);
  divided.workspace = most + summing_workspace(graph, op);
  divided.exact = exact;
  return divided;
}

class DividedOn : public ::testing::TestWithParam<std::string> {};

TEST_P(DividedOn, IsWhatTheReferenceGivesWhateverThePartsAndKernels) {
  const auto door = std::make_shared<plimsoll::testing::FakeDoor>(kSeed);
  door->cudnn().leave_out_engines();  // more of the same, and "own:direct" is not offered beside them
  const auto device =
      GetParam() != "cuda_on_the_host" ? open_device(GetParam(), 2) : cuda::open_behind(door, "cuda:0", false);
  const Dividing dividing(*device);
  std::mt19937_64 random(kSeed);
  std::map<std::string, int> judged;
  for (const Case& one : divisible_cases()) {
    const Subject subject = build_subject(one, kSeed);
    const Op& op = subject.graph.op(subject.op);
    if (divisible_batch(subject.graph, op) < 2) continue;
    for (const LayoutFamily family : kFamilies) {
      for (const KernelSpec& offered : device->kernels(subject.graph, op, family)) {
        for (const KernelSpec& spec : with_real_layouts(subject, offered, family)) {
          const Graph graph = with_layouts(subject, spec);
          ASSERT_EQ(why_not_divisible(graph, graph.op(subject.op)), "");
          const auto divided = random_configuration(*device, graph, graph.op(subject.op), spec, family, random);
          if (!divided) continue;
          ++judged[one.type];
          EXPECT_THAT(judge(dividing, subject, *divided).failures, ::testing::IsEmpty())
              << one.type << " " << one.text << ", " << to_string(family) << ", " << divided->name << ", seed "
              << kSeed;
        }
      }
    }
  }
  for (const OpType* type : all_op_types()) {
    if (!type->division.possible()) continue;
    EXPECT_GT(judged[type->name], 0) << type->name;
  }
}

std::vector<std::string> device_names() {
  std::vector<std::string> names = {"cuda_on_the_host"};
  for (const DeviceListing& device : list_devices()) {
    if (device.available && !device.simulated) names.push_back(device.name);
  }
  return names;
}
INSTANTIATE_TEST_SUITE_P(Devices, DividedOn, ::testing::ValuesIn(device_names()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
});

// The storage of the first output by a kernel, from equal inputs.
std::vector<std::byte> result_of(const Device& device, const Subject& subject, const Graph& graph,
                                 const std::string& kernel) {
  const Op& op = graph.op(subject.op);
  const auto made = plimsoll::make_kernel(device, graph, op, kernel);
  std::vector<std::vector<std::byte>> storage;
  auto take = [&](Bytes bytes) {
    storage.emplace_back(bytes.count + 64);
    const auto address = reinterpret_cast<uintptr_t>(storage.back().data());
    return reinterpret_cast<std::byte*>((address + 63) / 64 * 64);
  };
  std::vector<void*> inputs, outputs;
  for (TensorId id : op.inputs) {
    const Tensor& tensor = graph.tensor(id);
    std::byte* place = take(tensor.bytes());
    const int64_t size = storage_bytes({1}, tensor.dtype, {}).count;
    scatter_elements(tensor.shape, tensor.layout, size, 0, element_count(tensor.shape), subject.values[id.index].data(),
                     place);
    inputs.push_back(place);
  }
  for (TensorId id : op.outputs) outputs.push_back(take(graph.tensor(id).bytes()));
  made->bind(inputs, outputs, take(made->workspace()));
  made->run();
  const auto* first = static_cast<const std::byte*>(outputs[0]);
  return {first, first + graph.tensor(op.outputs[0]).bytes().count};
}

// Rows do not know of each other, so a part by the same kernel gives their very bits. Not so where oneDNN shares out
// the work by the number of rows: where pooling windows overlap, their gradients are then added in another order, and
// products of matrices, those of a Winograd convolution too, may be cut into other blocks.
TEST(Divided, GivesTheSameBitsAsTheWholeWhereTheKernelIsTheSameAndNothingIsSummedOverTheBatch) {
  const auto device = open_device("cpu", 2);
  std::map<std::string, int> equal, other;
  for (const Case& one : divisible_cases()) {
    const Subject subject = build_subject(one, kSeed);
    const Op& op = subject.graph.op(subject.op);
    const int64_t batch = divisible_batch(subject.graph, op);
    if (batch < 2 || op.type->division.outputs.empty()) continue;
    for (const LayoutFamily family : kFamilies) {
      for (const KernelSpec& offered : device->kernels(subject.graph, op, family)) {
        for (const KernelSpec& spec : with_real_layouts(subject, offered, family)) {
          const Graph graph = with_layouts(subject, spec);
          const int64_t half = batch / 2;
          const std::vector<MicroBatch> parts = {{spec.name, batch - half}, {spec.name, half}};
          try {
            const std::string kind = one.type + " " + spec.name.substr(0, spec.name.find('@'));
            const bool same = result_of(*device, subject, graph, spec.name) ==
                              result_of(*device, subject, graph, configuration_name(parts));
            ++(same ? equal : other)[kind];
          } catch (const Error& error) {
            if (error.code() != ErrorCode::unsupported) throw;
          }
        }
      }
    }
  }
  for (const auto& [kind, count] : other) {
    EXPECT_THAT(kind, ::testing::AnyOf(::testing::HasSubstr("PoolBackward"), ::testing::HasSubstr("gemm"),
                                       ::testing::HasSubstr("brg"), ::testing::HasSubstr("winograd")))
        << count << " of " << count + equal[kind];
  }
  EXPECT_GT(equal.size(), 20u);
}

TEST(Divided, WhatCannotBeDividedIsRefusedWithTheReason) {
  const auto device = open_device("cpu", 1);
  Graph graph;
  const TensorId x = graph.add_source("x", {4, 16, 3, 3}, DType::f32, Role::input);
  const TensorId w = graph.add_source("w", {16, 16, 1, 1}, DType::f32, Role::parameter);
  const OpId conv = graph.add_op("ConvForward", "conv", "", {x, w});
  const OpId sum = graph.add_op("Add", "sum", "", {x, x});
  auto error_of = [&](OpId op, std::string_view kernel) -> std::string {
    try {
      plimsoll::make_kernel(*device, graph, graph.op(op), kernel);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of(sum, "own@2*2"), ::testing::HasSubstr("ops of type Add do not run in parts"));
  EXPECT_THAT(error_of(conv, "gemm:jit@2+gemm:jit@1"), ::testing::HasSubstr("have 3 rows, op 'conv' has 4"));
  EXPECT_THAT(error_of(conv, "gemm:jit@4"), ::testing::HasSubstr("at least two parts"));
  EXPECT_THAT(error_of(conv, "nobody@2*2"), ::testing::HasSubstr("nobody"));
  graph.tensor(x).layout = {"bacd"};
  EXPECT_THAT(error_of(conv, "gemm:jit@2*2"),
              ::testing::HasSubstr("the rows of 'x' do not lie one after the other in layout 'bacd'"));
  EXPECT_TRUE(is_divisible({"aBcd16b"}));
  EXPECT_TRUE(is_divisible({"acdb"}));
  EXPECT_TRUE(is_divisible({}));
  EXPECT_FALSE(is_divisible({"ABcd16b16a"}));
  EXPECT_FALSE(is_divisible({"Acdb16a"}));
}

}  // namespace
}  // namespace plimsoll::conformance
