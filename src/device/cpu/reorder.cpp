// The same elements in another layout. The layout pass inserts this op with both layouts set, so its one kernel wants
// what is there.
#include <fmt/format.h>

#include <cstring>

#include "device/cpu/dnnl.h"

namespace plimsoll::cpu {
namespace {

Implementation reorder_between(const Tensor& from, const Tensor& to) {
  return cpu::reorder_between(describe(from.shape, from.dtype, from.layout), describe(to.shape, to.dtype, to.layout));
}

// For dtypes that oneDNN has not, and nothing to reorder.
class Copy final : public Kernel {
 public:
  explicit Copy(Bytes bytes) : bytes_(bytes) {}
  Bytes workspace() const override { return {}; }
  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void*) override {
    from_ = inputs[0];
    to_ = outputs[0];
  }
  void run() override {
    if (from_ != to_) std::memcpy(to_, from_, bytes_.count);
  }

 private:
  Bytes bytes_;
  const void* from_ = nullptr;
  void* to_ = nullptr;
};

bool is_copy(const Tensor& from, const Tensor& to) {
  return from.layout == to.layout || (from.layout.is_plain() && to.layout.is_plain());
}

std::vector<KernelSpec> reorder_specs(const Graph& graph, const Op& op, LayoutFamily, int threads) {
  expect_countable(graph, op);
  const ThreadCount scope(threads);
  const Tensor &from = tensor_at(graph, op, input(0)), &to = tensor_at(graph, op, output(0));
  KernelSpec spec = make_spec(op, "reorder", is_copy(from, to) ? Bytes{} : reorder_between(from, to).workspace());
  spec.inputs[0] = from.layout;
  spec.outputs[0] = to.layout;
  return {spec};
}

std::unique_ptr<Kernel> make_reorder(const Graph& graph, const Op& op, std::string_view kernel, int threads) {
  if (kernel != "reorder") {
    throw Error(ErrorCode::unsupported, fmt::format("op '{}' (Reorder): no kernel '{}'", op.name, kernel));
  }
  const ThreadCount scope(threads);
  const Tensor &from = tensor_at(graph, op, input(0)), &to = tensor_at(graph, op, output(0));
  if (is_copy(from, to)) return std::make_unique<Copy>(from.bytes());
  const Implementation one = reorder_between(from, to);
  const std::vector<Argument> arguments = {{DNNL_ARG_FROM, input(0), describe(from.shape, from.dtype, from.layout)},
                                           {DNNL_ARG_TO, output(0), describe(to.shape, to.dtype, to.layout)}};
  return make_dnnl_kernel(op, one, arguments, threads);
}

}  // namespace

Implementation reorder_between(const dnnl_memory_desc_t& from, const dnnl_memory_desc_t& to) {
  dnnl_primitive_attr_t attributes = nullptr;
  PLIMSOLL_DNNL(dnnl_primitive_attr_create(&attributes));
  const Owned<dnnl_primitive_attr_t, dnnl_primitive_attr_destroy> guard(attributes);
  PLIMSOLL_DNNL(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user));
  dnnl_primitive_desc_t descriptor = nullptr;
  PLIMSOLL_DNNL(
      dnnl_reorder_primitive_desc_create(&descriptor, &from, dnnl_cpu_engine(), &to, dnnl_cpu_engine(), attributes));
  return {OwnedPrimitiveDescriptor(descriptor), "reorder"};
}

std::vector<NamedFactory> reorder_kernels() { return {{"Reorder", {reorder_specs, make_reorder}}}; }

}  // namespace plimsoll::cpu
