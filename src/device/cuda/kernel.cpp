#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "device/cuda/kernels.h"
#include "plimsoll/error.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

constexpr int64_t kLeastPiece = 2048, kLeastAcross = 16;           // elements worth a block, and a thread
constexpr int64_t kBlocksEnough = 1024, kThreadsEnough = 1 << 16;  // to fill a GPU
constexpr int64_t kMostPieces = 1024, kMostAcross = 4096;
constexpr int64_t kBlocksOfColumns = 528;  // four a multiprocessor of a large GPU
constexpr int32_t kLeastShift = 3, kMostShift = 6;

std::vector<size_t> sizes(const Graph& graph, const std::vector<TensorId>& tensors) {
  std::vector<size_t> result;
  for (TensorId id : tensors) result.push_back(graph.tensor(id).bytes().count);
  return result;
}

[[noreturn]] void throw_layout(const Op& op, const Tensor& tensor) {
  throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}): '{}' lies as '{}', which CUDA's kernels do not take",
                                                  op.name, op.type->name, tensor.name, tensor.layout.tag));
}

// None where rows do not begin at fours.
std::optional<ColumnCut> column_cut(const Image& image) {
  const int64_t stride = image.pixels == 1 ? image.to_n : image.to_w;
  const bool in_rows = image.to_n == image.pixels * stride && (image.h == 1 || image.to_h == image.w * stride);
  if (image.to_c != 1 || stride % 4 != 0 || !in_rows || image.c < 1) return std::nullopt;
  ColumnCut cut{.rows = image.n * image.pixels, .columns = image.c, .stride = stride};
  while (cut.shift < kMostShift && (int64_t{1} << cut.shift) < cut.fours()) ++cut.shift;
  const int64_t across = int64_t{1} << cut.shift, strips = (cut.fours() + across - 1) / across;
  const int64_t together = ColumnCut::kThreads / across * ColumnCut::kTogether;
  const int64_t pieces = std::max<int64_t>(kBlocksOfColumns / strips, 1);
  cut.strips = strips;
  cut.length = std::max<int64_t>(((cut.rows + pieces - 1) / pieces + together - 1) / together, 1) * together;
  cut.pieces = std::max<int64_t>((cut.rows + cut.length - 1) / cut.length, 1);
  return cut;
}

}  // namespace

CudaKernel::CudaKernel(const Context& context, const Graph& graph, const Op& op)
    : door_(context.door),
      inputs_(op.inputs.size()),
      outputs_(op.outputs.size()),
      input_bytes_(sizes(graph, op.inputs)),
      output_bytes_(sizes(graph, op.outputs)) {}

void CudaKernel::bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) {
  std::copy(inputs.begin(), inputs.end(), inputs_.begin());
  std::copy(outputs.begin(), outputs.end(), outputs_.begin());
  workspace_ = workspace;
}

void CudaKernel::add_touches(std::vector<Touch>& reads, std::vector<Touch>& writes) const {
  for (size_t i = 0; i < inputs_.size(); ++i) reads.push_back({inputs_[i], input_bytes_[i]});
  for (size_t i = 0; i < outputs_.size(); ++i) writes.push_back({outputs_[i], output_bytes_[i]});
}

void CudaKernel::run() {
  if (door_->records()) {
    std::vector<Touch> reads, writes;
    add_touches(reads, writes);
    writes.push_back({workspace_, static_cast<size_t>(workspace().count)});
    door_->touches(reads, writes);
  }
  work();
}

bool CudaKernel::sum_rows_of(int64_t number, const int64_t* numbers, const float* x, const Pieces& pieces, double* sums,
                             float* totals) const {
  const std::optional<ColumnCut> cut = column_cut(pieces.image);
  if (!cut || !lie_by_four(x)) return false;
  launch(SumColumns{.x = x, .cut = *cut, .sums = sums, .numbers = numbers, .number = number},
         cut->pieces * cut->strips);
  launch(ColumnTotals{.first = totals,
                      .second = nullptr,
                      .sums = sums,
                      .columns = cut->columns,
                      .split = cut->columns,
                      .pieces = cut->pieces,
                      .adds = false},
         blocks_of_totals(cut->columns));
  return true;
}

void CudaKernel::sum_values(const float* x, const Pieces& pieces, void* sums, float* totals, bool adds) const {
  if (const std::optional<ColumnCut> cut = column_cut(pieces.image); cut && lie_by_four(x)) {
    auto* const of_columns = static_cast<double*>(sums);
    launch(SumColumns{.x = x, .cut = *cut, .sums = of_columns}, cut->pieces * cut->strips);
    launch(ColumnTotals{.first = totals,
                        .second = nullptr,
                        .sums = of_columns,
                        .columns = cut->columns,
                        .split = cut->columns,
                        .pieces = cut->pieces,
                        .adds = adds},
           blocks_of_totals(cut->columns));
    return;
  }
  auto* const of_channels = static_cast<SumPair*>(sums);
  sum_channels(Values{x}, pieces, of_channels);
  launch(ChannelTotals{.first = totals, .second = nullptr, .sums = of_channels, .pieces = pieces.pieces, .adds = adds},
         pieces.image.c);
}

Layout family_layout(LayoutFamily family, size_t rank) {
  return family == LayoutFamily::channels_last && rank == 4 ? Layout{"acdb"} : Layout{};
}

Image image_of(const Op& op, const Tensor& tensor) {
  const Shape& s = tensor.shape;
  Image image;
  if (s.size() == 1) image.c = s[0];
  if (s.size() >= 2) image.n = s[0], image.c = s[1];
  if (s.size() == 4) image.h = s[2], image.w = s[3];
  if (s.size() == 3 || s.size() > 4) {
    int64_t width = 1;
    for (size_t d = 2; d < s.size(); ++d) width *= s[d];
    image.w = width;
  }
  image.to_n = image.c * image.h * image.w;
  if (tensor.layout.is_plain()) {
    image.to_c = image.h * image.w;
    image.to_h = image.w;
    image.to_w = 1;
  } else if (tensor.layout.tag == "acdb" && s.size() == 4) {
    image.to_c = 1;
    image.to_h = image.w * image.c;
    image.to_w = image.c;
  } else {
    throw_layout(op, tensor);
  }
  return with_pixels(image);
}

Place place_in(const Op& op, const Tensor& tensor) {
  Place place;
  if (tensor.layout.is_plain()) {
    place.rank = 1;
    place.size[0] = element_count(tensor.shape);
    place.outer[0] = 1;
    return place;
  }
  const std::string& tag = tensor.layout.tag;
  if (tensor.shape.size() > 5) throw_layout(op, tensor);
  place.rank = static_cast<int32_t>(tensor.shape.size());
  for (size_t d = 0; d < tensor.shape.size(); ++d) place.size[d] = tensor.shape[d];
  auto dimension = [&](char letter) -> size_t { return std::tolower(static_cast<unsigned char>(letter)) - 'a'; };
  size_t head = 0;
  while (head < tag.size() && std::isalpha(static_cast<unsigned char>(tag[head])) != 0) ++head;
  struct Block {
    size_t dimension;
    int64_t size;
  };
  std::vector<Block> blocks;
  for (size_t i = head; i < tag.size();) {
    int64_t size = 0;
    while (i < tag.size() && std::isdigit(static_cast<unsigned char>(tag[i])) != 0) size = 10 * size + (tag[i++] - '0');
    if (i >= tag.size() || dimension(tag[i]) >= tensor.shape.size() || place.block[dimension(tag[i])] != 1)
      throw_layout(op, tensor);
    place.block[dimension(tag[i])] = size;
    blocks.push_back({dimension(tag[i++]), size});
  }
  int64_t distance = 1;
  for (size_t i = blocks.size(); i-- > 0;) {
    place.inner[blocks[i].dimension] = distance;
    distance *= blocks[i].size;
  }
  for (size_t i = head; i-- > 0;) {
    const size_t d = dimension(tag[i]);
    place.outer[d] = distance;
    distance *= (place.size[d] + place.block[d] - 1) / place.block[d];
  }
  return place;
}

void require_f32(const Graph& graph, const Op& op) {
  if (op.type->name == "SquareSums" || op.type->name == "NormOfSums") return;
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (TensorId id : *list) {
      if (graph.tensor(id).dtype != DType::f64) continue;
      throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}): '{}' is f64; CUDA's kernels are for f32", op.name,
                                                      op.type->name, graph.tensor(id).name));
    }
  }
}

void require_one_layout(const Graph& graph, const Op& op, const Tensor& like) {
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (TensorId id : *list) {
      const Tensor& tensor = graph.tensor(id);
      if (tensor.shape != like.shape) continue;
      if (tensor.layout.tag != like.layout.tag && !(tensor.layout.is_plain() && like.layout.is_plain()))
        throw_layout(op, tensor);
    }
  }
}

KernelSpec family_spec(const Graph& graph, const Op& op, LayoutFamily family, std::string name, Bytes workspace) {
  KernelSpec spec{.name = std::move(name), .inputs = {}, .outputs = {}, .workspace = workspace};
  for (TensorId id : op.inputs) spec.inputs.push_back(family_layout(family, graph.tensor(id).shape.size()));
  for (TensorId id : op.outputs) spec.outputs.push_back(family_layout(family, graph.tensor(id).shape.size()));
  return spec;
}

std::vector<KernelSpec> own_specs(const Context&, const Graph& graph, const Op& op, LayoutFamily family) {
  return {family_spec(graph, op, family, "own", {})};
}

std::vector<KernelSpec> own_specs_row_major(const Context&, const Graph& graph, const Op& op, LayoutFamily) {
  return {family_spec(graph, op, LayoutFamily::plain, "own", {})};
}

std::vector<KernelSpec> own_specs_any_layout(const Context& context, const Graph& graph, const Op& op,
                                             LayoutFamily family) {
  std::vector<KernelSpec> specs = own_specs(context, graph, op, family);
  if (family == LayoutFamily::blocked) return specs;
  const Shape& shape = graph.tensor(op.inputs.empty() ? op.outputs[0] : op.inputs[0]).shape;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (graph.tensor(op.inputs[i]).shape == shape) specs[0].inputs[i] = kAnyLayout;
  }
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    if (graph.tensor(op.outputs[i]).shape == shape) specs[0].outputs[i] = kAnyLayout;
  }
  return specs;
}

void require_row_major(const Graph& graph, const Op& op) {
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (TensorId id : *list) {
      if (!graph.tensor(id).layout.is_plain()) throw_layout(op, graph.tensor(id));
    }
  }
}

void refuse(const Op& op, const std::string& why) {
  throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}): {}", op.name, op.type->name, why));
}

void throw_no_kernel(const Op& op, std::string_view kernel) {
  throw Error(ErrorCode::unsupported,
              fmt::format("op '{}' ({}): CUDA has no kernel '{}' for it", op.name, op.type->name, kernel));
}

void require_own(const Op& op, std::string_view kernel) {
  if (kernel != "own") throw_no_kernel(op, kernel);
}

Pieces pieces_of(const Image& image) {
  const int64_t elements = image.n * image.h * image.w, channels = std::max<int64_t>(image.c, 1);
  const bool across = image.to_c == 1;
  const int64_t worth = elements / (across ? kLeastAcross : kLeastPiece),
                enough = across ? kThreadsEnough * (channels % 4 == 0 ? 4 : 1) / channels : kBlocksEnough / channels;
  const int64_t pieces = std::clamp<int64_t>(std::min(worth, enough), 1, across ? kMostAcross : kMostPieces);
  int64_t length = (elements + pieces - 1) / pieces;
  if (!across && image.pixels % 4 == 0) length = (length + 3) / 4 * 4;
  return {.image = image, .pieces = (elements + length - 1) / length, .length = length, .elements = elements};
}

Pieces pieces_of_values(const Image& image) {
  const std::optional<ColumnCut> cut = column_cut(image);
  if (!cut) return pieces_of(image);
  return {.image = image, .pieces = cut->pieces, .length = cut->length, .elements = cut->rows};
}

Bytes room_for(const Pieces& pieces) {
  return {pieces.image.c * pieces.pieces * static_cast<int64_t>(sizeof(SumPair))};
}

}  // namespace plimsoll::cuda
