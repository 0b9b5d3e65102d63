// What `eval` and `predict` share: a file of weights, and what runs its network.
#pragma once

#include <cstdint>
#include <string>

#include "cli/commands.h"
#include "train/inference.h"

namespace plimsoll::cli {

struct TrainedFlags : CommonFlags {
  std::string checkpoint, data;
  int workers = 1;

  // `data_help`: what --data is for.
  void add_to(CLI::App& command, const std::string& data_help);
  // What was given, and else what the file says. `classes` is that of the file's last layer.
  InferenceRequest request(const CLI::App& command, const WeightsFile& file) const;
};

// Complains where the process took more than --memory, which was of it.
void tell_process(const InferenceRequest& request, const Inference& network);

// The name of a class where names are known, else its number.
std::string class_name(const std::vector<std::string>& names, int64_t label);

}  // namespace plimsoll::cli
