// convolutions: which kernels, on how much of the batch at a time, for a table of shapes.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/files.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/interrupts.h"
#include "cli/progress.h"
#include "plimsoll/kernels.h"
#include "train/session.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

constexpr double kSaveSeconds = 15;
constexpr double kSecondsPerKernel = 0.1, kSecondsPerPair = 0.6;

struct ConvolutionsFlags {
  std::string file, workspace = "64MiB", batches = "powerOfTwo", device = "cpu", json;
  int threads = 0;
};

// A choice and what it took: as a whole where that was measured, else what its parts add up to.
struct Timed {
  ConvolutionChoice choice;
  double ms = 0;
  double spread_ms = 0;
};

// One row and pass. `slower` is a division that its parts' times promised and that was slower as a whole.
struct Answer {
  std::optional<Timed> undivided, divided, slower;
  bool measured = false;
  bool too_large = false;  // for this machine's memory, so nothing of it was run as a whole
};

bool same(const KernelSpec& a, const KernelSpec& b) {
  const auto tags = [](const KernelSpec& spec) {
    std::string text;
    for (const auto* side : {&spec.inputs, &spec.outputs}) {
      for (const Layout& layout : *side) text += layout.tag + " ";
    }
    return text;
  };
  return a.name == b.name && tags(a) == tags(b);
}

std::optional<Timed> predicted(const std::optional<ConvolutionChoice>& choice) {
  if (!choice) return std::nullopt;
  return Timed{*choice, choice->configuration.time_ms, 0};
}

Answer solve(const Convolution& row, ConvolutionPass pass, const Session& session, Bytes limit, BatchSizes batches) {
  Answer answer;
  answer.undivided =
      predicted(fastest_convolution(row, pass, *session.device, session.costs, limit, BatchSizes::undivided));
  answer.divided = predicted(fastest_convolution(row, pass, *session.device, session.costs, limit, batches));
  const auto& either = answer.divided ? answer.divided : answer.undivided;
  if (!either) return answer;
  const KernelSpec &a = (answer.undivided ? answer.undivided : either)->choice.kernel, &b = either->choice.kernel;
  const std::optional<ConvolutionTimes> times = time_in_turn(row, pass, *session.device, a, b, kSecondsPerPair);
  if (!times) {
    answer.too_large = !session.device->info().simulated;
    return answer;
  }
  answer.measured = true;
  const auto take = [](std::optional<Timed>& timed, const Cost& cost) {
    if (timed) timed->ms = cost.time_ms, timed->spread_ms = cost.spread_ms;
  };
  take(answer.undivided, times->a);
  take(answer.divided, same(a, b) ? times->a : times->b);
  if (answer.undivided && answer.divided && answer.divided->ms > answer.undivided->ms) {
    answer.slower = std::exchange(answer.divided, answer.undivided);
  }
  return answer;
}

json row_json(const Convolution& row, ConvolutionPass pass, const Answer& answer) {
  json line;
  for (size_t i = 0; i < std::size(kConvolutionColumns); ++i) line[std::string(kConvolutionColumns[i])] = field(row, i);
  line["pass"] = to_string(pass);
  line["measured"] = answer.measured;
  line["too_large_to_measure"] = answer.too_large;
  const auto add = [&](const std::string& side, const std::optional<Timed>& timed) {
    line[side + "_ms"] = timed ? json(timed->ms) : json(nullptr);
    line[side + "_spread_ms"] = timed && answer.measured ? json(timed->spread_ms) : json(nullptr);
    line[side + "_workspace"] = timed ? json(timed->choice.configuration.workspace.count) : json(nullptr);
  };
  add("undivided", answer.undivided);
  add("divided", answer.divided);
  line["undivided_configuration"] = answer.undivided ? json(answer.undivided->choice.kernel.name) : json(nullptr);
  line["configuration"] = answer.divided ? json(answer.divided->choice.kernel.name) : json(nullptr);
  line["predicted_ms"] = answer.divided ? json(answer.divided->choice.configuration.time_ms) : json(nullptr);
  if (answer.slower)
    line["rejected"] = {{"configuration", answer.slower->choice.kernel.name}, {"ms", answer.slower->ms}};
  return line;
}

std::string cell(const std::optional<Timed>& timed) {
  if (!timed) return fmt::format("{:>23}", "nothing fits");
  return fmt::format("{:>10.3f} ms {:>9}", timed->ms, to_string(timed->choice.configuration.workspace));
}

void say_row(const JsonLines& out, const Convolution& row, ConvolutionPass pass, const Answer& answer) {
  const std::string head = pass == ConvolutionPass::forward ? to_string(row) : "";
  const std::string gain =
      answer.undivided && answer.divided ? fmt::format("{:.2f}x", answer.undivided->ms / answer.divided->ms) : "-";
  say(out, fmt::format("{:<44} {:<17} {} {} {:>7}  {}", head, to_string(pass), cell(answer.undivided),
                       cell(answer.divided), gain, answer.divided ? answer.divided->choice.kernel.name : "") +
               (answer.too_large ? "  (estimated: too large to be measured here)" : ""));
}

struct Sums {
  double undivided_ms = 0, divided_ms = 0;
  int passes = 0, divided = 0, without = 0;
  int too_large = 0;
  bool measured = true;
  void add(const Answer& answer) {
    if (!answer.divided) ++without;
    too_large += answer.too_large;
    if (!answer.undivided || !answer.divided) return;
    ++passes;
    undivided_ms += answer.undivided->ms;
    divided_ms += answer.divided->ms;
    divided += answer.divided->choice.configuration.is_divided() ? 1 : 0;
    measured = measured && answer.measured;
  }
};

// What is measured is kept even when it is not brought to an end.
int measure(Session& session, const std::vector<Convolution>& rows, BatchSizes batches, Progress& progress) {
  Stopwatch since_saved;
  MeasureOptions options{.seconds_per_kernel = kSecondsPerKernel, .batches = batches};
  options.stop = [] { return interrupted() || output_closed(); };
  options.progress = [&](int done, int total, const std::string& what) {
    progress.update("measuring kernels", done, total, what);
    if (since_saved.seconds() < kSaveSeconds) return;
    session.database->save(session.costs);
    since_saved = {};
  };
  const int measured = measure_convolutions(rows, *session.device, session.costs, options);
  if (measured > 0) session.database->save(session.costs);
  progress.finish();
  return measured;
}

int convolutions(const ConvolutionsFlags& flags) {
  check_apart({{"--json", flags.json}}, {{"FILE", flags.file}});
  JsonLines out(flags.json);
  const BatchSizes batches = batch_sizes_named(flags.batches);
  Bytes limit;
  try {
    limit = parse_bytes(flags.workspace);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("--workspace: {}", error.what()));
  }
  const std::vector<Convolution> rows = convolutions_from_csv(read_file(flags.file), flags.file);
  Session session = open_session(flags.device, flags.threads);
  for (const std::string& notice : session.notices) complain(notice);
  catch_interrupts();
  forget_busy_times(session);
  const LoadMeter busy;
  Progress progress;
  const int measured = measure(session, rows, batches, progress);

  say(out, fmt::format("{} on {}, workspace at most {}, micro-batches {}; {} kernels measured now", flags.file,
                       session.device->info().description, to_string(limit), to_string(batches), measured));
  say(out, fmt::format("{:<44} {:<17} {:>23} {:>23} {:>7}  {}", "convolution", "pass", "undivided", "divided", "gain",
                       "configuration"));
  Sums sums;
  int64_t done = 0;
  const int64_t total = static_cast<int64_t>(rows.size() * std::size(kConvolutionPasses));
  for (const Convolution& row : rows) {
    for (ConvolutionPass pass : kConvolutionPasses) {
      if (interrupted() || output_closed()) {
        say(out, "interrupted; what was measured is kept");
        return kInterrupted;
      }
      progress.update("comparing", done++, total, to_string(row));
      const Answer answer = solve(row, pass, session, limit, batches);
      progress.clear();
      out.write(row_json(row, pass, answer));
      if (!out.to_stdout()) say_row(out, row, pass, answer);
      sums.add(answer);
    }
  }
  progress.finish();
  const bool simulated = session.device->info().simulated;
  if (!simulated && busy.others() > kTooBusy) {
    complain(
        fmt::format("other processes kept the machine {:.0f} % busy meanwhile, so these times mislead; those that were "
                    "measured {}",
                    100 * busy.others(), fate_of_busy_times(*session.database)));
  }
  std::string summary = fmt::format("{} passes, {} of them divided: {:.1f} ms undivided, {:.1f} ms divided",
                                    sums.passes, sums.divided, sums.undivided_ms, sums.divided_ms);
  if (sums.divided_ms > 0)
    summary += fmt::format(", {:.2f}x ({})", sums.undivided_ms / sums.divided_ms,
                           sums.measured ? "measured"
                           : simulated   ? "predicted by formulas, for a machine that is not there"
                                         : "predicted, not all was measured");
  if (sums.too_large > 0) summary += fmt::format("; {} passes are too large to be measured here", sums.too_large);
  say(out, summary);
  if (sums.without == 0) return kDone;
  complain(fmt::format(
      "{} passes have no kernel with a workspace of at most {}; raise --workspace or allow smaller micro-batches",
      sums.without, to_string(limit)));
  return kInfeasible;
}

}  // namespace

Run add_convolutions(CLI::App& app) {
  auto flags = std::make_shared<ConvolutionsFlags>();
  CLI::App* command = app.add_subcommand(
      "convolutions", "Choose kernels and micro-batches for a table of convolutions, within a limit of workspace");
  command->footer(
      "The file has a header that names the columns width, height, channels, batch, filters, kernel_width, kernel_height,\n"
      "pad_width, pad_height, stride_width, stride_height (DeepBench's), and a convolution a line. Every kernel of the device\n"
      "is measured at the micro-batches of the policy, once: the benchmark database keeps it. Then the fastest way to run the\n"
      "whole batch at once and the fastest division of it are measured in turn, as a whole.\n"
      "Examples:\n"
      "  plimsoll convolutions bench/convolutions.csv --workspace 64MiB\n"
      "  plimsoll convolutions layers.csv --workspace 8MiB --batch-sizes all --json -");
  command->add_option("FILE", flags->file, "The convolutions, CSV")->required()->check(not_empty());
  command->add_option("--workspace", flags->workspace, "Scratch memory that one convolution may use: 8MiB, 512MiB, 0")
      ->type_name("SIZE")
      ->capture_default_str()
      ->check(not_empty());
  command->add_option("--batch-sizes", flags->batches, "Micro-batches to measure: undivided, powerOfTwo, all (slow)")
      ->capture_default_str()
      ->check(not_empty());
  command->add_option("--device", flags->device, "Where it runs; `plimsoll devices` lists them")->capture_default_str();
  command->add_option("--threads", flags->threads, "Threads to compute with (default: all cores)")
      ->check(whole_number(1, 4096));
  command
      ->add_option("--json", flags->json,
                   "Write JSON, one object a row and pass, to FILE, or to standard output for '-'")
      ->type_name("FILE")
      ->check(not_empty());
  return [flags] { return convolutions(*flags); };
}

}  // namespace plimsoll::cli
