#include "compile/plan_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/json_reader.h"
#include "base/sha256.h"
#include "plimsoll/verify.h"

namespace plimsoll {
namespace {

using nlohmann::json;
constexpr std::string_view kFormat = "plimsoll-plan";
constexpr int kVersion = 2;  // 1 had no fingerprint, and plans without times

json request_json(const PlanRequest& r) {
  json j = {{"model", r.model},
            {"batch", r.input.batch},
            {"channels", r.input.channels},
            {"height", r.input.height},
            {"width", r.input.width},
            {"classes", r.input.classes},
            {"exact", r.exact},
            {"lowered", r.paper_layers},
            {"memory", r.memory.count},
            {"threads", r.threads},
            {"inter_op", r.inter_op},
            {"intra_op", r.intra_op},
            {"optimizer",
             {{"name", r.optimizer.name},
              {"momentum", r.optimizer.momentum},
              {"nesterov", r.optimizer.nesterov},
              {"weight_decay", r.optimizer.weight_decay},
              {"beta1", r.optimizer.beta1},
              {"beta2", r.optimizer.beta2},
              {"epsilon", r.optimizer.epsilon}}}};
  if (!r.optimizer.freeze.empty()) j["optimizer"]["freeze"] = r.optimizer.freeze;
  if (!r.optimizer.settings.empty()) j["optimizer"]["settings"] = r.optimizer.settings;
  if (r.optimizer.clip_grad_norm != 0) j["optimizer"]["clip_grad_norm"] = r.optimizer.clip_grad_norm;
  if (r.optimizer.accumulate != 1) j["optimizer"]["accumulate"] = r.optimizer.accumulate;
  if (r.optimizer.sync_batch_norm) j["optimizer"]["sync_batch_norm"] = true;
  if (r.optimizer.ranks != 1) j["ranks"] = r.optimizer.ranks;
  if (const Sharding& s = r.optimizer.sharding; s.stage > 0)
    j["zero"] = {{"stage", s.stage}, {"least", s.least.count}, {"whole_sums", s.whole_sums}};
  if (r.host_memory) j["host_memory"] = r.host_memory->count;
  if (r.spill_size) j["spill_size"] = r.spill_size->count;
  if (r.peer_size) j["peer_size"] = r.peer_size->count;
  if (r.remote_memory) j["remote_memory"] = r.remote_memory->count;
  return j;
}

OptimizerOptions optimizer_from(const JsonReader& r) {
  r.only({"name", "momentum", "nesterov", "weight_decay", "beta1", "beta2", "epsilon", "settings", "freeze",
          "clip_grad_norm", "accumulate", "sync_batch_norm"});
  OptimizerOptions options{.name = r.member("name").text(),
                           .momentum = r.member("momentum").number(),
                           .nesterov = r.member("nesterov").boolean(),
                           .weight_decay = r.member("weight_decay").number(),
                           .beta1 = r.member("beta1").number(),
                           .beta2 = r.member("beta2").number(),
                           .epsilon = r.member("epsilon").number()};
  if (r.has("freeze")) {
    const JsonReader patterns = r.member("freeze");
    for (size_t i = 0; i < patterns.size(); ++i) options.freeze.push_back(patterns.item(i).text());
  }
  if (r.has("settings")) {
    const JsonReader settings = r.member("settings");
    if (!settings.raw().is_object()) settings.expected("an object");
    for (const auto& [name, value] : settings.raw().items()) options.settings[name] = settings.member(name).number();
  }
  if (r.has("clip_grad_norm")) options.clip_grad_norm = r.member("clip_grad_norm").number();
  if (r.has("accumulate")) options.accumulate = r.member("accumulate").integer(1, kMostAccumulated);
  if (r.has("sync_batch_norm")) options.sync_batch_norm = r.member("sync_batch_norm").boolean();
  return options;
}

PlanRequest request_from(const JsonReader& r) {
  r.only({"model", "batch", "channels", "height", "width", "classes", "exact", "lowered", "memory", "threads",
          "inter_op", "intra_op", "optimizer", "ranks", "zero", "host_memory", "spill_size", "peer_size",
          "remote_memory"});
  auto bytes_of = [&](std::string_view name) {
    return r.has(name) ? std::optional(Bytes{r.member(name).integer(0)}) : std::nullopt;
  };
  auto count_of = [&](std::string_view name) { return static_cast<int>(r.member(name).integer(0, kMostThreads)); };
  OptimizerOptions optimizer = optimizer_from(r.member("optimizer"));
  if (r.has("ranks")) optimizer.ranks = static_cast<int>(r.member("ranks").integer(1, kMostRanks));
  if (r.has("zero")) {
    const JsonReader zero = r.member("zero");
    zero.only({"stage", "least", "whole_sums"});
    optimizer.sharding = {.stage = static_cast<int>(zero.member("stage").integer(1, kMostShardingStage)),
                          .least = {zero.member("least").integer(0)},
                          .whole_sums = zero.member("whole_sums").boolean()};
  }
  return {.model = r.member("model").text(),
          .input = {.batch = r.member("batch").integer(1, 1 << 24),
                    .channels = r.member("channels").integer(0, 1 << 16),
                    .height = r.member("height").integer(0, 1 << 16),
                    .width = r.member("width").integer(0, 1 << 16),
                    .classes = r.member("classes").integer(0, 1 << 24)},
          .optimizer = std::move(optimizer),
          .exact = r.member("exact").boolean(),
          .paper_layers = r.member("lowered").boolean(),
          .memory = {r.member("memory").integer(0)},
          .host_memory = bytes_of("host_memory"),
          .spill_size = bytes_of("spill_size"),
          .peer_size = bytes_of("peer_size"),
          .remote_memory = bytes_of("remote_memory"),
          .threads = count_of("threads"),
          .inter_op = count_of("inter_op"),
          .intra_op = count_of("intra_op")};
}

// Of everything in the file but the fingerprint itself, with names in order and without spaces.
std::string fingerprint_of(json file) {
  file.erase("fingerprint");
  return sha256_hex(file.dump());
}

// Reads a part that has a reader of its own; its places are told as places in the file.
template <class Read>
auto read_part(const JsonReader& file, std::string_view name, const Read& read) {
  try {
    return read(file.member(name).raw().dump());
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", name, error.what()));
  }
}

}  // namespace

std::string to_json(const PlanRequest& asked, const Program& program) {
  PlanRequest request = asked;
  request.optimizer.sharding = program.sharding;
  json file = {{"format", kFormat},
               {"version", kVersion},
               {"request", request_json(request)},
               {"layout", std::string(to_string(program.family))},
               {"graph", json::parse(to_json(program.network.graph))},
               {"plan", json::parse(to_json(program.plan, program.network.graph))}};
  file["fingerprint"] = fingerprint_of(file);
  return file.dump(1);
}

void save_plan(const std::filesystem::path& path, const PlanRequest& request, const Program& program) {
  write_file_atomically(path, to_json(request, program));
}

SavedPlan saved_plan_from_json(std::string_view text) {
  const json document = parse_json(text);
  const JsonReader file(document);
  if (!document.is_object() || !file.has("format") || document["format"] != kFormat) {
    throw Error(ErrorCode::corrupt_file, fmt::format("it is no saved plan: \"format\" should be \"{}\"", kFormat));
  }
  if (const JsonReader version = file.member("version"); version.integer(1) != kVersion) {
    version.fail(fmt::format(
        "version {} was expected; a plan of another version must be made again, by `plimsoll plan --save`", kVersion));
  }
  file.only({"format", "version", "fingerprint", "request", "layout", "graph", "plan"});
  SavedPlan saved;
  saved.edited = file.member("fingerprint").text() != fingerprint_of(document);
  saved.request = request_from(file.member("request"));
  saved.family = family_named(file.member("layout").text());
  saved.graph = read_part(file, "graph", [](const std::string& part) { return graph_from_json(part); });
  saved.plan = read_part(file, "plan", [&](const std::string& part) { return plan_from_json(part, saved.graph); });
  return saved;
}

SavedPlan load_plan(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  try {
    return saved_plan_from_json(text);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", path.string(), error.what()));
  }
}

}  // namespace plimsoll
