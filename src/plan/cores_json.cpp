#include "plan/cores_json.h"

#include <algorithm>
#include <limits>

#include "plimsoll/verify.h"

namespace plimsoll {
namespace {

constexpr std::string_view kAffinities[] = {"close", "spread", "smt"};
constexpr int64_t kMostHardwareThreads = 64;  // of a core

}  // namespace

std::string_view to_string(Affinity affinity) { return kAffinities[static_cast<size_t>(affinity)]; }

Affinity affinity_from_json(const JsonReader& r) {
  const auto found = std::find(std::begin(kAffinities), std::end(kAffinities), r.text());
  if (found == std::end(kAffinities)) r.expected("\"close\", \"spread\" or \"smt\"");
  return static_cast<Affinity>(found - std::begin(kAffinities));
}

nlohmann::ordered_json cores_to_json(const CoreSharing& cores, const NamePairs& conflicts) {
  return {{"inter_op", cores.inter_op},
          {"cores", cores.cores},
          {"cores_a_cache", cores.cores_a_cache},
          {"hardware_threads", cores.hardware_threads},
          {"memory_gb_per_s", cores.memory_gb_per_s},
          {"smt_speed", cores.smt_speed},
          {"conflicts", conflicts},
          {"order", cores.order}};
}

CoreSharing cores_from_json(const JsonReader& r, NamePairs& conflicts, std::string_view more) {
  r.only({"inter_op", "cores", "cores_a_cache", "hardware_threads", "memory_gb_per_s", "smt_speed", "conflicts",
          "order", more});
  auto number = [&](std::string_view name, double least) {
    const double value = r.member(name).number();
    if (value < least) r.member(name).expected(least > 0 ? "a number of at least 1" : "a number that is not negative");
    return value;
  };
  auto count = [&](std::string_view name, int64_t least, int64_t most) {
    return static_cast<int>(r.member(name).integer(least, most));
  };
  CoreSharing cores{.inter_op = count("inter_op", 1, kMostThreads),
                    .cores = count("cores", 0, kMostThreads),
                    .cores_a_cache = count("cores_a_cache", 0, kMostThreads),
                    .hardware_threads = count("hardware_threads", 1, kMostHardwareThreads),
                    .memory_gb_per_s = number("memory_gb_per_s", 0),
                    .smt_speed = number("smt_speed", 1)};
  const JsonReader pairs = r.member("conflicts"), order = r.member("order");
  for (size_t i = 0; i < pairs.size(); ++i) {
    const JsonReader pair = pairs.item(i);
    if (pair.size() != 2) pair.fail("two ops were expected");
    conflicts.emplace_back(pair.item(0).text(), pair.item(1).text());
  }
  for (size_t i = 0; i < order.size(); ++i) {
    cores.order.push_back(static_cast<StepIndex>(order.item(i).integer(0, std::numeric_limits<StepIndex>::max())));
  }
  return cores;
}

}  // namespace plimsoll
