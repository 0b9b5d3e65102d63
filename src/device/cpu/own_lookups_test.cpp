// What reads the gradient of an embedding's table by its lookups gives the bits of what reads it whole.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

#include "plimsoll/device.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

struct Operand {
  Shape shape;
  DType dtype = DType::f32;
  std::vector<std::byte> elements;

  friend bool operator==(const Operand&, const Operand&) = default;
};
template <class T>
Operand operand(Shape shape, DType dtype, const std::vector<T>& values) {
  Operand result{std::move(shape), dtype, std::vector<std::byte>(values.size() * sizeof(T))};
  std::memcpy(result.elements.data(), values.data(), result.elements.size());
  return result;
}
Operand scalar(float value) { return operand<float>({}, DType::f32, {value}); }
Operand number(int64_t value) { return operand<int64_t>({}, DType::i64, {value}); }

// The outputs of an op, by the device's kernel; those that must lie in an input's bytes do.
std::vector<Operand> run(const Device& device, const std::string& type, std::vector<Operand> inputs,
                         const Attributes& attributes) {
  Graph graph;
  std::vector<TensorId> sources;
  for (const Operand& input : inputs)
    sources.push_back(graph.add_source(fmt::format("x{}", sources.size()), input.shape, input.dtype, Role::input));
  const Op& op = graph.op(graph.add_op(type, "op", "op", sources, attributes));
  std::vector<Operand> outputs;
  std::vector<void*> in, out;
  for (Operand& input : inputs) in.push_back(input.elements.data());
  for (TensorId id : op.outputs) {
    const Tensor& tensor = graph.tensor(id);
    outputs.push_back({tensor.shape, tensor.dtype, std::vector<std::byte>(static_cast<size_t>(tensor.bytes().count))});
  }
  for (Operand& output : outputs) out.push_back(output.elements.data());
  std::vector<InPlace> required;
  for (const InPlace& pair : op.type->in_place(graph, op)) {
    if (!pair.required) continue;
    required.push_back(pair);
    out[pair.output] = in[pair.input];
  }
  const auto kernel = device.make_kernel(graph, op, device.kernels(graph, op, LayoutFamily::plain)[0].name, 0);
  std::vector<std::byte> workspace(static_cast<size_t>(kernel->workspace().count));
  kernel->bind(in, out, workspace.data());
  kernel->run();
  for (const InPlace& pair : required) outputs[pair.output].elements = inputs[pair.input].elements;
  return outputs;
}

class Drawn {
 public:
  explicit Drawn(uint64_t seed) : random_(seed) {
    const bool wide = draw(0, 3) == 0;
    table_ = {draw(1, wide ? 6 : 400), draw(1, wide ? 9000 : 90)};
    rows_ = draw(1, 300);
    lookups_ = {rows_, table_[1]};
    const int64_t used = draw(1, table_[0]);  // of the table's rows: so many are looked up more or less often
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < rows_; ++i) ids.push_back(draw(0, draw(0, 1) == 0 ? used - 1 : (used - 1) / 8));
    indices_ = operand({rows_}, DType::i64, ids);
    dy_ = floats(lookups_);
    if (draw(0, 2) == 0) padding_ = draw(0, table_[0] - 1);
  }
  int64_t draw(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random_); }
  Operand floats(const Shape& shape, float low = -1) {
    std::uniform_real_distribution<float> number(low, 1);
    std::vector<float> values;
    for (int64_t i = 0; i < element_count(shape); ++i) values.push_back(number(random_));
    return operand(shape, DType::f32, values);
  }
  Operand of_table(float low = -1) { return floats(table_, low); }

  std::mt19937_64 random_;
  Shape table_, lookups_;
  int64_t rows_ = 1, padding_ = -1;
  Operand dy_, indices_;
};

class OwnLookups : public ::testing::TestWithParam<int> {
 protected:
  // For some drawn tables: body(drawn, the whole gradient, the attributes of ops that make it themselves).
  template <class Body>
  void for_each_table(const Body& body) {
    for (uint64_t seed = 1; seed <= 60; ++seed) {
      SCOPED_TRACE(fmt::format("seed {}", seed));
      Drawn drawn(seed);
      const Attributes attributes{{"rows", drawn.table_[0]}, {"padding_index", drawn.padding_}};
      body(drawn, run(*device_, "EmbeddingBackward", {drawn.dy_, drawn.indices_}, attributes)[0], attributes);
      if (HasFailure()) return;
    }
  }
  const std::unique_ptr<Device> device_ = open_device("cpu", GetParam());
};

TEST_P(OwnLookups, HaveTheNormOfTheWholeGradient) {
  for_each_table([&](Drawn& drawn, const Operand& whole, const Attributes& attributes) {
    EXPECT_EQ(run(*device_, "EmbeddingGradientNorm", {drawn.dy_, drawn.indices_}, attributes),
              run(*device_, "GradientNorm", {whole}, {}));
  });
}

TEST_P(OwnLookups, AreAddedAsTheWholeGradientIs) {
  for_each_table([&](Drawn& drawn, const Operand& whole, const Attributes& attributes) {
    const Operand x = drawn.of_table(), other = drawn.of_table();
    EXPECT_EQ(run(*device_, "EmbeddingAddGradient", {x, drawn.dy_, drawn.indices_}, attributes),
              run(*device_, "Add", {x, whole}, {}));
    for (const int64_t count : {0, 1}) {
      EXPECT_EQ(run(*device_, "EmbeddingAccumulateGradient", {other, drawn.dy_, x, number(count), drawn.indices_},
                    attributes),
                run(*device_, "AccumulateGradient", {other, whole, x, number(count)}, {}));
    }
  });
}

TEST_P(OwnLookups, UpdateAsTheWholeGradientDoes) {
  for_each_table([&](Drawn& drawn, const Operand& whole, const Attributes&) {
    const Operand w = drawn.of_table(), m = drawn.of_table(), v = drawn.of_table(0);
    const float scales[] = {1, 0.3F, 1e-30F, std::numeric_limits<float>::infinity()};  // 1: none is given
    const float by = scales[drawn.draw(0, 3)];
    const Operand scaled = by == 1 ? whole : run(*device_, "ScaleGradient", {whole, scalar(by)}, {})[0];
    const auto expect_same = [&](const std::string& type, std::vector<Operand> inputs, Attributes settings) {
      inputs[1] = scaled;
      const auto expected = run(*device_, type, inputs, settings);
      inputs[1] = drawn.dy_;
      if (by != 1) inputs.push_back(scalar(by));
      inputs.push_back(drawn.indices_);
      settings.set("scaled", int64_t{by != 1});
      settings.set("padding_index", drawn.padding_);
      const auto got = run(*device_, "Embedding" + type, inputs, settings);
      EXPECT_EQ(got, expected) << type << ", scale " << by;
    };
    for (const double decay : {0.0, 0.1}) {
      expect_same("SgdUpdate", {w, {}, scalar(0.1F)}, {{"weight_decay", decay}});
      for (const int64_t nesterov : {0, 1})
        expect_same("SgdUpdate", {w, {}, scalar(0.1F), m},
                    {{"momentum", 0.9}, {"nesterov", nesterov}, {"weight_decay", decay}});
      for (const int64_t decoupled : {0, 1})
        expect_same("AdamUpdate", {w, {}, scalar(0.1F), number(4), m, v},
                    {{"weight_decay", decay}, {"decoupled", decoupled}});
    }
    // What may follow the rate: {learning rate, weight decay, momentum}.
    expect_same("SgdUpdate", {w, {}, operand<float>({3}, DType::f32, {0.1F, 0.2F, 0})}, {{"weight_decay", 0.0}});
  });
}

TEST_P(OwnLookups, LeaveAllAsItIsWhereThereIsNoUpdateYet) {
  Drawn drawn(1);
  const Operand w = drawn.of_table(), m = drawn.of_table();
  const auto got = run(*device_, "EmbeddingSgdUpdate", {w, drawn.dy_, scalar(0.1F), m, scalar(-1), drawn.indices_},
                       {{"momentum", 0.9}, {"scaled", int64_t{1}}});
  EXPECT_EQ(got, (std::vector<Operand>{w, m}));
}

TEST_P(OwnLookups, AreRefusedBeyondTheTable) {
  Drawn drawn(1);
  for (const int64_t index : {int64_t{-1}, drawn.table_[0]}) {
    std::memcpy(drawn.indices_.elements.data(), &index, sizeof index);
    const auto update = [&] {
      run(*device_, "EmbeddingSgdUpdate", {drawn.of_table(), drawn.dy_, scalar(0.1F), drawn.indices_}, {});
    };
    EXPECT_THROW(update(), Error) << index;
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, OwnLookups, ::testing::Values(1, 3));

}  // namespace
}  // namespace plimsoll
