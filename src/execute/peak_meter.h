// Measures the most bytes of the arena that are in use at once, from what kernels and copies were given (bindings.h)
// and from when each of them began and ended. Nothing here reads a stay: what a plan predicts is compared with what was
// done.
//
//   A byte is in use from the moment when the access begins that writes a value there, to the moment when the last
//   access that reads this value ends. A value that an access reads and replaces in its place stays in use through it.
//   - The accesses are kernels (inputs, outputs, workspace) and copies. Where the driver waits for copies, a copy ends
//     when the driver has waited for it: until then the bytes are the copy's.
//   - What comes from outside is in use from the beginning of the training step to its last reader. What is left for
//     the outside, or read by the next training step before anybody writes it, is in use to the end.
//   - A second buffer for the next batch is in use all the time.
//   - Bytes count as they are bound, rounded up to kStayAlignment.
//
//   step        0        1        2        3
//   kernel 0    writes a
//   kernel 1             reads a, writes b over it              a and b: one place in use, 0 to 3
//   kernel 2                      writes c, which nobody reads  c: in use during 2 only
//   kernel 3                               reads b
#pragma once

#include <span>
#include <vector>

#include "execute/bindings.h"

namespace plimsoll {

class PeakMeter {
 public:
  // `order`: steps by their number and moves by steps + theirs, in an order in which one may run after another.
  PeakMeter(const Bindings& bindings, const Plan& plan, std::span<const int32_t> order);

  // For one thread at a time; none of them allocates.
  void begin();              // a training step
  void start(int32_t node);  // a kernel or a copy begins
  void end(int32_t node);
  Bytes peak() const { return {peak_}; }  // over all training steps

 private:
  std::span<const int32_t> places_of(int32_t node) const;

  struct Place {  // bytes, and who uses what lies there
    int64_t bytes = 0;
    int32_t users = 0;  // one more where the value outlasts the training step
    bool from_start = false;
  };
  std::vector<Place> places_;
  std::vector<int32_t> first_, all_;  // places by node
  std::vector<int32_t> users_left_;   // by place
  std::vector<uint8_t> in_use_;       // by place
  int64_t always_ = 0;
  int64_t bytes_ = 0, peak_ = 0;
};

// The plan's order of steps and moves: between two steps first what leaves, then what comes.
std::vector<int32_t> nodes_in_order(const Plan& plan);

}  // namespace plimsoll
