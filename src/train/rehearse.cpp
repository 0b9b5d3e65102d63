#include "train/rehearse.h"

namespace plimsoll {

std::vector<KernelRefused> rehearse(Executor& executor, Refusals& known) {
  std::vector<KernelRefused> refused = executor.rehearse();
  for (const KernelRefused& refusal : refused) {
    if (!known.emplace(refusal.op(), refusal.kernel()).second) throw KernelRefused(refusal);
  }
  return refused;
}

}  // namespace plimsoll
