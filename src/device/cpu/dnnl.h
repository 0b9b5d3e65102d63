// The one door to oneDNN: its errors become ours, its memory descriptors our layouts, its primitives our kernels.
// Nothing outside the files dnnl*.cpp and reorder.cpp sees oneDNN.
//
// Scratch memory is the caller's, so that a plan knows of it. Two things oneDNN still allocates while it runs: some
// hundred bytes to keep its books, and, in its "gemm" implementations, buffers for packed matrices (0.1 to 7 MiB,
// outside any arena).
#pragma once

#include <oneapi/dnnl/dnnl.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/cpu/kernels.h"
#include "plimsoll/device.h"
#include "plimsoll/ops.h"

// Runs a call of oneDNN; a failure becomes Error(device_failure) with the call and oneDNN's word for the status.
#define PLIMSOLL_DNNL(call) ::plimsoll::cpu::check_dnnl((call), #call)

namespace plimsoll::cpu {

void check_dnnl(dnnl_status_t status, const char* call);

// Test hook: the n-th guarded call from now fails with out of memory (1: the next); 0 turns it off. Returns whether
// what was asked for before has failed.
bool fail_dnnl_call(int n);

std::string dnnl_version_text();     // "2.6.3"
std::string dnnl_instruction_set();  // "avx512_core_amx"
dnnl_engine_t dnnl_cpu_engine();     // one for the process

// oneDNN sizes scratch and divides work by the OpenMP thread count of the calling thread, when a primitive is described
// and again when it runs. Sets it for a scope.
class ThreadCount {
 public:
  explicit ThreadCount(int threads);
  ~ThreadCount();
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

dnnl_memory_desc_t describe(const Shape& shape, DType dtype, const Layout& layout);
dnnl_memory_desc_t describe_any(const Shape& shape, DType dtype);
// The layout of a descriptor, `preferred` where it fits (a dimension of size 1 lies in many ways); nullopt for one that
// no tag tells, such as Winograd's own.
std::optional<Layout> layout_of(const dnnl_memory_desc_t& descriptor, const Layout& preferred = {});
// Whether two descriptors of one shape put every element in the same place.
bool same_storage(const dnnl_memory_desc_t& a, const dnnl_memory_desc_t& b);

template <class Handle, auto destroy>
struct Destroy {
  using pointer = Handle;
  void operator()(Handle handle) const { destroy(handle); }
};
template <class Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, destroy>>;
using OwnedPrimitiveDescriptor = Owned<dnnl_primitive_desc_t, dnnl_primitive_desc_destroy>;
using OwnedPrimitive = Owned<dnnl_primitive_t, dnnl_primitive_destroy>;
using OwnedMemory = Owned<dnnl_memory_t, dnnl_memory_destroy>;
using OwnedStream = Owned<dnnl_stream_t, dnnl_stream_destroy>;

// What a primitive may be asked for besides its operation.
struct PrimitiveAttributes {
  bool relu = false;  // applied to the result
  bool sum = false;   // the result is added to what lies in its place
};

// One way in which oneDNN runs an operation. Scratch memory is the caller's.
struct Implementation {
  OwnedPrimitiveDescriptor descriptor;
  std::string name;  // "jit:avx512_core"; the second of one name is "jit:avx512_core#2"

  const dnnl_memory_desc_t& memory(dnnl_query_t query, int index = 0) const;
  Bytes workspace() const;
  // What oneDNN tells by the name alone: whether it multiplies matrices, and whether those are tiles laid out for that.
  bool is_gemm() const { return name.find("gemm") != std::string::npos; }
  bool is_tiled_gemm() const { return name.find("brgemm") != std::string::npos; }
};
// Every implementation of an operation descriptor (which is read during the call only), best guess first; empty when
// there is none. The slow reference ones are left out, and those for older processors where newer exist.
std::vector<Implementation> implementations(const_dnnl_op_desc_t operation, const PrimitiveAttributes& attributes = {},
                                            const Implementation* forward_hint = nullptr);
std::optional<Implementation> find_implementation(const_dnnl_op_desc_t operation, std::string_view name,
                                                  const PrimitiveAttributes& attributes = {},
                                                  const Implementation* forward_hint = nullptr);

// oneDNN counts the pixels of a batch and the elements of an image in 32 bits, and divides by what is left of larger
// ones. Throws Error(unsupported) that names the op and the tensor where one of them is larger.
void expect_countable(const Graph& graph, const Op& op);

// What a layer with weights computes.
enum class Pass { forward, backward_data, backward_weights };

// A tensor of an op: its i-th input or output.
struct Slot {
  bool is_output = false;
  size_t index = 0;
};
constexpr Slot input(size_t index) { return {false, index}; }
constexpr Slot output(size_t index) { return {true, index}; }
const Tensor& tensor_at(const Graph& graph, const Op& op, Slot slot);
Layout& layout_at(KernelSpec& spec, Slot slot);
KernelSpec make_spec(const Op& op, std::string name, Bytes workspace);  // all layouts plain yet

// Copies elements from one descriptor's places to the other's; its arguments are DNNL_ARG_FROM and DNNL_ARG_TO.
Implementation reorder_between(const dnnl_memory_desc_t& from, const dnnl_memory_desc_t& to);

// An argument of a primitive: which tensor of the op it is and how it is described.
struct Argument {
  int id;  // DNNL_ARG_SRC, ...
  Slot slot;
  dnnl_memory_desc_t memory;
};
std::unique_ptr<Kernel> make_dnnl_kernel(const Op& op, const Implementation& implementation,
                                         const std::vector<Argument>& arguments, int threads);

}  // namespace plimsoll::cpu
