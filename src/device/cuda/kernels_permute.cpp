// Permutations of dimensions.
#include <algorithm>

#include "device/cuda/kernels.h"
#include "device/cuda/walk.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

class PermuteKernel final : public CudaKernel {
 public:
  PermuteKernel(const Context& context, const Graph& graph, const Op& op) : CudaKernel(context, graph, op) {
    const Tensor &x = graph.tensor(op.inputs[0]), &y = graph.tensor(op.outputs[0]);
    width_ = element_width(x);
    count_ = element_count(x.shape);
    std::vector<MoveLoop> loops = permute_loops(x, y, op.attributes.integers("dims"));
    walk_ = walk_of(op, loops, &MoveLoop::from);
    row_ = loops.back();
    loops.pop_back();
    const auto run = std::find_if(loops.begin(), loops.end(), [](const MoveLoop& loop) { return loop.from == 1; });
    if (row_.from == 1 || run == loops.end()) return;
    column_ = *run;
    loops.erase(run);
    const auto by_four = [](int64_t n) { return n % 4 == 0; };
    fours_ = width_ == 4 && by_four(row_.size) && by_four(row_.from) && by_four(column_.size) && by_four(column_.to) &&
             std::all_of(loops.begin(), loops.end(),
                         [&](const MoveLoop& loop) { return by_four(loop.from) && by_four(loop.to); });
    from_outer_ = walk_of(op, loops, &MoveLoop::from);
    to_outer_ = walk_of(op, loops, &MoveLoop::to);
    for (const MoveLoop& loop : loops) turns_ *= loop.size;
  }

 private:
  void work() override {
    if (input<void>(0) == output<void>(0)) return;  // only dimensions of size one change their places
    if (fours_) return transpose();
    with_width(width_, [&](auto zero) {
      using T = decltype(zero);
      launch(PermuteElements<T>{.to = output<T>(0), .from = input<T>(0), .walk = walk_}, count_);
    });
  }
  void transpose() const {
    const int64_t row_groups = TransposeFours::groups(row_.size, 8),
                  column_groups = TransposeFours::groups(column_.size, 4);
    launch(TransposeFours{.to = output(0),
                          .from = input(0),
                          .from_outer = from_outer_,
                          .to_outer = to_outer_,
                          .rows = row_.size,
                          .row_step = row_.from,
                          .columns = column_.size,
                          .column_step = column_.to,
                          .row_groups = row_groups,
                          .column_groups = column_groups},
           turns_ * row_groups * column_groups * 32);
  }

  int64_t width_ = 4, count_ = 0, turns_ = 1;
  Walk walk_, from_outer_, to_outer_;
  MoveLoop row_, column_;
  bool fours_ = false;
};

// As on the CPU: where images lie channels last, either side may be such an image.
std::vector<KernelSpec> permute_specs(const Context&, const Graph& graph, const Op& op, LayoutFamily family) {
  std::vector<KernelSpec> specs = {family_spec(graph, op, LayoutFamily::plain, "own", {})};
  if (family != LayoutFamily::channels_last || graph.tensor(op.inputs[0]).shape.size() != 4) return specs;
  const Layout last = family_layout(family, 4);
  specs.push_back({.name = "own:to_last", .inputs = {{}}, .outputs = {last}, .workspace = {}});
  specs.push_back({.name = "own:from_last", .inputs = {last}, .outputs = {{}}, .workspace = {}});
  specs.push_back({.name = "own:last", .inputs = {last}, .outputs = {last}, .workspace = {}});
  return specs;
}

std::unique_ptr<Kernel> make_permute(const Context& context, const Graph& graph, const Op& op,
                                     std::string_view kernel) {
  if (kernel != "own:to_last" && kernel != "own:from_last" && kernel != "own:last") require_own(op, kernel);
  return std::make_unique<PermuteKernel>(context, graph, op);
}

}  // namespace

std::vector<NamedFactory> permute_kernels() { return {{"Permute", {permute_specs, make_permute}}}; }

}  // namespace plimsoll::cuda
