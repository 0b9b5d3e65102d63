// SuperNeurons, section 4.2: the largest batch and the deepest ResNet on a 12 GB card, by layer model.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "papers/layer_plan.h"
#include "papers/papers.h"
#include "plimsoll/models.h"
#include "plimsoll/plan.h"

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

// The largest n that fits, where `low` does and `high` does not; less by up to one part in `precision`.
int64_t bisect(int64_t low, int64_t high, const std::function<bool(int64_t)>& fits, int64_t precision = INT64_MAX) {
  while (high - low > std::max<int64_t>(1, low / precision)) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
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
  return bisect(low, high, fits);
}

std::optional<LayerPlan> plan_by_auto(LayerPlanRequest request) {
  request.policy = "auto";
  request.device = "k40c";
  request.first_that_fits = true;
  return plan_layers(request);
}

// What auto reaches: at most `bound`, and no less than another policy does. To find that nothing fits takes seconds.
constexpr int64_t kPrecision = 100;
int64_t largest_by_auto(const std::function<LayerPlanRequest(int64_t)>& request, int64_t by_another, int64_t bound) {
  const auto fits = [&](int64_t n) { return plan_by_auto(request(n)).has_value(); };
  if (fits(bound)) return bound;
  return bisect(fits(by_another) ? by_another : 0, bound, fits, kPrecision);
}

LayerPlanRequest request_for(const std::string& model, int64_t batch, int64_t size, const std::string& policy,
                             Bytes host) {
  return {.model = model,
          .batch = batch,
          .size = size,
          .policy = policy,
          .layer_model = kResident,
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

constexpr const char* kNoWorkspaces = "no convolution workspaces are counted";

struct Framework {
  const char* name;
  const char* policy;
};
// The paper says of MXNet that what cheap layers make is computed again.
constexpr Framework kFrameworks[] = {
    {"Caffe", "caffe"}, {"MXNet", "mxnet:recompute=mirror"}, {"Torch", "torch"}, {"TensorFlow", "tensorflow"}};

// What the policy keeps, and why that gives another number than the paper's. MXNet and TensorFlow begin where liveness
// alone ends.
std::string reason(std::string_view framework, std::optional<double> paper, int64_t ours, int64_t by_liveness) {
  const bool mxnet = framework == "MXNet";
  if (framework == "Caffe") {
    if (ours == 0) {
      return "every layer's output and gradient stays, which fits for no n; Caffe runs BN and ReLU in place and copies "
             "nothing at forks, so that it needs half of that";
    }
    return fmt::format("every layer's output and gradient stays; {}", kNoWorkspaces);
  }
  if (framework == "Torch") {
    return fmt::format(
        "outputs stay to the end, gradients only while they are read; Torch's modules keep theirs unless "
        "they are shared, and {}",
        kNoWorkspaces);
  }
  const std::string rule = mxnet ? "what cheap layers make is computed again"
                                 : "whatever must is swapped to the host, as soon as it was used";
  if (!paper) return rule;
  if (*paper < static_cast<double>(by_liveness)) {
    return fmt::format("{}; the paper's is less than liveness alone gives, {}, where {}", rule, by_liveness,
                       kNoWorkspaces);
  }
  return fmt::format("{}; the paper's lies between liveness alone, {}, and this: it {} less", rule, by_liveness,
                     mxnet ? "computed" : "swapped");
}

// A row of the table: its network, and the batches that the paper prints.
struct Measured {
  const char* name;
  const char* model;
  int64_t size;
  std::optional<double> frameworks[4];
  double superneurons;
};
constexpr Measured kNetworks[] = {
    {"AlexNet", "alexnet", 227, {768, 768, 1024, 1408}, 1792}, {"VGG16", "vgg16", 224, {48, 64, 48, 80}, 224},
    {"InceptionV4", "inception4", 299, {16, {}, {}, 64}, 240}, {"ResNet50", "resnet50", 227, {24, 80, 32, 128}, 384},
    {"ResNet101", "resnet101", 227, {16, 48, 16, 80}, 256},    {"ResNet152", "resnet152", 227, {16, 32, 16, 48}, 176}};

Finding row_of_table5(const Measured& n, std::string quantity, std::optional<double> paper, int64_t ours,
                      std::string note) {
  return {"table5",
          n.name,
          std::move(quantity),
          paper,
          static_cast<double>(ours),
          "images",
          "simulated: " + std::move(note)};
}
std::function<LayerPlanRequest(int64_t)> requests(const Measured& n, const std::string& policy, Bytes host) {
  return [&n, policy, host](int64_t b) { return request_for(n.model, b, n.size, policy, host); };
}

}  // namespace

std::vector<Finding> superneurons_table5() {
  return findings_of(std::size(kNetworks), [](size_t i) {
    const Measured& n = kNetworks[i];
    std::vector<Finding> rows;
    auto add = [&](std::string quantity, std::optional<double> paper, int64_t ours, std::string note) {
      rows.push_back(row_of_table5(n, std::move(quantity), paper, ours, std::move(note)));
    };
    auto request = [&](const std::string& policy, Bytes host) { return requests(n, policy, host); };
    const int64_t bounded = largest(request(kCostAware, kHost), 4, 8);
    const int64_t unbounded = largest(request(kCostAware, kUnlimited), 4, 8);
    add("SuperNeurons", n.superneurons, bounded,
        "11.2 GiB, 107 GiB of host memory; more than the paper's because no convolution workspaces are counted and a "
        "checkpoint leaves as soon as it was used" +
            std::string(bounded < unbounded ? "; bound by the host, where FORKs' copies lie as well" : ""));
    add("SuperNeurons, host memory unlimited", {}, unbounded, "checkpoints may take any amount of host memory");
    add("bound by the largest layer", {}, bound_by_largest_layer(n.model, n.size),
        "no plan of these layers has a larger batch");
    const int64_t by_liveness = largest(request("liveness", kHost), 4, 8);
    for (size_t f = 0; f < std::size(kFrameworks); ++f) {
      const int64_t ours = largest(request(kFrameworks[f].policy, kHost), 4, 8);
      add(kFrameworks[f].name, n.frameworks[f], ours, reason(kFrameworks[f].name, n.frameworks[f], ours, by_liveness));
    }
    add("liveness alone", {}, by_liveness, "what MXNet and TensorFlow do first");
    add("MXNet, sublinear", {}, largest(request("mxnet", kHost), 4, 8),
        "all between checkpoints is computed again, every root of n-th value being one (Chen et al. 2016)");
    return rows;
  });
}

std::vector<Finding> superneurons_table5_by_auto() {
  return findings_of(std::size(kNetworks), [](size_t i) {
    const Measured& n = kNetworks[i];
    const int64_t by_superneurons = largest(requests(n, kCostAware, kHost), 4, 8);
    const int64_t unlimited =
        largest_by_auto(requests(n, "auto", kUnlimited), by_superneurons, bound_by_largest_layer(n.model, n.size));
    return std::vector<Finding>{
        row_of_table5(n, "auto", {}, largest_by_auto(requests(n, "auto", kHost), by_superneurons, unlimited),
                      "11.2 GiB, 107 GiB of host memory, weights there too; found to 1 %"),
        row_of_table5(n, "auto, host memory unlimited", {}, unlimited, "weights on the host too; found to 1 %")};
  });
}

namespace {

// ResNet 6-32-n-6 at batch 16.
LayerPlanRequest deep_resnet(int64_t n, const std::string& policy, Bytes host) {
  return request_for(fmt::format("resnet:6-32-{}-6", n), 16, 227, policy, host);
}
int64_t depth_of(int64_t n) { return 3 * (6 + 32 + n + 6) + 2; }

// Where the weights stay in the arena, they and the layer that needs most bound the depth.
int64_t bound_by_weights() {
  auto least = [](int64_t n) {
    const LayerPlanRequest request = deep_resnet(n, "auto", kUnlimited);
    const ModelInput input{.batch = request.batch, .height = request.size, .width = request.size};
    return least_bytes(lower_to_layers(build_model(request.model, input), request.layer_model), false).count;
  };
  const int64_t of_four = least(4), of_eight = least(8);  // a unit more is so many bytes more
  return 4 + (kUsable.count - of_four) * 4 / (of_eight - of_four);
}

// With the weights on the host too, its memory alone bounds the depth: deeper until less than 1 % of it would be left.
// These plans have up to a hundred thousand steps, so few are made.
int64_t deepest_with_weights_moved(int64_t n) {
  int64_t low = 1, high = 0;  // fits, does not fit; 0: not known
  while (n - low > low / kPrecision) {
    const std::optional<LayerPlan> plan = plan_by_auto(deep_resnet(n, "auto", kHost));
    (plan ? low : high) = n;
    if (high > 0) {
      n = low + (high - low) / 2;
    } else if (plan->plan.predicted.recompute_steps == 0) {  // the host has room for what need not lie there
      n = 2 * low;
    } else {
      n = static_cast<int64_t>(0.995 * static_cast<double>(low) * static_cast<double>(kHost.count) /
                               static_cast<double>(plan->host_bytes().count));
    }
  }
  return low;
}

Finding row_of_table4(const char* row, std::optional<double> paper, int64_t n, std::string note) {
  return {"table4",
          row,
          "depth",
          paper,
          n > 0 ? std::optional(static_cast<double>(depth_of(n))) : std::nullopt,
          "layers",
          "simulated: " + std::move(note)};
}

int64_t deepest_by(const std::string& policy, int64_t bound) {
  if (plan_layers(deep_resnet(bound, policy, kUnlimited))) return bound;
  return largest([&](int64_t n) { return deep_resnet(n, policy, kUnlimited); }, 2, 4);
}

}  // namespace

std::vector<Finding> superneurons_table4() {
  std::vector<Finding> rows;
  auto add = [&](const char* row, std::optional<double> paper, int64_t n, std::string note) {
    rows.push_back(row_of_table4(row, paper, n, std::move(note)));
  };
  const int64_t bound = bound_by_weights();
  auto deepest = [&](const std::string& policy) { return deepest_by(policy, bound); };
  const int64_t by_superneurons = deepest(kCostAware);
  add("SuperNeurons", 1920, by_superneurons,
      "ResNet 6-32-n-6 at batch 16, 11.2 GiB with the weights, host memory unlimited; more than the paper's because no "
      "convolution workspaces are counted and a checkpoint leaves as soon as it was used");
  const double paper[] = {148, 480, 152, 592};
  const int64_t by_liveness = deepest("liveness");
  for (size_t f = 0; f < std::size(kFrameworks); ++f) {
    const int64_t n = deepest(kFrameworks[f].policy);
    add(kFrameworks[f].name, paper[f], n, reason(kFrameworks[f].name, paper[f], n, depth_of(by_liveness)));
  }
  add("liveness alone", {}, by_liveness, "what MXNet and TensorFlow do first");
  add("MXNet, sublinear", {}, deepest("mxnet"),
      "all between checkpoints is computed again, every root of n-th value being one (Chen et al. 2016)");
  return rows;
}

std::vector<Finding> superneurons_table4_by_auto() {
  const int64_t bound = bound_by_weights();
  auto on_device = [](int64_t n) {
    LayerPlanRequest request = deep_resnet(n, "auto", kUnlimited);
    request.states_stay = true;
    return request;
  };
  const int64_t by_auto = largest_by_auto(on_device, deepest_by(kCostAware, bound), bound);
  return {row_of_table4("auto, weights on the device", {}, by_auto,
                        "host memory unlimited; weights, gradients and momentum stay in the arena and bound the depth"),
          row_of_table4("auto, weights moved", {}, deepest_with_weights_moved(by_auto),
                        "107 GiB of host memory, which alone bound the depth; found to 1 %")};
}

}  // namespace plimsoll
