// A linear layer and its cross entropy by blocks of rows: the logits of a block lie in the workspace, and nowhere else.
// How many labels count only the GPU knows, so all rows are computed, and what does not count gives zeros.
#include <algorithm>
#include <vector>

#include "device/cuda/kernels_loss.h"
#include "device/cuda/row_blocks.h"

namespace plimsoll::cuda {
namespace {

// As many rows as have logits of this size: the weights, which every block reads, are then read seldom enough.
constexpr int64_t kUsualLogits = int64_t{64} << 20;

// Tensor cores want rows of logits to begin at such a multiple, and vocabularies end anywhere.
constexpr int64_t kStrideOfLogits = 32;
// They also want whole fours of classes, so products are made for a multiple of kClassesTogether, and thin ones for the rest. Parts then
// begin at multiples of 64 bytes, as tensors do.
constexpr int64_t kClassesTogether = 16, kLeastDivided = 1024;

struct LinearSizes {
  int64_t rows = 0, width = 0, classes = 0;
  bool transposed = false;  // the weights are [width, classes]
  int64_t divided() const {
    return transposed || width % 4 != 0 || classes % 4 == 0 || classes < kLeastDivided
               ? classes
               : classes / kClassesTogether * kClassesTogether;
  }
  int64_t stride() const { return (classes + kStrideOfLogits - 1) / kStrideOfLogits * kStrideOfLogits; }
};
LinearSizes linear_sizes(const Graph& graph, const Op& op) {
  const Shape &x = graph.tensor(op.inputs[0]).shape, &w = graph.tensor(op.inputs[1]).shape;
  const bool transposed = op.attributes.integer("transposed", 0) != 0;
  return {x[0], x[1], w[transposed ? 1 : 0], transposed};
}

class LinearCrossEntropyKernel final : public CrossEntropyKernel {
 public:
  LinearCrossEntropyKernel(const Context& context, const Graph& graph, const Op& op, std::string_view kernel)
      : CrossEntropyKernel(context, graph, op, 2, linear_sizes(graph, op).classes),
        sizes_(linear_sizes(graph, op)),
        blocks_(row_blocks(context, op, kernel, rows_)) {
    require_row_major(graph, op);
    tells_loss_ = op.type->name != "LinearCrossEntropyBackward";
    const bool backward = op.type->name != "LinearCrossEntropyForward";
    const size_t bias_at = backward ? 4 : 3;
    if (op.inputs.size() > bias_at) bias_at_ = static_cast<int>(bias_at);
    int next = tells_loss_ ? 2 : 0;
    for (const char c : backward ? op.attributes.text("gradients", "") : "") {
      (c == 'x' ? dx_at_ : c == 'w' ? dw_at_ : db_at_) = next++;
    }
    const bool made = (blocks_.tf32 && make_products(sizes_.divided())) || make_products(sizes_.classes);
    if (!made) throw_no_kernel(op, kernel);
    lay_out_workspace();
  }

 private:
  // Those of one part of the classes.
  struct Part {
    int64_t first = 0, classes = 0;
    BlockProduct logits, dx, dw[2];  // dw: the first block's; those that add to it
    Bytes workspace() const {
      return std::max({logits.workspace(), dx.workspace(), dw[0].workspace(), dw[1].workspace()});
    }
  };

  bool make_products(int64_t whole) {
    parts_.clear();
    for (int64_t first = 0; first < classes_; first += parts_.back().classes) {
      Part& part = parts_.emplace_back();
      part.first = first;
      part.classes = first == 0 ? whole : classes_ - first;
      if (!make_part(part)) return false;
    }
    return true;
  }
  bool make_part(Part& part) {
    const int64_t stride = sizes_.stride(), width = sizes_.width;
    const bool transposed = sizes_.transposed;
    const auto make = [&](BlockProduct& product, const auto& shapes) { return product.make(door(), blocks_, shapes); };
    bool made = make(part.logits, [&](int64_t m) {
      return Product{.m = m,
                     .n = part.classes,
                     .k = width,
                     .transpose_b = !transposed,
                     .bias = bias_at_ >= 0,
                     .stride_out = stride};
    });
    if (dx_at_ >= 0) {
      made = made && make(part.dx, [&](int64_t m) {
               return Product{.m = m,
                              .n = width,
                              .k = part.classes,
                              .transpose_b = transposed,
                              .adds = part.first > 0,
                              .stride_a = stride};
             });
    }
    for (const bool adds : {false, true}) {
      if (dw_at_ < 0) break;
      made = made && make(part.dw[adds ? 1 : 0], [&](int64_t k) {
               return Product{.m = transposed ? width : part.classes,
                              .n = transposed ? part.classes : width,
                              .k = k,
                              .transpose_a = true,
                              .adds = adds,
                              .stride_a = transposed ? 0 : stride,
                              .stride_b = transposed ? stride : 0};
             });
    }
    return made;
  }

  void lay_out_workspace() {
    WorkspaceParts parts;
    logits_at_ = parts.place_floats(blocks_.length * sizes_.stride());
    rows_at_ = parts.place({rows_ * static_cast<int64_t>(sizeof(SoftmaxRow))});
    scale_at_ = parts.place_floats(1);
    if (db_at_ >= 0) sums_at_ = parts.place(std::max(room_for(pieces(blocks_.length)), room_for(pieces(blocks_.last))));
    Bytes products;
    for (const Part& part : parts_) products = std::max(products, part.workspace());
    products_at_ = parts.place(products);
    workspace_bytes_ = parts.bytes();
  }
  Pieces pieces(int64_t rows) const { return column_pieces(rows, classes_, sizes_.stride()); }
  // Where there are several parts, their rows follow each other.
  const float* weights(const Part& part) const { return input(1) + part.first * sizes_.width; }
  float* logits() const { return scratch<float>(logits_at_); }
  SoftmaxRow* of_rows() const { return scratch<SoftmaxRow>(rows_at_); }
  void* products() const { return scratch<std::byte>(products_at_); }
  float* gradient(int at) const { return output(static_cast<size_t>(at)); }
  bool backward() const { return dx_at_ >= 0 || dw_at_ >= 0 || db_at_ >= 0; }

  void work() override {
    if (backward()) {
      launch(LossScale{.scale = scratch<float>(scale_at_),
                       .dloss = input(3),
                       .labels = labels(),
                       .count = rows_,
                       .reduction = reduction_},
             1);
    }
    for (int64_t first = 0; first < rows_; first += blocks_.length)
      of_block(first, std::min(blocks_.length, rows_ - first));
    if (!tells_loss_) return;
    launch(
        SoftmaxTotal{
            .loss = output(0), .correct = output(1), .rows = of_rows(), .count = rows_, .reduction = reduction_},
        1);
  }

  void of_block(int64_t first, int64_t count) const {
    const bool last = first + blocks_.length >= rows_;
    const float* const x = input(0) + first * sizes_.width;
    SoftmaxRow* const rows = of_rows() + first;
    const Labels its = labels().from(first);
    const float* const bias = bias_at_ >= 0 ? input(static_cast<size_t>(bias_at_)) : nullptr;
    for (const Part& part : parts_) {
      part.logits.run(last, x, weights(part), bias != nullptr ? bias + part.first : nullptr, logits() + part.first,
                      products());
    }
    launch(SoftmaxSums{.rows = rows,
                       .logits = logits(),
                       .labels = its,
                       .classes = classes_,
                       .stride = sizes_.stride(),
                       .smoothing = smoothing_,
                       .fours = lie_by_four(logits())},
           count);
    if (!backward()) return;
    launch(LogitGradients{.logits = logits(),
                          .rows = rows,
                          .labels = its,
                          .scale = scratch<float>(scale_at_),
                          .stride = sizes_.stride(),
                          .classes = classes_,
                          .smoothing = static_cast<float>(smoothing_)},
           count * sizes_.stride());
    if (db_at_ >= 0) add_bias_gradient(count, first > 0);
    for (const Part& part : parts_) {
      if (dw_at_ < 0) break;
      const float* const dlogits = logits() + part.first;
      part.dw[first > 0 ? 1 : 0].run(last, sizes_.transposed ? x : dlogits, sizes_.transposed ? dlogits : x, nullptr,
                                     gradient(dw_at_) + part.first * sizes_.width, products());
    }
    // Last, since dx may lie where x did.
    for (const Part& part : parts_) {
      if (dx_at_ < 0) break;
      part.dx.run(last, logits() + part.first, weights(part), nullptr, gradient(dx_at_) + first * sizes_.width,
                  products());
    }
  }

  void add_bias_gradient(int64_t count, bool adds) const {
    sum_values(logits(), pieces(count), scratch<void>(sums_at_), gradient(db_at_), adds);
  }

  LinearSizes sizes_;
  RowBlocks blocks_;
  bool tells_loss_ = true;
  int bias_at_ = -1, dx_at_ = -1, dw_at_ = -1, db_at_ = -1;
  std::vector<Part> parts_;
  int64_t logits_at_ = 0, rows_at_ = 0, scale_at_ = 0, sums_at_ = 0, products_at_ = 0;
};

std::unique_ptr<Kernel> make_linear_loss(const Context& context, const Graph& graph, const Op& op,
                                         std::string_view kernel) {
  require_f32(graph, op);
  return std::make_unique<LinearCrossEntropyKernel>(context, graph, op, kernel);
}

std::vector<KernelSpec> linear_loss_specs(const Context& context, const Graph& graph, const Op& op, LayoutFamily) {
  const LinearSizes sizes = linear_sizes(graph, op);
  const int64_t bytes_of_row = sizes.classes * static_cast<int64_t>(sizeof(float));
  return specs_by_rows(context, graph, op, block_lengths(sizes.rows, bytes_of_row, kUsualLogits, 2), make_linear_loss);
}

}  // namespace

std::vector<NamedFactory> linear_cross_entropy_kernels() {
  return {{"LinearCrossEntropyForward", {linear_loss_specs, make_linear_loss}},
          {"LinearCrossEntropyBackward", {linear_loss_specs, make_linear_loss}},
          {"LinearCrossEntropyTraining", {linear_loss_specs, make_linear_loss}}};
}

}  // namespace plimsoll::cuda
