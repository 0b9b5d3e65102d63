#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cores/strategies.h"
#include "plimsoll/error.h"

namespace plimsoll {

Strategies strategies_named(std::string_view list) {
  Strategies found{.each_op = false, .each_type = false, .co_run = false, .smt = false};
  bool* const by_number[] = {&found.each_op, &found.each_type, &found.co_run, &found.smt};
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view name = list.substr(begin, end - begin);
    if (name.size() != 1 || name[0] < '1' || name[0] > '4') {
      throw Error(
          ErrorCode::invalid_input,
          fmt::format(
              "'{}' is no strategy; there are 1 (threads of each op), 2 (of each op type), 3 (ops side by side) and "
              "4 (small ops on second hardware threads), as in 1,2,3",
              name));
    }
    *by_number[name[0] - '1'] = true;
    begin = end + 1;
  }
  return found;
}

std::string to_string(const Strategies& strategies) {
  std::string text;
  const bool used[] = {strategies.each_op, strategies.each_type, strategies.co_run, strategies.smt};
  for (size_t i = 0; i < std::size(used); ++i) {
    if (used[i]) text += fmt::format("{}{}", text.empty() ? "" : ",", i + 1);
  }
  return text;
}

std::vector<int> fastest_threads(std::span<const CoTask> tasks) {
  std::vector<int> threads;
  threads.reserve(tasks.size());
  for (const CoTask& task : tasks) threads.push_back(task.curve.best().threads);
  return threads;
}

std::vector<int> threads_by_type(std::span<const CoTask> tasks) {
  std::map<int32_t, size_t> largest;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const auto [it, first] = largest.try_emplace(tasks[i].type, i);
    if (!first && tasks[i].curve.best_ms() > tasks[it->second].curve.best_ms()) it->second = i;
  }
  std::vector<int> threads;
  threads.reserve(tasks.size());
  for (const CoTask& task : tasks) threads.push_back(tasks[largest.at(task.type)].curve.best().threads);
  return threads;
}

std::vector<Candidate> fastest_candidates(const ThreadCurve& curve, int most_threads, int count) {
  std::vector<Candidate> all;
  for (int threads = 1; threads <= most_threads; ++threads) all.push_back({threads, curve.time_ms(threads)});
  const auto kept = std::min<size_t>(all.size(), std::max(count, 1));
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(kept), all.end(),
                    [](const Candidate& a, const Candidate& b) {
                      return a.time_ms != b.time_ms ? a.time_ms < b.time_ms : a.threads < b.threads;
                    });
  all.resize(kept);
  return all;
}

std::optional<Candidate> choose_co_running(std::span<const Candidate> candidates, int idle_cores, double remaining_ms,
                                           std::optional<Candidate> chosen, int deviation) {
  auto fits = [&](const Candidate& c) { return c.threads <= idle_cores && c.time_ms <= remaining_ms; };
  std::optional<Candidate> fewest;
  for (const Candidate& candidate : candidates) {
    if (fits(candidate) && (!fewest || candidate.threads < fewest->threads)) fewest = candidate;
  }
  if (!fewest || !chosen || std::abs(fewest->threads - chosen->threads) <= deviation) return fewest;
  return fits(*chosen) ? chosen : std::nullopt;
}

std::optional<size_t> smallest_ready(std::span<const CoTask> tasks, std::span<const int32_t> ready) {
  if (ready.empty()) return std::nullopt;
  auto serial_ms = [&](int32_t task) { return tasks[task].curve.time_ms(1); };
  return std::min_element(ready.begin(), ready.end(),
                          [&](int32_t a, int32_t b) { return serial_ms(a) < serial_ms(b); }) -
         ready.begin();
}

void Interference::record(int32_t a, int32_t b, double predicted_ms, double actual_ms) {
  if (actual_ms > predicted_ms * (1 + tolerance_)) pairs_.insert(std::minmax(a, b));
}

}  // namespace plimsoll
