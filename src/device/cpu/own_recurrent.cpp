// Recurrent layers. Rows of the batch do not know of each other, so each thread takes some of them through all steps: the
// product with the weights by oneDNN, then the gates, a vector of them at a time.
#include "device/cpu/own_rows.h"
#include "device/cpu/product.h"
#include "ops/recurrent.h"

namespace plimsoll::cpu {
namespace {

int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

class RecurrentKernel : public OwnKernel {
 public:
  // `buffers` floats a row of scratch, beside what the product needs.
  RecurrentKernel(const Graph& graph, const Op& op, int threads, bool backward, int64_t buffers)
      : OwnKernel(graph, op, threads),
        r_(recurrence_of(op.attributes, graph.tensor(op.inputs[0]).shape, graph.tensor(op.inputs[1]).shape)),
        gates_(r_.gates() * r_.width) {
    require_row_major(graph, op);
    parts_ = static_cast<int>(std::min<int64_t>(parts_, r_.rows));
    int64_t scratch = 0;
    for (int part = 0; part < parts_; ++part) {
      const int64_t rows = rows_of(part).end - rows_of(part).begin;
      products_.push_back(make_product(op, {.m = rows,
                                            .n = backward ? r_.width : gates_,
                                            .k = backward ? gates_ : r_.width,
                                            .transpose_a = false,
                                            .transpose_b = !backward,
                                            .batch = {}}));
      scratch = std::max(scratch, products_.back()->workspace().count);
      buffer_bytes_ = std::max(buffer_bytes_, whole_lines(rows * buffers * static_cast<int64_t>(sizeof(float))));
    }
    part_bytes_ = buffer_bytes_ + whole_lines(scratch);
    workspace_bytes_ = {part_bytes_ * parts_};
  }

 protected:
  Range rows_of(int part) const { return share(r_.rows, part, parts_); }
  float* buffer(int part) const {
    return reinterpret_cast<float*>(static_cast<std::byte*>(workspace_) + part * part_bytes_);
  }
  // y = a times the weights, or times their transpose in the forward pass.
  void multiply(int part, const float* a, float* y) const {
    void* const inputs[] = {const_cast<float*>(a), const_cast<float*>(input(1))};
    void* const output = y;
    Kernel& product = *products_[static_cast<size_t>(part)];
    product.bind(inputs, std::span(&output, 1), reinterpret_cast<std::byte*>(buffer(part)) + buffer_bytes_);
    product.run();
  }

  Recurrence r_;
  int64_t gates_;

 private:
  std::vector<std::unique_ptr<Kernel>> products_;
  int64_t buffer_bytes_ = 0, part_bytes_ = 0;
};

class RecurrentForward final : public RecurrentKernel {
 public:
  RecurrentForward(const Graph& graph, const Op& op, int threads)
      : RecurrentKernel(
            graph, op, threads, false,
            recurrence_of(op.attributes, graph.tensor(op.inputs[0]).shape, graph.tensor(op.inputs[1]).shape).gates() *
                graph.tensor(op.inputs[1]).shape[1]),
        bias_at_(r_.cell == Cell::lstm ? 4 : 3),
        has_bias_(op.inputs.size() > bias_at_) {}

  void run() override {
    for_each_part(parts_, [&](int part) {
      const Range rows = rows_of(part);
      float* const s = buffer(part);
      for (int64_t i = 0; i < r_.steps; ++i) {
        const int64_t now = r_.place(i) * r_.rows, before = i > 0 ? r_.place(i - 1) * r_.rows : 0;
        const float* const h_before = i > 0 ? output(0) + before * r_.width : input(2);
        multiply(part, h_before + rows.begin * r_.width, s);
        for (int64_t n = rows.begin; n < rows.end; ++n) {
          const float* c_before = nullptr;
          if (r_.cell == Cell::lstm) c_before = (i > 0 ? output(1) + before * r_.width : input(3)) + n * r_.width;
          row(now + n, s + (n - rows.begin) * gates_, h_before + n * r_.width, c_before);
        }
      }
    });
  }

 private:
  void row(int64_t at, const float* s, const float* h_before, const float* c_before) const {
    const int64_t width = r_.width;
    const float *const x = input(0) + at * gates_, *const b = has_bias_ ? input(bias_at_) : nullptr;
    float* const h = output(0) + at * width;
    over_row(width, [&](int64_t j, auto n) {
      const auto part = [&](int64_t g) {
        const f32x16 v = load(s + g * width + j, n);
        return b ? v + load(b + g * width + j, n) : v;
      };
      const auto given = [&](int64_t g) { return load(x + g * width + j, n); };
      const f32x16 one = splat(1.0f);
      switch (r_.cell) {
        case Cell::lstm: {
          float *const kept = output(2) + at * 4 * width, *const c = output(1) + at * width;
          const f32x16 in = sigmoid(given(0) + part(0)), forget = sigmoid(given(1) + part(1));
          const f32x16 g = hyperbolic_tangent(given(2) + part(2)), out = sigmoid(given(3) + part(3));
          const f32x16 cell = forget * load(c_before + j, n) + in * g;
          store(kept + j, in, n), store(kept + width + j, forget, n);
          store(kept + 2 * width + j, g, n), store(kept + 3 * width + j, out, n);
          store(c + j, cell, n);
          store(h + j, out * hyperbolic_tangent(cell), n);
          break;
        }
        case Cell::gru: {
          float* const kept = output(1) + at * 4 * width;
          const f32x16 reset = sigmoid(given(0) + part(0)), z = sigmoid(given(1) + part(1)), s_n = part(2);
          const f32x16 next = hyperbolic_tangent(given(2) + reset * s_n);
          store(kept + j, reset, n), store(kept + width + j, z, n);
          store(kept + 2 * width + j, next, n), store(kept + 3 * width + j, s_n, n);
          store(h + j, (one - z) * next + z * load(h_before + j, n), n);
          break;
        }
        case Cell::tanh: store(h + j, hyperbolic_tangent(given(0) + part(0)), n); break;
        case Cell::relu: store(h + j, relu(given(0) + part(0)), n); break;
      }
    });
  }

  size_t bias_at_;
  bool has_bias_;
};

class RecurrentBackward final : public RecurrentKernel {
 public:
  // Scratch: dh, dc, and what the product adds to dh.
  RecurrentBackward(const Graph& graph, const Op& op, int threads)
      : RecurrentKernel(graph, op, threads, true, 3 * graph.tensor(op.inputs[1]).shape[1]),
        at_(backward_inputs(r_.cell, op.inputs.size())) {}

  void run() override {
    for_each_part(parts_, [&](int part) {
      const Range rows = rows_of(part);
      const int64_t count = (rows.end - rows.begin) * r_.width;
      float *const dh = buffer(part), *const dc = dh + count, *const added = dc + count;
      std::fill(dh, dh + 2 * count, 0.0f);
      for (int64_t i = r_.steps; i-- > 0;) {
        const int64_t now = r_.place(i) * r_.rows, before = i > 0 ? r_.place(i - 1) * r_.rows : 0;
        for (int64_t n = rows.begin; n < rows.end; ++n) {
          const int64_t own = (n - rows.begin) * r_.width;
          const auto earlier = [&](size_t all, size_t first) {
            return i > 0 ? input(all) + (before + n) * r_.width : input(first) + n * r_.width;
          };
          row(now + n, earlier(at_.y, at_.h0), earlier(at_.c, at_.c0), dh + own, dc + own);
        }
        multiply(part, gate_gradients() + (now + rows.begin) * gates_, added);
        over_row(count, [&](int64_t j, auto n) { store(dh + j, load(dh + j, n) + load(added + j, n), n); });
      }
      std::copy(dh, dh + count, output(1) + rows.begin * r_.width);
      if (r_.cell == Cell::lstm) std::copy(dc, dc + count, output(2) + rows.begin * r_.width);
    });
  }

 private:
  // Of what the weights' product gives.
  float* gate_gradients() const { return output(r_.cell == Cell::gru ? 2 : 0); }

  // Leaves in dh and dc what goes to the step before without passing through the weights.
  void row(int64_t at, const float* h_before, const float* c_before, float* dh, float* dc) const {
    const int64_t width = r_.width;
    const float* const dy = input(0) + at * width;
    float *const dx = output(0) + at * gates_, *const ds = gate_gradients() + at * gates_;
    over_row(width, [&](int64_t j, auto n) {
      const f32x16 one = splat(1.0f), d = load(dh + j, n) + load(dy + j, n);
      const auto kept = [&](int64_t g) { return load(input(at_.kept) + at * 4 * width + g * width + j, n); };
      switch (r_.cell) {
        case Cell::lstm: {
          const f32x16 in = kept(0), forget = kept(1), g = kept(2), out = kept(3);
          const f32x16 bent = hyperbolic_tangent(load(input(at_.c) + at * width + j, n));
          f32x16 e = load(dc + j, n) + d * out * (one - bent * bent);
          if (at_.dc > 0) e += load(input(at_.dc) + at * width + j, n);
          store(dx + j, e * g * in * (one - in), n);
          store(dx + width + j, e * load(c_before + j, n) * forget * (one - forget), n);
          store(dx + 2 * width + j, e * in * (one - g * g), n);
          store(dx + 3 * width + j, d * bent * out * (one - out), n);
          store(dc + j, e * forget, n);
          store(dh + j, splat(0.0f), n);
          break;
        }
        case Cell::gru: {
          const f32x16 reset = kept(0), z = kept(1), next = kept(2), s_n = kept(3);
          const f32x16 dn = d * (one - z) * (one - next * next);
          const f32x16 dr = dn * s_n * reset * (one - reset), dz = d * (load(h_before + j, n) - next) * z * (one - z);
          store(dx + j, dr, n), store(dx + width + j, dz, n), store(dx + 2 * width + j, dn, n);
          store(ds + j, dr, n), store(ds + width + j, dz, n), store(ds + 2 * width + j, dn * reset, n);
          store(dh + j, d * z, n);
          break;
        }
        case Cell::tanh: {
          const f32x16 h = load(input(at_.y) + at * width + j, n);
          store(dx + j, d * (one - h * h), n);
          store(dh + j, splat(0.0f), n);
          break;
        }
        case Cell::relu: {
          const f32x16 h = load(input(at_.y) + at * width + j, n);
          store(dx + j, choose(h > splat(0.0f), d, splat(0.0f)), n);
          store(dh + j, splat(0.0f), n);
          break;
        }
      }
    });
  }

  BackwardInputs at_;
};

}  // namespace

std::vector<NamedFactory> recurrent_kernels() {
  return {{"RecurrentForward", {own_specs_row_major, make_own<RecurrentForward>}},
          {"RecurrentBackward", {own_specs_row_major, make_own<RecurrentBackward>}}};
}

}  // namespace plimsoll::cpu
