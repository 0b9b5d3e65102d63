// A graph of costs only: what each op takes and needs, and nothing of what it computes. It is planned and never run. So
// planning problems come from elsewhere, and ours go there.
//
//   CostGraph costs = read_cost_graph("unet.json");
//   compile_graph(costs.graph, costs.kernels, device, costs_of(costs), {.memory = ..., .as_listed = true});
//
// Sources are there from the start. Those that stay are states of the graph: their bytes are taken all the time, unless a
// tier holds them. docs/formats.md has the files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/cost.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

struct CostGraph {
  Graph graph;                        // of the ops of ops/costed.cpp, each after those whose results it reads
  std::vector<KernelChoice> kernels;  // by op index
  int64_t batch = 0;                  // that its sizes and times are of; 0: the file does not say what scales with it
};

// What a file holds: a network, or costs only. Throws Error(corrupt_file) where it is neither, and Error(invalid_input) where
// it cannot be read.
enum class GraphFile : uint8_t { network, costs };
GraphFile kind_of_graph_file(const std::filesystem::path& file);
// Whether a model's name is "graph:FILE" of a file with costs only.
bool is_cost_graph(std::string_view model);

// For a batch of that size (0: the size that the file states). Throws Error(corrupt_file) with the place and what was
// expected, and Error(invalid_input) where the file does not say what scales.
CostGraph cost_graph_from_json(std::string_view json, int64_t batch = 0);
CostGraph read_cost_graph(const std::filesystem::path& file, int64_t batch = 0);  // errors name the file
std::string to_json(const CostGraph& costs);  // reads back to a graph for which the same plans are made

// The planning problem of a graph whose kernels are those of a plan, in the order of the plan: ops with the times and the
// workspaces that they have there. Throws Error(unsupported) where steps are of several ranks, whose messages are no ops.
CostGraph cost_graph_of(const Graph& graph, const Plan& plan);

// Whether a graph is of costs only: no device has kernels for its ops.
bool holds_only_costs(const Graph& graph);

// Its times, as costs.
CostTable costs_of(const CostGraph& costs);

// The most that is there at once where ops run in the order of the list and every value is kept from the op that makes it
// to its last reader, in its input's bytes where the op allows it. Sizes as the file has them, without what a plan rounds
// them up by.
Bytes keeping_everything(const CostGraph& costs);

}  // namespace plimsoll
