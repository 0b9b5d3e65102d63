// The one door to hwloc.
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "device/cpu/machine.h"

namespace plimsoll::cpu {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using TopologyHandle = std::unique_ptr<hwloc_topology, Destroy>;

TopologyHandle load(const std::string& synthetic) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return nullptr;
  TopologyHandle topology(raw);
  if (!synthetic.empty() && hwloc_topology_set_synthetic(raw, synthetic.c_str()) != 0) return nullptr;
  return hwloc_topology_load(raw) == 0 ? std::move(topology) : nullptr;
}

std::vector<int> processors_of(hwloc_topology_t topology, hwloc_obj_t core, const cpu_set_t* allowed) {
  std::vector<int> result;
  for (hwloc_obj_t unit = nullptr;
       (unit = hwloc_get_next_obj_inside_cpuset_by_type(topology, core->cpuset, HWLOC_OBJ_PU, unit));) {
    const auto number = static_cast<int>(unit->os_index);
    if (allowed == nullptr || (number < CPU_SETSIZE && CPU_ISSET(number, allowed))) result.push_back(number);
  }
  return result;
}

// The cache of level 3, or of level 2 where there is none of level 3.
hwloc_obj_t last_cache(hwloc_topology_t topology, hwloc_obj_t core) {
  hwloc_obj_t last = nullptr;
  for (hwloc_obj_type_t type : {HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE}) {
    if (hwloc_obj_t cache = hwloc_get_ancestor_obj_by_type(topology, type, core)) last = cache;
  }
  return last;
}

// What is known without hwloc: so many processors.
Topology flat_topology() {
  Topology result{.shape = {.cores = usable_processors()}, .processors = {}};
  cpu_set_t set;
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  for (int i = 0; i < CPU_SETSIZE && static_cast<int>(result.processors.size()) < result.shape.cores; ++i) {
    if (!known || CPU_ISSET(i, &set)) result.processors.push_back({i});
  }
  return result;
}

}  // namespace

Topology machine_topology(const std::string& synthetic) {
  const TopologyHandle topology = load(synthetic);
  cpu_set_t set;
  const bool restricted = synthetic.empty() && sched_getaffinity(0, sizeof(set), &set) == 0;
  Topology result;
  result.shape = {.cores = 0, .cores_a_cache = 1, .hardware_threads = 1};
  hwloc_obj_t cache = nullptr;
  int in_cache = 0;
  for (hwloc_obj_t core = nullptr;
       topology && (core = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_CORE, core));) {
    std::vector<int> processors = processors_of(topology.get(), core, restricted ? &set : nullptr);
    if (processors.empty()) continue;
    hwloc_obj_t of_core = last_cache(topology.get(), core);
    in_cache = of_core != nullptr && of_core == cache ? in_cache + 1 : 1;
    cache = of_core;
    result.shape.cores_a_cache = std::max(result.shape.cores_a_cache, in_cache);
    result.shape.hardware_threads = std::max(result.shape.hardware_threads, static_cast<int>(processors.size()));
    result.processors.push_back(std::move(processors));
  }
  result.shape.cores = static_cast<int>(result.processors.size());
  if (result.processors.empty()) return flat_topology();
  if (synthetic.empty()) result.shape.cores = std::min(result.shape.cores, usable_processors());  // a quota gives less
  result.shape.cores_a_cache = std::min(result.shape.cores_a_cache, result.shape.cores);
  return result;
}

std::vector<int> processors_of_cores(int cores, bool smt, const std::string& synthetic) {
  const Topology topology = machine_topology(synthetic);
  std::vector<int> places;
  if (static_cast<int>(topology.processors.size()) == cores) {
    for (const std::vector<int>& core : topology.processors) places.push_back(core[0]);
    if (!smt) return places;
    for (const std::vector<int>& core : topology.processors) {
      if (core.size() < 2) return {};
      places.push_back(core[1]);
    }
    return places;
  }
  if (smt) return {};
  // As many as there are hardware threads: each stands for a core.
  for (size_t k = 0; static_cast<int>(places.size()) < cores; ++k) {
    const size_t before = places.size();
    for (const std::vector<int>& core : topology.processors) {
      if (k < core.size()) places.push_back(core[k]);
    }
    if (places.size() == before) return {};
  }
  return static_cast<int>(places.size()) == cores ? places : std::vector<int>{};
}

}  // namespace plimsoll::cpu
