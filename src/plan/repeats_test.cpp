#include "plan/repeats.h"

#include <gtest/gtest.h>

#include <set>

#include "plan/route.h"
#include "plimsoll/compile.h"
#include "plimsoll/cost.h"
#include "plimsoll/device.h"
#include "plimsoll/models.h"

namespace plimsoll {
namespace {

// The forward pass of `blocks` equal layers, 8 to 8 channels.
ValueTimeline timeline_of_blocks(int blocks) {
  Builder net("blocks", {.batch = 2, .channels = 8, .height = 8, .width = 8, .classes = 10});
  TensorId x = net.data();
  for (int i = 0; i < blocks; ++i) {
    const std::string n = std::to_string(i);
    x = net.relu("relu" + n, net.conv("conv" + n, x, {.channels = 8, .kernel = 3, .padding = 1, .bias = false}));
  }
  const Network network =
      std::move(net).finish_classifier(net.fully_connected("fc", net.flatten("flat", x), {.channels = 10}));
  const std::unique_ptr<Device> device = open_device("k40c", 1);
  const CostTable costs(probe_rates(*device));
  const Route route = make_route(network.graph);
  const std::vector<KernelChoice> kernels(network.graph.op_count());
  return make_timeline(
      {.graph = network.graph, .route = route, .kernels = kernels, .costs = costs, .device = device->info()});
}

TEST(Repeats, MoreEqualBlocksHaveNoMoreClassesOfValues) {
  const std::vector<int32_t> few = repeated_values(timeline_of_blocks(4)),
                             many = repeated_values(timeline_of_blocks(9));
  EXPECT_LT(few.size(), many.size());
  EXPECT_EQ(std::set<int32_t>(few.begin(), few.end()).size(), std::set<int32_t>(many.begin(), many.end()).size());
}

TEST(Repeats, ValuesOfOneClassAreOfOneSizeAndUsedAsOften) {
  const ValueTimeline timeline = timeline_of_blocks(6);
  const std::vector<int32_t> classes = repeated_values(timeline);
  ASSERT_EQ(classes.size(), timeline.values.size());
  for (size_t a = 0; a < classes.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (classes[a] != classes[b]) continue;
      EXPECT_EQ(timeline.values[a].bytes, timeline.values[b].bytes);
      EXPECT_EQ(timeline.values[a].uses.size(), timeline.values[b].uses.size());
    }
  }
}

}  // namespace
}  // namespace plimsoll
