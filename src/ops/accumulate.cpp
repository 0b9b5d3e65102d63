// Accumulation of gradients over several batches, of which the last one's step updates:
//
//   gradient, sum ──> AccumulateGradient ──> sum.next ──> (GradientNorm) ──> update, which multiplies by a scale
//
// `count` says how many batches the sum has already: with none it is overwritten, whatever it holds. So nobody has to
// clear it.
#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

// Inputs of AccumulateGradient.
constexpr int kOfParameter = 0, kOfGradient = 1, kOfSum = 2, kOfCount = 3;

OpType accumulate_gradient() {
  return {
      .name = "AccumulateGradient",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 4);
            for (const int i : {kOfGradient, kOfSum}) {
              expect_same_shape(*in[kOfParameter], *in[i]);
              expect_same_dtype(*in[kOfParameter], *in[i]);
            }
            if (in[kOfCount]->dtype != DType::i64 || !in[kOfCount]->shape.empty()) {
              throw Error(ErrorCode::invalid_input, "'" + in[kOfCount]->name + "' must be a scalar of i64: a count");
            }
            return std::vector<TensorSpec>{{in[kOfSum]->shape, in[kOfSum]->dtype, in[kOfSum]->role}};
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, kOfSum, true}};
          },
      // The parameter is not read: as of every op that changes a state, it says how all of them are laid out.
      .work =
          [](const Graph& graph, const Op& op) {
            const Tensor& sum = graph.tensor(op.inputs[kOfSum]);
            return Work{static_cast<double>(element_count(sum.shape)), 3 * static_cast<double>(sum.bytes().count)};
          },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            const bool begin = load(in[kOfCount], 0) == 0;
            for_each_element(out[0], [&](int64_t i) {
              store(out[0], i, begin ? load(in[kOfGradient], i) : load(in[kOfSum], i) + load(in[kOfGradient], i));
            });
          },
      .changes_state = true,
  };
}

}  // namespace

std::vector<OpType> accumulate_ops() { return of_kind(LayerKind::other, {accumulate_gradient()}); }

}  // namespace plimsoll
