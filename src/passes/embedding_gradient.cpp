#include "passes/embedding_gradient.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/by_id.h"
#include "passes/linear.h"
#include "passes/rebuilder.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// Their second input is the gradient, and there is an op by lookups for each.
constexpr std::array<std::string_view, 3> kReaders{"SgdUpdate", "AdamUpdate", "AccumulateGradient"};
constexpr int64_t kBytesALookup = 16;  // in a kernel's workspace

// A gradient that need not lie whole, and who reads it.
struct SparseGradient {
  OpId backward;     // makes the gradient
  OpId reader;       // an update, a sum over batches, or an Add
  OpId norm, scale;  // where it is clipped before the update
  TensorId other;    // what it is added to
};

class SparseGradients {
 public:
  explicit SparseGradients(const Network& training)
      : graph_(training.graph),
        uses_(count_uses(training)),
        readers_(graph_.readers()),
        taken_(graph_.op_count(), false) {}

  std::optional<SparseGradient> at(OpId id) {
    const Op& op = graph_.op(id);
    if (op.type->name != "EmbeddingBackward") return {};
    const TensorId gradient = op.outputs[0];
    const Tensor &dy = graph_.tensor(op.inputs[0]), &indices = graph_.tensor(op.inputs[1]);
    const Bytes in_order{element_count(indices.shape) * kBytesALookup};
    if (dy.bytes() + in_order >= graph_.tensor(gradient).bytes()) return {};
    SparseGradient found{.backward = id, .reader = {}, .norm = {}, .scale = {}, .other = {}};
    if (uses_[gradient] == 1) {
      if (!take_reader(gradient, found)) return {};
    } else if (!take_clipped(gradient, found)) {
      return {};
    }
    if (taken_[found.reader]) return {};  // it adds up two of them, and one is whole
    taken_[found.reader] = true;
    return found;
  }

 private:
  // The only op that reads a tensor; none where that is read twice, or kept.
  OpId only_reader(TensorId id) const {
    return uses_[id] == 1 && readers_[id.index].size() == 1 ? readers_[id.index][0] : OpId{};
  }

  static bool reads_as_gradient(const Op& op, TensorId gradient) {
    return std::ranges::find(kReaders, op.type->name) != kReaders.end() && op.inputs[1] == gradient;
  }

  bool take_reader(TensorId gradient, SparseGradient& found) const {
    found.reader = only_reader(gradient);
    if (!found.reader.valid()) return false;
    const Op& op = graph_.op(found.reader);
    if (reads_as_gradient(op, gradient)) return true;
    if (op.type->name != "Add" || op.inputs.size() != 2 || op.attributes.has("activation")) return false;
    found.other = op.inputs[op.inputs[0] == gradient ? 1 : 0];
    return true;
  }

  bool take_clipped(TensorId gradient, SparseGradient& found) const {
    if (uses_[gradient] != 2) return false;
    for (OpId id : readers_[gradient.index]) {
      const std::string& type = graph_.op(id).type->name;
      if (type == "GradientNorm") found.norm = id;
      if (type == "ScaleGradient") found.scale = id;
    }
    if (!found.norm.valid() || !found.scale.valid()) return false;
    const TensorId scaled = graph_.op(found.scale).outputs[0];
    found.reader = only_reader(scaled);
    if (!found.reader.valid()) return false;
    const Op& update = graph_.op(found.reader);
    return reads_as_gradient(update, scaled) && update.type->name != "AccumulateGradient" &&
           !update.attributes.has("scaled");
  }

  const Graph& graph_;
  ById<TensorId, int> uses_;
  std::vector<std::vector<OpId>> readers_;
  ById<OpId, bool> taken_;
};

Attributes with_padding(Attributes attributes, const Op& backward) {
  attributes.set("padding_index", backward.attributes.integer("padding_index", -1));
  return attributes;
}

void replace_norm(Rebuilder& rebuilder, const Graph& before, const SparseGradient& found) {
  const Op &backward = before.op(found.backward), &norm = before.op(found.norm);
  rebuilder.replace({found.backward, found.norm}, "EmbeddingGradientNorm", norm.name, norm.layer,
                    rebuilder.map(backward.inputs), backward.attributes, norm.outputs, norm.phase);
}

void replace_reader(Rebuilder& rebuilder, const Graph& before, const SparseGradient& found) {
  const Op &backward = before.op(found.backward), &reader = before.op(found.reader);
  const TensorId dy = backward.inputs[0], indices = backward.inputs[1];
  std::vector<OpId> replaced{found.backward, found.reader};
  if (found.other.valid()) {
    rebuilder.replace(replaced, "EmbeddingAddGradient", reader.name, reader.layer,
                      rebuilder.map({found.other, dy, indices}), with_padding({}, backward), reader.outputs,
                      reader.phase);
    return;
  }
  std::vector<TensorId> inputs = reader.inputs;
  Attributes attributes = with_padding(reader.attributes, backward);
  inputs[1] = dy;
  if (found.scale.valid()) {
    replaced.push_back(found.scale);
    inputs.push_back(before.op(found.scale).inputs[1]);
    attributes.set("scaled", int64_t{1});
  }
  inputs.push_back(indices);
  rebuilder.replace(replaced, "Embedding" + reader.type->name, reader.name, reader.layer, rebuilder.map(inputs),
                    attributes, reader.outputs, reader.phase);
}

}  // namespace

int keep_embedding_gradients_sparse(Network& training) {
  SparseGradients gradients(training);
  std::vector<SparseGradient> all;
  for (int32_t i = 0; i < training.graph.op_count(); ++i) {
    if (auto found = gradients.at({i})) all.push_back(*found);
  }
  // What stands in the place of a norm comes before what stands in that of the update.
  std::vector<std::vector<OpId>> ops_of;
  std::vector<const SparseGradient*> at;
  for (const SparseGradient& found : all) {
    at.push_back(&found);
    std::vector<OpId>& ops = ops_of.emplace_back(std::vector<OpId>{found.backward});
    if (found.norm.valid()) {
      ops.push_back(found.norm);
      at.push_back(&found);
      ops_of.push_back({found.scale});
    }
    ops_of.back().push_back(found.reader);
  }
  replace_ops(training, ops_of, [&](Rebuilder& rebuilder, const Graph& before, size_t i) {
    ops_of[i].front() == at[i]->backward&& at[i]->norm.valid() ? replace_norm(rebuilder, before, *at[i])
                                                               : replace_reader(rebuilder, before, *at[i]);
  });
  return static_cast<int>(all.size());
}

bool reads_lookups(const Op& op) {
  return op.type->name.starts_with("Embedding") && op.type->name != "Embedding" && op.type->name != "EmbeddingBackward";
}

}  // namespace plimsoll
