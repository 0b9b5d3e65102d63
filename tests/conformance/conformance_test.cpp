// What every device must do: each op, in each layout family, by each kernel that the device offers, as the reference
// does.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "device/cuda/device.h"
#include "plimsoll/device.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/harness.h"
#include "tests/cuda/fake_door.h"

namespace plimsoll::conformance {
namespace {

constexpr uint64_t kSeed = 20240607;
constexpr LayoutFamily kFamilies[] = {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked};
// Of a device that also offers kernels which round to TF32 only these are judged: the others are the same without.
constexpr std::string_view kTf32 = "+tf32";
// With convolutions by engines of cuDNN's graph API, which alone are judged: beside them "own:direct" is not offered.
constexpr std::string_view kByEngines = "cuda_on_the_host_by_engines";
// Whose blocks have as much shared memory as those of compute capability 8.6, 8.9 and 12.0.
constexpr std::string_view kOfLittleShared = "cuda_on_the_host_of_99_KiB";

std::set<std::string> known_types() {
  std::set<std::string> names;
  for (const OpType* type : all_op_types()) names.insert(type->name);
  return names;
}

std::set<std::string> tested_types() {
  std::set<std::string> names = {"Reorder"};
  for (const Case& one : all_cases()) names.insert(one.type);
  return names;
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const DeviceListing& device : list_devices()) {
    if (!device.available || device.simulated) continue;
    names.push_back(device.name);
    if (device.name.starts_with("cuda")) names.push_back(device.name + std::string(kTf32));
  }
  names.push_back("cuda_on_the_host");
  return names;
}

// "cuda_on_the_host" has CUDA's kernels behind a door that runs them on the host: what they compute, not what a GPU
// makes of it. Others are opened once: that takes a GPU a while.
std::shared_ptr<const Device> open(const std::string& name) {
  if (name.starts_with("cuda_on_the_host")) {
    const auto door = std::make_shared<plimsoll::testing::FakeDoor>(kSeed);
    if (name != kByEngines) door->cudnn().leave_out_engines();
    if (name == kOfLittleShared) door->share({99 * 1024});
    return cuda::open_behind(door, "cuda:0", true);
  }
  static auto& devices = *new std::map<std::string, std::shared_ptr<const Device>>;  // CUDA is gone before statics are
  std::shared_ptr<const Device>& device = devices[name];
  if (!device) device = open_device(name, 2);
  return device;
}

std::string test_name(std::string device) {
  std::replace_if(
      device.begin(), device.end(), [](char c) { return c == ':' || c == '+'; }, '_');
  return device;
}

// A device of this machine that is not judged, and why.
class NotThere : public ::testing::TestWithParam<std::pair<std::string, std::string>> {};
TEST_P(NotThere, IsSkipped) { GTEST_SKIP() << GetParam().first << ": " << GetParam().second; }
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NotThere);
INSTANTIATE_TEST_SUITE_P(Devices, NotThere, ::testing::ValuesIn([] {
                           std::vector<std::pair<std::string, std::string>> missing;
                           for (const DeviceListing& device : list_devices()) {
                             if (!device.available) missing.emplace_back(device.name, device.description);
                           }
                           return missing;
                         }()),
                         [](const auto& info) { return test_name(info.param.first); });

class Conformance : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};  // device, op type

TEST_P(Conformance, RunsTheOpAsTheReferenceDoes) {
  const auto& [device_name, type] = GetParam();
  const auto device = open(device_name);
  int kernels = 0, refused = 0;
  for (const Case& one : all_cases()) {
    if (one.type != type) continue;
    const Subject subject = build_subject(one, kSeed);
    const Op& op = subject.graph.op(subject.op);
    std::set<std::tuple<std::string, std::vector<Layout>, std::vector<Layout>>> judged;
    for (const LayoutFamily family : kFamilies) {
      const auto specs = device->kernels(subject.graph, op, family);
      std::set<std::string> names;
      EXPECT_FALSE(specs.empty()) << one.text << " " << to_string(family);
      for (const KernelSpec& offered : specs) {
        EXPECT_TRUE(names.insert(offered.name).second) << "two kernels are called " << offered.name;
        if (op.type->is_view) continue;
        if (device_name == kByEngines && offered.name.find("eng") == std::string::npos) continue;
        if (device_name.ends_with(kTf32) && !offered.name.ends_with(":tf32")) continue;
        for (const KernelSpec& spec : with_real_layouts(subject, offered, family)) {
          if (!judged.emplace(spec.name, spec.inputs, spec.outputs).second) continue;  // in another family, too
          const Outcome outcome = judge(*device, subject, spec);
          ++kernels;
          refused += outcome.refused;
          EXPECT_THAT(outcome.failures, ::testing::IsEmpty())
              << one.type << " " << one.text << ", " << to_string(family) << ", kernel " << spec.name << ", seed "
              << kSeed;
        }
      }
    }
  }
  EXPECT_TRUE(kernels > 0 || device_name != kByEngines);
  RecordProperty("kernels", kernels);
  RecordProperty("refused", refused);
}

class KernelNames : public Conformance {};  // for what has kernels: a view has none

TEST_P(KernelNames, AreRefusedWhereThereIsNoSuchKernel) {
  const auto& [device_name, type] = GetParam();
  const auto device = open(device_name);
  for (const Case& one : all_cases()) {
    if (one.type != type) continue;
    const Subject subject = build_subject(one, kSeed);
    try {
      device->make_kernel(subject.graph, subject.graph.op(subject.op), "no such kernel");
      ADD_FAILURE() << type;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("no such kernel"));
    }
    return;
  }
}

// Reorders are judged apart, between layouts.
std::vector<std::string> types_of_cases(bool with_views) {
  std::vector<std::string> types;
  for (const std::string& type : tested_types()) {
    if (type != "Reorder" && (with_views || !op_type(type).is_view)) types.push_back(type);
  }
  return types;
}
std::string device_and_type(const ::testing::TestParamInfo<std::tuple<std::string, std::string>>& info) {
  return test_name(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
}

INSTANTIATE_TEST_SUITE_P(Devices, Conformance,
                         ::testing::Combine(::testing::ValuesIn(device_names()),
                                            ::testing::ValuesIn(types_of_cases(true))),
                         device_and_type);
INSTANTIATE_TEST_SUITE_P(Engines, Conformance,
                         ::testing::Combine(::testing::Values(std::string(kByEngines)),
                                            ::testing::Values("ConvForward", "ConvBackwardData", "ConvBackwardWeights",
                                                              "ConvTransposeForward", "ConvTransposeBackwardData",
                                                              "ConvTransposeBackwardWeights")),
                         device_and_type);
INSTANTIATE_TEST_SUITE_P(LittleShared, Conformance,
                         ::testing::Combine(::testing::Values(std::string(kOfLittleShared)),
                                            ::testing::Values("AttentionForward", "AttentionBackward")),
                         device_and_type);
INSTANTIATE_TEST_SUITE_P(Devices, KernelNames,
                         ::testing::Combine(::testing::ValuesIn(device_names()),
                                            ::testing::ValuesIn(types_of_cases(false))),
                         device_and_type);

class DeviceConformance : public ::testing::TestWithParam<std::string> {};

TEST_P(DeviceConformance, ReordersBetweenAnyTwoLayouts) {
  const auto device = open(GetParam());
  const std::vector<Layout> images = {{""}, {"acdb"}, {"aBcd16b"}};
  const std::vector<Layout> weights = {{""},           {"acdb"},    {"aBcd16b"}, {"ABcd16b16a"},
                                       {"ABcd16a16b"}, {"Acdb16a"}, {"cdba"}};
  const std::vector<Layout> grouped = {{""}, {"aBCde16b16c"}, {"aBCde16c16b"}, {"Abcde16a"}, {"decab"}};
  const std::vector<std::pair<Shape, std::vector<Layout>>> kinds = {
      {{2, 20, 5, 3}, images},   {{1, 3, 8, 8}, images},    {{3, 64, 4, 4}, images},
      {{20, 35, 3, 3}, weights}, {{32, 16, 1, 1}, weights}, {{2, 16, 20, 3, 3}, grouped}};
  for (const auto& [shape, layouts] : kinds) {
    const Case one = {"Reorder", to_string(shape),
                      [shape = shape](CaseBuilder& b) { b.op("Reorder", {b.normal(shape)}); }};
    const Subject plain = build_subject(one, kSeed);
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        Subject subject = plain;
        const Op& op = subject.graph.op(subject.op);
        subject.graph.tensor(op.inputs[0]).layout = from;
        subject.graph.tensor(op.outputs[0]).layout = to;
        for (const KernelSpec& spec : device->kernels(subject.graph, op, LayoutFamily::plain)) {
          EXPECT_EQ(spec.inputs[0], from);
          EXPECT_EQ(spec.outputs[0], to);
          EXPECT_THAT(judge(*device, subject, spec).failures, ::testing::IsEmpty())
              << one.text << " '" << from.tag << "' to '" << to.tag << "'";
        }
      }
    }
  }
}

TEST_P(DeviceConformance, HasAKernelOfItsOwnForEveryOpType) {
  const auto device = open(GetParam());
  std::set<std::string> lacking;
  for (const Case& one : all_cases()) {
    if (op_type(one.type).is_view || lacking.count(one.type) > 0) continue;
    const Subject subject = build_subject(one, kSeed);
    if (device->kernels(subject.graph, subject.graph.op(subject.op), LayoutFamily::plain)[0].name == "reference")
      lacking.insert(one.type);
  }
  EXPECT_THAT(lacking, ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceConformance, ::testing::ValuesIn(device_names()),
                         [](const auto& info) { return test_name(info.param); });

TEST(ConformanceSuite, HasACaseForEveryOpType) {
  std::set<std::string> untested;
  const std::set<std::string> tested = tested_types();
  for (const std::string& name : known_types()) {
    if (!op_type(name).reference && !op_type(name).is_view)
      continue;  // it is planned, never run: a layer of a paper's model
    const OpType& type = op_type(name);
    if (type.is_collective || type.is_of_rank) continue;  // by ranks, not by a device: device/collectives_test.cpp
    if (name == "CostedView") continue;                   // of a graph of costs only, which is planned and never run
    if (name == "SquareSums" || name == "NormOfSums") continue;  // of f64, between such: train/ranks_test.cpp
    if (tested.count(name) == 0) untested.insert(name);
  }
  EXPECT_THAT(untested, ::testing::IsEmpty());
}

}  // namespace
}  // namespace plimsoll::conformance
