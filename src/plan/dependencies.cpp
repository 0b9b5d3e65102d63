// Walks the plan's order and keeps for every byte of the arena and of the tiers who wrote it last and who has read it
// since.
#include "plan/dependencies.h"

#include <algorithm>
#include <bitset>
#include <map>
#include <tuple>

#include "base/by_id.h"
#include "plan/recompute_operands.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr size_t kWindow = 1024;  // nodes back in the order for which it is known whether a node waits for them

// Bytes of one memory, in pieces that the same nodes have used.
class AccessHistory {
 public:
  void read(int32_t node, int64_t begin, int64_t end, std::vector<int32_t>& before) {
    visit(begin, end, [&](Piece& piece) {
      if (piece.writer >= 0 && piece.writer != node) before.push_back(piece.writer);
      if (piece.readers.empty() || piece.readers.back() != node) piece.readers.push_back(node);
    });
  }

  void write(int32_t node, int64_t begin, int64_t end, std::vector<int32_t>& before) {
    if (begin == end) return;
    visit(begin, end, [&](Piece& piece) {
      bool read = false;
      for (int32_t reader : piece.readers) {
        if (reader == node) continue;
        before.push_back(reader);
        read = true;
      }
      if (!read && piece.writer >= 0 && piece.writer != node) before.push_back(piece.writer);
    });
    const auto first = pieces_.find(begin);
    pieces_.erase(std::next(first), pieces_.lower_bound(end));
    first->second = {end, node, {}};
  }

 private:
  struct Piece {
    int64_t end = 0;
    int32_t writer = -1;
    std::vector<int32_t> readers;  // since then
  };
  using Pieces = std::map<int64_t, Piece>;

  // Makes [begin, end) whole pieces and visits each.
  template <class Visit>
  void visit(int64_t begin, int64_t end, const Visit& use) {
    if (begin == end) return;
    split(begin);
    split(end);
    for (int64_t at = begin; at < end;) {
      auto it = pieces_.lower_bound(at);
      if (it == pieces_.end() || it->first > at) {  // nobody has used these yet
        it = pieces_.emplace_hint(it, at, Piece{it == pieces_.end() ? end : std::min(end, it->first), -1, {}});
      }
      use(it->second);
      at = it->second.end;
    }
  }

  void split(int64_t at) {
    auto it = pieces_.lower_bound(at);
    if (it == pieces_.begin() || (it != pieces_.end() && it->first == at)) return;
    Piece& head = std::prev(it)->second;
    if (head.end <= at) return;
    Piece tail = head;
    head.end = at;
    pieces_.emplace_hint(it, at, std::move(tail));
  }

  Pieces pieces_;
};

class Finder {
 public:
  Finder(const Graph& graph, const Plan& plan, std::span<const Erasure> erasures)
      : graph_(graph),
        plan_(plan),
        erasures_(erasures),
        steps_(static_cast<int32_t>(plan.steps.size())),
        moves_(static_cast<int32_t>(plan.moves.size())),
        tiers_(plan.tiers.size()) {
    stays_of_.resize(graph.tensor_count());
    workspace_of_.assign(plan.steps.size(), -1);
    for (size_t i = 0; i < plan.stays.size(); ++i) {
      const Stay& stay = plan.stays[i];
      std::vector<int32_t>* list = stay.is_workspace() ? nullptr : &stays_of_[stay.tensor];
      if (list != nullptr) list->push_back(static_cast<int32_t>(i));
      if (list == nullptr && !plan.steps.empty()) workspace_of_[stay.first] = static_cast<int32_t>(i);
    }
  }

  // Between two steps: what leaves, what is erased, what comes; then the step.
  std::vector<int32_t> order() const {
    std::vector<std::tuple<int32_t, int, int32_t>> keys;
    for (int32_t s = 0; s < steps_; ++s) keys.emplace_back(s, 3, s);
    for (int32_t i = 0; i < moves_; ++i) {
      const Move& m = plan_.moves[i];
      keys.emplace_back(m.after + 1, m.direction == Move::Direction::out ? 0 : 2, steps_ + i);
    }
    for (size_t i = 0; i < erasures_.size(); ++i) {
      keys.emplace_back(erasures_[i].after + 1, 1, steps_ + moves_ + static_cast<int32_t>(i));
    }
    std::sort(keys.begin(), keys.end());
    std::vector<int32_t> nodes;
    for (const auto& key : keys) nodes.push_back(std::get<2>(key));
    return nodes;
  }

  // Everyone who must be done before the node, and the stays that it uses; called for the nodes in order.
  void visit(int32_t node, std::vector<int32_t>& before, std::vector<int32_t>& stays) {
    used_ = &stays;
    if (node < steps_) {
      visit_step(node, before);
    } else if (node < steps_ + moves_) {
      visit_move(node, before);
    } else {
      const Erasure& e = erasures_[node - steps_ - moves_];
      arena_.write(node, e.offset.count, (e.offset + e.bytes).count, before);
    }
  }

 private:
  const Stay& stay_at(TensorId tensor, StepIndex step) const {
    for (int32_t i : stays_of_[tensor]) {
      const Stay& stay = plan_.stays[i];
      if (stay.first > step || step > stay.last) continue;
      used_->push_back(i);
      return stay;
    }
    throw Error(ErrorCode::internal,
                "tensor '" + graph_.tensor(tensor).name + "' is not in the arena where it is used");
  }

  void visit_step(int32_t s, std::vector<int32_t>& before) {
    const Step& step = plan_.steps[s];
    const Op& op = graph_.op(step.op);
    if (op.type->is_view) return;
    const RecomputeOperands unused(graph_, op, step.recompute);
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (unused.input(i)) continue;
      const Stay& stay = stay_at(op.inputs[i], s);
      arena_.read(s, stay.offset.count, (stay.offset + stay.bytes).count, before);
    }
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      if (unused.output(i)) continue;
      const Stay& stay = stay_at(op.outputs[i], s);
      arena_.write(s, stay.offset.count, (stay.offset + stay.bytes).count, before);
    }
    if (const int32_t w = workspace_of_[s]; w >= 0) {
      const Stay& stay = plan_.stays[w];
      used_->push_back(w);
      arena_.write(s, stay.offset.count, (stay.offset + stay.bytes).count, before);
    }
  }

  void visit_move(int32_t node, std::vector<int32_t>& before) {
    const Move& m = plan_.moves[node - steps_];
    const bool out = m.direction == Move::Direction::out;
    const StepIndex last = std::max<StepIndex>(steps_ - 1, 0);
    const Stay& stay = stay_at(m.tensor, out ? std::max<StepIndex>(m.after, 0) : std::min(m.before, last));
    AccessHistory& tier = tiers_[m.tier];
    const int64_t begin = stay.offset.count, end = (stay.offset + stay.bytes).count;
    const int64_t slot = m.slot.count, slot_end = (m.slot + graph_.tensor(m.tensor).bytes()).count;
    if (out) {
      arena_.read(node, begin, end, before);
      tier.write(node, slot, slot_end, before);
    } else {
      tier.read(node, slot, slot_end, before);
      arena_.write(node, begin, end, before);
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  std::span<const Erasure> erasures_;
  int32_t steps_, moves_;
  AccessHistory arena_;
  std::vector<AccessHistory> tiers_;
  ById<TensorId, std::vector<int32_t>> stays_of_;  // by tensor
  ById<StepIndex, int32_t> workspace_of_;          // by step
  std::vector<int32_t>* used_ = nullptr;
};

// Drops whom another of the list waits for anyway. Nodes are named by their places in the order.
class Thinning {
 public:
  explicit Thinning(size_t count) : known_(count) {}

  void thin(int32_t place, std::vector<int32_t>& before) {
    std::sort(before.begin(), before.end(), std::greater<>());
    before.erase(std::unique(before.begin(), before.end()), before.end());
    std::bitset<kWindow>& mine = known_[place];
    std::erase_if(before, [&](int32_t other) {
      const size_t back = place - other - 1;
      if (back >= kWindow) return false;
      if (mine[back]) return true;
      mine |= known_[other] << (back + 1);
      mine.set(back);
      return false;
    });
  }

 private:
  std::vector<std::bitset<kWindow>> known_;  // by place: bit b: it waits for the one b + 1 places before
};

}  // namespace

Dependencies find_dependencies(const Graph& graph, const Plan& plan, std::span<const Erasure> erasures) {
  Finder finder(graph, plan, erasures);
  Dependencies result;
  result.order_ = finder.order();
  const size_t count = result.order_.size();
  std::vector<int32_t> place_of(count);
  for (size_t p = 0; p < count; ++p) place_of[result.order_[p]] = static_cast<int32_t>(p);
  Thinning thinning(count);
  std::vector<std::vector<int32_t>> before(count), stays(count);
  std::vector<int32_t> list;
  result.first_after_.assign(count + 1, 0);
  for (size_t p = 0; p < count; ++p) {
    list.clear();
    finder.visit(result.order_[p], list, stays[result.order_[p]]);
    for (int32_t& node : list) node = place_of[node];
    thinning.thin(static_cast<int32_t>(p), list);
    for (int32_t place : list) {
      const int32_t node = result.order_[place];
      before[result.order_[p]].push_back(node);
      ++result.first_after_[node + 1];
    }
  }
  result.first_stay_.assign(1, 0);
  for (size_t n = 0; n < count; ++n) {
    result.stays_.insert(result.stays_.end(), stays[n].begin(), stays[n].end());
    result.first_stay_.push_back(static_cast<int32_t>(result.stays_.size()));
    result.before_.insert(result.before_.end(), before[n].begin(), before[n].end());
    result.first_before_.push_back(static_cast<int32_t>(result.before_.size()));
    result.first_after_[n + 1] += result.first_after_[n];
  }
  result.after_.resize(result.before_.size());
  std::vector<int32_t> next(result.first_after_.begin(), result.first_after_.end() - 1);
  for (int32_t node : result.order_) {
    for (int32_t other : before[node]) {
      result.after_[next[other]++] = node;
    }
  }
  return result;
}

}  // namespace plimsoll
