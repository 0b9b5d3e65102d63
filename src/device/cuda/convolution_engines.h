// Engines of cuDNN's graph API. One is known by its number in the operation graph, and configured by choices at its knobs;
// both have names in cuDNN's numbers, written as cuDNN's tools write them:
//
//   eng38_k2=1_k13=0          engine 38 of the convolution alone, choice 1 at the knob of type 2 and 0 at that of type 13
//   fused_eng44_k2=4          engine 44 of convolution, bias and (where the op has one) ReLU as one operation graph
//   winograd_eng12            what the engine notes of itself: so "fft_" and "nondeterministic_"
//
// So a configuration is made again from its name alone. The numbers are those of one version of cuDNN; what the name says
// of the engine is compared with what it notes of itself when it is made again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace plimsoll::cuda {

struct EngineConfiguration {
  int64_t number = 0;
  std::vector<std::pair<int64_t, int64_t>> knobs;  // type, choice; those that are not there are as the engine has them
  bool fused = false;
  // What the engine notes of itself.
  bool deterministic = true, winograd = false, fft = false;
  bool tensor_cores = false;    // in f32: inputs are rounded to TF32; the name of the kernel says it
  bool less_than_tf32 = false;  // inputs or sums have fewer bits
  bool compiles = false;        // a kernel, whenever it is made: half a second
};

std::string name_of(const EngineConfiguration& configuration);
// Of what is in the name; nothing where it is no such name.
std::optional<EngineConfiguration> parse_engine(std::string_view name);

}  // namespace plimsoll::cuda
