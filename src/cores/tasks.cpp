#include "cores/tasks.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "plan/dependencies.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// By node of the dependencies: the tasks that it waits for, directly or by way of nodes that are none.
std::vector<int32_t> tasks_before(const Dependencies& dependencies, int32_t node, const std::vector<int32_t>& task_of,
                                  const std::vector<std::vector<int32_t>>& waits_for) {
  std::vector<int32_t> before;
  for (int32_t other : dependencies.before(node)) {
    const bool is_step = std::cmp_less(other, task_of.size());
    if (const int32_t task = is_step ? task_of[other] : -1; task >= 0) {
      before.push_back(task);
    } else {
      const std::vector<int32_t>& beyond = waits_for[other];
      before.insert(before.end(), beyond.begin(), beyond.end());
    }
  }
  std::sort(before.begin(), before.end());
  before.erase(std::unique(before.begin(), before.end()), before.end());
  return before;
}

}  // namespace

Tasks tasks_of(const Graph& graph, const Plan& plan) {
  const Dependencies dependencies = find_dependencies(graph, plan);
  Tasks result;
  std::map<std::string_view, int32_t> types;
  std::vector<std::vector<int32_t>> waits_for(dependencies.count());  // tasks, by node
  std::vector<int32_t> task_of(plan.steps.size(), -1);
  for (int32_t node : dependencies.order()) {
    const size_t n = node;
    waits_for[n] = tasks_before(dependencies, node, task_of, waits_for);
    if (n >= plan.steps.size() || plan.steps[n].kernel.empty()) continue;
    const Op& op = graph.op(plan.steps[n].op);
    task_of[n] = static_cast<int32_t>(result.tasks.size());
    const auto type = types.try_emplace(op.type->name, static_cast<int32_t>(types.size())).first;
    CoTask task{.type = type->second, .curve = {}, .after = waits_for[n]};
    for (TensorId id : op.inputs) task.bytes += static_cast<double>(graph.tensor(id).bytes().count);
    for (TensorId id : op.outputs) task.bytes += static_cast<double>(graph.tensor(id).bytes().count);
    result.tasks.push_back(std::move(task));
    result.steps.push_back(node);
  }
  return result;
}

}  // namespace plimsoll
