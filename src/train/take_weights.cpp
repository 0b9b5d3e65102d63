#include <algorithm>

#include "train/weights_file.h"

namespace plimsoll {
namespace {

constexpr int64_t kElementsAtOnce = 1 << 18;

}  // namespace

void take_weights(const WeightsFile& file, const WeightsMatch& match, TrainingStep& step) {
  std::vector<float> piece;
  for (const auto& [name, entry] : match.taken) {
    const int64_t count = element_count(file.entries()[entry].shape);
    for (int64_t first = 0; first < count; first += kElementsAtOnce) {
      piece.resize(static_cast<size_t>(std::min(kElementsAtOnce, count - first)));
      file.read(entry, first, piece);
      step.set_state(name, {first * static_cast<int64_t>(sizeof(float))}, std::as_bytes(std::span<const float>(piece)));
    }
  }
}

}  // namespace plimsoll
