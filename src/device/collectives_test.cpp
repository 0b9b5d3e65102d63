// AllReduce by ranks that are threads: the mean in the order of the ranks, whatever is taken together.
#include "device/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "plimsoll/ops.h"
#include "tests/support/local_transport.h"

namespace plimsoll {
namespace {

using testing::as_ranks;

struct Gradients {
  Graph graph;
  std::vector<OpId> ops;
};

Gradients gradients_of(const std::vector<int64_t>& sizes, int ranks, bool scaled) {
  Gradients g;
  TensorId scale;
  if (scaled) scale = g.graph.add_source("scale", {}, DType::f32, Role::hyperparameter);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string name = "w" + std::to_string(i);
    const TensorId parameter = g.graph.add_source(name, {sizes[i]}, DType::f32, Role::parameter);
    const TensorId gradient = g.graph.add_source(name + "/gradient", {sizes[i]}, DType::f32, Role::gradient);
    Attributes attributes{{"ranks", int64_t{ranks}}};
    std::vector<TensorId> inputs = {parameter, gradient};
    if (scaled) {
      attributes.set("scaled", int64_t{1});
      inputs.push_back(scale);
    }
    g.ops.push_back(g.graph.add_op("AllReduce", name + "/all_reduce", name, inputs, attributes, Phase::update));
  }
  return g;
}

// Of rank `rank`; values of many sizes, so that another order gives other bits.
std::vector<float> values(int64_t size, int rank, size_t tensor) {
  std::mt19937 random(static_cast<uint32_t>(1000 * rank + tensor));
  std::normal_distribution<float> draw(0, 1);
  std::vector<float> result(size);
  for (float& x : result) x = draw(random) * std::exp(8 * draw(random));
  return result;
}

using Tensors = std::vector<std::vector<float>>;

Tensors expected(const std::vector<int64_t>& sizes, int ranks) {
  Tensors result;
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::vector<float> sum = values(sizes[i], 0, i);
    for (int r = 1; r < ranks; ++r) {
      const std::vector<float> x = values(sizes[i], r, i);
      for (int64_t k = 0; k < sizes[i]; ++k) sum[k] += x[k];
    }
    for (float& x : sum) x *= 1.0F / static_cast<float>(ranks);
    result.push_back(std::move(sum));
  }
  return result;
}

// What one rank has after kernels of so many ops each; in place where `in_place`.
Tensors reduced(Communicator& communicator, const Device& device, const Gradients& g, const std::vector<int64_t>& sizes,
                size_t together, bool in_place, float scale, bool scaled) {
  Tensors in, out;
  for (size_t i = 0; i < sizes.size(); ++i) {
    in.push_back(values(sizes[i], communicator.rank(), i));
    out.emplace_back(sizes[i], 7.0F);
  }
  for (size_t first = 0; first < sizes.size(); first += together) {
    const size_t count = std::min(together, sizes.size() - first);
    std::vector<void*> inputs, outputs;
    for (size_t i = first; i < first + count; ++i) {
      inputs.push_back(nullptr);  // the parameter is not read
      inputs.push_back(in[i].data());
      if (scaled) inputs.push_back(&scale);
      outputs.push_back(in_place ? in[i].data() : out[i].data());
    }
    const auto kernel = device.make_collective(g.graph, std::span(g.ops).subspan(first, count));
    EXPECT_EQ(kernel->workspace().count, 0);
    kernel->bind(inputs, outputs, nullptr);
    kernel->run();
  }
  return in_place ? in : out;
}

TEST(AllReduce, IsTheMeanInTheOrderOfTheRanksWhateverIsTakenTogether) {
  const int64_t message = kMessageBytes.count / static_cast<int64_t>(sizeof(float));
  const std::vector<int64_t> sizes = {1, 5, 1000, message - 700, 3, message, 2, 2 * message + 17, 33};
  for (const int ranks : {1, 2, 3, 5}) {
    const Tensors wanted = expected(sizes, ranks);
    as_ranks(ranks, [&](const std::shared_ptr<Communicator>& communicator) {
      const auto device = with_ranks(open_device("cpu", 1), {.ranks = ranks}, communicator);
      const Gradients g = gradients_of(sizes, ranks, false);
      for (const size_t together : {size_t{1}, size_t{2}, sizes.size()}) {
        for (const bool in_place : {true, false}) {
          EXPECT_TRUE(reduced(*communicator, *device, g, sizes, together, in_place, 1, false) == wanted)
              << ranks << " ranks, " << together << " together, rank " << communicator->rank();
        }
      }
    });
  }
}

TEST(AllReduce, SendsNothingBeforeTheLastBatchOfAStep) {
  const std::vector<int64_t> sizes = {10, 20};
  testing::PostOffice office(2);
  as_ranks(
      2,
      [&](const std::shared_ptr<Communicator>& communicator) {
        const auto device = with_ranks(open_device("cpu", 1), {.ranks = 2}, communicator);
        const Gradients g = gradients_of(sizes, 2, true);
        communicator->barrier();
        communicator->barrier();
        const size_t before = office.data_bytes_sent();
        EXPECT_THAT(reduced(*communicator, *device, g, sizes, 2, false, -1, true)[1], ::testing::Each(0.0F));
        EXPECT_EQ(office.data_bytes_sent(), before);
        communicator->barrier();
        EXPECT_TRUE(reduced(*communicator, *device, g, sizes, 2, false, 0.25F, true) == expected(sizes, 2));
      },
      std::chrono::seconds(60), &office);
}

TEST(AllReduce, IsRefusedOnADeviceThatIsAloneOrForOtherRanks) {
  const Gradients g = gradients_of({4}, 3, false);
  const auto code_of = [&](const Device& device) {
    try {
      device.make_collective(g.graph, g.ops);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code_of(*open_device("cpu", 1)), ErrorCode::unsupported);
  EXPECT_EQ(code_of(*with_ranks(open_device("cpu", 1), {.ranks = 3}, nullptr)), ErrorCode::unsupported);
  EXPECT_EQ(code_of(*with_ranks(open_device("cpu", 1), {.ranks = 2}, nullptr)), ErrorCode::invalid_input);
}

// Tensors whose pieces every rank has, or gets.
struct Divided {
  Graph graph;
  std::vector<OpId> reduce, gather, take;
};

Divided divided_of(const std::vector<int64_t>& sizes, int ranks) {
  Divided d;
  const Attributes ours{{"ranks", int64_t{ranks}}};
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string name = "w" + std::to_string(i);
    const TensorId whole = d.graph.add_source(name, {sizes[i]}, DType::f32, Role::activation);
    const TensorId piece =
        d.graph.add_source(name + "/piece", {shard_elements({sizes[i]}, ranks)}, DType::f32, Role::activation);
    Attributes shaped = ours;
    shaped.set("shape", Shape{sizes[i]});
    d.reduce.push_back(d.graph.add_op("ReduceScatter", name + "/reduce_scatter", name, {whole}, ours));
    d.gather.push_back(d.graph.add_op("AllGather", name + "/all_gather", name, {piece}, shaped));
    d.take.push_back(d.graph.add_op("TakeShard", name + "/take_shard", name, {whole}, ours));
  }
  return d;
}

void run(const Device& device, const Graph& graph, std::span<const OpId> ops, Tensors& in, Tensors& out, size_t first) {
  std::vector<void*> inputs, outputs;
  for (size_t i = 0; i < ops.size(); ++i) {
    inputs.push_back(in[first + i].data());
    outputs.push_back(out[first + i].data());
  }
  const auto kernel = device.make_collective(graph, ops);
  kernel->bind(inputs, outputs, nullptr);
  kernel->run();
}

TEST(Shards, AreOfTheSameMeanAndMakeTheWholeAgain) {
  const int64_t message = kMessageBytes.count / static_cast<int64_t>(sizeof(float));
  const std::vector<int64_t> sizes = {1, 5, 4096, 10000, message - 700, 3, message, 2 * message + 17, 33};
  for (const int ranks : {2, 3, 5}) {
    const Tensors wanted = expected(sizes, ranks);
    as_ranks(ranks, [&](const std::shared_ptr<Communicator>& communicator) {
      const auto device = with_ranks(open_device("cpu", 1), {.ranks = ranks}, communicator);
      const Divided d = divided_of(sizes, ranks);
      for (const size_t together : {size_t{1}, size_t{2}, sizes.size()}) {
        Tensors whole, pieces, taken, back;
        for (size_t i = 0; i < sizes.size(); ++i) {
          whole.push_back(values(sizes[i], communicator->rank(), i));
          pieces.emplace_back(shard_elements({sizes[i]}, ranks), 7.0F);
          taken.emplace_back(pieces.back().size(), 7.0F);
          back.emplace_back(sizes[i], 7.0F);
        }
        for (size_t first = 0; first < sizes.size(); first += together) {
          const size_t count = std::min(together, sizes.size() - first);
          run(*device, d.graph, std::span(d.reduce).subspan(first, count), whole, pieces, first);
          run(*device, d.graph, std::span(d.gather).subspan(first, count), pieces, back, first);
        }
        EXPECT_TRUE(back == wanted) << ranks << " ranks, " << together << " together, rank " << communicator->rank();
        for (size_t i = 0; i < sizes.size(); ++i) {  // what a rank takes of the whole is what it got of the sum
          run(*device, d.graph, std::span(d.take).subspan(i, 1), back, taken, i);
          EXPECT_TRUE(taken[i] == pieces[i]) << sizes[i];
        }
      }
    });
  }
}

// Statistics of many sizes; the last ones' bytes are no multiple of a float's.
struct Statistics {
  Graph graph;
  std::vector<OpId> ops;
};

Statistics statistics_of(const std::vector<int64_t>& sizes, int ranks, bool scaled) {
  Statistics s;
  TensorId scale;
  if (scaled) scale = s.graph.add_source("scale", {}, DType::f32, Role::hyperparameter);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string name = "s" + std::to_string(i);
    const DType dtype = i + 1 == sizes.size() ? DType::u8 : DType::f32;
    std::vector<TensorId> inputs = {s.graph.add_source(name, {sizes[i]}, dtype, Role::statistic)};
    Attributes attributes{{"ranks", int64_t{ranks}}};
    if (scaled) {
      attributes.set("scaled", int64_t{1});
      inputs.push_back(scale);
    }
    s.ops.push_back(s.graph.add_op("Broadcast", name + "/broadcast", name, inputs, attributes, Phase::update));
  }
  return s;
}

// What one rank has after kernels of so many ops each, in place.
Tensors broadcast(Communicator& communicator, const Device& device, const Statistics& s,
                  const std::vector<int64_t>& sizes, size_t together, std::optional<float> scale) {
  Tensors all;
  for (size_t i = 0; i < sizes.size(); ++i) all.push_back(values(sizes[i], communicator.rank(), i));
  for (size_t first = 0; first < sizes.size(); first += together) {
    const size_t count = std::min(together, sizes.size() - first);
    std::vector<void*> inputs, outputs;
    for (size_t i = first; i < first + count; ++i) {
      inputs.push_back(all[i].data());
      if (scale) inputs.push_back(&*scale);
      outputs.push_back(all[i].data());
    }
    const auto kernel = device.make_collective(s.graph, std::span(s.ops).subspan(first, count));
    kernel->bind(inputs, outputs, nullptr);
    kernel->run();
  }
  return all;
}

TEST(Broadcast, GivesAllWhatTheFirstHasWhateverIsTakenTogether) {
  const int64_t message = kMessageBytes.count / static_cast<int64_t>(sizeof(float));
  const std::vector<int64_t> sizes = {1, 5, message - 700, 3, message, 2 * message + 17, 33, 7};
  for (const int ranks : {1, 2, 3, 5}) {
    Tensors wanted;
    for (size_t i = 0; i < sizes.size(); ++i) wanted.push_back(values(sizes[i], 0, i));
    as_ranks(ranks, [&](const std::shared_ptr<Communicator>& communicator) {
      const auto device = with_ranks(open_device("cpu", 1), {.ranks = ranks}, communicator);
      const Statistics s = statistics_of(sizes, ranks, false);
      for (const size_t together : {size_t{1}, size_t{2}, sizes.size()}) {
        Tensors got = broadcast(*communicator, *device, s, sizes, together, {});
        const auto bytes = [](const std::vector<float>& x) { return std::as_bytes(std::span(x)).first(7); };
        EXPECT_TRUE(std::ranges::equal(bytes(got.back()), bytes(wanted.back()))) << "seven bytes";
        got.back() = wanted.back();
        EXPECT_TRUE(got == wanted) << ranks << " ranks, " << together << " together, rank " << communicator->rank();
      }
    });
  }
}

TEST(Broadcast, LeavesEachItsOwnBeforeTheLastBatchOfAStep) {
  const std::vector<int64_t> sizes = {10, 20, 4};
  as_ranks(3, [&](const std::shared_ptr<Communicator>& communicator) {
    const auto device = with_ranks(open_device("cpu", 1), {.ranks = 3}, communicator);
    const Statistics s = statistics_of(sizes, 3, true);
    EXPECT_EQ(broadcast(*communicator, *device, s, sizes, 3, -1.0F)[1], values(20, communicator->rank(), 1));
    EXPECT_EQ(broadcast(*communicator, *device, s, sizes, 3, 0.5F)[1], values(20, 0, 1));
  });
}

}  // namespace
}  // namespace plimsoll
