#include "cost/cost_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json_reader.h"
#include "plimsoll/plan.h"

namespace plimsoll {
namespace {

using nlohmann::ordered_json;
constexpr std::string_view kFormat = "plimsoll costs";
constexpr int64_t kVersion = 1;
constexpr int64_t kMostThreadsOfACost = 4096;
constexpr double kMostRate = 1e12;
constexpr double kMostMs = 1e9;  // eleven days
constexpr int64_t kMostWorkspace = int64_t{1} << 50;

std::string_view name_of(Cost::Source source) { return source == Cost::Source::in_step ? "in_step" : "measured"; }

double quantity(const JsonReader& r) {
  const double value = r.number();
  if (!(value >= 0 && value <= kMostMs)) r.expected(fmt::format("a number from 0 to {:g}", kMostMs));
  return value;
}
double duration(const JsonReader& r) {
  const double value = r.number();
  if (!(value > 0 && value <= kMostMs)) r.expected(fmt::format("a time above 0 and at most {:g} ms", kMostMs));
  return value;
}
double rate(const JsonReader& r) {
  const double value = r.number();
  if (!(value > 0 && value <= kMostRate)) r.expected(fmt::format("a number above 0 and at most {:g}", kMostRate));
  return value;
}

void read_entry(const JsonReader& r, CostTable& table) {
  r.only({"signature", "kernel", "threads", "spread", "apart", "source", "time_ms", "spread_ms", "runs", "workspace",
          "busy"});
  const JsonReader kernel = r.member("kernel"), source = r.member("source");
  if (r.member("signature").text().empty()) r.member("signature").expected("the signature of an op");
  if (kernel.text().empty()) kernel.expected("the name of a kernel");
  try {
    parts_of(kernel.text());
  } catch (const Error& error) {
    kernel.fail(error.what());
  }
  if (source.text() != "measured" && source.text() != "in_step") source.expected("\"measured\" or \"in_step\"");
  // "apart" is what "spread" is called in files of earlier versions.
  const auto is_true = [&](const char* name) { return r.has(name) && r.member(name).boolean(); };
  const CostKey key{
      .signature = r.member("signature").text(),
      .kernel = kernel.text(),
      .threads = r.has("threads") ? static_cast<int>(r.member("threads").integer(0, kMostThreadsOfACost)) : 0,
      .spread = is_true("spread") || is_true("apart")};
  if (source.text() == "in_step" ? table.find_in_step(key).has_value() : table.find(key).has_value()) {
    r.fail(fmt::format("kernel '{}' of '{}' has two costs of one kind", key.kernel, key.signature));
  }
  table.put(key, {.source = source.text() == "in_step" ? Cost::Source::in_step : Cost::Source::measured,
                  .time_ms = duration(r.member("time_ms")),
                  .spread_ms = quantity(r.member("spread_ms")),
                  .runs = static_cast<int>(r.member("runs").integer(0, INT32_MAX)),
                  .workspace = {r.has("workspace") ? r.member("workspace").integer(0, kMostWorkspace) : -1},
                  .busy = is_true("busy")});
}

}  // namespace

std::string costs_to_json(const CostTable& table, const DeviceInfo& device) {
  ordered_json entries = ordered_json::array();
  for (const auto* list : {&table.entries(), &table.in_step_entries()}) {
    for (const auto& [key, cost] : *list) {
      if (cost.source == Cost::Source::estimated) continue;
      ordered_json entry = {{"signature", key.signature}, {"kernel", key.kernel}};
      if (key.threads != 0) entry["threads"] = key.threads;
      if (key.spread) entry["spread"] = true;
      entry["source"] = name_of(cost.source);
      entry["time_ms"] = cost.time_ms;
      entry["spread_ms"] = cost.spread_ms;
      entry["runs"] = cost.runs;
      if (cost.workspace.count >= 0) entry["workspace"] = cost.workspace.count;
      if (cost.busy) entry["busy"] = true;
      entries.push_back(std::move(entry));
    }
  }
  const MachineRates& rates = table.rates();
  ordered_json document = {
      {"format", kFormat},
      {"version", kVersion},
      {"device", device.key},
      {"rates", {{"gflops", rates.gflops}, {"memory_gb_per_s", rates.memory_gb_per_s}, {"launch_us", rates.launch_us}}},
      {"entries", std::move(entries)}};
  if (rates.busy) document["rates"]["busy"] = true;
  if (!table.conflicts().empty()) document["interference"] = table.conflicts();
  return document.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

CostTable costs_from_json(std::string_view json, const std::string& file, const DeviceInfo& device) {
  try {
    const nlohmann::json document = parse_json(json);
    const JsonReader r(document);
    r.only({"format", "version", "device", "rates", "entries", "interference"});
    if (r.member("format").text() != kFormat) r.member("format").expected(fmt::format("\"{}\"", kFormat));
    r.member("version").integer(kVersion, kVersion);
    const std::string& key = r.member("device").text();
    if (key != device.key) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("these are costs of another device ('{}'); this is '{}'", key, device.key));
    }
    const JsonReader rates = r.member("rates"), entries = r.member("entries");
    rates.only({"gflops", "memory_gb_per_s", "launch_us", "busy"});
    CostTable table({.gflops = rate(rates.member("gflops")),
                     .memory_gb_per_s = rate(rates.member("memory_gb_per_s")),
                     .launch_us = quantity(rates.member("launch_us")),
                     .busy = rates.has("busy") && rates.member("busy").boolean()});
    for (size_t i = 0; i < entries.size(); ++i) read_entry(entries.item(i), table);
    if (r.has("interference")) {
      const JsonReader pairs = r.member("interference");
      for (size_t i = 0; i < pairs.size(); ++i) {
        const JsonReader pair = pairs.item(i);
        if (pair.size() != 2) pair.expected("two signatures");
        table.add_conflict(pair.item(0).text(), pair.item(1).text());
      }
    }
    return table;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", file, error.what()));
  }
}

int merge_costs(const CostTable& from, CostTable& into) {
  int added = 0;
  const auto is_better = [](const Cost& cost, const std::optional<Cost>& known) {
    return !known || known->source == Cost::Source::estimated || (known->busy && !cost.busy);
  };
  for (const auto& [key, cost] : from.entries()) {
    if (cost.source == Cost::Source::estimated || !is_better(cost, into.find(key))) continue;
    into.put(key, cost);
    ++added;
  }
  for (const auto& [key, cost] : from.in_step_entries()) {
    if (!is_better(cost, into.find_in_step(key))) continue;
    into.put(key, cost);
    ++added;
  }
  for (const auto& [first, second] : from.conflicts()) into.add_conflict(first, second);
  return added;
}

}  // namespace plimsoll
