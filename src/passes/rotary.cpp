#include "passes/rotary.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "ops/expression.h"
#include "passes/linear.h"
#include "passes/rebuilder.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

struct FoundRotary {
  std::vector<OpId> ops;  // the last is where the one op stands
  TensorId x, cosine, sine;
  int64_t width = 0;
};

class Rotations {
 public:
  explicit Rotations(const Network& network)
      : graph_(network.graph),
        uses_(count_uses(network)),
        reader_(graph_.tensor_count()),
        trained_(graph_.tensor_count(), false) {
    for (const Objective& objective : network.objectives) {
      ++uses_[objective.loss];
      for (TensorId id : objective.parameters) trained_[id] = true;
    }
    for (OpId id{0}; id.index < graph_.op_count(); ++id.index) {
      const Op& op = graph_.op(id);
      for (TensorId input : op.inputs) reader_[input] = id;
      const bool any = std::ranges::any_of(op.inputs, [&](TensorId input) { return trained_[input]; });
      for (TensorId output : op.outputs) trained_[output] = any;
    }
  }

  std::optional<FoundRotary> at(OpId sum) const {
    if (!is_call(graph_.op(sum), "Add") && !is_expression(graph_.op(sum), "add(x0,x1)")) return {};
    const std::vector<TensorId>& terms = graph_.op(sum).inputs;
    if (terms.size() != 2) return {};
    for (const size_t turned : {size_t{0}, size_t{1}}) {
      if (auto found = turned_by(sum, terms[1 - turned], terms[turned])) {
        take_part_of_row(*found);
        return found;
      }
    }
    return {};
  }

 private:
  bool is_call(const Op& op, std::string_view type) const {
    return op.type->name == type && op.phase == Phase::forward && op.attributes.text("activation", "none") == "none";
  }
  bool is_expression(const Op& op, std::string_view text) const {
    return is_call(op, "Pointwise") && to_string(parse_expression(op.attributes.text("expression"))) == text;
  }
  // The op of a tensor that one op alone reads.
  const Op* only(TensorId tensor, std::vector<OpId>& ops) const {
    const OpId producer = graph_.tensor(tensor).producer;
    if (!producer.valid() || uses_[tensor] != 1) return nullptr;
    ops.push_back(producer);
    return &graph_.op(producer);
  }
  bool is_slice(const Op* op, TensorId of, int64_t begin, int64_t size) const {
    return op != nullptr && is_call(*op, "Slice") && op->inputs[0] == of && op->attributes.integer("step", 1) == 1 &&
           is_last(*op, of) && op->attributes.integer("begin") == begin && op->attributes.integer("size") == size;
  }
  bool is_last(const Op& op, TensorId of) const {
    return op.attributes.integer("axis") + 1 == static_cast<int64_t>(graph_.tensor(of).shape.size());
  }
  bool is_pair(const Op* op) const {
    return op != nullptr && is_call(*op, "Concat") && op->inputs.size() == 2 && is_last(*op, op->inputs[0]);
  }

  // The sum of x times a cosine and of x with its halves exchanged, one of them negated, times a sine.
  std::optional<FoundRotary> turned_by(OpId sum, TensorId straight, TensorId turned) const {
    FoundRotary found;
    const Op *by_cosine = only(straight, found.ops), *by_sine = only(turned, found.ops);
    if (by_cosine == nullptr || by_sine == nullptr) return {};
    if (!is_expression(*by_cosine, "mul(x0,x1)") || !is_expression(*by_sine, "mul(x0,x1)")) return {};
    for (const size_t side : {size_t{0}, size_t{1}}) {
      std::vector<OpId> ops = found.ops;
      const Op* const halves = only(by_sine->inputs[side], ops);
      if (!is_pair(halves)) continue;
      const Op* const negated = only(halves->inputs[0], ops);
      if (negated == nullptr || !(is_expression(*negated, "neg(x0)") || is_expression(*negated, "mul(x0,-1)"))) continue;
      const Op *const second = only(negated->inputs[0], ops), *const first = only(halves->inputs[1], ops);
      if (second == nullptr || first == nullptr || second->inputs.empty()) continue;
      const TensorId x = second->inputs[0];
      const Tensor& rows = graph_.tensor(x);
      const int64_t width = rows.shape.empty() ? 0 : rows.shape.back();
      if (!is_slice(first, x, 0, width / 2) || !is_slice(second, x, width / 2, width / 2)) continue;
      if (by_cosine->inputs[0] != x && by_cosine->inputs[1] != x) continue;
      const TensorId cosine = by_cosine->inputs[by_cosine->inputs[0] == x ? 1 : 0], sine = by_sine->inputs[1 - side];
      if (!are_angles(rows, cosine, sine) || graph_.tensor(graph_.op(sum).outputs[0]).shape != rows.shape) continue;
      ops.push_back(sum);
      return FoundRotary{std::move(ops), x, cosine, sine, width};
    }
    return {};
  }
  bool are_angles(const Tensor& x, TensorId cosine, TensorId sine) const {
    const Tensor &c = graph_.tensor(cosine), &s = graph_.tensor(sine);
    return c.shape == s.shape && !c.shape.empty() && c.shape.back() == x.shape.back() && c.dtype == x.dtype &&
           s.dtype == x.dtype && !trained_[cosine] && !trained_[sine];
  }

  // Where x is the first part of a row, and what comes out goes back before the rest of it.
  void take_part_of_row(FoundRotary& found) const {
    constexpr int kReads = 3;  // of x: whole, and either half
    const OpId cut = graph_.tensor(found.x).producer;
    const TensorId turned = graph_.op(found.ops.back()).outputs[0];
    if (!cut.valid() || uses_[found.x] != kReads || uses_[turned] != 1 || !reader_[turned].valid()) return;
    const TensorId whole = graph_.op(cut).inputs.empty() ? TensorId{} : graph_.op(cut).inputs[0];
    if (!whole.valid() || !is_slice(&graph_.op(cut), whole, 0, found.width)) return;
    const Op& joined = graph_.op(reader_[turned]);
    if (!is_pair(&joined) || joined.inputs[0] != turned) return;
    std::vector<OpId> ops{cut};
    const int64_t length = graph_.tensor(whole).shape.back();
    if (!is_slice(only(joined.inputs[1], ops), whole, found.width, length - found.width)) return;
    found.ops.insert(found.ops.end(), ops.begin(), ops.end());
    found.ops.push_back(reader_[turned]);
    found.x = whole;
  }

  const Graph& graph_;
  ById<TensorId, int> uses_;
  ById<TensorId, OpId> reader_;
  ById<TensorId, bool> trained_;
};

}  // namespace

int fuse_rotary(Network& network) {
  const Rotations rotations(network);
  std::vector<FoundRotary> all;
  std::vector<std::vector<OpId>> ops_of;
  for (OpId id{0}; id.index < network.graph.op_count(); ++id.index) {
    auto found = rotations.at(id);
    if (!found) continue;
    ops_of.push_back(found->ops);
    all.push_back(std::move(*found));
  }
  replace_ops(network, ops_of, [&](Rebuilder& rebuilder, const Graph& before, size_t i) {
    const FoundRotary& found = all[i];
    const Op& last = before.op(found.ops.back());
    Attributes attributes;
    if (found.width != before.tensor(found.x).shape.back()) attributes.set("width", found.width);
    rebuilder.replace(found.ops, "Rotary", last.name, last.layer, rebuilder.map({found.x, found.cosine, found.sine}),
                      attributes, last.outputs);
  });
  return static_cast<int>(all.size());
}

}  // namespace plimsoll
