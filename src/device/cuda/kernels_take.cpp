// Embedding, IndexSelect, Index, Gather, and their gradients.
#include <fmt/format.h>

#include <algorithm>

#include "device/cuda/kernels.h"
#include "device/cuda/movement.h"
#include "device/cuda/walk.h"
#include "ops/take.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

bool is_wide(const Tensor& indices) { return indices.dtype == DType::i64; }

// A table of few rows gets its gradient by sums over all places for each row, since a list of most of them is long.
constexpr int64_t kFewRows = 8, kManyPlaces = 256;

// The workspace: a row for each place; in backward ops the lists of places by row of x, or sums.
struct TakePlan {
  Take take;
  MakeRows rows{};
  std::vector<size_t> inputs;  // of the index tensors
  int64_t padding = -1, width = 4;

  int64_t head_at() const { return take.count * static_cast<int64_t>(sizeof(int64_t)); }
  int64_t next_at() const { return head_at() + take.limit * static_cast<int64_t>(sizeof(int32_t)); }
  int64_t sums_at() const { return (head_at() + 255) / 256 * 256; }
  bool has_few_rows() const { return take.outer == 1 && take.limit <= kFewRows && take.count >= kManyPlaces; }
  Pieces gradient() const {
    return pieces_of_values({.n = take.count, .c = take.inner, .to_n = take.inner, .to_c = 1});
  }
  Bytes workspace(bool backward) const {
    if (!backward) return {head_at()};
    const Bytes lists{next_at() + take.count * static_cast<int64_t>(sizeof(int32_t))};
    return has_few_rows() ? std::max(lists, Bytes{sums_at()} + room_for(gradient())) : lists;
  }
};

TakePlan plan_take(const Graph& graph, const Op& op, bool backward) {
  const Tensor& x = graph.tensor(backward ? op.outputs[0] : op.inputs[0]);
  std::vector<const Tensor*> tensors;
  for (size_t i = 1; i < op.inputs.size(); ++i) tensors.push_back(&graph.tensor(op.inputs[i]));
  TakePlan plan;
  plan.width = element_width(x);
  Shape joint = tensors[0]->shape;
  std::vector<int64_t> limits;
  if (op.type->name.starts_with("Embedding")) {
    plan.take = embedding_take(x.shape, tensors[0]->shape);
    plan.padding = backward ? op.attributes.integer("padding_index", -1) : -1;
    limits = {plan.take.limit};
  } else if (op.type->name.starts_with("IndexSelect")) {
    plan.take = index_select_take(x.shape, op.attributes.integer("axis"), tensors[0]->shape[0]);
    limits = {plan.take.limit};
  } else {
    joint = joint_shape(tensors);
    plan.take = index_take(x.shape, tensors.size(), element_count(joint));
    plan.rows.wraps = true;
    limits = x.shape;
  }
  require_dimensions(op, tensors.size());
  if (std::max(plan.take.count, plan.take.limit) > INT32_MAX) {
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}' ({}): CUDA's kernel takes at most {} rows", op.name, op.type->name, INT32_MAX));
  }
  plan.rows.tensors = static_cast<int32_t>(tensors.size());
  for (size_t k = 0; k < tensors.size(); ++k) {
    const std::vector<int64_t> strides = joint_strides(tensors[k]->shape, joint);
    std::vector<MoveLoop> loops;
    int64_t turn = element_count(joint);
    for (size_t d = 0; d < joint.size(); ++d) loops.push_back({joint[d], strides[d], turn /= joint[d]});
    plan.rows.of[k] = {.indices = nullptr,
                       .wide = is_wide(*tensors[k]),
                       .limit = limits[k],
                       .walk = walk_of(op, merged(loops), &MoveLoop::from)};
  }
  return plan;
}

template <bool kBackward>
class TakeKernel final : public CudaKernel {
 public:
  TakeKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), plan_(plan_take(graph, op, kBackward)) {
    workspace_bytes_ = plan_.workspace(kBackward);
  }
  static Bytes workspace_for(const Graph& graph, const Op& op) {
    return plan_take(graph, op, kBackward).workspace(kBackward);
  }

 private:
  void work() override {
    const Take& take = plan_.take;
    MakeRows rows = plan_.rows;
    rows.rows = scratch<int64_t>();
    for (int k = 0; k < rows.tensors; ++k) rows.of[k].indices = input<void>(1 + static_cast<size_t>(k));
    launch(rows, take.count);
    if constexpr (kBackward) {
      if (plan_.has_few_rows() && sum_each_row(rows.rows)) return;
      int32_t* const head = scratch<int32_t>(plan_.head_at());
      int32_t* const next = scratch<int32_t>(plan_.next_at());
      link_rows({.rows = rows.rows, .count = take.count, .padding = plan_.padding}, take.limit, head, next);
      launch(AddRows{.dx = output(0),
                     .dy = input(0),
                     .head = head,
                     .next = next,
                     .limit = take.limit,
                     .count = take.count,
                     .inner = take.inner},
             take.outer * take.limit * take.inner);
    } else {
      const int64_t word = word_bytes(plan_.width, {take.inner}, {input<void>(0), output<void>(0)});
      const int64_t inner = take.inner / (word / plan_.width);
      with_word(word, [&](auto zero) {
        using T = decltype(zero);
        launch(TakeRows<T>{.y = output<T>(0),
                           .x = input<T>(0),
                           .rows = rows.rows,
                           .limit = take.limit,
                           .count = take.count,
                           .inner = inner},
               take.outer * take.count * inner);
      });
    }
  }

  bool sum_each_row(const int64_t* rows) const {
    const int64_t width = plan_.take.inner;
    for (int64_t row = 0; row < plan_.take.limit; ++row) {
      float* const dx = output(0) + row * width;
      if (row == plan_.padding) {
        door().fill(Queue::compute, dx, 0, static_cast<size_t>(width) * sizeof(float));
      } else if (!sum_rows_of(row, rows, input(0), plan_.gradient(), scratch<double>(plan_.sums_at()), dx)) {
        return false;
      }
    }
    return true;
  }

  TakePlan plan_;
};

// x and the indices as loops: all dimensions, and those beside the axis, from x to the indices.
struct GatherLoops {
  std::vector<MoveLoop> all, beside;
  int64_t count = 1, limit = 1, x_step = 1, y_step = 1;
};
GatherLoops gather_loops(const Tensor& x, const Tensor& indices, size_t axis) {
  const std::vector<int64_t> from = strides_of(x), to = strides_of(indices);
  GatherLoops loops{.all = {},
                    .beside = {},
                    .count = indices.shape[axis],
                    .limit = x.shape[axis],
                    .x_step = from[axis],
                    .y_step = to[axis]};
  for (size_t d = 0; d < x.shape.size(); ++d) {
    loops.all.push_back({indices.shape[d], d == axis ? 0 : from[d], to[d]});
    if (d != axis) loops.beside.push_back(loops.all.back());
  }
  loops.all = merged(loops.all);
  loops.beside = merged(loops.beside);
  return loops;
}

class GatherKernel final : public CudaKernel {
 public:
  GatherKernel(const Context& context, const Graph& graph, const Op& op) : CudaKernel(context, graph, op) {
    const Tensor &x = graph.tensor(op.inputs[0]), &indices = graph.tensor(op.inputs[1]);
    const GatherLoops loops = gather_loops(x, indices, op.attributes.integer("axis"));
    width_ = element_width(x);
    wide_ = is_wide(indices);
    limit_ = loops.limit;
    step_ = loops.x_step;
    count_ = element_count(indices.shape);
    walk_ = walk_of(op, loops.all, &MoveLoop::from);
  }

 private:
  void work() override {
    with_width(width_, [&](auto zero) {
      using T = decltype(zero);
      launch(GatherElements<T>{.y = output<T>(0),
                               .x = input<T>(0),
                               .indices = input<void>(1),
                               .wide = wide_,
                               .limit = limit_,
                               .step = step_,
                               .walk = walk_},
             count_);
    });
  }

  int64_t width_ = 4, limit_ = 1, step_ = 1, count_ = 1;
  bool wide_ = false;
  Walk walk_;
};

class GatherBackwardKernel final : public CudaKernel {
 public:
  GatherBackwardKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        loops_(gather_loops(graph.tensor(op.outputs[0]), graph.tensor(op.inputs[1]), op.attributes.integer("axis"))),
        bytes_(graph.tensor(op.outputs[0]).bytes()),
        wide_(is_wide(graph.tensor(op.inputs[1]))),
        x_walk_(walk_of(op, loops_.beside, &MoveLoop::from)),
        y_walk_(walk_of(op, loops_.beside, &MoveLoop::to)) {
    for (const MoveLoop& loop : loops_.beside) lines_ *= loop.size;
  }

 private:
  void work() override {
    door().fill(Queue::compute, output<void>(0), 0, bytes_.count);
    launch(GatherLines{.dx = output(0),
                       .dy = input(0),
                       .indices = input<void>(1),
                       .wide = wide_,
                       .count = loops_.count,
                       .limit = loops_.limit,
                       .x_step = loops_.x_step,
                       .y_step = loops_.y_step,
                       .x_walk = x_walk_,
                       .y_walk = y_walk_},
           lines_);
  }

  GatherLoops loops_;
  Bytes bytes_;
  bool wide_;
  Walk x_walk_, y_walk_;
  int64_t lines_ = 1;
};

template <bool kBackward>
std::vector<KernelSpec> take_specs(const Context& context, const Graph& graph, const Op& op, LayoutFamily family) {
  std::vector<KernelSpec> specs = own_specs_row_major(context, graph, op, family);
  specs[0].workspace = TakeKernel<kBackward>::workspace_for(graph, op);
  return specs;
}

}  // namespace

std::vector<NamedFactory> take_kernels() {
  return {{"Embedding", {take_specs<false>, make_own_any_dtype<TakeKernel<false>>}},
          {"EmbeddingBackward", {take_specs<true>, make_own<TakeKernel<true>>}},
          {"Gather", {own_specs_row_major, make_own_any_dtype<GatherKernel>}},
          {"GatherBackward", {own_specs_row_major, make_own<GatherBackwardKernel>}},
          {"Index", {take_specs<false>, make_own_any_dtype<TakeKernel<false>>}},
          {"IndexBackward", {take_specs<true>, make_own<TakeKernel<true>>}},
          {"IndexSelect", {take_specs<false>, make_own_any_dtype<TakeKernel<false>>}},
          {"IndexSelectBackward", {take_specs<true>, make_own<TakeKernel<true>>}}};
}

}  // namespace plimsoll::cuda
