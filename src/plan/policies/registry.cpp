#include <string>

#include "base/names.h"
#include "plan/policies/policies.h"

namespace plimsoll {
namespace {

constexpr Policy kPolicies[] = {
    {"auto", "the best of the others for this network and budget", plan_auto},
    {"baseline", "every tensor its own memory during the whole step (SuperNeurons, section 3)", plan_baseline},
    {"liveness", "a tensor's bytes are free after its last reader (SuperNeurons, section 3.2)", plan_liveness},
};

}  // namespace

std::vector<Policy> policies() { return {std::begin(kPolicies), std::end(kPolicies)}; }

const Policy& find_policy(std::string_view name) {
  std::vector<std::string> known;
  for (const Policy& policy : kPolicies) {
    if (policy.name == name) return policy;
    known.emplace_back(policy.name);
  }
  throw Error(ErrorCode::invalid_input, unknown_name("policy", name, known));
}

}  // namespace plimsoll
