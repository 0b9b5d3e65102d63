// The zoo: networks by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/autodiff.h"

namespace plimsoll {

// What the data gives; zero fields are the model's own default (AlexNet 227, ResNet 224, ...).
struct ModelInput {
  int64_t batch = 32;
  int64_t channels = 0, height = 0, width = 0;
  int64_t classes = 0;
  bool training = true;  // false: dropout passes, batch norm uses its running statistics, no state changes
};

// `name` may carry options: "resnet50", "resnet:6-32-788-6", "densenet:depth=40,growth=40". Throws Error(invalid_input)
// with the nearest known name, or with the option that is wrong, or when the input is too small for the network.
Network build_model(std::string_view name, const ModelInput& input);

struct ModelListing {
  std::string name;
  std::string description;
  std::string options;       // "depth, growth"
  ModelInput default_input;
};
std::vector<ModelListing> list_models();

// How many layers the network has as the papers count them: every CONV, POOL, ACT, BN, LRN, FC, DROPOUT, CONCAT, JOIN (add),
// FORK (a tensor with several forward readers) and SOFTMAX is one; views are none. AlexNet 23, resnet:6-32-788-6 9,167.
// SuperNeurons' 515 (Inception-v4) and 567 (ResNet-152) count the two DATA layers of its programs, one for training and one
// for testing, as well: here they are 513 and 565.
int64_t layer_count(const Network& network);

}  // namespace plimsoll
