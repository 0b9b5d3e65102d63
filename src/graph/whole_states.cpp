// States with the blocks of rows of split ones joined.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "plimsoll/graph.h"

namespace plimsoll {
namespace {

// The blocks of one whole, in the order of their rows.
void join(const Graph& graph, WholeState& state) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_input, fmt::format("the blocks of '{}' {}", state.name, what));
  };
  const auto at = [&](TensorId id) -> const Tensor& { return graph.tensor(id); };
  std::sort(state.parts.begin(), state.parts.end(),
            [&](TensorId a, TensorId b) { return at(a).block.first < at(b).block.first; });
  int64_t row = 0;
  for (TensorId id : state.parts) {
    const Tensor& part = at(id);
    if (whole_shape(part).empty()) fail("have no rows");
    Shape shape = whole_shape(part);
    shape[0] = state.shape[0];
    if (shape != state.shape || part.dtype != state.dtype || part.role != state.role ||
        part.block.rows != state.shape[0]) {
      fail(fmt::format("do not belong together: '{}'", part.name));
    }
    if (part.block.first != row) fail(fmt::format("leave no place to '{}': rows to {} are there", part.name, row));
    row += whole_shape(part)[0];
  }
  if (row != state.shape[0]) fail(fmt::format("have {} rows of {}", row, state.shape[0]));
}

}  // namespace

std::string block_name(const RowBlock& block, int64_t rows) {
  return fmt::format("{}[{}:{}]", block.whole, block.first, block.first + rows);
}

int64_t shard_elements(const Shape& whole, int64_t ranks) {
  const int64_t piece = (element_count(whole) + ranks - 1) / ranks;
  return (piece + kShardUnit - 1) / kShardUnit * kShardUnit;
}

std::string shard_name(const Shard& shard) { return fmt::format("{}[/{}]", shard.whole, shard.ranks); }

const std::string& whole_name(const Tensor& state) {
  if (state.block.is_block()) return state.block.whole;
  return state.shard.is_shard() ? state.shard.whole : state.name;
}

const Shape& whole_shape(const Tensor& state) { return state.shard.is_shard() ? state.shard.shape : state.shape; }

std::vector<WholeState> whole_states(const Graph& graph) {
  std::vector<WholeState> result;
  std::map<std::string, size_t, std::less<>> split;
  for (const State& state : graph.states) {
    const Tensor& t = graph.tensor(state.before);
    if (t.block.is_block()) {
      const auto [known, is_new] = split.emplace(t.block.whole, result.size());
      if (!is_new) {
        result[known->second].parts.push_back(state.before);
        continue;
      }
    }
    result.push_back({t.shard.is_shard() ? t.shard.whole : t.name, whole_shape(t), t.dtype, t.role, {state.before}});
    if (!t.block.is_block()) continue;
    result.back().name = t.block.whole;
    if (!result.back().shape.empty()) result.back().shape[0] = t.block.rows;
  }
  std::set<std::string_view> names;
  for (WholeState& state : result) {
    if (!names.insert(state.name).second) {
      throw Error(ErrorCode::invalid_input, fmt::format("there are two states '{}'", state.name));
    }
    if (graph.tensor(state.parts[0]).block.is_block()) join(graph, state);
  }
  return result;
}

}  // namespace plimsoll
