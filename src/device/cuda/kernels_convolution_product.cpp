// Convolutions with a 1 x 1 kernel, which are products of matrices, by cuBLASLt. With N images of P pixels:
//
//                       channels last: one product         row-major: a product an image
//   forward             y[NP,K] = x[NP,C] w[K,C]'          y[K,P] = w[K,C] x[C,P]
//   backward data       dx[NP,C] = dy[NP,K] w[K,C]         dx[C,P] = w[K,C]' dy[K,P]
//   backward weights    dw[K,C] = dy[NP,K]' x[NP,C]        dw[K,C] = the sum over images of dy[K,P] x[C,P]'
//
// Weight gradients are also made in parts ("cublaslt_in_parts"): a batch of products, each of some of the images, has
// sums of its own in the workspace, and these are added up in their order. Which images belong to which of four parts:
//
//   channels last    0 1 | 2 3 | 4 5 | 6 7    8 adds to the first
//   row-major        0 | 1 | 2 | 3            first round
//                    4 | 5 | 6 | 7            further ones add to the same sums
//                    8                        what is left
#include <algorithm>
#include <optional>

#include "device/cuda/kernels_convolution.h"
#include "device/cuda/products.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

using Pass = Convolution::Pass;

constexpr Bytes kMostPartialSums = 64_MiB;
constexpr int64_t kProductTile = 128, kTilesARound = 1024;  // more do not occupy a GPU any better
constexpr size_t kFurtherOfConvolutions = 2;
// Without measurements cuDNN's algorithms come first.
constexpr double kBehindCudnn = 0.375;

constexpr std::string_view kWhole = "cublaslt", kInParts = "cublaslt_in_parts";

struct ConvolutionProduct {
  Product product;            // of the first round
  bool second_first = false;  // a is the op's second input, b its first
  bool bias_apart = false;    // added by a kernel of ours
  int64_t parts = 1, rounds = 1;
  int64_t a_step = 0, b_step = 0;  // elements from one round to the next
  std::optional<Product> tail;     // of the images that are left
  int64_t sum_elements() const { return parts > 1 ? product.m * product.n : 0; }
  Bytes sums() const { return {(parts * sum_elements() * 4 + 255) / 256 * 256}; }
  Product further() const {
    Product adds = product;
    adds.adds = true;
    return adds;
  }
};

bool goes_over_all_pixels(const Convolution& c) {
  return c.r == 1 && c.s == 1 && c.q == 1 && !c.deep && c.groups == 1 && c.stride_h == 1 && c.stride_w == 1 &&
         c.top == 0 && c.left == 0 && c.bottom == 0 && c.right == 0 && c.h == c.oh && c.w == c.ow;
}
bool is_offered(const Op& op, const Convolution& c) {
  return !op.type->name.starts_with("ConvTranspose") && goes_over_all_pixels(c) &&
         std::max(c.x_elements(), c.y_elements()) <= INT32_MAX;
}

// Of a weight gradient.
int64_t most_parts(const Convolution& c) {
  const int64_t tiles = ((c.k + kProductTile - 1) / kProductTile) * ((c.c + kProductTile - 1) / kProductTile);
  const int64_t room = kMostPartialSums.count / (4 * c.w_elements()), enough = (kTilesARound + tiles - 1) / tiles;
  return std::clamp<int64_t>(std::min(room, enough), 1, c.n);
}
bool has_parts(const Convolution& c) {
  return c.pass == Pass::backward_weights && (!c.channels_last || most_parts(c) > 1);
}
bool has_whole(const Convolution& c) { return c.pass != Pass::backward_weights || c.channels_last; }

ConvolutionProduct in_parts(const Convolution& c) {
  const int64_t pixels = c.h * c.w, rounds = (c.n + most_parts(c) - 1) / most_parts(c);
  ConvolutionProduct of{.product = {.m = c.k, .n = c.c}, .second_first = true};
  const int64_t together = c.channels_last ? rounds : 1;  // images of one product
  of.parts = c.channels_last ? c.n / together : (c.n + rounds - 1) / rounds;
  of.rounds = c.n / (of.parts * together);
  of.product.k = together * pixels;
  (c.channels_last ? of.product.transpose_a : of.product.transpose_b) = true;
  of.product.batch = of.parts;
  of.product.to_a = c.k * of.product.k, of.product.to_b = c.c * of.product.k, of.product.to_out = c.w_elements();
  of.a_step = of.parts * of.product.to_a, of.b_step = of.parts * of.product.to_b;
  const int64_t left = c.n - of.rounds * of.parts * together;
  if (left == 0) return of;
  of.tail = of.further();
  if (c.channels_last) {
    of.tail->batch = 1;
    of.tail->k = left * pixels;
  } else {
    of.tail->batch = left;
  }
  return of;
}

ConvolutionProduct as_a_whole(const Convolution& c) {
  const int64_t pixels = c.h * c.w, rows = c.n * pixels;
  ConvolutionProduct of{.second_first = !c.channels_last || c.pass == Pass::backward_weights};
  Product& p = of.product;
  switch (c.pass) {
    case Pass::forward:
      if (c.channels_last) {
        p = {.m = rows, .n = c.k, .k = c.c, .transpose_b = true, .bias = c.bias, .relu = c.relu};
      } else {
        p = {.m = c.k, .n = pixels, .k = c.c, .relu = c.relu && !c.bias, .batch = c.n};
        p.to_b = c.c * pixels, p.to_out = c.k * pixels;
        of.bias_apart = c.bias;
      }
      break;
    case Pass::backward_data:
      if (c.channels_last) {
        p = {.m = rows, .n = c.c, .k = c.k};
      } else {
        p = {.m = c.c, .n = pixels, .k = c.k, .transpose_a = true, .batch = c.n};
        p.to_b = c.k * pixels, p.to_out = c.c * pixels;
      }
      break;
    case Pass::backward_weights: p = {.m = c.k, .n = c.c, .k = rows, .transpose_a = true}; break;
  }
  return of;
}

bool is_in_parts(std::string_view kernel) { return kernel.starts_with(kInParts); }
// What cuBLASLt is asked for by a kernel's name.
std::string product_name(std::string_view kernel) {
  return is_in_parts(kernel) ? std::string(kWhole) + std::string(kernel.substr(kInParts.size())) : std::string(kernel);
}
std::string_view best_of(std::string_view kernel) { return kernel.ends_with(kTf32) ? "cublaslt:tf32" : "cublaslt"; }

class ProductConvolution final : public CudaKernel {
 public:
  ProductConvolution(const Context& context, const Graph& graph, const Op& op, const Convolution& convolution,
                     std::string_view kernel)
      : CudaKernel(context, graph, op),
        of_(is_in_parts(kernel) ? in_parts(convolution) : as_a_whole(convolution)),
        relu_(convolution.relu),
        bias_summed_(convolution.pass == Pass::backward_weights && op.outputs.size() > 1),
        first_(context, op, product_name(kernel), of_.product) {
    Bytes workspace = first_.workspace();
    const auto add = [&](std::optional<NamedProduct>& product, std::string_view name, const Product& asked) {
      workspace = std::max(workspace, product.emplace(context, op, name, asked).workspace());
    };
    if (of_.rounds > 1) add(further_, product_name(kernel), of_.further());
    if (of_.tail) add(tail_, best_of(kernel), *of_.tail);
    workspace_bytes_ = of_.sums() + workspace;
    if (of_.bias_apart) {
      image_ = image_of(op, graph.tensor(op.outputs[0]));
      out_count_ = element_count(graph.tensor(op.outputs[0]).shape);
    }
    if (bias_summed_) {
      pieces_ = pieces_of_values(image_of(op, graph.tensor(op.inputs[1])));
      workspace_bytes_ = std::max(workspace_bytes_, room_for(pieces_));
    }
  }

 private:
  void work() override {
    const float *a = input(of_.second_first ? 1 : 0), *b = input(of_.second_first ? 0 : 1);
    const float* const bias = of_.product.bias ? input(2) : nullptr;
    float* const out = of_.sum_elements() > 0 ? scratch<float>() : output(0);
    void* const workspace = scratch<std::byte>(of_.sums().count);
    for (int64_t round = 0; round < of_.rounds; ++round) {
      NamedProduct& product = round == 0 ? first_ : *further_;
      product.run(a + round * of_.a_step, b + round * of_.b_step, bias, out, workspace);
    }
    if (tail_) tail_->run(a + of_.rounds * of_.a_step, b + of_.rounds * of_.b_step, bias, out, workspace);
    if (of_.sum_elements() > 0) add_up(out);
    if (of_.bias_apart)
      launch(AddBias{.y = output(0), .x = output(0), .bias = input(2), .image = image_, .relu = relu_}, out_count_);
    if (!bias_summed_) return;
    sum_values(input(1), pieces_, scratch<void>(), output(1));
  }

  // As many at once as a kernel takes: their sum stands where the first of them was.
  void add_up(float* sums) const {
    int64_t apart = of_.sum_elements();
    for (int64_t left = of_.parts; left > 0;) {
      const int64_t groups = (left + kMostTerms - 1) / kMostTerms;
      for (int64_t group = 0; group < groups; ++group) {
        float* const first = sums + group * kMostTerms * apart;
        const int64_t count = std::min<int64_t>(kMostTerms, left - group * kMostTerms);
        AddTerms add{
            .y = groups == 1 ? output(0) : first, .terms = {}, .count = static_cast<int32_t>(count), .relu = false};
        for (int64_t t = 0; t < count; ++t) add.terms[t] = first + t * apart;
        launch(add, of_.sum_elements());
      }
      apart *= kMostTerms;
      left = groups == 1 ? 0 : groups;
    }
  }

  ConvolutionProduct of_;
  bool relu_, bias_summed_;
  NamedProduct first_;
  std::optional<NamedProduct> further_, tail_;
  Image image_;
  int64_t out_count_ = 0;
  Pieces pieces_;
};

void add_choices(const Context& context, std::string_view prefix, const ConvolutionProduct& of, const KernelSpec& like,
                 std::vector<KernelSpec>& list) {
  for (ProductChoice choice : choices_of(context, of.product, {.further = kFurtherOfConvolutions})) {
    if (of.tail) {
      Product tail = *of.tail;
      tail.tf32 = choice.tf32;
      const std::optional<Bytes> workspace = workspace_of(context, tail);
      if (!workspace) continue;
      choice.workspace = std::max(choice.workspace, *workspace);
    }
    choice.name.replace(0, kWhole.size(), prefix);
    choice.workspace += of.sums();
    choice.efficiency *= kBehindCudnn;
    list.push_back(spec_of(choice, like));
    list.back().estimate.extra_bytes = 2.0 * static_cast<double>(of.rounds * of.sums().count);
  }
}

}  // namespace

std::vector<KernelSpec> product_convolution_specs(const Context& context, const Op& op, const Convolution& convolution,
                                                  const KernelSpec& like) {
  std::vector<KernelSpec> list;
  if (!is_offered(op, convolution)) return list;
  if (has_whole(convolution)) add_choices(context, kWhole, as_a_whole(convolution), like, list);
  if (has_parts(convolution)) add_choices(context, kInParts, in_parts(convolution), like, list);
  return list;
}

std::unique_ptr<Kernel> make_product_convolution(const Context& context, const Graph& graph, const Op& op,
                                                 const Convolution& convolution, std::string_view kernel) {
  const bool is_there = is_in_parts(kernel) ? has_parts(convolution) : has_whole(convolution);
  if (!is_offered(op, convolution) || !is_there) throw_no_kernel(op, kernel);
  return std::make_unique<ProductConvolution>(context, graph, op, convolution, kernel);
}

}  // namespace plimsoll::cuda
