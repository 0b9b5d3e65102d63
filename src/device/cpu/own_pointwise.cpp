// Pointwise, Expand and Cast. An expression is made into a short program of vector instructions, once, when the kernel
// is made. It runs over blocks of some hundred elements whose intermediate values stay in the nearest cache, so a chain
// of functions is one pass over memory. An instruction's operands are rows of a block:
//
//   x0, as it lies in memory ──┐
//   x1, stretched: gathered ───┼──> mul ──> a scratch row ──> tanh ──> y, as it lies in memory
//   a number, in every lane ───┘
#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "device/cpu/own_expression.h"
#include "device/cpu/own_stretched.h"
#include "device/cpu/own_vector.h"
#include "ops/broadcast.h"
#include "ops/expression.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

// The functions, in the order of the table of expressions.
#define PLIMSOLL_UNARY(name, ...)                                         \
  struct name {                                                           \
    static constexpr int kArguments = 1;                                  \
    PLIMSOLL_INLINE static f32x16 apply(f32x16 x) { return __VA_ARGS__; } \
  };
#define PLIMSOLL_BINARY(name, ...)                                                  \
  struct name {                                                                     \
    static constexpr int kArguments = 2;                                            \
    PLIMSOLL_INLINE static f32x16 apply(f32x16 x, f32x16 y) { return __VA_ARGS__; } \
  };
#define PLIMSOLL_TERNARY(name, ...)                                                           \
  struct name {                                                                               \
    static constexpr int kArguments = 3;                                                      \
    PLIMSOLL_INLINE static f32x16 apply(f32x16 x, f32x16 y, f32x16 z) { return __VA_ARGS__; } \
  };

PLIMSOLL_INLINE f32x16 one() { return splat(1.0f); }
PLIMSOLL_INLINE f32x16 zero() { return splat(0.0f); }
// These keep what is not a number, in either argument.
PLIMSOLL_INLINE f32x16 larger_of(f32x16 x, f32x16 y) { return choose((x > y) | (x != x), x, y); }
PLIMSOLL_INLINE f32x16 smaller_of(f32x16 x, f32x16 y) { return choose((x < y) | (x != x), x, y); }
PLIMSOLL_INLINE f32x16 between(f32x16 x, f32x16 low, f32x16 high) { return smaller_of(larger_of(x, low), high); }
PLIMSOLL_INLINE f32x16 hard_share(f32x16 x) { return between(x + splat(3.0f), zero(), splat(6.0f)) / splat(6.0f); }
PLIMSOLL_INLINE f32x16 magnitude_of(f32x16 x) { return bits_as<f32x16>(bits_as<i32x16>(x) & splat(0x7fffffff)); }
PLIMSOLL_INLINE f32x16 soft_plus(f32x16 x) {
  return larger_of(x, zero()) + logarithm_of_one_plus(natural_exponential(-magnitude_of(x)));
}
PLIMSOLL_INLINE f32x16 sigmoid_of(f32x16 x) { return one() / (one() + natural_exponential(-x)); }
// tanh(log(1 + e)) by e = exp(x), without a logarithm.
PLIMSOLL_INLINE f32x16 mish_of(f32x16 x) {
  const f32x16 e = exponential(minimum(x, splat(20.0f))), n = e * (e + splat(2.0f));
  const f32x16 near = x * (n / (n + splat(2.0f)));
  return choose((x != x) | (x > splat(20.0f)), x, choose(x < splat(-87.0f), zero(), near));
}
PLIMSOLL_INLINE f32x16 power_of(f32x16 x, f32x16 y) {
  f32x16 result;
  for (int i = 0; i < kLanes; ++i) result[i] = std::pow(x[i], y[i]);
  return result;
}
PLIMSOLL_INLINE f32x16 bent(f32x16 x) {  // what gelu_tanh takes the tanh of
  return x * (splat(0.7978845608f) + splat(0.7978845608f * 0.044715f) * (x * x));
}

PLIMSOLL_INLINE f32x16 gelu_derivative_of(f32x16 x) {
  const f32x16 bell = natural_exponential(x * x * splat(-0.5f)) * splat(0.3989422804f);
  return splat(0.5f) * (one() + error_function(x * splat(0.70710678f))) + x * bell;
}
PLIMSOLL_INLINE f32x16 gelu_tanh_derivative_of(f32x16 x) {
  const f32x16 t = hyperbolic_tangent(bent(x));
  const f32x16 slope = splat(0.7978845608f) + splat(3 * 0.7978845608f * 0.044715f) * (x * x);
  return splat(0.5f) * (one() + t + x * (one() - t * t) * slope);
}
PLIMSOLL_INLINE f32x16 silu_derivative_of(f32x16 x) {
  const f32x16 s = sigmoid_of(x);
  return s * (one() + x * (one() - s));
}

PLIMSOLL_UNARY(CopyRow, x)
PLIMSOLL_BINARY(AddRows, x + y)
PLIMSOLL_BINARY(SubRows, x - y)
PLIMSOLL_BINARY(MulRows, x* y)
PLIMSOLL_BINARY(DivRows, x / y)
PLIMSOLL_BINARY(PowRows, power_of(x, y))
PLIMSOLL_BINARY(MaxRows, larger_of(x, y))
PLIMSOLL_BINARY(MinRows, smaller_of(x, y))
PLIMSOLL_BINARY(EqRows, choose(x == y, one(), zero()))
PLIMSOLL_BINARY(NeRows, choose(x != y, one(), zero()))
PLIMSOLL_BINARY(LtRows, choose(x < y, one(), zero()))
PLIMSOLL_BINARY(LeRows, choose(x <= y, one(), zero()))
PLIMSOLL_BINARY(GtRows, choose(x > y, one(), zero()))
PLIMSOLL_BINARY(GeRows, choose(x >= y, one(), zero()))
PLIMSOLL_BINARY(AndRows, choose((x != zero()) & (y != zero()), one(), zero()))
PLIMSOLL_BINARY(OrRows, choose((x != zero()) | (y != zero()), one(), zero()))
PLIMSOLL_UNARY(NegRow, -x)
PLIMSOLL_UNARY(AbsRow, magnitude_of(x))
PLIMSOLL_UNARY(ExpRow, natural_exponential(x))
PLIMSOLL_UNARY(LogRow, natural_logarithm(x))
PLIMSOLL_UNARY(Log1pRow, logarithm_of_one_plus(x))
PLIMSOLL_UNARY(Expm1Row, exponential_minus_one(x))
PLIMSOLL_UNARY(SqrtRow, square_root(x))
PLIMSOLL_UNARY(RsqrtRow, one() / square_root(x))
PLIMSOLL_UNARY(ReciprocalRow, one() / x)
PLIMSOLL_UNARY(SquareRow, x* x)
PLIMSOLL_UNARY(SinRow, sine_or_cosine<false>(x))
PLIMSOLL_UNARY(CosRow, sine_or_cosine<true>(x))
PLIMSOLL_UNARY(AtanRow, arc_tangent(x))
PLIMSOLL_UNARY(ErfRow, error_function(x))
PLIMSOLL_UNARY(SigmoidRow, sigmoid_of(x))
PLIMSOLL_UNARY(TanhRow, hyperbolic_tangent(x))
PLIMSOLL_UNARY(ReluRow, relu(x))
PLIMSOLL_UNARY(GeluRow, splat(0.5f) * x * (one() + error_function(x * splat(0.70710678f))))
PLIMSOLL_UNARY(GeluTanhRow, splat(0.5f) * x * (one() + hyperbolic_tangent(bent(x))))
PLIMSOLL_UNARY(SiluRow, x* sigmoid_of(x))
PLIMSOLL_UNARY(GeluDerivativeRow, gelu_derivative_of(x))
PLIMSOLL_UNARY(GeluTanhDerivativeRow, gelu_tanh_derivative_of(x))
PLIMSOLL_UNARY(SiluDerivativeRow, silu_derivative_of(x))
PLIMSOLL_UNARY(SoftplusRow, soft_plus(x))
PLIMSOLL_UNARY(MishRow, mish_of(x))
PLIMSOLL_UNARY(HardsigmoidRow, hard_share(x))
PLIMSOLL_UNARY(HardswishRow, x* hard_share(x))
PLIMSOLL_UNARY(SignRow, choose(x > zero(), one(), choose(x < zero(), splat(-1.0f), x)))
PLIMSOLL_UNARY(FloorRow, round_down(x))
PLIMSOLL_UNARY(RoundRow, round_to_even(x))
PLIMSOLL_UNARY(NotRow, choose(x == zero(), one(), zero()))
PLIMSOLL_BINARY(LeakyReluRows, choose(x > zero(), x, y* x))
PLIMSOLL_BINARY(EluRows, choose(x > zero(), x, y* exponential_minus_one(x)))
PLIMSOLL_TERNARY(ClampRows, between(x, y, z))
PLIMSOLL_TERNARY(WhereRows, choose(x != zero(), y, z))

#undef PLIMSOLL_UNARY
#undef PLIMSOLL_BINARY
#undef PLIMSOLL_TERNARY

// A row of the result from rows of the operands; the result may be one of them.
using RowLoop = void (*)(float* to, const float* a, const float* b, const float* c, int64_t count);

template <class Row>
void run_row(float* to, [[maybe_unused]] const float* a, [[maybe_unused]] const float* b,
             [[maybe_unused]] const float* c, int64_t count) {
  const auto vector = [&](int64_t i, auto n) {
    if constexpr (Row::kArguments == 1) store(to + i, Row::apply(load(a + i, n)), n);
    if constexpr (Row::kArguments == 2) store(to + i, Row::apply(load(a + i, n), load(b + i, n)), n);
    if constexpr (Row::kArguments == 3) store(to + i, Row::apply(load(a + i, n), load(b + i, n), load(c + i, n)), n);
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) vector(i, kAll);
  if (i < count) vector(i, static_cast<int>(count - i));
}

template <class... Rows>
constexpr std::array<RowLoop, sizeof...(Rows)> row_loops() {
  return {run_row<Rows>...};
}
constexpr auto kRowLoops =
    row_loops<AddRows, SubRows, MulRows, DivRows, PowRows, MaxRows, MinRows, EqRows, NeRows, LtRows, LeRows, GtRows,
              GeRows, AndRows, OrRows, NegRow, AbsRow, ExpRow, LogRow, Log1pRow, Expm1Row, SqrtRow, RsqrtRow,
              ReciprocalRow, SquareRow, SinRow, CosRow, AtanRow, ErfRow, SigmoidRow, TanhRow, ReluRow, GeluRow,
              GeluTanhRow, SiluRow, GeluDerivativeRow, GeluTanhDerivativeRow, SiluDerivativeRow, SoftplusRow, MishRow,
              HardsigmoidRow, HardswishRow, SignRow, FloorRow, RoundRow, NotRow, LeakyReluRows, EluRows, ClampRows,
              ClampRows, WhereRows>();
static_assert(kRowLoops.size() == kFunctions);

// Rows are slots: of scratch, of a number, of an input, and the output's.
struct RowInstruction {
  RowLoop loop;
  size_t to, a, b, c;
};
struct RowProgram {
  std::vector<RowInstruction> instructions;
  std::vector<std::pair<size_t, float>> numbers;  // slot, value
  std::vector<std::pair<size_t, size_t>> inputs;  // slot, which
  size_t slots = 1;                               // 0 is the output's
};

class RowCompiler {
 public:
  explicit RowCompiler(const Expression& expression) : nodes_(expression.nodes), slot_(nodes_.size(), 0) {
    std::vector<size_t> last_use(nodes_.size(), 0);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (int32_t a : nodes_[i].arguments) {
        if (a >= 0) last_use[static_cast<size_t>(a)] = i;
      }
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const ExpressionNode& node = nodes_[i];
      switch (node.kind) {
        case ExpressionNode::Kind::input:
          slot_[i] = program_.slots++;
          program_.inputs.emplace_back(slot_[i], static_cast<size_t>(node.input));
          break;
        case ExpressionNode::Kind::number:
          slot_[i] = program_.slots++;
          program_.numbers.emplace_back(slot_[i], static_cast<float>(node.number));
          break;
        case ExpressionNode::Kind::call: add_call(i, last_use); break;
      }
    }
    if (program_.instructions.empty()) program_.instructions.push_back({run_row<CopyRow>, 0, slot_.back(), 0, 0});
  }
  RowProgram take() { return std::move(program_); }

 private:
  void add_call(size_t i, const std::vector<size_t>& last_use) {
    const ExpressionNode& node = nodes_[i];
    std::array<size_t, 3> arguments{};
    for (size_t a = 0; a < 3; ++a) {
      if (node.arguments[a] < 0) continue;
      const size_t argument = static_cast<size_t>(node.arguments[a]);
      arguments[a] = slot_[argument];
      // Free from here on: the result may take the place of what it is made from.
      const bool again = std::find(free_.begin(), free_.end(), arguments[a]) != free_.end();
      if (nodes_[argument].kind == ExpressionNode::Kind::call && last_use[argument] == i && !again)
        free_.push_back(arguments[a]);
    }
    if (i + 1 == nodes_.size()) {
      slot_[i] = 0;
    } else if (free_.empty()) {
      slot_[i] = program_.slots++;
    } else {
      slot_[i] = free_.back();
      free_.pop_back();
    }
    program_.instructions.push_back(
        {kRowLoops[static_cast<size_t>(node.function)], slot_[i], arguments[0], arguments[1], arguments[2]});
  }

  const std::vector<ExpressionNode>& nodes_;
  std::vector<size_t> slot_, free_;
  RowProgram program_;
};

std::vector<int64_t> steps_of(const Tensor& x, const Tensor& y) { return strides_over(x.shape, y.shape); }
// Inputs that lie as the output does, element for element.
bool lies_alongside(const Tensor& x, const Tensor& y) { return x.shape == y.shape && x.dtype == DType::f32; }
bool is_row_major(const Tensor& tensor) {
  return tensor.layout.is_plain() || (tensor.shape.size() == 4 && tensor.shape[2] * tensor.shape[3] == 1 &&
                                      storage_elements(tensor.shape, tensor.layout) == element_count(tensor.shape));
}
void require_row_major(const Op& op, const Tensor& tensor) {
  if (is_row_major(tensor)) return;
  throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}) wants '{}' row-major, but it lies in layout '{}'",
                                                  op.name, op.type->name, tensor.name, tensor.layout.tag));
}

// Where the padding of a storage lies.
std::vector<int64_t> padding_of(const Tensor& tensor) {
  const int64_t count = storage_elements(tensor.shape, tensor.layout);
  if (count == element_count(tensor.shape)) return {};
  std::vector<bool> used(static_cast<size_t>(count), false);
  for (int64_t at : storage_offsets(tensor.shape, tensor.layout)) used[static_cast<size_t>(at)] = true;
  std::vector<int64_t> padding;
  for (int64_t i = 0; i < count; ++i) {
    if (!used[static_cast<size_t>(i)]) padding.push_back(i);
  }
  return padding;
}

// How an input is read. One that repeats after some elements that divide a block is the same in every block.
struct PointwiseInput {
  enum class How : uint8_t { alongside, number, repeated, gathered } how = How::gathered;
  DType dtype = DType::f32;
  Stretched along;
  size_t slot = 0, which = 0;
};

// As gather_stretched, where runs are too short for a loop each: x[:, None] beside y[:, 8] is eight times one element, then
// eight times the next. Whole vectors are written, whose ends the next run overwrites.
void gather_short_runs(float* to, const float* from, const Stretched& by, int64_t begin, int64_t count) {
  Walk walk(by, begin);
  const int64_t size = by.axes[by.count - 1].size, step = walk.step(), apart = walk.step_of_runs();
  while (count > 0) {
    const int64_t runs = std::min(walk.runs(), (count - kLanes) / size);
    if (walk.run() == size && runs > 0) {
      const float* at = from + walk.offset();
      for (int64_t r = 0; r < runs; ++r, at += apart, to += size) {
        for (int64_t i = 0; i < size; i += kLanes)
          store(to + i, step == 0 ? splat(*at) : load(at + i, static_cast<int>(std::min(kLanes, size - i))));
      }
      walk.advance_runs(runs);
      count -= runs * size;
      continue;
    }
    const int64_t run = std::min(count, walk.run());
    for (int64_t i = 0; i < run; ++i) to[i] = from[walk.offset() + i * step];
    walk.advance(run);
    to += run;
    count -= run;
  }
}

void gather_as_float(float* to, const void* from, const PointwiseInput& input, int64_t begin, int64_t count) {
  constexpr int64_t kShortRun = 8 * kLanes;
  const Stretched& by = input.along;
  const bool is_short = by.count > 1 && by.axes[by.count - 1].size < kShortRun && by.axes[by.count - 1].step <= 1;
  if (input.dtype == DType::f32 && is_short)
    return gather_short_runs(to, static_cast<const float*>(from), by, begin, count);
  switch (input.dtype) {
    case DType::f32: return gather_stretched(to, static_cast<const float*>(from), input.along, begin, count);
    case DType::i32: return gather_stretched(to, static_cast<const int32_t*>(from), input.along, begin, count);
    case DType::i64: return gather_stretched(to, static_cast<const int64_t*>(from), input.along, begin, count);
    case DType::u8: return gather_stretched(to, static_cast<const uint8_t*>(from), input.along, begin, count);
    default: return;
  }
}

class PointwiseKernel final : public OwnKernel {
 public:
  PointwiseKernel(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        program_(RowCompiler(parse_expression(op.attributes.text("expression"))).take()),
        elements_(storage_elements(graph.tensor(op.outputs[0]).shape, graph.tensor(op.outputs[0]).layout)) {
    const Tensor& y = graph.tensor(op.outputs[0]);
    require_one_layout_of_f32(graph, op, y);
    // The workspace of an update is booked before it is known how the parameter lies.
    if (op.type->changes_state) parts_ = parts_for(element_count(y.shape) * int64_t{sizeof(float)}, threads);
    const std::vector<StorageAxis> axes = storage_axes(y);
    for (const auto& [slot, which] : program_.inputs) {
      const Tensor& x = graph.tensor(op.inputs[which]);
      PointwiseInput input{.dtype = x.dtype, .along = {}, .slot = slot, .which = which};
      if (lies_alongside(x, y)) {
        input.how = PointwiseInput::How::alongside;
      } else {
        require_row_major(op, x);
        const std::vector<int64_t> steps = steps_of(x, y);
        if (element_count(x.shape) == 1) {
          input.how = PointwiseInput::How::number;
        } else {
          require_no_padding(op, x, y, axes, steps);
        }
        input.along = stretched_along(axes, steps);
      }
      reads_.push_back(input);
    }
    padding_ = padding_of(y);
    // All rows of a block together stay in the nearest cache.
    constexpr int64_t kCached = 24 * 1024 / sizeof(float), kLongest = 1024, kShortest = 64;
    const int64_t slots = static_cast<int64_t>(program_.slots);
    block_ = std::clamp(kCached / slots / kLanes * kLanes, kShortest, kLongest);
    part_bytes_ = align(slots * static_cast<int64_t>(sizeof(float*))) + slots * block_ * 4;
    workspace_bytes_ = {part_bytes_ * parts_};
    for (PointwiseInput& read : reads_) {
      if (const int64_t period = period_of(read); period > 0 && std::lcm(period, block_unit_) <= block_)
        read.how = PointwiseInput::How::repeated, block_unit_ = std::lcm(period, block_unit_);
    }
    block_ = block_ / block_unit_ * block_unit_;
  }

  void run() override {
    for_each_part(parts_, [&](int part) { run_part(part, share(elements_, part, parts_, kLanes)); });
    float* const y = output(0);
    for (int64_t i : padding_) y[i] = 0;
  }

 private:
  static int64_t align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  static void require_one_layout_of_f32(const Graph& graph, const Op& op, const Tensor& y) {
    for (TensorId id : op.inputs) {
      const Tensor& x = graph.tensor(id);
      if (!lies_alongside(x, y) || x.layout == y.layout || (x.layout.is_plain() && y.layout.is_plain())) continue;
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}' wants its tensors in one layout, but '{}' lies in '{}' and '{}' in '{}'",
                              op.name, x.name, x.layout.tag, y.name, y.layout.tag));
    }
  }
  static void require_no_padding(const Op& op, const Tensor& x, const Tensor& y, const std::vector<StorageAxis>& axes,
                                 std::span<const int64_t> steps) {
    std::vector<int64_t> sizes(y.shape.size(), 1);
    for (const StorageAxis& axis : axes) sizes[axis.dimension] *= axis.size;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (steps[d] == 0 || sizes[d] == y.shape[d]) continue;
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}' ({}): '{}' has no elements for the padding of layout '{}'", op.name,
                              op.type->name, x.name, y.layout.tag));
    }
  }

  // After how many elements an input begins anew; 0: never.
  static int64_t period_of(const PointwiseInput& read) {
    const bool repeats =
        read.how == PointwiseInput::How::gathered && read.along.count == 2 && read.along.axes[0].step == 0;
    return repeats ? read.along.axes[1].size : 0;
  }

  void run_part(int part, Range range) const {
    std::byte* const base = static_cast<std::byte*>(workspace_) + part * part_bytes_;
    float** const rows = reinterpret_cast<float**>(base);
    float* const scratch =
        reinterpret_cast<float*>(base + align(static_cast<int64_t>(program_.slots * sizeof(float*))));
    for (size_t slot = 0; slot < program_.slots; ++slot) rows[slot] = scratch + static_cast<int64_t>(slot) * block_;
    const int64_t longest = std::min(block_, range.end - range.begin);
    if (longest <= 0) return;
    for (const auto& [slot, value] : program_.numbers) std::fill_n(rows[slot], longest, value);
    for (const PointwiseInput& read : reads_) {
      if (read.how == PointwiseInput::How::number || read.how == PointwiseInput::How::repeated)
        gather_as_float(rows[read.slot], inputs_[read.which], read, range.begin, longest);
    }
    float* const y = output(0);
    for (int64_t begin = range.begin; begin < range.end; begin += block_) {
      const int64_t count = std::min(block_, range.end - begin);
      for (const PointwiseInput& read : reads_) {
        if (read.how == PointwiseInput::How::alongside) {
          rows[read.slot] = static_cast<float*>(inputs_[read.which]) + begin;
        } else if (read.how == PointwiseInput::How::gathered) {
          gather_row(read, rows, scratch, begin, count);
        }
      }
      rows[0] = y + begin;
      for (const RowInstruction& i : program_.instructions) i.loop(rows[i.to], rows[i.a], rows[i.b], rows[i.c], count);
    }
  }
  // What lies one after the other already is read where it is.
  void gather_row(const PointwiseInput& read, float** rows, float* scratch, int64_t begin, int64_t count) const {
    if (read.dtype == DType::f32) {
      const Walk walk(read.along, begin);
      if (walk.step() == 1 && walk.run() >= count) {
        rows[read.slot] = static_cast<float*>(inputs_[read.which]) + walk.offset();
        return;
      }
    }
    rows[read.slot] = scratch + static_cast<int64_t>(read.slot) * block_;
    gather_as_float(rows[read.slot], inputs_[read.which], read, begin, count);
  }

  RowProgram program_;
  int64_t elements_, block_ = 0, block_unit_ = kLanes, part_bytes_ = 0;
  std::vector<PointwiseInput> reads_;
  std::vector<int64_t> padding_;
};

// The output, and inputs that lie as it does, may lie in any layout, so that no network needs reorders around such an
// op. Where another input varies along a dimension that could be padded, the layouts are the family's.
std::vector<KernelSpec> pointwise_specs(const Graph& graph, const Op& op, LayoutFamily family, int) {
  require_f32(graph, op);
  const Tensor& y = graph.tensor(op.outputs[0]);
  bool any = true, varies = false;
  for (TensorId id : op.inputs) {
    const Tensor& x = graph.tensor(id);
    if (lies_alongside(x, y) || element_count(x.shape) == 1) continue;
    const std::vector<int64_t> steps = steps_of(x, y);
    any = any && never_padded(y.shape, steps);
    varies = varies || (y.shape.size() == 4 && steps[1] != 0);
  }
  Layout own = kAnyLayout;
  if (!any) own = family_layout(family, y.shape.size());
  if (!any && family == LayoutFamily::blocked && varies && y.shape[1] % 16 != 0) own = {};
  if (!any && op.type->changes_state) own = {};  // not as the family's images do
  KernelSpec spec{.name = "own", .inputs = {}, .outputs = {own}};
  for (TensorId id : op.inputs) {
    const Tensor& x = graph.tensor(id);
    const bool other_f32 = x.dtype == DType::f32 && x.shape.size() == 4 && lies_row_major(x.shape, family);
    spec.inputs.push_back(lies_alongside(x, y) ? own : other_f32 ? family_layout(family, x.shape.size()) : Layout{});
  }
  return {spec};
}

// Copies of any element.
class ExpandKernel final : public OwnKernel {
 public:
  ExpandKernel(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        elements_(element_count(graph.tensor(op.outputs[0]).shape)),
        element_bytes_(storage_bytes({1}, graph.tensor(op.inputs[0]).dtype, {}).count) {
    const Tensor &x = graph.tensor(op.inputs[0]), &y = graph.tensor(op.outputs[0]);
    require_row_major(op, x);
    const std::vector<StorageAxis> axes = storage_axes(y);
    if (storage_elements(y.shape, y.layout) != elements_) require_row_major(op, y);
    along_ = stretched_along(axes, steps_of(x, y));
  }
  void run() override {
    for_each_part(parts_, [&](int part) {
      const Range range = share(elements_, part, parts_, kLanes);
      switch (element_bytes_) {
        case 1: return copy<uint8_t>(range);
        case 4: return copy<uint32_t>(range);
        default: return copy<uint64_t>(range);
      }
    });
  }

 private:
  template <class T>
  void copy(Range range) const {
    gather_stretched(output<T>(0) + range.begin, input<T>(0), along_, range.begin, range.end - range.begin);
  }
  int64_t elements_, element_bytes_;
  Stretched along_;
};

std::vector<KernelSpec> expand_specs(const Graph& graph, const Op& op, LayoutFamily family, int) {
  require_f32(graph, op);
  const Tensor &x = graph.tensor(op.inputs[0]), &y = graph.tensor(op.outputs[0]);
  KernelSpec spec{.name = "own", .inputs = {Layout{}}, .outputs = {Layout{}}};
  if (y.dtype != DType::f32 || y.shape.size() != 4) return {spec};
  if (lies_row_major(x.shape, family)) spec.inputs[0] = family_layout(family, x.shape.size());
  if (family != LayoutFamily::blocked || y.shape[1] % 16 == 0) spec.outputs[0] = family_layout(family, 4);
  return {spec};
}

template <class To, class From>
To cast_element(From from) {
  if constexpr (std::is_floating_point_v<To> || std::is_same_v<To, From>) {
    return static_cast<To>(from);
  } else if constexpr (std::is_integral_v<From>) {
    constexpr int64_t least = std::numeric_limits<To>::min(), most = std::numeric_limits<To>::max();
    return static_cast<To>(std::clamp(static_cast<int64_t>(from), least, most));
  } else {
    constexpr float least = static_cast<float>(std::numeric_limits<To>::min());
    constexpr float above = static_cast<float>(std::numeric_limits<To>::max() / 2 + 1) * 2;  // a power of two
    if (!(from > least)) return from != from ? To{0} : std::numeric_limits<To>::min();
    return from >= above ? std::numeric_limits<To>::max() : static_cast<To>(from);
  }
}

class CastKernel final : public OwnKernel {
 public:
  CastKernel(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        from_(graph.tensor(op.inputs[0]).dtype),
        to_(graph.tensor(op.outputs[0]).dtype),
        elements_(storage_elements(graph.tensor(op.outputs[0]).shape, graph.tensor(op.outputs[0]).layout)) {
    require_one_layout(graph, op, graph.tensor(op.outputs[0]).shape);
  }
  void run() override {
    with_type(to_, [&](auto to) {
      with_type(from_, [&](auto from) {
        using To = decltype(to);
        using From = decltype(from);
        const From* const x = input<From>(0);
        To* const y = output<To>(0);
        for_each_part(parts_, [&](int part) {
          const Range range = share(elements_, part, parts_, kLanes);
          for (int64_t i = range.begin; i < range.end; ++i) y[i] = cast_element<To>(x[i]);
        });
      });
    });
  }

 private:
  template <class Body>
  static void with_type(DType dtype, const Body& body) {
    switch (dtype) {
      case DType::f32: return body(float{});
      case DType::i32: return body(int32_t{});
      case DType::i64: return body(int64_t{});
      case DType::u8: return body(uint8_t{});
      default: return;
    }
  }
  DType from_, to_;
  int64_t elements_;
};

std::vector<KernelSpec> cast_specs(const Graph& graph, const Op& op, LayoutFamily family, int threads) {
  const auto f32 = [&](TensorId id) { return graph.tensor(id).dtype == DType::f32; };
  // What is not floating is never reordered, so it lies row-major.
  if (f32(op.inputs[0]) && f32(op.outputs[0])) return own_specs_any_layout(graph, op, family, threads);
  require_f32(graph, op);
  return {{.name = "own", .inputs = {Layout{}}, .outputs = {Layout{}}}};
}

}  // namespace

std::unique_ptr<Kernel> make_expression(const Expression& expression, const std::vector<bool>& stretched, int64_t rows,
                                        int64_t width, int threads) {
  Graph graph;
  std::vector<TensorId> inputs;
  for (const bool one_row : stretched) {
    const Shape shape = one_row ? Shape{width} : Shape{rows, width};
    inputs.push_back(graph.add_source(fmt::format("x{}", inputs.size()), shape, DType::f32, Role::input));
  }
  const OpId op = graph.add_op("Pointwise", "expression", "", inputs, {{"expression", to_string(expression)}});
  return std::make_unique<PointwiseKernel>(graph, graph.op(op), threads);
}

std::vector<NamedFactory> pointwise_kernels() {
  return {{"Cast", {cast_specs, make_own<CastKernel>}},
          {"Expand", {expand_specs, make_own<ExpandKernel>}},
          {"Pointwise", {pointwise_specs, make_own<PointwiseKernel>}},
          {"PointwiseUpdate", {pointwise_specs, make_own<PointwiseKernel>}}};
}

}  // namespace plimsoll::cpu
