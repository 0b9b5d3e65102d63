// An expression and the linear layer behind it by blocks of rows: the expression of a block and its gradient lie in the
// workspace, and nowhere else. Products are oneDNN's, by all threads; what is between them is divided among the same.
#include "ops/pointwise_linear.h"

#include "device/cpu/own_expression.h"
#include "device/cpu/own_random.h"
#include "device/cpu/own_row_blocks.h"
#include "device/cpu/own_rows.h"

namespace plimsoll::cpu {
namespace {

struct LinearSizes {
  int64_t rows = 0, width = 0, outputs = 0;
};
LinearSizes linear_sizes(const Graph& graph, const Op& op, const PointwiseLinear& layout) {
  const Shape &x = graph.tensor(op.inputs[row_operand(graph, op)]).shape,
              &w = graph.tensor(op.inputs[layout.weights]).shape;
  return {element_count(x) / std::max<int64_t>(x.back(), 1), x.back(), w[layout.transposed ? 1 : 0]};
}

class PointwiseLinearKernel final : public OwnKernel {
 public:
  PointwiseLinearKernel(const Graph& graph, const Op& op, int64_t block, int threads)
      : OwnKernel(graph, op, threads),
        backward_(op.type->name == "PointwiseLinearBackward"),
        layout_(pointwise_linear(op, backward_)),
        sizes_(linear_sizes(graph, op, layout_)) {
    require_row_major(graph, op);
    block_ = std::min(block, sizes_.rows);
    last_ = sizes_.rows % block_ == 0 ? block_ : sizes_.rows % block_;
    for (size_t i = 0; i < layout_.operands; ++i) stretched_.push_back(graph.tensor(op.inputs[i]).shape.size() == 1);
    if (layout_.drops()) drawn_.emplace(graph, op, *layout_.step, sizes_.rows * sizes_.width);
    if (backward_) {
      make_backward(op, threads);
    } else {
      make_expression_of(f_, parse_expression(op.attributes.text("expression")), stretched_, threads);
      product_.make(op, block_, last_, threads, [this](int64_t rows) {
        return MatrixProducts{
            .m = rows, .n = sizes_.outputs, .k = sizes_.width, .transpose_b = !layout_.transposed, .batch = {}};
      });
    }
    lay_out_workspace();
  }

  void run() override {
    if (drawn_) stream_ = drawn_->of(inputs_);
    if (db_at_) std::fill_n(output(*db_at_), sizes_.outputs, 0.0f);
    for (const Derivative& d : derivatives_) {
      for (const size_t to : d.sums) std::fill_n(output(to), sizes_.width, 0.0f);
    }
    for (int64_t begin = 0; begin < sizes_.rows; begin += block_) {
      const Rows rows{begin, std::min(block_, sizes_.rows - begin), begin + block_ >= sizes_.rows};
      if (backward_) {
        run_backward(rows);
      } else {
        run_forward(rows);
      }
    }
  }

 private:
  struct Rows {
    int64_t begin = 0, count = 0;
    bool last = false;
  };
  // One of the gradient of operands: several may have the same.
  struct Derivative {
    Expression expression;
    std::optional<size_t> rows;  // output that is it
    std::vector<size_t> sums;    // outputs that are its sums over all rows
    BlockKernel kernel;
    std::optional<int64_t> waits_at;  // for those after it, which read what it may lie in the place of
  };

  void make_expression_of(BlockKernel& kernel, const Expression& expression, const std::vector<bool>& stretched,
                          int threads) {
    kernel.make(block_, last_,
                [&](int64_t rows) { return make_expression(expression, stretched, rows, sizes_.width, threads); });
  }

  void add_derivative(size_t operand, size_t output, const Expression& expression) {
    const auto same = std::ranges::find_if(derivatives_, [&](const Derivative& d) {
      return to_string(d.expression) == to_string(expression) && !(d.rows && !stretched_[operand]);
    });
    Derivative& d = same == derivatives_.end() ? derivatives_.emplace_back() : *same;
    d.expression = expression;
    if (stretched_[operand]) {
      d.sums.push_back(output);
    } else {
      d.rows = output;
    }
  }

  void make_backward(const Op& op, int threads) {
    const auto derivatives = operand_derivatives(op.attributes);
    for (size_t g = 0; g < layout_.gradients.size(); ++g) {
      const size_t place = static_cast<size_t>(layout_.gradients[g]);
      if (place == layout_.weights) dw_at_ = g;
      if (place > layout_.weights) db_at_ = g;
      if (place < layout_.operands) add_derivative(place, g, *derivatives[place]);
    }
    std::ranges::stable_partition(derivatives_, [](const Derivative& d) { return !d.rows; });
    std::vector<bool> stretched = stretched_;
    stretched.push_back(false);
    for (Derivative& d : derivatives_) make_expression_of(d.kernel, d.expression, stretched, threads);
    if (!derivatives_.empty()) {
      product_.make(op, block_, last_, threads, [this](int64_t rows) {
        return MatrixProducts{
            .m = rows, .n = sizes_.width, .k = sizes_.outputs, .transpose_b = layout_.transposed, .batch = {}};
      });
    }
    if (!dw_at_) return;
    make_expression_of(f_, parse_expression(op.attributes.text("expression")), stretched_, threads);
    for (const bool adds : {false, true}) {
      dw_[adds ? 1 : 0].make(
          op, block_, last_, threads,
          [this](int64_t rows) {
            return MatrixProducts{.m = layout_.transposed ? sizes_.width : sizes_.outputs,
                                  .n = layout_.transposed ? sizes_.outputs : sizes_.width,
                                  .k = rows,
                                  .transpose_a = true,
                                  .batch = {}};
          },
          adds);
    }
  }

  void lay_out_workspace() {
    WorkspaceLayout layout;
    const int64_t of_block = block_ * sizes_.width;
    if (!backward_ || dw_at_) f_at_ = layout.place_floats(of_block);
    if (!derivatives_.empty()) df_at_ = layout.place_floats(of_block);
    int64_t scratch = std::max({f_.scratch(), product_.scratch(), dw_[0].scratch(), dw_[1].scratch()});
    for (Derivative& d : derivatives_) {
      if (&d != &derivatives_.back() || !d.rows) d.waits_at = layout.place_floats(of_block);
      scratch = std::max(scratch, d.kernel.scratch());
    }
    scratch_at_ = layout.place(scratch);
    workspace_bytes_ = layout.bytes();
  }
  float* at(int64_t offset) const { return reinterpret_cast<float*>(static_cast<std::byte*>(workspace_) + offset); }
  void* scratch() const { return at(scratch_at_); }

  void drop(const Rows& rows, float* values) const {
    if (!drawn_) return;
    const int64_t first = rows.begin * sizes_.width;
    for_each_part(parts_, [&](int part) {
      const Range range = share(rows.count * sizes_.width, part, parts_, 64);
      drop_elements(stream_, first + range.begin, first + range.end, layout_.p, values + range.begin,
                    values + range.begin);
    });
  }

  std::vector<const float*> operands(const Rows& rows) const {
    std::vector<const float*> result;
    for (size_t i = 0; i < layout_.operands; ++i)
      result.push_back(input(i) + (stretched_[i] ? 0 : rows.begin * sizes_.width));
    return result;
  }

  float* make_f(const Rows& rows) const {
    float* f = at(f_at_);
    f_.run(rows.last, operands(rows), f, scratch());
    drop(rows, f);
    return f;
  }

  void run_forward(const Rows& rows) const {
    const float* f = make_f(rows);
    float* y = output(0) + rows.begin * sizes_.outputs;
    product_.run(rows.last, f, input(layout_.weights), y, scratch());
    if (!layout_.bias) return;
    const float* bias = input(*layout_.bias);
    for_each_part(parts_, [&](int part) {
      const Range range = share(rows.count, part, parts_);
      for (int64_t i = range.begin; i < range.end; ++i) {
        float* row = y + i * sizes_.outputs;
        over_row(sizes_.outputs, [&](int64_t k, auto n) { store(row + k, load(row + k, n) + load(bias + k, n), n); });
      }
    });
  }

  void run_backward(const Rows& rows) const {
    const float* dy = input(layout_.dy) + rows.begin * sizes_.outputs;
    if (db_at_) add_rows(dy, rows.count, sizes_.outputs, output(*db_at_));
    if (dw_at_) {
      const float* f = make_f(rows);
      dw_[rows.begin == 0 ? 0 : 1].run(rows.last, layout_.transposed ? f : dy, layout_.transposed ? dy : f,
                                       output(*dw_at_), scratch());
    }
    if (derivatives_.empty()) return;
    float* df = at(df_at_);
    product_.run(rows.last, dy, input(layout_.weights), df, scratch());
    drop(rows, df);
    std::vector<const float*> inputs = operands(rows);
    inputs.push_back(df);
    const int64_t offset = rows.begin * sizes_.width, count = rows.count * sizes_.width;
    for (const Derivative& d : derivatives_) {
      float* to = d.waits_at ? at(*d.waits_at) : output(*d.rows) + offset;
      d.kernel.run(rows.last, inputs, to, scratch());
      for (const size_t sum : d.sums) add_rows(to, rows.count, sizes_.width, output(sum));
    }
    for (const Derivative& d : derivatives_) {
      if (!d.waits_at || !d.rows) continue;
      const float* from = at(*d.waits_at);
      float* to = output(*d.rows) + offset;
      for_each_part(parts_, [&](int part) {
        const Range range = share(count, part, parts_, kLanes);
        std::copy(from + range.begin, from + range.end, to + range.begin);
      });
    }
  }

  void add_rows(const float* x, int64_t rows, int64_t width, float* sum) const {
    for_each_part(parts_, [&](int part) {
      const Range columns = share(width, part, parts_, kLanes);
      const float* from = x + columns.begin;
      float* to = sum + columns.begin;
      over_row(columns.end - columns.begin, [&](int64_t k, auto n) {
        f32x16 of_block = load(from + k, n);
        for (int64_t i = 1; i < rows; ++i) of_block += load(from + i * width + k, n);
        store(to + k, load(to + k, n) + of_block, n);
      });
    });
  }

  bool backward_;
  PointwiseLinear layout_;
  LinearSizes sizes_;
  int64_t block_ = 1, last_ = 1;
  std::optional<DrawnStream> drawn_;
  RandomStream stream_;
  std::optional<size_t> dw_at_, db_at_;  // outputs
  std::vector<bool> stretched_;          // operands that are one row for all
  std::vector<Derivative> derivatives_;
  BlockKernel f_;
  BlockProduct product_;  // y, or the gradient of f
  BlockProduct dw_[2];    // the first block's; those that add to it
  int64_t f_at_ = 0, df_at_ = 0, scratch_at_ = 0;
};

constexpr int64_t kShortestBlock = 128, kLongestBlock = 2048;
// Of the expression of a block: the weights, which every block reads, are then read seldom enough.
constexpr int64_t kUsualBlock = int64_t{8} << 20;

std::vector<KernelSpec> pointwise_linear_specs(const Graph& graph, const Op& op, LayoutFamily family, int threads) {
  require_f32(graph, op);
  const LinearSizes sizes = linear_sizes(graph, op, pointwise_linear(op, op.type->name == "PointwiseLinearBackward"));
  std::vector<int64_t> lengths;
  for (int64_t rows = kShortestBlock; rows <= kLongestBlock && rows < sizes.rows; rows *= 4) lengths.push_back(rows);
  if (sizes.rows <= kLongestBlock) lengths.push_back(sizes.rows);
  put_usual_first(lengths, kUsualBlock / (std::max<int64_t>(sizes.width, 1) * static_cast<int64_t>(sizeof(float))));
  return specs_by_rows<PointwiseLinearKernel>(graph, op, family, threads, lengths);
}

std::unique_ptr<Kernel> make_pointwise_linear(const Graph& graph, const Op& op, std::string_view kernel, int threads) {
  return std::make_unique<PointwiseLinearKernel>(graph, op, rows_of_kernel(op, kernel), threads);
}

}  // namespace

std::vector<NamedFactory> pointwise_linear_kernels() {
  return {{"PointwiseLinearForward", {pointwise_linear_specs, make_pointwise_linear}},
          {"PointwiseLinearBackward", {pointwise_linear_specs, make_pointwise_linear}}};
}

}  // namespace plimsoll::cpu
