// Dymem (HPDC 2020) and mu-cuDNN (CLUSTER 2018).
#include "papers/papers.h"
#include "plimsoll/device.h"
#include "plimsoll/lowering.h"
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

}  // namespace plimsoll
