// One thing that every device must do: an op on given inputs. A case builds a small graph whose last op is the one
// under test; the ops before it, run by their reference kernels, make inputs that only they can make (an index, a
// mask).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/graph.h"
#include "plimsoll/ops.h"

namespace plimsoll::conformance {

// Builds the graph of a case and remembers what its sources hold, in row-major order.
class CaseBuilder {
 public:
  explicit CaseBuilder(uint64_t seed) : random_(seed) {}

  TensorId normal(Shape shape, double mean = 0, double deviation = 1) {
    std::normal_distribution<float> draw(static_cast<float>(mean), static_cast<float>(deviation));
    return fill<float>(std::move(shape), DType::f32, [&](int64_t) { return draw(random_); });
  }
  TensorId uniform(Shape shape, double low, double high) {
    std::uniform_real_distribution<float> draw(static_cast<float>(low), static_cast<float>(high));
    return fill<float>(std::move(shape), DType::f32, [&](int64_t) { return draw(random_); });
  }
  TensorId scalar(double value) {
    return fill<float>({}, DType::f32, [&](int64_t) { return static_cast<float>(value); });
  }
  TensorId number(int64_t value) {
    return fill<int64_t>({}, DType::i64, [&](int64_t) { return value; });
  }
  // The seed of a draw, and where it is not 0 the number of the part of a batch that follows it.
  TensorId seed(int64_t seed, int64_t part) {
    if (part == 0) return number(seed);
    return fill<int64_t>({2}, DType::i64, [&](int64_t i) { return i == 0 ? seed : part; });
  }
  TensorId labels(int64_t count, int64_t classes, bool some_missing) {
    return fill<int32_t>({count}, DType::i32, [&](int64_t i) {
      return some_missing && i % 3 == 2 ? -1 : static_cast<int32_t>(random_() % static_cast<uint64_t>(classes));
    });
  }
  // Whole numbers in [low, high).
  TensorId integers(Shape shape, DType dtype, int64_t low, int64_t high) {
    const auto draw = [&](int64_t) {
      return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low));
    };
    switch (dtype) {
      case DType::u8: return fill<uint8_t>(std::move(shape), dtype, draw);
      case DType::i32: return fill<int32_t>(std::move(shape), dtype, draw);
      default: return fill<int64_t>(std::move(shape), DType::i64, draw);
    }
  }
  TensorId wide_labels(int64_t count, int64_t classes, int64_t ignored) {  // a third of them is `ignored`
    return fill<int64_t>({count}, DType::i64, [&](int64_t i) {
      return i % 3 == 2 ? ignored : static_cast<int64_t>(random_() % static_cast<uint64_t>(classes));
    });
  }
  TensorId bytes(Shape shape, int chance) {  // 1 with this chance of ten, else 0
    return fill<uint8_t>(std::move(shape), DType::u8,
                         [&](int64_t) { return static_cast<uint8_t>(random_() % 10 < static_cast<uint64_t>(chance)); });
  }
  // An op's outputs.
  std::vector<TensorId> op(std::string_view type, std::vector<TensorId> inputs, Attributes attributes = {}) {
    const OpId id =
        graph.add_op(type, "op" + std::to_string(graph.op_count()), "layer", std::move(inputs), std::move(attributes));
    return graph.op(id).outputs;
  }
  const Shape& shape(TensorId id) const { return graph.tensor(id).shape; }

  Graph graph;
  std::map<TensorId, std::vector<std::byte>> sources;

 private:
  template <class T, class Draw>
  TensorId fill(Shape shape, DType dtype, Draw draw) {
    std::vector<T> values(element_count(shape));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(draw(static_cast<int64_t>(i)));
    const TensorId id =
        graph.add_source("source" + std::to_string(graph.tensor_count()), std::move(shape), dtype, Role::input);
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    sources[id] = std::move(bytes);
    return id;
  }

  std::mt19937_64 random_;
};

struct Case {
  std::string type;  // of the op under test, the last one built
  std::string text;  // "2x16x9x7 3x3 pad 1"
  std::function<void(CaseBuilder&)> build;
};

}  // namespace plimsoll::conformance
