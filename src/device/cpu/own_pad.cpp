// Pad and PadBackward. Dimensions behind the last padded one are one run of elements; each row of positions of that
// dimension is filled, or added up, by itself.
#include <algorithm>
#include <cstring>

#include "device/cpu/own.h"
#include "device/cpu/own_move.h"
#include "device/cpu/own_vector.h"
#include "ops/pad.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

// outer... x last x run, as the tensors lie.
struct PadRows {
  std::vector<PadAxis> outer;
  PadAxis last;
  int64_t run = 1;
  int64_t rows_out() const {
    int64_t rows = 1;
    for (const PadAxis& axis : outer) rows *= axis.out();
    return rows;
  }
  int64_t rows_in() const {
    int64_t rows = 1;
    for (const PadAxis& axis : outer) rows *= axis.in;
    return rows;
  }
};

PadRows pad_rows(const Tensor& tensor, const Padding& padding) {
  std::vector<PadAxis> axes = padding.axes;
  if (image_of(tensor).order == Image::Order::channels_last && axes.size() == 4 && !tensor.layout.is_plain())
    axes = {axes[0], axes[2], axes[3], axes[1]};
  PadRows rows;
  while (!axes.empty() && !axes.back().moves()) {
    rows.run *= axes.back().in;
    axes.pop_back();
  }
  if (!axes.empty()) {
    rows.last = axes.back();
    axes.pop_back();
  }
  rows.outer = std::move(axes);
  return rows;
}

void require_same_order(const Graph& graph, const Op& op) {
  const Tensor &x = graph.tensor(op.inputs[0]), &y = graph.tensor(op.outputs[0]);
  const bool blocked = !x.layout.is_plain() && image_of(x).order == Image::Order::blocked;
  if (!blocked && x.layout.is_plain() == y.layout.is_plain()) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("op '{}' ({}) wants its tensors in one layout without blocks, but '{}' lies in '{}' and '{}' "
                          "in '{}'",
                          op.name, op.type->name, x.name, x.layout.tag, y.name, y.layout.tag));
}

class Pad final : public OwnKernel {
 public:
  Pad(const Graph& graph, const Op& op, int threads) : OwnKernel(graph, op, threads, AnyDType{}) {
    require_same_order(graph, op);
    const Tensor& x = graph.tensor(op.inputs[0]);
    const Padding padding = read_padding(op.attributes, x);
    mode_ = padding.mode;
    rows_ = pad_rows(x, padding);
    width_ = element_width(x);
    switch (x.dtype) {
      case DType::f32: keep(static_cast<float>(padding.value)); break;
      case DType::f64: keep(padding.value); break;
      case DType::i32: keep(static_cast<int32_t>(padding.value)); break;
      case DType::i64: keep(static_cast<int64_t>(padding.value)); break;
      case DType::u8: keep(static_cast<uint8_t>(padding.value)); break;
      case DType::bit: break;  // element_width refused it
    }
  }

  void run() override {
    with_width(width_, [&](auto zero) { pad<decltype(zero)>(); });
  }

 private:
  template <class V>
  void keep(V value) {
    std::memcpy(&value_, &value, sizeof value);
  }

  template <class T>
  void pad() const {
    T value;
    std::memcpy(&value, &value_, sizeof value);
    const int64_t length = rows_.last.out();
    for_each_part(parts_, [&](int part) {
      const Range range = share(rows_.rows_out() * length, part, parts_);
      int64_t row = range.begin / length, o = range.begin % length;
      for (int64_t left = range.end - range.begin; left > 0; ++row, o = 0) {
        const int64_t count = std::min(left, length - o), source = source_row(row);
        T* y = output<T>(0) + (row * length + o) * rows_.run;
        if (source < 0) {
          std::fill_n(y, count * rows_.run, value);
        } else {
          fill_row(y, input<T>(0) + source * rows_.last.in * rows_.run, o, count, value);
        }
        left -= count;
      }
    });
  }

  int64_t source_row(int64_t row) const {
    int64_t source = 0, distance = 1;
    for (size_t d = rows_.outer.size(); d-- > 0;) {
      const PadAxis& axis = rows_.outer[d];
      const int64_t at = pad_source(mode_, axis, row % axis.out());
      if (at < 0) return -1;
      row /= axis.out();
      source += at * distance;
      distance *= axis.in;
    }
    return source;
  }

  // Positions [o, o + count) of a row.
  template <class T>
  PLIMSOLL_INLINE void fill_row(T* y, const T* x, int64_t o, int64_t count, T value) const {
    const PadAxis& axis = rows_.last;
    const int64_t end = o + count, run = rows_.run;
    const int64_t first = std::clamp(axis.begin, o, end), last = std::clamp(axis.begin + axis.in, first, end);
    const auto edge = [&](int64_t from, int64_t to) {
      for (int64_t p = from; p < to; ++p) {
        const int64_t source = pad_source(mode_, axis, p);
        T* const at = y + (p - o) * run;
        source < 0 ? std::fill_n(at, run, value) : std::copy_n(x + source * run, run, at);
      }
    };
    edge(o, first);
    if (last > first) {
      copy_run(reinterpret_cast<std::byte*>(y + (first - o) * run),
               reinterpret_cast<const std::byte*>(x + (first - axis.begin) * run),
               (last - first) * run * static_cast<int64_t>(sizeof(T)));
    }
    edge(last, end);
  }

  PadMode mode_ = PadMode::constant;
  PadRows rows_;
  int64_t width_ = 4;
  uint64_t value_ = 0;  // its first bytes
};

// A row of dx has the sum of the rows that were made of it, in their order.
class PadBackward final : public OwnKernel {
 public:
  PadBackward(const Graph& graph, const Op& op, int threads) : OwnKernel(graph, op, threads) {
    require_same_order(graph, op);
    const Tensor& dy = graph.tensor(op.inputs[0]);
    const Padding padding = read_padding_backward(op.attributes, dy);
    rows_ = pad_rows(dy, padding);
    for (const PadAxis& axis : rows_.outer) {
      std::vector<std::vector<int64_t>>& made = made_.emplace_back(axis.in);
      for (int64_t o = 0; o < axis.out(); ++o) made[pad_source(padding.mode, axis, o)].push_back(o);
    }
    for (int64_t o = 0; o < rows_.last.out(); ++o) source_.push_back(pad_source(padding.mode, rows_.last, o));
    places_.resize(static_cast<size_t>(parts_) * rows_.outer.size());
  }

  void run() override {
    const int64_t rows = rows_.rows_in(), length = rows_.last.in * rows_.run;
    for_each_part(parts_, [&](int part) {
      const Range range = share(rows, part, parts_);
      size_t* place = places_.data() + static_cast<size_t>(part) * rows_.outer.size();
      for (int64_t row = range.begin; row < range.end; ++row) {
        float* dx = output(0) + row * length;
        std::memset(dx, 0, length * sizeof(float));
        add_rows(row, dx, place);
      }
    });
  }

 private:
  const std::vector<int64_t>& made_of(size_t d, int64_t& row) const {
    const int64_t in = rows_.outer[d].in;
    const std::vector<int64_t>& made = made_[d][row % in];
    row /= in;
    return made;
  }

  // Counts through the rows of dy that were made of this one, like an odometer; cropped rows have none.
  void add_rows(int64_t row, float* dx, size_t* place) const {
    const size_t rank = rows_.outer.size();
    int64_t rest = row;
    for (size_t d = rank; d-- > 0;) {
      if (made_of(d, rest).empty()) return;
      place[d] = 0;
    }
    for (bool more = true; more;) {
      int64_t from = 0, distance = 1;
      rest = row;
      for (size_t d = rank; d-- > 0;) {
        from += made_of(d, rest)[place[d]] * distance;
        distance *= rows_.outer[d].out();
      }
      add_row(input(0) + from * rows_.last.out() * rows_.run, dx);
      more = false;
      rest = row;
      for (size_t d = rank; d-- > 0;) {
        if (++place[d] < made_of(d, rest).size()) {
          more = true;
          break;
        }
        place[d] = 0;
      }
    }
  }
  PLIMSOLL_INLINE void add_row(const float* dy, float* dx) const {
    const int64_t run = rows_.run;
    const PadAxis& axis = rows_.last;
    const int64_t first = std::max<int64_t>(axis.begin, 0), last = std::min(axis.begin + axis.in, axis.out());
    const auto edge = [&](int64_t from, int64_t to) {
      for (int64_t o = from; o < to; ++o) add_run(dx + source_[o] * run, dy + o * run, run);
    };
    edge(0, first);
    if (last > first) add_run(dx + (first - axis.begin) * run, dy + first * run, (last - first) * run);
    edge(std::max(first, last), axis.out());
  }

  PadRows rows_;
  std::vector<std::vector<std::vector<int64_t>>> made_;  // by outer dimension and position of x: positions of dy
  std::vector<int64_t> source_;                          // by position of dy in the last dimension
  std::vector<size_t> places_;                           // by part
};

std::vector<KernelSpec> pad_specs(const Graph& graph, const Op& op, LayoutFamily family, int threads) {
  if (family == LayoutFamily::blocked || graph.tensor(op.inputs[0]).dtype == DType::f64)
    return own_specs_row_major(graph, op, family, threads);
  return own_specs(graph, op, family, threads);
}

}  // namespace

std::vector<NamedFactory> pad_kernels() {
  return {{"Pad", {pad_specs, make_own<Pad>}}, {"PadBackward", {pad_specs, make_own<PadBackward>}}};
}

}  // namespace plimsoll::cpu
