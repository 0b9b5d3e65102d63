// Builds a small network, plans its training step under a budget, and trains it on the bundled digits.
#include <cstdio>
#include <span>

#include "plimsoll/compile.h"
#include "plimsoll/data.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"

using namespace plimsoll;

int main() {
  Builder net("tiny", {.batch = 64, .channels = 1, .height = 8, .width = 8, .classes = 10});
  TensorId x = net.conv("conv1", net.data(), {.channels = 16, .kernel = 3, .padding = 1, .bias = false});
  x = net.max_pool("pool1", net.relu("relu1", net.batch_norm("bn1", x)), {.kernel = 2, .stride = 2});
  x = net.relu("relu2", net.conv("conv2", x, {.channels = 32, .kernel = 3, .padding = 1}));
  x = net.fully_connected("fc", net.flatten("flatten", net.max_pool("pool2", x, {})), {.channels = 10});
  const Network network = std::move(net).finish_classifier(x);

  const std::unique_ptr<Device> device = open_device("cpu");
  const auto result = compile_training(network, *device, CostTable(), {.memory = 1_MiB});
  if (const auto* infeasible = std::get_if<Infeasible>(&result)) {
    std::puts(to_text(*infeasible).c_str());
    return 3;
  }
  const Program& program = std::get<Program>(result);
  std::printf("arena %s of 1 MiB; every tensor its own memory would be %s\n", to_string(program.plan->arena).c_str(),
              to_string(program.baseline_peak).c_str());

  const Graph& graph = program.network.graph;
  Executor executor(graph, program.plan, *device);
  executor.initialize(/*seed=*/1);
  const float learning_rate[] = {0.05f};
  executor.write(graph.find_tensor("learning_rate"), std::as_bytes(std::span(learning_rate)));
  Loader loader(open_data("digits"), {.batch = 64, .seed = 1});
  float loss = 0;
  for (int step = 0; step < 200; ++step) {
    const Batch& batch = loader.next();
    executor.write(program.network.data, std::as_bytes(batch.data));
    executor.write(program.network.labels, std::as_bytes(batch.labels));
    executor.run_step();
    executor.read(graph.find_tensor("loss"), std::as_writable_bytes(std::span(&loss, 1)));
    if (step % 50 == 0 || step == 199) std::printf("step %3d  loss %.4f\n", step, static_cast<double>(loss));
  }
  return loss < 0.2f ? 0 : 1;
}
