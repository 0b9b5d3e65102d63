#include "models/graph_kind.h"

#include <fmt/format.h>

namespace plimsoll {

GraphKind graph_kind(const JsonReader& file) {
  if (file.has("format")) {
    const JsonReader format = file.member("format");
    if (format.text() == kNetworkFormat) return GraphKind::network;
    if (format.text() != kCostGraphFormat)
      format.expected(fmt::format("\"{}\" or \"{}\"", kNetworkFormat, kCostGraphFormat));
    return GraphKind::cost_graph;
  }
  if (!file.has("nodes")) {
    file.fail(fmt::format("this is no graph: it has neither a \"format\" (\"{}\" or \"{}\") nor \"nodes\"",
                          kNetworkFormat, kCostGraphFormat));
  }
  for (const char* member : {"links", "edges", "directed", "multigraph"})
    if (file.has(member)) return GraphKind::node_link;
  return GraphKind::node_list;
}

}  // namespace plimsoll
