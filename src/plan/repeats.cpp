#include "plan/repeats.h"

#include <bit>
#include <map>
#include <utility>

namespace plimsoll {
namespace {

uint64_t mix(uint64_t hash, uint64_t number) {
  hash ^= number + 0x9e3779b97f4a7c15U + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdU;
  return hash ^ (hash >> 32);
}

// Of what a step is, wherever it stands. Steps that are equal have kernels of equal signatures, so their times are equal.
uint64_t signature(const ValueTimeline& timeline, const TimelineStep& step) {
  uint64_t hash = mix(std::bit_cast<uint64_t>(step.ms), static_cast<uint64_t>(step.workspace));
  hash = mix(hash, step.view ? 1 : 0);
  for (int32_t v : step.inputs) hash = mix(hash, static_cast<uint64_t>(timeline.values[v].bytes));
  hash = mix(hash, step.inputs.size());
  for (int32_t v : step.outputs) hash = mix(hash, static_cast<uint64_t>(timeline.values[v].bytes));
  return mix(hash, step.outputs.size());
}

}  // namespace

std::vector<int32_t> repeated_values(const ValueTimeline& timeline) {
  std::vector<uint64_t> steps;
  steps.reserve(timeline.steps.size());
  for (const TimelineStep& step : timeline.steps) steps.push_back(signature(timeline, step));
  std::map<uint64_t, int32_t> classes;
  std::vector<int32_t> result;
  result.reserve(timeline.values.size());
  for (const TimelineValue& value : timeline.values) {
    uint64_t hash = mix(static_cast<uint64_t>(value.bytes), value.producer < 0 ? 0 : steps[value.producer]);
    hash = mix(hash, (value.at_end ? 1 : 0) + (value.recomputable ? 2 : 0) + (value.state >= 0 ? 4 : 0));
    for (int32_t use : value.uses) hash = mix(hash, steps[use]);
    result.push_back(classes.try_emplace(hash, static_cast<int32_t>(classes.size())).first->second);
  }
  return result;
}

}  // namespace plimsoll
