#include "train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr uint32_t kSamplingSalt = 0x5A3B1E;

// As double, with what is no number below all others.
std::vector<double> comparable(std::span<const float> scores) {
  std::vector<double> result(scores.size());
  std::transform(scores.begin(), scores.end(), result.begin(),
                 [](float score) { return std::isnan(score) ? -INFINITY : static_cast<double>(score); });
  return result;
}

}  // namespace

int32_t sample_token(std::span<const float> scores, const SamplingOptions& options, int64_t draw) {
  const std::vector<double> score = comparable(scores);
  const auto best = std::max_element(score.begin(), score.end());
  if (options.temperature == 0 || !std::isfinite(*best)) return static_cast<int32_t>(best - score.begin());
  // The likeliest first, and of equals the first token: so top_k cuts them the same way everywhere.
  std::vector<size_t> order(score.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (options.top_k > 0 && options.top_k < std::ssize(order)) {
    const auto kept = order.begin() + options.top_k;
    std::partial_sort(order.begin(), kept, order.end(),
                      [&](size_t a, size_t b) { return std::pair(-score[a], a) < std::pair(-score[b], b); });
    order.erase(kept, order.end());
  }
  std::vector<double> sum(order.size());
  double total = 0;
  for (size_t i = 0; i < order.size(); ++i) sum[i] = total += std::exp((score[order[i]] - *best) / options.temperature);
  const RandomStream random{.seed = options.seed, .step = static_cast<uint64_t>(draw), .salt = kSamplingSalt};
  const auto at = std::upper_bound(sum.begin(), sum.end(), random.uniform(0) * total);
  return static_cast<int32_t>(order[std::min<size_t>(static_cast<size_t>(at - sum.begin()), order.size() - 1)]);
}

std::vector<int32_t> sample_text(Inference& network, std::span<const int32_t> prompt, int64_t window,
                                 const SamplingOptions& options, const std::function<bool(int32_t)>& told) {
  std::vector<int32_t> text(prompt.begin(), prompt.end());
  std::vector<int32_t> seen(static_cast<size_t>(window));
  for (int64_t i = 0; i < options.tokens; ++i) {
    const int64_t used = std::min(window, std::ssize(text));
    std::copy(text.end() - used, text.end(), seen.begin());
    std::fill(seen.begin() + used, seen.end(), 0);  // a causal network looks at nothing behind the last
    const std::span<const float> scores = network.scores_after(seen, used - 1);
    if (std::none_of(scores.begin(), scores.end(), [](float score) { return std::isfinite(score); })) {
      throw Error(ErrorCode::invalid_input,
                  "the network's scores of the next token are not numbers; weights of a training that diverged give "
                  "such");
    }
    text.push_back(sample_token(scores, options, i));
    if (!told(text.back())) break;
  }
  return text;
}

}  // namespace plimsoll
