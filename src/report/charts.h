// The pictures of a report, as inline SVG: pure functions of a plan. All share one width, so that steps stand below
// each other.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/execute.h"
#include "plimsoll/plan.h"

namespace plimsoll {

// What memory is for, coarser than a Role: one colour each, in the order in which they are stacked.
enum class MemoryKind : uint8_t {
  parameter,
  optimizer_state,
  statistic,
  in_out,
  next_batch,  // second buffers of inputs (Plan::feeding)
  activation,
  gradient,
  workspace
};
inline constexpr size_t kMemoryKinds = 8;
MemoryKind memory_kind(const Graph& graph, const Stay& stay);
std::string_view memory_kind_text(MemoryKind kind);  // "parameters"
char memory_kind_class(MemoryKind kind);             // the CSS class that colours it

// Live bytes of every step by kind. Bytes that several stays share, in place or as views, count once, for the kind of
// the largest stay there. The total is that of live_bytes.
struct StepMemory {
  std::array<int64_t, kMemoryKinds> by_kind{};
  int64_t total = 0;
};
std::vector<StepMemory> memory_by_step(const Graph& graph, const Plan& plan);

std::string memory_chart(const Graph& graph, const Plan& plan);  // step x bytes, stacked by kind
std::string memory_map(const Graph& graph, const Plan& plan);    // step x offset, one rectangle a stay or second buffer

// When the steps run, coloured by phase: predicted, and measured where there are records.
std::string timeline_chart(const Graph& graph, const Plan& plan, std::span<const StepRecord> records);

// For text and attribute values of HTML and SVG: no name can leave its place.
std::string escape_html(std::string_view text);
// At most about `most` bytes, by leaving out the middle. Not escaped.
std::string shortened(std::string_view text, size_t most = 80);

}  // namespace plimsoll
