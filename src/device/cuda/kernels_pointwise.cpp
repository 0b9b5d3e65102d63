// Pointwise, Expand, Cast and Reduce.
#include <fmt/format.h>

#include <algorithm>

#include "device/cuda/kernels_expression.h"
#include "ops/broadcast.h"
#include "ops/reduced.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

Number number_of(const Op& op, const Tensor& tensor) {
  switch (tensor.dtype) {
    case DType::f32: return Number::f32;
    case DType::i32: return Number::i32;
    case DType::i64: return Number::i64;
    case DType::u8: return Number::u8;
    default:
      refuse(op, fmt::format("'{}' is {}; CUDA takes f32, i32, i64 and u8", tensor.name, to_string(tensor.dtype)));
  }
}

// The dimensions in the order in which they lie.
std::vector<size_t> order_of(const Op& op, const Tensor& tensor) {
  std::vector<size_t> order;
  for (size_t d = 0; d < tensor.shape.size(); ++d) order.push_back(d);
  if (tensor.layout.is_plain()) return order;
  const std::string& tag = tensor.layout.tag;
  if (tag.size() != order.size()) refuse(op, fmt::format("'{}' lies in layout '{}', in blocks", tensor.name, tag));
  for (size_t i = 0; i < tag.size(); ++i) {
    if (tag[i] < 'a' || tag[i] > 'z') refuse(op, fmt::format("'{}' lies in layout '{}', in blocks", tensor.name, tag));
    order[i] = static_cast<size_t>(tag[i] - 'a');
  }
  return order;
}
// By dimension, how far neighbours are apart.
std::vector<int64_t> steps_in(const Op& op, const Tensor& tensor) {
  std::vector<int64_t> steps(tensor.shape.size(), 1);
  int64_t step = 1;
  const std::vector<size_t> order = order_of(op, tensor);
  for (size_t i = order.size(); i-- > 0;) {
    steps[order[i]] = step;
    step *= tensor.shape[order[i]];
  }
  return steps;
}

// By dimension of `y`, 0 where x is stretched.
std::vector<int64_t> stretched_steps(const Op& op, const Tensor& x, const Tensor& y) {
  const std::vector<int64_t> own = steps_in(op, x);
  std::vector<int64_t> steps(y.shape.size(), 0);
  const size_t skip = steps.size() - own.size();
  for (size_t d = 0; d < own.size(); ++d) {
    if (x.shape[d] != 1) steps[skip + d] = own[d];
  }
  return steps;
}

// Dimensions walked together by several tensors, those merged that all walk as one.
struct Walked {
  WalkSizes sizes;
  std::vector<WalkSteps> steps;
};
Walked walk_together(const Op& op, const Shape& shape, const std::vector<size_t>& order,
                     const std::vector<std::vector<int64_t>>& steps) {
  Walked walked;
  walked.steps.resize(steps.size());
  int32_t& count = walked.sizes.count;
  for (size_t d : order) {
    const int64_t size = shape[d];
    if (size == 1) continue;
    bool merges = count > 0;
    for (size_t k = 0; k < steps.size(); ++k) merges = merges && walked.steps[k].step[count - 1] == steps[k][d] * size;
    if (!merges && count == kMostWalked)
      refuse(op, fmt::format("more than {} dimensions that cannot be walked as one", kMostWalked));
    if (!merges) walked.sizes.size[count++] = 1;
    walked.sizes.size[count - 1] = walked.sizes.size[count - 1] * size;
    for (size_t k = 0; k < steps.size(); ++k) walked.steps[k].step[count - 1] = steps[k][d];
  }
  return walked;
}

bool lies_as(const Tensor& x, const Tensor& y) { return x.shape == y.shape && x.dtype == DType::f32; }

// Whether all that is not of the result's shape is a number.
bool has_numbers_beside(const Graph& graph, const Op& op) {
  const Tensor& y = graph.tensor(op.outputs[0]);
  return std::ranges::all_of(op.inputs, [&](TensorId id) {
    return lies_as(graph.tensor(id), y) || element_count(graph.tensor(id).shape) == 1;
  });
}

// An update with nothing but numbers beside runs over its storage, however that is laid out.
Tensor storage_of(const Tensor& tensor) {
  Tensor storage = tensor;
  storage.shape = {storage_elements(tensor.shape, tensor.layout)};
  storage.layout = {};
  return storage;
}

class PointwiseOnCuda final : public CudaKernel {
 public:
  PointwiseOnCuda(const Context& context, const Graph& graph, const Op& op) : CudaKernel(context, graph, op) {
    const Tensor& result = graph.tensor(op.outputs[0]);
    const bool by_storage = op.type->changes_state && has_numbers_beside(graph, op);
    const Tensor y = by_storage ? storage_of(result) : result;
    std::vector<std::vector<int64_t>> steps;
    for (TensorId id : op.inputs) {
      const Tensor& x = graph.tensor(id);
      if (lies_as(x, result)) continue;
      steps.push_back(by_storage ? std::vector<int64_t>{0} : stretched_steps(op, x, y));
    }
    for (TensorId id : op.inputs) {
      const Tensor& x = graph.tensor(id);
      const bool alike = x.layout == result.layout || (x.layout.is_plain() && result.layout.is_plain());
      if (lies_as(x, result) && !alike && order_of(op, x) != order_of(op, result)) {
        refuse(op, fmt::format("'{}' lies in layout '{}' and '{}' in '{}'; one is expected", x.name, x.layout.tag,
                               result.name, result.layout.tag));
      }
    }
    const Walked walked = walk_together(op, y.shape, order_of(op, y), steps);
    count_ = element_count(y.shape);
    std::vector<PointwiseSource> inputs;
    size_t next = 0;
    for (TensorId id : op.inputs) {
      const Tensor& x = graph.tensor(id);
      PointwiseSource& source = inputs.emplace_back();
      source.dtype = number_of(op, x);
      source.alongside = lies_as(x, result);
      if (source.alongside) continue;
      source.steps = walked.steps[next++];
      source.fours = in_fours(walked.sizes, source.steps, source.dtype);
    }
    expression_ = PreparedExpression(op, parse_expression(op.attributes.text("expression")), walked.sizes, inputs);
  }

 private:
  void work() override {
    expression_.with_body([this](auto& body) {
      body.y = output(0);
      body.count = count_;
      for (size_t i = 0; has_input(i); ++i) body.inputs[i].from = input<void>(i);
      launch(body, (count_ + kFour - 1) / kFour);
    });
  }
  PreparedExpression expression_;
  int64_t count_ = 0;
};

bool lies_the_same(const Shape& shape, LayoutFamily family) {
  return family == LayoutFamily::channels_last && shape.size() == 4 && shape[2] * shape[3] == 1;
}

std::vector<KernelSpec> pointwise_cuda_specs(const Context&, const Graph& graph, const Op& op, LayoutFamily family) {
  const Tensor& y = graph.tensor(op.outputs[0]);
  const bool plain = family == LayoutFamily::blocked || (op.type->changes_state && !has_numbers_beside(graph, op));
  const Layout own = plain ? Layout{} : kAnyLayout;
  KernelSpec spec{.name = "own", .inputs = {}, .outputs = {own}, .workspace = {}};
  for (TensorId id : op.inputs) {
    const Tensor& x = graph.tensor(id);
    const bool same = x.dtype == DType::f32 && lies_the_same(x.shape, family);
    spec.inputs.push_back(lies_as(x, y) ? own : same ? family_layout(family, 4) : Layout{});
  }
  return {spec};
}

class ExpandOnCuda final : public CudaKernel {
 public:
  ExpandOnCuda(const Context& context, const Graph& graph, const Op& op) : CudaKernel(context, graph, op) {
    const Tensor &x = graph.tensor(op.inputs[0]), &y = graph.tensor(op.outputs[0]);
    const Walked walked = walk_together(op, y.shape, order_of(op, y), {stretched_steps(op, x, y)});
    sizes_ = walked.sizes;
    steps_ = walked.steps[0];
    count_ = element_count(y.shape);
    bytes_ = storage_bytes({1}, x.dtype, {}).count;
  }

 private:
  void work() override {
    switch (bytes_) {
      case 1: return expand<uint8_t>();
      case 4: return expand<uint32_t>();
      default: return expand<uint64_t>();
    }
  }
  template <class T>
  void expand() const {
    launch(ExpandElements<T>{output<T>(0), input<T>(0), sizes_, steps_}, count_);
  }
  WalkSizes sizes_;
  WalkSteps steps_;
  int64_t count_ = 0, bytes_ = 0;
};

std::vector<KernelSpec> expand_cuda_specs(const Context&, const Graph& graph, const Op& op, LayoutFamily family) {
  const Tensor &x = graph.tensor(op.inputs[0]), &y = graph.tensor(op.outputs[0]);
  const bool f32 = x.dtype == DType::f32;
  KernelSpec spec{.name = "own", .inputs = {Layout{}}, .outputs = {Layout{}}, .workspace = {}};
  if (f32 && lies_the_same(x.shape, family)) spec.inputs[0] = family_layout(family, 4);
  if (f32) spec.outputs[0] = family_layout(family, y.shape.size());
  return {spec};
}

class CastOnCuda final : public CudaKernel {
 public:
  CastOnCuda(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        to_(number_of(op, graph.tensor(op.outputs[0]))),
        from_(number_of(op, graph.tensor(op.inputs[0]))),
        count_(element_count(graph.tensor(op.outputs[0]).shape)) {
    require_one_layout(graph, op, graph.tensor(op.outputs[0]));
    order_of(op, graph.tensor(op.outputs[0]));
  }

 private:
  void work() override { launch(CastElements{output<void>(0), input<void>(0), to_, from_}, count_); }
  Number to_, from_;
  int64_t count_;
};

std::vector<KernelSpec> cast_cuda_specs(const Context& context, const Graph& graph, const Op& op, LayoutFamily family) {
  const auto f32 = [&](TensorId id) { return graph.tensor(id).dtype == DType::f32; };
  if (f32(op.inputs[0]) && f32(op.outputs[0])) return own_specs_any_layout(context, graph, op, family);
  return {{.name = "own", .inputs = {Layout{}}, .outputs = {Layout{}}, .workspace = {}}};
}

class ReduceOnCuda final : public CudaKernel {
 public:
  ReduceOnCuda(const Context& context, const Graph& graph, const Op& op) : CudaKernel(context, graph, op) {
    const Tensor &x = graph.tensor(op.inputs[0]), &y = graph.tensor(op.outputs[0]);
    const std::vector<bool> reduced = reduced_dimensions(op.attributes, x.shape);
    const std::vector<size_t> order = order_of(op, x);
    const std::vector<int64_t> from = steps_in(op, x), to = result_steps(op, x, y, reduced);
    std::vector<size_t> kept, summed;
    for (size_t d : order) (reduced[d] ? summed : kept).push_back(d);
    const Walked results = walk_together(op, x.shape, kept, {from, to});
    const Walked elements = walk_together(op, x.shape, summed, {from});
    source_.dtype = number_of(op, x);
    const ReduceFunction function = reduce_function(op.attributes);
    source_.by = function == ReduceFunction::max               ? ReduceBy::max
                 : function == ReduceFunction::min             ? ReduceBy::min
                 : function == ReduceFunction::mean_of_squares ? ReduceBy::sum_of_squares
                                                               : ReduceBy::sum;
    source_.kept = results.sizes, source_.kept_steps = results.steps[0];
    to_ = results.steps[1];
    source_.summed = elements.sizes, source_.summed_steps = elements.steps[0];
    results_ = element_count(y.shape);
    source_.elements = element_count(x.shape) / results_;
    share_ = is_mean(function) ? 1.0 / static_cast<double>(source_.elements) : 1;
    // Neighbours in memory are of one result, and there are enough of them for a block.
    rows_ = !order.empty() && reduced[innermost(x, order)] && source_.elements >= kBlock / 4;
    if (rows_) return;
    if (sums_columns()) {
      columns_ = pieces_of_values({.n = source_.elements, .c = results_, .to_n = results_, .to_c = 1});
      workspace_bytes_ = room_for(*columns_);
      return;
    }
    fours_ = lies_by_four(source_) && results_ % 4 == 0;
    const int64_t enough = 1 << (fours_ ? 18 : 17), least = 16;  // threads that fill a GPU, elements worth one
    pieces_ = std::clamp<int64_t>(std::min(source_.elements / least, enough / results_), 1, 1024);
    length_ = (source_.elements + pieces_ - 1) / pieces_;
    pieces_ = (source_.elements + length_ - 1) / length_;
    workspace_bytes_ = {pieces_ * results_ * static_cast<int64_t>(sizeof(double))};
  }

  static Bytes workspace_of(const Context& context, const Graph& graph, const Op& op) {
    return ReduceOnCuda(context, graph, op).workspace();
  }

 private:
  // Whether it is a sum over the rows of a matrix, enough of them.
  bool sums_columns() const {
    constexpr int64_t kLeastRows = 64;
    const auto is_one = [](const WalkSizes& sizes, const WalkSteps& steps, int64_t step) {
      return sizes.count == 1 && steps.step[0] == step;
    };
    return source_.by == ReduceBy::sum && share_ == 1 && source_.dtype == Number::f32 &&
           source_.elements >= kLeastRows && results_ % 4 == 0 && is_one(source_.kept, source_.kept_steps, 1) &&
           to_.step[0] == 1 && is_one(source_.summed, source_.summed_steps, results_);
  }
  static size_t innermost(const Tensor& x, const std::vector<size_t>& order) {
    for (size_t i = order.size(); i-- > 0;) {
      if (x.shape[order[i]] != 1) return order[i];
    }
    return order.back();
  }
  // Whether four results that follow each other, the first a multiple of four, are made of fours.
  static bool lies_by_four(const ReduceSource& source) {
    if (source.dtype != Number::f32 || source.kept.count == 0) return false;
    if (in_fours(source.kept, source.kept_steps, source.dtype) != InFours::next) return false;
    for (int d = 0; d < source.summed.count; ++d) {
      if (source.summed_steps.step[d] % 4 != 0) return false;
    }
    return true;
  }
  // By dimension of x: how far apart the results are.
  static std::vector<int64_t> result_steps(const Op& op, const Tensor& x, const Tensor& y,
                                           const std::vector<bool>& reduced) {
    if (x.shape.size() == y.shape.size()) return steps_in(op, y);
    std::vector<int64_t> steps(x.shape.size(), 0);
    const std::vector<int64_t> own = steps_in(op, y);
    size_t next = 0;
    for (size_t d = 0; d < steps.size(); ++d) {
      if (!reduced[d]) steps[d] = own[next++];
    }
    return steps;
  }
  void work() override {
    ReduceSource source = source_;
    source.x = input<void>(0);
    if (rows_) return launch(ReduceRows{output(0), source, to_, share_}, results_);
    if (columns_) return sum_values(input(0), *columns_, scratch<SumPair>(), output(0));
    launch(ReducePieces{scratch<double>(), source, results_, length_, fours_}, results_ * pieces_);
    launch(ReduceTotals{output(0), scratch<double>(), source.by, source.kept, to_, results_, pieces_, share_},
           results_);
  }

  ReduceSource source_{};
  WalkSteps to_{};
  int64_t results_ = 1, pieces_ = 1, length_ = 1;
  double share_ = 1;
  bool rows_ = false, fours_ = false;
  std::optional<Pieces> columns_;
};

std::vector<KernelSpec> reduce_cuda_specs(const Context& context, const Graph& graph, const Op& op,
                                          LayoutFamily family) {
  const Tensor &x = graph.tensor(op.inputs[0]), &y = graph.tensor(op.outputs[0]);
  KernelSpec spec{.name = "own", .inputs = {Layout{}}, .outputs = {Layout{}}, .workspace = {}};
  if (x.dtype == DType::f32) spec.inputs[0] = family_layout(family, x.shape.size());
  if (lies_the_same(y.shape, family)) spec.outputs[0] = family_layout(family, 4);
  Graph laid = graph;
  laid.tensor(op.inputs[0]).layout = spec.inputs[0];
  laid.tensor(op.outputs[0]).layout = spec.outputs[0];
  spec.workspace = ReduceOnCuda::workspace_of(context, laid, op);
  return {spec};
}

}  // namespace

std::vector<NamedFactory> pointwise_kernels() {
  return {{"Cast", {cast_cuda_specs, make_own<CastOnCuda>}},
          {"Expand", {expand_cuda_specs, make_own<ExpandOnCuda>}},
          {"Pointwise", {pointwise_cuda_specs, make_own<PointwiseOnCuda>}},
          {"PointwiseUpdate", {pointwise_cuda_specs, make_own<PointwiseOnCuda>}},
          {"Reduce", {reduce_cuda_specs, make_own<ReduceOnCuda>}}};
}

}  // namespace plimsoll::cuda
