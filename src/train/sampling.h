// A language model that goes on with a text, token after token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "train/inference.h"

namespace plimsoll {

struct SamplingOptions {
  int64_t tokens = 200;    // that are added
  double temperature = 1;  // by which scores are divided; 0: always the likeliest token
  int64_t top_k = 0;       // only among so many likeliest tokens; 0: among all
  uint64_t seed = 0;
};

// A token drawn by its probability; number `draw` of those of a seed. What is no number is never drawn.
int32_t sample_token(std::span<const float> scores, const SamplingOptions& options, int64_t draw);

// The prompt and what follows. Of a text that is longer than the network's window it sees the end. `told` is told of every
// token that is added, and says false to end.
std::vector<int32_t> sample_text(Inference& network, std::span<const int32_t> prompt, int64_t window,
                                 const SamplingOptions& options, const std::function<bool(int32_t)>& told);

}  // namespace plimsoll
