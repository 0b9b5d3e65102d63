// Gives every buffer an offset in one arena so that two buffers that meet in time never share a byte.
//
//  offset
//   2 |      +---------+
//     |      |    c    |       a = steps [0,2)   b = [2,4)   c = [1,3)
//   1 +------+--+------+--+
//     |    a    |    b    |    b takes a's bytes: a is gone at step 2.
//   0 +---------+---------+    c meets both, so it lies above.
//     0    1    2    3    4  step
//
// The problem is the static one of MiniMalloc: all lifetimes are known. `offline` sees them all; `first_fit` (the
// papers' heap with its 1 KB blocks), `best_fit` and `gtbm` (Dymem's unified pool) take them in the order of time, as
// an allocator at run time must.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/bytes.h"

namespace plimsoll {

// What `gtbm` groups by (Dymem, section 3.3.2); mobility.h says what is what. Other methods do not look at it.
enum class Mobility : uint8_t {
  movable,    // read once, soon: from the low end of the pool
  temporary,  // read several times, or waiting to be joined: from its high end
  reclaimed,  // of layers that nothing is offloaded from: in a space of its own beside the pool
};

struct Buffer {
  int64_t lower = 0;  // alive in [lower, upper), any unit of time
  int64_t upper = 0;
  Bytes bytes;
  Mobility mobility = Mobility::movable;
};

struct PlacementOptions {
  int64_t alignment = 64;  // of every offset
  Bytes capacity{0};       // stop searching at this height or below; in any case at the lower bound
  int64_t effort =
      20'000'000;            // the search's limit, counted in items looked at (some 50 million a second), so that the
                             // same problem gets the same answer on every machine; heuristics run whatever it is
  bool only_to_fit = false;  // what is higher than the capacity is of no use, however low
  bool one_of_many = false;  // with only_to_fit: who asks has others to place, and what seldom comes to fit is given up
  bool roughly = false;      // greedy orders alone, to compare problems by: a tenth of the time and less
  Bytes useless{INT64_MAX};  // with `roughly`: how far above this height an answer lies does not matter
  std::optional<double>
      seconds;  // the search also ends here, for who cannot wait: not a planner, whose answers are the
                // same on every machine
};

struct Placement {
  std::vector<Bytes> offsets;   // one a buffer
  Bytes height;                 // end of the highest buffer
  Bytes lower_bound;            // largest sum of (aligned) bytes alive at one time
  Bytes proven_lower_bound;     // no placement is lower: lower_bound, or more where the search has shown it
  bool proven_optimal = false;  // height == proven_lower_bound
};

struct PlacementMethod {
  std::string_view name, description;
  Placement (*place)(const std::vector<Buffer>&, const PlacementOptions&);
  bool by_mobility = false;  // looks at Buffer::mobility
};

Placement place_offline(const std::vector<Buffer>& buffers, const PlacementOptions& options = {});
Placement place_first_fit(const std::vector<Buffer>& buffers, const PlacementOptions& options = {});  // 1 KB blocks
Placement place_best_fit(const std::vector<Buffer>& buffers, const PlacementOptions& options = {});
// A two-ended pool (Dymem, section 3.3.3), as small as its squeeze gap allows, and above it the incremental space.
Placement place_gtbm(const std::vector<Buffer>& buffers, const PlacementOptions& options = {});
std::vector<PlacementMethod> placement_methods();

// U_f (Dymem, equation 1): the share of free bytes that a request of so many bytes cannot use, because they lie in
// smaller regions; 0 where nothing is free.
double unusable_free_space(std::span<const Bytes> free_regions, Bytes request);

// What a pool of the placement's height looks like from each time at which buffers begin or end, to the next.
struct FragmentationAt {
  int64_t time = 0;
  Bytes live, free;     // together the height
  Bytes used;           // up to the end of the highest live buffer
  Bytes largest_free;   // region
  double unusable = 0;  // U_f of the request
};
std::vector<FragmentationAt> fragmentation_over_time(const std::vector<Buffer>& buffers, const Placement& placement,
                                                     Bytes request);

}  // namespace plimsoll
