// Networks from files, under names as "graph:FILE".
#pragma once

#include <string>

#include "plimsoll/network_file.h"

namespace plimsoll {

// Fields of `input` that are not 0 must be the file's own. Throws as network_from_json, with the file's name.
Network build_network_file(const std::string& file, const ModelInput& input);

}  // namespace plimsoll
