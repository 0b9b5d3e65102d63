#include "plan/remat/placed_search.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/parallel.h"
#include "plan/remat/changes.h"

namespace plimsoll {
namespace {

using Run = RunSet::Run;
constexpr Run kNever = INT64_MAX;
constexpr int32_t kMostSteps = 40'000;  // of which runs are numbers of 32 bits

constexpr double kHot = 0.03, kCold = 0.001;  // of what usually runs again
constexpr int64_t kLeastPlacedRound = 1'000'000, kPlacedRoundOfStep = 250'000;
// What has no offset is dearer the longer nothing fits, all of it within bounds, and what has had none for long without.
constexpr double kDearer = 1.002, kCheaper = 1.08, kMostPrice = 3;
constexpr int kManyFitted = 100;  // of 256 changes
constexpr double kHarder = 1.02, kSofter = 0.995;
constexpr double kShortStages = 3;
constexpr size_t kMostSettled = 40;  // items of a change

// Items in time and bytes, each with an offset, or with none yet. Changes are noted, to be taken back.
class Places {
 public:
  // `short_runs`: what lives no longer is as easy to place as it can be.
  Places(int64_t room, size_t values, double short_runs)
      : room_(room), short_runs_(short_runs), hardness_(values + 1, 1) {}

  struct Item {
    int32_t value = -1;
    Run first = kNever, last = -2;  // so: there is no such item
    int64_t bytes = 0, offset = -1;
  };
  const Item& item(int32_t i) const { return items_[i]; }
  int32_t count() const { return static_cast<int32_t>(items_.size()); }
  bool is_there(int32_t i) const { return items_[i].first != kNever; }

  int32_t add(int32_t value, Run first, Run last, int64_t bytes) {
    int32_t i = count();
    if (free_.empty()) {
      items_.emplace_back();
      unplaced_at_.push_back(-1);
    } else {
      i = free_.back();
      free_.pop_back();
    }
    change(i, {value, first, last, bytes, -1});
    return i;
  }
  void remove(int32_t i) { change(i, {}); }
  void set_offset(int32_t i, int64_t offset) {
    Item next = items_[i];
    next.offset = offset;
    change(i, next);
  }
  // Keeps its offset where that is still its own.
  void set_span(int32_t i, Run first, Run last) {
    Item next = items_[i];
    const bool longer = first < next.first || last > next.last;
    next.first = first;
    next.last = last;
    if (longer && next.offset >= 0) {
      find_met(next, i);
      for (const auto& [begin, other] : met_) {
        if (begin < next.offset + next.bytes && next.offset < begin + items_[other].bytes) {
          next.offset = -1;
          break;
        }
      }
    }
    change(i, next);
  }

  // Gives it the offset of the smallest hole that it fits in, if there is one.
  bool put_in_a_hole(int32_t i) {
    find_met(i);
    const int64_t bytes = items_[i].bytes;
    int64_t from = 0, best = -1, smallest = INT64_MAX;
    const auto look = [&](int64_t begin, int64_t end) {
      if (end - begin < bytes || end - begin >= smallest) return;
      smallest = end - begin;
      best = begin;
    };
    for (const auto& [begin, other] : met_) {
      look(from, begin);
      from = std::max(from, begin + items_[other].bytes);
    }
    look(from, room_);
    if (best < 0) return false;
    set_offset(i, best);
    return true;
  }

  // Puts it where what lies in its way weighs the least, of some places that touch another; what lay there has none then.
  // Nothing where it is larger than the room.
  void put_by_force(int32_t i, Draws& draws, std::vector<int32_t>& displaced) {
    find_met(i);
    const int64_t bytes = items_[i].bytes;
    if (bytes > room_) return;
    double least = 1e300;
    int64_t best = -1;
    const auto look = [&](int64_t offset) {
      if (offset < 0 || offset + bytes > room_) return;
      double weight = 0;
      for (const auto& [begin, other] : met_) {
        if (begin >= offset + bytes) break;
        if (begin + items_[other].bytes > offset) weight += weight_of(other);
      }
      weight *= 0.7 + 0.6 * draws.share();
      if (weight >= least) return;
      least = weight;
      best = offset;
    };
    look(0);
    look(room_ - bytes);
    const auto met = static_cast<int64_t>(met_.size());
    for (int64_t k = 0, n = std::min<int64_t>(met, kPlacesTried); k < n; ++k) {
      const auto& [begin, other] = met_[static_cast<size_t>(n == met ? k : draws.below(met))];
      look(begin + items_[other].bytes);
      look(begin - bytes);
    }
    for (const auto& [begin, other] : met_) {
      if (begin < best + bytes && begin + items_[other].bytes > best) displaced.push_back(other);
    }
    for (const int32_t other : displaced) set_offset(other, -1);
    set_offset(i, best);
  }

  // Something that has an offset and meets it in time; -1: there is nothing.
  int32_t one_met(int32_t i, Draws& draws) {
    find_met(i);
    return met_.empty() ? -1 : met_[static_cast<size_t>(draws.below(std::ssize(met_)))].item;
  }

  const std::vector<int32_t>& unplaced() const { return unplaced_; }
  double penalty() const { return unplaced_.empty() ? 0 : penalty_; }  // weights of what has no offset
  // The longer it lives the harder it is to place.
  double weight_of(int32_t i) const { return weight(items_[i]); }

  // What has no offset weighs more from now on.
  void harden(double by) {
    for (const int32_t i : unplaced_) hardness_[items_[i].value + 1] *= by;
    sum_up();
  }
  void soften(double by) {
    for (double& hardness : hardness_) hardness = 1 + (hardness - 1) * by;
    sum_up();
  }

  void begin() { log_.clear(); }
  void take_back() {
    while (!log_.empty()) {
      const auto [i, before] = log_.back();
      log_.pop_back();
      if (before.first == kNever && is_there(i)) free_.push_back(i);
      if (before.first != kNever && !is_there(i)) std::erase(free_, i);
      put(i, before);
    }
  }
  // What was taken out may be used again.
  void accept() {
    for (const auto& [i, before] : log_) {
      if (!is_there(i) && before.first != kNever && std::ranges::find(free_, i) == free_.end()) free_.push_back(i);
    }
    log_.clear();
  }
  int64_t work() const { return work_; }

 private:
  static constexpr int64_t kPlacesTried = 12;

  double weight(const Item& item) const {
    return hardness_[item.value + 1] * static_cast<double>(item.bytes) *
           std::sqrt(static_cast<double>(item.last - item.first + short_runs_) / short_runs_);
  }

  void sum_up() {
    penalty_ = 0;
    for (const int32_t i : unplaced_) penalty_ += weight(items_[i]);
  }

  void change(int32_t i, const Item& next) {
    log_.emplace_back(i, items_[i]);
    put(i, next);
  }
  void put(int32_t i, const Item& next) {
    Item& item = items_[i];
    const bool was = item.first != kNever && item.offset < 0, is = next.first != kNever && next.offset < 0;
    if (was) penalty_ -= weight(item);
    if (is) penalty_ += weight(next);
    if (is && !was) {
      unplaced_at_[i] = static_cast<int32_t>(unplaced_.size());
      unplaced_.push_back(i);
    } else if (was && !is) {
      unplaced_[unplaced_at_[i]] = unplaced_.back();
      unplaced_at_[unplaced_.back()] = unplaced_at_[i];
      unplaced_.pop_back();
      unplaced_at_[i] = -1;
    }
    if (item.first != kNever && item.offset >= 0) erase(i);
    item = next;
    if (item.first != kNever && item.offset >= 0) insert(i);
  }

  // Of what has an offset, what meets it in time, by offset.
  void find_met(const Item& item, int32_t except) {
    const size_t n = at_.size();
    const auto begin = static_cast<int32_t>(item.first), end = static_cast<int32_t>(item.last);
    met_.resize(n);
    const int32_t *const first = first_.data(), *const last = last_.data(), *const at = at_.data();
    Met* const met = met_.data();
    size_t count = 0;
    for (size_t k = 0; k < n; ++k) {
      met[count] = {offset_[k], at[k]};
      count += static_cast<size_t>((first[k] <= end) & (begin <= last[k]) & (at[k] != except));
    }
    met_.resize(count);
    work_ += static_cast<int64_t>(n / 8 + count);
  }
  void find_met(int32_t i) { find_met(items_[i], i); }

  // The list of what has an offset, by offset.
  void insert(int32_t i) {
    const Item& item = items_[i];
    const auto k = std::upper_bound(offset_.begin(), offset_.end(), item.offset) - offset_.begin();
    offset_.insert(offset_.begin() + k, item.offset);
    first_.insert(first_.begin() + k, static_cast<int32_t>(item.first));
    last_.insert(last_.begin() + k, static_cast<int32_t>(item.last));
    at_.insert(at_.begin() + k, i);
  }
  void erase(int32_t i) {
    auto k = std::lower_bound(offset_.begin(), offset_.end(), items_[i].offset) - offset_.begin();
    while (at_[static_cast<size_t>(k)] != i) ++k;
    offset_.erase(offset_.begin() + k);
    first_.erase(first_.begin() + k);
    last_.erase(last_.begin() + k);
    at_.erase(at_.begin() + k);
  }

  const int64_t room_;
  const double short_runs_;
  std::vector<double> hardness_;  // by value, from 1
  std::vector<Item> items_;
  std::vector<int64_t> offset_;  // of what has an offset, by offset: to look at all of them at once
  std::vector<int32_t> first_, last_, at_;
  std::vector<int32_t> unplaced_, unplaced_at_, free_;
  double penalty_ = 0;
  struct Met {
    int64_t begin;
    int32_t item;
  };
  std::vector<Met> met_;
  std::vector<std::pair<int32_t, Item>> log_;
  int64_t work_ = 0;
};

class PlacedSearch {
 public:
  PlacedSearch(const ValueTimeline& timeline, int64_t room)
      : timeline_(timeline),
        set_(timeline, room + bytes_of_states(timeline)),
        changes_(timeline, set_),
        places_(room, timeline.values.size(), kShortStages * static_cast<double>(timeline.steps.size() + 1)),
        items_(timeline.values.size() + timeline.steps.size()) {
    double ms = 0, squares = 0;
    for (const TimelineStep& step : timeline.steps) {
      ms += step.ms;
      squares += step.ms * step.ms;
    }
    usual_ms_ = ms > 0 ? squares / ms : 1;
  }

  static int64_t bytes_of_states(const ValueTimeline& timeline) {
    int64_t bytes = 0;
    for (const TimelineValue& value : timeline.values) bytes += value.state >= 0 ? value.bytes : 0;
    return bytes;
  }

  void start(const Sequence& sequence) {
    set_.take(sequence);
    changes_.list_reruns();
    place_all();
  }
  void start_from_best() {
    changes_.restore(best_reruns_);
    place_all();
    for (int32_t i = 0; i < places_.count(); ++i) {
      if (!places_.is_there(i)) continue;
      const Places::Item& item = places_.item(i);
      const auto known = std::ranges::find_if(
          best_items_, [&](const PlacedRuns::Item& b) { return b.value == item.value && b.first == item.first; });
      if (known != best_items_.end()) places_.set_offset(i, known->offset);
    }
    places_.accept();
  }

  void cool(uint64_t seed, int64_t effort) {
    changes_.draw_from(seed);
    price_ = first_price();
    most_price_ = kMostPrice * price_;
    const int64_t first = work();
    fitted_ = 0;
    for (int64_t tried = 1;; ++tried) {
      const double share = static_cast<double>(work() - first) / static_cast<double>(effort);
      if (share >= 1) break;
      if (tried % 16 == 1) temperature_ = usual_ms_ * kHot * std::pow(kCold / kHot, share);
      propose();
      if (tried % 256 == 0) adapt();
    }
  }
  int64_t work() const { return set_.work() + changes_.work() + places_.work(); }
  bool fits() const { return fits_; }
  double best_ms() const { return best_ms_; }
  void learn_from(const PlacedSearch& other) {
    if (!other.fits_ || (fits_ && best_ms_ <= other.best_ms_)) return;
    fits_ = true;
    best_ms_ = other.best_ms_;
    best_reruns_ = other.best_reruns_;
    best_items_ = other.best_items_;
  }

  PlacedRuns result() {
    PlacedRuns result;
    result.fits = fits_;
    if (!fits_) return result;
    changes_.restore(best_reruns_);
    result.again_ms = set_.again_ms();
    result.sequence = set_.sequence();
    for (int32_t t = 0; t <= set_.steps(); ++t) {
      for (const int32_t s : set_.reruns_in(t)) result.runs.push_back(set_.run_of(s, t));
      if (t < set_.steps()) result.runs.push_back(set_.run_of(t, t));
    }
    result.items = best_items_;
    return result;
  }

 private:
  // As if half of the step were to be computed again for all of its bytes.
  double first_price() const {
    double bytes = 0;
    for (const TimelineValue& value : timeline_.values) bytes += static_cast<double>(value.bytes);
    return 0.5 * timeline_.compute_ms / std::max(1.0, bytes);
  }
  double energy() const { return set_.again_ms() + price_ * places_.penalty(); }

  void adapt() {
    if (fitted_ == 0 && price_ < most_price_) price_ *= kDearer;
    places_.harden(kHarder);
    places_.soften(kSofter);
    fitted_ = 0;
  }

  void place_all() {
    for (std::vector<int32_t>& list : items_) {
      for (const int32_t i : list) places_.remove(i);
      list.clear();
    }
    for (int32_t v = 0; v < static_cast<int32_t>(timeline_.values.size()); ++v) refresh_value(v);
    for (int32_t s = 0; s < set_.steps(); ++s) refresh_workspace(s);
    std::vector<int32_t> order = places_.unplaced();
    std::ranges::sort(order, [&](int32_t a, int32_t b) {
      const double x = places_.weight_of(a), y = places_.weight_of(b);
      return x != y ? x > y : a < b;
    });
    for (const int32_t i : order) places_.put_in_a_hole(i);
    places_.accept();
  }

  // The items of a value, or of a step's workspace, as its runs have it; by their beginnings.
  void match(int32_t list, int32_t value, int64_t bytes, const std::vector<RunSet::Span>& spans) {
    std::vector<int32_t>& items = items_[list];
    if (items.empty() && spans.empty()) return;
    lists_before_.emplace_back(list, items);
    next_.clear();
    size_t i = 0;
    for (const RunSet::Span& span : spans) {
      while (i < items.size() && places_.item(items[i]).first < span.first) places_.remove(items[i++]);
      if (i < items.size() && places_.item(items[i]).first == span.first) {
        if (places_.item(items[i]).last != span.last) {
          places_.set_span(items[i], span.first, span.last);
          fresh_.push_back(items[i]);
        }
        next_.push_back(items[i++]);
        continue;
      }
      next_.push_back(places_.add(value, span.first, span.last, bytes));
      fresh_.push_back(next_.back());
    }
    while (i < items.size()) places_.remove(items[i++]);
    items = next_;
  }
  void refresh_value(int32_t v) {
    const TimelineValue& value = timeline_.values[v];
    if (value.state < 0 && value.bytes > 0) match(v, v, value.bytes, set_.spans_of(v));
  }
  void refresh_workspace(int32_t s) {
    if (timeline_.steps[s].workspace == 0) return;
    spans_.assign(1, {set_.run_of(s, s), set_.run_of(s, s)});
    for (const int32_t stage : set_.stages_of(s)) spans_.push_back({set_.run_of(s, stage), set_.run_of(s, stage)});
    match(static_cast<int32_t>(timeline_.values.size()) + s, -1, timeline_.steps[s].workspace, spans_);
  }
  void refresh_changed() {
    for (; refreshed_ < changes_.list().size(); ++refreshed_) {
      const TimelineStep& step = timeline_.steps[changes_.list()[refreshed_].step];
      for (const int32_t v : step.recompute_inputs) refresh_value(v);
      for (const int32_t v : step.recompute_outputs) refresh_value(v);
      refresh_workspace(changes_.list()[refreshed_].step);
    }
  }

  void propose() {
    Draws& draws = changes_.draws();
    const double before = energy();
    const double allowed = -temperature_ * std::log(1 - draws.share());
    changes_.begin(allowed + price_ * places_.penalty());
    places_.begin();
    lists_before_.clear();
    fresh_.clear();
    refreshed_ = 0;
    const int32_t kind = draws.below(100);
    int32_t forced = 0;
    const std::vector<int32_t>& unplaced = places_.unplaced();
    const int32_t lacking = unplaced.empty() ? -1 : unplaced[static_cast<size_t>(draws.below(std::ssize(unplaced)))];
    if (lacking >= 0 && kind < 35) {
      fresh_.push_back(lacking);
      forced = 1 + draws.below(3);
    } else if (lacking >= 0 && kind < 55) {
      const Places::Item& item = places_.item(lacking);
      const int32_t from = std::max(set_.stage_of(item.first), 0), to = set_.stage_of(item.last);
      const int32_t stage = from + draws.below(to - from + 1);
      const int32_t way = draws.below(4);
      if (way == 0 && item.value >= 0) {
        changes_.drop(item.value, stage);
      } else if (way < 3) {
        drop_in_the_way(lacking);
      } else {
        changes_.propose_drop(stage);
      }
      fresh_.push_back(lacking);
      forced = draws.below(2);
    } else if (kind < 65) {
      move_one();
    } else if (kind < 80) {
      changes_.propose_removal();
      forced = draws.below(4);
    } else if (kind < 88) {
      changes_.propose_shift();
      forced = draws.below(3);
    } else {
      const int32_t stage = changes_.propose_removal();
      changes_.propose_drop(stage);
      forced = draws.below(3);
    }
    if (changes_.pending()) {
      if (changes_.too_dear()) return;
      changes_.apply();
      refresh_changed();
    }
    settle(forced);
    if (energy() - before > allowed) {
      take_back();
    } else {
      changes_.accept();
      places_.accept();
      note_if_better();
    }
    fitted_ += places_.unplaced().empty() ? 1 : 0;
  }

  // Offsets for what is new or has lost its own.
  void settle(int32_t forced) {
    for (size_t at = 0; at < std::min(fresh_.size(), kMostSettled); ++at) {
      const int32_t i = fresh_[at];
      if (!places_.is_there(i) || places_.item(i).offset >= 0 || places_.put_in_a_hole(i) || forced == 0) continue;
      --forced;
      displaced_.clear();
      places_.put_by_force(i, changes_.draws(), displaced_);
      std::ranges::sort(displaced_, [&](int32_t a, int32_t b) {
        return places_.weight_of(a) != places_.weight_of(b) ? places_.weight_of(a) > places_.weight_of(b) : a < b;
      });
      fresh_.insert(fresh_.end(), displaced_.begin(), displaced_.end());
    }
  }
  // Lets something go that lies in memory while the item does.
  void drop_in_the_way(int32_t i) {
    const int32_t other = places_.one_met(i, changes_.draws());
    if (other < 0 || places_.item(other).value < 0) return;
    const Places::Item &a = places_.item(i), &b = places_.item(other);
    const int32_t from = std::max(set_.stage_of(std::max(a.first, b.first)), 0),
                  to = set_.stage_of(std::min(a.last, b.last));
    changes_.drop(b.value, from + changes_.draws().below(to - from + 1));
  }
  void move_one() {
    if (places_.count() == 0) return;
    Draws& draws = changes_.draws();
    const int32_t i = draws.below(places_.count());
    if (!places_.is_there(i) || places_.item(i).offset < 0) return;
    places_.set_offset(i, -1);
    displaced_.clear();
    places_.put_by_force(i, draws, displaced_);
    fresh_ = displaced_;
  }

  void take_back() {
    changes_.take_back();
    places_.take_back();
    for (; !lists_before_.empty(); lists_before_.pop_back())
      items_[lists_before_.back().first] = std::move(lists_before_.back().second);
  }

  void note_if_better() {
    if (!places_.unplaced().empty() || (fits_ && set_.again_ms() >= best_ms_ * (1 - 1e-12))) return;
    fits_ = true;
    best_ms_ = set_.again_ms();
    best_reruns_ = changes_.reruns();
    best_items_.clear();
    for (int32_t i = 0; i < places_.count(); ++i) {
      if (!places_.is_there(i)) continue;
      const Places::Item& item = places_.item(i);
      best_items_.push_back({item.value, item.first, item.last, item.offset, item.bytes});
    }
  }

  const ValueTimeline& timeline_;
  RunSet set_;
  RunChanges changes_;
  Places places_;
  std::vector<std::vector<int32_t>> items_;  // by value, then by step
  std::vector<std::pair<int32_t, std::vector<int32_t>>> lists_before_;
  std::vector<int32_t> next_, fresh_, displaced_;
  std::vector<RunSet::Span> spans_;
  size_t refreshed_ = 0;
  double usual_ms_ = 1, price_ = 0, most_price_ = 0, temperature_ = 0;
  int fitted_ = 0;
  bool fits_ = false;
  double best_ms_ = 0;
  std::vector<Rerun> best_reruns_;
  std::vector<PlacedRuns::Item> best_items_;
};

}  // namespace

bool has_plain_places(const ValueTimeline& timeline) {
  return static_cast<int32_t>(timeline.steps.size()) <= kMostSteps &&
         std::ranges::all_of(timeline.steps, [](const TimelineStep& step) { return step.in_place.empty(); });
}

// Two at once, in rounds each twice as long as the one before: with more effort there are more rounds. Where there is
// something that fits, one begins from it and the other from known runs.
PlacedRuns place_runs(const ValueTimeline& timeline, int64_t room, const std::vector<Sequence>& starts,
                      int64_t effort) {
  room -= room % kStayAlignment;
  std::array<PlacedSearch, 2> searches{PlacedSearch(timeline, room), PlacedSearch(timeline, room)};
  const auto work = [&] { return searches[0].work() + searches[1].work(); };
  int64_t length = kLeastPlacedRound + kPlacedRoundOfStep * static_cast<int64_t>(timeline.steps.size());
  for (size_t round = 0; work() + 2 * length <= effort; ++round, length *= 2) {
    for_each_in_parallel(2, [&](size_t k) {
      PlacedSearch& search = searches[k];
      if (search.fits() && (round + k) % 2 == 1) {
        search.start_from_best();
      } else {
        search.start(starts[(round + k) % starts.size()]);
      }
      search.cool(2 * round + k, length);
    });
    searches[0].learn_from(searches[1]);
    searches[1].learn_from(searches[0]);
  }
  return searches[0].result();
}

}  // namespace plimsoll
