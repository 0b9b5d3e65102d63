// Networks as files: what another program exported, to be trained and planned for like a network of the zoo. The format is
// "plimsoll network" (docs/formats.md): the forward pass as ops, with sizes that may depend on the batch, and no weights.
//
//   Network network = build_model("graph:resnet.json", {.batch = 16});
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/models.h"

namespace plimsoll {

// The forward pass for a batch of that size (0: the size that the file states): that of a training step, or of an evaluation.
// Throws Error(corrupt_file) with the place and what was expected, and Error(invalid_input) where the file has no evaluation,
// or is for batches of one size only, and `batch` is another.
Network network_from_json(std::string_view json, int64_t batch = 0, bool training = true);

// The name under which build_model, plans and checkpoints know the file's network: "graph:FILE".
std::string graph_name(const std::filesystem::path& file);

// What a network's file says of itself.
struct NetworkFileInfo {
  std::string name;
  int64_t batch = 0;       // that it was exported with
  bool any_batch = false;  // whether other batches may be asked for
  bool has_evaluation = false;
  // Constants whose values are not in the file, as tables of positions: they come with the weights.
  std::vector<std::string> without_values;
  // How it is fed where a batch is samples and labels: samples of rank 4 are channels x height x width; others have
  // their elements as channels. `classes`: of the scores; 0 where it does not classify.
  ModelInput input;
};
NetworkFileInfo read_network_info(const std::filesystem::path& file);
// The file of a model's name; nothing where the model is one of the zoo.
std::optional<std::string> network_file_of(std::string_view model);
// Whether build_model has an evaluation of it: of the zoo's networks always.
bool has_evaluation(std::string_view model);

}  // namespace plimsoll
