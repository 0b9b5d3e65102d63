// Kernels whose work may be asked for together with that of the steps behind them, as one launch instead of one for each: the
// updates of an optimizer, of which most are too small to fill a GPU.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "plimsoll/device.h"

namespace plimsoll {

struct JoinedKernel {
  std::unique_ptr<Kernel> kernel;  // null: the first does not go with the second
  size_t count = 0;                // of the kernels, from the first on
};

class Joinable {
 public:
  virtual ~Joinable() = default;
  // One kernel for as many of these as go together; the first is this one. All are bound. It gives the same bits, in whatever
  // order it works, as long as none of them reads what another one writes.
  virtual JoinedKernel join(std::span<Kernel* const> kernels) const = 0;
};

}  // namespace plimsoll
