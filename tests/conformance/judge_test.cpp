// The judge itself: a device with one fault after another, each of which must be found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/conformance/harness.h"

namespace plimsoll::conformance {
namespace {

enum class Fault {
  none,
  wrong_value,
  leaves_one_out,
  writes_beside_output,
  writes_beside_workspace,
  changes_input,
  leaves_padding,
  other_bits_each_run,
  wrong_in_place,
  understated_workspace,
  refuses,
  rounds,       // 2e-5 of a value
  rounds_more,  // 2e-4
  rounds_much,  // 2e-2
};

// max(x, 0) on the storage as it lies, with a fault.
class FaultyKernel final : public Kernel {
 public:
  FaultyKernel(const Graph& graph, const Op& op, Fault fault)
      : fault_(fault),
        count_(graph.tensor(op.outputs[0]).bytes().count / 4),
        elements_(element_count(graph.tensor(op.outputs[0]).shape)) {}
  Bytes workspace() const override { return 64_B; }
  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) override {
    x_ = static_cast<float*>(inputs[0]);
    y_ = static_cast<float*>(outputs[0]);
    workspace_ = static_cast<char*>(workspace);
  }
  void run() override {
    if (fault_ == Fault::refuses) throw Error(ErrorCode::unsupported, "not with these strides");
    std::memset(workspace_, 1, 64);
    if (fault_ == Fault::wrong_in_place && x_ == y_) x_[1] = 3;
    for (int64_t i = fault_ == Fault::leaves_one_out ? 1 : 0; i < count_; ++i) y_[i] = x_[i] > 0 ? x_[i] : 0;
    if (fault_ == Fault::wrong_value) y_[0] += 0.01f;
    if (fault_ == Fault::rounds) y_[0] *= 1 + 2e-5f;
    if (fault_ == Fault::rounds_more) y_[0] *= 1 + 2e-4f;
    if (fault_ == Fault::rounds_much) y_[0] *= 1 + 2e-2f;
    if (fault_ == Fault::writes_beside_output) y_[count_] = 0;
    if (fault_ == Fault::writes_beside_workspace) workspace_[64] = 0;
    if (fault_ == Fault::changes_input) x_[0] = 1;
    if (fault_ == Fault::leaves_padding && count_ > elements_) y_[count_ - 1] = 1;
    if (fault_ == Fault::other_bits_each_run) y_[0] += 1e-7f * static_cast<float>(++runs_);
  }

 private:
  Fault fault_;
  int64_t count_, elements_;
  int runs_ = 0;
  float *x_ = nullptr, *y_ = nullptr;
  char* workspace_ = nullptr;
};

class FaultyDevice final : public Device {
 public:
  explicit FaultyDevice(Fault fault) : fault_(fault) {}
  const DeviceInfo& info() const override { return info_; }
  std::vector<KernelSpec> kernels(const Graph&, const Op&, LayoutFamily) const override {
    return {{.name = "faulty",
             .inputs = {{"aBcd16b"}},
             .outputs = {{"aBcd16b"}},
             .workspace = fault_ == Fault::understated_workspace ? 0_B : 64_B}};
  }
  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view, int) const override {
    return std::make_unique<FaultyKernel>(graph, op, fault_);
  }
  std::unique_ptr<Arena> take_arena(Bytes) const override { return nullptr; }
  void write(std::byte*, std::span<const std::byte>) const override {}
  void read(std::span<std::byte>, const std::byte*) const override {}

 private:
  Fault fault_;
  DeviceInfo info_;
};

Outcome outcome(Fault fault, std::string kernel = "faulty") {
  const Case one = {"ReluForward", "", [](CaseBuilder& b) { b.op("ReluForward", {b.uniform({2, 20, 3, 3}, 0.5, 1)}); }};
  const Subject subject = build_subject(one, 1);
  const FaultyDevice device(fault);
  KernelSpec spec = device.kernels(subject.graph, subject.graph.op(subject.op), LayoutFamily::blocked)[0];
  spec.name = std::move(kernel);
  return judge(device, subject, spec);
}
std::vector<std::string> verdict(Fault fault) { return outcome(fault).failures; }

TEST(Judge, FindsNoFaultWhereThereIsNone) { EXPECT_THAT(verdict(Fault::none), ::testing::IsEmpty()); }

TEST(Judge, ARefusalIsAFaultUnlessCudnnMayRefuseWhatItOffered) {
  EXPECT_THAT(verdict(Fault::refuses), ::testing::Contains(::testing::HasSubstr("not with these strides")));
  for (const char* kernel : {"cudnn:fft", "own:direct@1+cudnn:fft@1"}) {
    EXPECT_THAT(outcome(Fault::refuses, kernel).failures, ::testing::IsEmpty());
    EXPECT_TRUE(outcome(Fault::refuses, kernel).refused);
  }
  EXPECT_FALSE(outcome(Fault::none, "cudnn:fft").refused);
}

TEST(Judge, AllowsACudnnKernelTheRoundingOfItsKindAlsoAsAPart) {
  for (const char* kernel : {"cudnn:winograd", "own:direct@1+cudnn:implicit_gemm@1", "faulty"}) {
    EXPECT_THAT(outcome(Fault::wrong_value, kernel).failures, ::testing::Not(::testing::IsEmpty())) << kernel;
  }
  EXPECT_THAT(outcome(Fault::rounds, "faulty").failures, ::testing::Not(::testing::IsEmpty()));
  EXPECT_THAT(outcome(Fault::rounds, "own:direct@1+cudnn:implicit_gemm@1").failures, ::testing::IsEmpty());
  EXPECT_THAT(outcome(Fault::rounds, "cudnn:winograd_nonfused").failures, ::testing::IsEmpty());
  EXPECT_THAT(outcome(Fault::rounds_more, "cudnn:implicit_gemm").failures, ::testing::Not(::testing::IsEmpty()));
  EXPECT_THAT(outcome(Fault::rounds_more, "cudnn:winograd_nonfused").failures, ::testing::IsEmpty());
  EXPECT_THAT(outcome(Fault::rounds_more, "cudnn:fused_winograd_eng15").failures, ::testing::IsEmpty());
}

// Winograd's transforms amplify what the tensor cores round.
TEST(Judge, AllowsTf32ItsRoundingAndWinogradWithTf32More) {
  EXPECT_THAT(outcome(Fault::rounds_more, "cudnn:implicit_gemm:tf32").failures, ::testing::IsEmpty());
  EXPECT_THAT(outcome(Fault::rounds_much, "cudnn:winograd_nonfused:tf32").failures, ::testing::IsEmpty());
  for (const char* kernel : {"cudnn:implicit_gemm:tf32", "cudnn:winograd_nonfused",
                             "cudnn:winograd_nonfused@1+cudnn:implicit_gemm:tf32@1"}) {
    EXPECT_THAT(outcome(Fault::rounds_much, kernel).failures, ::testing::Not(::testing::IsEmpty())) << kernel;
  }
}

TEST(Judge, FindsEveryFault) {
  const std::pair<Fault, const char*> faults[] = {
      {Fault::wrong_value, "is wrong at 1 of 360 elements"},
      {Fault::leaves_one_out, "is wrong at 1 of 360 elements"},
      {Fault::writes_beside_output, "wrote beside output 0"},
      {Fault::writes_beside_workspace, "wrote beside its workspace"},
      {Fault::changes_input, "input 0 was changed"},
      {Fault::leaves_padding, "padding of 'op0:0' is not zero"},
      {Fault::other_bits_each_run, "two runs give different bits"},
      {Fault::wrong_in_place, "another result in"},
      {Fault::understated_workspace, "needs 64 B of workspace but its spec said 0 B"},
  };
  for (const auto& [fault, words] : faults)
    EXPECT_THAT(verdict(fault), ::testing::Contains(::testing::HasSubstr(words))) << words;
}

}  // namespace
}  // namespace plimsoll::conformance
