// Weights that somebody has trained: a safetensors file with the names of ours, of torchvision's or of timm's networks.
//
//   WeightsFile file("resnet50.safetensors");
//   WeightsMatch match = match_weights(file, network, /*new_head=*/true);   // before anything is planned
//   take_weights(file, match, step);                                       // converted to f32, a piece at a time
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "plimsoll/autodiff.h"
#include "plimsoll/training_step.h"
#include "train/safetensors.h"

namespace plimsoll {

class WeightsFile {
 public:
  // Throws Error(invalid_input) when it cannot be read, Error(corrupt_file) with the place and what was expected.
  explicit WeightsFile(const std::filesystem::path& path);

  std::string name() const { return file_.path().string(); }
  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  bool is_checkpoint() const;  // of Plimsoll, with a training state
  // Elements of a tensor from number `first` on, as f32; from F32, F64, F16 or BF16.
  void read(size_t entry, int64_t first, std::span<float> into) const;

 private:
  InputFile file_;
  SafetensorsHeader header_;
};

bool is_floating(std::string_view safetensors_dtype);

// Which tensor of the file each parameter and statistic of a network is taken from.
struct WeightsMatch {
  std::vector<std::pair<std::string, size_t>> taken;  // name in the network, entry of the file
  std::vector<std::string> missing;                   // of the network: the file has them not
  std::vector<std::string> new_head;                  // of the network: the file's have another number of classes
  std::vector<std::string> left_over;                 // of the file: the network has them not
};

// `new_head`: the last layer may have another shape than in the file, and is not taken then. Throws
// Error(invalid_input) where any other tensor has another shape, or none has the name of one of the network's.
WeightsMatch match_weights(const WeightsFile& file, const Network& network, bool new_head);
// "taken 267 of 269 tensors; not in the file, so they start anew: fc.bias, fc.weight; left over: ..."
std::string to_text(const WeightsMatch& match);

// How many classes the file's last layer tells apart, as `network` calls that layer; 0 where it has none.
int64_t classes_of(const WeightsFile& file, const Network& network);

void take_weights(const WeightsFile& file, const WeightsMatch& match, TrainingStep& step);

// The name in our network `model` of a tensor that is called `name` in another program's file; the same name where it
// is unknown. `head`: what our last layer is called.
std::string our_name(std::string_view model, std::string_view name, std::string_view head);

}  // namespace plimsoll
