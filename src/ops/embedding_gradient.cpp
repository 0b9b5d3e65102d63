// The gradient of an embedding's table where it never lies whole: as that of the rows that were looked up, `dy`, and their
// indices. Rows that were looked up more than once are summed in the order of the lookups, as by EmbeddingBackward, so that
// the bits are those of the ops that read the gradient whole:
//
//   dy, indices ──> EmbeddingBackward ──> gradient ──> GradientNorm, SgdUpdate, AdamUpdate, AccumulateGradient, Add
//   dy, indices ──> EmbeddingGradientNorm, EmbeddingSgdUpdate, EmbeddingAdamUpdate, EmbeddingAccumulateGradient,
//                   EmbeddingAddGradient
//
// What was not looked up has the gradient 0, and is updated by it: weights decay and moments move, as in PyTorch where its
// embeddings are not `sparse`.
#include <cmath>

#include "ops/families.h"
#include "ops/reference.h"
#include "ops/take.h"
#include "ops/typed.h"

namespace plimsoll {
namespace {

constexpr size_t kGradient = 1;  // the input of updates and sums

// A tensor of the table's shape, in memory of its own.
struct WholeGradient {
  WholeGradient(const Attributes& attributes, const TensorView& dy, const TensorView& indices, Shape table)
      : data(static_cast<size_t>(storage_bytes(table, dy.dtype, {}).count)),
        view{.shape = std::move(table), .dtype = dy.dtype, .data = data.data()} {
    sum_lookups(attributes, dy, indices, view);
  }
  std::vector<std::byte> data;
  TensorView view;
};

// An op that reads the table, its gradient and more, as one that reads `dy` in the place of the gradient, and the indices
// last.
OpType by_lookups(OpType whole) {
  whole.name = "Embedding" + whole.name;
  whole.infer = [infer = whole.infer](const Attributes& attributes, std::span<const Tensor* const> in) {
    if (in.size() < 4) throw Error(ErrorCode::invalid_input, "the indices are missing: they are the last input");
    expect_lookups(attributes, in[0]->shape, *in[kGradient], *in.back());
    Tensor gradient = *in[kGradient];
    gradient.shape = in[0]->shape;
    std::vector<const Tensor*> inputs(in.begin(), in.end() - 1);
    inputs[kGradient] = &gradient;
    return infer(attributes, inputs);
  };
  whole.reference = [reference = whole.reference](const Op& op, std::span<const TensorView> in,
                                                  std::span<const TensorView> out) {
    const WholeGradient gradient(op.attributes, in[kGradient], in.back(), in[0].shape);
    std::vector<TensorView> inputs(in.begin(), in.end() - 1);
    inputs[kGradient] = gradient.view;
    reference(op, inputs, out);
  };
  return whole;
}

OpType embedding_gradient_norm() {
  return {
      .name = "EmbeddingGradientNorm",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            const Shape& rows = in[0]->shape;
            expect_lookups(attributes, {attributes.integer("rows"), rows.empty() ? 1 : rows.back()}, *in[0], *in[1]);
            return std::vector<TensorSpec>{{{}, in[0]->dtype, Role::gradient}};
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work =
          [](const Graph& graph, const Op& op) {
            return Work{3 * static_cast<double>(element_count(graph.tensor(op.inputs[0]).shape)),
                        static_cast<double>(bytes_of(graph, op.inputs).count)};
          },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const WholeGradient gradient(op.attributes, in[0], in[1],
                                         {op.attributes.integer("rows"), in[0].shape.back()});
            double sum = 0;
            for_each_element(gradient.view, [&](int64_t i) { sum += load(gradient.view, i) * load(gradient.view, i); });
            store(out[0], 0, std::sqrt(sum));
          },
  };
}

// To a gradient that is there whole: that of an output layer which is the table, say.
OpType embedding_add_gradient() {
  return {
      .name = "EmbeddingAddGradient",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 3);
            expect_same_dtype(*in[0], *in[kGradient]);
            expect_lookups(attributes, in[0]->shape, *in[kGradient], *in[2]);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0}};
          },
      .work =
          [](const Graph& graph, const Op& op) {
            const Tensor& dy = graph.tensor(op.inputs[kGradient]);
            return Work{2 * static_cast<double>(element_count(dy.shape)), 3 * static_cast<double>(dy.bytes().count)};
          },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const WholeGradient gradient(op.attributes, in[kGradient], in[2], in[0].shape);
            for_each_element(out[0], [&](int64_t i) { store(out[0], i, load(in[0], i) + load(gradient.view, i)); });
          },
  };
}

}  // namespace

std::vector<OpType> embedding_gradient_ops() {
  std::vector<OpType> types{embedding_gradient_norm(), embedding_add_gradient()};
  for (const auto family : {update_ops, accumulate_ops}) {
    for (OpType& whole : family()) types.push_back(by_lookups(std::move(whole)));
  }
  return of_kind(LayerKind::other, std::move(types));
}

}  // namespace plimsoll
