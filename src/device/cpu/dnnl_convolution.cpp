// Convolutions by oneDNN: three passes, plain and transposed, with groups and dilation; of images with depth, too, which
// lie row-major. Most kernels for those want blocks of channels: these run on copies in their workspace.
//
// A transposed convolution is a convolution with its passes exchanged: its forward pass is the other's backward pass to
// the data, with the very same weights. So it has the same choice of algorithms. Only a bias, which a backward pass
// does not add, needs oneDNN's deconvolution, which counts weights from the other side.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "device/cpu/dnnl.h"

namespace plimsoll::cpu {
namespace {

// The convolution that an op comes down to: x and y are its small ends, whichever of the op's tensors they are.
struct Convolution {
  Pass pass = Pass::forward;
  bool deconvolution = false;
  bool relu = false;
  Slot x, weights, y;
  std::optional<Slot> bias;
  bool grouped = false;
  dnnl_dims_t stride{}, dilation{}, padding_begin{}, padding_end{};  // by oneDNN, 0 is no dilation
};

Convolution read_convolution(const Graph& graph, const Op& op) {
  const std::string& type = op.type->name;
  const Attributes& a = op.attributes;
  Convolution c;
  const size_t count = graph.tensor(op.inputs[0]).shape.size() - 2;  // an image, whichever op it is
  const Shape stride = a.integers("stride", Shape(count, 1)), dilation = a.integers("dilation", Shape(count, 1));
  const Shape padding = a.integers("padding", Shape(2 * count, 0));
  for (size_t i = 0; i < count; ++i) {
    c.stride[i] = stride.at(i);
    c.dilation[i] = dilation.at(i) - 1;
    c.padding_begin[i] = padding.at(i);
    c.padding_end[i] = padding.at(i + count);
  }
  c.grouped = a.integer("groups", 1) > 1;
  c.relu = a.text("activation", "none") == "relu";
  const bool forward_bias = op.inputs.size() > 2, backward_bias = op.outputs.size() > 1;
  if (type == "ConvForward") {
    c.x = input(0), c.weights = input(1), c.y = output(0);
    if (forward_bias) c.bias = input(2);
  } else if (type == "ConvBackwardData") {
    c.pass = Pass::backward_data;
    c.y = input(0), c.weights = input(1), c.x = output(0);
  } else if (type == "ConvBackwardWeights") {
    c.pass = Pass::backward_weights;
    c.x = input(0), c.y = input(1), c.weights = output(0);
    if (backward_bias) c.bias = output(1);
  } else if (type == "ConvTransposeForward") {
    c.weights = input(1);
    if (forward_bias) {
      c.deconvolution = true;
      c.x = input(0), c.y = output(0), c.bias = input(2);
    } else {
      c.pass = Pass::backward_data;
      c.y = input(0), c.x = output(0);
    }
  } else if (type == "ConvTransposeBackwardData") {
    c.x = input(0), c.weights = input(1), c.y = output(0);
  } else {  // ConvTransposeBackwardWeights
    c.pass = Pass::backward_weights;
    c.weights = output(0);
    if (backward_bias) {
      c.deconvolution = true;
      c.x = input(0), c.y = input(1), c.bias = output(1);
    } else {
      c.x = input(1), c.y = input(0);
    }
  }
  return c;
}

// Weights of a deconvolution with input and output channels exchanged: between ours [g, C/g, K/g, R, S] and oneDNN's.
dnnl_memory_desc_t exchange_channels(const dnnl_memory_desc_t& descriptor, bool grouped) {
  int axes[DNNL_MAX_NDIMS];
  for (int d = 0; d < descriptor.ndims; ++d) axes[d] = d;
  std::swap(axes[grouped ? 1 : 0], axes[grouped ? 2 : 1]);
  dnnl_memory_desc_t result;
  PLIMSOLL_DNNL(dnnl_memory_desc_permute_axes(&result, &descriptor, axes));
  return result;
}

// The three layouts that decide which implementations there are; no weights layout: whatever suits each.
struct Layouts {
  Layout x, y;
  std::optional<Layout> weights;
};

struct Operation {
  dnnl_convolution_desc_t descriptor;  // a deconvolution's is the same type
  PrimitiveAttributes attributes;
  bool valid = false;
};

Operation make_operation(const Graph& graph, const Op& op, const Convolution& c, const Layouts& layouts,
                         bool winograd) {
  const Tensor &x = tensor_at(graph, op, c.x), &w = tensor_at(graph, op, c.weights), &y = tensor_at(graph, op, c.y);
  const dnnl_memory_desc_t x_memory = describe(x.shape, x.dtype, layouts.x);
  const dnnl_memory_desc_t y_memory = describe(y.shape, y.dtype, layouts.y);
  dnnl_memory_desc_t w_memory;
  if (layouts.weights) {
    w_memory = describe(w.shape, w.dtype, *layouts.weights);
    if (c.deconvolution) w_memory = exchange_channels(w_memory, c.grouped);
  } else {
    Shape shape = w.shape;
    if (c.deconvolution) std::swap(shape[c.grouped ? 1 : 0], shape[c.grouped ? 2 : 1]);
    w_memory = describe_any(shape, w.dtype);
  }
  dnnl_memory_desc_t bias_memory;
  const dnnl_memory_desc_t* bias = nullptr;
  if (c.bias) {
    bias_memory = describe(tensor_at(graph, op, *c.bias).shape, DType::f32, {});
    bias = &bias_memory;
  }
  const dnnl_alg_kind_t algorithm = c.deconvolution ? dnnl_deconvolution_direct
                                    : winograd      ? dnnl_convolution_winograd
                                                    : dnnl_convolution_direct;
  Operation result;
  result.attributes.relu = c.relu && c.pass == Pass::forward;
  dnnl_convolution_desc_t* d = &result.descriptor;
  dnnl_status_t status = dnnl_success;
  switch (c.pass) {
    case Pass::forward:
      status =
          (c.deconvolution ? dnnl_dilated_deconvolution_forward_desc_init : dnnl_dilated_convolution_forward_desc_init)(
              d, dnnl_forward_training, algorithm, &x_memory, &w_memory, bias, &y_memory, c.stride, c.dilation,
              c.padding_begin, c.padding_end);
      break;
    case Pass::backward_data:
      status = dnnl_dilated_convolution_backward_data_desc_init(d, algorithm, &x_memory, &w_memory, &y_memory, c.stride,
                                                                c.dilation, c.padding_begin, c.padding_end);
      break;
    case Pass::backward_weights:
      status = (c.deconvolution ? dnnl_dilated_deconvolution_backward_weights_desc_init
                                : dnnl_dilated_convolution_backward_weights_desc_init)(
          d, algorithm, &x_memory, &w_memory, bias, &y_memory, c.stride, c.dilation, c.padding_begin, c.padding_end);
      break;
  }
  result.valid = status == dnnl_success;
  return result;
}

const dnnl_memory_desc_t& weights_memory(const Convolution& c, const Implementation& one) {
  return c.pass == Pass::backward_weights ? one.memory(dnnl_query_diff_weights_md) : one.memory(dnnl_query_weights_md);
}

// The layouts of x and y to try for a family, best first. An image of few channels is taken as it is where a kernel
// can: padding 3 channels to 16 takes five times the memory.
std::vector<Layouts> candidate_layouts(const Graph& graph, const Op& op, const Convolution& c, LayoutFamily family) {
  if (tensor_at(graph, op, c.x).shape.size() == 5) return {{Layout{}, Layout{}, {}}};
  const Layout plain = family_layout(LayoutFamily::plain, 4), last = family_layout(LayoutFamily::channels_last, 4);
  const Layout blocked = family_layout(LayoutFamily::blocked, 4);
  switch (family) {
    case LayoutFamily::plain: return {{plain, plain, {}}};
    case LayoutFamily::channels_last: return {{last, last, {}}};
    case LayoutFamily::blocked: break;
  }
  std::vector<Layouts> result;
  const bool few_x = tensor_at(graph, op, c.x).shape[1] < 8, few_y = tensor_at(graph, op, c.y).shape[1] < 8;
  if (few_x) result.push_back({plain, blocked, {}});
  result.push_back({blocked, blocked, {}});
  if (few_x || few_y) {
    result.push_back({last, last, {}});
    result.push_back({plain, plain, {}});
  }
  return result;
}

// Winograd F(4x4,3x3) does a quarter of the multiplications, but transforms its weights at every call, which pays over
// many output pixels only. Measured on AVX-512: 1.5x to 2.3x of direct at batch 16, below 1x at batch 1 and 2, 1.1x at
// 7x7.
double winograd_efficiency(const Graph& graph, const Op& op, const Convolution& c) {
  const Shape &x = tensor_at(graph, op, c.x).shape, &y = tensor_at(graph, op, c.y).shape;
  const Shape& larger = y[2] * y[3] > x[2] * x[3] ? y : x;
  const double full = std::clamp(0.55 + 0.1 * static_cast<double>(larger[0]), 0.6, 1.8);
  return larger[2] * larger[3] <= 64 ? 0.6 * full : full;
}

KernelEstimate estimate(const Graph& graph, const Op& op, const Convolution& c, const Implementation& one,
                        bool winograd) {
  if (winograd) return {.efficiency = winograd_efficiency(graph, op, c)};
  const bool weights = c.pass == Pass::backward_weights;
  const Shape& w = tensor_at(graph, op, c.weights).shape;
  if (weights && c.grouped && w[1] == 1 && w[2] == 1) return {.efficiency = 0.02};  // depthwise: slow by GEMM too
  if (one.is_gemm()) return {.efficiency = weights ? 0.4 : 0.5};
  return {.efficiency = weights ? 0.8 : 0.9};
}

bool has_depth(const Graph& graph, const Op& op, const Convolution& c) {
  return tensor_at(graph, op, c.x).shape.size() == 5;
}

// The layouts in which the copies of images with depth lie, best first. One that is row-major is no copy.
std::vector<Layouts> layouts_of_copies(const Graph& graph, const Op& op, const Convolution& c) {
  const Layout blocked{"aBcde16b"};
  std::vector<Layouts> result;
  if (tensor_at(graph, op, c.x).shape[1] < 8) result.push_back({Layout{}, blocked, {}});
  result.push_back({blocked, blocked, {}});
  return result;
}

int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// An image and its copy in the workspace.
struct ImageCopy {
  Slot slot;
  Bytes bytes;  // of the copy
  dnnl_memory_desc_t from, to;
  Implementation reorder;
};
std::vector<ImageCopy> copies_of_images(const Graph& graph, const Op& op, const Convolution& c,
                                        const Layouts& layouts) {
  std::vector<ImageCopy> result;
  for (const auto& [slot, layout] : {std::pair(c.x, layouts.x), std::pair(c.y, layouts.y)}) {
    if (layout.is_plain()) continue;
    const Tensor& image = tensor_at(graph, op, slot);
    dnnl_memory_desc_t from = describe(image.shape, image.dtype, {}), to = describe(image.shape, image.dtype, layout);
    if (slot.is_output) std::swap(from, to);
    const Bytes bytes{whole_lines(storage_bytes(image.shape, image.dtype, layout).count)};
    result.push_back({slot, bytes, from, to, reorder_between(from, to)});
  }
  return result;
}
// `own`: what the convolution and the reorders need behind the copies.
Bytes workspace_with(const std::vector<ImageCopy>& copies, Bytes own) {
  int64_t bytes = 0;
  for (const ImageCopy& copy : copies) {
    bytes += copy.bytes.count;
    own.count = std::max(own.count, copy.reorder.workspace().count);
  }
  return {bytes + own.count};
}

// A convolution between reorders of its images to and from copies in the workspace, behind which its own begins.
class ConvolutionOnCopies final : public Kernel {
 public:
  ConvolutionOnCopies(const Op& op, const std::vector<ImageCopy>& copies, std::unique_ptr<Kernel> convolution,
                      int threads)
      : convolution_(std::move(convolution)),
        workspace_(workspace_with(copies, convolution_->workspace())),
        inputs_(op.inputs.size()),
        outputs_(op.outputs.size()) {
    for (const ImageCopy& copy : copies) {
      const std::vector<Argument> arguments = {{DNNL_ARG_FROM, input(0), copy.from}, {DNNL_ARG_TO, output(0), copy.to}};
      copies_.push_back({copy.slot, copy.bytes, make_dnnl_kernel(op, copy.reorder, arguments, threads)});
    }
  }

  Bytes workspace() const override { return workspace_; }

  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) override {
    std::copy(inputs.begin(), inputs.end(), inputs_.begin());
    std::copy(outputs.begin(), outputs.end(), outputs_.begin());
    std::byte* own = static_cast<std::byte*>(workspace);
    for (const Copy& copy : copies_) own += copy.bytes.count;
    std::byte* at = static_cast<std::byte*>(workspace);
    for (const Copy& copy : copies_) {
      void*& image = copy.slot.is_output ? outputs_[copy.slot.index] : inputs_[copy.slot.index];
      void *from = image, *to = at;
      image = at;
      if (copy.slot.is_output) std::swap(from, to);
      copy.reorder->bind(std::span(&from, 1), std::span(&to, 1), own);
      at += copy.bytes.count;
    }
    convolution_->bind(inputs_, outputs_, own);
  }

  void run() override {
    for (const Copy& copy : copies_) {
      if (!copy.slot.is_output) copy.reorder->run();
    }
    convolution_->run();
    for (const Copy& copy : copies_) {
      if (copy.slot.is_output) copy.reorder->run();
    }
  }

 private:
  struct Copy {
    Slot slot;  // the image that it is of
    Bytes bytes;
    std::unique_ptr<Kernel> reorder;
  };
  std::unique_ptr<Kernel> convolution_;
  Bytes workspace_;
  std::vector<Copy> copies_;
  std::vector<void*> inputs_, outputs_;
};

// Adds a spec for every implementation on these layouts. Names stay unique: one that is there already gets its
// layouts'.
void add_specs(const Graph& graph, const Op& op, const Convolution& c, Layouts layouts, bool winograd,
               std::vector<KernelSpec>& specs) {
  const Operation any = make_operation(graph, op, c, layouts, winograd);
  if (!any.valid) return;
  for (const Implementation& one : implementations(&any.descriptor, any.attributes)) {
    const dnnl_memory_desc_t weights = c.deconvolution && weights_memory(c, one).format_kind == dnnl_blocked
                                           ? exchange_channels(weights_memory(c, one), c.grouped)
                                           : weights_memory(c, one);
    std::optional<Layout> layout = layout_of(weights);
    Bytes workspace = one.workspace();
    if (!layout) {  // its own format, unknown to everybody else: does it take a plain one?
      layouts.weights = Layout{};
      const Operation fixed = make_operation(graph, op, c, layouts, winograd);
      const auto again = find_implementation(&fixed.descriptor, one.name, fixed.attributes);
      layouts.weights.reset();
      if (!again) continue;
      layout = Layout{};
      workspace = again->workspace();
    }
    std::string name = one.name;
    if (std::any_of(specs.begin(), specs.end(), [&](const KernelSpec& s) { return s.name == name; })) {
      name += fmt::format("@{}", layouts.x.tag.empty() ? "abcd" : layouts.x.tag);
    }
    KernelSpec spec = make_spec(op, name, workspace);
    layout_at(spec, c.x) = layouts.x;
    layout_at(spec, c.y) = layouts.y;
    layout_at(spec, c.weights) = *layout;
    spec.algorithm = winograd ? Algorithm::winograd : one.is_gemm() ? Algorithm::gemm : Algorithm::direct;
    spec.estimate = estimate(graph, op, c, one, winograd);
    specs.push_back(std::move(spec));
  }
}

// What runs on copies of images with depth.
void add_specs_on_copies(const Graph& graph, const Op& op, const Convolution& c, std::vector<KernelSpec>& specs) {
  for (const Layouts& layouts : layouts_of_copies(graph, op, c)) {
    std::vector<KernelSpec> found;
    add_specs(graph, op, c, layouts, false, found);
    if (found.empty()) continue;
    const std::vector<ImageCopy> copies = copies_of_images(graph, op, c, layouts);
    for (KernelSpec& spec : found) {
      spec.name += fmt::format("@{}", layouts.x.is_plain() ? "abcde" : layouts.x.tag);
      spec.workspace = workspace_with(copies, spec.workspace);
      layout_at(spec, c.x) = layout_at(spec, c.y) = {};
      for (const ImageCopy& copy : copies) spec.estimate.extra_bytes += 2.0 * static_cast<double>(copy.bytes.count);
      specs.push_back(std::move(spec));
    }
  }
}

std::vector<KernelSpec> convolution_specs(const Graph& graph, const Op& op, LayoutFamily family, int threads) {
  expect_countable(graph, op);
  const ThreadCount scope(threads);
  const Convolution c = read_convolution(graph, op);
  std::vector<KernelSpec> result;
  for (const Layouts& layouts : candidate_layouts(graph, op, c, family)) {
    add_specs(graph, op, c, layouts, false, result);
    if (family == LayoutFamily::blocked && !c.deconvolution) add_specs(graph, op, c, layouts, true, result);
  }
  if (has_depth(graph, op, c)) add_specs_on_copies(graph, op, c, result);
  // Some shapes have no kernel in a family: another's runs them, between reorders.
  for (LayoutFamily other : {LayoutFamily::channels_last, LayoutFamily::plain, LayoutFamily::blocked}) {
    if (!result.empty()) break;
    for (const Layouts& layouts : candidate_layouts(graph, op, c, other))
      add_specs(graph, op, c, layouts, false, result);
  }
  if (result.empty()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}' ({}): oneDNN has no kernel for this convolution", op.name, op.type->name));
  }
  return result;
}

// The named implementation on these layouts. oneDNN wants the strides of dimensions of size 1 its own way, too: where
// it does not know ours, its own choice will do if that is the same storage.
std::optional<Implementation> find(const Graph& graph, const Op& op, const Convolution& c, const Layouts& layouts,
                                   std::string_view name, bool winograd) {
  const Operation fixed = make_operation(graph, op, c, layouts, winograd);
  if (!fixed.valid) return std::nullopt;
  if (auto one = find_implementation(&fixed.descriptor, name, fixed.attributes)) return one;
  const Operation any = make_operation(graph, op, c, {layouts.x, layouts.y, std::nullopt}, winograd);
  auto one = find_implementation(&any.descriptor, name, any.attributes);
  if (one && same_storage(weights_memory(c, *one), c.pass == Pass::backward_weights ? fixed.descriptor.diff_weights_desc
                                                                                    : fixed.descriptor.weights_desc))
    return one;
  return std::nullopt;
}

std::unique_ptr<Kernel> make_convolution(const Graph& graph, const Op& op, std::string_view kernel, int threads) {
  const ThreadCount scope(threads);
  const Convolution c = read_convolution(graph, op);
  const size_t at = kernel.find('@');
  const std::string name(kernel.substr(0, at));
  Layouts layouts{tensor_at(graph, op, c.x).layout, tensor_at(graph, op, c.y).layout,
                  tensor_at(graph, op, c.weights).layout};
  std::vector<ImageCopy> copies;
  if (has_depth(graph, op, c) && at != std::string_view::npos) {
    for (const Layouts& those : layouts_of_copies(graph, op, c)) {
      if (kernel.substr(at + 1) == (those.x.is_plain() ? "abcde" : those.x.tag))
        layouts.x = those.x, layouts.y = those.y;
    }
    copies = copies_of_images(graph, op, c, layouts);
  }
  std::optional<Implementation> one = find(graph, op, c, layouts, name, false);
  if (!one && !c.deconvolution) one = find(graph, op, c, layouts, name, true);
  if (!one) {
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}' ({}): no kernel '{}' for the layouts x '{}', weights '{}', y '{}'", op.name,
                            op.type->name, kernel, layouts.x.tag, layouts.weights->tag, layouts.y.tag));
  }
  const bool x_is_made = c.pass == Pass::backward_data, w_is_made = c.pass == Pass::backward_weights;
  const bool y_is_made = c.pass == Pass::forward;
  std::vector<Argument> arguments = {
      {x_is_made ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, c.x,
       one->memory(x_is_made ? dnnl_query_diff_src_md : dnnl_query_src_md)},
      {w_is_made ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, c.weights, weights_memory(c, *one)},
      {y_is_made ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, c.y,
       one->memory(y_is_made ? dnnl_query_dst_md : dnnl_query_diff_dst_md)},
  };
  if (c.bias) {
    arguments.push_back({w_is_made ? DNNL_ARG_DIFF_BIAS : DNNL_ARG_BIAS, *c.bias,
                         describe(tensor_at(graph, op, *c.bias).shape, DType::f32, {})});
  }
  std::unique_ptr<Kernel> convolution = make_dnnl_kernel(op, *one, arguments, threads);
  if (copies.empty()) return convolution;
  return std::make_unique<ConvolutionOnCopies>(op, copies, std::move(convolution), threads);
}

}  // namespace

std::vector<NamedFactory> dnnl_convolution_kernels() {
  std::vector<NamedFactory> result;
  for (std::string_view type : {"ConvForward", "ConvBackwardData", "ConvBackwardWeights", "ConvTransposeForward",
                                "ConvTransposeBackwardData", "ConvTransposeBackwardWeights"}) {
    result.push_back({type, {convolution_specs, make_convolution}});
  }
  return result;
}

}  // namespace plimsoll::cpu
