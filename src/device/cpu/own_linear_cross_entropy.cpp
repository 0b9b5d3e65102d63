// A linear layer and its cross entropy by blocks of rows: the logits of a block lie in the workspace, and nowhere else.
// Products are oneDNN's, by all threads; what is between them is divided by rows.
//
// Rows whose labels do not count are left out: the others are gathered where they do not lie together. So the masked
// positions alone of a masked language model cost anything.
#include "device/cpu/own_loss.h"
#include "device/cpu/own_row_blocks.h"
#include "device/cpu/own_rows.h"

namespace plimsoll::cpu {
namespace {

constexpr int64_t kFewestRows = 32, kMostRows = 2048;

struct Sizes {
  int64_t rows = 0, width = 0, classes = 0;
  bool transposed = false;
};
Sizes sizes_of(const Graph& graph, const Op& op) {
  const Shape &x = graph.tensor(op.inputs[0]).shape, &w = graph.tensor(op.inputs[1]).shape;
  const bool transposed = op.attributes.integer("transposed", 0) != 0;
  return {x[0], x[1], w[transposed ? 1 : 0], transposed};
}

class LinearCrossEntropy : public CrossEntropy {
 public:
  LinearCrossEntropy(const Graph& graph, const Op& op, int64_t block, int threads)
      : CrossEntropy(graph, op, threads, 2, sizes_of(graph, op).classes), sizes_(sizes_of(graph, op)) {
    require_row_major(graph, op);
    block_ = std::min(block, rows_);
    last_ = rows_ % block_ == 0 ? block_ : rows_ % block_;
    tells_loss_ = op.type->name != "LinearCrossEntropyBackward";
    const bool backward = op.type->name != "LinearCrossEntropyForward";
    const size_t bias_at = backward ? 4 : 3;
    if (op.inputs.size() > bias_at) bias_at_ = static_cast<int>(bias_at);
    // Costs are measured with labels of 0: there every row counts, so that the measured time is that of all.
    gathers_ = op.attributes.integer("ignore_index", -1) != 0;
    int next = tells_loss_ ? 2 : 0;
    for (const char c : backward ? op.attributes.text("gradients", "") : "") {
      (c == 'x' ? dx_at_ : c == 'w' ? dw_at_ : db_at_) = next++;
    }
    make_products_of(op, threads);
    lay_out_workspace();
  }

  void run() override {
    const double by = divisor();
    double loss = 0, correct = 0;
    const double scale = dx_at_ >= 0 || dw_at_ >= 0 || db_at_ >= 0 ? static_cast<double>(*input(3)) / by : 0;
    if (db_at_ >= 0) std::fill(gradient(db_at_), gradient(db_at_) + classes_, 0.0f);
    bool adds = false;
    for (int64_t next = 0; next < rows_;) {
      Block block = take_rows(next);
      if (block.count == 0) break;
      logits_.run(block.last, block.x, input(1), logits(), scratch());
      of_rows(block, scale);
      for (int64_t i = 0; i < block.count; ++i) loss += losses()[i].loss, correct += losses()[i].hit;
      give_gradients(block, adds);
      adds = true;
    }
    if (dw_at_ >= 0 && !adds) std::fill(gradient(dw_at_), gradient(dw_at_) + classes_ * sizes_.width, 0.0f);
    if (!tells_loss_) return;
    *output(0) = static_cast<float>(loss / by);
    *output(1) = static_cast<float>(correct);
  }

 private:
  // The next rows that count, whose numbers lie in rows_of_block().
  struct Block {
    const float* x = nullptr;
    int64_t count = 0, padded = 0;  // rows, and with those of zeros behind them that fill a product
    bool last = false;              // by the products of the last block
    bool together = true;           // the rows lie one after the other
  };

  void make_products_of(const Op& op, int threads) {
    const auto [rows, width, classes, transposed] = sizes_;
    logits_.make(op, block_, last_, threads, [=](int64_t m) {
      return MatrixProducts{.m = m, .n = classes, .k = width, .transpose_b = !transposed, .batch = {}};
    });
    if (dx_at_ >= 0) {
      dx_.make(op, block_, last_, threads, [=](int64_t m) {
        return MatrixProducts{.m = m, .n = width, .k = classes, .transpose_b = transposed, .batch = {}};
      });
    }
    if (dw_at_ < 0) return;
    for (const bool adds : {false, true}) {
      dw_[adds ? 1 : 0].make(
          op, block_, last_, threads,
          [=](int64_t k) {
            return MatrixProducts{.m = transposed ? width : classes,
                                  .n = transposed ? classes : width,
                                  .k = k,
                                  .transpose_a = true,
                                  .batch = {}};
          },
          adds);
    }
  }

  void lay_out_workspace() {
    WorkspaceLayout layout;
    logits_at_ = layout.place_floats(block_ * classes_);
    numbers_at_ = layout.place(block_ * static_cast<int64_t>(sizeof(int64_t)));
    losses_at_ = layout.place(block_ * static_cast<int64_t>(sizeof(RowLoss)));
    gathered_at_ = layout.place_floats(gathers_ ? block_ * sizes_.width : 0);
    scratch_at_ = layout.place(std::max({logits_.scratch(), dx_.scratch(), dw_[0].scratch(), dw_[1].scratch()}));
    workspace_bytes_ = layout.bytes();
  }
  template <class T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(workspace_) + offset);
  }
  float* gradient(int at) const { return output(static_cast<size_t>(at)); }
  float* logits() const { return at<float>(logits_at_); }
  int64_t* numbers() const { return at<int64_t>(numbers_at_); }
  RowLoss* losses() const { return at<RowLoss>(losses_at_); }
  float* gathered() const { return at<float>(gathered_at_); }
  void* scratch() const { return at<void*>(scratch_at_); }

  // Moves `next` behind the rows taken. The gradients of those that do not count are zero.
  Block take_rows(int64_t& next) const {
    Block block;
    int64_t* number = numbers();
    for (; next < rows_ && block.count < block_; ++next) {
      if (gathers_ && label_of(next) == kIgnored) {
        if (dx_at_ >= 0) std::fill_n(gradient(dx_at_) + next * sizes_.width, sizes_.width, 0.0f);
        continue;
      }
      number[block.count++] = next;
    }
    if (block.count == 0) return block;
    block.last = block.count <= last_;
    block.padded = block.last ? last_ : block_;
    block.together = block.count == block.padded && number[block.count - 1] - number[0] == block.count - 1;
    block.x = input(0) + number[0] * sizes_.width;
    if (block.together) return block;
    float* to = gathered();
    for (int64_t i = 0; i < block.count; ++i, to += sizes_.width) {
      std::copy_n(input(0) + number[i] * sizes_.width, sizes_.width, to);
    }
    std::fill(to, gathered() + block.padded * sizes_.width, 0.0f);
    block.x = gathered();
    return block;
  }

  // The logits become their gradients, or probabilities where nobody wants those.
  void of_rows(const Block& block, double scale) const {
    const float* bias = bias_at_ >= 0 ? input(static_cast<size_t>(bias_at_)) : nullptr;
    const bool backward = dx_at_ >= 0 || dw_at_ >= 0 || db_at_ >= 0;
    for_each_part(parts_, [&](int part) {
      const Range rows = share(block.padded, part, parts_);
      for (int64_t i = rows.begin; i < rows.end; ++i) {
        float* z = logits() + i * classes_;
        if (i >= block.count) {
          std::fill(z, z + classes_, 0.0f);
          continue;
        }
        if (bias != nullptr) {
          over_row(classes_, [&](int64_t k, auto n) { store(z + k, load(z + k, n) + load(bias + k, n), n); });
        }
        const int64_t label = label_of(numbers()[i]);
        losses()[i] = softmax_row(z, z, label);
        if (!backward) continue;
        if (label == kIgnored) {
          std::fill(z, z + classes_, 0.0f);
        } else {
          softmax_row_gradient(z, z, label, scale);
        }
      }
    });
  }

  void give_gradients(const Block& block, bool adds) const {
    if (db_at_ >= 0) add_bias_gradient(block);
    if (dw_at_ >= 0) {
      const float* a = sizes_.transposed ? block.x : logits();
      const float* b = sizes_.transposed ? logits() : block.x;
      dw_[adds ? 1 : 0].run(block.last, a, b, gradient(dw_at_), scratch());
    }
    if (dx_at_ < 0) return;
    float* to = gradient(dx_at_) + numbers()[0] * sizes_.width;
    dx_.run(block.last, logits(), input(1), block.together ? to : gathered(), scratch());
    if (block.together) return;
    for (int64_t i = 0; i < block.count; ++i) {
      std::copy_n(gathered() + i * sizes_.width, sizes_.width, gradient(dx_at_) + numbers()[i] * sizes_.width);
    }
  }

  void add_bias_gradient(const Block& block) const {
    float* db = gradient(db_at_);
    for_each_part(parts_, [&](int part) {
      const Range columns = share(classes_, part, parts_, kLanes);
      for (int64_t i = 0; i < block.count; ++i) {
        const float* dz = logits() + i * classes_ + columns.begin;
        float* to = db + columns.begin;
        over_row(columns.end - columns.begin,
                 [&](int64_t k, auto n) { store(to + k, load(to + k, n) + load(dz + k, n), n); });
      }
    });
  }

  Sizes sizes_;
  int64_t block_ = 1, last_ = 1;
  bool tells_loss_ = true, gathers_ = true;
  int bias_at_ = -1, dx_at_ = -1, dw_at_ = -1, db_at_ = -1;
  BlockProduct logits_, dx_, dw_[2];  // dw: the first block's; those that add to it
  int64_t logits_at_ = 0, numbers_at_ = 0, losses_at_ = 0, gathered_at_ = 0, scratch_at_ = 0;
};

// As many rows as have logits of this size: the weights, which every block reads, are then read seldom enough.
constexpr int64_t kUsualLogits = int64_t{64} << 20;

std::vector<KernelSpec> linear_specs(const Graph& graph, const Op& op, LayoutFamily family, int threads) {
  require_f32(graph, op);
  const Sizes sizes = sizes_of(graph, op);
  std::vector<int64_t> blocks;
  for (int64_t rows = kFewestRows; rows <= kMostRows && rows < sizes.rows; rows *= 2) blocks.push_back(rows);
  if (sizes.rows <= kMostRows) blocks.push_back(sizes.rows);
  put_usual_first(blocks, kUsualLogits / (sizes.classes * static_cast<int64_t>(sizeof(float))));
  return specs_by_rows<LinearCrossEntropy>(graph, op, family, threads, blocks);
}

std::unique_ptr<Kernel> make_linear(const Graph& graph, const Op& op, std::string_view kernel, int threads) {
  return std::make_unique<LinearCrossEntropy>(graph, op, rows_of_kernel(op, kernel), threads);
}

}  // namespace

std::vector<NamedFactory> linear_cross_entropy_kernels() {
  return {{"LinearCrossEntropyForward", {linear_specs, make_linear}},
          {"LinearCrossEntropyBackward", {linear_specs, make_linear}},
          {"LinearCrossEntropyTraining", {linear_specs, make_linear}}};
}

}  // namespace plimsoll::cpu
