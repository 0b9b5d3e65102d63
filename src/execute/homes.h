// States and inputs that lie in a tier between steps, by their elements.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/by_id.h"
#include "device/tier/tier.h"
#include "plimsoll/plan.h"

namespace plimsoll {

class Homes {
 public:
  Homes(const Graph& graph, const Plan& plan, std::span<const std::shared_ptr<Tier>> tiers);
  // Whether the tensor, or for a state's new value the state, has a home.
  bool has(TensorId tensor) const { return !homes_.empty() && homes_[tensor].slot != nullptr; }
  // Row-major elements from number `first` on; element_bytes of each.
  void write(TensorId tensor, int64_t element_bytes, int64_t first, std::span<const std::byte> elements);
  void read(TensorId tensor, int64_t element_bytes, int64_t first, std::span<std::byte> elements);
  // Writes what is still held back. Called before slots are used by anybody else.
  void flush();

 private:
  struct Place {
    Slot* slot = nullptr;
    Channel* channel = nullptr;
  };
  // A tensor that is not row-major is converted whole: it is held here from its first chunk to its last.
  void hold(TensorId tensor);

  const Graph& graph_;
  std::vector<std::unique_ptr<Channel>> channels_;  // by tier
  ById<TensorId, Place> homes_;
  TensorId held_;
  bool changed_ = false;
  std::vector<std::byte> storage_;
};

}  // namespace plimsoll
