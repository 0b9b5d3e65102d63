// Permute: the dimensions in another order, y's d-th being x's dims[d]-th. The gradient is the way back.
#include <fmt/format.h>

#include <cstring>

#include "ops/families.h"
#include "ops/move.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

std::vector<int64_t> read_dims(const Attributes& attributes, const Tensor& x) {
  const std::vector<int64_t> dims = attributes.integers("dims");
  std::vector<int64_t> sorted = dims;
  std::sort(sorted.begin(), sorted.end());
  bool each_once = sorted.size() == x.shape.size();
  for (size_t d = 0; each_once && d < sorted.size(); ++d) each_once = sorted[d] == static_cast<int64_t>(d);
  if (each_once) return dims;
  throw Error(ErrorCode::invalid_input,
              fmt::format("dims are [{}]; each of the {} dimensions of '{}', which is {}, is expected once",
                          fmt::join(dims, ", "), x.shape.size(), x.name, to_string(x.shape)));
}

// Whether only dimensions of size one change their places: the elements then stay where they are. Not so of images, which
// may lie channels last.
bool keeps_order(const Shape& x, const std::vector<int64_t>& dims) {
  if (x.size() == 4) return false;
  int64_t last = -1;
  for (int64_t d : dims) {
    if (x[d] == 1) continue;
    if (d < last) return false;
    last = d;
  }
  return true;
}

OpType permute() {
  return {
      .name = "Permute",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            element_width(*in[0]);
            Shape shape;
            for (int64_t d : read_dims(attributes, *in[0])) shape.push_back(in[0]->shape[d]);
            return std::vector<TensorSpec>{{shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            if (!wanted[0] || !dy[0].valid()) return std::vector<TensorId>{TensorId{}};
            const std::vector<int64_t> dims = graph.op(id).attributes.integers("dims");
            std::vector<int64_t> back(dims.size());
            for (size_t d = 0; d < dims.size(); ++d) back[dims[d]] = static_cast<int64_t>(d);
            return std::vector<TensorId>{
                graph.output(add_backward(graph, "Permute", id, "backward", {dy[0]}, {{"dims", back}}))};
          },
      .in_place =
          [](const Graph& graph, const Op& op) {
            if (!keeps_order(graph.tensor(op.inputs[0]).shape, op.attributes.integers("dims")))
              return std::vector<InPlace>{};
            return std::vector<InPlace>{{0, 0}};
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 0); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const std::vector<int64_t> dims = op.attributes.integers("dims");
            const int64_t width = storage_bytes({1}, in[0].dtype, {}).count;
            const std::byte* from = static_cast<const std::byte*>(in[0].data);
            std::byte* to = static_cast<std::byte*>(out[0].data);
            if (from == to) return;  // only dimensions of size one change their places
            for_each_element(out[0], [&](int64_t i) {
              int64_t rest = i, position = 0;
              for (size_t d = dims.size(); d-- > 0;) {
                const int64_t at = rest % out[0].shape[d];
                rest /= out[0].shape[d];
                int64_t stride = 1;
                for (size_t inner = dims[d] + 1; inner < dims.size(); ++inner) stride *= in[0].shape[inner];
                position += at * stride;
              }
              std::memcpy(to + i * width, from + position * width, width);
            });
          },
  };
}

}  // namespace

std::vector<OpType> permute_ops() { return of_kind(LayerKind::concat, {permute()}); }

}  // namespace plimsoll
