#include <fmt/format.h>

#include "base/names.h"
#include "plimsoll/cost.h"
#include "plimsoll/error.h"

namespace plimsoll {

std::string_view to_string(BatchSizes sizes) {
  switch (sizes) {
    case BatchSizes::undivided: return "undivided";
    case BatchSizes::power_of_two: return "powerOfTwo";
    case BatchSizes::all: return "all";
  }
  return "?";
}

BatchSizes batch_sizes_named(std::string_view name) {
  std::vector<std::string> known;
  for (BatchSizes sizes : {BatchSizes::undivided, BatchSizes::power_of_two, BatchSizes::all}) {
    if (name == to_string(sizes)) return sizes;
    known.emplace_back(to_string(sizes));
  }
  throw Error(ErrorCode::invalid_input, unknown_name("batch-size policy", std::string(name), known));
}

std::vector<int64_t> micro_batch_sizes(BatchSizes sizes, int64_t batch) {
  if (batch < 1) throw Error(ErrorCode::invalid_input, fmt::format("a batch of {} cannot be divided", batch));
  std::vector<int64_t> list;
  if (sizes == BatchSizes::power_of_two) {
    for (int64_t size = 1; size < batch; size *= 2) list.push_back(size);
  } else if (sizes == BatchSizes::all) {
    for (int64_t size = 1; size < batch; ++size) list.push_back(size);
  }
  list.push_back(batch);
  return list;
}

}  // namespace plimsoll
