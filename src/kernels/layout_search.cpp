#include "kernels/layout_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <unordered_map>

#include "base/by_id.h"
#include "cost/signature.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Row-major is written in one way, so that equal layouts are equal texts.
Layout canonical(const Layout& layout) { return layout.is_plain() ? Layout{} : layout; }

class LayoutSearch {
 public:
  LayoutSearch(const Graph& graph, KernelCandidates& candidates, LayoutFamily family, const LayoutOptions& options)
      : graph_(graph), candidates_(candidates), family_(family), options_(options), readers_(graph.readers()) {
    const int32_t tensors = graph.tensor_count();
    made_.resize(tensors);
    decided_.assign(tensors, true);
    state_before_.resize(tensors);
    is_output_.assign(tensors, false);
    for (const State& state : graph.states) {
      const Tensor& before = graph.tensor(state.before);
      if (auto pin = options.pinned.find(before.name); pin != options.pinned.end()) {
        storage_elements(before.shape, pin->second);  // throws where the tag does not fit the rank
        made_[state.before] = canonical(pin->second);
      } else {
        decided_[state.before] = false;
      }
      if (state.after != state.before) state_before_[state.after] = state.before;
    }
    if (options.fed.valid()) decided_[options.fed] = false;
    for (TensorId id : graph.outputs) is_output_[id] = true;
    allowed_.resize(candidates.class_count());
    decide_by_updates();
  }

  LayoutAssignment run(std::span<const OpId> order) {
    LayoutAssignment result;
    result.family = family_;
    result.kernels.resize(graph_.op_count());
    for (OpId id : order) result.kernels[id] = choose(id, result.time_ms);
    result.made = std::move(made_);
    return result;
  }

 private:
  // The kernels that the options allow: of those with the same layouts the fastest.
  // A parameter that its update wants in one layout, whatever else reads it, lies in that.
  void decide_by_updates() {
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      const Op& op = graph_.op(OpId{i});
      if (!op.type->changes_state || decided_[op.inputs[0]]) continue;
      const auto& items = allowed(OpId{i});
      if (items.empty() || layout_is_open(graph_, op, items[0]->spec, 0)) continue;
      const auto wants_the_same = [&](const KernelCandidates::Item* item) {
        return same_layout(item->spec.inputs[0], items[0]->spec.inputs[0]);
      };
      if (!std::ranges::all_of(items, wants_the_same)) continue;
      decided_[op.inputs[0]] = true;
      made_[op.inputs[0]] = canonical(items[0]->spec.inputs[0]);
    }
  }

  const std::vector<const KernelCandidates::Item*>& allowed(OpId id) {
    if (options_.pinned_kernels.empty()) {
      std::optional<std::vector<const KernelCandidates::Item*>>& known = allowed_[candidates_.class_of(id)];
      if (!known) known = fastest_allowed(candidates_.of(id, family_));
      return *known;
    }
    auto [place, fresh] = allowed_by_op_.try_emplace(id.index);
    if (!fresh) return place->second;
    auto pin = options_.pinned_kernels.find(graph_.op(id).name);
    if (pin == options_.pinned_kernels.end() || pin->second.empty()) {
      place->second = fastest_allowed(candidates_.of(id, family_));
      return place->second;
    }
    place->second = candidates_.named(id, family_, pin->second);
    if (place->second.empty()) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}' ({}) is to run by kernel '{}', which this device does not offer with {} layouts",
                              graph_.op(id).name, graph_.op(id).type->name, pin->second, to_string(family_)));
    }
    return place->second;
  }

  std::vector<const KernelCandidates::Item*> fastest_allowed(const std::vector<KernelCandidates::Item>& items) const {
    std::vector<const KernelCandidates::Item*> result;  // by layouts
    const bool divide = options_.batch_sizes != BatchSizes::undivided;
    const Bytes limit =
        options_.exact ? options_.asked_limit : std::min(options_.workspace_limit, options_.asked_limit);
    for (const KernelCandidates::Item& item : items) {
      if (!candidates_.is_allowed(item, divide) || item.spec.workspace > limit) continue;
      auto same =
          std::find_if(result.begin(), result.end(), [&](const auto* other) { return other->layouts == item.layouts; });
      if (same == result.end()) {
        result.push_back(&item);
      } else if (is_better(item.time_ms, item.spec, (*same)->time_ms, (*same)->spec)) {
        *same = &item;
      }
    }
    if (result.empty() && !items.empty()) {
      result.push_back(&*std::min_element(items.begin(), items.end(), [&](const auto& a, const auto& b) {
        return std::tuple(!candidates_.is_allowed(a, divide), a.spec.workspace, a.time_ms) <
               std::tuple(!candidates_.is_allowed(b, divide), b.spec.workspace, b.time_ms);
      }));
    }
    return result;
  }

  // Of two that take the same time, the one with less workspace; or the one that stands first, where the device knows
  // best.
  bool is_better(double ms, const KernelSpec& spec, double than_ms, const KernelSpec& than) const {
    if (ms != than_ms) return ms < than_ms;
    return !candidates_.is_in_order() && spec.workspace < than.workspace;
  }

  // The layouts that a kernel would see, one set for each way to fill what it leaves open.
  std::vector<KernelSpec> resolve(const Op& op, const KernelSpec& spec) {
    std::vector<size_t> open;
    const size_t positions = op.inputs.size() + op.outputs.size();
    for (size_t i = 0; i < positions; ++i) {
      if (layout_is_open(graph_, op, spec, i)) open.push_back(i);
    }
    KernelSpec filled = spec;
    filled.inputs.resize(op.inputs.size());
    filled.outputs.resize(op.outputs.size());
    if (open.empty()) return {filled};
    std::vector<Layout> choices;
    auto add_choice = [&](const Layout& layout) {
      for (const Layout& known : choices) {
        if (same_layout(known, layout)) return;
      }
      choices.push_back(layout);
    };
    for (size_t i : open) {
      if (i >= op.inputs.size()) continue;
      add_choice(made_[op.inputs[i]]);    // plain where a state is not decided
      if (op.type->changes_state) break;  // the parameter decides
    }
    if (choices.empty()) choices.push_back({});
    const Shape& shape = tensor_at(op, open[0]).shape;
    std::vector<KernelSpec> result;
    for (const Layout& layout : choices) {
      for (size_t i : open) {
        Layout& place = i < op.inputs.size() ? filled.inputs[i] : filled.outputs[i - op.inputs.size()];
        place = tensor_at(op, i).shape == shape ? layout : Layout{};
      }
      result.push_back(filled);
    }
    return result;
  }

  const Tensor& tensor_at(const Op& op, size_t position) const {
    return graph_.tensor(position < op.inputs.size() ? op.inputs[position] : op.outputs[position - op.inputs.size()]);
  }

  double reorder_ms(TensorId id, const Layout& from, const Layout& to) {
    if (same_layout(from, to)) return 0;
    const Tensor& tensor = graph_.tensor(id);
    return can_reorder(tensor.dtype) ? candidates_.reorder_ms(tensor, from, to) : kNever;
  }

  // What the layout that the tensor must have outside the step is; nothing where it is free.
  std::optional<Layout> outside(TensorId id) const {
    if (is_output_[id]) return Layout{};
    const TensorId before = state_before_[id];
    return before.valid() && decided_[before] ? std::optional(made_[before]) : std::nullopt;
  }

  double input_ms(OpId op, TensorId id, const Layout& wanted, Phase phase) {
    if (!decided_[id]) return future_ms(id, wanted, op);
    if (same_layout(made_[id], wanted)) return 0;
    if (std::optional<Layout> must = outside(id); must && same_layout(*must, wanted)) return 0;
    if (copies_.contains({id.index, canonical(wanted).tag, phase})) return 0;
    return reorder_ms(id, made_[id], wanted);
  }

  // What it will cost others that a state is laid out so: its other readers, and its gradient.
  double future_ms(TensorId id, const Layout& layout, OpId asking) {
    double total = 0;
    for (OpId reader_id : readers_[id]) {
      if (reader_id == asking) continue;
      const Op& reader = graph_.op(reader_id);
      if (reader.type->changes_state) {
        total += gradient_ms(reader, id, layout);
      } else {
        total += least_ms(reader_id, [&](const KernelSpec& spec) {
          double ms = 0;
          for (size_t i = 0; i < reader.inputs.size(); ++i) {
            if (reader.inputs[i] == id && i < spec.inputs.size() && spec.inputs[i].tag != kAnyLayout.tag) {
              ms += reorder_ms(id, layout, spec.inputs[i]);
            }
          }
          return ms;
        });
      }
    }
    return total;
  }
  double gradient_ms(const Op& update, TensorId parameter, const Layout& layout) {
    double total = 0;
    const Shape& shape = graph_.tensor(parameter).shape;
    for (TensorId gradient : update.inputs) {
      const Tensor& g = graph_.tensor(gradient);
      if (!g.producer.valid() || g.shape != shape) continue;
      const Op& producer = graph_.op(g.producer);
      for (size_t i = 0; i < producer.outputs.size(); ++i) {
        if (producer.outputs[i] != gradient) continue;
        total += least_ms(g.producer, [&](const KernelSpec& spec) {
          const bool open = i >= spec.outputs.size() || spec.outputs[i].tag == kAnyLayout.tag;
          return open ? 0 : reorder_ms(gradient, spec.outputs[i], layout);
        });
      }
    }
    return total;
  }
  // The least time of an op's kernels with what `extra` adds.
  template <class Extra>
  double least_ms(OpId id, Extra extra) {
    if (graph_.op(id).type->is_view) return 0;
    double least = kNever;
    for (const KernelCandidates::Item* item : allowed(id)) least = std::min(least, item->time_ms + extra(item->spec));
    return least;
  }

  double output_ms(const Op& op, size_t i, const Layout& layout) {
    const TensorId id = op.outputs[i];
    double total = 0;
    if (std::optional<Layout> must = outside(id)) total += reorder_ms(id, layout, *must);
    const bool fixed = !can_reorder(graph_.tensor(id).dtype);
    double next[3] = {0, 0, 0};  // by phase, whose readers share a copy
    for (OpId reader_id : readers_[id]) {
      const Op& reader = graph_.op(reader_id);
      if (!reader.type->changes_state && outputs_differ_) {
        double& most = next[static_cast<size_t>(reader.phase)];
        most = std::max(most, reading_ms(reader_id, id, layout));
      }
      if (fixed && !has_kernel_for(reader_id, id, layout)) return kNever;
      if (reader.type->changes_state && graph_.tensor(reader.inputs[0]).shape == graph_.tensor(id).shape) {
        total += reorder_ms(id, layout, made_[reader.inputs[0]]);
      }
    }
    return total + next[0] + next[1] + next[2];
  }
  // How much more a reader costs when the tensor comes in this layout rather than in the one that it likes best.
  double reading_ms(OpId reader_id, TensorId id, const Layout& layout) {
    const Op& reader = graph_.op(reader_id);
    if (reader.type->is_view) return reorder_ms(id, layout, {});
    auto copying_ms = [&](const KernelSpec& spec) {
      double ms = 0;
      for (size_t i = 0; i < reader.inputs.size() && i < spec.inputs.size(); ++i) {
        if (reader.inputs[i] == id && spec.inputs[i].tag != kAnyLayout.tag)
          ms = std::max(ms, reorder_ms(id, layout, spec.inputs[i]));
      }
      return ms;
    };
    const double given = least_ms(reader_id, copying_ms);
    const double liked = least_ms(reader_id, [](const KernelSpec&) { return 0.0; });
    return given == kNever ? kNever : given - liked;
  }
  static bool outputs_differ(const std::vector<const KernelCandidates::Item*>& items) {
    return std::any_of(items.begin(), items.end(), [&](const KernelCandidates::Item* item) {
      return !std::equal(item->spec.outputs.begin(), item->spec.outputs.end(), items[0]->spec.outputs.begin(),
                         items[0]->spec.outputs.end(), same_layout);
    });
  }
  // What must lie in an input's bytes must lie as the input does.
  bool fits_in_place(const Op& op, const KernelSpec& spec) const {
    if (!op.type->in_place) return true;
    for (const InPlace& pair : op.type->in_place(graph_, op)) {
      if (!pair.required) continue;
      const size_t in = pair.input, out = pair.output;
      if (!same_layout(spec.inputs[in], spec.outputs[out])) return false;
      // A state is updated where it lies, not in a copy.
      const TensorId id = op.inputs[in];
      if (state_before_[op.outputs[out]] == id && decided_[id] && !same_layout(made_[id], spec.inputs[in])) {
        return false;
      }
    }
    return true;
  }
  bool has_kernel_for(OpId reader_id, TensorId id, const Layout& layout) {
    const Op& reader = graph_.op(reader_id);
    if (reader.type->is_view) return layout.is_plain();
    for (const KernelCandidates::Item* item : allowed(reader_id)) {
      bool fits = true;
      for (size_t i = 0; i < reader.inputs.size(); ++i) {
        if (reader.inputs[i] != id || layout_is_open(graph_, reader, item->spec, i)) continue;
        fits = fits && i < item->spec.inputs.size() && same_layout(item->spec.inputs[i], layout);
      }
      if (fits) return true;
    }
    return false;
  }

  double reorders_ms(OpId id, const Op& op, const KernelSpec& spec) {
    if (!fits_in_place(op, spec)) return kNever;
    double total = 0;
    for (size_t i = 0; i < op.inputs.size(); ++i) total += input_ms(id, op.inputs[i], spec.inputs[i], op.phase);
    for (size_t i = 0; i < op.outputs.size(); ++i) total += output_ms(op, i, spec.outputs[i]);
    return total;
  }

  KernelSpec choose(OpId id, double& time_ms) {
    const Op& op = graph_.op(id);
    KernelSpec best;
    if (op.type->is_view) {
      best.inputs.resize(op.inputs.size());
      best.outputs.resize(op.outputs.size());
    } else {
      double best_ms = kNever, best_kernel_ms = 0;
      const std::vector<const KernelCandidates::Item*>& items = allowed(id);
      outputs_differ_ = outputs_differ(items);
      for (const KernelCandidates::Item* item : items) {
        for (KernelSpec& spec : resolve(op, item->spec)) {
          const double ms = item->time_ms + reorders_ms(id, op, spec);
          if (ms == kNever || !is_better(ms, spec, best_ms, best)) continue;
          best_ms = ms;
          best_kernel_ms = item->time_ms;
          best = std::move(spec);
        }
      }
      if (best_ms == kNever) {
        throw Error(ErrorCode::unsupported,
                    fmt::format("op '{}' ({}): no kernel fits the layouts of its inputs with {} layouts", op.name,
                                op.type->name, to_string(family_)));
      }
      time_ms += best_kernel_ms;
    }
    take(op, best, time_ms);
    return best;
  }

  // Records what the choice means for the tensors, and adds the reorders' time.
  void take(const Op& op, const KernelSpec& spec, double& time_ms) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const TensorId id = op.inputs[i];
      if (!decided_[id]) {
        decided_[id] = true;
        made_[id] = canonical(spec.inputs[i]);
        continue;
      }
      time_ms += input_ms({}, id, spec.inputs[i], op.phase);
      if (!same_layout(made_[id], spec.inputs[i])) copies_.insert({id.index, canonical(spec.inputs[i]).tag, op.phase});
    }
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      made_[op.outputs[i]] = canonical(spec.outputs[i]);
      const TensorId before = state_before_[op.outputs[i]];
      if (before.valid() && !decided_[before]) {
        decided_[before] = true;
        made_[before] = canonical(spec.outputs[i]);
      }
      if (std::optional<Layout> must = outside(op.outputs[i]))
        time_ms += reorder_ms(op.outputs[i], spec.outputs[i], *must);
    }
  }

  const Graph& graph_;
  KernelCandidates& candidates_;
  LayoutFamily family_;
  const LayoutOptions& options_;
  ById<TensorId, std::vector<OpId>> readers_;
  ById<TensorId, Layout> made_;
  ById<TensorId, char> decided_;           // by tensor: false for a state, or what is fed, that nobody has read yet
  ById<TensorId, TensorId> state_before_;  // by tensor that a state becomes
  ById<TensorId, char> is_output_;
  bool outputs_differ_ = false;  // among the kernels of the op being decided: only then do its readers matter
  std::set<std::tuple<int32_t, std::string, Phase>> copies_;
  std::vector<std::optional<std::vector<const KernelCandidates::Item*>>> allowed_;  // by class of ops
  std::map<int32_t, std::vector<const KernelCandidates::Item*>> allowed_by_op_;     // where kernels are pinned by op
};

}  // namespace

bool can_reorder(DType dtype) { return dtype == DType::f32 || dtype == DType::f64; }

ById<TensorId, std::optional<Layout>> outside_layouts(const Graph& graph, const ById<TensorId, Layout>& made) {
  ById<TensorId, std::optional<Layout>> result(made.size());
  for (const State& state : graph.states) {
    if (state.after != state.before) {
      result[state.after] = made[state.before];
    }
  }
  for (TensorId id : graph.outputs) result[id] = Layout{};
  return result;
}

KernelCandidates::KernelCandidates(const Graph& graph, const Device& device, const CostTable& costs,
                                   std::optional<BatchSizes> batch_sizes, bool exact)
    : graph_(graph), device_(device), costs_(costs), batch_sizes_(batch_sizes), exact_(exact) {
  std::unordered_map<std::string, int> classes;
  for (const Op& op : graph.ops()) {
    const int next = static_cast<int>(classes.size());
    class_of_op_.push_back(classes.emplace(signature_without_layouts(graph, op), next).first->second);
  }
  for (auto& family : items_) family.resize(classes.size());
}

const std::vector<KernelCandidates::Item>& KernelCandidates::of(OpId id, LayoutFamily family) {
  std::optional<std::vector<Item>>& place = items_[static_cast<size_t>(family)][class_of_op_[id]];
  if (place) return *place;
  const Op& op = graph_.op(id);
  std::vector<Item> items;
  if (!op.type->is_view) {
    for (KernelSpec& spec : device_.kernels(graph_, op, family)) {
      const double ms = costs_.cost(graph_, op, spec).time_ms;
      auto same =
          std::find_if(items.begin(), items.end(), [&](const Item& item) { return same_layouts(item.spec, spec); });
      const int layouts = same == items.end() ? static_cast<int>(items.size()) : same->layouts;
      items.push_back({std::move(spec), ms, layouts});
    }
    if (items.empty()) {
      throw Error(ErrorCode::unsupported, fmt::format("device '{}' has no kernel for op '{}' ({})", device_.info().name,
                                                      op.name, op.type->name));
    }
  }
  if (!exact_) add_divided(op, family, items);
  place = std::move(items);
  return *place;
}

bool KernelCandidates::is_allowed(const Item& item, bool divide) const {
  return (divide || !item.divided) && (!exact_ || (item.spec.exact && item.spec.algorithm != Algorithm::winograd));
}

double KernelCandidates::reorder_ms(const Tensor& tensor, const Layout& from, const Layout& to) {
  std::string signature = reorder_signature(tensor.shape, tensor.dtype, from, to);
  auto [place, fresh] = reorder_ms_.emplace(std::move(signature), 0.0);
  if (!fresh) return place->second;
  // There is one kernel, measured in steps alone: its time there is all that is known of it.
  auto known = [&](const std::map<CostKey, Cost>& entries) {
    const auto entry = entries.lower_bound({place->first, "", 0});
    const bool found = entry != entries.end() && entry->first.signature == place->first;
    if (found) place->second = entry->second.time_ms;
    return found;
  };
  if (!known(costs_.in_step_entries()) && !known(costs_.entries())) {
    const Bytes bytes = storage_bytes(tensor.shape, tensor.dtype, from) + storage_bytes(tensor.shape, tensor.dtype, to);
    constexpr double kShareOfStreaming = 0.6;  // one side is read or written in short runs
    place->second = static_cast<double>(bytes.count) / (costs_.rates().memory_gb_per_s * 1e6 * kShareOfStreaming) +
                    costs_.rates().launch_us / 1000;
  }
  return place->second;
}

LayoutAssignment assign_layouts(const Graph& graph, std::span<const OpId> order, KernelCandidates& candidates,
                                LayoutFamily family, const LayoutOptions& options) {
  return LayoutSearch(graph, candidates, family, options).run(order);
}

}  // namespace plimsoll
