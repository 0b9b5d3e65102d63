// What a file of a graph holds, by how it begins.
#pragma once

#include <string_view>

#include "base/json_reader.h"

namespace plimsoll {

inline constexpr std::string_view kNetworkFormat = "plimsoll network";
inline constexpr std::string_view kCostGraphFormat = "plimsoll cost graph";

enum class GraphKind : uint8_t {
  network,
  cost_graph,  // ours
  node_list,   // nodes in the order in which they run, with what they read
  node_link,   // networkx's node-link JSON
};
// Throws Error(corrupt_file) where it is none of them.
GraphKind graph_kind(const JsonReader& file);

}  // namespace plimsoll
