// Convolutions: cuDNN's algorithms, each a kernel with its workspace, products of matrices for 1 x 1 kernels
// (kernels_convolution_product.cpp), and one plain kernel of ours where there is none that is exact. A transposed
// convolution is the other one's gradient, with the same weights.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "device/cuda/convolution_engines.h"
#include "device/cuda/kernels_convolution.h"
#include "device/cuda/products.h"
#include "device/cuda/slide.h"
#include "plimsoll/error.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

using Pass = Convolution::Pass;

constexpr std::string_view kLibrary = "cudnn:", kDirect = "own:direct";

// cuDNN's algorithms, as its documents and its users rank them; not measured by us. Weight gradients sum over the whole
// batch into few elements, which occupies fewer of a GPU's processors and does Winograd's transforms for less work.
struct KnownAlgorithm {
  std::string_view name;
  Algorithm algorithm;
  double data, weights;  // share of the dense rate: forward and backward to the data; backward to the weights
};
constexpr KnownAlgorithm kKnown[] = {
    {"winograd_nonfused", Algorithm::winograd, 0.9, 0.7},
    {"winograd", Algorithm::winograd, 0.8, 0.6},
    {"implicit_precomp_gemm", Algorithm::gemm, 0.7, 0.7},
    {"algo_1", Algorithm::gemm, 0.7, 0.55},   // the same kind of kernel in the backward passes
    {"algo_0", Algorithm::direct, 0.4, 0.3},  // sums by atomic additions
    {"fft", Algorithm::fft, 0.3, 0.25},       // pays for large windows only
    {"fft_tiling", Algorithm::fft, 0.3, 0.25},
    {"implicit_gemm", Algorithm::gemm, 0.35, 0.35},
};
constexpr KnownAlgorithm kOther{"", Algorithm::direct, 0.4, 0.4};
constexpr double kDirectEfficiency = 0.02;

// What kind of kernel an engine has is not known but for these. So where nothing is measured, the fixed functions that are known
// to be fast come first.
constexpr KnownAlgorithm kEngine{"", Algorithm::gemm, 0.6, 0.5}, kWinogradEngine{"", Algorithm::winograd, 0.65, 0.5},
    kFftEngine{"", Algorithm::fft, 0.25, 0.2};

const KnownAlgorithm& known_algorithm(std::string_view name) {
  if (const auto engine = parse_engine(name)) {
    return engine->winograd ? kWinogradEngine : engine->fft ? kFftEngine : kEngine;
  }
  for (const KnownAlgorithm& known : kKnown) {
    if (known.name == name) return known;
  }
  return kOther;
}

// cuDNN reads four floats at once.
int64_t row_alignment(std::string_view kernel) { return kernel.starts_with(kLibrary) ? 16 : 1; }

// The convolution that an op comes down to: which of its tensors are the large image, the weights and the small image.
struct Roles {
  Pass pass = Pass::forward;
  TensorId x, w, y;
  bool bias_added = false, bias_summed = false;
  bool large_is_second = false;  // the weight gradient of a transposed convolution
};
Roles roles_of(const Op& op) {
  const std::string& type = op.type->name;
  const auto in = [&](size_t i) { return op.inputs[i]; };
  const auto out = [&](size_t i) { return op.outputs[i]; };
  const bool added = op.inputs.size() > 2, summed = op.outputs.size() > 1;
  if (type == "ConvForward") return {Pass::forward, in(0), in(1), out(0), added, false, false};
  if (type == "ConvBackwardData") return {Pass::backward_data, out(0), in(1), in(0), false, false, false};
  if (type == "ConvBackwardWeights") return {Pass::backward_weights, in(0), out(0), in(1), false, summed, false};
  if (type == "ConvTransposeForward") return {Pass::backward_data, out(0), in(1), in(0), added, false, false};
  if (type == "ConvTransposeBackwardData") return {Pass::forward, in(0), in(1), out(0), false, false, false};
  return {Pass::backward_weights, in(1), out(0), in(0), false, summed, true};  // ConvTransposeBackwardWeights
}

bool has_relu(const Op& op) { return op.attributes.text("activation", "none") == "relu"; }

bool is_deep(const Graph& graph, const Roles& roles) { return graph.tensor(roles.x).shape.size() == 5; }

Layout weights_layout(const Graph& graph, const Roles& roles, LayoutFamily family) {
  if (family != LayoutFamily::channels_last || is_deep(graph, roles)) return {};
  // Outer channels, rows, columns, inner channels.
  return Layout{graph.tensor(roles.w).shape.size() == 5 ? "abdec" : "acdb"};
}

Layout images_layout(const Graph& graph, const Roles& roles, LayoutFamily family) {
  return family_layout(family, graph.tensor(roles.x).shape.size());
}

// The window of a convolution between two images, as its attributes and the images' sizes say.
Window window_of(const Graph& graph, const Op& op, const Roles& roles) {
  const Shape &x = graph.tensor(roles.x).shape, &w = graph.tensor(roles.w).shape, &y = graph.tensor(roles.y).shape;
  Window window = read_window(op.attributes, Shape(w.end() - std::ssize(x) + 2, w.end()), image_size(x));
  const std::vector<WindowAxis*> axes = window.axes();
  for (size_t i = 0; i < axes.size(); ++i) axes[i]->out = y[i + 2];
  return window;
}

Convolution convolution_of(const Graph& graph, const Op& op, const Roles& roles, bool channels_last) {
  const Window window = window_of(graph, op, roles);
  return {.pass = roles.pass,
          .channels_last = channels_last,
          .n = graph.tensor(roles.x).shape[0],
          .c = graph.tensor(roles.x).shape[1],
          .h = window.h.in,
          .w = window.w.in,
          .k = graph.tensor(roles.y).shape[1],
          .oh = window.h.out,
          .ow = window.w.out,
          .r = window.h.kernel,
          .s = window.w.kernel,
          .groups = op.attributes.integer("groups", 1),
          .stride_h = window.h.stride,
          .stride_w = window.w.stride,
          .dilation_h = window.h.dilation,
          .dilation_w = window.w.dilation,
          .top = window.h.before,
          .left = window.w.before,
          .bottom = window.h.after,
          .right = window.w.after,
          .deep = window.deep,
          .d = window.d.in,
          .od = window.d.out,
          .q = window.d.kernel,
          .stride_d = window.d.stride,
          .dilation_d = window.d.dilation,
          .front = window.d.before,
          .rear = window.d.after,
          .bias = roles.bias_added && roles.pass == Pass::forward,
          .relu = has_relu(op)};
}

// cuDNN 9.19 offers engines for weight gradients that take the padding behind an image for that before it. So where the two
// differ, such a gradient is that of a padded copy of x, which lies in the workspace.
bool needs_padded_copy(const Convolution& c) {
  return c.pass == Pass::backward_weights && (c.top != c.bottom || c.left != c.right || c.front != c.rear);
}
Convolution of_padded_copy(Convolution c) {
  c.d += c.front + c.rear, c.h += c.top + c.bottom, c.w += c.left + c.right;
  c.front = c.rear = c.top = c.bottom = c.left = c.right = 0;
  return c;
}
PadShape padded_copy(const Convolution& c) {
  const Convolution copy = of_padded_copy(c);
  PadShape shape{.mode = PadWith::constant, .rank = 0};
  const auto add = [&shape](int64_t in, int64_t begin, int64_t out) {
    const auto d = static_cast<size_t>(shape.rank++);
    shape.in[d] = in, shape.begin[d] = begin, shape.out[d] = out;
  };
  const int64_t outer = c.channels_last ? c.n : c.n * c.c;
  add(outer, 0, outer);
  if (c.deep) add(c.d, c.front, copy.d);
  add(c.h, c.top, copy.h);
  add(c.w, c.left, copy.w);
  if (c.channels_last) add(c.c, 0, c.c);
  return shape;
}
int64_t padded_copy_bytes(const Convolution& c) {
  if (!needs_padded_copy(c)) return 0;
  return (of_padded_copy(c).x_elements() * static_cast<int64_t>(sizeof(float)) + 255) / 256 * 256;
}

std::string key_of(const Convolution& c) {
  return fmt::format("{} {} {} {} {}", static_cast<int>(c.pass), c.channels_last, c.deep, c.bias, c.relu) +
         fmt::format(" {} {} {} {} {} {} {} {}", c.n, c.c, c.h, c.w, c.k, c.oh, c.ow, c.groups) +
         fmt::format(" {} {} {} {} {} {}", c.r, c.s, c.stride_h, c.stride_w, c.dilation_h, c.dilation_w) +
         fmt::format(" {} {} {} {}", c.top, c.left, c.bottom, c.right) +
         fmt::format(" {} {} {} {} {} {} {}", c.d, c.od, c.q, c.stride_d, c.dilation_d, c.front, c.rear);
}

std::vector<ConvolutionAlgorithm> algorithms_of(const Context& context, const Convolution& convolution) {
  const std::lock_guard lock(context.mutex);
  const std::string key = key_of(convolution);
  if (const auto known = context.algorithms.find(key); known != context.algorithms.end()) return known->second;
  return context.algorithms.emplace(key, context.door->algorithms(convolution, context.tf32)).first->second;
}

// What cuDNN offered and then refused to run is not offered again.
void forget(const Context& context, const Convolution& convolution, const ConvolutionAlgorithm& algorithm) {
  const std::lock_guard lock(context.mutex);
  const auto known = context.algorithms.find(key_of(convolution));
  if (known == context.algorithms.end()) return;
  std::erase_if(known->second,
                [&](const ConvolutionAlgorithm& a) { return a.name == algorithm.name && a.tf32 == algorithm.tf32; });
}

std::string name_of(const ConvolutionAlgorithm& algorithm) {
  return fmt::format("{}{}{}", kLibrary, algorithm.name, algorithm.tf32 ? kTf32 : "");
}

// An engine is known by its name: what the heuristics of another process said of it is not asked for again.
std::optional<ConvolutionAlgorithm> find_algorithm(const Context& context, const Convolution& convolution,
                                                   std::string_view kernel) {
  if (!kernel.starts_with(kLibrary)) return std::nullopt;
  std::string_view name = kernel.substr(kLibrary.size());
  const bool tf32 = name.ends_with(kTf32);
  if (tf32) name.remove_suffix(kTf32.size());
  if (tf32 && !context.tf32) return std::nullopt;
  if (const auto engine = parse_engine(name)) {
    if (engine->fused && !convolution.bias) return std::nullopt;
    return ConvolutionAlgorithm{.name = std::string(name),
                                .tf32 = tf32,
                                .deterministic = engine->deterministic,
                                .fused = engine->fused,
                                .workspace = {}};
  }
  for (const ConvolutionAlgorithm& a : algorithms_of(context, convolution)) {
    if (a.name == name && a.tf32 == tf32) return a;
  }
  return std::nullopt;
}

// The pieces of the sums over dy that a weight gradient with a bias needs: dy is the op's second input in both kinds.
Pieces bias_pieces(const Op& op, Tensor dy, const Layout& layout) {
  dy.layout = layout;
  return pieces_of_values(image_of(op, dy));
}

Layout layout_of(const Graph& graph, const Op& op, const Roles& roles) {
  const Tensor &x = graph.tensor(roles.x), &w = graph.tensor(roles.w), &y = graph.tensor(roles.y);
  const bool last = !x.layout.is_plain() || !y.layout.is_plain() || !w.layout.is_plain();
  const LayoutFamily family = last ? LayoutFamily::channels_last : LayoutFamily::plain;
  for (const Tensor* tensor : {&x, &w, &y}) {
    const Layout wanted = tensor == &w ? weights_layout(graph, roles, family) : images_layout(graph, roles, family);
    if (tensor->layout.tag != wanted.tag && !(wanted.is_plain() && tensor->layout.is_plain())) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}' ({}): '{}' lies as '{}'; CUDA's convolutions take all tensors row-major, "
                              "or all channels last",
                              op.name, op.type->name, tensor->name, tensor->layout.tag));
    }
  }
  return images_layout(graph, roles, family);
}

// An image with depth: its planes one below the other.
Image rows_of_planes(const Op& op, const Tensor& tensor) {
  Image image = image_of(op, tensor);
  if (tensor.shape.size() != 5) return image;
  image.h = tensor.shape[2] * tensor.shape[3];
  image.w = image.to_h = tensor.shape[4];
  return with_pixels(image);
}

class ConvolutionKernel : public CudaKernel {
 public:
  ConvolutionKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        roles_(roles_of(op)),
        layout_(layout_of(graph, op, roles_)),
        relu_(has_relu(op)) {
    const Tensor& out = graph.tensor(op.outputs[0]);
    out_count_ = element_count(out.shape);
    if (roles_.bias_added) out_image_ = image_of(op, out);
    if (roles_.bias_summed) {
      pieces_ = bias_pieces(op, graph.tensor(op.inputs[1]), layout_);
      workspace_bytes_ = room_for(pieces_);
    }
  }

 protected:
  void sum_bias() {
    if (!roles_.bias_summed) return;
    sum_values(input(1), pieces_, scratch<void>(), output(1));
  }

  Roles roles_;
  Layout layout_;
  bool relu_;
  Image out_image_;
  int64_t out_count_ = 0;
  Pieces pieces_;
};

class CudnnKernel final : public ConvolutionKernel {
 public:
  CudnnKernel(const Context& context, const Graph& graph, const Op& op, std::string_view kernel)
      : ConvolutionKernel(context, graph, op),
        context_(context),
        convolution_(convolution_of(graph, op, roles_, !layout_.is_plain())) {
    if (needs_padded_copy(convolution_)) {
      copy_ = padded_copy(convolution_);
      copy_bytes_ = padded_copy_bytes(convolution_);
      convolution_ = of_padded_copy(convolution_);
    }
    const std::optional<ConvolutionAlgorithm> found = find_algorithm(context, convolution_, kernel);
    if (!found) throw_no_kernel(op, kernel);
    algorithm_ = *found;
    try {
      prepared_ = context.door->prepare(convolution_, algorithm_);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      refusal_ = error.what();
    }
    workspace_bytes_ =
        std::max(workspace_bytes_, Bytes{copy_bytes_} + (prepared_ ? prepared_->workspace() : algorithm_.workspace));
  }

 private:
  void work() override {
    try {
      if (!prepared_) throw Error(ErrorCode::unsupported, refusal_);
      const float* large = input(roles_.large_is_second ? 1 : 0);
      if (copy_bytes_ > 0) {
        float* const copy = scratch<float>();
        launch(PadElements<uint32_t>{.y = reinterpret_cast<uint32_t*>(copy),
                                     .x = reinterpret_cast<const uint32_t*>(large),
                                     .value = 0,
                                     .shape = copy_},
               convolution_.x_elements());
        large = copy;
      }
      prepared_->run(large, input(roles_.large_is_second ? 0 : 1), algorithm_.fused ? input(2) : nullptr, output(0),
                     scratch<std::byte>(copy_bytes_));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::unsupported) forget(context_, convolution_, algorithm_);
      throw;
    }
    if (algorithm_.fused) return;
    if (roles_.bias_added) {
      launch(AddBias{.y = output(0), .x = output(0), .bias = input(2), .image = out_image_, .relu = relu_}, out_count_);
    } else if (relu_) {
      launch(Activate{.y = output(0), .x = output(0), .kind = Activation::relu, .slope = 0}, out_count_);
    }
    sum_bias();
  }

  const Context& context_;  // the device's, which outlives its kernels
  Convolution convolution_;
  PadShape copy_{};
  int64_t copy_bytes_ = 0;  // of a padded copy of x, at the front of the workspace
  ConvolutionAlgorithm algorithm_;
  std::unique_ptr<Prepared> prepared_;
  std::string refusal_;  // why there is none: told where every refusal is, when it is run
};

class DirectKernel final : public ConvolutionKernel {
 public:
  DirectKernel(const Context& context, const Graph& graph, const Op& op) : ConvolutionKernel(context, graph, op) {
    const Window window = window_of(graph, op, roles_);
    const int64_t groups = op.attributes.integer("groups", 1), taps = window.taps();
    const int64_t group_c = graph.tensor(roles_.x).shape[1] / groups;
    const int64_t apart = layout_.is_plain() ? 1 : group_c;  // between the taps of a row
    shape_ = {.x = rows_of_planes(op, graph.tensor(roles_.x)),
              .y = rows_of_planes(op, graph.tensor(roles_.y)),
              .groups = groups,
              .group_c = group_c,
              .group_k = graph.tensor(roles_.y).shape[1] / groups,
              .d = slide_of(window.d),
              .h = slide_of(window.h),
              .w = slide_of(window.w),
              .to_k = group_c * taps,
              .to_c = layout_.is_plain() ? taps : 1,
              .to_q = window.h.kernel * window.w.kernel * apart,
              .to_r = window.w.kernel * apart,
              .to_s = apart};
  }

 private:
  void work() override {
    const float* bias = roles_.bias_added ? input(2) : nullptr;
    switch (roles_.pass) {
      case Pass::forward:
        launch(
            DirectForward{.y = output(0), .x = input(0), .weights = input(1), .bias = bias, .d = shape_, .relu = relu_},
            out_count_);
        break;
      case Pass::backward_data:
        launch(DirectBackwardData{.dx = output(0), .dy = input(0), .weights = input(1), .bias = bias, .d = shape_},
               out_count_);
        break;
      case Pass::backward_weights: {
        const size_t x = roles_.large_is_second ? 1 : 0;
        launch(DirectBackwardWeights{.dw = output(0), .x = input(x), .dy = input(1 - x), .d = shape_}, out_count_);
        sum_bias();
        break;
      }
    }
  }

  DirectShape shape_{};
};

std::vector<KernelSpec> convolution_specs(const Context& context, const Graph& graph, const Op& op,
                                          LayoutFamily family) {
  const Roles roles = roles_of(op);
  const bool last = family == LayoutFamily::channels_last && !is_deep(graph, roles);
  const Bytes bias_room =
      roles.bias_summed ? room_for(bias_pieces(op, graph.tensor(op.inputs[1]), images_layout(graph, roles, family)))
                        : Bytes{};
  std::vector<KernelSpec> list;
  const auto laid_out = [&](std::string name, Bytes workspace) {
    KernelSpec spec = family_spec(graph, op, family, std::move(name), std::max(workspace, bias_room));
    const Layout weights = weights_layout(graph, roles, family);
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] == roles.w) spec.inputs[i] = weights;
    }
    if (op.outputs[0] == roles.w) spec.outputs[0] = weights;
    return spec;
  };
  auto add = [&](std::string name, Bytes workspace) -> KernelSpec& {
    return list.emplace_back(laid_out(std::move(name), workspace));
  };
  Convolution convolution = convolution_of(graph, op, roles, last);
  const Bytes copy{padded_copy_bytes(convolution)};
  if (needs_padded_copy(convolution)) convolution = of_padded_copy(convolution);
  for (const ConvolutionAlgorithm& a : algorithms_of(context, convolution)) {
    const KnownAlgorithm& known = known_algorithm(a.name);
    KernelSpec& spec = add(name_of(a), copy + a.workspace);
    spec.exact = a.deterministic && !a.tf32;
    spec.algorithm = known.algorithm;
    spec.estimate.efficiency =
        (a.tf32 ? kTf32Speed : 1) * (roles.pass == Pass::backward_weights ? known.weights : known.data);
  }
  if (copy == Bytes{}) {
    for (KernelSpec& spec : product_convolution_specs(context, op, convolution, laid_out("", {})))
      list.push_back(std::move(spec));
  }
  // Slow: where there is nothing else that is exact.
  if (std::none_of(list.begin(), list.end(), [](const KernelSpec& spec) { return spec.exact; })) {
    KernelSpec& spec = add(std::string(kDirect), {});
    spec.last_resort = true;
    spec.estimate.efficiency = kDirectEfficiency;
  }
  return list;
}

std::unique_ptr<Kernel> make_convolution(const Context& context, const Graph& graph, const Op& op,
                                         std::string_view kernel) {
  require_f32(graph, op);
  if (kernel == kDirect) return std::make_unique<DirectKernel>(context, graph, op);
  if (is_product(kernel)) {
    const Roles roles = roles_of(op);
    const bool last = !layout_of(graph, op, roles).is_plain();
    return make_product_convolution(context, graph, op, convolution_of(graph, op, roles, last), kernel);
  }
  return std::make_unique<CudnnKernel>(context, graph, op, kernel);
}

}  // namespace

std::vector<NamedFactory> convolution_kernels() {
  std::vector<NamedFactory> list;
  for (const char* type : {"ConvForward", "ConvBackwardData", "ConvBackwardWeights", "ConvTransposeForward",
                           "ConvTransposeBackwardData", "ConvTransposeBackwardWeights"}) {
    list.push_back({type, {convolution_specs, make_convolution, row_alignment}});
  }
  return list;
}

}  // namespace plimsoll::cuda
