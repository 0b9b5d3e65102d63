#include "train/given_plan.h"

#include <gtest/gtest.h>

#include "passes/passes.h"
#include "plimsoll/cost.h"

namespace plimsoll {
namespace {

TEST(GivenPlan, FromBeforeGradientsWereSparseIsForTheSameGraph) {
  const auto device = open_device("cpu", 1);
  const PlanRequest request{
      .model = "llama:layers=1,width=16,heads=2,vocab=300,context=8",
      .input = {.batch = 2, .channels = 1, .height = 1, .width = 8, .classes = 300, .training = true},
      .optimizer = {}};
  const Network network = build_model(request.model, request.input);
  std::vector<uint64_t> graphs;
  for (const std::vector<std::string>& off : {{}, std::vector{std::string(kSparseEmbeddingPass)}}) {
    CompileOptions options;
    options.fusion.off = off;
    const Program program = std::get<Program>(compile_training(network, *device, CostTable(), options));
    const SavedPlan saved = saved_plan_from_json(to_json(request, program));
    CompileOptions again;
    TrainOptions training;
    training.plan = "plan.json";
    pin(again, saved, training, device->info());
    const Program repeated = std::get<Program>(compile_training(network, *device, CostTable(), again));
    graphs.push_back(repeated.plan->graph_fingerprint);
    EXPECT_EQ(graphs.back(), program.plan->graph_fingerprint);
  }
  EXPECT_NE(graphs[0], graphs[1]);
}

}  // namespace
}  // namespace plimsoll
