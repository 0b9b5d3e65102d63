#include "report/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr double kLeft = 74, kRight = 16, kPlot = 1030, kWidth = kLeft + kPlot + kRight;
constexpr size_t kMostRectangles = 8000;

template <class... Args>
void append(std::string& text, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
}

std::string op_text(const Graph& graph, const Plan& plan, size_t step) {
  const Op& op = graph.op(plan.steps[step].op);
  std::string text = fmt::format("step {}: {} ({}", step, shortened(op.name), op.type->name);
  if (!op.layer.empty()) append(text, ", layer {}", shortened(op.layer));
  return text + ")";
}

// The axes that the charts over steps share.
struct StepAxis {
  double steps;
  explicit StepAxis(const Plan& plan) : steps(static_cast<double>(std::max<size_t>(1, plan.steps.size()))) {}
  double x(double step) const { return kLeft + kPlot * step / steps; }
};

// 1, 2, 5, 10, 20, ...: the first that divides the range into no more than `most` parts.
double nice_interval(double range, int most) {
  constexpr double kFactors[] = {2, 2.5, 2};
  double interval = 1;
  for (size_t i = 0; range / interval > most; ++i) interval *= kFactors[i % 3];
  return interval;
}

std::string open_svg(double height, std::string_view label) {
  return fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", kWidth, height, label);
}

void draw_byte_axis(std::string& svg, int64_t most, double top, double height) {
  int64_t interval = 1;
  while (most / interval > 5) interval *= 2;
  for (int64_t bytes = 0; bytes <= most; bytes += interval) {
    const double y = top + height * (1 - static_cast<double>(bytes) / static_cast<double>(most));
    append(svg, "<path class=\"grid\" d=\"M{} {:.1f}h{}\"/><text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
           kLeft, y, kPlot, kLeft - 6, y + 4, bytes == 0 ? "0" : to_string(Bytes{bytes}));
  }
}

void draw_step_axis(std::string& svg, const Graph& graph, const Plan& plan, double top, double bottom) {
  const StepAxis axis(plan);
  const double interval = nice_interval(axis.steps, 12);
  for (double step = 0; step < axis.steps; step += interval) {
    append(
        svg,
        "<path class=\"tick\" d=\"M{:.1f} {}v4\"/><text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.0f}</text>\n",
        axis.x(step), bottom, axis.x(step), bottom + 16, step);
  }
  append(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">step</text>\n", kLeft + kPlot, bottom + 30);
  const auto backward = std::find_if(plan.steps.begin(), plan.steps.end(),
                                     [&](const Step& s) { return graph.op(s.op).phase == Phase::backward; });
  if (backward == plan.steps.end() || backward == plan.steps.begin()) return;
  const double x = axis.x(static_cast<double>(backward - plan.steps.begin()));
  append(svg,
         "<path class=\"phase\" d=\"M{:.1f} {}V{}\"/><text x=\"{:.1f}\" y=\"{}\" text-anchor=\"end\">forward</text>"
         "<text x=\"{:.1f}\" y=\"{}\">backward</text>\n",
         x, top, bottom, x - 6, bottom + 30, x + 6, bottom + 30);
}

std::string stay_title(const Graph& graph, const Plan& plan, const Stay& stay) {
  if (stay.is_workspace())
    return fmt::format("workspace of {}\nkernel {}\n{} at {} (byte {})", op_text(graph, plan, stay.first),
                       shortened(plan.steps[stay.first].kernel), to_string(stay.bytes), to_string(stay.offset),
                       stay.offset.count);
  const Tensor& tensor = graph.tensor(stay.tensor);
  return fmt::format("{} ({}, {})\n{} at {} (byte {})\nsteps {} to {}", shortened(tensor.name), to_string(tensor.role),
                     to_string(tensor.shape), to_string(stay.bytes), to_string(stay.offset), stay.offset.count,
                     stay.first, stay.last);
}

std::string second_buffer_title(const Graph& graph, const FedInput& input) {
  const Tensor& tensor = graph.tensor(input.tensor);
  return fmt::format("{} of the next batch ({})\n{} at {} (byte {})\nall steps", shortened(tensor.name),
                     to_string(tensor.shape), to_string(input.bytes), to_string(input.offset), input.offset.count);
}

// Stays that are too small for a rectangle of their own, painted together on a grid of small cells: a cell takes the
// colour of what covers most of it.
class CellPainter {
 public:
  void add(MemoryKind kind, double x0, double x1, double y0, double y1) {
    const size_t first = cell(x0 - kLeft, columns_), last = cell(x1 - kLeft - 1e-9, columns_);
    const size_t low = cell(y0, rows_), high = cell(y1 - 1e-9, rows_);
    for (size_t row = low; row <= high; ++row) {
      const double tall = std::max(0.0, std::min(y1, side(row + 1)) - std::max(y0, side(row)));
      for (size_t column = first; column <= last; ++column) {
        const double wide = std::max(0.0, std::min(x1 - kLeft, side(column + 1)) - std::max(x0 - kLeft, side(column)));
        cover_[(row * columns_ + column) * kMemoryKinds + static_cast<size_t>(kind)] +=
            static_cast<float>(tall * wide / (kCell * kCell));
      }
    }
  }
  std::string paths() const {
    std::array<std::string, kMemoryKinds> path;
    for (size_t row = 0; row < rows_; ++row) {
      for (size_t column = 0; column < columns_;) {
        const int kind = dominant(row, column);
        size_t end = column + 1;
        while (end < columns_ && dominant(row, end) == kind) ++end;
        if (kind >= 0)
          append(path[kind], "M{:.0f} {:.0f}h{:.0f}v{}H{:.0f}z", kLeft + side(column), side(row), side(end - column),
                 kCell, kLeft + side(column));
        column = end;
      }
    }
    std::string svg;
    for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
      if (!path[kind].empty())
        append(svg, "<path class=\"{} many\" d=\"{}\"/>\n", memory_kind_class(static_cast<MemoryKind>(kind)),
               path[kind]);
    }
    return svg;
  }
  static constexpr double kHeight = 440;

 private:
  static constexpr double kCell = 2;
  static double side(size_t cells) { return kCell * static_cast<double>(cells); }
  static size_t cell(double at, size_t count) {
    return std::min(count - 1, static_cast<size_t>(std::max(0.0, at) / kCell));
  }
  int dominant(size_t row, size_t column) const {
    const float* cover = &cover_[(row * columns_ + column) * kMemoryKinds];
    const float* most = std::max_element(cover, cover + kMemoryKinds);
    float sum = 0;
    for (size_t kind = 0; kind < kMemoryKinds; ++kind) sum += cover[kind];
    return sum < 0.35F ? -1 : static_cast<int>(most - cover);
  }

  size_t columns_ = static_cast<size_t>(kPlot / kCell), rows_ = static_cast<size_t>(kHeight / kCell);
  std::vector<float> cover_ = std::vector<float>(columns_ * rows_ * kMemoryKinds, 0.0F);
};

// One bar of a timeline, or several neighbours that are too short to be seen alone.
struct Bar {
  double start = 0, end = 0;
  size_t first = 0, last = 0;
  std::map<std::string_view, double> by_class;
};

std::string_view step_class(const Graph& graph, const Step& step) {
  if (step.recompute) return "tr";
  switch (graph.op(step.op).phase) {
    case Phase::forward: return "tf";
    case Phase::backward: return "tb";
    case Phase::update: return "tu";
  }
  return "tf";
}

template <class Title>
void draw_bars(std::string& svg, const std::vector<Bar>& bars, double ms_width, double y, double height, Title title) {
  for (size_t i = 0; i < bars.size();) {
    Bar group = bars[i++];
    while (i < bars.size() && (group.end - group.start) * ms_width < 1.5) {
      group.end = bars[i].end;
      group.last = bars[i].last;
      for (const auto& [name, ms] : bars[i].by_class) group.by_class[name] += ms;
      ++i;
    }
    const auto most = std::max_element(group.by_class.begin(), group.by_class.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    append(svg, "<rect class=\"{}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"><title>{}</title></rect>\n",
           most->first, kLeft + group.start * ms_width, y, std::max(0.3, (group.end - group.start) * ms_width), height,
           escape_html(title(group)));
  }
}

}  // namespace

MemoryKind memory_kind(const Graph& graph, const Stay& stay) {
  if (stay.is_workspace()) return MemoryKind::workspace;
  switch (graph.tensor(stay.tensor).role) {
    case Role::parameter: return MemoryKind::parameter;
    case Role::optimizer_state: return MemoryKind::optimizer_state;
    case Role::statistic: return MemoryKind::statistic;
    case Role::activation: return MemoryKind::activation;
    case Role::gradient: return MemoryKind::gradient;
    case Role::input:
    case Role::hyperparameter:
    case Role::output: return MemoryKind::in_out;
  }
  return MemoryKind::activation;
}

std::string_view memory_kind_text(MemoryKind kind) {
  constexpr std::string_view kTexts[] = {"parameters", "optimizer state", "statistics", "inputs and outputs",
                                         "next batch", "activations",     "gradients",  "workspace"};
  return kTexts[static_cast<size_t>(kind)];
}

char memory_kind_class(MemoryKind kind) { return "posixagw"[static_cast<size_t>(kind)]; }

std::vector<StepMemory> memory_by_step(const Graph& graph, const Plan& plan) {
  std::vector<StepMemory> result(plan.steps.size());
  const int64_t next_batch = second_buffer_bytes(plan).count;
  for (StepIndex s = 0; s < std::ssize(plan.steps); ++s) {
    result[s].by_kind[static_cast<size_t>(MemoryKind::next_batch)] = result[s].total = next_batch;
    for (const auto& [stay, bytes] : held_at(plan, s)) {
      result[s].by_kind[static_cast<size_t>(memory_kind(graph, *stay))] += bytes.count;
      result[s].total += bytes.count;
    }
  }
  return result;
}

std::string memory_chart(const Graph& graph, const Plan& plan) {
  constexpr double kTop = 10, kHeight = 260, kBottom = kTop + kHeight;
  const std::vector<StepMemory> memory = memory_by_step(graph, plan);
  const StepAxis axis(plan);
  const bool budget_near = plan.budget.count / 2 <= plan.arena.count;
  const auto most = static_cast<int64_t>(
      1.08 * static_cast<double>(std::max({plan.arena.count, budget_near ? plan.budget.count : 0, int64_t{1}})));
  auto y = [&](int64_t bytes) { return kBottom - kHeight * static_cast<double>(bytes) / static_cast<double>(most); };

  // No more columns than pixels; a column shows the largest of its steps.
  const size_t columns = std::min(memory.size(), static_cast<size_t>(kPlot));
  std::vector<size_t> shown, begins;
  for (size_t c = 0; c < columns; ++c) {
    const size_t begin = c * memory.size() / columns, end = (c + 1) * memory.size() / columns;
    begins.push_back(begin);
    shown.push_back(std::max_element(memory.begin() + static_cast<ptrdiff_t>(begin),
                                     memory.begin() + static_cast<ptrdiff_t>(end),
                                     [](const StepMemory& a, const StepMemory& b) { return a.total < b.total; }) -
                    memory.begin());
  }
  begins.push_back(memory.size());

  std::string svg = open_svg(kBottom + 36, "memory over the steps");
  draw_byte_axis(svg, most, kTop, kHeight);
  std::vector<int64_t> floor(columns, 0);
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    std::string up, down;
    for (size_t c = 0; c < columns; ++c) {
      const int64_t ceiling = floor[c] + memory[shown[c]].by_kind[kind];
      append(up, "{}{:.1f} {:.1f}H{:.1f}", c == 0 ? "M" : "L", axis.x(static_cast<double>(begins[c])), y(ceiling),
             axis.x(static_cast<double>(begins[c + 1])));
    }
    for (size_t c = columns; c-- > 0;) {
      append(down, "L{:.1f} {:.1f}H{:.1f}", axis.x(static_cast<double>(begins[c + 1])), y(floor[c]),
             axis.x(static_cast<double>(begins[c])));
      floor[c] += memory[shown[c]].by_kind[kind];
    }
    append(svg, "<path class=\"{}\" d=\"{}{}z\"/>\n", memory_kind_class(static_cast<MemoryKind>(kind)), up, down);
  }
  draw_step_axis(svg, graph, plan, kTop, kBottom);
  append(svg, "<path class=\"arena\" d=\"M{} {:.1f}h{}\"/>\n", kLeft, y(plan.arena.count), kPlot);
  if (budget_near) append(svg, "<path class=\"budget\" d=\"M{} {:.1f}h{}\"/>\n", kLeft, y(plan.budget.count), kPlot);
  append(svg, "<circle class=\"peak\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\"/>\n", axis.x(plan.predicted.peak_step + 0.5),
         y(plan.predicted.peak.count));
  for (size_t c = 0; c < columns; ++c) {  // what the pointer finds
    std::string title = fmt::format("{}\n{}", op_text(graph, plan, shown[c]), to_string(Bytes{memory[shown[c]].total}));
    for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
      const Bytes bytes{memory[shown[c]].by_kind[kind]};
      if (bytes.count > 0) append(title, "\n{}: {}", memory_kind_text(static_cast<MemoryKind>(kind)), to_string(bytes));
    }
    append(svg, "<rect class=\"hit\" x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\"><title>{}</title></rect>\n",
           axis.x(static_cast<double>(begins[c])), kTop,
           axis.x(static_cast<double>(begins[c + 1])) - axis.x(static_cast<double>(begins[c])), kHeight,
           escape_html(title));
  }
  return svg + "</svg>\n";
}

std::string memory_map(const Graph& graph, const Plan& plan) {
  constexpr double kHeight = CellPainter::kHeight;
  const StepAxis axis(plan);
  const auto arena = static_cast<double>(std::max<int64_t>(1, plan.arena.count));
  struct Box {
    const Stay* stay;  // or null: it is of
    const FedInput* next;
    double x0, x1, y0, y1;
    double area() const { return (x1 - x0) * (y1 - y0); }
  };
  std::vector<Box> boxes;
  const auto y = [&](Bytes offset) { return kHeight * (1 - static_cast<double>(offset.count) / arena); };
  for (const Stay& stay : plan.stays)
    boxes.push_back(
        {&stay, nullptr, axis.x(stay.first), axis.x(stay.last + 1), y(stay.offset + stay.bytes), y(stay.offset)});
  for (const FedInput& input : plan.feeding.inputs) {
    if (plan.feeding.second_buffer)
      boxes.push_back({nullptr, &input, axis.x(0), axis.x(axis.steps), y(input.offset + input.bytes), y(input.offset)});
  }
  const auto kind_of = [&](const Box& box) {
    return box.stay != nullptr ? memory_kind(graph, *box.stay) : MemoryKind::next_batch;
  };
  const auto large_end =
      std::partition(boxes.begin(), boxes.end(), [](const Box& b) { return b.x1 - b.x0 >= 1 && b.y1 - b.y0 >= 1; });
  std::stable_sort(boxes.begin(), large_end, [](const Box& a, const Box& b) { return a.area() > b.area(); });
  const size_t large = std::min<size_t>(kMostRectangles, large_end - boxes.begin());

  std::string svg = open_svg(kHeight + 36, "memory map");
  draw_byte_axis(svg, plan.arena.count > 0 ? plan.arena.count : 1, 0, kHeight);
  CellPainter small;
  for (size_t i = large; i < boxes.size(); ++i)
    small.add(kind_of(boxes[i]), boxes[i].x0, boxes[i].x1, boxes[i].y0, boxes[i].y1);
  svg += small.paths();
  for (size_t i = 0; i < large; ++i) {
    const Box& box = boxes[i];
    append(
        svg,
        "<rect class=\"{} stay\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
        "height=\"{:.1f}\"><title>{}</title></rect>\n",
        memory_kind_class(kind_of(box)), box.x0, box.y0, box.x1 - box.x0, box.y1 - box.y0,
        escape_html(box.stay != nullptr ? stay_title(graph, plan, *box.stay) : second_buffer_title(graph, *box.next)));
  }
  draw_step_axis(svg, graph, plan, 0, kHeight);
  append(svg, "<path class=\"peakline\" d=\"M{:.1f} 0V{}\"/>\n", axis.x(plan.predicted.peak_step + 0.5), kHeight);
  return svg + "</svg>\n";
}

std::string timeline_chart(const Graph& graph, const Plan& plan, std::span<const StepRecord> records) {
  std::vector<std::vector<Bar>> engines(2 + 2 * plan.tiers.size());  // messages last
  std::vector<Bar> measured;
  double total = 0;
  for (const EngineSpan& span : plan.predicted.timeline) {
    if (span.end_ms <= span.start_ms) continue;  // a view
    const size_t index = span.index;
    const std::string_view name = span.engine == 0 ? step_class(graph, plan.steps[index]) : "tc";
    engines.at(span.engine)
        .push_back({span.start_ms, span.end_ms, index, index, {{name, span.end_ms - span.start_ms}}});
    total = std::max(total, span.end_ms);
  }
  for (size_t s = 0; s < records.size(); ++s) {
    if (records[s].end_ms <= records[s].start_ms) continue;
    measured.push_back({records[s].start_ms,
                        records[s].end_ms,
                        s,
                        s,
                        {{step_class(graph, plan.steps[s]), records[s].end_ms - records[s].start_ms}}});
    total = std::max(total, records[s].end_ms);
  }
  if (total <= 0) return "";

  struct Row {
    std::string label;
    const std::vector<Bar>* bars;
    bool steps;
  };
  std::vector<Row> rows{{"predicted", &engines[0], true}};
  for (size_t e = 1; e < engines.size(); ++e) {
    if (engines[e].empty()) continue;
    const bool messages = e + 1 == engines.size();
    rows.push_back(
        {messages ? "messages" : fmt::format("{} {}", e % 2 == 1 ? "to" : "from", plan.tiers[(e - 1) / 2].tier.name),
         &engines[e], false});
  }
  if (!measured.empty()) rows.push_back({"measured", &measured, true});

  const auto is_of_messages = [&](size_t row) { return rows[row].bars == &engines.back(); };
  const double ms_width = kPlot / total, bottom = 38.0 * static_cast<double>(rows.size());
  std::string svg = open_svg(bottom + 24, "timeline of a step");
  for (size_t r = 0; r < rows.size(); ++r) {
    const double y = 38.0 * static_cast<double>(r) + 4;
    append(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLeft - 6, y + 20, rows[r].label);
    draw_bars(svg, *rows[r].bars, ms_width, y, 30, [&](const Bar& bar) {
      const double ms = bar.end - bar.start;
      if (bar.first != bar.last)
        return fmt::format("{} {} to {}\n{:.4g} ms",
                           rows[r].steps       ? "steps"
                           : is_of_messages(r) ? "buckets"
                                               : "copies",
                           bar.first, bar.last, ms);
      if (rows[r].steps)
        return fmt::format("{}\n{:.4g} ms by {}", op_text(graph, plan, bar.first), ms, plan.steps[bar.first].kernel);
      if (is_of_messages(r))
        return fmt::format("{} gradients\n{:.4g} ms", plan.collectives[bar.first].steps.size(), ms);
      return fmt::format("{}\n{:.4g} ms", shortened(graph.tensor(plan.moves[bar.first].tensor).name), ms);
    });
  }
  double interval = 1;
  while (total / interval < 5) interval /= 10;
  interval *= nice_interval(total / interval, 10);
  for (double ms = 0; ms <= total; ms += interval) {
    append(
        svg,
        "<path class=\"tick\" d=\"M{:.1f} {}v4\"/><text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.4g}{}</text>\n",
        kLeft + ms * ms_width, bottom, kLeft + ms * ms_width, bottom + 16, ms, ms == 0 ? " ms" : "");
  }
  return svg + "</svg>\n";
}

std::string escape_html(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      case '\'': result += "&#39;"; break;
      default: result += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? ' ' : c;
    }
  }
  return result;
}

std::string shortened(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  auto inside = [&](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;
  };  // of a UTF-8 character
  size_t head = most / 2, tail = text.size() - most / 2;
  while (head > 0 && inside(head)) --head;
  while (tail < text.size() && inside(tail)) ++tail;
  return fmt::format("{}…{}", text.substr(0, head), text.substr(tail));
}

}  // namespace plimsoll
