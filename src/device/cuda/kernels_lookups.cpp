#include "device/cuda/kernels_lookups.h"

#include <fmt/format.h>

#include "device/cuda/walk.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

// A norm reads nothing else; the others read the table, or what is as large, before it.
size_t gradient_input(const Op& op) { return op.type->name == "EmbeddingGradientNorm" ? 0 : 1; }

Take lookups_of(const Graph& graph, const Op& op) {
  Shape table = graph.tensor(op.inputs[0]).shape;
  if (gradient_input(op) == 0) table = {op.attributes.integer("rows"), table.back()};
  return embedding_take(table, graph.tensor(op.inputs.back()).shape);
}

int64_t head_at(const Take& take, int64_t begin) { return begin + take.count * static_cast<int64_t>(sizeof(int64_t)); }
int64_t next_at(const Take& take, int64_t begin) {
  return head_at(take, begin) + take.limit * static_cast<int64_t>(sizeof(int32_t));
}

}  // namespace

LookupsKernel::LookupsKernel(const Context& context, const Graph& graph, const Op& op)
    : CudaKernel(context, graph, op),
      take_(lookups_of(graph, op)),
      dy_at_(gradient_input(op)),
      indices_at_(op.inputs.size() - 1),
      padding_(op.attributes.integer("padding_index", -1)) {
  require_row_major(graph, op);
  if (std::max(take_.count, take_.limit) > INT32_MAX) {
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}' ({}): CUDA's kernel takes at most {} rows", op.name, op.type->name, INT32_MAX));
  }
  rows_.tensors = 1;
  rows_.of[0] = {.indices = nullptr,
                 .wide = graph.tensor(op.inputs.back()).dtype == DType::i64,
                 .limit = take_.limit,
                 .walk = walk_of(op, {{take_.count, 1, 1}}, &MoveLoop::from)};
  workspace_bytes_ = workspace_for(graph, op);
}

Bytes LookupsKernel::workspace_for(const Graph& graph, const Op& op) {
  const Take take = lookups_of(graph, op);
  return {next_at(take, kHead) + take.count * static_cast<int64_t>(sizeof(int32_t))};
}

LookupGradient LookupsKernel::gradient() const {
  MakeRows rows = rows_;
  rows.rows = scratch<int64_t>(kHead);
  rows.of[0].indices = input<void>(indices_at_);
  int32_t* const head = scratch<int32_t>(head_at(take_, kHead));
  int32_t* const next = scratch<int32_t>(next_at(take_, kHead));
  launch(rows, take_.count);
  link_rows({.rows = rows.rows, .count = take_.count, .padding = padding_}, take_.limit, head, next);
  return {.dy = input(dy_at_), .head = head, .next = next, .width = take_.inner};
}

}  // namespace plimsoll::cuda
