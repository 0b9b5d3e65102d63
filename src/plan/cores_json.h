// How a plan shares the cores, as JSON: the same in saved plans and in checkpoints. Ops stand there by name.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "plimsoll/plan.h"

namespace plimsoll {

using NamePairs = std::vector<std::pair<std::string, std::string>>;

std::string_view to_string(Affinity affinity);
Affinity affinity_from_json(const JsonReader& r);

// `conflicts`: those of `cores`, by the ops' names.
nlohmann::ordered_json cores_to_json(const CoreSharing& cores, const NamePairs& conflicts);
// Throws Error(corrupt_file) with the place and what was expected. The names of ops that conflict go to `conflicts`;
// who has their graph completes the result. Members that `more` names may be there too, and are not read.
CoreSharing cores_from_json(const JsonReader& r, NamePairs& conflicts, std::string_view more = {});

}  // namespace plimsoll
