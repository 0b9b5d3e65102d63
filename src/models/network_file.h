// Networks from files, under names as "graph:FILE".
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "plimsoll/network_file.h"

namespace plimsoll {

// The file of a model's name; nothing where the model is one of the zoo.
std::optional<std::string> network_file_of(std::string_view model);

// Fields of `input` that are not 0 must be the file's own. Throws as network_from_json, with the file's name.
Network build_network_file(const std::string& file, const ModelInput& input);

}  // namespace plimsoll
