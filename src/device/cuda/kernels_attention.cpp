// Attention in two ways: by tiles of queries x keys, all of it in one kernel of ours each way (bodies/attention_tiles.h); and
// by products of cuBLASLt and bodies between them, the scores of as many heads at a time as fit a share of the workspace,
// all of one size.
#include <fmt/format.h>

#include <algorithm>

#include "base/random.h"
#include "device/cuda/kernels.h"
#include "ops/attention.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

constexpr int64_t kMostScores = 16 * 1024 * 1024;  // elements of one buffer, where one head has no more
constexpr Bytes kMostAttentionWorkspace = 32_MiB;  // of a product
constexpr std::string_view kAttention = "cublaslt", kTiles = "own:tiles";
constexpr int kTf32Capability = 8;                // of GPUs whose tensor cores multiply in TF32
constexpr int64_t kMostTiled = int64_t{1} << 30;  // places in a row: 32 bits hold two together

int64_t attention_aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

Attention attention_of(const Graph& graph, const Op& op) {
  std::vector<const Tensor*> tensors;
  for (TensorId id : op.inputs) tensors.push_back(&graph.tensor(id));
  return read_attention(op.attributes, tensors, op.type->name == "AttentionForward" ? 3 : 5);
}

// Heads of k and v at a time: a divisor of their number, so that every round is alike.
int64_t heads_a_round(const Attention& a) {
  const int64_t scores = a.groups * a.queries * a.keys;
  int64_t heads = std::clamp<int64_t>(kMostScores / scores, 1, a.heads);
  while (a.heads % heads != 0) --heads;
  return heads;
}

// One of the products of a round, for each query head of a group: which of a, b and out have matrices by query head.
class RoundProduct {
 public:
  struct Operand {
    int64_t elements = 0;
    bool by_query_head = true;
    int64_t distance(const Attention& a) const { return elements * (by_query_head ? a.groups : 1); }
    int64_t offset(int64_t group) const { return by_query_head ? group * elements : 0; }
  };

  bool make(Door& door, const Attention& a, int64_t heads, Product product, bool b_by_query_head,
            bool out_by_query_head) {
    a_ = {product.m * product.k, true};
    b_ = {product.k * product.n, b_by_query_head};
    out_ = {product.m * product.n, out_by_query_head};
    groups_ = a.groups;
    product.batch = heads;
    product.to_a = a_.distance(a), product.to_b = b_.distance(a), product.to_out = out_.distance(a);
    first_ = door.prepare(product, kMostAttentionWorkspace);
    if (!first_) return false;
    if (out_by_query_head || a.groups == 1) return true;
    product.adds = true;
    further_ = door.prepare(product, kMostAttentionWorkspace);
    return further_ != nullptr;
  }
  Bytes workspace() const {
    return further_ ? std::max(first_->workspace(), further_->workspace()) : first_->workspace();
  }
  void run(const float* a, const float* b, float* out, void* workspace) const {
    for (int64_t g = 0; g < groups_; ++g) {
      Prepared& product = g > 0 && further_ ? *further_ : *first_;
      product.run(a + a_.offset(g), b + b_.offset(g), nullptr, out + out_.offset(g), workspace);
    }
  }

 private:
  Operand a_, b_, out_;
  int64_t groups_ = 1;
  std::unique_ptr<Prepared> first_, further_;
};

// What both ways read from the op.
class AttentionInputs : public CudaKernel {
 public:
  AttentionInputs(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), a_(attention_of(graph, op)) {
    if (a_.dropout > 0) is_part_ = element_count(graph.tensor(op.inputs[static_cast<size_t>(a_.seed_at)]).shape) > 1;
    require_row_major(graph, op);
    if (a_.mask.sizes.size() > static_cast<size_t>(kMostHeadDimensions)) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}' ({}): '{}' has {} dimensions; CUDA's kernels take masks for up to {}", op.name,
                              op.type->name, graph.tensor(op.inputs[0]).name, a_.mask.sizes.size() + 2,
                              kMostHeadDimensions + 2));
    }
  }

 protected:
  AttentionMask mask() const {
    AttentionMask mask;
    if (!a_.mask.present) return mask;
    const auto at = static_cast<size_t>(a_.mask_at);
    if (a_.mask.bytes) {
      mask.allowed = input<uint8_t>(at);
    } else {
      mask.added = input(at);
    }
    mask.rank = static_cast<int32_t>(a_.mask.sizes.size());
    std::copy(a_.mask.sizes.begin(), a_.mask.sizes.end(), mask.size);
    std::copy(a_.mask.strides.begin(), a_.mask.strides.end(), mask.stride);
    mask.to_row = a_.mask.to_row, mask.to_column = a_.mask.to_column;
    return mask;
  }
  // A mask's least numbers are so large that a log_sum of a query which sees nothing else says no more than they do.
  bool adds_mask() const { return a_.mask.present && !a_.mask.bytes; }
  bool alike() const { return a_.blind != Attention::Blind::zero; }
  const int32_t* documents() const {
    return a_.documents_at < 0 ? nullptr : input<int32_t>(static_cast<size_t>(a_.documents_at));
  }
  AttentionDropout dropout() const {
    if (a_.dropout == 0) return {};
    return {.stream = {.step_number = input<int64_t>(static_cast<size_t>(a_.step_at)),
                       .seed = input<int64_t>(static_cast<size_t>(a_.seed_at)),
                       .salt = a_.salt,
                       .part = is_part_ ? a_.scores() : 0},
            .threshold = dropout_threshold(a_.dropout),
            .scale = static_cast<float>(1 / (1 - a_.dropout))};
  }

  Attention a_;
  bool is_part_ = false;  // of a batch that ranks share
};

class AttentionBase : public AttentionInputs {
 public:
  AttentionBase(const Context& context, const Graph& graph, const Op& op, std::string_view kernel)
      : AttentionInputs(context, graph, op), heads_(heads_a_round(a_)) {
    std::string_view name = kernel;
    tf32_ = name.ends_with(kTf32);
    if (tf32_) name.remove_suffix(kTf32.size());
    if (name != kAttention || (tf32_ && !context.tf32)) throw_no_kernel(op, kernel);
  }

 protected:
  int64_t rows() const { return heads_ * a_.groups * a_.queries; }  // of a round
  int64_t scores() const { return rows() * a_.keys; }

  void prepare(const Op& op, std::string_view kernel, RoundProduct& product, Product sizes, bool b_by_query_head,
               bool out_by_query_head) {
    sizes.tf32 = tf32_;
    if (!product.make(door(), a_, heads_, sizes, b_by_query_head, out_by_query_head)) throw_no_kernel(op, kernel);
    products_ = std::max(products_, product.workspace());
  }
  void lay_out_workspace(int buffers) {
    buffer_bytes_ = attention_aligned(scores() * static_cast<int64_t>(sizeof(float)));
    rows_at_ = buffers * buffer_bytes_;
    products_at_ = rows_at_ + attention_aligned(rows() * static_cast<int64_t>(sizeof(AxisRow)));
    workspace_bytes_ = Bytes{products_at_} + products_;
  }
  float* buffer(int i) const { return scratch<float>(i * buffer_bytes_); }
  template <class T>
  T* row_scratch() const {
    return scratch<T>(rows_at_);
  }
  void* product_scratch() const { return scratch<std::byte>(products_at_); }

  ScorePlace place(int64_t round) const {
    return {.first_head = round * heads_ * a_.groups, .queries = a_.queries, .keys = a_.keys};
  }
  // Of the first head of a round.
  int64_t queries_at(int64_t round) const { return round * rows() * a_.width; }
  int64_t results_at(int64_t round) const { return round * rows() * a_.value_width; }
  int64_t keys_at(int64_t round) const { return round * heads_ * a_.keys * a_.width; }
  int64_t values_at(int64_t round) const { return round * heads_ * a_.keys * a_.value_width; }
  Product scores_product() const { return {.m = a_.queries, .n = a_.keys, .k = a_.width, .transpose_b = true}; }
  int64_t rounds() const { return a_.heads / heads_; }

  int64_t heads_;  // of k and v in a round

 private:
  bool tf32_ = false;
  Bytes products_;
  int64_t buffer_bytes_ = 0, rows_at_ = 0, products_at_ = 0;
};

class AttentionForwardKernel final : public AttentionBase {
 public:
  AttentionForwardKernel(const Context& context, const Graph& graph, const Op& op, std::string_view kernel)
      : AttentionBase(context, graph, op, kernel) {
    prepare(op, kernel, scores_, scores_product(), false, true);
    prepare(op, kernel, results_, {.m = a_.queries, .n = a_.value_width, .k = a_.keys}, false, true);
    lay_out_workspace(1);
  }

 private:
  void work() override {
    const AxisPlace along{.length = a_.keys, .inner = 1};
    for (int64_t round = 0; round < rounds(); ++round) {
      AxisRow* const of_rows = row_scratch<AxisRow>();
      scores_.run(input(0) + queries_at(round), input(1) + keys_at(round), buffer(0), product_scratch());
      launch(AttentionScores{.scores = buffer(0),
                             .slopes = nullptr,
                             .log_sums = nullptr,
                             .mask = mask(),
                             .place = place(round),
                             .scale = static_cast<float>(a_.scale),
                             .softcap = static_cast<float>(a_.softcap),
                             .alike = alike(),
                             .left = a_.left,
                             .right = a_.right,
                             .documents = documents(),
                             .heads_of_documents = a_.heads_of_documents},
             AttentionBase::scores());
      launch(AxisTops{.rows = of_rows, .x = buffer(0), .place = along}, rows());
      launch(
          AxisSums{
              .rows = of_rows, .log_sums = output(1) + round * rows(), .x = buffer(0), .place = along, .masked = true},
          rows());
      launch(
          AttentionProbabilities{
              .scores = buffer(0), .rows = of_rows, .place = place(round), .dropout = dropout(), .alike = alike()},
          AttentionBase::scores());
      results_.run(buffer(0), input(2) + values_at(round), output(0) + results_at(round), product_scratch());
    }
  }

  RoundProduct scores_, results_;
};

class AttentionBackwardKernel final : public AttentionBase {
 public:
  AttentionBackwardKernel(const Context& context, const Graph& graph, const Op& op, std::string_view kernel)
      : AttentionBase(context, graph, op, kernel) {
    prepare(op, kernel, scores_, scores_product(), false, true);
    prepare(op, kernel, gradients_, {.m = a_.queries, .n = a_.keys, .k = a_.value_width, .transpose_b = true}, false,
            true);
    prepare(op, kernel, queries_, {.m = a_.queries, .n = a_.width, .k = a_.keys}, false, true);
    prepare(op, kernel, keys_, {.m = a_.keys, .n = a_.width, .k = a_.queries, .transpose_a = true}, true, false);
    prepare(op, kernel, values_, {.m = a_.keys, .n = a_.value_width, .k = a_.queries, .transpose_a = true}, true,
            false);
    lay_out_workspace(a_.softcap != 0 ? 3 : 2);
    if (op.outputs.size() > 3) mask_elements_ = element_count(graph.tensor(op.outputs[3]).shape);
  }

 private:
  void work() override {
    const float scale = static_cast<float>(a_.scale);
    float* const slopes = a_.softcap != 0 ? buffer(2) : nullptr;
    for (int64_t round = 0; round < rounds(); ++round) {
      double* const dots = row_scratch<double>();
      const float *q = input(0) + queries_at(round), *k = input(1) + keys_at(round), *v = input(2) + values_at(round),
                  *dy = input(3) + results_at(round);
      scores_.run(q, k, buffer(0), product_scratch());
      launch(AttentionScores{.scores = buffer(0),
                             .slopes = slopes,
                             .log_sums = adds_mask() ? nullptr : input(4),
                             .mask = mask(),
                             .place = place(round),
                             .scale = scale,
                             .softcap = static_cast<float>(a_.softcap),
                             .alike = alike(),
                             .left = a_.left,
                             .right = a_.right,
                             .documents = documents(),
                             .heads_of_documents = a_.heads_of_documents},
             scores());
      if (adds_mask()) {
        AxisRow* const of_rows = row_scratch<AxisRow>();
        const AxisPlace along{.length = a_.keys, .inner = 1};
        launch(AxisTops{.rows = of_rows, .x = buffer(0), .place = along}, rows());
        launch(AxisSums{.rows = of_rows, .log_sums = nullptr, .x = buffer(0), .place = along, .masked = true}, rows());
        launch(
            AttentionProbabilities{
                .scores = buffer(0), .rows = of_rows, .place = place(round), .dropout = {}, .alike = alike()},
            scores());
      }
      gradients_.run(dy, v, buffer(1), product_scratch());
      launch(AttentionDots{.dots = dots,
                           .probabilities = buffer(0),
                           .gradients = buffer(1),
                           .place = place(round),
                           .dropout = dropout()},
             rows());
      launch(AttentionScoreGradients{.probabilities = buffer(0),
                                     .gradients = buffer(1),
                                     .dots = dots,
                                     .slopes = mask_elements_ > 0 ? nullptr : slopes,
                                     .fixed_scores = a_.blind == Attention::Blind::alike ? input(4) : nullptr,
                                     .place = place(round),
                                     .dropout = dropout(),
                                     .factor = mask_elements_ > 0 ? 1 : scale},
             scores());
      if (mask_elements_ > 0) {
        launch(AttentionMaskGradient{.dmask = output(3),
                                     .gradients = buffer(1),
                                     .mask = mask(),
                                     .place = place(round),
                                     .heads = heads_ * a_.groups,
                                     .adds = round > 0},
               mask_elements_);
        launch(ScaleScores{.scores = buffer(1), .slopes = slopes, .scale = scale}, scores());
      }
      queries_.run(buffer(1), k, output(0) + queries_at(round), product_scratch());
      keys_.run(buffer(1), q, output(1) + keys_at(round), product_scratch());
      values_.run(buffer(0), dy, output(2) + values_at(round), product_scratch());
    }
  }

  RoundProduct scores_, gradients_, queries_, keys_, values_;
  int64_t mask_elements_ = 0;
};

class AttentionTilesBase : public AttentionInputs {
 public:
  AttentionTilesBase(const Context& context, const Graph& graph, const Op& op, std::string_view kernel)
      : AttentionInputs(context, graph, op),
        tf32_(kernel.ends_with(kTf32)),
        loads_ahead_(has_room<AttentionTiles<64, Tf32Products>>(context.shared)) {}
  static bool is_tiles(std::string_view kernel) {
    return kernel == kTiles || (kernel.starts_with(kTiles) && kernel.substr(kTiles.size()) == kTf32);
  }

 protected:
  static int64_t width(const Attention& a) { return std::max(a.width, a.value_width); }
  // Whether these bodies, of a width each, take the op on a GPU with so much shared memory.
  template <class Narrow, class Wide>
  static bool takes(const Attention& a, Bytes shared) {
    return a.queries < kMostTiled && a.keys < kMostTiled && width(a) <= 128 &&
           (width(a) <= 64 ? has_room<Narrow>(shared) : has_room<Wide>(shared));
  }
  // The forward pass, by bodies that take it.
  template <class Products>
  static bool takes_forward(const Attention& a, Bytes shared) {
    using Narrow = std::conditional_t<std::is_same_v<Products, Tf32Products>, Tf32InTurn, Products>;
    return takes<AttentionTiles<64, Narrow>, AttentionTiles<128, Products>>(a, shared);
  }
  template <int kWidth, class Products>
  void attend_forward(float* y, float* log_sums, TileRow* rows, const float* v) const {
    const auto go = [&]<class With>(With) {
      const float *q = input(0), *k = input(1);
      launch_tiles(AttentionTiles<kWidth, With>{.y = y,
                                                .log_sums = log_sums,
                                                .rows = rows,
                                                .q = q,
                                                .k = k,
                                                .v = v,
                                                .scores = tile_scores(),
                                                .heads = tile_heads(lie_by_four(q, k), lie_by_four(v, y))},
                   a_.query_heads(), a_.queries);
    };
    if constexpr (kWidth == 64 && std::is_same_v<Products, Tf32Products>) {
      if (!loads_ahead_) return go(Tf32InTurn());
    }
    go(Products());
  }
  // attend(width, products): of the bodies that take the op.
  template <class Attend>
  void by_width(const Attend& attend) const {
    const auto by_products = [&](auto width) { tf32_ ? attend(width, Tf32Products()) : attend(width, FullProducts()); };
    width(a_) <= 64 ? by_products(std::integral_constant<int, 64>()) : by_products(std::integral_constant<int, 128>());
  }
  TileScores tile_scores() const {
    const double scale = a_.softcap != 0 ? a_.scale / a_.softcap : a_.scale * kLog2E;
    return {.mask = mask(),
            .dropout = dropout(),
            .documents = documents(),
            .heads_of_documents = a_.heads_of_documents,
            .queries = static_cast<int32_t>(a_.queries),
            .keys = static_cast<int32_t>(a_.keys),
            .left = static_cast<int32_t>(std::min(a_.left, kMostTiled)),
            .right = static_cast<int32_t>(std::min(a_.right, kMostTiled)),
            .factor = static_cast<float>(scale),
            .cap = static_cast<float>(a_.softcap * kLog2E),
            .alike = alike()};
  }
  TileHeads tile_heads(bool by_four, bool values_by_four) const {
    return {.heads = a_.query_heads(),
            .groups = a_.groups,
            .width = static_cast<int32_t>(a_.width),
            .value_width = static_cast<int32_t>(a_.value_width),
            .by_four = by_four && a_.width % 4 == 0,
            .values_by_four = values_by_four && a_.value_width % 4 == 0};
  }
  template <class Body>
  void launch_tiles(const Body& body, int64_t heads, int64_t length) const {
    launch(body, Body::count(heads, length));
  }

 private:
  template <class Body>
  static bool has_room(Bytes shared) {
    return static_cast<int64_t>(sizeof(typename Body::Shared)) <= shared.count;
  }

  bool tf32_, loads_ahead_;
};

class AttentionTilesForwardKernel final : public AttentionTilesBase {
 public:
  AttentionTilesForwardKernel(const Context& context, const Graph& graph, const Op& op, std::string_view kernel)
      : AttentionTilesBase(context, graph, op, kernel) {}
  template <class Products>
  static bool takes_by(const Context& context, const Graph& graph, const Op& op) {
    return takes_forward<Products>(attention_of(graph, op), context.shared);
  }

 private:
  void work() override {
    by_width([&](auto width, auto products) {
      attend_forward<width(), decltype(products)>(output(0), output(1), nullptr, input(2));
    });
    if (!alike()) return;
    launch(AttentionBlindRows{.y = output(0),
                              .log_sums = output(1),
                              .v = input(2),
                              .dropout = dropout(),
                              .queries = a_.queries,
                              .groups = a_.groups,
                              .value_width = a_.value_width,
                              .keys = a_.keys},
           a_.query_heads() * a_.queries * a_.value_width);
  }
};

class AttentionTilesBackwardKernel final : public AttentionTilesBase {
 public:
  AttentionTilesBackwardKernel(const Context& context, const Graph& graph, const Op& op, std::string_view kernel)
      : AttentionTilesBase(context, graph, op, kernel) {
    const int64_t rows = a_.query_heads() * a_.queries;
    dots_at_ = adds_mask() ? attention_aligned(rows * static_cast<int64_t>(sizeof(TileRow))) : 0;
    workspace_bytes_ = Bytes{dots_at_ + attention_aligned(rows * static_cast<int64_t>(sizeof(float)))};
  }
  // Not where the mask wants a gradient.
  template <class Products>
  static bool takes_by(const Context& context, const Graph& graph, const Op& op) {
    const Attention a = attention_of(graph, op);
    return op.outputs.size() == 3 &&
           takes<AttentionTilesQueries<64, Products>, AttentionTilesQueries<128, Products>>(a, context.shared) &&
           takes<AttentionTilesKeys<64, Products>, AttentionTilesKeys<128, Products>>(a, context.shared) &&
           takes_forward<Products>(a, context.shared);
  }

 private:
  void work() override {
    by_width([&](auto width, auto products) { attend<width(), decltype(products)>(); });
  }
  template <int kWidth, class Products>
  void attend() const {
    const float *q = input(0), *k = input(1), *v = input(2), *dy = input(3);
    float *dq = output(0), *dk = output(1), *dv = output(2);
    const TileScores scores = tile_scores();
    const TileHeads heads = tile_heads(lie_by_four(q, k, dq, dk), lie_by_four(v, dy, dv));
    TileRow* const rows = adds_mask() ? scratch<TileRow>() : nullptr;
    if (rows != nullptr) attend_forward<kWidth, Products>(nullptr, nullptr, rows, nullptr);
    const TileBackward both{.q = q,
                            .k = k,
                            .v = v,
                            .dy = dy,
                            .log_sums = input(4),
                            .rows = rows,
                            .scores = scores,
                            .heads = heads,
                            .scale = static_cast<float>(a_.scale),
                            .inverse_cap = scores.cap != 0 ? 1 / scores.cap : 0,
                            .fixed = a_.blind == Attention::Blind::alike};
    float* const dots = scratch<float>(dots_at_);
    launch_tiles(AttentionTilesQueries<kWidth, Products>{.dq = dq, .dots = dots, .b = both}, a_.query_heads(),
                 a_.queries);
    launch_tiles(
        AttentionTilesKeys<kWidth, Products>{.dk = dk, .dv = dv, .dots = dots, .b = both, .key_heads = a_.heads},
        a_.heads, a_.keys);
  }

  int64_t dots_at_ = 0;
};

template <class K>
std::unique_ptr<Kernel> make_attention(const Context& context, const Graph& graph, const Op& op,
                                       std::string_view kernel) {
  require_f32(graph, op);
  return std::make_unique<K>(context, graph, op, kernel);
}
// Tensor cores only where the GPU has them and the user lets them round.
template <class Tiles>
bool is_offered(const Context& context, const Graph& graph, const Op& op, std::string_view kernel) {
  if (!kernel.ends_with(kTf32)) return Tiles::template takes_by<FullProducts>(context, graph, op);
  return context.tf32 && context.capability >= kTf32Capability &&
         Tiles::template takes_by<Tf32Products>(context, graph, op);
}
template <class K, class Tiles>
std::unique_ptr<Kernel> make_either(const Context& context, const Graph& graph, const Op& op, std::string_view kernel) {
  if (Tiles::is_tiles(kernel)) {
    if (!is_offered<Tiles>(context, graph, op, kernel)) throw_no_kernel(op, kernel);
    return make_attention<Tiles>(context, graph, op, kernel);
  }
  return make_attention<K>(context, graph, op, kernel);
}

template <class K, class Tiles>
std::vector<KernelSpec> attention_specs(const Context& context, const Graph& graph, const Op& op, LayoutFamily) {
  std::vector<KernelSpec> list;
  Graph plain;
  std::vector<TensorId> inputs;
  for (TensorId id : op.inputs) {
    const Tensor& tensor = graph.tensor(id);
    inputs.push_back(plain.add_source(fmt::format("{}", inputs.size()), tensor.shape, tensor.dtype, Role::input));
  }
  const OpId alone = plain.add_op(op.type->name, op.name, op.layer, inputs, op.attributes);
  const auto add = [&](const std::string& name, double efficiency) {
    const Bytes workspace = make_either<K, Tiles>(context, plain, plain.op(alone), name)->workspace();
    list.push_back(family_spec(graph, op, LayoutFamily::plain, name, workspace));
    list.back().exact = !name.ends_with(kTf32);
    list.back().estimate = {.efficiency = efficiency};
  };
  for (const std::string& name : {std::string(kTiles) + std::string(kTf32), std::string(kTiles)}) {
    if (is_offered<Tiles>(context, graph, op, name)) add(name, name.ends_with(kTf32) ? kTf32Speed * 0.6 : 0.6);
  }
  if (context.tf32) add(std::string(kAttention) + std::string(kTf32), kTf32Speed * 0.5);
  add(std::string(kAttention), 0.5);
  return list;
}

}  // namespace

std::vector<NamedFactory> attention_kernels() {
  using Forward = AttentionForwardKernel;
  using ForwardTiles = AttentionTilesForwardKernel;
  using Backward = AttentionBackwardKernel;
  using BackwardTiles = AttentionTilesBackwardKernel;
  return {{"AttentionForward", {attention_specs<Forward, ForwardTiles>, make_either<Forward, ForwardTiles>}},
          {"AttentionBackward", {attention_specs<Backward, BackwardTiles>, make_either<Backward, BackwardTiles>}}};
}

}  // namespace plimsoll::cuda
