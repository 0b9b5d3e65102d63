// A graph of costs only: what each op takes and needs, and nothing of what it computes. It is planned and never run. So
// planning problems come from elsewhere, and ours go there.
//
//   CostGraph graph = read_cost_graph("unet.json");
//   compile_graph(graph.graph, graph.kernels, device, costs_of(graph), {.memory = ...});
//
// Sources are there from the start. Those that stay are states of the graph: their bytes are taken all the time, unless a
// tier holds them. docs/formats.md has the files.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/cost.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

struct CostGraph {
  Graph graph;
  std::vector<KernelChoice> kernels;  // by op index: what the file says of its workspace
};

// Whether a model's name, "graph:FILE", is of a file that holds costs only. False where there is no such file.
bool is_cost_graph(std::string_view model);

// Throws Error(corrupt_file) with the place and what was expected.
CostGraph cost_graph_from_json(std::string_view json);
// The same of a file, which errors name. Throws Error(invalid_input) where it cannot be read.
CostGraph read_cost_graph(const std::filesystem::path& file);

// Its times, as costs.
CostTable costs_of(const CostGraph& graph);

// Every op once.
double all_ops_ms(const Graph& graph);
// The most that is there at once where ops run in the order of the list and every value is kept from the op that makes it
// to its last reader, in its input's bytes where the op allows it. Sizes as the file has them, without what a plan rounds
// them up by.
Bytes keeping_everything(const CostGraph& graph);

}  // namespace plimsoll
