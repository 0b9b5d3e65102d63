// Placement problems of others, as MiniMalloc writes them: a header line that names the columns id, lower, upper and
// size in any order, then a buffer a line, alive in the half-open interval [lower, upper).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/placement/placement.h"

namespace plimsoll {

inline constexpr size_t kMostFileBuffers = 1'000'000;

struct PlacementFile {
  std::vector<std::string> ids;  // one a buffer, no two alike
  std::vector<Buffer> buffers;
  int64_t alignment = 1;  // of a column of that name; it must be the same for all
};

// An `offset` column is ignored. Throws Error(invalid_input) naming file and line, and Error(unsupported) for gaps and
// for alignments that differ.
PlacementFile placement_file_from_csv(std::string_view text, const std::string& file_name);

// The columns id, lower, upper, size, offset.
std::string to_csv(const PlacementFile& file, const Placement& placement);

}  // namespace plimsoll
