#include <gtest/gtest.h>

#include "cost/signature.h"
#include "ops/micro_op.h"
#include "plimsoll/cost.h"
#include "plimsoll/ops.h"
#include "tests/support/error_text.h"

namespace plimsoll {
namespace {

// Every op that runs in parts, at a batch.
Graph network(int64_t batch) {
  Graph g;
  const TensorId x = g.add_source("x", {batch, 8, 6, 6}, DType::f32, Role::input);
  const TensorId w = g.add_source("w", {2, 8, 4, 3, 3}, DType::f32, Role::parameter);
  const TensorId b = g.add_source("b", {16}, DType::f32, Role::parameter);
  const Attributes conv{{"padding", std::vector<int64_t>{1, 1, 1, 1}}, {"groups", int64_t{2}}};
  const TensorId y = g.output(g.add_op("ConvForward", "conv", "conv", {x, w, b}, conv));
  const TensorId r = g.output(g.add_op("ReluForward", "relu", "relu", {y}));
  g.add_op("ReluBackward", "relu/backward", "relu", {r, y});
  const Attributes pool{{"kernel", std::vector<int64_t>{2, 2}}, {"stride", std::vector<int64_t>{2, 2}}};
  const OpId p = g.add_op("MaxPoolForward", "pool", "pool", {r}, pool);
  Attributes back = pool;
  back.set("input_size", std::vector<int64_t>{6, 6});
  g.add_op("MaxPoolBackward", "pool/backward", "pool", {g.output(p), g.output(p, 1)}, back);
  Attributes data = conv, weights = conv;
  data.set("input_size", std::vector<int64_t>{6, 6});
  weights.set("kernel", std::vector<int64_t>{3, 3});
  weights.set("bias", int64_t{1});
  g.add_op("ConvBackwardData", "conv/data", "conv", {y, w}, data);
  g.add_op("ConvBackwardWeights", "conv/weights", "conv", {x, y}, weights);
  g.add_op("LrnForward", "lrn", "lrn", {r}, {{"size", int64_t{5}}});
  for (TensorId id : {x, y, r}) g.tensor(id).layout = {"aBcd16b"};
  return g;
}

TEST(MicroOp, HasTheSignatureOfANetworkWithThatBatch) {
  const Graph whole = network(12), small = network(5);
  for (int32_t i = 0; i < whole.op_count(); ++i) {
    const MicroOp micro = micro_op(whole, whole.op({i}), 5);
    EXPECT_EQ(op_signature(micro.graph, micro.graph.op(micro.op)), op_signature(small, small.op({i})));
    check(micro.graph);
  }
}

TEST(MicroOp, WhatDoesNotRunInPartsIsRefused) {
  Graph g;
  const TensorId x = g.add_source("x", {4, 2}, DType::f32, Role::input);
  const OpId sum = g.add_op("Add", "sum", "", {x, x});
  const OpId relu = g.add_op("ReluForward", "relu", "", {x});
  EXPECT_EQ(divisible_batch(g, g.op(sum)), 0);
  EXPECT_EQ(divisible_batch(g, g.op(relu)), 4);
  const auto refusal = [&](OpId op, int64_t batch) {
    return testing::error_text(ErrorCode::invalid_input, [&] { micro_op(g, g.op(op), batch); });
  };
  EXPECT_EQ(refusal(sum, 2), "op 'sum' (Add) does not run in parts");
  EXPECT_EQ(refusal(relu, 5), "op 'relu' (ReluForward) has 4 rows, not 5");
  EXPECT_EQ(refusal(relu, 0), "op 'relu' (ReluForward) has 4 rows, not 0");
}

}  // namespace
}  // namespace plimsoll
