// SuperNeurons, section 4.2: the largest batch and the deepest ResNet on a 12 GB card, by layer model.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "papers/layer_plan.h"
#include "papers/papers.h"
#include "plimsoll/models.h"

namespace plimsoll {
namespace {

constexpr Bytes kUsable{12'025'908'428};  // 11.2 GiB of a K40c's 12
constexpr Bytes kHost = 107_GiB;
constexpr Bytes kUnlimited{int64_t{1} << 50};
// Weights, their gradients, momentum and the batch stay in the arena, as in the paper's programs.
constexpr LayerModelOptions kResident{.weights = true, .input = true};
constexpr const char* kCostAware = "superneurons:cache=off,release=drop,prefetch=demand,recompute=cost-aware";

std::optional<int64_t> peak_bytes(LayerPlanRequest request) {
  request.budget = {INT64_MAX};
  const auto plan = plan_layers(request);
  return plan ? std::optional(plan->plan.predicted.peak.count) : std::nullopt;
}

// The largest n that fits, of a need that grows with n nearly on a line: near where the line through two small ones
// says.
int64_t largest(const std::function<LayerPlanRequest(int64_t)>& request, int64_t first, int64_t second) {
  const auto fits = [&](int64_t n) { return n >= 1 && plan_layers(request(n)).has_value(); };
  const auto a = peak_bytes(request(first)), b = peak_bytes(request(second));
  if (!a || !b || *b <= *a) return 0;
  const double slope = static_cast<double>(*b - *a) / static_cast<double>(second - first);
  int64_t low = 0, high = 0;  // fits, does not fit; 0: not known
  int64_t n = std::max<int64_t>(first + static_cast<int64_t>(static_cast<double>(kUsable.count - *a) / slope), 1);
  for (int64_t stride = 1; low == 0 || high == 0; stride *= 2) {
    if (fits(n)) {
      low = n;
      if (high == 0) n += stride;
    } else {
      high = n;
      if (low == 0) n -= stride;
      if (n < 1 && low == 0) return 0;
    }
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

LayerPlanRequest request_for(const std::string& model, int64_t batch, int64_t size, const std::string& policy,
                             Bytes host) {
  return {.model = model,
          .batch = batch,
          .size = size,
          .policy = policy,
          .lowering = kResident,
          .budget = kUsable,
          .host = host};
}

// Where everything may lie on the host, the layer that needs most bounds the batch.
int64_t bound_by_largest_layer(const std::string& model, int64_t size) {
  const Graph graph = lower_to_layers(build_model(model, {.batch = 1, .height = size, .width = size}));
  int64_t most = 1;
  for (const Op& op : graph.ops()) {
    int64_t sum = 0;
    for (TensorId t : op.inputs) sum += graph.tensor(t).bytes().count;
    for (size_t i = op.attributes.has("overwrites") ? 1 : 0; i < op.outputs.size(); ++i)
      sum += graph.tensor(op.outputs[i]).bytes().count;
    most = std::max(most, sum);
  }
  return kUsable.count / most;
}

}  // namespace

std::vector<Finding> superneurons_table5() {
  struct Framework {
    const char* name;
    const char* policy;
  };
  const Framework frameworks[] = {
      {"Caffe", "caffe"}, {"MXNet", "mxnet"}, {"Torch", "torch"}, {"TensorFlow", "tensorflow"}};
  struct Network {
    const char* name;
    const char* model;
    int64_t size;
    std::optional<double> frameworks[4];
    double superneurons;
  };
  const Network networks[] = {{"AlexNet", "alexnet", 227, {768, 768, 1024, 1408}, 1792},
                              {"VGG16", "vgg16", 224, {48, 64, 48, 80}, 224},
                              {"InceptionV4", "inception4", 299, {16, {}, {}, 64}, 240},
                              {"ResNet50", "resnet50", 227, {24, 80, 32, 128}, 384},
                              {"ResNet101", "resnet101", 227, {16, 48, 16, 80}, 256},
                              {"ResNet152", "resnet152", 227, {16, 32, 16, 48}, 176}};
  std::vector<Finding> rows;
  for (const Network& n : networks) {
    auto add = [&](std::string quantity, std::optional<double> paper, int64_t ours, std::string note) {
      rows.push_back(
          {"table5", n.name, std::move(quantity), paper, static_cast<double>(ours), "images", std::move(note)});
    };
    auto batch = [&](const std::string& policy, Bytes host) {
      return largest([&](int64_t b) { return request_for(n.model, b, n.size, policy, host); }, 4, 8);
    };
    add("SuperNeurons", n.superneurons, batch(kCostAware, kHost),
        "simulated: 11.2 GiB, 107 GiB of host memory; no convolution workspaces; checkpoints leave as soon as they "
        "were used");
    add("SuperNeurons, host memory unlimited", {}, batch(kCostAware, kUnlimited), "simulated");
    add("bound by the largest layer", {}, bound_by_largest_layer(n.model, n.size),
        "weights on the host as well; no plan of these layers has a larger batch");
    for (size_t f = 0; f < std::size(frameworks); ++f) {
      add(frameworks[f].name, n.frameworks[f], batch(frameworks[f].policy, kHost),
          "simulated: a policy that keeps tensors as the framework did; its workspaces are not counted");
    }
  }
  return rows;
}

std::vector<Finding> superneurons_table4() {
  auto depth = [](int64_t n3) { return 3 * (6 + 32 + n3 + 6) + 2; };
  auto deepest = [&](const std::string& policy, Bytes host) {
    const int64_t n3 = largest(
        [&](int64_t n) { return request_for(fmt::format("resnet:6-32-{}-6", n), 16, 227, policy, host); }, 2, 4);
    return n3 > 0 ? depth(n3) : 0;
  };
  const struct {
    const char* name;
    const char* policy;
    double paper;
  } rows[] = {{"SuperNeurons", kCostAware, 1920},
              {"Caffe", "caffe", 148},
              {"MXNet", "mxnet", 480},
              {"Torch", "torch", 152},
              {"TensorFlow", "tensorflow", 592}};
  std::vector<Finding> result;
  for (const auto& [name, policy, paper] : rows) {
    const int64_t ours = deepest(policy, kUnlimited);
    result.push_back(
        {"table4", name, "depth", paper, ours > 0 ? std::optional(static_cast<double>(ours)) : std::nullopt, "layers",
         ours > 0 ? "simulated: ResNet 6-32-n-6 at batch 16, 11.2 GiB with the weights, host memory unlimited"
                  : "simulated: ResNet 6-32-n-6 at batch 16 does not fit for any n"});
  }
  return result;
}

}  // namespace plimsoll
