// Convolutions of one's own, without a network: measures the kernels of two layers, asks for the fastest way to run
// each pass within 1 MiB of workspace, divides one total among all passes, and runs one of the choices.
#include <cstdio>
#include <vector>

#include "plimsoll/kernels.h"

using namespace plimsoll;

int main() {
  const std::vector<Convolution> layers = convolutions_from_csv(
      "width,height,channels,batch,filters,kernel_width,kernel_height,pad_width,pad_height\n"
      "14,14,32,16,32,3,3,1,1\n"
      "7,7,64,16,64,3,3,1,1\n",
      "layers");
  const std::unique_ptr<Device> device = open_device("cpu");
  CostTable costs;  // CostDatabase keeps what was measured from one run to the next
  measure_convolutions(layers, *device, costs, {.seconds_per_kernel = 0.002, .batches = BatchSizes::power_of_two});

  // One limit for each (WR).
  for (const Convolution& layer : layers) {
    for (ConvolutionPass pass : kConvolutionPasses) {
      const auto choice = fastest_convolution(layer, pass, *device, costs, 1_MiB, BatchSizes::power_of_two);
      if (!choice) return 1;
      std::printf("%-28s %-17s %7.3f ms %10s  %s\n", to_string(layer).c_str(), std::string(to_string(pass)).c_str(),
                  choice->configuration.time_ms, to_string(choice->configuration.workspace).c_str(),
                  choice->kernel.name.c_str());
    }
  }

  // One total for all (WD).
  std::vector<std::vector<Configuration>> fronts;
  for (const Convolution& layer : layers) {
    for (ConvolutionPass pass : kConvolutionPasses) {
      fronts.emplace_back();
      for (const ConvolutionChoice& choice : convolution_front(layer, pass, *device, costs, BatchSizes::power_of_two)) {
        fronts.back().push_back(choice.configuration);
      }
    }
  }
  const auto division = divide_workspace(fronts, 6_MiB);
  if (!division) return 1;
  std::printf("6 MiB for all: %.3f ms with %s\n", division->time_ms, to_string(division->workspace).c_str());

  // Running a choice: tensors in the layouts that it wants, then bind and run.
  const auto choice =
      fastest_convolution(layers[0], ConvolutionPass::forward, *device, costs, 1_MiB, BatchSizes::power_of_two);
  Graph graph = convolution_graph(layers[0]);
  const Op& op = graph.op(convolution_op(ConvolutionPass::forward));
  for (size_t i = 0; i < op.inputs.size(); ++i) graph.tensor(op.inputs[i]).layout = choice->kernel.inputs[i];
  graph.tensor(op.outputs[0]).layout = choice->kernel.outputs[0];
  const std::unique_ptr<Kernel> kernel = make_kernel(*device, graph, op, choice->kernel.name);
  if (kernel->workspace() > 1_MiB) return 1;
  const std::unique_ptr<Arena> arena = device->take_arena(16_MiB);
  Bytes used;
  const auto place = [&](Bytes bytes) -> void* {
    return arena->base() + std::exchange(used, align_up(used + bytes, 64)).count;
  };
  void* const inputs[] = {place(graph.tensor(op.inputs[0]).bytes()), place(graph.tensor(op.inputs[1]).bytes())};
  void* const outputs[] = {place(graph.tensor(op.outputs[0]).bytes())};
  kernel->bind(inputs, outputs, place(kernel->workspace()));
  kernel->run();
  std::printf("ran %s\n", choice->kernel.name.c_str());
}
