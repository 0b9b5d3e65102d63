#include "execute/peak_meter.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace plimsoll {
namespace {

// Follows the values that lie in each byte through the accesses in their order.
class ValueFinder {
 public:
  struct Value {
    int64_t bytes = 0;
    std::vector<int32_t> users;
    bool from_start = false, to_end = false;
  };

  explicit ValueFinder(const std::byte* arena) : arena_(arena) {}

  // What lies there before the first access.
  void found(const Region& region) {
    for_each_gap(region, [&](int64_t begin, int64_t end) { add(begin, end, {}, true); });
  }

  void visit(int32_t node, const KernelBinding& binding) {
    for (const Region& input : binding.inputs) read(node, input);
    for (const Region& output : binding.outputs) write(node, output);
    write(node, binding.workspace);
  }

  void read(int32_t node, const Region& region) {
    for_each_gap(region, [&](int64_t begin, int64_t end) {  // the last training step has left it
      add(begin, end, {}, true);
      carried_.push_back({begin, end});
    });
    for_each_piece(region, [&](Value& value) { use(value, node); });
  }

  void write(int32_t node, const Region& region) {
    split(region);
    const auto [begin, end] = range(region);
    int64_t fresh = begin;  // up to here there are pieces that the node goes on using
    for (auto it = pieces_.lower_bound(begin); it != pieces_.end() && it->first < end;) {
      const int64_t at = it->first, next = it->second.end;
      if (uses(values_[it->second.value], node)) {
        add(fresh, at, {node}, false);
        fresh = next;
        ++it;
      } else {
        it = pieces_.erase(it);
      }
    }
    add(fresh, end, {node}, false);
  }

  // What is read from there after the last access.
  void left(const Region& region) {
    for_each_piece(region, [](Value& value) { value.to_end = true; });
  }

  std::vector<Value> finish() {
    for (const auto& [begin, end] : carried_) {
      split(begin);
      split(end);
      for (auto it = pieces_.lower_bound(begin); it != pieces_.end() && it->first < end; ++it) {
        values_[it->second.value].to_end = true;
      }
    }
    return std::move(values_);
  }

 private:
  struct Piece {
    int64_t end = 0;
    int32_t value = 0;  // each piece has one of its own
  };

  std::pair<int64_t, int64_t> range(const Region& region) const {
    if (region.at == nullptr) return {0, 0};
    const int64_t begin = region.at - arena_;
    return {begin, begin + align_up(region.bytes, kStayAlignment).count};
  }

  void add(int64_t begin, int64_t end, std::vector<int32_t> users, bool from_start) {
    if (begin >= end) return;
    pieces_[begin] = {end, static_cast<int32_t>(values_.size())};
    values_.push_back({end - begin, std::move(users), from_start, false});
  }

  static bool uses(const Value& value, int32_t node) { return !value.users.empty() && value.users.back() == node; }
  static void use(Value& value, int32_t node) {
    if (!uses(value, node)) value.users.push_back(node);
  }

  void split(const Region& region) {
    const auto [begin, end] = range(region);
    split(begin);
    split(end);
  }
  void split(int64_t at) {
    auto it = pieces_.upper_bound(at);
    if (it == pieces_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    Value tail = values_[it->second.value];
    tail.bytes = it->second.end - at;
    values_[it->second.value].bytes = at - it->first;
    pieces_[at] = {it->second.end, static_cast<int32_t>(values_.size())};
    it->second.end = at;
    values_.push_back(std::move(tail));
  }

  template <class Action>
  void for_each_piece(const Region& region, const Action& action) {
    split(region);
    const auto [begin, end] = range(region);
    for (auto it = pieces_.lower_bound(begin); it != pieces_.end() && it->first < end; ++it) {
      action(values_[it->second.value]);
    }
  }

  // Bytes of the region of which nothing is known.
  template <class Action>
  void for_each_gap(const Region& region, const Action& action) {
    split(region);
    const auto [begin, end] = range(region);
    for (int64_t at = begin; at < end;) {
      const auto it = pieces_.lower_bound(at);
      const int64_t next = it == pieces_.end() ? end : std::min(it->first, end);
      if (at < next) action(at, next);
      at = next < end ? it->second.end : end;
    }
  }

  const std::byte* const arena_;
  std::map<int64_t, Piece> pieces_;  // by where they begin
  std::vector<Value> values_;
  std::vector<std::pair<int64_t, int64_t>> carried_;
};

}  // namespace

PeakMeter::PeakMeter(const Bindings& bindings, const Plan& plan, std::span<const int32_t> order) {
  const int32_t steps = static_cast<int32_t>(plan.steps.size());
  for (const Bindings::Next& next : bindings.next) always_ += align_up(next.buffer.bytes, kStayAlignment).count;
  ValueFinder finder(bindings.arena);
  for (const Region& region : bindings.found) finder.found(region);
  for (const int32_t node : order) {
    if (node < steps) {
      finder.visit(node, bindings.steps[node]);
    } else if (const size_t move = node - steps; is_out(plan.moves[move])) {
      finder.read(node, bindings.copies[move]);
    } else {
      finder.write(node, bindings.copies[move]);
    }
  }
  for (const Region& region : bindings.left) finder.left(region);

  std::vector<std::vector<int32_t>> of_node(plan.steps.size() + plan.moves.size());
  for (const ValueFinder::Value& value : finder.finish()) {
    const int32_t number = static_cast<int32_t>(places_.size());
    for (const int32_t node : value.users) of_node[node].push_back(number);
    places_.push_back({value.bytes, static_cast<int32_t>(value.users.size()) + value.to_end, value.from_start});
  }
  for (const std::vector<int32_t>& list : of_node) {
    first_.push_back(static_cast<int32_t>(all_.size()));
    all_.insert(all_.end(), list.begin(), list.end());
  }
  first_.push_back(static_cast<int32_t>(all_.size()));
  users_left_.resize(places_.size());
  in_use_.resize(places_.size());
}

void PeakMeter::begin() {
  bytes_ = always_;
  for (const Place& p : places_) bytes_ += p.from_start ? p.bytes : 0;
  peak_ = std::max(peak_, bytes_);
  for (size_t i = 0; i < places_.size(); ++i) {
    const Place& p = places_[i];
    users_left_[i] = p.users;
    in_use_[i] = p.from_start;
    if (p.from_start && p.users == 0) bytes_ -= p.bytes;  // what nobody reads
  }
}

void PeakMeter::start(int32_t node) {
  for (const int32_t i : places_of(node)) {
    if (in_use_[i] != 0) continue;
    in_use_[i] = 1;
    bytes_ += places_[i].bytes;
  }
  peak_ = std::max(peak_, bytes_);
}

void PeakMeter::end(int32_t node) {
  for (const int32_t i : places_of(node)) {
    if (--users_left_[i] == 0) bytes_ -= places_[i].bytes;
  }
}

std::span<const int32_t> PeakMeter::places_of(int32_t node) const {
  return std::span(all_).subspan(first_[node], first_[node + 1] - first_[node]);
}

std::vector<int32_t> nodes_in_order(const Plan& plan) {
  const int32_t steps = static_cast<int32_t>(plan.steps.size());
  std::vector<std::tuple<int32_t, int, int32_t>> keys;
  for (int32_t s = 0; s < steps; ++s) keys.emplace_back(s, 2, s);
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    keys.emplace_back(plan.moves[i].after + 1, is_out(plan.moves[i]) ? 0 : 1, steps + static_cast<int32_t>(i));
  }
  std::sort(keys.begin(), keys.end());
  std::vector<int32_t> nodes;
  for (const auto& key : keys) nodes.push_back(std::get<2>(key));
  return nodes;
}

}  // namespace plimsoll
