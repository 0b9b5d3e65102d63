// Builds a small network, plans its training step under a budget, and trains it on the bundled digits.
#include <cstdio>

#include "plimsoll/compile.h"
#include "plimsoll/data.h"
#include "plimsoll/models.h"
#include "plimsoll/training_step.h"

using namespace plimsoll;

int main() {
  Builder net("tiny", {.batch = 64, .channels = 1, .height = 8, .width = 8, .classes = 10});
  TensorId x = net.conv("conv1", net.data(), {.channels = 16, .kernel = 3, .padding = 1, .bias = false});
  x = net.max_pool("pool1", net.relu("relu1", net.batch_norm("bn1", x)), {.kernel = 2, .stride = 2});
  x = net.relu("relu2", net.conv("conv2", x, {.channels = 32, .kernel = 3, .padding = 1}));
  x = net.fully_connected("fc", net.flatten("flatten", net.max_pool("pool2", x, {})), {.channels = 10});
  const Network network = std::move(net).finish_classifier(x);

  const std::unique_ptr<Device> device = open_device("cpu");
  auto result = compile_training(network, *device, CostTable(), {.memory = 1_MiB});
  if (const auto* infeasible = std::get_if<Infeasible>(&result)) {
    std::puts(to_text(*infeasible).c_str());
    return 3;
  }
  TrainingStep step(std::get<Program>(std::move(result)), *device);
  const Plan& plan = step.program().plan;
  std::printf("arena %s of 1 MiB; every tensor its own memory would be %s\n", to_string(plan.arena).c_str(),
              to_string(step.program().baseline_peak).c_str());

  step.initialize(/*seed=*/1);
  Loader loader(open_data("digits"), {.batch = 64, .seed = 1});
  for (int i = 0; i < 200; ++i) {
    step.feed(loader.next());
    loader.release();
    step.run(/*learning_rate=*/0.05);
    if (i % 50 == 0 || i == 199) std::printf("step %3d  loss %.4f\n", i, step.loss());
  }
  return step.loss() < 0.2 ? 0 : 1;
}
