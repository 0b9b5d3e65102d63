#include "device/cpu/own.h"

#include <fmt/format.h>

#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

bool same_layout(const Layout& a, const Layout& b) { return a == b || (a.is_plain() && b.is_plain()); }

std::vector<Layout> layouts(const Graph& graph, std::span<const TensorId> tensors, LayoutFamily family) {
  std::vector<Layout> result;
  for (TensorId id : tensors) result.push_back(family_layout(family, graph.tensor(id).shape.size()));
  return result;
}

}  // namespace

Image image_of(const Tensor& tensor) {
  Image image;
  const Shape& shape = tensor.shape;
  if (shape.size() == 1) image.channels = shape[0];
  if (shape.size() >= 2) {
    image.images = shape[0];
    image.channels = shape[1];
    for (size_t d = 2; d < shape.size(); ++d) image.pixels *= shape[d];
  }
  if (tensor.layout.is_plain()) {
    image.order = image.pixels == 1 ? Image::Order::channels_last : Image::Order::plain;
  } else if (tensor.layout.tag == "acdb") {
    image.order = Image::Order::channels_last;
  } else if (tensor.layout.tag == "aBcd16b") {
    image.order = Image::Order::blocked;
  } else {
    throw Error(ErrorCode::unsupported,
                fmt::format("tensor '{}' lies in layout '{}'; this kernel takes row-major, 'acdb' "
                            "and 'aBcd16b'",
                            tensor.name, tensor.layout.tag));
  }
  return image;
}

void clear_padding(float* data, const Image& image) {
  const int64_t used = image.channels % 16;
  if (image.order != Image::Order::blocked || used == 0) return;
  for (int64_t n = 0; n < image.images; ++n) {
    float* last = data + ((n + 1) * image.blocks() - 1) * image.pixels * 16;
    for (int64_t p = 0; p < image.pixels; ++p) std::fill(last + p * 16 + used, last + p * 16 + 16, 0.0f);
  }
}

std::vector<KernelSpec> own_specs(const Graph& graph, const Op& op, LayoutFamily family, int threads) {
  (void)threads;
  require_f32(graph, op);
  return {{.name = "own", .inputs = layouts(graph, op.inputs, family), .outputs = layouts(graph, op.outputs, family)}};
}

std::vector<KernelSpec> own_specs_any_layout(const Graph& graph, const Op& op, LayoutFamily family, int threads) {
  std::vector<KernelSpec> specs = own_specs(graph, op, family, threads);
  const Shape& shape = graph.tensor(op.inputs[0]).shape;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (graph.tensor(op.inputs[i]).shape == shape) specs[0].inputs[i] = kAnyLayout;
  }
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    if (graph.tensor(op.outputs[i]).shape == shape) specs[0].outputs[i] = kAnyLayout;
  }
  return specs;
}

std::vector<KernelSpec> own_specs_row_major(const Graph& graph, const Op& op, LayoutFamily, int) {
  return {{.name = "own",
           .inputs = layouts(graph, op.inputs, LayoutFamily::plain),
           .outputs = layouts(graph, op.outputs, LayoutFamily::plain)}};
}

void require_one_layout(const Graph& graph, const Op& op, const Shape& shape) {
  const Tensor* first = nullptr;
  auto see = [&](TensorId id) {
    const Tensor& tensor = graph.tensor(id);
    if (tensor.shape != shape) return;
    if (first == nullptr) first = &tensor;
    if (same_layout(first->layout, tensor.layout)) return;
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}' wants its tensors in one layout, but '{}' lies in '{}' and '{}' in '{}'", op.name,
                            first->name, first->layout.tag, tensor.name, tensor.layout.tag));
  };
  for (TensorId id : op.inputs) see(id);
  for (TensorId id : op.outputs) see(id);
}

void require_f32(const Graph& graph, const Op& op) {
  if (op.type->name == "SquareSums" || op.type->name == "NormOfSums") return;  // sums that ranks exchange are f64
  auto see = [&](TensorId id) {
    const Tensor& tensor = graph.tensor(id);
    if (tensor.dtype != DType::f64) return;
    throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}): tensor '{}' is f64; the CPU device computes in f32",
                                                    op.name, op.type->name, tensor.name));
  };
  for (TensorId id : op.inputs) see(id);
  for (TensorId id : op.outputs) see(id);
}

void require_own(const Op& op, std::string_view kernel) {
  if (kernel == "own") return;
  throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}): no kernel '{}'", op.name, op.type->name, kernel));
}

OwnKernel::OwnKernel(const Graph& graph, const Op& op, int threads) : OwnKernel(graph, op, threads, AnyDType{}) {
  require_f32(graph, op);
}

OwnKernel::OwnKernel(const Graph& graph, const Op& op, int threads, AnyDType)
    : parts_(parts_for(graph, op, threads)), inputs_(op.inputs.size()), outputs_(op.outputs.size()) {}

}  // namespace plimsoll::cpu
