// States and inputs that lie in a tier between steps, by their elements.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/by_id.h"
#include "device/tier/tier.h"
#include "execute/rows.h"
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

  // Of host memory, for the elements of one tensor while they are converted: so much, and no more, unless the layout
  // mixes all rows of the tensor, which is then held whole.
  static constexpr Bytes kHeldBytes = 4_MiB;
  Bytes held() const { return {static_cast<int64_t>(storage_.size())}; }  // now
  // Whether a tensor of this layout is converted some rows at a time.
  static bool converts_by_rows(const Layout& layout);

 private:
  struct Place {
    Slot* slot = nullptr;
    Channel* channel = nullptr;
  };
  // Holds the rows with this element, and lets those go that were held.
  void hold(TensorId tensor, int64_t element);

  const Graph& graph_;
  std::vector<std::unique_ptr<Channel>> channels_;  // by tier
  ById<TensorId, Place> homes_;
  TensorId held_;
  RowWindow window_;  // of held_
  bool changed_ = false;
  std::vector<std::byte> storage_;  // of window_
};

}  // namespace plimsoll
