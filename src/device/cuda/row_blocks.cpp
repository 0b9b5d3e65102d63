#include "device/cuda/row_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

constexpr std::string_view kRows = "rows=";

int64_t rows_in(std::string_view name) {
  int64_t rows = 0;
  if (!name.starts_with(kRows)) return 0;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kRows.size(), end, rows);
  return error == std::errc() && rest == end ? rows : 0;
}

}  // namespace

RowBlocks row_blocks(const Context& context, const Op& op, std::string_view kernel, int64_t rows) {
  std::string_view name = kernel;
  RowBlocks blocks{.rows = rows, .tf32 = name.ends_with(kTf32)};
  if (blocks.tf32) name.remove_suffix(kTf32.size());
  blocks.length = std::min(rows_in(name), rows);
  const bool begin_well = blocks.length == rows || blocks.length % kFewestRows == 0;
  if (blocks.length < 1 || !begin_well || (blocks.tf32 && !context.tf32)) throw_no_kernel(op, kernel);
  blocks.last = rows % blocks.length == 0 ? blocks.length : rows % blocks.length;
  return blocks;
}

std::vector<int64_t> block_lengths(int64_t rows, int64_t bytes_of_row, int64_t usual, int64_t times) {
  std::vector<int64_t> lengths;
  for (int64_t length = kFewestRows; length <= kMostRows && length < rows; length *= times) lengths.push_back(length);
  if (rows <= kMostAtOnce) lengths.push_back(rows);
  const int64_t most = usual / std::max<int64_t>(bytes_of_row, 1);
  size_t first = 0;
  while (first + 1 < lengths.size() && lengths[first + 1] <= most) ++first;
  std::rotate(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(first), lengths.end());
  return lengths;
}

std::vector<KernelSpec> specs_by_rows(const Context& context, const Graph& graph, const Op& op,
                                      const std::vector<int64_t>& lengths,
                                      std::unique_ptr<Kernel> (*make)(const Context&, const Graph&, const Op&,
                                                                      std::string_view kernel),
                                      const std::vector<std::string>& further) {
  Graph alone;
  std::vector<TensorId> inputs;
  for (TensorId id : op.inputs) {
    const Tensor& t = graph.tensor(id);
    inputs.push_back(alone.add_source(fmt::format("{}", inputs.size()), t.shape, t.dtype, Role::input));
  }
  const Op& plain = alone.op(alone.add_op(op.type->name, op.name, op.layer, inputs, op.attributes));
  std::vector<KernelSpec> list;
  // Every block walks over the weights, and over their gradient twice.
  const auto add = [&](const std::string& name, int64_t rows, double efficiency) -> KernelSpec& {
    const bool tf32 = name.ends_with(kTf32);
    list.push_back(family_spec(graph, op, LayoutFamily::plain, name, make(context, alone, plain, name)->workspace()));
    KernelSpec& spec = list.back();
    spec.algorithm = Algorithm::gemm;
    spec.exact = false;
    spec.estimate = {.efficiency = (tf32 ? kTf32Speed : 1) * efficiency * static_cast<double>(rows) /
                                   static_cast<double>(rows + 64)};
    return spec;
  };
  for (const bool tf32 : {true, false}) {
    if (tf32 && !context.tf32) continue;
    bool usual = true;
    for (const int64_t rows : lengths) {
      KernelSpec& spec = add(fmt::format("{}{}{}", kRows, rows, tf32 ? kTf32 : ""), rows, 0.8);
      spec.exact = !tf32 && std::exchange(usual, false);
    }
  }
  for (const std::string& name : further) add(name, *std::ranges::max_element(lengths), 0.75);
  return list;
}

Pieces column_pieces(int64_t rows, int64_t columns, int64_t stride) {
  return pieces_of_values(
      with_pixels({.n = rows, .c = columns, .to_n = stride, .to_c = 1, .to_h = stride, .to_w = stride}));
}

}  // namespace plimsoll::cuda
