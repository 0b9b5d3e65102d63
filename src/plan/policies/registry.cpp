#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/names.h"
#include "plan/policies/policies.h"

namespace plimsoll {
namespace {

constexpr Policy kPolicies[] = {
    {"auto", "the fastest of keep, recompute and copy for every tensor, and of all other policies", plan_auto,
     "order=any|given"},
    {"baseline", "every tensor its own memory during the whole step (SuperNeurons, section 3)", plan_baseline},
    {"liveness", "a tensor's bytes are free after its last reader (SuperNeurons, section 3.2)", plan_liveness},
    {"superneurons",
     "liveness, tensor cache, offload and prefetch of checkpoints, cost-aware recomputation (SuperNeurons)",
     plan_superneurons,
     "offload=checkpoints|conv|none recompute=cost-aware|speed|memory|none cache=on|lru|farthest|off release=drop|keep "
     "prefetch=spread|checkpoint|demand"},
    {"vdnn", "offload and prefetch of layers' inputs with a barrier after every layer (vDNN)", plan_vdnn,
     "layers=dyn|all|conv"},
    {"dymem", "offload and prefetch without barriers, candidates searched ahead, tensors grouped by mobility (Dymem)",
     plan_dymem, "ahead=2|1|3|4"},
    {"caffe", "as Caffe keeps tensors: a blob of data and one of gradients for every layer", plan_caffe},
    {"torch", "as Torch keeps tensors: all outputs of layers to the end, gradients only while they are read",
     plan_torch},
    {"mxnet", "as MXNet keeps tensors: liveness, and cheap layers or all between checkpoints computed again",
     plan_mxnet, "recompute=sublinear|mirror|none"},
    {"tensorflow", "as TensorFlow keeps tensors: liveness, and long-lived tensors swapped out and fetched when read",
     plan_tensorflow},
    {"dtr", "lets go what costs least for its bytes and age, and computes it again (h_DTR, Kirisame et al. 2021)",
     plan_dtr, "", false},
    {"dtr-eq", "the same by classes of what is let go, which are cheaper to keep (h_eq, Kirisame et al. 2021)",
     plan_dtr_eq, "", false},
    {"chen-sqrt", "all but every sqrt(n)-th step's results computed again (Chen et al. 2016)", plan_chen_sqrt, "",
     false},
    {"chen-greedy", "the same with checkpoints a number of bytes apart, the best that is tried (Chen et al. 2016)",
     plan_chen_greedy, "", false},
};

std::pair<std::string_view, std::string_view> split(std::string_view text, char at) {
  const size_t i = text.find(at);
  return i == std::string_view::npos ? std::pair{text, std::string_view{}}
                                     : std::pair{text.substr(0, i), text.substr(i + 1)};
}

std::vector<std::string> words(std::string_view text, char at) {
  std::vector<std::string> list;
  while (!text.empty()) {
    const auto [word, rest] = split(text, at);
    list.emplace_back(word);
    text = rest;
  }
  return list;
}

}  // namespace

std::vector<Policy> policies() { return {std::begin(kPolicies), std::end(kPolicies)}; }

const Policy& find_policy(std::string_view spec) {
  const std::string name(split(spec, ':').first);
  std::vector<std::string> known;
  for (const Policy& policy : kPolicies) {
    if (policy.name == name) return policy;
    known.emplace_back(policy.name);
  }
  throw Error(ErrorCode::invalid_input, unknown_name("policy", name, known));
}

std::map<std::string, std::string> policy_options(std::string_view spec) {
  const Policy& policy = find_policy(spec);
  std::map<std::string, std::string> options;
  const std::string_view text = split(spec, ':').second;
  if (text.empty() && spec.find(':') != std::string_view::npos) {
    throw Error(ErrorCode::invalid_input, fmt::format("policy '{}': an option is missing after ':'", spec));
  }
  for (const std::string& word : words(text, ',')) {
    const auto [name, value] = split(word, '=');
    std::vector<std::string> names;
    bool found = false;
    for (const std::string& known : words(policy.options, ' ')) {
      const auto [known_name, known_values] = split(known, '=');
      names.emplace_back(known_name);
      if (known_name != name) continue;
      const std::vector<std::string> values = words(known_values, '|');
      if (std::find(values.begin(), values.end(), value) == values.end()) {
        throw Error(ErrorCode::invalid_input,
                    unknown_name(fmt::format("value of policy option {}", name), std::string(value), values));
      }
      options[std::string(name)] = value;
      found = true;
    }
    if (!found)
      throw Error(ErrorCode::invalid_input,
                  unknown_name(fmt::format("option of policy {}", policy.name), std::string(name), names));
  }
  return options;
}

}  // namespace plimsoll
