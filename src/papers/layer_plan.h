// A network planned under the papers' layer model, and what its tables tell of such a plan.
#pragma once

#include <optional>
#include <string>

#include "papers/layer_model.h"
#include "plimsoll/plan.h"

namespace plimsoll {

inline constexpr double kMiB = 1 << 20;

struct LayerPlanRequest {
  std::string model;
  int64_t batch = 1;
  int64_t size = 0;  // of the images; 0: the network's own
  std::string policy;
  LayerModelOptions layer_model = {};
  Bytes budget{INT64_MAX};
  Bytes host{INT64_MAX};     // memory behind the arena
  std::string device = {};   // a simulated one, "k40c", whose times count; none: neither layers nor copies take time
  bool states_stay = false;  // auto leaves weights and what belongs to them in the arena, as all other policies do
  bool first_that_fits = false;  // as in PolicyInput
};

struct LayerPlan {
  Graph graph;
  Plan plan;  // verified and simulated
  double peak_mib() const { return static_cast<double>(plan.predicted.peak.count) / kMiB; }
  int peak_step() const;        // as the papers count: from 1, recomputations belong to the step that wants them
  int tensors_at_peak() const;  // what shares bytes counts once
  Bytes host_bytes() const;
};

// Nothing when no plan fits.
std::optional<LayerPlan> plan_layers(const LayerPlanRequest& request);

}  // namespace plimsoll
