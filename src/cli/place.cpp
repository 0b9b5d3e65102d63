// place: offsets for the buffers of a foreign problem.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/files.h"
#include "base/names.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "plan/placement/placement_file.h"

namespace plimsoll::cli {
namespace {

struct PlaceFlags {
  std::string file, capacity, method = "offline", output, json;
  double timeout = 60;
};

const PlacementMethod& find_method(const std::vector<PlacementMethod>& methods, const std::string& name) {
  std::vector<std::string> known;
  for (const PlacementMethod& method : methods) {
    if (method.name == name) return method;
    known.emplace_back(method.name);
  }
  throw Error(ErrorCode::invalid_input, unknown_name("placement method", name, known));
}

// "feasible" is the answer where no capacity was asked for and a lower height may exist.
std::string_view status_of(const Placement& placement, std::optional<Bytes> capacity) {
  if (capacity && placement.proven_lower_bound > *capacity) return "proven impossible";
  if (capacity && placement.height > *capacity) return "not found";
  if (placement.proven_optimal) return "optimal";
  return capacity ? "fits" : "feasible";
}

constexpr size_t kFragmentsOf = 20000;  // buffers; of more it takes too long

// U_f (Dymem, equation 1) of a request for the largest buffer, on average over the time at which something is alive.
std::optional<double> unusable_free_share(const std::vector<Buffer>& buffers, const Placement& placement) {
  if (buffers.empty() || buffers.size() > kFragmentsOf) return std::nullopt;
  Bytes request;
  for (const Buffer& buffer : buffers) request = std::max(request, buffer.bytes);
  const std::vector<FragmentationAt> over = fragmentation_over_time(buffers, placement, request);
  double sum = 0, time = 0;
  for (size_t i = 0; i + 1 < over.size(); ++i) {
    const double lasts = static_cast<double>(over[i + 1].time - over[i].time);
    sum += lasts * over[i].unusable;
    time += lasts;
  }
  return time > 0 ? std::optional<double>(sum / time) : std::nullopt;
}

int place(const PlaceFlags& flags) {
  check_apart({{"--json", flags.json}, {"--output", flags.output}}, {{"FILE", flags.file}});
  JsonLines out(flags.json);
  const std::vector<PlacementMethod> methods = placement_methods();
  const PlacementMethod& method = find_method(methods, flags.method);
  std::optional<Bytes> capacity;
  if (!flags.capacity.empty()) {
    try {
      capacity = parse_whole_bytes(flags.capacity);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("--capacity: {}", error.what()));
    }
    if (capacity->count == 0) throw Error(ErrorCode::invalid_input, "--capacity: 0 bytes hold nothing");
  }
  if (!flags.output.empty()) check_writable("--output", flags.output);
  const Stopwatch watch;  // reading counts: who gives a time waits for the answer
  const PlacementFile file = placement_file_from_csv(read_file(flags.file), flags.file);
  const Placement placement = method.place(file.buffers, {.alignment = file.alignment,
                                                          .capacity = capacity.value_or(Bytes{0}),
                                                          .effort = std::numeric_limits<int64_t>::max() / 2,
                                                          .seconds = std::max(0.0, flags.timeout - watch.seconds())});
  const double seconds = watch.seconds();
  const std::string_view status = status_of(placement, capacity);
  const bool done = status != "proven impossible" && status != "not found";
  if (done && !flags.output.empty()) write_file_atomically(flags.output, to_csv(file, placement));

  nlohmann::json line{{"file", flags.file},
                      {"method", method.name},
                      {"buffers", file.buffers.size()},
                      {"height", placement.height.count},
                      {"lower_bound", placement.lower_bound.count},
                      {"proven_lower_bound", placement.proven_lower_bound.count},
                      {"status", status},
                      {"seconds", seconds}};
  const std::optional<double> unusable = unusable_free_share(file.buffers, placement);
  line["unusable_free"] = unusable ? nlohmann::json(*unusable) : nlohmann::json(nullptr);
  line["capacity"] = capacity ? nlohmann::json(capacity->count) : nlohmann::json(nullptr);
  out.write(line);
  if (out.to_stdout()) return done ? kDone : kInfeasible;
  say(out, fmt::format("{}: {} buffers, method {}", flags.file, file.buffers.size(), method.name));
  say(out, fmt::format("  height      {}{}", placement.height.count, done ? "" : " (the lowest found)"));
  if (capacity) say(out, fmt::format("  capacity    {}", capacity->count));
  say(out, fmt::format("  lower bound {} (largest sum of live bytes)", placement.lower_bound.count));
  if (placement.proven_lower_bound > placement.lower_bound)
    say(out, fmt::format("  proven      no placement is lower than {}", placement.proven_lower_bound.count));
  if (unusable)
    say(out,
        fmt::format(
            "  fragments   {:.0f} % of what is free is of no use to another buffer of the largest size (U_f, on average)",
            100 * *unusable));
  say(out, fmt::format("  seconds     {:.3f}", seconds));
  say(out, fmt::format("  status      {}{}", status,
                       status == "not found" && method.name == "offline" ? "; raise --timeout to search on" : ""));
  if (!done && !flags.output.empty()) say(out, fmt::format("  {} was not written", flags.output));
  return done ? kDone : kInfeasible;
}

}  // namespace

Run add_place(CLI::App& app) {
  auto flags = std::make_shared<PlaceFlags>();
  CLI::App* command =
      app.add_subcommand("place", "Give the buffers of a file offsets, so that those alive together never overlap");
  command->footer(
      "The file has a header that names the columns id, lower, upper and size, in any order, and a buffer a line, alive in\n"
      "[lower, upper): MiniMalloc's format. Status: optimal (nothing lower exists), fits (inside the capacity), feasible (no\n"
      "capacity was given, something lower may exist), and with exit code 3: proven impossible, not found (in that time).\n"
      "Examples:\n"
      "  plimsoll place problem.csv --output placed.csv            as low as can be found\n"
      "  plimsoll place problem.csv --capacity 1048576             does it fit?\n"
      "  plimsoll place problem.csv --method best_fit --json -     what an allocator at run time would need");
  command->add_option("FILE", flags->file, "The problem, CSV")->required()->check(not_empty());
  command->add_option("--capacity", flags->capacity, "Look for a placement of at most this height: bytes, or 1MiB, ...")
      ->type_name("SIZE")
      ->check(not_empty());
  command->add_option("--timeout", flags->timeout, "Seconds to search")->capture_default_str()->check(number());
  command->add_option("--method", flags->method, "offline, first_fit, best_fit, gtbm")
      ->capture_default_str()
      ->check(not_empty());
  command->add_option("--output", flags->output, "Write the CSV with a column `offset`, when the answer is a placement")
      ->type_name("FILE")
      ->check(not_empty());
  command->add_option("--json", flags->json, "Write JSON, one object a line, to FILE, or to standard output for '-'")
      ->type_name("FILE")
      ->check(not_empty());
  return [flags] { return place(*flags); };
}

}  // namespace plimsoll::cli
