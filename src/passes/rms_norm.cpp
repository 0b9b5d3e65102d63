#include "passes/rms_norm.h"

#include <algorithm>
#include <optional>
#include <string>

#include "ops/expression.h"
#include "passes/matcher.h"
#include "passes/rebuilder.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

struct FoundNorm {
  std::vector<OpId> ops;         // the last is where the one op stands
  std::vector<TensorId> inputs;  // x and, of some, gamma
  double epsilon = 0;
};

// The number of "add(x0,number)".
std::optional<double> added_number(const Op& op) {
  const Expression expression = parse_expression(op.attributes.text("expression"));
  const ExpressionNode& sum = expression.nodes.back();
  if (sum.kind != ExpressionNode::Kind::call || sum.function != Function::add || expression.nodes.size() != 3)
    return {};
  std::optional<double> number;
  bool has_input = false;
  for (size_t i = 0; i < 2; ++i) {
    const ExpressionNode& node = expression.nodes[static_cast<size_t>(sum.arguments[i])];
    if (node.kind == ExpressionNode::Kind::number) number = node.number;
    has_input = has_input || node.kind == ExpressionNode::Kind::input;
  }
  return has_input ? number : std::nullopt;
}

class WrittenNorms {
 public:
  explicit WrittenNorms(const Network& network) : matcher_(network), graph_(network.graph) {}

  std::optional<FoundNorm> at(OpId product) const {
    const Op& op = graph_.op(product);
    if (!matcher_.is_expression(op, "mul(x0,x1)") || op.inputs.size() != 2) return {};
    for (const size_t side : {size_t{0}, size_t{1}}) {
      FoundNorm found;
      const TensorId x = op.inputs[1 - side];
      if (!is_reciprocal_root(op.inputs[side], x, found)) continue;
      found.ops.push_back(product);
      found.inputs = {x};
      take_gamma(op.outputs[0], found);
      return found;
    }
    return {};
  }

 private:
  // 1 / sqrt(mean of squares + epsilon), by rows of x.
  bool is_reciprocal_root(TensorId factor, TensorId x, FoundNorm& found) const {
    const Tensor& rows = graph_.tensor(x);
    if (rows.shape.empty() || (rows.dtype != DType::f32 && rows.dtype != DType::f64)) return false;
    const Op* const root = matcher_.only(factor, found.ops);
    if (root == nullptr || !matcher_.is_expression(*root, "rsqrt(x0)")) return false;
    const Op* const sum = matcher_.only(root->inputs[0], found.ops);
    if (sum == nullptr || !matcher_.is_call(*sum, "Pointwise") || sum->inputs.size() != 1) return false;
    const std::optional<double> epsilon = added_number(*sum);
    if (!epsilon || *epsilon < 0) return false;
    found.epsilon = *epsilon;
    const Op* const mean = matcher_.only(sum->inputs[0], found.ops);
    if (mean == nullptr || !matcher_.is_call(*mean, "Reduce") || mean->attributes.text("function") != "mean")
      return false;
    if (mean->attributes.integers("dims", {}) != Shape{static_cast<int64_t>(rows.shape.size()) - 1}) return false;
    if (mean->attributes.integer("keep_dims", 0) == 0) return false;
    const Op* const squares = matcher_.only(mean->inputs[0], found.ops);
    return squares != nullptr && squares->inputs[0] == x &&
           (matcher_.is_expression(*squares, "square(x0)") || matcher_.is_expression(*squares, "mul(x0,x0)"));
  }

  void take_gamma(TensorId normal, FoundNorm& found) const {
    if (matcher_.uses(normal) != 1 || !matcher_.last_reader(normal).valid()) return;
    const OpId reader = matcher_.last_reader(normal);
    const Op& product = graph_.op(reader);
    if (!matcher_.is_expression(product, "mul(x0,x1)") || product.inputs.size() != 2) return;
    const TensorId gamma = product.inputs[product.inputs[0] == normal ? 1 : 0];
    const Tensor &rows = graph_.tensor(normal), &factors = graph_.tensor(gamma);
    if (factors.shape != Shape{rows.shape.back()} || factors.dtype != rows.dtype) return;
    found.ops.push_back(reader);
    found.inputs.push_back(gamma);
  }

  Matcher matcher_;
  const Graph& graph_;
};

}  // namespace

int fuse_rms_norm(Network& network) {
  const WrittenNorms norms(network);
  std::vector<FoundNorm> all;
  std::vector<std::vector<OpId>> ops_of;
  for (OpId id{0}; id.index < network.graph.op_count(); ++id.index) {
    auto found = norms.at(id);
    if (!found) continue;
    ops_of.push_back(found->ops);
    all.push_back(std::move(*found));
  }
  replace_ops(network, ops_of, [&](Rebuilder& rebuilder, const Graph& before, size_t i) {
    const FoundNorm& found = all[i];
    const Op& last = before.op(found.ops.back());
    const std::string affine = found.inputs.size() > 1 ? "gamma" : "none";
    rebuilder.replace(found.ops, "RmsNormForward", last.name, last.layer, rebuilder.map(found.inputs),
                      {{"axes", int64_t{1}}, {"epsilon", found.epsilon}, {"affine", affine}}, last.outputs);
  });
  return static_cast<int>(all.size());
}

}  // namespace plimsoll
