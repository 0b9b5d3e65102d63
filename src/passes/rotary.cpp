#include "passes/rotary.h"

#include <optional>
#include <string>

#include "passes/matcher.h"
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
  explicit Rotations(const Network& network) : matcher_(network), graph_(network.graph) {}

  std::optional<FoundRotary> at(OpId sum) const {
    if (!matcher_.is_call(graph_.op(sum), "Add") && !matcher_.is_expression(graph_.op(sum), "add(x0,x1)")) return {};
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
  bool is_slice(const Op* op, TensorId of, int64_t begin, int64_t size) const {
    return op != nullptr && matcher_.is_call(*op, "Slice") && op->inputs[0] == of &&
           op->attributes.integer("step", 1) == 1 && matcher_.is_last(*op, of) &&
           op->attributes.integer("begin") == begin && op->attributes.integer("size") == size;
  }
  bool is_pair(const Op* op) const {
    return op != nullptr && matcher_.is_call(*op, "Concat") && op->inputs.size() == 2 &&
           matcher_.is_last(*op, op->inputs[0]);
  }

  // The sum of x times a cosine and of x with its halves exchanged, one of them negated, times a sine.
  std::optional<FoundRotary> turned_by(OpId sum, TensorId straight, TensorId turned) const {
    FoundRotary found;
    const Op *by_cosine = matcher_.only(straight, found.ops), *by_sine = matcher_.only(turned, found.ops);
    if (by_cosine == nullptr || by_sine == nullptr) return {};
    if (!matcher_.is_expression(*by_cosine, "mul(x0,x1)") || !matcher_.is_expression(*by_sine, "mul(x0,x1)")) return {};
    for (const size_t side : {size_t{0}, size_t{1}}) {
      std::vector<OpId> ops = found.ops;
      const Op* const halves = matcher_.only(by_sine->inputs[side], ops);
      if (!is_pair(halves)) continue;
      const Op* const negated = matcher_.only(halves->inputs[0], ops);
      if (negated == nullptr ||
          !(matcher_.is_expression(*negated, "neg(x0)") || matcher_.is_expression(*negated, "mul(x0,-1)")))
        continue;
      const Op *const second = matcher_.only(negated->inputs[0], ops), *const first =
                                                                           matcher_.only(halves->inputs[1], ops);
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
           s.dtype == x.dtype && !matcher_.is_trained(cosine) && !matcher_.is_trained(sine);
  }

  // Where x is the first part of a row, and what comes out goes back before the rest of it.
  void take_part_of_row(FoundRotary& found) const {
    constexpr int kReads = 3;  // of x: whole, and either half
    const OpId cut = graph_.tensor(found.x).producer;
    const TensorId turned = graph_.op(found.ops.back()).outputs[0];
    if (!cut.valid() || matcher_.uses(found.x) != kReads || matcher_.uses(turned) != 1 ||
        !matcher_.last_reader(turned).valid())
      return;
    const TensorId whole = graph_.op(cut).inputs.empty() ? TensorId{} : graph_.op(cut).inputs[0];
    if (!whole.valid() || !is_slice(&graph_.op(cut), whole, 0, found.width)) return;
    const Op& joined = graph_.op(matcher_.last_reader(turned));
    if (!is_pair(&joined) || joined.inputs[0] != turned) return;
    std::vector<OpId> ops{cut};
    const int64_t length = graph_.tensor(whole).shape.back();
    if (!is_slice(matcher_.only(joined.inputs[1], ops), whole, found.width, length - found.width)) return;
    found.ops.insert(found.ops.end(), ops.begin(), ops.end());
    found.ops.push_back(matcher_.last_reader(turned));
    found.x = whole;
  }

  Matcher matcher_;
  const Graph& graph_;
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
