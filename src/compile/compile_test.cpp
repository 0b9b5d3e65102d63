#include "plimsoll/compile.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "kernels/workspace_limits.h"
#include "papers/layer_model.h"
#include "plan/placement/mobility.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

struct CompileCase {
  std::string model;
  int64_t batch;
};

CompileOptions on_paper(std::string policy, Bytes memory = {INT64_MAX}) {
  CompileOptions options{.memory = memory, .policy = std::move(policy)};
  return options;
}

TEST(LayerModel, NoPlanNeedsLessThanItsLowerBound) {
  const auto device = open_device("k40c");
  for (const std::string model : {"alexnet", "vgg16", "resnet50", "inception4", "densenet121"}) {
    for (const int64_t batch : {1, 32}) {
      const Network network = build_model(model, {.batch = batch});
      for (const std::string policy : {"liveness", "superneurons", "auto"}) {
        SCOPED_TRACE(fmt::format("{} {} {}", model, batch, policy));
        const auto roomy = compile_layers(network, {}, *device, CostTable(), on_paper(policy));
        const Program& program = std::get<Program>(roomy);
        EXPECT_GT(program.lower_bound, 0_B);
        EXPECT_LE(program.lower_bound, program.plan->arena);
        if (batch > 1) continue;
        const auto tight = compile_layers(network, {}, *device, CostTable(), on_paper(policy, 1_B));
        EXPECT_EQ(std::get<Infeasible>(tight).lower_bound, program.lower_bound);
        EXPECT_LE(program.lower_bound, std::get<Infeasible>(tight).minimum);
      }
    }
  }
}

TEST(LayerModel, DymemsTransfersWithoutBarriersAreNoSlowerThanVdnnsWith) {
  const auto device = open_device("k40c");
  for (const CompileCase& one :
       {CompileCase{"alexnet", 200}, {"vgg16", 32}, {"resnet50", 32}, {"inception4", 32}, {"densenet121", 32}}) {
    const Network network = build_model(one.model, {.batch = one.batch});
    const auto whole = compile_layers(network, {}, *device, CostTable(), on_paper("liveness"));
    for (const int share : {60, 40}) {
      SCOPED_TRACE(fmt::format("{} {} in {} %", one.model, one.batch, share));
      const Bytes memory{std::get<Program>(whole).plan->arena.count * share / 100};
      const auto with = compile_layers(network, {}, *device, CostTable(), on_paper("vdnn:layers=all", memory));
      if (!std::holds_alternative<Program>(with)) continue;
      const auto without = compile_layers(network, {}, *device, CostTable(), on_paper("dymem", memory));
      ASSERT_TRUE(std::holds_alternative<Program>(without));
      EXPECT_LE(std::get<Program>(without).plan->predicted.step_time_ms,
                std::get<Program>(with).plan->predicted.step_time_ms);
    }
  }
}

// Such an op's output may lie where its input does, in the space of that.
bool is_done_in_place(const Op& op) {
  return layer_kind(op) == LayerKind::activation || layer_kind(op) == LayerKind::join;
}

// The pool has three spaces: movable from its low end, temporary from its high end, and beside it what is reclaimed.
TEST(Gtbm, GroupsTheTensorsOfAPlanByMobility) {
  const auto device = open_device("k40c");
  for (const std::string model : {"alexnet", "resnet50", "inception4"}) {
    SCOPED_TRACE(model);
    CompileOptions options = on_paper("dymem");
    options.placement = "gtbm";
    const auto result = compile_layers(build_model(model, {.batch = 4}), {}, *device, CostTable(), options);
    const Program& program = std::get<Program>(result);
    const ById<TensorId, Mobility> mobility = group_by_mobility(program.network.graph, program.plan->steps);
    std::map<Mobility, std::pair<Bytes, Bytes>> where;  // the lowest and the highest byte of each
    for (const Stay& stay : program.plan->stays) {
      if (stay.is_workspace()) continue;
      const Tensor& tensor = program.network.graph.tensor(stay.tensor);
      if (!tensor.producer.valid() || is_done_in_place(program.network.graph.op(tensor.producer))) continue;
      const Mobility group = mobility[stay.tensor];
      auto& [low, high] = where.try_emplace(group, stay.offset, stay.offset + stay.bytes).first->second;
      low = std::min(low, stay.offset);
      high = std::max(high, stay.offset + stay.bytes);
    }
    ASSERT_EQ(where.size(), model == "alexnet" ? 2U : 3U);  // nothing waits where no layers fork
    for (const auto& [group, bytes] : where) {
      if (group == Mobility::reclaimed) continue;
      EXPECT_GE(where.at(Mobility::reclaimed).first, bytes.second);
    }
  }
}

TEST(LeastMemory, IsEnoughAndOneByteLessIsNotAndWhatDoesNotFitNamesIt) {
  struct One {
    const char *model, *device;
    int64_t batch, size;
  };
  for (const One& one : {One{"densenet:depth=13,growth=6", "titan-x", 4, 32},
                         {"dcgan:width=8", "p100", 2, 64},
                         {"resnet20", "k40c", 2, 32}}) {
    SCOPED_TRACE(one.model);
    const auto device = open_device(one.device);
    const Network network = build_model(one.model, {.batch = one.batch, .height = one.size, .width = one.size});
    CompileOptions options;
    options.name_minimum = true;
    const auto roomy = compile_training(network, *device, CostTable(), options);
    const Bytes least = *std::get<Program>(roomy).minimum;
    options.name_minimum = false;
    options.memory = least;
    EXPECT_TRUE(std::holds_alternative<Program>(compile_training(network, *device, CostTable(), options)));
    for (const Bytes memory : {Bytes{least.count * 4 / 5}, Bytes{least.count / 2}}) {
      options.memory = memory;
      auto result = compile_training(network, *device, CostTable(), options);
      ASSERT_TRUE(std::holds_alternative<Infeasible>(result));
      Infeasible& infeasible = std::get<Infeasible>(result);
      EXPECT_EQ(infeasible.minimum, least);
      EXPECT_TRUE(infeasible.suggestion.starts_with(raise_memory_to(least))) << infeasible.suggestion;
    }
  }
}

TEST(WorkspaceTotal, IsNoSlowerThanALimitForEachOpWhoseSumItIs) {
  const auto device = open_device("cpu", 2);
  for (const std::string model : {"lenet", "vgg11"}) {
    const Network network =
        build_model(model, {.batch = 4, .channels = model == "lenet" ? 1 : 3, .height = 32, .width = 32});
    for (const Bytes limit : {16_KiB, 64_KiB, 1_MiB}) {
      SCOPED_TRACE(fmt::format("{} {}", model, limit.count));
      CompileOptions options{.policy = "liveness", .exact = true};
      options.workspace = limit;
      const auto each = compile_training(network, *device, CostTable(), options);
      if (!std::holds_alternative<Program>(each)) continue;
      const Program& by_limit = std::get<Program>(each);
      options.workspace = {INT64_MAX};
      options.workspace_total = Bytes{};
      for (OpId op{0}; op.index < by_limit.network.graph.op_count(); ++op.index) {
        if (counts_in_total(by_limit.network.graph.op(op)))
          *options.workspace_total += by_limit.kernels[op.index].workspace;
      }
      const auto total = compile_training(network, *device, CostTable(), options);
      ASSERT_TRUE(std::holds_alternative<Program>(total));
      EXPECT_LE(std::get<Program>(total).plan->predicted.step_time_ms,
                by_limit.plan->predicted.step_time_ms * (1 + 1e-9));
    }
  }
}

// VGG's fully connected layers have most of its weights: their updates wait until the link has brought the momenta.
TEST(Simulated, UpdatesOfLargeLayersWait) {
  const auto device = open_device("k40c");
  const Network network = build_model("vgg11", {.batch = 8});
  CompileOptions options{.policy = "liveness"};
  const CostTable costs(probe_rates(*device));
  const Bytes keeping = std::get<Program>(compile_training(network, *device, costs, options)).plan->arena;
  options.memory = {keeping.count * 60 / 100};
  options.tiers = device->info().tiers;
  for (TierInfo& tier : options.tiers) tier.capacity = 8_GiB;
  options.batch_sizes = BatchSizes::undivided;
  const auto ms_by = [&](const std::string& policy) {
    options.policy = policy;
    return std::get<Program>(compile_training(network, *device, costs, options)).plan->predicted.step_time_ms;
  };
  EXPECT_LT(ms_by("auto"), 0.95 * ms_by("auto:order=given"));
}

}  // namespace
}  // namespace plimsoll
