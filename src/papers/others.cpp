// Dymem (HPDC 2020) and mu-cuDNN (CLUSTER 2018).
#include "papers/layer_model.h"
#include "papers/papers.h"
#include "plimsoll/device.h"
#include "plimsoll/kernels.h"
#include "plimsoll/models.h"

namespace plimsoll {

std::vector<Finding> dymem_steps() {
  const Graph graph = lower_to_layers(build_model("resnet32:bn=0", {.batch = 1}));
  return {{"dymem-steps", "ResNet-32", "steps", 190, static_cast<double>(graph.op_count()), "steps",
           "without batch normalization, shortcuts are no layers"}};
}

std::vector<Finding> ucudnn_workspaces() {
  std::vector<Finding> rows;
  for (const auto& [batch, mib] : {std::pair<int64_t, double>{256, 213}, {32, 48.9}}) {
    Graph graph;
    const TensorId x = graph.add_source("x", {batch, 96, 27, 27}, DType::f32, Role::activation);
    const TensorId w = graph.add_source("w", {2, 128, 48, 5, 5}, DType::f32, Role::activation);
    const OpId conv = graph.add_op("ConvForward", "conv2", "conv2", {x, w},
                                   {{"padding", std::vector<int64_t>{2, 2, 2, 2}}, {"groups", int64_t{2}}});
    for (const KernelSpec& spec : open_device("p100")->kernels(graph, graph.op(conv), LayoutFamily::plain)) {
      if (spec.name != "analytic_fft") continue;
      rows.push_back({"ucudnn-workspaces", "AlexNet conv2 forward, batch " + std::to_string(batch), "FFT workspace",
                      mib, static_cast<double>(spec.workspace.count) / (1 << 20), "MiB",
                      "simulated: (N (C + K) + C K) * 32 * 17 * 8 bytes"});
    }
  }
  return rows;
}

namespace {

// A network's convolutions on a simulated P100, each by a kernel within its share or all within one total.
struct Division {
  const Device& device;
  std::vector<Convolution> convolutions;
  CostTable costs{probe_rates(device)};

  size_t kernels() const { return std::size(kConvolutionPasses) * convolutions.size(); }

  double within_shares(Bytes share, BatchSizes batches) const {
    double ms = 0;
    for (const Convolution& convolution : convolutions) {
      for (ConvolutionPass pass : kConvolutionPasses)
        ms += fastest_convolution(convolution, pass, device, costs, share, batches)->configuration.time_ms;
    }
    return ms;
  }

  std::vector<std::vector<Configuration>> fronts(BatchSizes batches) const {
    std::vector<std::vector<Configuration>> fronts;
    for (const Convolution& convolution : convolutions) {
      for (ConvolutionPass pass : kConvolutionPasses) {
        fronts.emplace_back();
        for (ConvolutionChoice& choice : convolution_front(convolution, pass, device, costs, batches)) {
          fronts.back().push_back(std::move(choice.configuration));
        }
      }
    }
    return fronts;
  }
};

}  // namespace

std::vector<Finding> ucudnn_division() {
  const std::string table = "ucudnn-division", simulated = "a simulated P100, whose kernels' times are estimates";
  const std::unique_ptr<Device> device = open_device("p100");
  const Division alexnet{*device, convolutions_of(build_model("alexnet", {.batch = 256}).graph)};
  const Division resnet{*device, convolutions_of(build_model("resnet50", {.batch = 32}).graph)};
  std::vector<Finding> rows{
      {table, "AlexNet", "kernels", 15, static_cast<double>(alexnet.kernels()), "",
       "three a convolution: forward, data, filter"},
      {table, "ResNet-50", "kernels", 159, static_cast<double>(resnet.kernels()), "", "5,088 MiB by 32 MiB a kernel"}};
  const double shares_ms = alexnet.within_shares(8_MiB, BatchSizes::undivided);
  const double total_ms = divide_workspace(alexnet.fronts(BatchSizes::all), 120_MiB)->time_ms;
  rows.push_back(
      {table, "AlexNet, 120 MiB", "speed-up of WD over undivided WR", 1.38, shares_ms / total_ms, "x", simulated});
  const double resnet_shares_ms = resnet.within_shares(16_MiB, BatchSizes::undivided);
  const auto resnet_fronts = resnet.fronts(BatchSizes::power_of_two);
  size_t variables = 0;
  for (const auto& front : resnet_fronts) variables += front.size();
  rows.push_back({table, "ResNet-50, 2,544 MiB", "speed-up of WD over undivided WR", 1.14,
                  resnet_shares_ms / divide_workspace(resnet_fronts, 2544_MiB)->time_ms, "x", simulated});
  rows.push_back(
      {table, "ResNet-50", "variables", 562, static_cast<double>(variables), "", simulated + "; powers of two"});
  return rows;
}

}  // namespace plimsoll
