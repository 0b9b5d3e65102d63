#include "report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/texts.h"
#include "plimsoll/cost_graph.h"
#include "plimsoll/ops.h"
#include "report/charts.h"
#include "report/report.h"

namespace plimsoll {
namespace {

constexpr size_t kShownTensors = 25, kMostTensors = 200, kShownRows = 15;

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --back: #fff; --text: #1c2126; --dim: #5c6670; --line: #d9dee3; --card: #f5f7f9;
  --accent: #c2185b; --budget: #1c2126;
  --p: #3f72af; --o: #79b4d9; --s: #7a6bb5; --i: #98a2ab; --a: #4d9a5b; --g: #e08a3c; --w: #d8bd3a;
  --x: #c4cad0; }
@media (prefers-color-scheme: dark) { :root { --back: #14181c; --text: #e3e7ea; --dim: #98a3ad; --line: #333b43;
  --card: #1d2329; --accent: #ff6f9f; --budget: #e3e7ea;
  --p: #4478b8; --o: #86b8d6; --s: #9183cf; --i: #75808a; --a: #5aa768; --g: #d98540; --w: #bfa634;
  --x: #525b64; } }
body { margin: 0 auto; padding: 24px; max-width: 1200px; background: var(--back); color: var(--text);
  font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0 0 2px; overflow-wrap: anywhere; } h2 { font-size: 16px; margin: 34px 0 4px; }
p { margin: 2px 0 8px; color: var(--dim); }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(205px, 1fr)); gap: 8px; margin: 16px 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 7px 11px;
  overflow-wrap: anywhere; }
.card b { display: block; font-size: 17px; font-weight: 600; }
.card span { color: var(--dim); font-size: 12px; display: block; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 11px; fill: var(--dim); }
.grid { stroke: var(--line); } .tick { stroke: var(--dim); }
.phase { stroke: var(--text); stroke-dasharray: 2 3; opacity: .6; }
.arena { stroke: var(--accent); stroke-width: 1.5; }
.budget { stroke: var(--budget); stroke-width: 1.5; stroke-dasharray: 7 4; }
.peak { fill: none; stroke: var(--accent); stroke-width: 2.5; }
.peakline { stroke: var(--accent); stroke-dasharray: 4 3; } .hit { fill: transparent; }
.hit:hover { fill: var(--text); opacity: .15; }
.p { fill: var(--p); } .o { fill: var(--o); } .s { fill: var(--s); } .i { fill: var(--i); } .a { fill: var(--a); }
.g { fill: var(--g); } .w { fill: var(--w); } .x { fill: var(--x); }
.stay { stroke: var(--back); stroke-width: .4; } .stay:hover { stroke: var(--text); stroke-width: 1.5; }
.many { opacity: .6; }
.tf { fill: var(--p); } .tb { fill: var(--g); } .tu { fill: var(--a); } .tr { fill: var(--s); } .tc { fill: var(--i); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 12px; margin: 4px 0 8px; }
.legend svg { width: 18px; height: 11px; display: inline-block; margin-right: 5px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { text-align: left; color: var(--dim); font-weight: 500; border-bottom: 1px solid var(--line); }
th, td { padding: 2px 10px 2px 0; vertical-align: top; }
td { border-bottom: 1px solid var(--card); white-space: nowrap; }
.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.why { font-size: 15px; color: var(--text); max-width: 75ch; }
.scroll { overflow-x: auto; } .slices { color: var(--dim); white-space: nowrap; }
td.name { min-width: 10em; white-space: normal; overflow-wrap: anywhere; }
td.bar { width: 26%; min-width: 60px; vertical-align: middle; }
.bar div { height: 8px; border-radius: 2px; background: var(--p); margin: 1px 0; }
.bar div.measured { background: var(--g); }
details { margin: 6px 0; } summary { cursor: pointer; color: var(--dim); }
.columns { display: grid; grid-template-columns: 1fr 1fr; gap: 28px; }
.columns > div { min-width: 0; }
@media (max-width: 900px) { .columns { grid-template-columns: 1fr; } }
@media (max-width: 600px) { body { padding: 14px; } .cards { grid-template-columns: 1fr 1fr; }
  .scroll > svg { min-width: 760px; } .scroll > svg text { font-size: 12.5px; } }
)";

std::string card(std::string_view label, std::string_view value, std::string_view more = {}) {
  std::string text = fmt::format("<div class=\"card\"><span>{}</span><b>{}</b>", label, escape_html(value));
  if (!more.empty()) text += fmt::format("<span>{}</span>", escape_html(more));
  return text + "</div>\n";
}

std::string header(const Program& program, const ReportFacts& facts) {
  const Plan& plan = program.plan;
  const Graph& graph = program.network.graph;
  const PlanReason reason = facts.reason.value_or(reason_of(program));
  std::string html =
      fmt::format("<h1>{}{}</h1>\n<p>{}{}</p>\n<p class=\"why\">{}{}{}</p>\n<div class=\"cards\">\n",
                  escape_html(shortened(facts.model)), facts.batch > 0 ? fmt::format(", batch {}", facts.batch) : "",
                  escape_html(shortened(facts.device, 200)),
                  facts.data.empty() ? "" : escape_html(", data " + shortened(facts.data)), escape_html(reason.why),
                  reason.more.empty() ? "" : " ", escape_html(reason.more));
  const bool bounded = plan.budget.count != INT64_MAX;
  html += card("budget", bounded ? to_string(plan.budget) : "none",
               facts.minimum ? fmt::format("{} would do", to_string(*facts.minimum)) : "");
  html += card("arena", to_string(plan.arena), fmt::format("policy {}, {} placement", plan.policy, plan.placement));
  const Op& op = graph.op(plan.steps.at(plan.predicted.peak_step).op);
  html += card("peak", to_string(plan.predicted.peak),
               fmt::format("step {} of {}: {}{}", plan.predicted.peak_step, plan.steps.size(), shortened(op.name),
                           op.layer.empty() ? "" : ", layer " + shortened(op.layer)));
  html += card("every tensor its own memory", to_string(program.baseline_peak),
               fmt::format("{:.1f} times the arena", static_cast<double>(program.baseline_peak.count) /
                                                         static_cast<double>(std::max<int64_t>(1, plan.arena.count))));
  const double ms = plan.predicted.step_time_ms, estimated = plan.predicted.estimated_share;
  std::string origin = holds_only_costs(graph) ? "as the file says"
                       : estimated < 0.005     ? "from measured kernels"
                                               : fmt::format("{:.0f} % of it estimated", 100 * estimated);
  if (facts.batch > 0 && ms > 0)
    origin = fmt::format(
        "{}, {}", rate_text(1000.0 * static_cast<double>(facts.batch) / ms, tokens_of_sample(program.network)), origin);
  const bool several = program.network.accumulate > 1;
  if (several) origin += fmt::format(", {} batches a step", program.network.accumulate);
  html += card(several ? "predicted time of a batch" : "predicted step time", time_text(ms), origin);
  if (const auto& m = facts.measured) {
    const std::string off = ms > 0 ? fmt::format(", prediction {:+.0f} %", 100 * (ms / m->step_time_ms - 1)) : "";
    if (m->step_time_ms > 0)
      html +=
          card(several ? "measured time of a batch" : "measured step time", time_text(m->step_time_ms), "median" + off);
    html += card("measured speed", rate_text(m->images_per_second, tokens_of_sample(program.network)),
                 fmt::format("{} steps in {:.1f} s{}", m->steps, m->seconds, m->interrupted ? ", interrupted" : ""));
    html += card(m->accuracy ? "test accuracy" : "loss",
                 m->accuracy ? fmt::format("{:.2f} %", 100 * *m->accuracy) : fmt::format("{:.4f}", m->loss),
                 m->accuracy ? fmt::format("training loss {:.4f}", m->loss) : "");
    html += card("measured peak", to_string(m->peak), fmt::format("whole process {}", to_string(m->process_peak)));
  }
  html += card("layout", to_string(program.family),
               fmt::format("{} ops, {} tensors", graph.ops().size(), graph.tensors().size()));
  if (const std::string cores = cores_text(plan); !cores.empty())
    html += card("steps at once", std::to_string(plan.cores.inter_op), cores);
  if (plan.predicted.recompute_steps > 0)
    html += card("recomputed", fmt::format("{} steps", plan.predicted.recompute_steps));
  if (!plan.moves.empty())
    html += card("copied out of the arena", to_string(plan.predicted.offload),
                 fmt::format("and {} back", to_string(plan.predicted.prefetch)));
  return html + "</div>\n";
}

std::string legend_item(std::string_view shape, std::string_view text) {
  return fmt::format("<span><svg viewBox=\"0 0 18 11\" aria-hidden=\"true\">{}</svg>{}</span>\n", shape,
                     escape_html(text));
}
std::string legend_box(std::string_view css, std::string_view text) {
  return legend_item(fmt::format("<rect class=\"{}\" width=\"18\" height=\"11\"/>", css), text);
}
std::string legend_line(std::string_view css, std::string_view text) {
  return legend_item(fmt::format("<path class=\"{}\" d=\"M0 5.5h18\"/>", css), text);
}

std::string kind_legend(const Graph& graph, const Plan& plan) {
  std::array<bool, kMemoryKinds> used{};
  for (const Stay& stay : plan.stays) used[static_cast<size_t>(memory_kind(graph, stay))] = true;
  used[static_cast<size_t>(MemoryKind::next_batch)] = second_buffer_bytes(plan).count > 0;
  std::string html;
  for (size_t k = 0; k < kMemoryKinds; ++k) {
    const auto kind = static_cast<MemoryKind>(k);
    if (used[k]) html += legend_box(std::string(1, memory_kind_class(kind)), memory_kind_text(kind));
  }
  return html;
}

// Wide things scroll in a box of their own, so that the page is as wide as the screen.
std::string in_box(const std::string& wide) {
  return wide.empty() ? "" : fmt::format("<div class=\"scroll\">\n{}</div>\n", wide);
}

std::string memory_section(const Graph& graph, const Plan& plan) {
  std::string html = "<h2>Memory over a training step</h2>\n<div class=\"legend\">\n" + kind_legend(graph, plan);
  html += legend_line("arena", fmt::format("arena {}", to_string(plan.arena)));
  if (plan.budget.count / 2 <= plan.arena.count) {
    html += legend_line("budget", fmt::format("budget {}", to_string(plan.budget)));
  } else if (plan.budget.count != INT64_MAX) {
    html += fmt::format("<span>budget {}, far above</span>", to_string(plan.budget));
  }
  html += legend_item("<circle class=\"peak\" cx=\"9\" cy=\"5.5\" r=\"4\"/>",
                      fmt::format("peak {} at step {}", to_string(plan.predicted.peak), plan.predicted.peak_step));
  html += "</div>\n" + in_box(memory_chart(graph, plan));
  html +=
      "<h2>Where every byte lies</h2>\n<p>A rectangle is a tensor: from its first step to its last, at its place in "
      "the arena. Point at one to see its name. "
      "What is too small is drawn together, paler.</p>\n<div class=\"legend\">\n" +
      kind_legend(graph, plan);
  return html + legend_line("peakline", "step of the peak") + "</div>\n" + in_box(memory_map(graph, plan));
}

// Time that many steps take together.
struct Spent {
  std::string name;
  int steps = 0;
  double predicted_ms = 0, measured_ms = 0;
};

template <class NameOf>
std::vector<Spent> time_by(const Graph& graph, const Plan& plan, std::span<const StepRecord> records, NameOf name_of) {
  std::map<std::string, Spent, std::less<>> sums;
  auto entry = [&](size_t s) -> Spent& { return sums[name_of(graph.op(plan.steps[s].op))]; };
  for (size_t s = 0; s < plan.steps.size(); ++s) ++entry(s).steps;
  for (const EngineSpan& span : plan.predicted.timeline) {
    if (span.engine == 0) entry(span.index).predicted_ms += span.end_ms - span.start_ms;
  }
  for (size_t s = 0; s < records.size(); ++s) entry(s).measured_ms += records[s].end_ms - records[s].start_ms;
  std::vector<Spent> list;
  for (auto& [name, spent] : sums) {
    spent.name = name;
    list.push_back(std::move(spent));
  }
  std::stable_sort(list.begin(), list.end(), [&](const Spent& a, const Spent& b) {
    return records.empty() ? a.predicted_ms > b.predicted_ms : a.measured_ms > b.measured_ms;
  });
  return list;
}

std::string time_table(std::string_view what, std::vector<Spent> list, bool measured) {
  double most = 1e-9;
  for (const Spent& s : list) most = std::max({most, s.predicted_ms, s.measured_ms});
  size_t bars = list.size();  // a row of the rest has none: it would dwarf the others
  if (list.size() > kShownRows + 1) {
    bars = kShownRows;
    Spent rest{fmt::format("{} others", list.size() - kShownRows)};
    for (size_t i = kShownRows; i < list.size(); ++i) {
      rest.steps += list[i].steps;
      rest.predicted_ms += list[i].predicted_ms;
      rest.measured_ms += list[i].measured_ms;
    }
    list.resize(kShownRows);
    list.push_back(std::move(rest));
  }
  std::string html =
      fmt::format("<table><tr><th>{}</th><th class=\"n\">steps</th><th class=\"n\">predicted</th>{}<th></th></tr>\n",
                  what, measured ? "<th class=\"n\">measured</th>" : "");
  for (size_t i = 0; i < list.size(); ++i) {
    const Spent& s = list[i];
    html += fmt::format("<tr><td class=\"name\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>",
                        escape_html(shortened(s.name)), s.steps, time_text(s.predicted_ms));
    if (measured) html += fmt::format("<td class=\"n\">{}</td>", time_text(s.measured_ms));
    html += "<td class=\"bar\">";
    if (i < bars) html += fmt::format("<div style=\"width:{:.1f}%\"></div>", 100 * s.predicted_ms / most);
    if (i < bars && measured)
      html += fmt::format("<div class=\"measured\" style=\"width:{:.1f}%\"></div>", 100 * s.measured_ms / most);
    html += "</td></tr>\n";
  }
  return in_box(html + "</table>\n");
}

// The steps whose prediction is furthest off.
std::string surprises(const Graph& graph, const Plan& plan, std::span<const StepRecord> records) {
  struct Gap {
    size_t step;
    double predicted_ms, measured_ms;
    double size() const { return std::abs(measured_ms - predicted_ms); }
  };
  std::vector<Gap> gaps;
  for (const EngineSpan& span : plan.predicted.timeline) {
    const size_t s = span.index;
    if (span.engine == 0 && s < records.size())
      gaps.push_back({s, span.end_ms - span.start_ms, records[s].end_ms - records[s].start_ms});
  }
  std::stable_sort(gaps.begin(), gaps.end(), [](const Gap& a, const Gap& b) { return a.size() > b.size(); });
  gaps.resize(std::min<size_t>(gaps.size(), 10));
  if (gaps.empty()) return "";
  std::string html =
      "<details><summary>Steps whose prediction is furthest off</summary>\n"
      "<div class=\"scroll\">\n<table><tr><th class=\"n\">step</th><th>op</th><th>kernel</th>"
      "<th class=\"n\">predicted</th><th class=\"n\">measured</th></tr>\n";
  for (const Gap& gap : gaps) {
    const Step& step = plan.steps[gap.step];
    html += fmt::format(
        "<tr><td class=\"n\">{}</td><td class=\"name\">{}</td><td class=\"name\">{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td></tr>\n",
        gap.step, escape_html(shortened(graph.op(step.op).name)), escape_html(shortened(step.kernel)),
        time_text(gap.predicted_ms), time_text(gap.measured_ms));
  }
  return html + "</table></div></details>\n";
}

std::string time_section(const Graph& graph, const Plan& plan, std::span<const StepRecord> records) {
  const bool measured = !records.empty();
  std::string html = "<h2>Time</h2>\n<div class=\"legend\">\n" + legend_box("tf", "forward") +
                     legend_box("tb", "backward") + legend_box("tu", "update");
  if (plan.predicted.recompute_steps > 0) html += legend_box("tr", "recomputed");
  if (!plan.moves.empty()) html += legend_box("tc", "copies");
  html += "</div>\n" + in_box(timeline_chart(graph, plan, records));
  if (measured)
    html +=
        "<p>Measured: the last training step. In the tables below, the upper bar is predicted, the lower one "
        "measured.</p>\n";
  html += time_table(
      "phase", time_by(graph, plan, records, [](const Op& op) { return std::string(to_string(op.phase)); }), measured);
  html += "<div class=\"columns\"><div><h2>By op type</h2>\n";
  html += time_table("type", time_by(graph, plan, records, [](const Op& op) { return op.type->name; }), measured);
  html += "</div><div><h2>By layer</h2>\n";
  html += time_table(
      "layer",
      time_by(graph, plan, records, [](const Op& op) { return op.layer.empty() ? std::string("(none)") : op.layer; }),
      measured);
  return html + "</div></div>\n" + (measured ? surprises(graph, plan, records) : "");
}

// "12.4 MiB", with the number of bytes where the pointer rests.
std::string bytes_cell(Bytes bytes) {
  return fmt::format("<td class=\"n\" title=\"{} bytes\">{}</td>", bytes.count, to_string(bytes));
}

// Where a row lies: one offset, or that of each of its slices where the pointer rests.
std::string offset_cell(const Graph& graph, const LiveRow& row) {
  if (row.stays.size() == 1) return bytes_cell(row.stays[0]->offset);
  std::string places;
  for (size_t i = 0; i < row.stays.size() && i < kShownRows; ++i) {
    const Stay& stay = *row.stays[i];
    places += fmt::format("{}{} at {} ({} bytes)", i == 0 ? "" : "\n", shortened(graph.tensor(stay.tensor).name),
                          to_string(stay.offset), stay.offset.count);
  }
  if (row.stays.size() > kShownRows) places += fmt::format("\nand {} more", row.stays.size() - kShownRows);
  return fmt::format("<td class=\"n\" title=\"{}\">from {}</td>", escape_html(places), to_string(row.stays[0]->offset));
}

std::string tensor_rows(const Graph& graph, std::span<const LiveRow> rows) {
  std::string html;
  for (const LiveRow& row : rows) {
    StepIndex first = row.stays[0]->first, last = row.stays[0]->last;
    for (const Stay* stay : row.stays) {
      first = std::min(first, stay->first);
      last = std::max(last, stay->last);
    }
    const size_t slices = row.stays.size();
    html += fmt::format(
        "<tr>{}<td>{}</td><td class=\"name\">{}{}</td><td>{}{}</td>{}<td class=\"n\">{} to {}</td></tr>\n",
        bytes_cell(row.bytes), memory_kind_text(memory_kind(graph, *row.stays[0])), escape_html(shortened(row.name)),
        slices > 1 ? fmt::format(" <span class=\"slices\">in {} slices</span>", slices) : "", slices > 1 ? "of " : "",
        row.shape, offset_cell(graph, row), first, last);
  }
  return html;
}

std::string second_buffer_rows(const Graph& graph, const Plan& plan) {
  std::string html;
  for (const FedInput& input : plan.feeding.inputs) {
    if (!plan.feeding.second_buffer) break;
    const Tensor& tensor = graph.tensor(input.tensor);
    html += fmt::format("<tr>{}<td>{}</td><td class=\"name\">{}</td><td>{}</td>{}<td class=\"n\">all</td></tr>\n",
                        bytes_cell(input.bytes), memory_kind_text(MemoryKind::next_batch),
                        escape_html(shortened(tensor.name)), to_string(tensor.shape), bytes_cell(input.offset));
  }
  return html;
}

std::string tensor_table(const std::string& rows) {
  return in_box(
      "<table><tr><th class=\"n\">size</th><th>role</th><th>tensor</th><th>shape</th><th class=\"n\">offset</th><th "
      "class=\"n\">steps</th></tr>\n" +
      rows + "</table>\n");
}

std::string peak_section(const Graph& graph, const Plan& plan) {
  const std::vector<LiveRow> rows = live_rows(graph, plan, plan.predicted.peak_step);
  const std::span<const LiveRow> all(rows), first = all.first(std::min(all.size(), kShownTensors));
  std::string html = fmt::format(
      "<h2>Alive at the peak</h2>\n<p>What holds {} at step {}. A tensor that lies in the bytes of another one is "
      "listed, too.</p>\n",
      to_string(plan.predicted.peak), plan.predicted.peak_step);
  html += tensor_table(second_buffer_rows(graph, plan) + tensor_rows(graph, first));
  if (all.size() == first.size()) return html;
  const auto more = all.subspan(first.size(), std::min(all.size(), kMostTensors) - first.size());
  Bytes rest;
  for (const LiveRow& row : all.subspan(first.size() + more.size())) rest += row.bytes;
  html += fmt::format("<details><summary>{} more</summary>\n{}", all.size() - first.size(),
                      tensor_table(tensor_rows(graph, more)));
  if (rest.count > 0)
    html += fmt::format("<p>and {} more of {} together</p>", all.size() - first.size() - more.size(), to_string(rest));
  return html + "</details>\n";
}

}  // namespace

std::string html_report(const Program& program, const ReportFacts& facts, std::span<const StepRecord> records) {
  const Graph& graph = program.network.graph;
  const Plan& plan = program.plan;
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{}: {}</title>\n<style>{}</style>\n</head>\n<body>\n",
      escape_html(shortened(facts.model)), to_string(plan.arena), kStyle);
  html += header(program, facts);
  html += memory_section(graph, plan);
  html += time_section(graph, plan, records);
  html += peak_section(graph, plan);
  return html + "</body>\n</html>\n";
}

}  // namespace plimsoll
