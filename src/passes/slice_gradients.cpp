#include "passes/slice_gradients.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/by_id.h"
#include "passes/linear.h"
#include "passes/rebuilder.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

bool is_plain_sum(const Op& op) { return op.type->name == "Add" && !op.attributes.has("activation"); }

struct Part {
  int64_t begin, size;
  TensorId gradient;
};

struct SlicedGradient {
  std::vector<OpId> ops;  // the last is the sum of all
  std::vector<Part> parts;
  std::vector<TensorId> others;  // that are added, too
  int64_t axis = -1;
};
constexpr size_t kMostOthers = 1;  // what a rotary embedding takes of the whole, beside its halves

class SlicedGradients {
 public:
  explicit SlicedGradients(const Network& training) : graph_(training.graph), uses_(count_uses(training)) {}

  // Where `sum` is made of slices that fill it, and little else.
  std::optional<SlicedGradient> at(OpId sum) const {
    const Op& op = graph_.op(sum);
    if (!is_plain_sum(op)) return {};
    SlicedGradient found;
    if (!collect(sum, found) || found.parts.empty()) return {};
    std::sort(found.ops.begin(), found.ops.end(), [](OpId a, OpId b) { return a.index < b.index; });
    std::sort(found.parts.begin(), found.parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
    int64_t end = 0;
    for (const Part& part : found.parts) {
      if (part.begin != end) return {};
      end += part.size;
    }
    if (end != graph_.tensor(op.outputs[0]).shape[static_cast<size_t>(found.axis)]) return {};
    return found;
  }

 private:
  // The sums and slices' gradients below a sum, which is one of them; false where there is too much else.
  bool collect(OpId sum, SlicedGradient& found) const {
    std::vector<OpId> open = {sum};
    while (!open.empty()) {
      const OpId id = open.back();
      open.pop_back();
      found.ops.push_back(id);
      for (TensorId term : graph_.op(id).inputs) {
        const OpId maker = graph_.tensor(term).producer;
        const bool is_alone = maker.valid() && uses_[term] == 1;
        if (is_alone && is_plain_sum(graph_.op(maker))) {
          open.push_back(maker);
        } else if (is_alone && add_part(graph_.op(maker), found)) {
          found.ops.push_back(maker);
        } else if (found.others.size() < kMostOthers) {
          found.others.push_back(term);
        } else {
          return false;
        }
      }
    }
    return true;
  }
  bool add_part(const Op& op, SlicedGradient& found) const {
    if (op.type->name != "SliceBackward" || op.attributes.integer("step", 1) != 1) return false;
    const int64_t axis = op.attributes.integer("axis");
    if (found.axis >= 0 && found.axis != axis) return false;
    found.axis = axis;
    found.parts.push_back({.begin = op.attributes.integer("begin"),
                           .size = graph_.tensor(op.inputs[0]).shape[static_cast<size_t>(axis)],
                           .gradient = op.inputs[0]});
    return true;
  }

  const Graph& graph_;
  ById<TensorId, int> uses_;
};

}  // namespace

int join_slice_gradients(Network& training) {
  const SlicedGradients gradients(training);
  std::vector<SlicedGradient> all;
  std::vector<std::vector<OpId>> ops_of;
  ById<OpId, bool> taken(training.graph.op_count(), false);
  for (OpId id{training.graph.op_count() - 1}; id.index >= 0; --id.index) {  // a sum before those that it is made of
    auto found = taken[id] ? std::nullopt : gradients.at(id);
    if (!found) continue;
    for (OpId op : found->ops) taken[op] = true;
    ops_of.push_back(found->ops);
    all.push_back(std::move(*found));
  }
  replace_ops(training, ops_of, [&](Rebuilder& rebuilder, const Graph& before, size_t i) {
    const Op& sum = before.op(ops_of[i].back());
    std::vector<TensorId> parts;
    for (const Part& part : all[i].parts) parts.push_back(part.gradient);
    const Attributes axis{{"axis", all[i].axis}};
    if (all[i].others.empty()) {
      rebuilder.replace(ops_of[i], "Concat", sum.name, sum.layer, rebuilder.map(parts), axis, sum.outputs, sum.phase);
      return;
    }
    const OpId joined = rebuilder.graph().add_op("Concat", rebuilder.free_name(sum.name + ".slices"), sum.layer,
                                                 rebuilder.map(parts), axis, sum.phase);
    std::vector<TensorId> terms = rebuilder.map(all[i].others);
    terms.push_back(rebuilder.graph().output(joined));
    rebuilder.replace(ops_of[i], "Add", sum.name, sum.layer, terms, {}, sum.outputs, sum.phase);
  });
  return static_cast<int>(all.size());
}

}  // namespace plimsoll
