// What a training begins with, besides its options: nothing, a checkpoint, or a saved plan; and what is refused before anything
// is measured.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "compile/plan_file.h"
#include "plimsoll/checkpoint.h"
#include "plimsoll/data.h"
#include "plimsoll/train.h"
#include "train/session.h"

namespace plimsoll {

struct Beginning {
  std::optional<Checkpoint> checkpoint;
  std::optional<SavedPlan> plan;
};

void check_names(const TrainOptions& options);

// Data and schedule against each other, before anything is measured for them.
void check_length(const TrainOptions& options, const DataInfo& data);

// A data set gives samples and their labels, and nothing else.
void check_fed_by_data(const Network& network);

// Constants of a network's file come with its weights.
void check_values_are_given(const TrainOptions& options);

// Also takes the seed of a checkpoint: of weights, data, order and dropout, so that the same run goes on.
Beginning begin(TrainOptions& options);

// `budget`: of the arena.
CompileOptions compile_options(const TrainOptions& options, Bytes budget, const Beginning& beginning,
                               const Session& session, const std::function<void(const std::string&)>& notice);

// Kernels that are repeated are not chosen within --workspace and its like; what differs from them is told, never
// silent.
std::string unkept_limits(const TrainOptions& options, const Program& program, std::string_view origin);

}  // namespace plimsoll
