// WR and the desirable set. The workspace of a configuration is that of its largest part, so it is one of the
// candidates's: kernels come in by workspace, least first, and the fastest division of the batch is kept up to date.
// That is the paper's DP T*(n) = min(t(n), min over n' of T*(n') + T*(n - n')), with one pass over n for each kernel
// that comes in rather than one over all pairs for each limit.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/names.h"
#include "plimsoll/error.h"
#include "plimsoll/kernels.h"

namespace plimsoll {
namespace {

// What is compared: time, then the number of parts.
struct Score {
  double ms = std::numeric_limits<double>::infinity();
  int64_t parts = 0;
  friend bool operator<(const Score& a, const Score& b) { return a.ms < b.ms || (a.ms == b.ms && a.parts < b.parts); }
};

// A kernel that may now be used, as the whole or as a part, when a configuration may have so much workspace.
struct Entry {
  int64_t workspace = 0;
  const MicroKernel* kernel = nullptr;
  bool as_part = false;
};

void check(const MicroBatchKernels& candidates, int64_t batch, const DivisionCost& division) {
  if (batch < 1) throw Error(ErrorCode::invalid_input, fmt::format("a batch of {} cannot be divided", batch));
  if (!(division.ms_a_part >= 0) || division.workspace.count < 0) {
    throw Error(ErrorCode::invalid_input, "dividing a batch cannot cost less than nothing");
  }
  for (const auto& [size, kernels] : candidates) {
    for (const MicroKernel& kernel : kernels) {
      if (kernel.batch == size && size >= 1 && kernel.time_ms >= 0 && std::isfinite(kernel.time_ms) &&
          kernel.workspace.count >= 0) {
        continue;
      }
      throw Error(ErrorCode::invalid_input,
                  fmt::format("candidates entry '{}' at micro-batch {}: batch {}, {} ms and {} bytes make no sense",
                              kernel.kernel, size, kernel.batch, kernel.time_ms, kernel.workspace.count));
    }
  }
}

// Least workspace first. Of the kernels of one micro-batch, those that are neither faster nor smaller than another are
// left out.
std::vector<Entry> list_entries(const MicroBatchKernels& candidates, int64_t batch, Bytes limit,
                                const DivisionCost& division) {
  std::vector<Entry> entries;
  std::vector<const MicroKernel*> kernels;
  for (const auto& [size, all] : candidates) {
    if (size > batch) break;
    kernels.clear();
    for (const MicroKernel& kernel : all) kernels.push_back(&kernel);
    std::stable_sort(kernels.begin(), kernels.end(), [](const MicroKernel* a, const MicroKernel* b) {
      return a->workspace != b->workspace ? a->workspace < b->workspace : a->time_ms < b->time_ms;
    });
    double fastest = std::numeric_limits<double>::infinity();
    for (const MicroKernel* kernel : kernels) {
      if (kernel->time_ms >= fastest) continue;
      fastest = kernel->time_ms;
      const bool whole = size == batch;
      const Bytes extra = whole ? Bytes{} : division.workspace;
      if (kernel->workspace > limit - extra) break;
      entries.push_back({(kernel->workspace + extra).count, kernel, !whole});
    }
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.workspace < b.workspace; });
  return entries;
}

// The fastest ways to cover every number of samples with the kernels that came in so far, each as often as wanted.
class Coverage {
 public:
  Coverage(int64_t batch, double ms_a_part) : batch_(batch), ms_a_part_(ms_a_part), scores_(batch + 1) {
    scores_[0] = {0, 0};
    last_.resize(scores_.size(), nullptr);
  }

  void add(const Entry& entry) {
    const MicroKernel& kernel = *entry.kernel;
    if (!entry.as_part) {
      if (Score{kernel.time_ms, 1} < whole_score_) whole_score_ = {kernel.time_ms, 1}, whole_ = &kernel;
      return;
    }
    const double ms = kernel.time_ms + ms_a_part_;
    const size_t step = kernel.batch;
    for (size_t n = step; n < scores_.size(); ++n) {
      const Score with{scores_[n - step].ms + ms, scores_[n - step].parts + 1};
      if (with < scores_[n]) scores_[n] = with, last_[n] = &kernel;
    }
  }

  // Infinite where nothing covers the batch.
  Score best() const { return std::min(whole_score_, divided()); }

  Configuration configuration() const {
    Configuration made;
    if (!(divided() < whole_score_)) {
      made.parts = {*whole_};
    } else {
      for (int64_t left = batch_; left > 0; left -= made.parts.back().batch) made.parts.push_back(*last_[left]);
      std::stable_sort(made.parts.begin(), made.parts.end(), [](const MicroKernel& a, const MicroKernel& b) {
        return a.batch != b.batch ? a.batch > b.batch : a.kernel < b.kernel;
      });
    }
    return made;
  }

 private:
  Score divided() const { return {scores_.back().ms - ms_a_part_, scores_.back().parts}; }

  int64_t batch_;
  double ms_a_part_;
  Score whole_score_;
  const MicroKernel* whole_ = nullptr;
  std::vector<Score> scores_;             // by samples covered
  std::vector<const MicroKernel*> last_;  // of the best cover of so many: one of its parts
};

void add_up(Configuration& made, const DivisionCost& division) {
  made.time_ms = 0;
  for (const MicroKernel& part : made.parts) {
    made.time_ms += part.time_ms;
    made.workspace = std::max(made.workspace, part.workspace);
  }
  if (!made.is_divided()) return;
  made.time_ms += division.ms_a_part * static_cast<double>(made.parts.size() - 1);
  made.workspace += division.workspace;
}

}  // namespace

std::optional<Configuration> fastest_within(const MicroBatchKernels& candidates, int64_t batch, Bytes limit,
                                            const DivisionCost& division) {
  check(candidates, batch, division);
  Coverage coverage(batch, division.ms_a_part);
  for (const Entry& entry : list_entries(candidates, batch, limit, division)) coverage.add(entry);
  if (std::isinf(coverage.best().ms)) return std::nullopt;
  Configuration made = coverage.configuration();
  add_up(made, division);
  return made;
}

std::vector<Configuration> pareto_front(const MicroBatchKernels& candidates, int64_t batch,
                                        const DivisionCost& division) {
  check(candidates, batch, division);
  const std::vector<Entry> entries =
      list_entries(candidates, batch, Bytes{std::numeric_limits<int64_t>::max()}, division);
  Coverage coverage(batch, division.ms_a_part);
  std::vector<Configuration> front;
  double reached = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < entries.size(); ++i) {
    coverage.add(entries[i]);
    if (i + 1 < entries.size() && entries[i + 1].workspace == entries[i].workspace) continue;
    if (!(coverage.best().ms < reached)) continue;
    reached = coverage.best().ms;
    Configuration made = coverage.configuration();
    add_up(made, division);
    if (front.empty() || made.time_ms < front.back().time_ms) front.push_back(std::move(made));  // sums round
  }
  return front;
}

}  // namespace plimsoll
