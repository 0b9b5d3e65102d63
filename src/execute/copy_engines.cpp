#include "execute/copy_engines.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace plimsoll {
namespace {

// Copies in after which nothing reads their slot before it is written again. Homes are read by the next training step.
std::vector<bool> last_readers(const Plan& plan) {
  std::map<std::pair<int, int64_t>, std::vector<int32_t>> by_slot;
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    by_slot[{plan.moves[i].tier, plan.moves[i].slot.count}].push_back(static_cast<int32_t>(i));
  }
  for (const Home& home : plan.homes) by_slot.erase({home.tier, home.slot.count});
  std::vector<bool> last(plan.moves.size(), false);
  for (auto& [slot, moves] : by_slot) {
    auto move = [&](int32_t i) -> const Move& { return plan.moves[static_cast<size_t>(i)]; };
    std::stable_sort(moves.begin(), moves.end(), [&](int32_t a, int32_t b) { return move(a).after < move(b).after; });
    for (size_t k = 0; k < moves.size(); ++k) {
      if (is_out(move(moves[k]))) continue;
      last[static_cast<size_t>(moves[k])] = k + 1 == moves.size() || is_out(move(moves[k + 1]));
    }
  }
  return last;
}

}  // namespace

const Stay& stay_of(const Graph& graph, const Plan& plan, const Move& move) {
  const StepIndex last = std::max<StepIndex>(static_cast<StepIndex>(plan.steps.size()) - 1, 0);
  const StepIndex at = is_out(move) ? std::max<StepIndex>(move.after, 0) : std::min(move.before, last);
  for (const Stay& stay : plan.stays) {
    if (stay.tensor == move.tensor && stay.first <= at && at <= stay.last) return stay;
  }
  throw Error(ErrorCode::internal,
              fmt::format("tensor '{}' is copied at step {} but not in the arena", graph.tensor(move.tensor).name, at));
}

CopyEngines::CopyEngines(const Graph& graph, const Plan& plan, std::span<const std::shared_ptr<Tier>> tiers,
                         std::byte* arena, std::span<StepRecord> records, bool check_memory, int threads,
                         std::function<void(int32_t)> made) {
  boundaries_.resize(plan.steps.size() + 1);
  places_.resize(plan.moves.size());
  // Which copy in is the last of a slot is known where they run in order.
  const std::vector<bool> last = check_memory && !made ? last_readers(plan) : std::vector<bool>(plan.moves.size(), false);

  // An engine takes its copies in the order in which they may start.
  std::map<std::pair<int, Move::Direction>, std::vector<int32_t>> queues;
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    queues[{plan.moves[i].tier, plan.moves[i].direction}].push_back(static_cast<int32_t>(i));
  }
  auto describe = [&graph, &plan](int32_t i) {
    const Move& move = plan.moves[static_cast<size_t>(i)];
    return fmt::format("copying '{}' ({}) {} the {} tier", graph.tensor(move.tensor).name,
                       to_string(graph.tensor(move.tensor).bytes()), is_out(move) ? "to" : "from",
                       plan.tiers[static_cast<size_t>(move.tier)].tier.name);
  };
  for (auto& [key, moves] : queues) {
    std::stable_sort(moves.begin(), moves.end(), [&](int32_t a, int32_t b) {
      return plan.moves[static_cast<size_t>(a)].after < plan.moves[static_cast<size_t>(b)].after;
    });
    const auto [tier_index, direction] = key;
    Tier& tier = *tiers[static_cast<size_t>(tier_index)];
    const int32_t engine = static_cast<int32_t>(engines_.size());
    std::vector<Copy> copies;
    std::map<StepIndex, int32_t> waits;
    for (size_t k = 0; k < moves.size(); ++k) {
      const int32_t i = moves[k];
      const Move& move = plan.moves[static_cast<size_t>(i)];
      const Stay& stay = stay_of(graph, plan, move);
      copies.push_back({.slot = &tier.slot(move.slot, graph.tensor(move.tensor).bytes()),
                        .at = arena + stay.offset.count,
                        .out = is_out(move),
                        .move = i,
                        .record = records.empty() ? nullptr : &records[static_cast<size_t>(i)],
                        .fill = check_memory && !is_out(move),
                        .retire = last[static_cast<size_t>(i)]});
      places_[static_cast<size_t>(i)] = {engine, static_cast<int32_t>(k)};
      const int32_t count = static_cast<int32_t>(k) + 1;
      Boundary& start = boundaries_[static_cast<size_t>(move.after + 1)];
      std::vector<Signal>& releases = is_out(move) ? start.out.releases : start.in.releases;
      if (releases.empty() || releases.back().engine != engine) releases.push_back({engine, count});
      releases.back().count = count;
      int32_t& wait = waits[move.before];
      wait = std::max(wait, count);
    }
    for (const auto& [step, count] : waits) {
      Boundary& end = boundaries_[static_cast<size_t>(step)];
      (direction == Move::Direction::out ? end.out : end.in).waits.push_back({engine, count});
    }
    const bool beside = made || plan.tiers[static_cast<size_t>(tier_index)].tier.beside_compute();
    engines_.push_back(std::make_unique<CopyEngine>(tier, std::move(copies), describe, made, beside ? 0 : std::max(threads, 1)));
  }
}

void CopyEngines::begin(CopyEngine::Clock::time_point origin) {
  for (auto& engine : engines_) engine->begin_round(origin);
}

void CopyEngines::signal(const Pass& pass) {
  for (const Signal& release : pass.releases) engines_[static_cast<size_t>(release.engine)]->release(release.count);
  for (const Signal& wait : pass.waits) {
    CopyEngine& engine = *engines_[static_cast<size_t>(wait.engine)];
    engine.wait(wait.count);
    if (const std::exception_ptr failure = engine.failure()) {
      rest();
      std::rethrow_exception(failure);
    }
  }
}

void CopyEngines::submit(int32_t move) {
  const Signal& place = places_[static_cast<size_t>(move)];
  engines_[static_cast<size_t>(place.engine)]->submit(place.count);
}

std::exception_ptr CopyEngines::failure() const {
  for (const auto& engine : engines_) {
    if (std::exception_ptr failure = engine->failure()) return failure;
  }
  return nullptr;
}

void CopyEngines::rest() {
  for (const auto& engine : engines_) engine->wait_for_released();
}

}  // namespace plimsoll
