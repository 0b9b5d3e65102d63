// Judges the CPU device's kernels by the op types' reference kernels: every family, one and two threads, every way of
// letting outputs take inputs' bytes, guard bytes behind each tensor, padding zero, two runs equal to the bit.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "ops/reference.h"
#include "plimsoll/device.h"

namespace plimsoll {

struct OpCase {
  std::string type;
  std::vector<TensorSpec> inputs;
  Attributes attributes = {};
  std::map<size_t, std::vector<double>> values = {};  // of inputs that are not drawn from a normal distribution
  double tolerance = 2e-5;  // relative to the largest element of the tensor, or absolute below 1
  uint64_t seed = 1;
  std::vector<int> threads = {1, 2};
};

namespace own_test {

// 64-byte aligned, with guard bytes behind it.
class Buffer {
 public:
  explicit Buffer(int64_t bytes = 0) : bytes_(bytes), data_((bytes_ + 127) / 64 * 64) {
    if (bytes_ + kGuard > 0) block_ = static_cast<std::byte*>(std::aligned_alloc(64, data_ + 64));
    std::fill(block_, block_ + data_ + 64, std::byte{0xCD});
  }
  ~Buffer() { std::free(block_); }
  Buffer(const Buffer& other) : Buffer(static_cast<int64_t>(other.bytes_)) {
    std::copy(other.block_, other.block_ + bytes_, block_);
  }
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return block_; }
  std::span<std::byte> bytes() const { return {block_, bytes_}; }
  bool guards_hold() const {
    for (size_t i = bytes_; i < data_ + 64; ++i) {
      if (block_[i] != std::byte{0xCD}) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  size_t bytes_, data_;
  std::byte* block_ = nullptr;
};

inline TensorView view(const Tensor& tensor, const Buffer& buffer) {
  return {.shape = {storage_elements(tensor.shape, tensor.layout)}, .dtype = tensor.dtype, .data = buffer.data()};
}
inline Buffer laid_out(const Tensor& tensor, const std::vector<int64_t>& offsets, const std::vector<double>& values) {
  Buffer buffer(tensor.bytes().count);
  std::fill(buffer.bytes().begin(), buffer.bytes().end(), std::byte{0});
  const TensorView storage = view(tensor, buffer);
  for (size_t i = 0; i < values.size(); ++i) store(storage, offsets[i], values[i]);
  return buffer;
}
inline std::vector<double> row_major(const Tensor& tensor, const std::vector<int64_t>& offsets, const Buffer& buffer) {
  const TensorView storage = view(tensor, buffer);
  std::vector<double> values;
  values.reserve(offsets.size());
  for (int64_t offset : offsets) values.push_back(load(storage, offset));
  return values;
}
inline bool padding_is_zero(const Tensor& tensor, const std::vector<int64_t>& offsets, const Buffer& buffer) {
  const int64_t count = storage_elements(tensor.shape, tensor.layout);
  if (count == static_cast<int64_t>(offsets.size())) return true;
  const TensorView storage = view(tensor, buffer);
  std::vector<bool> used(count);
  for (int64_t offset : offsets) used[offset] = true;
  for (int64_t i = 0; i < count; ++i) {
    if (!used[i] && load(storage, i) != 0) return false;
  }
  return true;
}
inline std::vector<std::vector<int64_t>> offsets_of(const Graph& graph, std::span<const TensorId> tensors) {
  std::vector<std::vector<int64_t>> offsets;
  for (TensorId t : tensors) offsets.push_back(storage_offsets(graph.tensor(t).shape, graph.tensor(t).layout));
  return offsets;
}

// Every set of in-place pairs in which no output and no input occurs twice, with the required ones.
inline std::vector<std::vector<InPlace>> in_place_choices(const Graph& graph, const Op& op) {
  std::vector<InPlace> required, free;
  if (op.type->in_place) {
    for (const InPlace& pair : op.type->in_place(graph, op)) (pair.required ? required : free).push_back(pair);
  }
  std::vector<std::vector<InPlace>> choices;
  for (size_t set = 0; set < size_t{1} << free.size(); ++set) {
    std::vector<InPlace> choice = required;
    std::set<int> inputs, outputs;
    bool good = true;
    for (size_t k = 0; k < free.size(); ++k) {
      if ((set >> k & 1) == 0) continue;
      good = good && inputs.insert(free[k].input).second && outputs.insert(free[k].output).second;
      choice.push_back(free[k]);
    }
    if (good) choices.push_back(choice);
  }
  return choices;
}

}  // namespace own_test

inline void expect_like_reference(const OpCase& test) {
  using namespace own_test;
  SCOPED_TRACE(test.type + " " + (test.inputs.empty() ? "" : to_string(test.inputs[0].shape)) + " seed " +
               std::to_string(test.seed));
  Graph graph;
  std::vector<TensorId> ids;
  for (size_t i = 0; i < test.inputs.size(); ++i) {
    ids.push_back(graph.add_source("in" + std::to_string(i), test.inputs[i].shape, test.inputs[i].dtype, Role::input));
  }
  const OpId id = graph.add_op(test.type, "op", "op", ids, test.attributes);
  const Op op = graph.op(id);

  std::mt19937_64 random(test.seed);
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> values;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto given = test.values.find(i);
    values.push_back(given == test.values.end() ? std::vector<double>(element_count(test.inputs[i].shape))
                                                : given->second);
    if (given != test.values.end()) continue;
    for (double& x : values.back())
      x = test.inputs[i].dtype == DType::bit ? (random() & 1) : static_cast<float>(normal(random));
  }
  std::vector<std::vector<double>> expected;
  {
    std::vector<Buffer> in, out;
    std::vector<TensorView> in_views, out_views;
    in.reserve(ids.size()), out.reserve(op.outputs.size());
    const auto in_offsets = offsets_of(graph, ids), out_offsets = offsets_of(graph, op.outputs);
    for (size_t i = 0; i < ids.size(); ++i) {
      in.push_back(laid_out(graph.tensor(ids[i]), in_offsets[i], values[i]));
      in_views.push_back({graph.tensor(ids[i]).shape, graph.tensor(ids[i]).dtype, in.back().data()});
    }
    for (TensorId o : op.outputs) {
      out.emplace_back(graph.tensor(o).bytes().count);
      out_views.push_back({graph.tensor(o).shape, graph.tensor(o).dtype, out.back().data()});
    }
    op.type->reference(op, in_views, out_views);
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      expected.push_back(row_major(graph.tensor(op.outputs[i]), out_offsets[i], out[i]));
    }
  }

  for (LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked}) {
    for (int threads : test.threads) {
      if (threads > 1 && bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs) < 32_KiB)
        continue;  // all run serially
      SCOPED_TRACE(std::string(to_string(family)) + ", " + std::to_string(threads) + " threads");
      const auto device = open_device("cpu", threads);
      for (const KernelSpec& spec : device->kernels(graph, op, family)) {
        SCOPED_TRACE(spec.name);
        auto resolve = [&](const Layout& layout, TensorId t) {
          if (layout != kAnyLayout) return layout;
          if (graph.tensor(t).shape.size() != 4 || family == LayoutFamily::plain) return Layout{};
          return Layout{family == LayoutFamily::channels_last ? "acdb" : "aBcd16b"};
        };
        for (size_t i = 0; i < ids.size(); ++i) graph.tensor(ids[i]).layout = resolve(spec.inputs[i], ids[i]);
        for (size_t i = 0; i < op.outputs.size(); ++i) {
          graph.tensor(op.outputs[i]).layout = resolve(spec.outputs[i], op.outputs[i]);
        }
        const auto kernel = device->make_kernel(graph, op, spec.name);
        const auto in_offsets = offsets_of(graph, ids), out_offsets = offsets_of(graph, op.outputs);
        std::vector<Buffer> given;
        given.reserve(ids.size());
        for (size_t i = 0; i < ids.size(); ++i)
          given.push_back(laid_out(graph.tensor(ids[i]), in_offsets[i], values[i]));
        for (const auto& pairs : in_place_choices(graph, op)) {
          std::vector<std::vector<std::byte>> first_run;
          for (int repeat = 0; repeat < 2; ++repeat) {
            std::vector<Buffer> in = given, out;
            std::vector<void*> in_pointers, out_pointers;
            out.reserve(op.outputs.size());
            for (Buffer& buffer : in) in_pointers.push_back(buffer.data());
            std::string places;
            for (TensorId o : op.outputs) {
              out.emplace_back(graph.tensor(o).bytes().count);
              out_pointers.push_back(out.back().data());
            }
            for (const InPlace& pair : pairs) {
              out_pointers[pair.output] = in_pointers[pair.input];
              places += " output " + std::to_string(pair.output) + " in input " + std::to_string(pair.input);
            }
            SCOPED_TRACE(places);
            Buffer workspace(kernel->workspace().count);
            kernel->bind(in_pointers, out_pointers, workspace.data());
            kernel->run();
            EXPECT_TRUE(workspace.guards_hold());
            for (const Buffer& buffer : in) EXPECT_TRUE(buffer.guards_hold());
            for (const Buffer& buffer : out) EXPECT_TRUE(buffer.guards_hold());
            std::vector<double> y;
            for (size_t o = 0; o < op.outputs.size(); ++o) {
              SCOPED_TRACE("output " + std::to_string(o));
              const Tensor& tensor = graph.tensor(op.outputs[o]);
              const Buffer* where = &out[o];
              for (const InPlace& pair : pairs) {
                if (std::cmp_equal(pair.output, o)) where = &in[pair.input];
              }
              EXPECT_TRUE(padding_is_zero(tensor, out_offsets[o], *where));
              const auto bytes = where->bytes().first(tensor.bytes().count);
              if (repeat == 1) {
                EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), first_run[o].begin()));
                continue;
              }
              first_run.emplace_back(bytes.begin(), bytes.end());
              const std::vector<double> got = row_major(tensor, out_offsets[o], *where);
              if (o == 0) y = got;
              double scale = 1;
              for (double x : expected[o]) scale = std::isinf(x) ? scale : std::max(scale, std::abs(x));
              for (size_t i = 0; i < got.size(); ++i) {
                // A mask tells of the kernel's own y, which may be on the other side of zero by a rounding.
                const double wanted = tensor.dtype == DType::bit ? (y[i] > 0) : expected[o][i];
                if (got[i] == wanted || std::abs(got[i] - wanted) <= test.tolerance * scale) continue;
                FAIL() << "element " << i << " is " << got[i] << ", expected " << wanted;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace plimsoll
