// Pooling by oneDNN. Its workspace of max pooling is our index tensor: one byte an output element, in the output's
// layout, that tells which element of the window won.
#include <fmt/format.h>

#include <algorithm>

#include "device/cpu/dnnl.h"
#include "device/cpu/pool.h"

namespace plimsoll::cpu {
namespace {

struct PoolPrimitives {
  std::vector<Implementation> forward;  // hints, for a backward op
  std::vector<Implementation> wanted;   // of the op itself, whichever pass
};

PoolPrimitives make_primitives(const Graph& graph, const Pool& pool, const Layout& x_layout, const Layout& y_layout) {
  const Tensor &x = graph.tensor(pool.x_tensor), &y = graph.tensor(pool.y_tensor);
  const dnnl_memory_desc_t x_memory = describe(x.shape, x.dtype, x_layout),
                           y_memory = describe(y.shape, y.dtype, y_layout);
  const dnnl_alg_kind_t algorithm = pool.max             ? dnnl_pooling_max
                                    : pool.count_padding ? dnnl_pooling_avg_include_padding
                                                         : dnnl_pooling_avg_exclude_padding;
  dnnl_dims_t stride, kernel, begin, end;
  for (int d = 0; d < 2; ++d) {
    stride[d] = pool.stride[d];
    kernel[d] = pool.kernel[d];
    begin[d] = pool.begin[d];
    end[d] = std::max<int64_t>(pool.reach[d], 0);
  }
  PoolPrimitives result;
  dnnl_pooling_desc_t forward, backward;
  if (dnnl_pooling_forward_desc_init(&forward, dnnl_forward_training, algorithm, &x_memory, &y_memory, stride, kernel,
                                     begin, end) != dnnl_success) {
    return result;
  }
  result.forward = implementations(&forward);
  if (!pool.backward) {
    result.wanted = std::move(result.forward);
    return result;
  }
  if (result.forward.empty() || dnnl_pooling_backward_desc_init(&backward, algorithm, &x_memory, &y_memory, stride,
                                                                kernel, begin, end) != dnnl_success) {
    return result;
  }
  result.wanted = implementations(&backward, {}, &result.forward[0]);
  return result;
}

// Its index is ours: bytes in the layout of y.
bool index_fits(const Graph& graph, const Pool& pool, const Implementation& one, const Layout& y_layout) {
  if (!pool.max) return true;
  const dnnl_memory_desc_t& memory = one.memory(dnnl_query_workspace_md);
  return memory.data_type == dnnl_u8 && layout_of(memory, y_layout) == y_layout &&
         Bytes{static_cast<int64_t>(dnnl_memory_desc_get_size(&memory))} ==
             storage_bytes(graph.tensor(pool.y_tensor).shape, DType::u8, y_layout);
}

bool needs_own(const Pool& pool) { return pool.dilated() || (!pool.max && pool.count_padding && pool.overhangs()); }

std::vector<KernelSpec> pool_specs(const Graph& graph, const Op& op, LayoutFamily family, int threads) {
  expect_countable(graph, op);
  const ThreadCount scope(threads);
  const Pool pool = read_pool(graph, op);
  const Layout layout = family_layout(family, 4);
  auto spec_of = [&](std::string name, Bytes workspace) {  // all tensors of a pooling op are images
    KernelSpec spec = make_spec(op, std::move(name), workspace);
    std::fill(spec.inputs.begin(), spec.inputs.end(), layout);
    std::fill(spec.outputs.begin(), spec.outputs.end(), layout);
    return spec;
  };
  std::vector<KernelSpec> result;
  if (!needs_own(pool)) {
    const PoolPrimitives primitives = make_primitives(graph, pool, layout, layout);
    for (const Implementation& one : primitives.wanted) {
      if (index_fits(graph, pool, one, layout)) result.push_back(spec_of(one.name, one.workspace()));
    }
  }
  if (result.empty()) result.push_back(spec_of("own", {}));
  return result;
}

std::unique_ptr<Kernel> make_pool(const Graph& graph, const Op& op, std::string_view kernel, int threads) {
  const ThreadCount scope(threads);
  const Pool pool = read_pool(graph, op);
  if (kernel == "own") return make_own_pool(graph, op, threads);
  const Layout &x_layout = graph.tensor(pool.x_tensor).layout, &y_layout = graph.tensor(pool.y_tensor).layout;
  const bool index_lies_like_y = !pool.max || graph.tensor(pool.index_tensor).layout == y_layout;
  const PoolPrimitives primitives =
      needs_own(pool) ? PoolPrimitives{} : make_primitives(graph, pool, x_layout, y_layout);
  const auto one = std::find_if(primitives.wanted.begin(), primitives.wanted.end(),
                                [&](const Implementation& candidate) { return candidate.name == kernel; });
  if (one == primitives.wanted.end() || !index_lies_like_y || !index_fits(graph, pool, *one, y_layout)) {
    throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}): no kernel '{}' for the layouts x '{}', y '{}'",
                                                    op.name, op.type->name, kernel, x_layout.tag, y_layout.tag));
  }
  std::vector<Argument> arguments;
  if (pool.backward) {
    arguments = {{DNNL_ARG_DIFF_DST, input(0), one->memory(dnnl_query_diff_dst_md)},
                 {DNNL_ARG_DIFF_SRC, output(0), one->memory(dnnl_query_diff_src_md)}};
    if (pool.max) arguments.push_back({DNNL_ARG_WORKSPACE, input(1), one->memory(dnnl_query_workspace_md)});
  } else {
    arguments = {{DNNL_ARG_SRC, input(0), one->memory(dnnl_query_src_md)},
                 {DNNL_ARG_DST, output(0), one->memory(dnnl_query_dst_md)}};
    if (pool.max) arguments.push_back({DNNL_ARG_WORKSPACE, output(1), one->memory(dnnl_query_workspace_md)});
  }
  return make_dnnl_kernel(op, *one, arguments, threads);
}

}  // namespace

Pool read_pool(const Graph& graph, const Op& op) {
  const std::string& type = op.type->name;
  Pool pool;
  pool.max = type.starts_with("Max");
  pool.backward = type.ends_with("Backward");
  pool.count_padding = op.attributes.integer("count_include_pad", 1) != 0;
  pool.x_tensor = pool.backward ? op.outputs.at(0) : op.inputs.at(0);
  pool.y_tensor = pool.backward ? op.inputs.at(0) : op.outputs.at(0);
  if (pool.max) pool.index_tensor = pool.backward ? op.inputs.at(1) : op.outputs.at(1);
  const auto kernel = op.attributes.integers("kernel"), stride = op.attributes.integers("stride", {1, 1});
  const auto dilation = op.attributes.integers("dilation", {1, 1});
  const auto padding = op.attributes.integers("padding", {0, 0, 0, 0});
  const Shape &x = graph.tensor(pool.x_tensor).shape, &y = graph.tensor(pool.y_tensor).shape;
  std::copy_n(x.begin(), 4, pool.x);
  std::copy_n(y.begin(), 4, pool.y);
  for (size_t d = 0; d < 2; ++d) {
    pool.kernel[d] = kernel.at(d);
    pool.stride[d] = stride.at(d);
    pool.dilation[d] = dilation.at(d);
    pool.begin[d] = padding.at(d);
    pool.end[d] = padding.at(d + 2);
    pool.reach[d] = (pool.y[d + 2] - 1) * pool.stride[d] + (pool.kernel[d] - 1) * pool.dilation[d] + 1 - pool.x[d + 2] -
                    pool.begin[d];
  }
  if (pool.max && pool.kernel[0] * pool.kernel[1] > 256) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format(
            "op '{}' ({}): a window of {}x{} has more than 256 elements, which an index of one byte cannot tell",
            op.name, type, pool.kernel[0], pool.kernel[1]));
  }
  return pool;
}

std::vector<NamedFactory> dnnl_pool_kernels() {
  return {{"MaxPoolForward", {pool_specs, make_pool}},
          {"MaxPoolBackward", {pool_specs, make_pool}},
          {"AvgPoolForward", {pool_specs, make_pool}},
          {"AvgPoolBackward", {pool_specs, make_pool}}};
}

}  // namespace plimsoll::cpu
