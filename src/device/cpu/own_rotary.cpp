// Rotary positions: a row's pairs by vectors from both halves. A tensor is read and written once.
#include "device/cpu/own_rows.h"
#include "device/cpu/own_stretched.h"
#include "ops/rotary.h"

namespace plimsoll::cpu {
namespace {

class RotaryKernel final : public OwnKernel {
 public:
  RotaryKernel(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        rows_(rotary_rows(op.attributes, graph.tensor(op.inputs[0]).shape, graph.tensor(op.inputs[1]).shape)),
        inverse_(op.attributes.integer("inverse", 0) != 0) {
    require_row_major(graph, op);
    for (size_t d = 0; d < rows_.leading.size(); ++d) table_.push({rows_.leading[d], rows_.table_strides[d]});
  }

  void run() override {
    for_each_part(parts_, [&](int part) {
      const Range range = share(rows_.count(), part, parts_);
      if (range.begin == range.end) return;
      Walk walk(table_, range.begin);
      for (int64_t r = range.begin; r < range.end; ++r) {
        const int64_t first = r * rows_.length;
        if (inverse_) {
          turn<true>(input(0) + first, walk.offset(), output(0) + first);
        } else {
          turn<false>(input(0) + first, walk.offset(), output(0) + first);
        }
        walk.advance(1);
      }
    });
  }

 private:
  template <bool kInverse>
  void turn(const float* x, int64_t at, float* y) const {
    const float *cosine = input(1) + at, *sine = input(2) + at;
    const int64_t half = rows_.half, second = rows_.second();
    over_row(half, [&](int64_t i, auto count) {
      const f32x16 a = load(x + i, count), b = load(x + half + i, count);
      const f32x16 s = load(sine + i, count), t = load(sine + second + i, count);
      const f32x16 to_first = b * (kInverse ? t : -s), to_second = a * (kInverse ? -s : t);
      store(y + i, a * load(cosine + i, count) + to_first, count);
      store(y + half + i, b * load(cosine + second + i, count) + to_second, count);
    });
    if (x != y) std::copy(x + 2 * half, x + rows_.length, y + 2 * half);
  }

  RotaryRows rows_;
  Stretched table_;
  bool inverse_;
};

}  // namespace

std::vector<NamedFactory> rotary_kernels() { return {{"Rotary", {own_specs_row_major, make_own<RotaryKernel>}}}; }

}  // namespace plimsoll::cpu
