// A small graph of costs that has all that one can have.
#pragma once

#include <string>

namespace plimsoll::fuzz {

// A layer, its statistic and its update; an op in place and a view between.
inline std::string cost_graph_seed() {
  return R"({"format": "plimsoll cost graph", "version": 1, "name": "small", "batch": 4, "sources": [
 {"name": "x", "bytes": 6400, "role": "input", "scales": 1}, {"name": "w", "bytes": 3200, "next": "w.next"},
 {"name": "mean", "bytes": 64, "role": "statistic", "next": "mean.next"}], "ops": [
 {"name": "conv", "ms": 1.5, "workspace": 1280, "inputs": ["x", "w", "mean"], "scales": 1,
  "outputs": [{"name": "y", "bytes": 6400, "scales": 1}, {"name": "mean.next", "bytes": 64, "must_overwrite": "mean", "once": true}]},
 {"name": "relu", "ms": 0.25, "inputs": ["y"], "outputs": [{"name": "z", "bytes": 6400, "may_overwrite": ["y"], "scales": 1}]},
 {"name": "flat", "view": true, "inputs": ["z"], "outputs": [{"name": "v", "bytes": 6400, "scales": 1}]},
 {"name": "loss", "ms": 0.5, "inputs": ["v"], "outputs": [{"name": "l", "bytes": 4}, {"name": "dv", "bytes": 6400, "role": "gradient", "scales": 1}]},
 {"name": "relu/backward", "phase": "backward", "forward": "relu", "ms": 0.25, "inputs": ["dv", "z"],
  "outputs": [{"name": "dy", "bytes": 6400, "may_overwrite": ["dv"], "scales": 1}]},
 {"name": "conv/backward", "phase": "backward", "forward": "conv", "kind": "conv", "ms": 2, "inputs": ["x", "dy"],
  "outputs": [{"name": "dw", "bytes": 3200}]},
 {"name": "update", "phase": "update", "again": false, "ms": 0.125, "inputs": ["w", "dw"],
  "outputs": [{"name": "w.next", "bytes": 3200, "role": "parameter", "must_overwrite": "w"}]}], "keep": ["l"]})";
}

}  // namespace plimsoll::fuzz
