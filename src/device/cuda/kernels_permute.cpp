// Permutations of dimensions.
#include "device/cuda/kernels.h"
#include "device/cuda/movement.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

class PermuteKernel final : public CudaKernel {
 public:
  PermuteKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        movement_(
            op, permute_loops(graph.tensor(op.inputs[0]), graph.tensor(op.outputs[0]), op.attributes.integers("dims")),
            element_width(graph.tensor(op.inputs[0]))) {}

 private:
  void work() override {
    if (input<void>(0) == output<void>(0)) return;  // only dimensions of size one change their places
    movement_.ask(door(), output<void>(0), input<void>(0));
  }

  Movement movement_;
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
