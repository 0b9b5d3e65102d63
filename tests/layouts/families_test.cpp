// The layout pass and the CPU's kernels together: whole training steps, in every layout family, against the reference
// kernels on row-major tensors.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <ctime>

#include "base/by_id.h"
#include "kernels/layout.h"
#include "passes/passes.h"
#include "plan/route.h"
#include "plimsoll/models.h"
#include "tests/support/interpreter.h"

namespace plimsoll {
namespace {

struct Model {
  const char* name;
  ModelInput input;
};
// Small images and few channels, and channels that are no multiple of a block.
const Model kModels[] = {
    {"mlp", {.batch = 4}},
    {"lenet", {.batch = 2}},
    {"resnet:blocks=1-1-1-1", {.batch = 2, .height = 32, .width = 32, .classes = 5}},
    {"resnet20", {.batch = 2, .height = 8, .width = 8}},
    {"densenet:depth=10,growth=12", {.batch = 2, .height = 8, .width = 8}},
    {"dcgan:z=8,width=4", {.batch = 2}},
};

// A value that trains without running away: weights small, the rest as drawn.
void prepare(const Graph& graph, Values& values) {
  fill_sources(graph, values, 7);
  for (int32_t t = 0; t < graph.tensor_count(); ++t) {
    const Tensor& tensor = graph.tensor({t});
    if (tensor.producer.valid() || tensor.dtype != DType::f32) continue;
    Value& value = values[{t}];
    const bool weights = tensor.role == Role::parameter && tensor.shape.size() > 1;
    const double fan_in =
        weights ? static_cast<double>(element_count(tensor.shape)) / static_cast<double>(tensor.shape[0]) : 1;
    for (int64_t i = 0; i < value.size(); ++i) {
      double x = value.at(i);
      if (weights) x *= std::sqrt(3 / fan_in);
      if (tensor.role == Role::optimizer_state || tensor.role == Role::statistic) x = std::fabs(x);
      if (tensor.name == "learning_rate") x = 0.01;
      value.set(i, x);
    }
  }
}

// Every tensor in memory of its own, what must lie in an input's bytes excepted; ops one after the other.
class DeviceRun {
 public:
  DeviceRun(const Graph& graph, const Device& device, const LayoutResult& layouts) : graph_(graph) {
    const std::vector<OpId> order = make_route(graph).order;
    place_.assign(graph.tensors().size(), -1);
    overwritten_.assign(graph.tensors().size(), false);
    int64_t end = 0;
    auto take = [&](Bytes bytes) {
      const int64_t at = end;
      end += align_up(bytes, 64).count;
      return at;
    };
    for (int32_t t = 0; t < graph.tensor_count(); ++t) {
      if (!graph.tensor({t}).producer.valid()) place_[{t}] = take(graph.tensor({t}).bytes());
    }
    Bytes workspace;
    for (OpId id : order) {
      const Op& op = graph.op(id);
      if (op.type->in_place) {
        for (const InPlace& pair : op.type->in_place(graph, op)) {
          if (!pair.required) continue;
          const TensorId in = op.inputs[pair.input], out = op.outputs[pair.output];
          EXPECT_EQ(graph.tensor(in).bytes(), graph.tensor(out).bytes()) << op.name;
          place(out) = place(in);
          if (!op.type->is_view) overwritten_[in] = true;
        }
      }
      for (TensorId out : op.outputs) {
        if (place(out) < 0) place(out) = take(graph.tensor(out).bytes());
      }
      workspace = std::max(workspace, layouts.kernels[id.index].workspace);
    }
    const int64_t workspace_at = take(workspace);
    arena_ = device.take_arena({end});
    for (OpId id : order) {
      const Op& op = graph.op(id);
      const std::string& name = layouts.kernels[id.index].kernel;
      if (name.empty()) continue;
      kernels_.push_back(device.make_kernel(graph, op, name));
      EXPECT_EQ(kernels_.back()->workspace(), layouts.kernels[id.index].workspace) << op.name;
      std::vector<void*> inputs, outputs;
      for (TensorId in : op.inputs) inputs.push_back(data(in));
      for (TensorId out : op.outputs) outputs.push_back(data(out));
      kernels_.back()->bind(inputs, outputs, arena_->base() + workspace_at);
    }
  }
  void set(TensorId id, const Value& value) {
    const Tensor& tensor = graph_.tensor(id);
    std::memset(data(id), 0, tensor.bytes().count);
    const std::vector<int64_t> offsets = storage_offsets(tensor.shape, tensor.layout);
    const size_t size = storage_bytes({1}, tensor.dtype, {}).count;
    for (size_t i = 0; i < offsets.size(); ++i) {
      std::memcpy(data(id) + offsets[i] * size, value.data.data() + i * size, size);
    }
  }
  bool is_overwritten(TensorId id) const { return overwritten_[id]; }
  void run() {
    for (const auto& kernel : kernels_) kernel->run();
  }
  std::vector<float> get(TensorId id) {
    const Tensor& tensor = graph_.tensor(id);
    std::vector<float> result;
    for (int64_t offset : storage_offsets(tensor.shape, tensor.layout)) {
      result.push_back(reinterpret_cast<const float*>(data(id))[offset]);
    }
    return result;
  }

 private:
  int64_t& place(TensorId id) { return place_[id]; }
  std::byte* data(TensorId id) { return arena_->base() + place(id); }

  const Graph& graph_;
  ById<TensorId, int64_t> place_;
  ById<TensorId, bool> overwritten_;  // by an op that must write there
  std::unique_ptr<Arena> arena_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
};

double distance(const std::vector<float>& found, const Value& expected) {
  double difference = 0, norm = 1e-12;
  for (size_t i = 0; i < found.size(); ++i) {
    const double e = expected.at(static_cast<int64_t>(i));
    difference += (found[i] - e) * (found[i] - e);
    norm += e * e;
  }
  return std::sqrt(difference / norm);
}

TEST(LayoutFamilies, AllTrainAsTheReferenceDoes) {
  const auto device = open_device("cpu");
  for (const Model& model : kModels) {
    Network network = build_model(model.name, model.input);
    run_fusion_passes(network);
    const Network training = make_training_network(network, {.weight_decay = 1e-3});
    Values values(training.graph);
    prepare(training.graph, values);
    Values expected = values;
    interpret(training.graph, expected);
    for (LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked}) {
      SCOPED_TRACE(fmt::format("{} {}", model.name, to_string(family)));
      Graph graph = training.graph;
      const LayoutResult layouts = choose_layouts(graph, *device, CostTable{}, {.family = family});
      DeviceRun run(graph, *device, layouts);
      for (int32_t t = 0; t < training.graph.tensor_count(); ++t) {
        if (!graph.tensor({t}).producer.valid()) run.set({t}, values[{t}]);
      }
      run.run();
      // In the order of the step, so that the first difference is the cause of the others.
      std::string wrong;
      for (OpId id : topological_order(training.graph)) {
        const Op& op = training.graph.op(id);
        for (TensorId out : op.outputs) {
          if (!wrong.empty() || graph.tensor(out).dtype != DType::f32 || run.is_overwritten(out)) continue;
          const double apart = distance(run.get(out), expected[out]);
          if (apart < 1e-2) continue;
          wrong = fmt::format("'{}' of {} by {}: {}", graph.tensor(out).name, op.type->name,
                              layouts.kernels[id.index].kernel, apart);
        }
      }
      EXPECT_EQ(wrong, "");
    }
  }
}

TEST(LayoutFamilies, TakeLittleTimeToChooseForDeepNetworks) {
  const auto device = open_device("cpu");
  const Network training = make_training_network(build_model("resnet152", {.batch = 8}), {});
  Graph first = training.graph;
  choose_layouts(first, *device, CostTable{}, {});
  const double begun = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  Graph graph = training.graph;
  choose_layouts(graph, *device, CostTable{}, {});
  EXPECT_LT(static_cast<double>(std::clock()) / CLOCKS_PER_SEC - begun, 1.0) << "processor seconds";
}

}  // namespace
}  // namespace plimsoll
