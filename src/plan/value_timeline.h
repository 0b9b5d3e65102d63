// A training step as a planner sees it: values instead of tensors (a tensor and its views are one value, the same
// bytes), steps in the order of the route, and for each value the steps that use it.
//
//   value y:  written        read          read                        read      the end
//             step 3         step 4        step 9                      step 40
//             |--- gap 0 ----|--- gap 1 ---|----------- gap 2 ---------|--- gap 3 ...
//
// Between two uses there is a gap, and for each gap a policy decides (schedule.h): keep the value, or let its bytes go.
// The last gap, after the last use, matters when the value is wanted once more to rebuild another.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/by_id.h"
#include "plan/policy.h"
#include "plimsoll/graph.h"

namespace plimsoll {

struct TimelineValue {
  TensorId tensor;                // the first of those that share the bytes
  int64_t bytes = 0;              // what it takes in the arena: a multiple of kStayAlignment
  int64_t copied_bytes = 0;       // what a copy of it moves
  int32_t producer = -1;          // the step that writes it; -1: it comes from outside
  std::span<const int32_t> uses;  // the steps that read it or view it, in order
  bool at_end = false;     // must be in the arena when the step ends: an output of the graph, the new value of a state
  bool is_output = false;  // of the graph
  int32_t state = -1;      // the state that this is a value of, an index into graph.states
  int32_t before = -1;     // a state's new value: the value that it replaces; -1 for all others
  bool recomputable = false;  // its producer can run a second time
  int32_t first_gap = 0;      // gaps [first_gap, first_gap + uses.size()] are this value's
  int32_t gap_count() const { return static_cast<int32_t>(uses.size()) + 1; }
};

struct TimelineInPlace {
  int32_t input, output;  // values
  bool required;
};

struct TimelineStep {
  OpId op;
  std::span<const int32_t> inputs;                               // values, each once
  std::span<const int32_t> latest_first;                         // the inputs, the last produced first
  std::span<const int32_t> outputs;                              // values, views left out
  std::span<const int32_t> recompute_inputs, recompute_outputs;  // when it runs again: without running statistics
  std::span<const TimelineInPlace>
      in_place;  // pairs of one size and layout where the op allows it for every mention of the input
  std::span<const int32_t>
      over_views;  // outputs that may begin in bytes which are read through a view: liveness does it,
                   // a schedule does not
  bool view = false;
  bool collective = false;  // all ranks run it together
  double ms = 0;
  bool estimated = false;             // the time
  std::optional<double> together_ms;  // of an update that is one launch with others (together.h), where that is known
  int64_t workspace = 0;
};
// Whether the output may begin in the bytes of an input in some plan, by whatever policy: it then adds none at this step.
bool may_take_a_place(const TimelineStep& step, int32_t output);

// What the lists of values and steps lie in, side by side: a schedule looks at all of them, and is made often.
struct TimelineLists {
  std::vector<int32_t> numbers;
  std::vector<TimelineInPlace> in_place;
};

struct ValueTimeline {
  std::shared_ptr<const TimelineLists> lists;  // shared by copies
  std::vector<TimelineValue> values;
  std::vector<TimelineStep> steps;  // in the order of the route
  ById<TensorId, int32_t> value_of;
  ById<OpId, int32_t> step_of;
  int32_t gap_total = 0;
  std::vector<int32_t> value_of_gap;  // by gap
  double compute_ms = 0;              // all steps once
  double alone_ms = 0;                // the same, by what each kernel takes alone
};

ValueTimeline make_timeline(const PolicyInput& input);

}  // namespace plimsoll
