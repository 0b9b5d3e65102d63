#include "execute/copy_engines.h"

#include <algorithm>
#include <map>

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
    auto move = [&](int32_t i) -> const Move& { return plan.moves[i]; };
    std::stable_sort(moves.begin(), moves.end(), [&](int32_t a, int32_t b) { return move(a).after < move(b).after; });
    for (size_t k = 0; k < moves.size(); ++k) {
      if (is_out(move(moves[k]))) continue;
      last[moves[k]] = k + 1 == moves.size() || is_out(move(moves[k + 1]));
    }
  }
  return last;
}

}  // namespace

CopyEngines::CopyEngines(ReadyPlan& ready, std::function<void(int32_t)> made) : tickets_(ready.plan.moves.size()) {
  const Plan& plan = ready.plan;
  const bool check_memory = ready.options.check_memory;
  // Which copy in is the last of a slot is known where they run in order.
  const std::vector<bool> last =
      check_memory && !made ? last_readers(plan) : std::vector<bool>(plan.moves.size(), false);
  auto describe = [&graph = ready.graph, &plan](int32_t move) { return describe_copy(graph, plan, move); };
  for (const CopyRoute& route : ready.boundaries.routes) {
    Tier& tier = *ready.tiers[route.tier];
    std::vector<Copy> copies;
    for (const int32_t i : route.moves) {
      tickets_[i] = {static_cast<int32_t>(engines_.size()), static_cast<int32_t>(copies.size())};
      const Move& move = plan.moves[i];
      const Region& region = ready.bindings.copies[i];
      copies.push_back({.slot = &tier.slot(move.slot, region.bytes),
                        .at = region.at,
                        .out = is_out(move),
                        .move = i,
                        .record = ready.copy_records.empty() ? nullptr : &ready.copy_records[i],
                        .fill = check_memory && !is_out(move),
                        .retire = last[i]});
    }
    const bool beside = made || plan.tiers[route.tier].tier.beside_compute();
    const int together = beside ? 0 : std::max(ready.device.info().threads, 1);
    engines_.push_back(std::make_unique<CopyEngine>(tier, std::move(copies), describe, made, together));
  }
}

void CopyEngines::begin(Clock::time_point origin) {
  for (auto& engine : engines_) engine->begin_round(origin);
}

void CopyEngines::wait(const CopyRange& range) {
  CopyEngine& engine = *engines_[range.route];
  engine.wait(range.end);
  if (const std::exception_ptr failure = engine.failure()) {
    rest();
    std::rethrow_exception(failure);
  }
}

void CopyEngines::submit(int32_t move) {
  const Ticket& ticket = tickets_[move];
  engines_[ticket.engine]->submit(ticket.number);
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
