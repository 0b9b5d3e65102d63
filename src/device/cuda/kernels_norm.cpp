// Layer norm, RMS norm and group norm, on row-major tensors.
#include <algorithm>
#include <optional>
#include <type_traits>

#include "device/cuda/kernels.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

NormRows norm_rows(const Graph& graph, const Op& op) {
  const Shape& shape = graph.tensor(op.inputs[0]).shape;
  NormRows rows;
  if (op.type->name.starts_with("GroupNorm")) {
    rows.groups = op.attributes.integer("groups");
    rows.rows = shape[0] * rows.groups;
    rows.pixels = element_count(shape) / (shape[0] * shape[1]);
  } else {
    const size_t leading = shape.size() - static_cast<size_t>(op.attributes.integer("axes", 1));
    for (size_t d = 0; d < leading; ++d) rows.rows *= shape[d];
  }
  rows.length = element_count(shape) / rows.rows;
  rows.group_channels = rows.length / rows.pixels;
  return rows;
}

bool is_centred(const Op& op) { return !op.type->name.starts_with("RmsNorm"); }

// None where rows are longer than what threads hold, or do not begin at fours.
std::optional<WholeRows> whole_rows_of(const NormRows& rows) {
  if (rows.groups != 0 || rows.length % 4 != 0) return std::nullopt;
  const WholeRows whole = whole_rows(rows.rows, rows.length);
  if (whole.fours_of_lane() > WholeRows::kMostFours) return std::nullopt;
  return whole;
}
int64_t blocks_of(const WholeRows& rows) { return (rows.rows + rows.of_block() - 1) / rows.of_block(); }
// action(number of fours that a thread holds), as a constant.
template <class Action>
void with_fours(const WholeRows& rows, const Action& action) {
  const int fours = rows.fours_of_lane();
  if (fours <= 3) {
    action(std::integral_constant<int, 3>());
  } else if (fours == 4) {
    action(std::integral_constant<int, 4>());
  } else {
    action(std::integral_constant<int, WholeRows::kMostFours>());
  }
}

class NormForwardKernel final : public CudaKernel {
 public:
  NormForwardKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        rows_(norm_rows(graph, op)),
        centred_(is_centred(op)),
        epsilon_(op.attributes.real("epsilon", 1e-5)) {
    require_row_major(graph, op);
  }

 private:
  void work() override {
    float* const mean = centred_ ? output(1) : nullptr;
    float* const rstd = output(centred_ ? 2 : 1);
    const float *gamma = has_input(1) ? input(1) : nullptr, *beta = has_input(2) ? input(2) : nullptr;
    if (const auto whole = whole_rows_of(rows_); whole && lie_by_four(output(0), input(0), gamma, beta)) {
      with_fours(*whole, [&]<int kFours>(std::integral_constant<int, kFours>) {
        launch(NormWholeRows<kFours>{.y = output(0),
                                     .mean = mean,
                                     .rstd = rstd,
                                     .x = input(0),
                                     .gamma = gamma,
                                     .beta = beta,
                                     .rows = *whole,
                                     .epsilon = epsilon_},
               blocks_of(*whole));
      });
      return;
    }
    launch(RowMoments{.mean = mean, .rstd = rstd, .x = input(0), .length = rows_.length, .epsilon = epsilon_},
           rows_.rows);
    launch(
        NormalizeRows{
            .y = output(0), .x = input(0), .mean = mean, .rstd = rstd, .gamma = gamma, .beta = beta, .rows = rows_},
        rows_.rows * rows_.length);
  }

  NormRows rows_;
  bool centred_;
  double epsilon_;
};

class NormBackwardKernel final : public CudaKernel {
 public:
  NormBackwardKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), rows_(norm_rows(graph, op)), centred_(is_centred(op)) {
    require_row_major(graph, op);
    rows_a_piece_ = (rows_.rows + pieces_for(rows_) - 1) / pieces_for(rows_);
    pieces_ = (rows_.rows + rows_a_piece_ - 1) / rows_a_piece_;
    workspace_bytes_ = workspace_for(graph, op);
  }
  static Bytes workspace_for(const Graph& graph, const Op& op) {
    const NormRows rows = norm_rows(graph, op);
    const bool columns = rows.groups == 0 && op.outputs.size() > 1;
    const auto whole = whole_rows_of(rows);
    const int64_t whole_sums = whole && columns ? backward_blocks(*whole) * rows.length : 0;
    const int64_t pairs = std::max(whole_sums, rows.rows + (columns ? pieces_for(rows) * rows.length : 0));
    return {pairs * static_cast<int64_t>(sizeof(SumPair))};
  }

 private:
  // Three blocks a multiprocessor of a large GPU, and few rows a block.
  static int64_t rounds_of(const WholeRows& rows) {
    constexpr int64_t kBlocks = 396, kMostRounds = 16;
    return std::clamp<int64_t>((blocks_of(rows) + kBlocks - 1) / kBlocks, 1, kMostRounds);
  }
  static int64_t backward_blocks(const WholeRows& rows) {
    return (blocks_of(rows) + rounds_of(rows) - 1) / rounds_of(rows);
  }
  static int64_t pieces_for(const NormRows& rows) {
    return std::clamp<int64_t>(std::min(rows.rows / 16, (1 << 17) / std::max<int64_t>(rows.length, 1)), 1, 256);
  }

  void work() override {
    const size_t gamma_at = centred_ ? 4 : 3;
    const NormInputs of{.x = input(0),
                        .dy = input(1),
                        .mean = centred_ ? input(2) : nullptr,
                        .rstd = input(centred_ ? 3 : 2),
                        .gamma = has_input(gamma_at) ? input(gamma_at) : nullptr,
                        .rows = rows_};
    if (const auto whole = whole_rows_of(rows_); whole && lie_by_four(output(0), of.x, of.dy, of.gamma)) {
      by_whole_rows(*whole, of);
      return;
    }
    SumPair* const means = scratch<SumPair>();
    SumPair* const columns = means + rows_.rows;
    launch(RowGradients{.of = of, .means = means}, rows_.rows);
    if (has_output(1)) {  // before dx takes the place of what they read
      float* const dbeta = has_output(2) ? output(2) : nullptr;
      if (rows_.groups > 0) {
        launch(NormChannels{.dgamma = output(1), .dbeta = dbeta, .of = of, .images = rows_.rows / rows_.groups},
               rows_.groups * (rows_.length / rows_.pixels));
      } else {
        launch(NormColumns{.of = of, .sums = columns, .rows_a_piece = rows_a_piece_}, pieces_ * rows_.length);
        launch(
            NormColumnTotals{
                .dgamma = output(1), .dbeta = dbeta, .sums = columns, .columns = rows_.length, .pieces = pieces_},
            rows_.length);
      }
    }
    launch(NormalizeRowsBackward{.dx = output(0), .of = of, .means = means}, rows_.rows * rows_.length);
  }

  void by_whole_rows(const WholeRows& whole, const NormInputs& of) const {
    double* const sums = has_output(1) ? scratch<double>() : nullptr;
    const bool has_beta = has_output(2);
    const int64_t blocks = backward_blocks(whole), length = rows_.length;
    with_fours(whole, [&]<int kFours>(std::integral_constant<int, kFours>) {
      launch(NormWholeRowsBackward<kFours>{.dx = output(0),
                                           .sums = sums,
                                           .of = of,
                                           .rows = whole,
                                           .rounds_of_block = static_cast<int32_t>(rounds_of(whole)),
                                           .has_beta = has_beta},
             blocks);
    });
    if (sums == nullptr) return;
    const int64_t columns = has_beta ? 2 * length : length;
    launch(ColumnTotals{.first = output(1),
                        .second = has_beta ? output(2) : nullptr,
                        .sums = sums,
                        .columns = columns,
                        .split = length,
                        .pieces = blocks,
                        .adds = false},
           blocks_of_totals(columns));
  }

  NormRows rows_;
  bool centred_;
  int64_t rows_a_piece_ = 1, pieces_ = 1;
};

}  // namespace

std::vector<NamedFactory> norm_kernels() {
  std::vector<NamedFactory> kernels;
  for (const char* name : {"LayerNormForward", "RmsNormForward", "GroupNormForward"}) {
    kernels.push_back({name, {own_specs_row_major, make_own<NormForwardKernel>}});
  }
  for (const char* name : {"LayerNormBackward", "RmsNormBackward", "GroupNormBackward"}) {
    kernels.push_back({name, {row_major_specs_with_workspace<NormBackwardKernel>, make_own<NormBackwardKernel>}});
  }
  return kernels;
}

}  // namespace plimsoll::cuda
