// Embedding, IndexSelect, Index, Gather, and their gradients. Indices are checked before, or while, elements are moved;
// what is out of range is skipped, and told when all threads are done. Gradients are divided over threads by where they
// are added to: each element has its sum in the order of the indices, however many threads there are.
#include <algorithm>
#include <cstring>
#include <utility>

#include "device/cpu/own.h"
#include "device/cpu/own_move.h"
#include "device/cpu/own_vector.h"
#include "ops/take.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

constexpr int64_t kNone = INT64_MAX;

// One of an op's index tensors: its input, and the dimension of x that it is of.
struct IndexTensor {
  size_t input = 1;
  DType dtype = DType::i32;
  int64_t dimension = 0, limit = 1;
  bool whole = true;             // it has the shape of the joint
  std::vector<int64_t> strides;  // else: of its elements along the joint's dimensions
};

// Makes rows of x out of the index tensors, in the workspace.
class TakeKernel : public OwnKernel {
 protected:
  TakeKernel(const Graph& graph, const Op& op, int threads, bool backward)
      : OwnKernel(graph, op, threads, AnyDType{}), bad_(parts_) {
    const std::string_view type = op.type->name;
    const Tensor& x = graph.tensor(backward ? op.outputs[0] : op.inputs[0]);
    const Tensor& first = graph.tensor(op.inputs[1]);
    if (backward) require_f32(graph, op);
    width_ = element_width(x);
    if (type.starts_with("Embedding")) {
      take_ = embedding_take(x.shape, first.shape);
      indices_ = {{.dtype = first.dtype, .limit = take_.limit, .strides = {}}};
    } else if (type.starts_with("IndexSelect")) {
      const int64_t axis = op.attributes.integer("axis");
      take_ = index_select_take(x.shape, axis, first.shape[0]);
      indices_ = {{.dtype = first.dtype, .dimension = axis, .limit = take_.limit, .strides = {}}};
    } else {
      wraps_ = true;
      std::vector<const Tensor*> tensors;
      for (size_t i = 1; i < op.inputs.size(); ++i) tensors.push_back(&graph.tensor(op.inputs[i]));
      joint_ = joint_shape(tensors);
      take_ = index_take(x.shape, tensors.size(), element_count(joint_));
      for (size_t k = 0; k < tensors.size(); ++k) {
        indices_.push_back({.input = k + 1,
                            .dtype = tensors[k]->dtype,
                            .dimension = static_cast<int64_t>(k),
                            .limit = x.shape[k],
                            .whole = element_count(tensors[k]->shape) == take_.count,
                            .strides = joint_strides(tensors[k]->shape, joint_)});
      }
    }
    workspace_bytes_ = {take_.count * static_cast<int64_t>(sizeof(int64_t))};
  }

  // Throws for the first index that is out of range.
  const int64_t* make_rows() {
    int64_t* rows = static_cast<int64_t*>(workspace_);
    const int parts = parts_for(take_.count * 8, parts_);
    for (size_t k = 0; k < indices_.size(); ++k) {
      std::fill(bad_.begin(), bad_.end(), kNone);
      for_each_part(parts, [&](int part) {
        const Range range = share(take_.count, part, parts);
        bad_[part] = indices_[k].dtype == DType::i32 ? add_indices<int32_t>(indices_[k], k == 0, range, rows)
                                                     : add_indices<int64_t>(indices_[k], k == 0, range, rows);
      });
      const int64_t bad = *std::min_element(bad_.begin(), bad_.end());
      if (bad == kNone) continue;
      const IndexTensor& of = indices_[k];
      const int64_t at = position(of, bad);
      throw_bad_index(at, index_at(input<void>(of.input), of.dtype, at), of.dimension, of.limit);
    }
    return rows;
  }

  Take take_;
  int64_t width_ = 4;

 private:
  int64_t position(const IndexTensor& tensor, int64_t i) const {
    if (tensor.whole) return i;
    int64_t at = 0;
    for (size_t d = joint_.size(); d-- > 0;) {
      at += i % joint_[d] * tensor.strides[d];
      i /= joint_[d];
    }
    return at;
  }

  // Returns the first bad place of the range, or kNone.
  template <class T>
  int64_t add_indices(const IndexTensor& tensor, bool first, Range range, int64_t* rows) const {
    const T* indices = input<T>(tensor.input);
    for (int64_t i = range.begin; i < range.end; ++i) {
      int64_t index = indices[position(tensor, i)];
      if (wraps_ && index < 0) index += tensor.limit;
      if (index < 0 || index >= tensor.limit) return i;
      rows[i] = first ? index : rows[i] * tensor.limit + index;
    }
    return kNone;
  }

  std::vector<IndexTensor> indices_;
  Shape joint_;
  bool wraps_ = false;
  std::vector<int64_t> bad_;  // by part
};

class TakeForward final : public TakeKernel {
 public:
  TakeForward(const Graph& graph, const Op& op, int threads) : TakeKernel(graph, op, threads, false) {}

  void run() override {
    const int64_t* rows = make_rows();
    if (take_.inner == 1) {
      return with_width(width_, [&](auto zero) { take_elements<decltype(zero)>(rows); });
    }
    const int64_t bytes = take_.inner * width_;
    const std::byte* x = input<std::byte>(0);
    std::byte* y = output<std::byte>(0);
    for_each_row([&](int64_t outer, int64_t r) {
      copy_run(y + (outer * take_.count + r) * bytes, x + (outer * take_.limit + rows[r]) * bytes, bytes);
    });
  }

 private:
  template <class T>
  void take_elements(const int64_t* rows) const {
    const T* x = input<T>(0);
    T* y = output<T>(0);
    for_each_row([&](int64_t outer, int64_t r) { y[outer * take_.count + r] = x[outer * take_.limit + rows[r]]; });
  }

  template <class Body>
  void for_each_row(const Body& body) const {
    for_each_part(parts_, [&](int part) {
      const Range range = share(take_.outer * take_.count, part, parts_);
      int64_t outer = range.begin / take_.count, r = range.begin % take_.count;
      for (int64_t i = range.begin; i < range.end; ++i) {
        body(outer, r);
        if (++r < take_.count) continue;
        r = 0;
        ++outer;
      }
    });
  }
};

class TakeBackward final : public TakeKernel {
 public:
  TakeBackward(const Graph& graph, const Op& op, int threads)
      : TakeKernel(graph, op, threads, true), padding_(op.attributes.integer("padding_index", -1)) {}

  void run() override {
    const int64_t* rows = make_rows();
    float* dx = output(0);
    const int64_t elements = take_.outer * take_.limit * take_.inner;
    for_each_part(parts_, [&](int part) {
      const Range range = share(elements, part, parts_, 1024);
      std::memset(dx + range.begin, 0, (range.end - range.begin) * sizeof(float));
    });
    for_each_part(parts_, [&](int part) {
      Range outer{0, take_.outer}, columns{0, take_.inner}, limits{0, take_.limit};
      if (take_.outer >= 2 * parts_) {
        outer = share(take_.outer, part, parts_);
      } else if (take_.inner >= kLanes * parts_) {
        columns = share(take_.inner, part, parts_, kLanes);
      } else {
        limits = share(take_.limit, part, parts_);
      }
      for (int64_t o = outer.begin; o < outer.end; ++o) add_rows(rows, o, columns, limits);
    });
  }

 private:
  PLIMSOLL_INLINE void add_rows(const int64_t* rows, int64_t outer, Range columns, Range limits) const {
    const float* dy = input(0) + outer * take_.count * take_.inner + columns.begin;
    float* dx = output(0) + outer * take_.limit * take_.inner + columns.begin;
    const int64_t count = columns.end - columns.begin;
    for (int64_t r = 0; r < take_.count; ++r) {
      const int64_t row = rows[r];
      if (row < limits.begin || row >= limits.end || row == padding_) continue;
      if (take_.inner == 1) {
        dx[row] += dy[r];
      } else {
        add_run(dx + row * take_.inner, dy + r * take_.inner, count);
      }
    }
  }

  int64_t padding_;
};

// The indices are `outer` loops around `count` positions of the axis around `inner` loops. x is the same with `limit`
// positions, and longer dimensions maybe. Loops go from x to the indices.
class GatherKernel : public OwnKernel {
 protected:
  GatherKernel(const Graph& graph, const Op& op, int threads, bool backward)
      : OwnKernel(graph, op, threads, AnyDType{}), bad_(parts_) {
    const Tensor &x = graph.tensor(backward ? op.outputs[0] : op.inputs[0]), &indices = graph.tensor(op.inputs[1]);
    if (backward) require_f32(graph, op);
    width_ = element_width(x);
    dtype_ = indices.dtype;
    axis_ = op.attributes.integer("axis");
    count_ = indices.shape[axis_];
    limit_ = x.shape[axis_];
    const std::vector<int64_t> from = strides_of(x), to = strides_of(indices);
    for (size_t d = 0; d < x.shape.size(); ++d) {
      if (std::cmp_equal(d, axis_)) continue;
      (std::cmp_less(d, axis_) ? outer_ : inner_).push_back({indices.shape[d], from[d], to[d]});
    }
    x_step_ = from[axis_];
    y_step_ = to[axis_];
    outer_ = merged(outer_);
    inner_ = merged(inner_);
    if (inner_.back().from == 1 && inner_.back().to == 1) {
      last_ = inner_.back().size;
      inner_.pop_back();
    }
    require_few_loops(op, outer_);
    require_few_loops(op, inner_);
  }

  // Calls move(element of x, element of y) for every element, the axis in order; threads have elements of x to
  // themselves.
  template <class I, class Move>
  void for_each_element(const Move& move) {
    std::fill(bad_.begin(), bad_.end(), kNone);
    const int64_t outer_turns = turns_of(outer_), inner_turns = turns_of(inner_);
    const bool by_outer = outer_turns >= parts_ || last_ < parts_;
    for_each_part(parts_, [&](int part) {
      const Range outer = by_outer ? share(outer_turns, part, parts_) : Range{0, outer_turns};
      const Range last = by_outer ? Range{0, last_} : share(last_, part, parts_, kLanes);
      const I* indices = input<I>(1);
      int64_t bad = kNone;
      Odometer around(outer_, outer.begin);
      for (int64_t o = outer.begin; o < outer.end; ++o, around.next()) {
        for (int64_t k = 0; k < count_; ++k) {
          Odometer within(inner_, 0);
          for (int64_t i = 0; i < inner_turns; ++i, within.next()) {
            const int64_t x = around.from + within.from, y = around.to + within.to + k * y_step_;
            for (int64_t j = last.begin; j < last.end; ++j) {
              const int64_t index = indices[y + j];
              if (index >= 0 && index < limit_) {
                move(x + index * x_step_ + j, y + j);
              } else {
                bad = std::min(bad, y + j);
              }
            }
          }
        }
      }
      bad_[part] = bad;
    });
    const int64_t bad = *std::min_element(bad_.begin(), bad_.end());
    if (bad != kNone) throw_bad_index(bad, index_at(input<void>(1), dtype_, bad), axis_, limit_);
  }
  template <class Move>
  void for_each_element(const Move& move) {
    dtype_ == DType::i32 ? for_each_element<int32_t>(move) : for_each_element<int64_t>(move);
  }

  int64_t width_ = 4;

 private:
  DType dtype_ = DType::i32;
  int64_t axis_ = 0, count_ = 1, limit_ = 1, x_step_ = 1, y_step_ = 1;
  std::vector<MoveLoop> outer_, inner_;  // inner: but for elements that lie one after the other
  int64_t last_ = 1;                     // the number of these
  std::vector<int64_t> bad_;             // by part
};

class GatherForward final : public GatherKernel {
 public:
  GatherForward(const Graph& graph, const Op& op, int threads) : GatherKernel(graph, op, threads, false) {}
  void run() override {
    with_width(width_, [&](auto zero) {
      using T = decltype(zero);
      const T* x = input<T>(0);
      T* y = output<T>(0);
      for_each_element([=](int64_t from, int64_t to) { y[to] = x[from]; });
    });
  }
};

class GatherBackward final : public GatherKernel {
 public:
  GatherBackward(const Graph& graph, const Op& op, int threads)
      : GatherKernel(graph, op, threads, true), elements_(element_count(graph.tensor(op.outputs[0]).shape)) {}
  void run() override {
    const float* dy = input(0);
    float* dx = output(0);
    for_each_part(parts_, [&](int part) {
      const Range range = share(elements_, part, parts_, 1024);
      std::memset(dx + range.begin, 0, (range.end - range.begin) * sizeof(float));
    });
    for_each_element([=](int64_t to, int64_t from) { dx[to] += dy[from]; });
  }

 private:
  int64_t elements_;
};

}  // namespace

std::vector<NamedFactory> take_kernels() {
  return {{"Embedding", {own_specs_row_major, make_own<TakeForward>}},
          {"EmbeddingBackward", {own_specs_row_major, make_own<TakeBackward>}},
          {"Gather", {own_specs_row_major, make_own<GatherForward>}},
          {"GatherBackward", {own_specs_row_major, make_own<GatherBackward>}},
          {"Index", {own_specs_row_major, make_own<TakeForward>}},
          {"IndexBackward", {own_specs_row_major, make_own<TakeBackward>}},
          {"IndexSelect", {own_specs_row_major, make_own<TakeForward>}},
          {"IndexSelectBackward", {own_specs_row_major, make_own<TakeBackward>}}};
}

}  // namespace plimsoll::cpu
