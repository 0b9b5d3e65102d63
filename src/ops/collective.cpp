// What the ranks of a data parallel training do together. Between a gradient and the update that reads it:
//
//   gradient ──> AllReduce ──> the mean of all ranks' gradients, in the gradient's bytes ──> update
//
// Where what belongs to a parameter is divided among the ranks (ZeRO: Rajbhandari et al., SC 2020), each updates its piece
// (Shard, graph.h):
//
//   gradient ──> ReduceScatter ──> Wait ──> piece of the mean ──┐
//   parameter ──> TakeShard ──> piece ──────────────────────────┴──> update ──> AllGatherParameter ──> Wait ──> parameter.next
//
// or, where the parameter itself is divided, a state that is a piece already:
//
//   piece ──> AllGather ──> parameter ──> forward or backward pass
//
// Running statistics are of each rank's own part of the batches; those of rank 0 are everybody's, as in PyTorch's
// DistributedDataParallel:
//
//   running mean ──> BatchNormForward ──> Broadcast ──> running mean of the next step
//
// Sums run in the order of the ranks, element by element, whatever the messages: ((x0 + x1) + x2) + x3, times one over
// their number. The attribute "ranks" is that number. With the attribute "scaled" the last input is the scale of sums of
// gradients (accumulate.cpp): where it is below 0 there is no update yet, nothing is sent, and what comes out of a
// reduction is meaningless.
//
// A process that is alone computes what ranks with equal pieces and gradients would: the mean is the gradient.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

// Inputs of AllReduce. The parameter is not read: as of every op that changes a state, it says how all of them are laid
// out, which so is the same on all ranks.
constexpr int kReducedParameter = 0, kReducedGradient = 1;

void expect_ranks(const Attributes& attributes) {
  const int64_t ranks = attributes.integer("ranks");
  if (ranks < 1) throw Error(ErrorCode::invalid_input, fmt::format("{} ranks; at least 1 is needed", ranks));
}

// Whether there is a scale, which then is a scalar behind `count` other inputs.
bool expect_scale(const Attributes& attributes, std::span<const Tensor* const> in, size_t count) {
  const bool scaled = attributes.integer("scaled", 0) != 0;
  expect_inputs(in, scaled ? count + 1 : count);
  if (scaled && !in.back()->shape.empty())
    throw Error(ErrorCode::invalid_input, fmt::format("'{}' must be a scalar", in.back()->name));
  return scaled;
}

std::vector<InPlace> nothing_in_place(const Graph&, const Op&) { return {}; }

// Sums are of what the other ranks send.
Work exchange_work(const Graph& graph, const Op& op, TensorId whole, bool sums) {
  const double ranks = static_cast<double>(op.attributes.integer("ranks"));
  const double elements = sums ? static_cast<double>(element_count(graph.tensor(whole).shape)) : 0;
  return Work{elements * (ranks - 1) / ranks, 2 * static_cast<double>(graph.tensor(whole).bytes().count)};
}

// Element i of a piece is element i of the whole, as rank 0 has it; zero behind its end.
void copy_first_piece(std::span<const TensorView> in, std::span<const TensorView> out) {
  const int64_t count = element_count(in[0].shape);
  for_each_element(out[0], [&](int64_t i) { store(out[0], i, i < count ? load(in[0], i) : 0); });
}

OpType all_reduce() {
  return {
      .name = "AllReduce",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_scale(attributes, in, 2);
            expect_same_shape(*in[kReducedParameter], *in[kReducedGradient]);
            expect_same_dtype(*in[kReducedParameter], *in[kReducedGradient]);
            expect_ranks(attributes);
            const Tensor& gradient = *in[kReducedGradient];
            return std::vector<TensorSpec>{{gradient.shape, gradient.dtype, Role::gradient}};
          },
      .gradient = {},
      .in_place =
          [](const Graph& graph, const Op& op) {
            // A sum of gradients stays for the next batch.
            if (graph.tensor(op.inputs[kReducedGradient]).role == Role::optimizer_state) return std::vector<InPlace>{};
            return std::vector<InPlace>{{0, kReducedGradient}};
          },
      .work = [](const Graph& graph,
                 const Op& op) { return exchange_work(graph, op, op.inputs[kReducedGradient], true); },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            for_each_element(out[0], [&](int64_t i) { store(out[0], i, load(in[kReducedGradient], i)); });
          },
      .changes_state = true,
      .is_collective = true,
  };
}

OpType reduce_scatter() {
  return {
      .name = "ReduceScatter",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_scale(attributes, in, 1);
            expect_ranks(attributes);
            const Shape piece{shard_elements(in[0]->shape, attributes.integer("ranks"))};
            return std::vector<TensorSpec>{{piece, in[0]->dtype, Role::gradient}};
          },
      .gradient = {},
      .in_place = nothing_in_place,
      .work = [](const Graph& graph, const Op& op) { return exchange_work(graph, op, op.inputs[0], true); },
      .reference = [](const Op&, std::span<const TensorView> in,
                      std::span<const TensorView> out) { copy_first_piece(in, out); },
      .is_collective = true,
  };
}

// This rank's piece of what all have.
OpType take_shard() {
  return {
      .name = "TakeShard",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            expect_ranks(attributes);
            const Shape piece{shard_elements(in[0]->shape, attributes.integer("ranks"))};
            return std::vector<TensorSpec>{{piece, in[0]->dtype, Role::activation}};
          },
      .gradient = {},
      .in_place = nothing_in_place,
      .work =
          [](const Graph& graph, const Op& op) {
            return Work{0, 2 * static_cast<double>(graph.tensor(op.outputs[0]).bytes().count)};
          },
      .reference = [](const Op&, std::span<const TensorView> in,
                      std::span<const TensorView> out) { copy_first_piece(in, out); },
      .is_of_rank = true,
  };
}

void expect_piece_of(const Tensor& piece, const Shape& whole, int64_t ranks) {
  const int64_t needed = (element_count(whole) + ranks - 1) / ranks;
  if (piece.shape.size() == 1 && piece.shape[0] >= needed) return;
  throw Error(ErrorCode::invalid_input, fmt::format("'{}' is {}, no piece for each of {} ranks of {}", piece.name,
                                                    to_string(piece.shape), ranks, to_string(whole)));
}

// The pieces of all ranks, in their order; what is behind the end of the whole is left out.
OpType all_gather() {
  return {
      .name = "AllGather",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            expect_ranks(attributes);
            const Shape& whole = attributes.integers("shape");
            expect_piece_of(*in[0], whole, attributes.integer("ranks"));
            return std::vector<TensorSpec>{{whole, in[0]->dtype, Role::activation}};
          },
      .gradient = {},
      .in_place = nothing_in_place,
      .work = [](const Graph& graph, const Op& op) { return exchange_work(graph, op, op.outputs[0], false); },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            const int64_t piece = element_count(in[0].shape);
            for_each_element(out[0], [&](int64_t i) { store(out[0], i, load(in[0], i % piece)); });
          },
      .is_collective = true,
  };
}

// Inputs of AllGatherParameter.
constexpr int kGatheredParameter = 0, kGatheredPiece = 1;

OpType all_gather_parameter() {
  return {
      .name = "AllGatherParameter",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_scale(attributes, in, 2);
            expect_ranks(attributes);
            const Tensor& parameter = *in[kGatheredParameter];
            expect_same_dtype(parameter, *in[kGatheredPiece]);
            expect_piece_of(*in[kGatheredPiece], parameter.shape, attributes.integer("ranks"));
            return std::vector<TensorSpec>{{parameter.shape, parameter.dtype, parameter.role}};
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, kGatheredParameter, true}};
          },
      .work = [](const Graph& graph, const Op& op) { return exchange_work(graph, op, op.outputs[0], false); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const bool leaves = op.attributes.integer("scaled", 0) != 0 && load(in.back(), 0) < 0;
            const TensorView& piece = in[kGatheredPiece];
            const int64_t count = element_count(piece.shape);
            for_each_element(out[0], [&](int64_t i) {
              store(out[0], i, leaves ? load(in[kGatheredParameter], i) : load(piece, i % count));
            });
          },
      .changes_state = true,
      .is_collective = true,
  };
}

// What rank 0 has, for all, in the bytes of what they have.
OpType broadcast() {
  return {
      .name = "Broadcast",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_scale(attributes, in, 1);
            expect_ranks(attributes);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype, in[0]->role}};
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0, true}};
          },
      .work = [](const Graph& graph, const Op& op) { return exchange_work(graph, op, op.outputs[0], false); },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            std::memmove(out[0].data, in[0].data, storage_bytes(in[0].shape, in[0].dtype, {}).count);
          },
      .changes_state = true,
      .is_collective = true,
  };
}

// What a collective made, from where it is there at the latest; so what it reads, the other inputs, lies untouched until
// then. In between the messages may be under way.
OpType wait() {
  return {
      .name = "Wait",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            if (in.size() < 2) throw Error(ErrorCode::invalid_input, "there is nothing that was sent");
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype, in[0]->role}};
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0, true}};
          },
      .work = [](const Graph&, const Op&) { return Work{}; },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            if (in[0].data == out[0].data) return;
            for_each_element(out[0], [&](int64_t i) { store(out[0], i, load(in[0], i)); });
          },
      .is_view = true,
  };
}

}  // namespace

std::vector<OpType> collective_ops() {
  return of_kind(LayerKind::other, {all_reduce(), reduce_scatter(), take_shard(), all_gather(), all_gather_parameter(),
                                    broadcast(), wait()});
}

}  // namespace plimsoll
