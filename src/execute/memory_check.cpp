#include "execute/memory_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace plimsoll {
namespace {

using Range = MemoryCheck::Range;
using Ranges = std::vector<Range>;

// In order, and apart from each other.
Ranges united(Ranges ranges) {
  std::sort(ranges.begin(), ranges.end());
  Ranges result;
  for (const Range& range : ranges) {
    if (range.first >= range.second) continue;
    if (!result.empty() && range.first <= result.back().second) {
      result.back().second = std::max(result.back().second, range.second);
    } else {
      result.push_back(range);
    }
  }
  return result;
}

// The bytes of `from` that are not in `what`; both united.
Ranges without(const Ranges& from, const Ranges& what) {
  Ranges result;
  for (const auto& [begin, end] : from) {
    int64_t at = begin;
    for (const auto& [gone, back] : what) {
      if (back <= at || gone >= end) continue;
      if (at < gone) result.emplace_back(at, gone);
      at = std::max(at, back);
    }
    if (at < end) result.emplace_back(at, end);
  }
  return result;
}

Range bytes_of(const Stay& stay) { return {stay.offset.count, (stay.offset + stay.bytes).count}; }

template <class Which>
Ranges stays_where(const Plan& plan, const Which& which) {
  Ranges ranges;
  for (const Stay& stay : plan.stays) {
    if (which(stay)) ranges.push_back(bytes_of(stay));
  }
  return united(std::move(ranges));
}

// The first of these words all of whose bits are set, in bytes from the beginning; -1: there is none.
template <class Word>
int64_t find_filled(const std::byte* words, int64_t bytes) {
  constexpr int64_t kSize = sizeof(Word), kAtOnce = 256;
  const auto is_filled = [&](int64_t i) {
    Word word;
    std::memcpy(&word, words + i * kSize, kSize);
    return word == std::numeric_limits<Word>::max();
  };
  const int64_t count = bytes / kSize;
  int64_t i = 0;
  for (bool any = false; i + kAtOnce <= count; i += kAtOnce) {
    for (int64_t k = 0; k < kAtOnce; ++k) any |= is_filled(i + k);
    if (any) break;
  }
  for (; i < count; ++i) {
    if (is_filled(i)) return i * kSize;
  }
  return -1;
}

}  // namespace

MemoryCheck::MemoryCheck(const Graph& graph, const Plan& plan, const Bindings& bindings)
    : graph_(graph), plan_(plan), bindings_(bindings), dying_(plan.steps.size()) {
  const StepIndex steps = static_cast<StepIndex>(plan.steps.size());
  for (StepIndex s = 0; s + 1 < steps; ++s) {
    dying_[s] = without(stays_where(plan, [&](const Stay& stay) { return stay.last == s; }),
                        stays_where(plan, [&](const Stay& stay) { return stay.first <= s && stay.last > s; }));
  }
  // Bytes that no stay covers may be another plan's: an evaluation runs in the training's arena.
  const Ranges covered = stays_where(plan, [](const Stay&) { return true; });
  Ranges found;
  for (const Region& region : bindings.found) found.push_back(range(region));
  free_at_start_ = without(covered, united(std::move(found)));
  free_at_end_ = without(covered, stays_where(plan, [&](const Stay& stay) { return stay.last + 1 >= steps; }));
}

Range MemoryCheck::range(const Region& region) const {
  if (region.at == nullptr) return {0, 0};
  return {region.at - bindings_.arena, region.end() - bindings_.arena};
}

void MemoryCheck::fill(std::span<const Range> ranges) const {
  for (const auto& [begin, end] : ranges) std::memset(bindings_.arena + begin, kPoison, end - begin);
}

void MemoryCheck::begin() {
  fill(free_at_start_);
  arriving_.clear();
}

void MemoryCheck::remember() { copy_.assign(bindings_.arena, bindings_.arena + plan_.arena.count); }

void MemoryCheck::fill_dying(StepIndex step) {
  for (const Range& bytes : dying_[step]) fill_dying(bytes);
}

void MemoryCheck::fill_dying(const Range& bytes) {
  fill({&bytes, 1});
  std::memset(copy_.data() + bytes.first, kPoison, bytes.second - bytes.first);
}

void MemoryCheck::arriving(int32_t move) { arriving_.push_back(range(bindings_.copies[move])); }

void MemoryCheck::arrived(int32_t move) {
  const Range bytes = range(bindings_.copies[move]);
  std::erase(arriving_, bytes);
  std::copy(bindings_.arena + bytes.first, bindings_.arena + bytes.second, copy_.data() + bytes.first);
}

void MemoryCheck::sending(StepIndex step) {
  for (const Region& output : bindings_.steps[step].outputs) arriving_.push_back(range(output));
}

void MemoryCheck::received(StepIndex step) {
  for (const Region& output : bindings_.steps[step].outputs) {
    const Range bytes = range(output);
    std::erase(arriving_, bytes);
    std::copy(bindings_.arena + bytes.first, bindings_.arena + bytes.second, copy_.data() + bytes.first);
  }
}

void MemoryCheck::expect_inputs(StepIndex step) const {
  for (const Region& input : bindings_.steps[step].inputs) {
    const int64_t at = find_poison(input);
    if (at < 0) continue;
    throw Error(ErrorCode::internal,
                fmt::format("{} reads '{}', but bytes [{}, {}) of the arena, which are its, hold no value: they are "
                            "filled as free bytes are, and nobody wrote them since",
                            who(step), graph_.tensor(input.tensor).name, at, at + 4));
  }
}

void MemoryCheck::expect_outputs(StepIndex step) const {
  for (const Region& output : bindings_.steps[step].outputs) {
    const int64_t at = find_poison(output);
    if (at < 0) continue;
    throw Error(
        ErrorCode::internal,
        fmt::format(
            "{} leaves what lies in free bytes in bytes [{}, {}) of the arena, which are those of '{}': it reads "
            "bytes that it was not given, or does not write all of its output",
            who(step), at, at + 4, graph_.tensor(output.tensor).name));
  }
}

void MemoryCheck::expect_others_unchanged(StepIndex step) {
  const KernelBinding& binding = bindings_.steps[step];
  Ranges own = arriving_;
  for (const Region& output : binding.outputs) own.push_back(range(output));
  own.push_back(range(binding.workspace));
  for (const auto& [begin, end] : without({{0, plan_.arena.count}}, united(own))) {
    if (std::memcmp(bindings_.arena + begin, copy_.data() + begin, end - begin) != 0)
      tell_stray_write(begin, end, step);
  }
  auto keep = [&](const Region& region) {
    if (region.at != nullptr) std::copy(region.at, region.end(), copy_.data() + range(region).first);
  };
  for (const Region& output : binding.outputs) keep(output);
  keep(binding.workspace);
}

void MemoryCheck::expect_free_at_end() const {
  for (const auto& [begin, end] : free_at_end_) {
    for (int64_t at = begin; at < end; ++at) {
      if (bindings_.arena[at] == std::byte{kPoison}) continue;
      StepIndex last = 0;  // that may use the byte
      std::string owner;
      for (const Stay& stay : plan_.stays) {
        if (bytes_of(stay).first > at || at >= bytes_of(stay).second || stay.last < last) continue;
        last = stay.last;
        owner = whose(at, stay.last);
      }
      throw Error(
          ErrorCode::internal,
          fmt::format("byte {} of the arena was written after the last step that may use it, {}, where it is {}", at,
                      who(last), owner));
    }
  }
}

void MemoryCheck::tell_stray_write(int64_t begin, int64_t end, StepIndex step) const {
  auto differs = [&](int64_t at) { return bindings_.arena[at] != copy_[at]; };
  int64_t first = begin;
  while (!differs(first)) ++first;
  int64_t last = first + 1;  // up to here bytes of one owner differ
  for (int64_t at = last; at < end && whose(at, step) == whose(first, step) && at < first + 4096; ++at) {
    if (differs(at)) last = at + 1;
  }
  throw Error(ErrorCode::internal,
              fmt::format("{} wrote bytes [{}, {}) of the arena, which are not its to write: they are {}", who(step),
                          first, last, whose(first, step)));
}

int64_t MemoryCheck::find_poison(const Region& region) const {
  if (region.at == nullptr || !region.tensor.valid()) return -1;
  const DType dtype = graph_.tensor(region.tensor).dtype;
  if (dtype != DType::f32 && dtype != DType::f64) return -1;  // of others every value is a number
  const int64_t at = dtype == DType::f32 ? find_filled<uint32_t>(region.at, region.bytes.count)
                                         : find_filled<uint64_t>(region.at, region.bytes.count);
  return at < 0 ? -1 : range(region).first + at;
}

std::string MemoryCheck::who(StepIndex step) const {
  const Step& s = plan_.steps[step];
  return fmt::format("step {} ('{}', kernel '{}')", step, graph_.op(s.op).name, s.kernel);
}

std::string MemoryCheck::whose(int64_t at, StepIndex step) const {
  for (const Stay& stay : plan_.stays) {
    if (stay.first > step || stay.last < step || at < bytes_of(stay).first || at >= bytes_of(stay).second) continue;
    if (stay.is_workspace()) return "the rest of its workspace";
    const Tensor& tensor = graph_.tensor(stay.tensor);
    if (at >= stay.offset.count + tensor.bytes().count) return fmt::format("beyond the end of '{}'", tensor.name);
    return fmt::format("those of '{}'", tensor.name);
  }
  return "free";
}

}  // namespace plimsoll
