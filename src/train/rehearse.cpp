#include "train/rehearse.h"

#include "device/tier/tier.h"

namespace plimsoll {

std::vector<KernelRefused> rehearse(Executor& executor, Refusals& known) {
  std::vector<KernelRefused> refused = executor.rehearse();
  for (const KernelRefused& refusal : refused) {
    if (!known.emplace(refusal.op(), refusal.kernel()).second) throw KernelRefused(refusal);
  }
  return refused;
}

Memory kept_memory(const Executor& executor) {
  Memory kept;
  for (const auto& tier : executor.memory().tiers) {
    if (tier->is_memory() && tier->is_host_memory()) kept.tiers.push_back(tier);
  }
  return kept;
}

}  // namespace plimsoll
