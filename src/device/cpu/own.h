// What our own kernels share: how a tensor lies, how work is divided over threads, the pointers bound to an op.
#pragma once

#include <omp.h>

#include <algorithm>
#include <span>
#include <vector>

#include "device/cpu/kernels.h"

namespace plimsoll::cpu {

// A tensor as images x channels x pixels. Tensors of one or two dimensions, and images of one pixel, count as
// channels_last: a row of channels for each image.
struct Image {
  enum class Order : uint8_t { plain, channels_last, blocked } order = Order::plain;
  int64_t images = 1, channels = 1, pixels = 1;

  int64_t blocks() const { return (channels + 15) / 16; }
  int64_t padded_channels() const { return blocks() * 16; }
  int64_t elements() const {  // of the storage, with padding
    return images * pixels * (order == Order::blocked ? padded_channels() : channels);
  }
  int64_t at(int64_t n, int64_t c, int64_t p) const {  // position in the storage
    switch (order) {
      case Order::plain: return (n * channels + c) * pixels + p;
      case Order::channels_last: return (n * pixels + p) * channels + c;
      case Order::blocked: return ((n * blocks() + c / 16) * pixels + p) * 16 + c % 16;
    }
    return 0;
  }
};
// Throws Error(unsupported) on a layout other than row-major, "acdb" and "aBcd16b".
Image image_of(const Tensor& tensor);

// Sets the lanes of channels that do not exist to zero.
void clear_padding(float* data, const Image& image);

// One spec, "own": images in the family's layout, everything else plain.
std::vector<KernelSpec> own_specs(const Graph& graph, const Op& op, LayoutFamily family, int threads);
// The same for kernels that run on any layout that the tensors of the first input's shape share.
std::vector<KernelSpec> own_specs_any_layout(const Graph& graph, const Op& op, LayoutFamily family, int threads);

// The same with all tensors row-major, and of any dtype.
std::vector<KernelSpec> own_specs_row_major(const Graph& graph, const Op& op, LayoutFamily family, int threads);

// Throws Error(unsupported) unless all tensors of the op that have `shape` lie in one layout.
void require_one_layout(const Graph& graph, const Op& op, const Shape& shape);
// Throws Error(unsupported) unless the op's floating tensors are f32.
void require_f32(const Graph& graph, const Op& op);

// Calls body(part) for each part in [0, parts). Parts are fixed when a kernel is made, so which elements are summed
// together never depends on how many threads turn up.
template <class Body>
void for_each_part(int parts, const Body& body) {
  if (parts == 1) return body(0);
#pragma omp parallel num_threads(parts)
  for (int part = omp_get_thread_num(); part < parts; part += omp_get_num_threads()) body(part);
}

struct Range {
  int64_t begin = 0, end = 0;
};
// The part's share of [0, count), cut at multiples of `grain`.
inline Range share(int64_t count, int part, int parts, int64_t grain = 1) {
  const int64_t grains = (count + grain - 1) / grain;
  return {std::min(count, grains * part / parts * grain), std::min(count, grains * (part + 1) / parts * grain)};
}
// Waking threads costs more than a small tensor's work.
inline int parts_for(int64_t bytes, int threads) { return bytes < 32 * 1024 ? 1 : threads; }
// By what the op's tensors have without padding: workspaces are planned before their layouts are chosen.
inline int parts_for(const Graph& graph, const Op& op, int threads) {
  int64_t bytes = 0;
  const auto add = [&](TensorId id) {
    const Tensor& tensor = graph.tensor(id);
    bytes += storage_bytes(tensor.shape, tensor.dtype, {}).count;
  };
  for (TensorId id : op.inputs) add(id);
  for (TensorId id : op.outputs) add(id);
  return parts_for(bytes, threads);
}

struct AnyDType {};  // says that a kernel only moves elements, of whatever dtype

// The part of a kernel that is the same for all: pointers, and a workspace of fixed size.
class OwnKernel : public Kernel {
 public:
  OwnKernel(const Graph& graph, const Op& op, int threads);
  OwnKernel(const Graph& graph, const Op& op, int threads, AnyDType);
  Bytes workspace() const override { return workspace_bytes_; }
  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) override {
    std::copy(inputs.begin(), inputs.end(), inputs_.begin());
    std::copy(outputs.begin(), outputs.end(), outputs_.begin());
    workspace_ = workspace;
  }

 protected:
  template <class T = float>
  const T* input(size_t i) const {
    return static_cast<const T*>(inputs_[i]);
  }
  template <class T = float>
  T* output(size_t i) const {
    return static_cast<T*>(outputs_[i]);
  }

  int parts_;
  std::vector<void*> inputs_, outputs_;
  void* workspace_ = nullptr;
  Bytes workspace_bytes_;
};

// Throws Error(unsupported) on another name than "own".
void require_own(const Op& op, std::string_view kernel);

template <class K>
std::unique_ptr<Kernel> make_own(const Graph& graph, const Op& op, std::string_view kernel, int threads) {
  require_own(op, kernel);
  return std::make_unique<K>(graph, op, threads);
}

}  // namespace plimsoll::cpu
