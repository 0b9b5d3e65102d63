#include "device/divided.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "ops/micro_op.h"
#include "plimsoll/cost.h"
#include "plimsoll/ops.h"
#include "plimsoll/plan.h"

namespace plimsoll {
namespace {

bool listed(const std::vector<int>& positions, size_t i) {
  return std::find(positions.begin(), positions.end(), static_cast<int>(i)) != positions.end();
}

Bytes row_bytes(const Tensor& tensor, const Layout& layout) {
  Shape row = tensor.shape;
  row[0] = 1;
  return storage_bytes(row, tensor.dtype, layout);
}
Bytes row_bytes(const Tensor& tensor) { return row_bytes(tensor, tensor.layout); }

// Adds what a later part made to what is there: the storage as it lies, by the device's own kernel for sums.
std::unique_ptr<Kernel> make_sum(const Device& device, const Tensor& tensor, int threads) {
  Graph graph;
  const TensorId sum = graph.add_source("sum", tensor.shape, tensor.dtype, Role::gradient);
  const TensorId part = graph.add_source("part", tensor.shape, tensor.dtype, Role::gradient);
  const OpId add = graph.add_op("Add", "sum of parts", "", {sum, part});
  for (TensorId id : {sum, part, graph.output(add)}) graph.tensor(id).layout = tensor.layout;
  const std::vector<KernelSpec> kernels = device.kernels(graph, graph.op(add), LayoutFamily::plain);
  return device.make_kernel(graph, graph.op(add), kernels.at(0).name, threads);
}

class DividedKernel final : public Kernel {
 public:
  DividedKernel(const Device& device, const Graph& graph, const Op& op, const std::vector<MicroBatch>& parts,
                int threads)
      : division_(op.type->division) {
    std::map<std::pair<std::string, int64_t>, size_t> made;
    Bytes most;
    for (const MicroBatch& part : parts) {
      auto [place, fresh] = made.emplace(std::pair(part.kernel, part.batch), kernels_.size());
      if (fresh) {
        const MicroOp micro = micro_op(graph, op, part.batch);
        kernels_.push_back(device.make_kernel(micro.graph, micro.graph.op(micro.op), part.kernel, threads));
        most = std::max(most, part_workspace(kernels_.back()->workspace()));
      }
      parts_.push_back({place->second, part.batch});
    }
    workspace_ = most;
    for (TensorId id : op.inputs)
      input_rows_.push_back(rows_of(graph.tensor(id), division_.inputs, input_rows_.size()));
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const Tensor& tensor = graph.tensor(op.outputs[i]);
      output_rows_.push_back(rows_of(tensor, division_.outputs, i));
      if (listed(division_.outputs, i)) continue;
      sums_.push_back({i, workspace_, make_sum(device, tensor, threads)});
      workspace_ += align_up(tensor.bytes(), kStayAlignment);
    }
    inputs_.resize(op.inputs.size());
    outputs_.resize(op.outputs.size());
    part_inputs_ = inputs_;
    part_outputs_ = outputs_;
  }

  Bytes workspace() const override { return workspace_; }

  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) override {
    std::copy(inputs.begin(), inputs.end(), inputs_.begin());
    std::copy(outputs.begin(), outputs.end(), outputs_.begin());
    scratch_ = static_cast<std::byte*>(workspace);
    for (Sum& sum : sums_) {
      void* const total = outputs_[sum.output];
      void* const terms[] = {total, scratch_ + sum.at.count};
      sum.add->bind(terms, std::span(&total, 1), nullptr);
    }
  }

  void run() override {
    int64_t row = 0;
    for (const Part& part : parts_) {
      shift(inputs_, input_rows_, row, part_inputs_);
      shift(outputs_, output_rows_, row, part_outputs_);
      if (row > 0) {
        for (const Sum& sum : sums_) part_outputs_[sum.output] = scratch_ + sum.at.count;
      }
      Kernel& kernel = *kernels_[part.kernel];
      kernel.bind(part_inputs_, part_outputs_, scratch_);
      kernel.run();
      if (row > 0) {
        for (const Sum& sum : sums_) sum.add->run();
      }
      row += part.batch;
    }
  }

 private:
  struct Part {
    size_t kernel;  // equal parts share one, bound anew for each
    int64_t batch;
  };
  struct Sum {
    size_t output;
    Bytes at;  // in the workspace, where later parts put theirs
    std::unique_ptr<Kernel> add;
  };

  // Bytes from one row of the batch to the next; none in a tensor that every part has whole.
  static Bytes rows_of(const Tensor& tensor, const std::vector<int>& divided, size_t i) {
    return listed(divided, i) ? row_bytes(tensor) : Bytes{};
  }
  static void shift(const std::vector<void*>& whole, const std::vector<Bytes>& rows, int64_t row,
                    std::vector<void*>& part) {
    for (size_t i = 0; i < whole.size(); ++i) {
      part[i] = whole[i] == nullptr ? nullptr : static_cast<std::byte*>(whole[i]) + (rows[i] * row).count;
    }
  }

  const BatchDivision& division_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<Part> parts_;
  std::vector<Sum> sums_;
  Bytes workspace_;
  std::vector<Bytes> input_rows_, output_rows_;
  std::vector<void*> inputs_, outputs_, part_inputs_, part_outputs_;
  std::byte* scratch_ = nullptr;
};

}  // namespace

bool is_divisible(const Layout& layout) {
  const std::string& tag = layout.tag;
  return layout.is_plain() || (tag[0] == 'a' && tag.find_first_of("aA", 1) == std::string::npos);
}

std::string why_not_divisible(const Graph& graph, const Op& op) {
  const BatchDivision& division = op.type->division;
  if (divisible_batch(graph, op) == 0)
    return fmt::format("ops of type {} do not run in parts of the batch", op.type->name);
  auto trouble = [&](const std::vector<TensorId>& ids, const std::vector<int>& divided) -> std::string {
    for (int i : divided) {
      const Tensor& tensor = graph.tensor(ids[i]);
      const bool whole_bytes =
          tensor.dtype != DType::bit || element_count({tensor.shape.begin() + 1, tensor.shape.end()}) % 8 == 0;
      if (!is_divisible(tensor.layout) || !whole_bytes) {
        return fmt::format("the rows of '{}' do not lie one after the other in layout '{}'", tensor.name,
                           tensor.layout.tag);
      }
    }
    return "";
  };
  const std::string inputs = trouble(op.inputs, division.inputs);
  return inputs.empty() ? trouble(op.outputs, division.outputs) : inputs;
}

bool is_aligned_at(const Graph& graph, const Op& op, int64_t row, int64_t alignment, const KernelSpec* layouts) {
  if (alignment <= 1) return true;
  auto aligned = [&](const std::vector<TensorId>& ids, const std::vector<int>& divided, const std::vector<Layout>* as) {
    return std::all_of(divided.begin(), divided.end(), [&](int i) {
      const Tensor& tensor = graph.tensor(ids[i]);
      const Layout& layout = as != nullptr ? as->at(i) : tensor.layout;
      return (row_bytes(tensor, layout) * row).count % alignment == 0;
    });
  };
  const BatchDivision& division = op.type->division;
  return aligned(op.inputs, division.inputs, layouts != nullptr ? &layouts->inputs : nullptr) &&
         aligned(op.outputs, division.outputs, layouts != nullptr ? &layouts->outputs : nullptr);
}

Bytes part_workspace(Bytes own) { return align_up(own, kStayAlignment); }

Bytes summing_workspace(const Graph& graph, const Op& op, std::span<const Layout> outputs) {
  Bytes sum;
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    if (listed(op.type->division.outputs, i)) continue;
    const Tensor& tensor = graph.tensor(op.outputs[i]);
    const bool stated = i < outputs.size() && outputs[i].tag != kAnyLayout.tag;
    sum += align_up(stated ? storage_bytes(tensor.shape, tensor.dtype, outputs[i]) : tensor.bytes(), kStayAlignment);
  }
  return sum;
}

std::unique_ptr<Kernel> make_kernel(const Device& device, const Graph& graph, const Op& op, std::string_view kernel,
                                    int threads) {
  const std::vector<MicroBatch> parts = parts_of(kernel);
  if (parts.empty()) return device.make_kernel(graph, op, kernel, threads);
  if (const std::string why = why_not_divisible(graph, op); !why.empty()) {
    throw Error(ErrorCode::unsupported, fmt::format("op '{}' cannot run by '{}': {}", op.name, kernel, why));
  }
  int64_t rows = 0;
  for (const MicroBatch& part : parts) {
    if (const int64_t alignment = device.row_alignment(op, part.kernel); !is_aligned_at(graph, op, rows, alignment)) {
      throw Error(
          ErrorCode::unsupported,
          fmt::format("op '{}' cannot run by '{}': row {} of a tensor is at no multiple of {} bytes, which '{}' needs",
                      op.name, kernel, rows, alignment, part.kernel));
    }
    rows += part.batch;
  }
  if (const int64_t batch = divisible_batch(graph, op); rows != batch) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("the parts of '{}' have {} rows, op '{}' has {}", kernel, rows, op.name, batch));
  }
  return std::make_unique<DividedKernel>(device, graph, op, parts, threads);
}

}  // namespace plimsoll
