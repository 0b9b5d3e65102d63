// A linear layer and its cross entropy by blocks of rows: the logits of a block lie in the workspace, and nowhere else.
// Products are cuBLASLt's. Each length of a block is a kernel, "rows=256", of its own time and workspace, named as on the
// CPU. How many labels count only the GPU knows, so all rows are computed, and what does not count gives zeros.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "device/cuda/kernels_loss.h"

namespace plimsoll::cuda {
namespace {

constexpr std::string_view kRows = "rows=";
constexpr int64_t kFewestRows = 64, kMostRows = 4096;
// As many rows as have logits of this size: the weights, which every block reads, are then read seldom enough.
constexpr int64_t kUsualLogits = int64_t{64} << 20;
constexpr Bytes kMostBlockWorkspace = 32_MiB;  // of a product

int64_t block_aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

struct LinearSizes {
  int64_t rows = 0, width = 0, classes = 0;
  bool transposed = false;  // the weights are [width, classes]
};
LinearSizes linear_sizes(const Graph& graph, const Op& op) {
  const Shape &x = graph.tensor(op.inputs[0]).shape, &w = graph.tensor(op.inputs[1]).shape;
  const bool transposed = op.attributes.integer("transposed", 0) != 0;
  return {x[0], x[1], w[transposed ? 1 : 0], transposed};
}

// One product for whole blocks and one for the last block, where it is smaller.
class BlockProduct {
 public:
  template <class Shapes>  // shapes(rows) -> Product
  bool make(Door& door, int64_t whole, int64_t last, bool tf32, const Shapes& shapes) {
    const auto prepare = [&](int64_t rows) {
      Product product = shapes(rows);
      product.tf32 = tf32;
      return door.prepare(product, kMostBlockWorkspace);
    };
    whole_ = prepare(whole);
    if (last != whole) last_ = prepare(last);
    return whole_ && (last == whole || last_);
  }
  Bytes workspace() const {
    return std::max(whole_ ? whole_->workspace() : Bytes{}, last_ ? last_->workspace() : Bytes{});
  }
  void run(bool last, const float* a, const float* b, const float* bias, float* out, void* workspace) const {
    (last && last_ ? *last_ : *whole_).run(a, b, bias, out, workspace);
  }

 private:
  std::unique_ptr<Prepared> whole_, last_;
};

class LinearCrossEntropyKernel final : public CrossEntropyKernel {
 public:
  LinearCrossEntropyKernel(const Context& context, const Graph& graph, const Op& op, std::string_view kernel)
      : CrossEntropyKernel(context, graph, op, 2, linear_sizes(graph, op).classes), sizes_(linear_sizes(graph, op)) {
    require_row_major(graph, op);
    std::string_view name = kernel;
    const bool tf32 = name.ends_with(kTf32);
    if (tf32) name.remove_suffix(kTf32.size());
    block_ = std::min(rows_in(name), rows_);
    if (block_ < 1 || (tf32 && !context.tf32)) throw_no_kernel(op, kernel);
    last_ = rows_ % block_ == 0 ? block_ : rows_ % block_;
    tells_loss_ = op.type->name != "LinearCrossEntropyBackward";
    const bool backward = op.type->name != "LinearCrossEntropyForward";
    const size_t bias_at = backward ? 4 : 3;
    if (op.inputs.size() > bias_at) bias_at_ = static_cast<int>(bias_at);
    int next = tells_loss_ ? 2 : 0;
    for (const char c : backward ? op.attributes.text("gradients", "") : "") {
      (c == 'x' ? dx_at_ : c == 'w' ? dw_at_ : db_at_) = next++;
    }
    if (!make_products(tf32)) throw_no_kernel(op, kernel);
    lay_out_workspace();
  }

 private:
  static int64_t rows_in(std::string_view name) {
    int64_t rows = 0;
    if (!name.starts_with(kRows)) return 0;
    const char* const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + kRows.size(), end, rows);
    return error == std::errc() && rest == end ? rows : 0;
  }

  bool make_products(bool tf32) {
    const auto [rows, width, classes, transposed] = sizes_;
    const auto make = [&](BlockProduct& product, const auto& shapes) {
      return product.make(door(), block_, last_, tf32, shapes);
    };
    bool made = make(logits_, [&](int64_t m) {
      return Product{.m = m, .n = classes, .k = width, .transpose_b = !transposed, .bias = bias_at_ >= 0};
    });
    if (dx_at_ >= 0) {
      made &=
          make(dx_, [&](int64_t m) { return Product{.m = m, .n = width, .k = classes, .transpose_b = transposed}; });
    }
    for (const bool adds : {false, true}) {
      if (dw_at_ < 0) break;
      made &= make(dw_[adds ? 1 : 0], [&](int64_t k) {
        return Product{.m = transposed ? width : classes,
                       .n = transposed ? classes : width,
                       .k = k,
                       .transpose_a = true,
                       .adds = adds};
      });
    }
    return made;
  }

  void lay_out_workspace() {
    int64_t at = 0;
    const auto place = [&](int64_t bytes) {
      const int64_t begin = at;
      at += block_aligned(bytes);
      return begin;
    };
    logits_at_ = place(block_ * classes_ * static_cast<int64_t>(sizeof(float)));
    rows_at_ = place(rows_ * static_cast<int64_t>(sizeof(SoftmaxRow)));
    scale_at_ = place(static_cast<int64_t>(sizeof(float)));
    if (db_at_ >= 0) sums_at_ = place(std::max(room_for(pieces(block_)), room_for(pieces(last_))).count);
    products_at_ =
        place(std::max({logits_.workspace(), dx_.workspace(), dw_[0].workspace(), dw_[1].workspace()}).count);
    workspace_bytes_ = {at};
  }
  Pieces pieces(int64_t rows) const {
    return pieces_of(
        with_pixels({.n = rows, .c = classes_, .to_n = classes_, .to_c = 1, .to_h = classes_, .to_w = classes_}));
  }
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
    for (int64_t first = 0; first < rows_; first += block_) of_block(first, std::min(block_, rows_ - first));
    if (!tells_loss_) return;
    launch(
        SoftmaxTotal{
            .loss = output(0), .correct = output(1), .rows = of_rows(), .count = rows_, .reduction = reduction_},
        1);
  }

  void of_block(int64_t first, int64_t count) const {
    const bool last = first + block_ >= rows_;
    const float* const x = input(0) + first * sizes_.width;
    SoftmaxRow* const rows = of_rows() + first;
    const Labels its = labels().from(first);
    logits_.run(last, x, input(1), bias_at_ >= 0 ? input(static_cast<size_t>(bias_at_)) : nullptr, logits(),
                products());
    launch(SoftmaxTops{.rows = rows, .logits = logits(), .classes = classes_}, count);
    launch(SoftmaxSums{.rows = rows, .logits = logits(), .labels = its, .classes = classes_, .smoothing = smoothing_},
           count);
    if (!backward()) return;
    launch(LogitGradients{.logits = logits(),
                          .rows = rows,
                          .labels = its,
                          .scale = scratch<float>(scale_at_),
                          .classes = classes_,
                          .smoothing = static_cast<float>(smoothing_)},
           count * classes_);
    if (db_at_ >= 0) add_bias_gradient(count, first > 0);
    if (dw_at_ >= 0) {
      dw_[first > 0 ? 1 : 0].run(last, sizes_.transposed ? x : logits(), sizes_.transposed ? logits() : x, nullptr,
                                 gradient(dw_at_), products());
    }
    // Last, since dx may lie where x did.
    if (dx_at_ >= 0) dx_.run(last, logits(), input(1), nullptr, gradient(dx_at_) + first * sizes_.width, products());
  }

  void add_bias_gradient(int64_t count, bool adds) const {
    auto* const sums = scratch<SumPair>(sums_at_);
    const Pieces cut = pieces(count);
    sum_channels(Values{logits()}, cut, sums);
    launch(AddTotals{.totals = gradient(db_at_), .sums = sums, .pieces = cut.pieces, .adds = adds}, classes_);
  }

  LinearSizes sizes_;
  int64_t block_ = 1, last_ = 1;  // rows
  bool tells_loss_ = true;
  int bias_at_ = -1, dx_at_ = -1, dw_at_ = -1, db_at_ = -1;
  BlockProduct logits_, dx_, dw_[2];  // dw: the first block's; those that add to it
  int64_t logits_at_ = 0, rows_at_ = 0, scale_at_ = 0, sums_at_ = 0, products_at_ = 0;
};

std::unique_ptr<Kernel> make_linear_loss(const Context& context, const Graph& graph, const Op& op,
                                         std::string_view kernel) {
  require_f32(graph, op);
  return std::make_unique<LinearCrossEntropyKernel>(context, graph, op, kernel);
}

// Rows of a block, the usual number first.
std::vector<int64_t> block_lengths(const LinearSizes& sizes) {
  std::vector<int64_t> lengths;
  for (int64_t rows = kFewestRows; rows <= kMostRows && rows < sizes.rows; rows *= 2) lengths.push_back(rows);
  if (sizes.rows <= kMostRows) lengths.push_back(sizes.rows);
  const int64_t most = kUsualLogits / (sizes.classes * static_cast<int64_t>(sizeof(float)));
  size_t usual = 0;
  while (usual + 1 < lengths.size() && lengths[usual + 1] <= most) ++usual;
  std::rotate(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(usual), lengths.end());
  return lengths;
}

std::vector<KernelSpec> linear_loss_specs(const Context& context, const Graph& graph, const Op& op, LayoutFamily) {
  Graph alone;
  std::vector<TensorId> inputs;
  for (TensorId id : op.inputs) {
    const Tensor& t = graph.tensor(id);
    inputs.push_back(alone.add_source(fmt::format("{}", inputs.size()), t.shape, t.dtype, Role::input));
  }
  const Op& plain = alone.op(alone.add_op(op.type->name, op.name, op.layer, inputs, op.attributes));
  std::vector<KernelSpec> list;
  for (const bool tf32 : {true, false}) {
    if (tf32 && !context.tf32) continue;
    bool usual = true;
    for (const int64_t rows : block_lengths(linear_sizes(graph, op))) {
      const std::string name = fmt::format("{}{}{}", kRows, rows, tf32 ? kTf32 : "");
      list.push_back(family_spec(graph, op, LayoutFamily::plain, name,
                                 make_linear_loss(context, alone, plain, name)->workspace()));
      KernelSpec& spec = list.back();
      spec.algorithm = Algorithm::gemm;
      // Blocks of other lengths sum a weight gradient in another order, so --exact takes one of them whatever fits.
      spec.exact = !tf32 && std::exchange(usual, false);
      // Every block walks over the weights, and over their gradient twice.
      spec.estimate = {.efficiency =
                           (tf32 ? kTf32Speed : 1) * 0.8 * static_cast<double>(rows) / static_cast<double>(rows + 64)};
    }
  }
  return list;
}

}  // namespace

std::vector<NamedFactory> linear_cross_entropy_kernels() {
  return {{"LinearCrossEntropyForward", {linear_loss_specs, make_linear_loss}},
          {"LinearCrossEntropyBackward", {linear_loss_specs, make_linear_loss}},
          {"LinearCrossEntropyTraining", {linear_loss_specs, make_linear_loss}}};
}

}  // namespace plimsoll::cuda
