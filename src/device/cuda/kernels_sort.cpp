// Sort, TopK and CumulativeSum along an axis of row-major tensors.
#include <fmt/format.h>

#include <bit>

#include "device/cuda/kernels.h"
#include "ops/axis_rows.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

constexpr int64_t kLongestRanked = 512;  // elements of a row that each thread looks at
constexpr int64_t kPiece = 512;          // elements of a row that a thread adds up

AxisRows rows_along_axis(const Graph& graph, const Op& op) {
  return axis_rows(graph.tensor(op.inputs[0]).shape, static_cast<size_t>(op.attributes.integer("axis")));
}

template <class T>
class SortKernel final : public CudaKernel {
 public:
  SortKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        rows_(rows_along_axis(graph, op)),
        wanted_(graph.tensor(op.outputs[0]).shape[static_cast<size_t>(op.attributes.integer("axis"))]),
        padded_(padded_length(op, rows_)) {
    require_row_major(graph, op);
    const bool top = op.type->name == "TopK";
    largest_first_ = op.attributes.integer(top ? "largest" : "descending", top ? 1 : 0) != 0;
    workspace_bytes_ = workspace_for(graph, op);
  }
  static Bytes workspace_for(const Graph& graph, const Op& op) {
    const AxisRows rows = rows_along_axis(graph, op);
    return {rows.length <= kLongestRanked
                ? 0
                : rows.rows() * padded_length(op, rows) * static_cast<int64_t>(sizeof(int32_t))};
  }

 private:
  static int64_t padded_length(const Op& op, const AxisRows& rows) {
    constexpr int64_t most = int64_t{1} << 30;
    if (rows.length <= most) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows.length)));
    throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}): rows of {} elements; CUDA's kernel sorts {}",
                                                    op.name, op.type->name, rows.length, most));
  }

  void work() override {
    const RowOrder<T> order{.x = input<T>(0), .place = {rows_.length, rows_.inner}, .largest_first = largest_first_};
    T* const y = output<T>(0);
    int64_t* const indices = output<int64_t>(1);
    if (rows_.length <= kLongestRanked) {
      return launch(SortByRanks<T>{.y = y, .indices = indices, .order = order, .wanted = wanted_},
                    rows_.rows() * rows_.length);
    }
    int32_t* const places = scratch<int32_t>();
    launch(PlacesInOrder{.places = places, .padded = padded_}, rows_.rows() * padded_);
    for (int64_t run_length = 2; run_length <= padded_; run_length *= 2) {
      for (int64_t distance = run_length / 2; distance > 0; distance /= 2) {
        launch(
            SortStep<T>{
                .places = places, .order = order, .padded = padded_, .run_length = run_length, .distance = distance},
            rows_.rows() * padded_ / 2);
      }
    }
    launch(TakeSorted<T>{.y = y,
                         .indices = indices,
                         .x = order.x,
                         .places = places,
                         .place = order.place,
                         .padded = padded_,
                         .wanted = wanted_},
           rows_.rows() * wanted_);
  }

  AxisRows rows_;
  int64_t wanted_, padded_;
  bool largest_first_ = false;
};

RowPieces pieces_along_axis(const Graph& graph, const Op& op) {
  const AxisRows rows = rows_along_axis(graph, op);
  return {.place = {rows.length, rows.inner},
          .reverse = op.attributes.integer("reverse", 0) != 0,
          .rows = rows.rows(),
          .piece = kPiece,
          .pieces = (rows.length + kPiece - 1) / kPiece};
}

template <class T>
class CumulativeSumKernel final : public CudaKernel {
 public:
  CumulativeSumKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), pieces_(pieces_along_axis(graph, op)) {
    require_row_major(graph, op);
    workspace_bytes_ = workspace_for(graph, op);
  }
  static Bytes workspace_for(const Graph& graph, const Op& op) {
    const RowPieces pieces = pieces_along_axis(graph, op);
    return {pieces.pieces == 1 ? 0 : pieces.rows * pieces.pieces * static_cast<int64_t>(sizeof(int64_t))};
  }

 private:
  using Number = typename RunningSum<T>::Number;

  void work() override {
    const int64_t count = pieces_.rows * pieces_.pieces;
    Number* const sums = pieces_.pieces == 1 ? nullptr : scratch<Number>();
    if (sums != nullptr) {
      launch(PieceSums<T>{.sums = sums, .x = input<T>(0), .pieces = pieces_}, count);
      launch(SumsBefore<Number>{.sums = sums, .rows = pieces_.rows, .pieces = pieces_.pieces}, pieces_.rows);
    }
    launch(
        CumulativeSums<T>{
            .y = output<typename RunningSum<T>::Result>(0), .x = input<T>(0), .sums = sums, .pieces = pieces_},
        count);
  }

  RowPieces pieces_;
};

// A kernel for the dtype of the input.
template <template <class> class K>
std::unique_ptr<Kernel> make_of_dtype(const Context& context, const Graph& graph, const Op& op,
                                      std::string_view kernel) {
  require_own(op, kernel);
  switch (graph.tensor(op.inputs[0]).dtype) {
    case DType::i32: return std::make_unique<K<int32_t>>(context, graph, op);
    case DType::i64: return std::make_unique<K<int64_t>>(context, graph, op);
    case DType::u8: return std::make_unique<K<uint8_t>>(context, graph, op);
    default: break;
  }
  require_f32(graph, op);
  return std::make_unique<K<float>>(context, graph, op);
}

}  // namespace

std::vector<NamedFactory> sort_kernels() {
  return {{"CumulativeSum",
           {row_major_specs_with_workspace<CumulativeSumKernel<float>>, make_of_dtype<CumulativeSumKernel>}},
          {"Sort", {row_major_specs_with_workspace<SortKernel<float>>, make_of_dtype<SortKernel>}},
          {"TopK", {row_major_specs_with_workspace<SortKernel<float>>, make_of_dtype<SortKernel>}}};
}

}  // namespace plimsoll::cuda
