// Rotary positions, on row-major tensors.
#include "device/cuda/kernels.h"
#include "device/cuda/walk.h"
#include "ops/rotary.h"

namespace plimsoll::cuda {
namespace {

class RotaryKernel final : public CudaKernel {
 public:
  RotaryKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        rows_(rotary_rows(op.attributes, graph.tensor(op.inputs[0]).shape, graph.tensor(op.inputs[1]).shape)),
        inverse_(op.attributes.integer("inverse", 0) != 0) {
    require_row_major(graph, op);
    std::vector<MoveLoop> loops;
    int64_t turns = 1;  // a loop's own: neighbours that the tables are stretched over are one loop
    for (size_t d = rows_.leading.size(); d-- > 0; turns *= rows_.leading[d])
      loops.insert(loops.begin(), {rows_.leading[d], rows_.table_strides[d], turns});
    table_ = walk_of(op, merged(loops), &MoveLoop::from);
  }

 private:
  void work() override {
    const int64_t turns = rows_.half + rows_.rest();
    launch(Turn{.y = output(0),
                .x = input(0),
                .cosine = input(1),
                .sine = input(2),
                .table = table_,
                .turns = turns,
                .half = rows_.half,
                .rest = rows_.rest(),
                .second = rows_.second(),
                .inverse = inverse_},
           rows_.count() * turns);
  }

  RotaryRows rows_;
  Walk table_;
  bool inverse_;
};

}  // namespace

std::vector<NamedFactory> rotary_kernels() { return {{"Rotary", {own_specs_row_major, make_own<RotaryKernel>}}}; }

}  // namespace plimsoll::cuda
