// Batch norm by ranks that are threads, each with its part: against BatchNorm of the whole batch, there and back.
#include "device/channel_collectives.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "device/collectives.h"
#include "plimsoll/autodiff.h"
#include "plimsoll/ops.h"
#include "tests/support/interpreter.h"
#include "tests/support/local_transport.h"

namespace plimsoll {
namespace {

using testing::as_ranks;

struct Form {
  Shape part;  // of one rank
  bool relu = false, residual = false;
};

// y = act(bn(x) + residual), and the gradients of what goes in, from a given dy.
struct Norm {
  Graph graph;
  std::vector<TensorId> inputs, outputs, gradients;  // outputs: y, running mean, running variance
  TensorId dy;
};

std::vector<TensorId> add_inputs(Graph& graph, const Shape& shape, DType dtype, bool residual) {
  std::vector<TensorId> inputs{graph.add_source("x", shape, dtype, Role::input)};
  for (const char* name : {"gamma", "beta", "running_mean", "running_var"})
    inputs.push_back(graph.add_source(name, {shape[1]}, dtype, Role::input));
  if (residual) inputs.push_back(graph.add_source("residual", shape, dtype, Role::input));
  return inputs;
}

void add_gradients(Norm& norm, const Shape& shape, DType dtype) {
  norm.dy = norm.graph.add_source("dy", shape, dtype, Role::input);
  std::vector<TensorId> wanted{norm.inputs[0], norm.inputs[1], norm.inputs[2]};
  if (norm.inputs.size() == 6) wanted.push_back(norm.inputs[5]);
  const Seed seed{norm.outputs[0], norm.dy};
  norm.gradients = append_backward(norm.graph, std::span(&seed, 1), wanted);
}

Attributes attributes_of(const Form& form) {
  return {{"activation", std::string(form.relu ? "relu" : "none")}, {"epsilon", 1e-3}, {"momentum", 0.2}};
}

Norm whole_of(const Form& form, int ranks) {
  Norm norm;
  Shape shape = form.part;
  shape[0] *= ranks;
  norm.inputs = add_inputs(norm.graph, shape, DType::f64, form.residual);
  const OpId op = norm.graph.add_op("BatchNormForward", "norm", "norm", norm.inputs, attributes_of(form));
  norm.outputs = {norm.graph.output(op, 0), norm.graph.output(op, 3), norm.graph.output(op, 4)};
  add_gradients(norm, shape, DType::f64);
  return norm;
}

Norm part_of(const Form& form, int ranks) {
  Norm norm;
  Graph& graph = norm.graph;
  norm.inputs = add_inputs(graph, form.part, DType::f32, form.residual);
  const Attribute of_ranks = int64_t{ranks};
  const OpId moments = graph.add_op("BatchMoments", "moments", "norm", {norm.inputs[0]}, {});
  const OpId all = graph.add_op("CombineMoments", "all", "norm", graph.op(moments).outputs,
                                {{"ranks", of_ranks}, {"count", element_count(form.part) / form.part[1]}});
  std::vector<TensorId> inputs = norm.inputs;
  inputs.insert(inputs.begin() + 5, {graph.output(all, 0), graph.output(all, 1)});
  Attributes attributes = attributes_of(form);
  attributes.set("ranks", of_ranks);
  const OpId op = graph.add_op("SyncBatchNormForward", "norm", "norm", inputs, attributes);
  norm.outputs = {graph.output(op, 0), graph.output(op, 1), graph.output(op, 2)};
  add_gradients(norm, form.part, DType::f32);
  return norm;
}

// Channels lie around 0, 100 or 200, so that squares that are not taken around the mean would lose their digits.
double x_of(int64_t i, int64_t channel) {
  return static_cast<float>(100 * static_cast<double>(channel % 3) + std::sin(3.7 * static_cast<double>(i)));
}

// Rows [first, first + rows) of the whole batch's numbers.
void fill(const Norm& norm, Values& values, int64_t first) {
  const Shape& shape = norm.graph.tensor(norm.inputs[0]).shape;
  const int64_t row = element_count(shape) / shape[0], inner = row / shape[1];
  for (int64_t k = 0; k < element_count(shape); ++k) {
    const int64_t i = first * row + k;
    values[norm.inputs[0]].set(k, x_of(i, i / inner % shape[1]));
    values[norm.dy].set(k, std::cos(1.3 * static_cast<double>(i)) + 0.3);
    if (norm.inputs.size() == 6) values[norm.inputs[5]].set(k, std::sin(0.9 * static_cast<double>(i)));
  }
  for (int64_t c = 0; c < shape[1]; ++c) {
    const double of_channel = static_cast<double>(c);
    values[norm.inputs[1]].set(c, 0.7 + 0.1 * std::sin(of_channel));
    values[norm.inputs[2]].set(c, 0.2 * std::cos(of_channel));
    values[norm.inputs[3]].set(c, of_channel);
    values[norm.inputs[4]].set(c, 1 + of_channel);
  }
}

void run(const Graph& graph, Values& values, const Device& device) {
  for (const OpId id : topological_order(graph)) {
    const Op& op = graph.op(id);
    if (!op.type->is_collective) {
      interpret(graph, values, {&id, 1});
      continue;
    }
    std::vector<void*> inputs, outputs;
    for (const TensorId in : op.inputs) inputs.push_back(values[in].data.data());
    for (const TensorId out : op.outputs) outputs.push_back(values[out].data.data());
    const auto kernel = device.make_kernel(graph, op, device.kernels(graph, op, LayoutFamily::plain).at(0).name, 1);
    kernel->bind(inputs, outputs, nullptr);
    kernel->run();
  }
}

std::vector<float> elements(const Value& value) {
  std::vector<float> result;
  for (int64_t i = 0; i < value.size(); ++i) result.push_back(static_cast<float>(value.at(i)));
  return result;
}

void expect_rows(const Value& part, const Value& whole, int64_t at, double tolerance, const std::string& what) {
  for (int64_t i = 0; i < part.size(); ++i) {
    const double wanted = whole.at(at + i);
    ASSERT_NEAR(part.at(i), wanted, tolerance * (1 + std::abs(wanted))) << what << " at " << i;
  }
}

class SyncBatchNorm : public ::testing::TestWithParam<Form> {};

TEST_P(SyncBatchNorm, IsBatchNormOfTheWholeBatchThereAndBack) {
  const Form form = GetParam();
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    const Norm whole = whole_of(form, ranks);
    Values expected(whole.graph);
    fill(whole, expected, 0);
    interpret(whole.graph, expected);
    const Norm part = part_of(form, ranks);
    std::vector<Values> found(ranks, Values(part.graph));
    as_ranks(ranks, [&](const std::shared_ptr<Communicator>& communicator) {
      const auto device = with_ranks(open_device("cpu", 1), {.ranks = ranks}, communicator);
      Values& mine = found[communicator->rank()];
      fill(part, mine, form.part[0] * communicator->rank());
      run(part.graph, mine, *device);
    });
    // Gradients of parameters are added up over the ranks; the whole batch's come from the same dy.
    for (const size_t k : {size_t{1}, size_t{2}}) {
      Values sum(part.graph);
      const TensorId id = part.gradients[k];
      for (int64_t c = 0; c < form.part[1]; ++c) {
        double all = 0;
        for (int r = 0; r < ranks; ++r) all += found[r][id].at(c);
        sum[id].set(c, all);
      }
      expect_rows(sum[id], expected[whole.gradients[k]], 0, 2e-4, k == 1 ? "dgamma" : "dbeta");
    }
    for (int r = 0; r < ranks; ++r) {
      const int64_t at = r * element_count(form.part);
      expect_rows(found[r][part.outputs[0]], expected[whole.outputs[0]], at, 2e-4, "y");
      expect_rows(found[r][part.gradients[0]], expected[whole.gradients[0]], at, 2e-4, "dx");
      if (form.residual) expect_rows(found[r][part.gradients[3]], expected[whole.gradients[3]], at, 1e-6, "dresidual");
      for (const size_t k : {size_t{1}, size_t{2}}) {
        expect_rows(found[r][part.outputs[k]], expected[whole.outputs[k]], 0, 1e-5, "a running statistic");
        EXPECT_EQ(elements(found[r][part.outputs[k]]), elements(found[0][part.outputs[k]])) << "not the same bits";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, SyncBatchNorm,
                         ::testing::Values(Form{{3, 5, 2, 3}}, Form{{2, 7, 3, 1}, true}, Form{{4, 3}, false, true},
                                           Form{{1, 37, 5, 5}, true, true}, Form{{5, 1, 1, 2}, true}));

// More channels than a message holds go in rounds, and several layers in one kernel.
TEST(ChannelCollectives, SumWhatAllHaveInTheOrderOfTheRanksWhateverTheRounds) {
  constexpr int kRanks = 3;
  for (const int64_t room : {2 * kRanks, 7 * kRanks, 1000 * kRanks}) {
    Graph graph;
    std::vector<OpId> ops;
    for (const int64_t channels : {1, 16, 133}) {
      const std::string name = fmt::format("c{}", channels);
      const TensorId a = graph.add_source(name + "a", {channels}, DType::f32, Role::gradient);
      const TensorId b = graph.add_source(name + "b", {channels}, DType::f32, Role::gradient);
      ops.push_back(graph.add_op("SumOverRanks", name, name, {a, b}, {{"ranks", int64_t{kRanks}}}));
    }
    as_ranks(kRanks, [&](const std::shared_ptr<Communicator>& communicator) {
      const auto wire = open_wire(*open_device("cpu", 1), communicator);
      const std::shared_ptr<float> buffer = wire->take_buffer(room);
      Values values(graph);
      fill_sources(graph, values, communicator->rank());
      std::vector<void*> inputs, outputs;
      for (const OpId id : ops) {
        for (const TensorId in : graph.op(id).inputs) inputs.push_back(values[in].data.data());
        for (const TensorId out : graph.op(id).outputs) outputs.push_back(values[out].data.data());
      }
      const auto kernel = make_channel_collective(graph, ops, *wire, buffer.get(), room);
      kernel->bind(inputs, outputs, nullptr);
      kernel->run();
      for (const OpId id : ops) {
        for (size_t k = 0; k < 2; ++k) {
          const Value& got = values[graph.op(id).outputs[k]];
          std::vector<double> sums(got.size());
          for (int r = 0; r < kRanks; ++r) {
            Values theirs(graph);
            fill_sources(graph, theirs, r);
            for (int64_t c = 0; c < got.size(); ++c) sums[c] += theirs[graph.op(id).inputs[k]].at(c);
          }
          for (int64_t c = 0; c < got.size(); ++c) EXPECT_EQ(got.at(c), static_cast<float>(sums[c]));
        }
      }
    });
  }
}

}  // namespace
}  // namespace plimsoll
