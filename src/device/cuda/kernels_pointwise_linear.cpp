// An expression and the linear layer behind it by blocks of rows (ops/pointwise_linear.cpp): the expression of a block and its
// gradient lie in the workspace, and nowhere else. Where a block has all rows, the gradient of the weights may be by any of
// cuBLASLt's algorithms:
//
//   "rows=512"   "rows=512:tf32"   "rows=512/cublaslt:algo21_tile18_stages15:tf32"
#include "ops/pointwise_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/random.h"
#include "device/cuda/kernels_expression.h"
#include "device/cuda/products.h"
#include "device/cuda/row_blocks.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

// Of the expression of a block: the weights, which every block reads, are then read seldom enough.
constexpr int64_t kUsualBlock = int64_t{64} << 20;

struct WideSizes {
  int64_t rows = 0, width = 0, outputs = 0;
};
WideSizes wide_sizes(const Graph& graph, const Op& op, const PointwiseLinear& layout) {
  const Shape &x = graph.tensor(op.inputs[row_operand(graph, op)]).shape,
              &w = graph.tensor(op.inputs[layout.weights]).shape;
  return {element_count(x) / std::max<int64_t>(x.back(), 1), x.back(), w[layout.transposed ? 1 : 0]};
}
bool is_wide_backward(const Op& op) { return op.type->name == "PointwiseLinearBackward"; }
Product weight_gradient(const WideSizes& sizes, const PointwiseLinear& layout, int64_t rows) {
  return {.m = layout.transposed ? sizes.width : sizes.outputs,
          .n = layout.transposed ? sizes.outputs : sizes.width,
          .k = rows,
          .transpose_a = true};
}

// A kernel's name in two: of the blocks, and of the product that is the gradient of the weights, where it is named.
struct WideName {
  std::string blocks;
  std::optional<std::string> product;
};
WideName wide_name(std::string_view kernel) {
  const size_t slash = kernel.find('/');
  if (slash == std::string_view::npos) return {std::string(kernel), std::nullopt};
  return {std::string(kernel.substr(0, slash)) + std::string(kernel.ends_with(kTf32) ? kTf32 : ""),
          std::string(kernel.substr(slash + 1))};
}

class PointwiseLinearKernel final : public CudaKernel {
 public:
  PointwiseLinearKernel(const Context& context, const Graph& graph, const Op& op, std::string_view kernel)
      : CudaKernel(context, graph, op),
        backward_(is_wide_backward(op)),
        layout_(pointwise_linear(op, backward_)),
        sizes_(wide_sizes(graph, op, layout_)),
        blocks_(row_blocks(context, op, wide_name(kernel).blocks, sizes_.rows)) {
    require_row_major(graph, op);
    for (size_t i = 0; i < layout_.operands; ++i) one_row_.push_back(graph.tensor(op.inputs[i]).shape.size() == 1);
    if (layout_.drops()) {
      const Shape& x = graph.tensor(op.inputs[row_operand(graph, op)]).shape;
      dropout_ = {.y = nullptr,
                  .x = nullptr,
                  .stream = stream_of_op(graph, op, *layout_.step, x),
                  .place = {},
                  .row_major = true,
                  .threshold = dropout_threshold(layout_.p),
                  .scale = static_cast<float>(1 / (1 - layout_.p)),
                  .elements = 0};
    }
    if (!(backward_ ? make_backward(op) : make_forward(op))) throw_no_kernel(op, kernel);
    if (const std::optional<std::string> product = wide_name(kernel).product) {
      if (!dw_at_ || blocks_.length != sizes_.rows) throw_no_kernel(op, kernel);
      named_dw_ = std::make_unique<NamedProduct>(context, op, *product, weight_gradient(sizes_, layout_, sizes_.rows));
    }
    lay_out_workspace();
  }

 private:
  struct Rows {
    int64_t begin = 0, count = 0;
    bool last = false;
  };
  // One of the gradients of operands: several may have the same.
  struct Derivative {
    Expression expression;
    std::optional<size_t> rows;  // output that is it
    std::vector<size_t> sums;    // outputs that are its sums over all rows
    PreparedExpression program;
    std::optional<int64_t> waits_at;  // for those after it, which read what it may lie in the place of
  };

  bool make_forward(const Op& op) {
    f_ = expression_of_rows(op, parse_expression(op.attributes.text("expression")), one_row_, sizes_.width);
    return product_.make(door(), blocks_, [this](int64_t rows) {
      return Product{.m = rows,
                     .n = sizes_.outputs,
                     .k = sizes_.width,
                     .transpose_b = !layout_.transposed,
                     .bias = layout_.bias.has_value()};
    });
  }

  void add_derivative(size_t operand, size_t output, const Expression& expression) {
    const auto same = std::ranges::find_if(derivatives_, [&](const Derivative& d) {
      return to_string(d.expression) == to_string(expression) && !(d.rows && !one_row_[operand]);
    });
    Derivative& d = same == derivatives_.end() ? derivatives_.emplace_back() : *same;
    d.expression = expression;
    if (one_row_[operand]) {
      d.sums.push_back(output);
    } else {
      d.rows = output;
    }
  }

  bool make_backward(const Op& op) {
    const auto derivatives = operand_derivatives(op.attributes);
    for (size_t g = 0; g < layout_.gradients.size(); ++g) {
      const size_t place = static_cast<size_t>(layout_.gradients[g]);
      if (place == layout_.weights) dw_at_ = g;
      if (place > layout_.weights) db_at_ = g;
      if (place < layout_.operands) add_derivative(place, g, *derivatives[place]);
    }
    std::ranges::stable_partition(derivatives_, [](const Derivative& d) { return !d.rows; });
    std::vector<bool> one_row = one_row_;
    one_row.push_back(false);  // the expression's own gradient
    for (Derivative& d : derivatives_) d.program = expression_of_rows(op, d.expression, one_row, sizes_.width);
    bool made = true;
    if (!derivatives_.empty()) {
      made = product_.make(door(), blocks_, [this](int64_t rows) {
        return Product{.m = rows, .n = sizes_.width, .k = sizes_.outputs, .transpose_b = layout_.transposed};
      });
    }
    if (!dw_at_) return made;
    f_ = expression_of_rows(op, parse_expression(op.attributes.text("expression")), one_row_, sizes_.width);
    for (const bool adds : {false, true}) {
      made &= dw_[adds ? 1 : 0].make(door(), blocks_, [&](int64_t rows) {
        Product product = weight_gradient(sizes_, layout_, rows);
        product.adds = adds;
        return product;
      });
    }
    return made;
  }

  // Once the gradient to the weights has read what the expression gave, its place is free for a derivative.
  void lay_out_workspace() {
    WorkspaceParts parts;
    const int64_t of_block = blocks_.length * sizes_.width;
    std::optional<int64_t> free, of_sums;
    if (!backward_ || dw_at_) f_at_ = parts.place_floats(of_block);
    if (dw_at_) free = f_at_;
    if (!derivatives_.empty()) df_at_ = parts.place_floats(of_block);
    const auto take = [&] {
      const int64_t at = free ? *free : parts.place_floats(of_block);
      free.reset();
      return at;
    };
    for (Derivative& d : derivatives_) {
      if (!d.rows) {
        if (!of_sums) of_sums = take();
        d.waits_at = of_sums;
      } else if (&d != &derivatives_.back()) {
        d.waits_at = take();
      }
    }
    Bytes sums;
    const auto needs = [&](int64_t rows, int64_t columns) {
      sums = std::max(sums, room_for(column_pieces(rows, columns, columns)));
    };
    if (db_at_) needs(sizes_.rows, sizes_.outputs);
    for (const Derivative& d : derivatives_) {
      if (!d.sums.empty()) needs(blocks_.length, sizes_.width), needs(blocks_.last, sizes_.width);
    }
    sums_at_ = parts.place(sums);
    products_at_ = parts.place(std::max(
        {product_.workspace(), dw_[0].workspace(), dw_[1].workspace(), named_dw_ ? named_dw_->workspace() : Bytes{}}));
    workspace_bytes_ = parts.bytes();
  }
  float* at(int64_t offset) const { return scratch<float>(offset); }
  void* products() const { return scratch<std::byte>(products_at_); }

  void work() override {
    if (db_at_) sum_columns(input(layout_.dy), sizes_.rows, sizes_.outputs, output(*db_at_), false);
    for (int64_t begin = 0; begin < sizes_.rows; begin += blocks_.length) {
      const Rows rows{begin, std::min(blocks_.length, sizes_.rows - begin), begin + blocks_.length >= sizes_.rows};
      backward_ ? backward_of(rows) : forward_of(rows);
    }
  }

  // `more`: what the expression reads besides the operands, of this block.
  void run_expression(const PreparedExpression& program, const Rows& rows, const float* more, float* to) const {
    program.with_body([&](auto& body) {
      body.y = to;
      body.count = rows.count * sizes_.width;
      for (size_t i = 0; i < layout_.operands; ++i)
        body.inputs[i].from = input(i) + (one_row_[i] ? 0 : rows.begin * sizes_.width);
      if (more != nullptr) body.inputs[layout_.operands].from = more;
      launch(body, (body.count + kFour - 1) / kFour);
    });
  }

  void drop(const Rows& rows, float* values) const {
    if (!layout_.drops()) return;
    Dropout body = dropout_;
    body.y = values, body.x = values;
    body.stream.step_number = input<int64_t>(*layout_.step), body.stream.seed = input<int64_t>(*layout_.step + 1);
    body.stream.first = rows.begin * sizes_.width;
    body.elements = rows.count * sizes_.width;
    launch(body, (body.elements + 3) / 4);
  }

  void sum_columns(const float* x, int64_t rows, int64_t columns, float* totals, bool adds) const {
    sum_values(x, column_pieces(rows, columns, columns), scratch<void>(sums_at_), totals, adds);
  }

  const float* make_f(const Rows& rows) const {
    run_expression(f_, rows, nullptr, at(f_at_));
    drop(rows, at(f_at_));
    return at(f_at_);
  }

  void forward_of(const Rows& rows) const {
    product_.run(rows.last, make_f(rows), input(layout_.weights), layout_.bias ? input(*layout_.bias) : nullptr,
                 output(0) + rows.begin * sizes_.outputs, products());
  }

  void backward_of(const Rows& rows) const {
    const float* const dy = input(layout_.dy) + rows.begin * sizes_.outputs;
    if (dw_at_) {
      const float* const f = make_f(rows);
      const float *const a = layout_.transposed ? f : dy, *const b = layout_.transposed ? dy : f;
      if (named_dw_) {
        named_dw_->run(a, b, nullptr, output(*dw_at_), products());
      } else {
        dw_[rows.begin == 0 ? 0 : 1].run(rows.last, a, b, nullptr, output(*dw_at_), products());
      }
    }
    if (derivatives_.empty()) return;
    float* const df = at(df_at_);
    product_.run(rows.last, dy, input(layout_.weights), nullptr, df, products());
    drop(rows, df);
    const int64_t offset = rows.begin * sizes_.width;
    for (const Derivative& d : derivatives_) {
      float* const to = d.waits_at ? at(*d.waits_at) : output(*d.rows) + offset;
      run_expression(d.program, rows, df, to);
      for (const size_t sum : d.sums) sum_columns(to, rows.count, sizes_.width, output(sum), rows.begin > 0);
    }
    for (const Derivative& d : derivatives_) {
      if (!d.waits_at || !d.rows) continue;
      door().copy(Queue::compute, output(*d.rows) + offset, at(*d.waits_at),
                  static_cast<size_t>(rows.count * sizes_.width) * sizeof(float), Direction::on_device);
    }
  }

  bool backward_;
  PointwiseLinear layout_;
  WideSizes sizes_;
  RowBlocks blocks_;
  Dropout dropout_{};
  std::optional<size_t> dw_at_, db_at_;  // outputs
  std::vector<bool> one_row_;            // operands that are one row for all
  std::vector<Derivative> derivatives_;
  PreparedExpression f_;
  BlockProduct product_;                    // y, or the gradient of the expression
  BlockProduct dw_[2];                      // the first block's; those that add to it
  std::unique_ptr<NamedProduct> named_dw_;  // in their place
  int64_t f_at_ = 0, df_at_ = 0, sums_at_ = 0, products_at_ = 0;
};

std::unique_ptr<Kernel> make_pointwise_linear(const Context& context, const Graph& graph, const Op& op,
                                              std::string_view kernel) {
  require_f32(graph, op);
  return std::make_unique<PointwiseLinearKernel>(context, graph, op, kernel);
}

std::vector<KernelSpec> pointwise_linear_specs(const Context& context, const Graph& graph, const Op& op, LayoutFamily) {
  const PointwiseLinear layout = pointwise_linear(op, is_wide_backward(op));
  const WideSizes sizes = wide_sizes(graph, op, layout);
  const int64_t bytes_of_row = sizes.width * static_cast<int64_t>(sizeof(float));
  const std::vector<int64_t> lengths = block_lengths(sizes.rows, bytes_of_row, kUsualBlock, 4);
  std::vector<std::string> further;
  if (std::ranges::count(lengths, sizes.rows) > 0 && std::ranges::count(layout.gradients, layout.weights) > 0) {
    for (const ProductChoice& choice : choices_of(context, weight_gradient(sizes, layout, sizes.rows), {})) {
      if (choice.is_further) further.push_back(fmt::format("rows={}/{}", sizes.rows, choice.name));
    }
  }
  return specs_by_rows(context, graph, op, lengths, make_pointwise_linear, further);
}

}  // namespace

std::vector<NamedFactory> pointwise_linear_kernels() {
  return {{"PointwiseLinearForward", {pointwise_linear_specs, make_pointwise_linear}},
          {"PointwiseLinearBackward", {pointwise_linear_specs, make_pointwise_linear}}};
}

}  // namespace plimsoll::cuda
