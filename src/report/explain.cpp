#include "report/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "base/by_id.h"
#include "base/names.h"
#include "base/texts.h"
#include "plan/cores_json.h"
#include "plan/simulate.h"
#include "plan/together.h"
#include "plimsoll/cost_graph.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr size_t kMostReaders = 12, kMostKernels = 12;

std::string cost_text(const Cost& cost) {
  switch (cost.source) {
    case Cost::Source::estimated: return time_text(cost.time_ms, 4) + ", estimated";
    case Cost::Source::measured:
      return fmt::format("{}, measured (+-{:.2g} ms, {} runs)", time_text(cost.time_ms, 4), cost.spread_ms, cost.runs);
    case Cost::Source::in_step:
      return fmt::format("{}, measured inside a training step (+-{:.2g} ms, {} runs)", time_text(cost.time_ms, 4),
                         cost.spread_ms, cost.runs);
  }
  return "";
}

std::string layout_text(const Layout& layout) { return layout.is_plain() ? "row-major" : layout.tag; }

class Explainer {
 public:
  Explainer(const Program& program, const Device& device, const CostTable& costs)
      : graph_(program.network.graph),
        plan_(program.plan),
        family_(program.family),
        device_(device),
        costs_(costs),
        together_(steps_together(graph_, plan_)) {
    steps_of_.resize(graph_.op_count());
    for (size_t s = 0; s < plan_.steps.size(); ++s) steps_of_[plan_.steps[s].op].push_back(static_cast<StepIndex>(s));
    readers_ = ById<TensorId, std::vector<OpId>>(graph_.readers());
  }

  std::string run(std::string_view name) {
    if (const TensorId id = graph_.find_tensor(name); id.valid()) tensor(id);
    split_state(name);
    if (const OpId id = graph_.find_op(name); id.valid()) op(id);
    layer(name);
    if (text_.empty()) throw Error(ErrorCode::invalid_input, unknown_name("tensor, op or layer", name, known_names()));
    return std::move(text_);
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  std::string step_text(StepIndex step) const {
    return fmt::format("step {} ({})", step, graph_.op(plan_.steps[step].op).name);
  }
  const std::string& name_of(const Stay& stay) const { return graph_.tensor(stay.tensor).name; }

  std::vector<std::string> known_names() const {
    std::set<std::string> names;
    for (const Tensor& t : graph_.tensors()) names.insert(t.name);
    for (const WholeState& state : whole_states(graph_)) names.insert(state.name);
    for (const Op& o : graph_.ops()) {
      names.insert(o.name);
      for (const std::string& part : layer_names(o)) names.insert(part);
    }
    return {names.begin(), names.end()};
  }

  // "bn1+relu1" is known by that name and by each of its parts.
  static std::vector<std::string> layer_names(const Op& op) {
    if (op.layer.empty()) return {};
    std::vector<std::string> names{op.layer};
    if (op.layer.find('+') == std::string::npos) return names;
    for (size_t begin = 0; begin <= op.layer.size();) {
      const size_t end = std::min(op.layer.find('+', begin), op.layer.size());
      names.push_back(op.layer.substr(begin, end - begin));
      begin = end + 1;
    }
    return names;
  }

  // The blocks of a state that is known by the name of the whole.
  void split_state(std::string_view name) {
    for (const WholeState& state : whole_states(graph_)) {
      if (state.name != name || !graph_.tensor(state.parts[0]).block.is_block()) continue;
      line("{} {}, {} {}, lies in {} blocks of rows\n", to_string(state.role), name, to_string(state.shape),
           to_string(state.dtype), state.parts.size());
      for (TensorId part : state.parts) tensor(part);
    }
  }

  void tensor(TensorId id) {
    const Tensor& t = graph_.tensor(id);
    line("tensor {}", t.name);
    line("  {}, {} {}, layout {}, {}", to_string(t.role), to_string(t.shape), to_string(t.dtype), layout_text(t.layout),
         to_string(t.bytes()));
    const auto state = std::find_if(graph_.states.begin(), graph_.states.end(),
                                    [&](const State& s) { return s.before == id || s.after == id; });
    if (t.producer.valid()) {
      line("  made by {} ({})", graph_.op(t.producer).name, graph_.op(t.producer).type->name);
    } else {
      line("  comes from outside: {}", state != graph_.states.end()
                                           ? "it is there when the step begins, as the step before left it"
                                           : "it is written before the step begins");
    }
    bool stays = false, at_peak = false;
    for (const Stay& stay : plan_.stays) {
      if (stay.tensor != id || stay.is_workspace()) continue;
      stays = true;
      at_peak = at_peak || (stay.first <= plan_.predicted.peak_step && plan_.predicted.peak_step <= stay.last);
      line("  lies at offset {} ({} booked) from {} to {}", stay.offset.count, to_string(stay.bytes),
           step_text(stay.first), step_text(stay.last));
      neighbours(stay);
    }
    if (!stays) line("  never lies in the arena: nothing in this plan needs it");
    readers(id);
    why_so_long(id, state == graph_.states.end() ? nullptr : &*state);
    moves(id);
    if (stays) {
      line("  {} at the peak ({} of {})", at_peak ? "alive" : "not alive", step_text(plan_.predicted.peak_step),
           to_string(plan_.predicted.peak));
    }
    text_ += '\n';
  }

  // What lies in the same bytes while it does.
  void neighbours(const Stay& stay) {
    for (const Stay& other : plan_.stays) {
      if (&other == &stay || other.is_workspace() || other.offset != stay.offset || other.first > stay.last ||
          other.last < stay.first)
        continue;
      const OpId producer = graph_.tensor(stay.tensor).producer, its_producer = graph_.tensor(other.tensor).producer;
      const bool view = (producer.valid() && graph_.op(producer).type->is_view) ||
                        (its_producer.valid() && graph_.op(its_producer).type->is_view);
      if (view && (other.first != stay.last) && (other.last != stay.first)) {
        line("  shares its bytes with {} under another shape", name_of(other));
      } else if (other.last == stay.first) {
        line("  in place: takes the bytes of {} at {}", name_of(other), step_text(stay.first));
      } else if (other.first == stay.last) {
        line("  in place: gives its bytes to {} at {}", name_of(other), step_text(stay.last));
      } else {
        line("  shares its bytes with {}", name_of(other));
      }
    }
  }

  void readers(TensorId id) {
    std::vector<StepIndex> steps;
    for (OpId reader : readers_[id]) steps.insert(steps.end(), steps_of_[reader].begin(), steps_of_[reader].end());
    std::sort(steps.begin(), steps.end());
    if (steps.empty()) return line("  no op reads it");
    std::string text;
    for (size_t i = 0; i < steps.size() && i < kMostReaders; ++i) text += (i == 0 ? "" : ", ") + step_text(steps[i]);
    if (steps.size() > kMostReaders)
      text += fmt::format(" and {} more, the last one {}", steps.size() - kMostReaders, step_text(steps.back()));
    line("  read by {}", text);
  }

  void why_so_long(TensorId id, const State* state) {
    const Stay* last = nullptr;
    for (const Stay& stay : plan_.stays) {
      if (!stay.is_workspace() && stay.tensor == id && (last == nullptr || stay.last > last->last)) last = &stay;
    }
    if (last == nullptr) return;
    StepIndex needed = last->first;
    for (OpId reader : readers_[id]) {
      for (StepIndex step : steps_of_[reader]) needed = std::max(needed, step);
    }
    const auto end = static_cast<StepIndex>(plan_.steps.size() - 1);
    if (state != nullptr && state->after == id) {
      line("  stays to the end: the next training step begins with it");
    } else if (std::find(graph_.outputs.begin(), graph_.outputs.end(), id) != graph_.outputs.end()) {
      line("  stays to the end: it is read from outside after the step");
    } else if (last->last == needed) {
      const Op& reader = graph_.op(plan_.steps[needed].op);
      const OpId producer = graph_.tensor(id).producer;
      const bool kept =
          reader.phase == Phase::backward && (!producer.valid() || graph_.op(producer).phase == Phase::forward);
      if (readers_[id].empty()) {
        line("  stays for one step: nothing reads it");
      } else {
        line("  stays until its last reader, {}{}", step_text(needed), kept ? ", which is in the backward pass" : "");
      }
    } else if (last->last > needed) {
      line("  last needed at {}, but policy {} keeps it until {}", step_text(needed), plan_.policy,
           last->last == end ? "the end" : step_text(last->last));
    } else {
      line("  leaves before its last reader, {}", step_text(needed));
    }
  }

  void moves(TensorId id) {
    for (const Move& move : plan_.moves) {
      if (move.tensor != id) continue;
      line("  copied {} tier {} after step {}, before step {}",
           move.direction == Move::Direction::out ? "out to" : "back from", move.tier, move.after, move.before);
    }
  }

  void layer(std::string_view name) {
    std::vector<OpId> ops;
    for (OpId id : steps_of_.ids()) {
      const std::vector<std::string> names = layer_names(graph_.op(id));
      if (!steps_of_[id].empty() && std::find(names.begin(), names.end(), name) != names.end()) ops.push_back(id);
    }
    if (ops.empty()) return;
    std::sort(ops.begin(), ops.end(), [&](OpId a, OpId b) { return steps_of_[a].front() < steps_of_[b].front(); });
    double ms = 0;
    for (OpId id : ops) {
      for (StepIndex step : steps_of_[id]) ms += chosen(step).time_ms;
    }
    line("layer {}{}: {} ops, predicted {} of a step's {}\n", name,
         graph_.op(ops.front()).layer == name ? "" : fmt::format(", fused into {}", graph_.op(ops.front()).layer),
         ops.size(), time_text(ms, 4), time_text(plan_.predicted.step_time_ms, 4));
    for (OpId id : ops) op(id);
  }

  Cost chosen(StepIndex s) const { return step_cost(graph_, plan_.steps[s], together_[s], costs_); }

  void op(OpId id) {
    const Op& o = graph_.op(id);
    line("op {} ({}, {}{})", o.name, o.type->name, to_string(o.phase), o.layer.empty() ? "" : ", layer " + o.layer);
    for (const auto& [label, ids] : {std::pair{"reads", &o.inputs}, std::pair{"writes", &o.outputs}}) {
      for (TensorId t : *ids) {
        const Tensor& tensor = graph_.tensor(t);
        line("  {:<7} {} {} {}, layout {}, {}", label, tensor.name, to_string(tensor.shape), to_string(tensor.dtype),
             layout_text(tensor.layout), to_string(tensor.bytes()));
      }
    }
    const Step* last = nullptr;
    for (StepIndex s : steps_of_[id]) {
      const Step& step = plan_.steps[s];
      last = &step;
      std::string text = fmt::format("step {} of {}", s, plan_.steps.size());
      if (step.recompute) text += ", a recomputation";
      if (s == plan_.predicted.peak_step) text += ", the peak";
      if (step.threads > 0)
        text += fmt::format(", with {} thread{} ({})", step.threads, step.threads == 1 ? "" : "s",
                            to_string(step.affinity));
      for (const auto& [a, b] : plan_.cores.conflicts) {
        if (a == id || b == id) text += fmt::format(", never beside {}", graph_.op(a == id ? b : a).name);
      }
      if (step.kernel.empty()) {
        line("  {}: a view, nothing runs", text);
      } else {
        const bool given = holds_only_costs(graph_);
        line("  {}: kernel {}, workspace {}, {}", text, step.kernel, to_string(step.workspace),
             given ? time_text(step.time_ms, 4) + " as the file says" : cost_text(chosen(s)));
      }
    }
    if (last == nullptr) {
      line("  runs in no step of this plan");
    } else if (!last->kernel.empty() && !holds_only_costs(graph_)) {
      alternatives(o, *last);
    }
    text_ += '\n';
  }

  struct Offer {
    LayoutFamily family;
    KernelSpec spec;
    Cost cost;
    bool as_it_lies;  // wants the layouts that the tensors have in this plan
  };

  bool lies_so(const Op& op, const KernelSpec& spec) const {
    auto same = [&](const std::vector<TensorId>& ids, const std::vector<Layout>& layouts) {
      for (size_t i = 0; i < ids.size() && i < layouts.size(); ++i) {
        const Layout& has = graph_.tensor(ids[i]).layout;
        if (layouts[i].tag != kAnyLayout.tag && layouts[i] != has && !(layouts[i].is_plain() && has.is_plain()))
          return false;
      }
      return true;
    };
    return same(op.inputs, spec.inputs) && same(op.outputs, spec.outputs);
  }

  std::vector<Offer> offers(const Op& op) const {
    std::vector<Offer> list;
    std::vector<LayoutFamily> families{family_};
    for (LayoutFamily f : {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked}) {
      if (f != family_) families.push_back(f);
    }
    for (LayoutFamily family : families) {
      std::vector<KernelSpec> specs;
      try {
        specs = device_.kernels(graph_, op, family);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
      }
      for (KernelSpec& spec : specs) {
        const bool known = std::any_of(list.begin(), list.end(), [&](const Offer& o) {
          return o.spec.name == spec.name && o.spec.inputs == spec.inputs && o.spec.outputs == spec.outputs;
        });
        if (known) continue;
        const bool so = lies_so(op, spec);
        costs_.note(graph_, op, spec);
        const Cost cost = so ? costs_.cost(graph_, op, spec.name) : costs_.cost(graph_, op, spec);
        list.push_back({family, std::move(spec), cost, so});
      }
    }
    std::stable_sort(list.begin(), list.end(),
                     [](const Offer& a, const Offer& b) { return a.cost.time_ms < b.cost.time_ms; });
    return list;
  }

  void alternatives(const Op& op, const Step& step) {
    const std::vector<Offer> list = offers(op);
    const auto chosen = std::find_if(list.begin(), list.end(),
                                     [&](const Offer& o) { return o.spec.name == step.kernel && o.as_it_lies; });
    if (list.size() == 1) return line("  the device offers no other kernel");
    line("  the device offers, each with its cost when it runs alone:");
    size_t width = 0;
    for (const Offer& offer : list) width = std::max(width, offer.spec.name.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const Offer& offer = list[i];
      const bool is_chosen = chosen != list.end() && &offer == &*chosen;
      if (i >= kMostKernels && !is_chosen) continue;
      std::string why;
      if (is_chosen) {
        why = "  <- chosen";
      } else if (chosen == list.end() || offer.cost.time_ms < chosen->cost.time_ms) {
        if (!offer.as_it_lies) why = "  other layouts: its neighbours would have to take them, or reorders be paid";
        if (offer.spec.workspace > step.workspace)
          why += fmt::format("{} needs {} more workspace", why.empty() ? " " : ";",
                             to_string(offer.spec.workspace - step.workspace));
      }
      line("    {:<{}} {:<13} workspace {:>10}  {}{}", offer.spec.name, width, to_string(offer.family),
           to_string(offer.spec.workspace), cost_text(offer.cost), why);
    }
    if (list.size() > kMostKernels) line("    and {} slower ones", list.size() - kMostKernels);
  }

  const Graph& graph_;
  const Plan& plan_;
  LayoutFamily family_;
  const Device& device_;
  const CostTable& costs_;
  const std::vector<bool> together_;  // by step
  ById<OpId, std::vector<StepIndex>> steps_of_;
  ById<TensorId, std::vector<OpId>> readers_;
  std::string text_;
};

}  // namespace

std::string explain(const Program& program, const Device& device, const CostTable& costs, std::string_view name) {
  return Explainer(program, device, costs).run(name);
}

}  // namespace plimsoll
