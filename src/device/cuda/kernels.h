// The CUDA device's kernels: each op family's file offers a factory per op type; device.cpp looks them up here.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/cuda/bodies/bodies.h"
#include "device/cuda/door.h"
#include "plimsoll/device.h"

namespace plimsoll::cuda {

// Ends the names of kernels that round their factors to TF32.
inline constexpr std::string_view kTf32 = ":tf32";

// What cuBLASLt has for a product: the workspace of its best guess, and of the best without any, where there is one.
struct ProductWays {
  std::optional<Bytes> best, without_workspace;
  std::vector<ProductAlgorithm> further;
};

struct Context {
  std::shared_ptr<Door> door;
  bool tf32 = false;
  Bytes shared;        // Facts::shared
  int capability = 0;  // Facts::major
  // cuDNN's answers by convolution, and cuBLASLt's by product: the same layer is asked for again and again.
  mutable std::mutex mutex;
  mutable std::map<std::string, std::vector<ConvolutionAlgorithm>> algorithms;
  mutable std::map<std::string, ProductWays> products;
};

struct KernelFactory {
  // As Device::kernels and Device::make_kernel.
  std::vector<KernelSpec> (*specs)(const Context&, const Graph&, const Op&, LayoutFamily);
  std::unique_ptr<Kernel> (*make)(const Context&, const Graph&, const Op&, std::string_view kernel);
  int64_t (*row_alignment)(std::string_view kernel) = nullptr;  // absent: 1
};
using NamedFactory = std::pair<std::string_view, KernelFactory>;  // op type, its factory

std::vector<NamedFactory> convolution_kernels();
std::vector<NamedFactory> fully_connected_kernels();
std::vector<NamedFactory> elementwise_kernels();  // activations, Add, Bias, Constant
std::vector<NamedFactory> join_kernels();         // Concat, Slice, Reorder
std::vector<NamedFactory> pad_kernels();
std::vector<NamedFactory> permute_kernels();
std::vector<NamedFactory> resize_kernels();  // and adaptive pooling
std::vector<NamedFactory> take_kernels();    // Embedding, IndexSelect, Index, Gather
std::vector<NamedFactory> update_kernels();
std::vector<NamedFactory> random_kernels();
std::vector<NamedFactory> attention_kernels();
std::vector<NamedFactory> pointwise_kernels();  // and Cast, Expand, Reduce
std::vector<NamedFactory> pointwise_linear_kernels();
std::vector<NamedFactory> pool_kernels();  // and LRN
std::vector<NamedFactory> batch_norm_kernels();
std::vector<NamedFactory> sync_batch_norm_kernels();  // without its collectives
std::vector<NamedFactory> clip_kernels();
std::vector<NamedFactory> loss_kernels();
std::vector<NamedFactory> linear_cross_entropy_kernels();
std::vector<NamedFactory> matmul_kernels();
std::vector<NamedFactory> norm_kernels();  // LayerNorm, RmsNorm, GroupNorm
std::vector<NamedFactory> recurrent_kernels();
std::vector<NamedFactory> rotary_kernels();
std::vector<NamedFactory> softmax_kernels();
std::vector<NamedFactory> sort_kernels();  // and CumulativeSum

inline constexpr double kTf32Speed = 3;  // of tensor cores, by what full multiply-adds reach

// What all kernels share: pointers, a workspace of fixed size, and that they only ask the compute queue.
class CudaKernel : public Kernel {
 public:
  CudaKernel(const Context& context, const Graph& graph, const Op& op);
  Bytes workspace() const override { return workspace_bytes_; }
  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) override;
  void run() final;
  // What it touches then, but for its workspace.
  void add_touches(std::vector<Touch>& reads, std::vector<Touch>& writes) const;
  const std::shared_ptr<Door>& shared_door() const { return door_; }

 protected:
  virtual void work() = 0;

  template <class Body>
  void launch(const Body& body, int64_t count) const {
    static_assert(Bodies::number<Body>() >= 0);
    door_->launch(Queue::compute, Bodies::number<Body>(), &body, count);
  }
  // Sums over each channel, in pieces.
  template <class Term>
  void sum_channels(const Term& term, const Pieces& pieces, SumPair* sums) const {
    const Image& image = pieces.image;
    if (image.to_c == 1) {
      const bool fours = image.c % 4 == 0 && image.to_w % 4 == 0 && term.by_four();
      launch(SumPiecesAcross<Term>{term, pieces, sums, fours ? image.c / 4 : 0},
             (fours ? image.c / 4 : image.c.value) * pieces.pieces);
    } else {
      const bool fours = image.to_w == 1 && image.pixels % 4 == 0 && pieces.length % 4 == 0 && term.by_four();
      launch(SumPieces<Term>{term, pieces, sums, fours}, image.c * pieces.pieces);
    }
  }
  // The places that took each of `limit` rows, as lists in their order.
  void link_rows(const TakenRows& taken, int64_t limit, int32_t* head, int32_t* next) const {
    door_->fill(Queue::compute, head, 0xFF, static_cast<size_t>(limit) * sizeof(int32_t));
    launch(LinkWithinPieces{.next = next, .taken = taken}, taken.pieces());
    launch(LinkPieces{.head = head, .next = next, .taken = taken}, 1);
  }
  // Sums of the values of each channel, cut by pieces_of_values, to the totals or, where it `adds`, to what they hold.
  void sum_values(const float* x, const Pieces& pieces, void* sums, float* totals, bool adds = false) const;
  // The same of those rows alone that have this number. False, and nothing is asked for, where rows do not lie by fours.
  bool sum_rows_of(int64_t number, const int64_t* numbers, const float* x, const Pieces& pieces, double* sums,
                   float* totals) const;
  Door& door() const { return *door_; }
  template <class T = float>
  const T* input(size_t i) const {
    return static_cast<const T*>(inputs_[i]);
  }
  template <class T = float>
  T* output(size_t i) const {
    return static_cast<T*>(outputs_[i]);
  }
  template <class T>
  T* scratch(int64_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(workspace_) + offset);
  }
  bool has_input(size_t i) const { return i < inputs_.size() && inputs_[i] != nullptr; }
  bool has_output(size_t i) const { return i < outputs_.size() && outputs_[i] != nullptr; }

  Bytes workspace_bytes_;

 private:
  std::shared_ptr<Door> door_;
  std::vector<void*> inputs_, outputs_;
  std::vector<size_t> input_bytes_, output_bytes_;
  void* workspace_ = nullptr;
};

// Layouts: images channels last in that family, all else row-major.
Layout family_layout(LayoutFamily family, size_t rank);
// Throws Error(unsupported) that names the op unless it is of these: row-major, or channels last.
Image image_of(const Op& op, const Tensor& tensor);
// Any layout with at most one block a dimension.
Place place_in(const Op& op, const Tensor& tensor);
// Throws Error(unsupported) unless the op's floating tensors are f32; of sums that ranks exchange, f64.
void require_f32(const Graph& graph, const Op& op);
// Throws Error(unsupported) unless all tensors of the op that have the shape of `like` lie as it does.
void require_one_layout(const Graph& graph, const Op& op, const Tensor& like);

// One kernel, "own": images in the family's layout.
std::vector<KernelSpec> own_specs(const Context& context, const Graph& graph, const Op& op, LayoutFamily family);
// The same, on any layout that the tensors of the first input's shape share.
std::vector<KernelSpec> own_specs_any_layout(const Context& context, const Graph& graph, const Op& op,
                                             LayoutFamily family);
// One kernel, "own": every tensor row-major, whatever the family.
std::vector<KernelSpec> own_specs_row_major(const Context& context, const Graph& graph, const Op& op,
                                            LayoutFamily family);
// Throws Error(unsupported) unless every tensor of the op is row-major.
void require_row_major(const Graph& graph, const Op& op);
// A spec with this name and these layouts.
KernelSpec family_spec(const Graph& graph, const Op& op, LayoutFamily family, std::string name, Bytes workspace);
// Throw Error(unsupported) that names the op.
[[noreturn]] void refuse(const Op& op, const std::string& why);
[[noreturn]] void throw_no_kernel(const Op& op, std::string_view kernel);
void require_own(const Op& op, std::string_view kernel);

template <class K>
std::unique_ptr<Kernel> make_own(const Context& context, const Graph& graph, const Op& op, std::string_view kernel) {
  require_own(op, kernel);
  require_f32(graph, op);
  return std::make_unique<K>(context, graph, op);
}
// For kernels that only move elements, of whatever dtype.
template <class K>
std::unique_ptr<Kernel> make_own_any_dtype(const Context& context, const Graph& graph, const Op& op,
                                           std::string_view kernel) {
  require_own(op, kernel);
  return std::make_unique<K>(context, graph, op);
}
// Specs with the workspace that the kernel itself tells.
template <class K>
std::vector<KernelSpec> own_specs_with_workspace(const Context& context, const Graph& graph, const Op& op,
                                                 LayoutFamily family) {
  std::vector<KernelSpec> specs = own_specs(context, graph, op, family);
  specs[0].workspace = K::workspace_for(graph, op);
  return specs;
}

template <class K>
std::vector<KernelSpec> row_major_specs_with_workspace(const Context& context, const Graph& graph, const Op& op,
                                                       LayoutFamily) {
  return own_specs_with_workspace<K>(context, graph, op, LayoutFamily::plain);
}

// What an op draws `drawn` elements from: input `step_at` is the step's number, and the seed follows; their addresses are set
// when it runs.
Stream stream_of_op(const Graph& graph, const Op& op, size_t step_at, const Shape& drawn);

// How a channel's elements are cut, and the room that their sums take.
Pieces pieces_of(const Image& image);
Bytes room_for(const Pieces& pieces);
// The same for CudaKernel::sum_values.
Pieces pieces_of_values(const Image& image);

}  // namespace plimsoll::cuda
