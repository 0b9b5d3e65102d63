#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "base/clock.h"
#include "cost/signature.h"
#include "kernels/layout.h"
#include "ops/reference.h"
#include "plimsoll/ops.h"
#include "tests/support/error_text.h"

namespace plimsoll {
namespace {

using Specs = std::vector<KernelSpec>;

// Offers what the test says, runs nothing.
class FakeDevice : public Device {
 public:
  using Offer = std::function<Specs(const Graph&, const Op&, LayoutFamily)>;
  explicit FakeDevice(Offer offer) : offer_(std::move(offer)) {
    info_.name = "fake";
    info_.simulated = true;
  }
  const DeviceInfo& info() const override { return info_; }
  Specs kernels(const Graph& graph, const Op& op, LayoutFamily family) const override {
    ++calls;
    if (op.type->name == "Reorder") {
      return {{"copy", {graph.tensor(op.inputs[0]).layout}, {graph.tensor(op.outputs[0]).layout}, {}}};
    }
    return offer_(graph, op, family);
  }
  std::unique_ptr<Kernel> make_kernel(const Graph&, const Op&, std::string_view, int) const override { return nullptr; }
  std::unique_ptr<Arena> take_arena(Bytes) const override { return nullptr; }
  void write(std::byte*, std::span<const std::byte>) const override {}
  void read(std::span<std::byte>, const std::byte*) const override {}
  mutable int calls = 0;

 private:
  Offer offer_;
  DeviceInfo info_;
};

// Ops with the reading pattern of a network's, and no arithmetic.
OpType shape_only(std::string name,
                  std::function<std::vector<TensorSpec>(const Attributes&, std::span<const Tensor* const>)> infer) {
  OpType type{.name = std::move(name), .infer = std::move(infer), .kind = LayerKind::other};
  type.work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 0); };
  return type;
}

void register_test_ops() {
  static const bool once = [] {
    using In = std::span<const Tensor* const>;
    register_op(shape_only("TestConv", [](const Attributes&, In in) {
      Shape y = in[0]->shape;
      y[1] = in[1]->shape[0];
      return std::vector<TensorSpec>{{y}};
    }));
    register_op(shape_only("TestConvData", [](const Attributes&, In in) {
      Shape dx = in[0]->shape;
      dx[1] = in[1]->shape[1];
      return std::vector<TensorSpec>{{dx}};
    }));
    register_op(shape_only("TestConvWeights", [](const Attributes&, In in) {
      return std::vector<TensorSpec>{{Shape{in[1]->shape[1], in[0]->shape[1], 3, 3}}};
    }));
    register_op(shape_only("TestPool", [](const Attributes&, In in) {
      return std::vector<TensorSpec>{{in[0]->shape}, {in[0]->shape, DType::u8}};
    }));
    register_op(shape_only("TestPoolBackward",
                           [](const Attributes&, In in) { return std::vector<TensorSpec>{{in[0]->shape}}; }));
    OpType update = shape_only("TestUpdate", [](const Attributes&, In in) {
      std::vector<TensorSpec> out{{in[0]->shape}};
      if (in.size() > 2) out.push_back({in[2]->shape});
      return out;
    });
    update.changes_state = true;
    update.in_place = [](const Graph&, const Op& op) {
      std::vector<InPlace> pairs{{0, 0, true}};
      if (op.inputs.size() > 2) pairs.push_back({1, 2, true});
      return pairs;
    };
    register_op(std::move(update));
    register_op(
        shape_only("TestJoin", [](const Attributes&, In in) { return std::vector<TensorSpec>{{in[0]->shape}}; }));
    return true;
  }();
  (void)once;
}

// One training step of a chain of convolutions, pooled, flattened.
struct TestNet {
  Graph graph;
  std::vector<TensorId> weights, updated, momenta;
};
TestNet make_net(int convolutions, int64_t channels = 32) {
  register_test_ops();
  TestNet net;
  Graph& g = net.graph;
  g.name = "chain";
  const TensorId data = g.add_source("data", {4, 3, 8, 8}, DType::f32, Role::input);
  std::vector<TensorId> xs{data};
  std::vector<OpId> forwards;
  for (int i = 0; i < convolutions; ++i) {
    const std::string layer = fmt::format("conv{}", i);
    const int64_t in = g.tensor(xs.back()).shape[1];
    net.weights.push_back(g.add_source(layer + ".weight", {channels, in, 3, 3}, DType::f32, Role::parameter));
    forwards.push_back(g.add_op("TestConv", layer, layer, {xs.back(), net.weights.back()}));
    xs.push_back(g.output(forwards.back()));
  }
  const OpId pool = g.add_op("TestPool", "pool", "pool", {xs.back()});
  const int64_t width = element_count(g.tensor(g.output(pool)).shape) / 4;
  const OpId flat = g.add_op("Reshape", "flat", "flat", {g.output(pool)}, {{"shape", std::vector<int64_t>{4, width}}});
  g.tensor(g.output(flat)).role = Role::output;
  g.outputs.push_back(g.output(flat));
  const OpId unflat = g.add_op("Reshape", "flat/backward", "flat", {g.output(flat)},
                               {{"shape", g.tensor(g.output(pool)).shape}}, Phase::backward);
  g.op(unflat).forward = flat;
  const OpId unpool =
      g.add_op("TestPoolBackward", "pool/backward", "pool", {g.output(unflat), g.output(pool, 1)}, {}, Phase::backward);
  g.op(unpool).forward = pool;
  TensorId dy = g.output(unpool);
  for (int i = convolutions; i-- > 0;) {
    const std::string layer = fmt::format("conv{}", i);
    const OpId dw = g.add_op("TestConvWeights", layer + "/weights", layer, {xs[i], dy}, {}, Phase::backward);
    g.op(dw).forward = forwards[i];
    const TensorId m =
        g.add_source(layer + ".weight.momentum", g.tensor(net.weights[i]).shape, DType::f32, Role::optimizer_state);
    const OpId update = g.add_op("TestUpdate", layer + "/update", layer, {net.weights[i], g.output(dw), m}, {},
                                 Phase::update, {layer + ".weight.next", layer + ".weight.momentum.next"});
    for (State& state : g.states) {
      if (state.before == net.weights[i]) state.after = g.output(update, 0);
      if (state.before == m) state.after = g.output(update, 1);
    }
    net.updated.push_back(g.output(update));
    net.momenta.push_back(m);
    if (i > 0) {
      const OpId dx = g.add_op("TestConvData", layer + "/data", layer, {dy, net.weights[i]}, {}, Phase::backward);
      g.op(dx).forward = forwards[i];
      dy = g.output(dx);
    }
  }
  check(g);
  return net;
}

const Layout kPlain{}, kLast{"acdb"}, kBlocked{"aBcd16b"}, kWeights{"ABcd16b16a"}, kWeightsBack{"ABcd16a16b"};

// Like oneDNN: images plain, channels last or blocked; blocked convolutions want blocked weights, another way round for
// backward-data; updates want plain, as far as they know.
Specs cpu_like(const Graph& graph, const Op& op, LayoutFamily family) {
  const Layout image = family == LayoutFamily::plain ? kPlain : family == LayoutFamily::blocked ? kBlocked : kLast;
  const bool blocked = family == LayoutFamily::blocked;
  const std::string& type = op.type->name;
  if (type == "TestConv") {
    const bool first = graph.tensor(op.inputs[0]).shape[1] < 16;
    const Layout x = first && blocked ? kPlain : image;
    const Layout w = first || !blocked ? kPlain : kWeights;
    if (!blocked) return {{"gemm", {x, w}, {image}, 1_MiB}};
    return {{"wino", {x, w}, {image}, 8_MiB}, {"direct", {x, w}, {image}, 0_B}};
  }
  if (type == "TestConvData") return {{"direct", {image, blocked ? kWeightsBack : kPlain}, {image}, 0_B}};
  if (type == "TestConvWeights") {
    const bool first = graph.tensor(op.inputs[0]).shape[1] < 16;
    return {{"direct", {first && blocked ? kPlain : image, image}, {blocked && !first ? kWeights : kPlain}, 0_B}};
  }
  if (type == "TestPool") return {{"pool", {image}, {image, image}, 0_B}};
  if (type == "TestPoolBackward") return {{"pool", {image, image}, {image}, 0_B}};
  if (type == "TestUpdate") return {{"update", {kPlain, kPlain, kPlain}, {kPlain, kPlain}, 0_B}};
  if (type == "TestJoin") return {{"join", {image, image}, {image}, 0_B}};
  throw Error(ErrorCode::unsupported, "no kernel for " + type);
}

// Every promise of choose_layouts that does not depend on costs.
void expect_laid_out(const Graph& before, const Graph& after, const Device& device, const LayoutResult& result) {
  ASSERT_NO_THROW(check(after));
  ASSERT_EQ(result.kernels.size(), after.ops().size());
  // The same ops on the same values, under the same ids.
  auto origin = [&](TensorId id) {
    while (after.tensor(id).producer.valid()) {
      const Op& op = after.op(after.tensor(id).producer);
      if (op.type->name != "Reorder") break;
      id = op.inputs[0];
    }
    return std::pair(after.tensor(id).producer, after.tensor(id).producer.valid() ? TensorId{} : id);
  };
  for (int32_t t = 0; t < before.tensor_count(); ++t) EXPECT_EQ(before.tensor({t}).name, after.tensor({t}).name);
  for (int32_t i = 0; i < before.op_count(); ++i) {
    const Op &a = before.op({i}), &b = after.op({i});
    EXPECT_EQ(a.name, b.name);
    ASSERT_EQ(a.inputs.size(), b.inputs.size());
    for (size_t k = 0; k < a.inputs.size(); ++k) {
      const Tensor& t = before.tensor(a.inputs[k]);
      EXPECT_EQ(origin(b.inputs[k]), std::pair(t.producer, t.producer.valid() ? TensorId{} : a.inputs[k])) << a.name;
    }
  }
  // Every op sees the layouts that its kernel wants.
  for (int32_t i = 0; i < after.op_count(); ++i) {
    const Op& op = after.op({i});
    auto layout = [&](TensorId id) { return after.tensor(id).layout; };
    if (op.type->is_view) {
      EXPECT_EQ(result.kernels[i].kernel, "");
      EXPECT_TRUE(layout(op.inputs[0]).is_plain() && layout(op.outputs[0]).is_plain()) << op.name;
      continue;
    }
    bool found = false;
    for (const KernelSpec& spec : device.kernels(after, op, result.family)) {
      bool fits = spec.name == result.kernels[i].kernel && spec.workspace == result.kernels[i].workspace;
      std::optional<Layout> open;
      for (size_t p = 0; p < op.inputs.size() + op.outputs.size(); ++p) {
        const bool in = p < op.inputs.size();
        const size_t k = in ? p : p - op.inputs.size();
        const Layout has = layout(in ? op.inputs[k] : op.outputs[k]);
        if (!layout_is_open(after, op, spec, p)) {
          fits = fits && same_layout(has, in ? spec.inputs[k] : spec.outputs[k]);
        } else {
          fits = fits && (!open || same_layout(*open, has));
          open = has;
        }
      }
      found = found || fits;
    }
    EXPECT_TRUE(found) << op.name << " by " << result.kernels[i].kernel;
  }
  for (TensorId id : after.outputs) EXPECT_TRUE(after.tensor(id).layout.is_plain());
  for (TensorId id : after.inputs) EXPECT_TRUE(after.tensor(id).layout.is_plain());
  // A copy is made again rather than kept from the forward to the backward pass.
  const auto readers = after.readers();
  for (int32_t i = before.op_count(); i < after.op_count(); ++i) {
    const Op& op = after.op({i});
    EXPECT_EQ(op.type->name, "Reorder");
    EXPECT_FALSE(same_layout(after.tensor(op.inputs[0]).layout, after.tensor(op.outputs[0]).layout)) << op.name;
    if (op.outputs[0].index < before.tensor_count()) continue;  // what the world outside reads
    EXPECT_FALSE(readers[op.outputs[0].index].empty()) << op.name;
    for (OpId reader : readers[op.outputs[0].index]) EXPECT_EQ(after.op(reader).phase, op.phase);
  }
}

int reorders_of(const Graph& graph, TensorId id) {
  int count = 0;
  for (const Op& op : graph.ops()) count += op.type->name == "Reorder" && op.inputs[0] == id;
  return count;
}

std::string layouts_of(const Graph& graph) {
  std::string text;
  for (const Tensor& t : graph.tensors()) text += t.name + " " + t.layout.tag + "\n";
  return text;
}

TEST(Layouts, FitTheChosenKernelsInEveryFamily) {
  for (LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked}) {
    TestNet net = make_net(3);
    const Graph before = net.graph;
    const FakeDevice device(cpu_like);
    const LayoutResult result = choose_layouts(net.graph, device, CostTable{}, {.family = family});
    EXPECT_EQ(result.family, family);
    EXPECT_GT(result.estimated_ms, 0);
    expect_laid_out(before, net.graph, device, result);
  }
}

TEST(Layouts, AParameterHasTheLayoutThatItsForwardKernelWantsAndItsMomentumToo) {
  TestNet net = make_net(2);
  const FakeDevice device(cpu_like);
  choose_layouts(net.graph, device, CostTable{}, {.family = LayoutFamily::blocked});
  const TensorId w = net.graph.find_tensor("conv1.weight");
  EXPECT_EQ(net.graph.tensor(w).layout, kWeights);
  EXPECT_EQ(net.graph.tensor(net.graph.find_tensor("conv1.weight.next")).layout, kWeights);
  EXPECT_EQ(net.graph.tensor(net.graph.find_tensor("conv1.weight.momentum")).layout, kWeights);
  EXPECT_EQ(net.graph.tensor(net.graph.find_tensor("conv1.weight.momentum.next")).layout, kWeights);
  EXPECT_EQ(reorders_of(net.graph, w), 1);  // for backward-data
  const Op& reorder = net.graph.op(net.graph.find_op("conv1.weight@ABcd16a16b/backward/reorder"));
  EXPECT_EQ(reorder.phase, Phase::backward);
  EXPECT_EQ(reorder.layer, "conv1");
  EXPECT_EQ(net.graph.op(reorder.forward).name, "conv1");
}

// An update that reads something stretched over its parameter has a say in how that lies.
TEST(Layouts, AParameterLiesAsItsUpdateWantsWhereSomethingIsStretchedOverIt) {
  for (const bool stretched : {false, true}) {
    register_test_ops();
    Graph graph;
    const TensorId x = graph.add_source("data", {2, 32, 4, 4}, DType::f32, Role::input);
    const TensorId dw = graph.add_source("dw", {32, 32, 3, 3}, DType::f32, Role::input);
    const TensorId w = graph.add_source("w", {32, 32, 3, 3}, DType::f32, Role::parameter);
    const TensorId rows = graph.add_source("rows", {32, 32, 3, stretched ? 1 : 3}, DType::f32, Role::optimizer_state);
    const TensorId y = graph.output(graph.add_op("TestConv", "conv", "conv", {x, w}));
    const OpId update = graph.add_op("TestUpdate", "update", "conv", {w, dw, rows}, {}, Phase::update);
    for (State& state : graph.states) state.after = graph.output(update, state.before == w ? 0 : 1);
    graph.outputs = {y};
    const Graph before = graph;
    const FakeDevice device(cpu_like);
    const LayoutResult result = choose_layouts(graph, device, CostTable{}, {.family = LayoutFamily::blocked});
    expect_laid_out(before, graph, device, result);
    EXPECT_EQ(graph.tensor(w).layout, stretched ? kPlain : kWeights);
    EXPECT_EQ(reorders_of(graph, w), stretched ? 1 : 0) << "for the convolution";
  }
}

TEST(Layouts, AnOutputOfTheGraphKeepsItsIdAndIsPlain) {
  register_test_ops();
  Graph graph;
  const TensorId x = graph.add_source("data", {2, 32, 4, 4}, DType::f32, Role::input);
  const TensorId w = graph.add_source("w", {32, 32, 3, 3}, DType::f32, Role::parameter);
  const TensorId y = graph.output(graph.add_op("TestConv", "conv", "conv", {x, w}, {}, Phase::forward, {"features"}));
  const TensorId z = graph.output(graph.add_op("TestConv", "conv2", "conv2", {y, w}));
  graph.outputs = {y};
  const Graph before = graph;
  const FakeDevice device(cpu_like);
  const LayoutResult result = choose_layouts(graph, device, CostTable{}, {.family = LayoutFamily::blocked});
  expect_laid_out(before, graph, device, result);
  EXPECT_EQ(graph.outputs[0], y);
  EXPECT_EQ(graph.tensor(y).name, "features");
  EXPECT_TRUE(graph.tensor(y).layout.is_plain());
  EXPECT_EQ(graph.op(graph.tensor(y).producer).type->name, "Reorder");
  EXPECT_EQ(graph.op(graph.tensor(z).producer).inputs[0], graph.op(graph.tensor(y).producer).inputs[0]);
}

TEST(Layouts, ReadersOfOnePhaseShareACopy) {
  register_test_ops();
  Graph graph;
  const TensorId x = graph.add_source("data", {2, 32, 4, 4}, DType::f32, Role::input);
  for (int i = 0; i < 3; ++i) {
    const TensorId w = graph.add_source(fmt::format("w{}", i), {32, 32, 3, 3}, DType::f32, Role::parameter);
    const TensorId y = graph.output(graph.add_op("TestConv", fmt::format("conv{}", i), "conv", {x, w}));
    graph.add_op("TestConvWeights", fmt::format("back{}", i), "conv", {x, y}, {}, Phase::backward);
  }
  const FakeDevice device(cpu_like);
  choose_layouts(graph, device, CostTable{}, {.family = LayoutFamily::blocked});
  EXPECT_EQ(reorders_of(graph, x), 2);  // one forward, one backward
}

TEST(Layouts, TheFamilyIsTheCheapestByTheCosts) {
  for (LayoutFamily cheap : {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked}) {
    TestNet net = make_net(3);
    const FakeDevice device(cpu_like);
    CostTable costs;
    for (LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked}) {
      for (const Op& op : net.graph.ops()) {
        if (op.type->name != "TestPool" && op.type->name != "TestPoolBackward") continue;
        for (const KernelSpec& spec : device.kernels(net.graph, op, family)) {
          costs.put({op_signature(net.graph, op, spec), spec.name, 0},
                    {Cost::Source::measured, family == cheap ? 1.0 : 30.0, 0, 5});
        }
      }
    }
    EXPECT_EQ(choose_layouts(net.graph, device, costs, {}).family, cheap);
  }
}

TEST(Layouts, AKernelAboveTheWorkspaceLimitIsNotTaken) {
  TestNet net = make_net(2);
  const FakeDevice device(cpu_like);
  CostTable costs;
  Graph roomy = net.graph, tight = net.graph, none = net.graph;
  for (const Op& op : net.graph.ops()) {
    if (op.type->name != "TestConv") continue;
    for (const KernelSpec& spec : cpu_like(net.graph, op, LayoutFamily::blocked)) {
      costs.put({op_signature(net.graph, op, spec), spec.name, 0},
                {Cost::Source::measured, spec.name == "wino" ? 1.0 : 2.0, 0, 5});
    }
  }
  const size_t conv = net.graph.find_op("conv1").index;
  EXPECT_EQ(choose_layouts(roomy, device, costs, {.family = LayoutFamily::blocked}).kernels[conv].kernel, "wino");
  EXPECT_EQ(choose_layouts(tight, device, costs, {.family = LayoutFamily::blocked, .workspace_limit = 4_MiB})
                .kernels[conv]
                .kernel,
            "direct");
  // Where all are above it, the one with the least.
  EXPECT_EQ(choose_layouts(none, device, costs, {.family = LayoutFamily::plain, .workspace_limit = 1_KiB})
                .kernels[conv]
                .workspace,
            1_MiB);
}

TEST(Layouts, ExactChoicesIgnoreMeasuredTimesAndTheWorkspaceLimit) {
  TestNet net = make_net(3);
  const FakeDevice device(cpu_like);
  CostTable skewed;
  for (const Op& op : net.graph.ops()) {
    if (op.type->is_view) continue;
    for (const KernelSpec& spec : cpu_like(net.graph, op, LayoutFamily::blocked)) {
      skewed.put({op_signature(net.graph, op, spec), spec.name, 0}, {Cost::Source::measured, 1000, 0, 5});
    }
  }
  Graph a = net.graph, b = net.graph;
  const LayoutResult by_rule = choose_layouts(a, device, CostTable{}, {.exact = true});
  const LayoutResult again = choose_layouts(b, device, skewed, {.workspace_limit = 1_B, .exact = true});
  EXPECT_EQ(layouts_of(a), layouts_of(b));
  ASSERT_EQ(by_rule.kernels.size(), again.kernels.size());
  for (size_t i = 0; i < by_rule.kernels.size(); ++i) {
    EXPECT_EQ(by_rule.kernels[i].kernel, again.kernels[i].kernel);
    EXPECT_NE(by_rule.kernels[i].kernel, "wino");
  }
}

TEST(Layouts, PinnedLayoutsAndKernelsAreKept) {
  TestNet net = make_net(2);
  const Graph before = net.graph;
  const FakeDevice device(cpu_like);
  LayoutOptions options{.family = LayoutFamily::blocked};
  options.pinned["conv1.weight"] = kWeightsBack;
  options.pinned["conv1.weight.momentum"] = kWeightsBack;
  options.pinned_kernels["conv1"] = "wino";
  const LayoutResult result = choose_layouts(net.graph, device, CostTable{}, options);
  expect_laid_out(before, net.graph, device, result);
  EXPECT_EQ(net.graph.tensor(net.graph.find_tensor("conv1.weight")).layout, kWeightsBack);
  EXPECT_EQ(net.graph.tensor(net.graph.find_tensor("conv1.weight.next")).layout, kWeightsBack);
  EXPECT_EQ(result.kernels[net.graph.find_op("conv1").index].kernel, "wino");
}

TEST(Layouts, AKernelThatTheDeviceLacksIsNamed) {
  TestNet net = make_net(2);
  const FakeDevice device(cpu_like);
  LayoutOptions options{.family = LayoutFamily::plain};
  options.pinned_kernels["conv1"] = "wino";
  try {
    choose_layouts(net.graph, device, CostTable{}, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_STREQ(
        error.what(),
        "op 'conv1' (TestConv) is to run by kernel 'wino', which this device does not offer with plain layouts");
  }
}

TEST(Layouts, AMaskGetsALayoutThatItsReaderTakes) {
  TestNet net = make_net(1);
  const Graph before = net.graph;
  const FakeDevice device([](const Graph& graph, const Op& op, LayoutFamily family) -> Specs {
    if (op.type->name == "TestPool")
      return {{"fast", {kBlocked}, {kBlocked, kBlocked}, 0_B}, {"slow", {kBlocked}, {kBlocked, kLast}, 1_KiB}};
    if (op.type->name == "TestPoolBackward") return {{"only", {kBlocked, kLast}, {kBlocked}, 0_B}};
    return cpu_like(graph, op, family);
  });
  const LayoutResult result = choose_layouts(net.graph, device, CostTable{}, {});
  expect_laid_out(before, net.graph, device, result);
  EXPECT_EQ(result.kernels[net.graph.find_op("pool").index].kernel, "slow");
}

TEST(Layouts, AreChosenOnce) {
  TestNet net = make_net(2);
  const FakeDevice device(cpu_like);
  choose_layouts(net.graph, device, CostTable{}, {.family = LayoutFamily::blocked});
  EXPECT_THAT(
      testing::error_text(ErrorCode::invalid_input, [&] { choose_layouts(net.graph, device, CostTable{}, {}); }),
      ::testing::MatchesRegex("the layouts of graph '.*' are chosen already: it has the op '.*/reorder'"));
}

TEST(Layouts, AskTheDeviceOncePerSignature) {
  TestNet net = make_net(4000);
  const FakeDevice device(cpu_like);
  const Stopwatch watch;
  choose_layouts(net.graph, device, CostTable{}, {});
  const double seconds = watch.seconds();
  EXPECT_LT(device.calls, 3 * 14);
  EXPECT_LT(seconds, 5) << "for " << net.graph.op_count() << " ops";
  RecordProperty("seconds", fmt::format("{:.3f}", seconds));
}

// Any device, any network: layouts, workspaces, times and the shape of the network are drawn.
TEST(Layouts, KeepEveryPromiseOnDrawnNetworksAndDevices) {
  register_test_ops();
  const Layout images[] = {kPlain, kLast, kBlocked, {"aBcd8b"}};
  const Layout weights[] = {kPlain, kWeights, kWeightsBack, {"Acdb16a"}};
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    auto offer = [&](const Graph& graph, const Op& op, LayoutFamily family) {
      std::mt19937 draw(static_cast<uint32_t>(std::hash<std::string>{}(signature_without_layouts(graph, op))) +
                        seed * 7 + static_cast<uint32_t>(family));
      Specs specs;
      const int count = 1 + static_cast<int>(draw() % 4);
      const bool open = op.type->name == "TestJoin" && draw() % 2 == 0;
      auto layout = [&](TensorId id) {
        const Tensor& t = graph.tensor(id);
        if (t.shape.size() != 4 || t.role == Role::hyperparameter) return Layout{};
        if (open) return kAnyLayout;
        if (t.dtype == DType::u8) return kBlocked;
        const bool weight = t.shape[2] == 3;
        return weight ? weights[draw() % 4] : images[draw() % 4];
      };
      for (int k = 0; k < count; ++k) {
        KernelSpec spec{.name = fmt::format("k{}", k),
                        .inputs = {},
                        .outputs = {},
                        .workspace = {static_cast<int64_t>(draw() % 3) << 20}};
        for (TensorId id : op.inputs) spec.inputs.push_back(layout(id));
        for (TensorId id : op.outputs) spec.outputs.push_back(layout(id));
        specs.push_back(spec);
      }
      return specs;
    };
    const FakeDevice device(offer);
    std::mt19937 draw(seed);
    TestNet net = make_net(1 + static_cast<int>(draw() % 4), draw() % 2 == 0 ? 32 : 20);
    Graph& g = net.graph;
    for (int extra = 0; extra < 4; ++extra) {
      std::vector<TensorId> same;
      const TensorId a{static_cast<int32_t>(draw() % static_cast<uint32_t>(g.tensor_count()))};
      for (int32_t t = 0; t < g.tensor_count(); ++t) {
        if (g.tensor({t}).shape == g.tensor(a).shape && g.tensor({t}).dtype == DType::f32) same.push_back({t});
      }
      if (same.empty() || g.tensor(a).dtype != DType::f32) continue;
      const TensorId b = same[draw() % same.size()];
      const OpId join = g.add_op("TestJoin", fmt::format("join{}", extra), "join", {a, b}, {}, Phase::backward);
      if (draw() % 2 == 0) g.outputs.push_back(g.output(join));
    }
    const Graph before = g;
    LayoutOptions options;
    if (draw() % 3 == 0) options.family = static_cast<LayoutFamily>(draw() % 3);
    if (draw() % 3 == 0) options.workspace_limit = 1_MiB;
    if (draw() % 4 == 0) options.exact = true;
    if (draw() % 4 == 0) options.pinned["conv0.weight"] = weights[draw() % 4];
    const LayoutResult result = choose_layouts(g, device, CostTable{}, options);
    expect_laid_out(before, g, device, result);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

}  // namespace
}  // namespace plimsoll
