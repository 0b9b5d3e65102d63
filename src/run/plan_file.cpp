#include "run/plan_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/json_reader.h"

namespace plimsoll {
namespace {

using nlohmann::json;
constexpr std::string_view kFormat = "plimsoll-plan";
constexpr int kVersion = 1;

json request_json(const PlanRequest& r) {
  return {{"model", r.model},
          {"batch", r.input.batch},
          {"channels", r.input.channels},
          {"height", r.input.height},
          {"width", r.input.width},
          {"classes", r.input.classes},
          {"exact", r.exact},
          {"optimizer",
           {{"name", r.optimizer.name},
            {"momentum", r.optimizer.momentum},
            {"nesterov", r.optimizer.nesterov},
            {"weight_decay", r.optimizer.weight_decay},
            {"beta1", r.optimizer.beta1},
            {"beta2", r.optimizer.beta2},
            {"epsilon", r.optimizer.epsilon}}}};
}

PlanRequest request_from(const json& j) {
  PlanRequest r;
  r.model = j.at("model").get<std::string>();
  r.input.batch = j.at("batch").get<int64_t>();
  r.input.channels = j.at("channels").get<int64_t>();
  r.input.height = j.at("height").get<int64_t>();
  r.input.width = j.at("width").get<int64_t>();
  r.input.classes = j.at("classes").get<int64_t>();
  r.exact = j.at("exact").get<bool>();
  const json& o = j.at("optimizer");
  r.optimizer.name = o.at("name").get<std::string>();
  r.optimizer.momentum = o.at("momentum").get<double>();
  r.optimizer.nesterov = o.at("nesterov").get<bool>();
  r.optimizer.weight_decay = o.at("weight_decay").get<double>();
  r.optimizer.beta1 = o.at("beta1").get<double>();
  r.optimizer.beta2 = o.at("beta2").get<double>();
  r.optimizer.epsilon = o.at("epsilon").get<double>();
  return r;
}

}  // namespace

void save_plan(const std::filesystem::path& path, const PlanRequest& request, const Program& program) {
  const json file = {{"format", kFormat},
                     {"version", kVersion},
                     {"request", request_json(request)},
                     {"layout", std::string(to_string(program.family))},
                     {"graph", json::parse(to_json(program.network.graph))},
                     {"plan", json::parse(to_json(program.plan, program.network.graph))}};
  write_file_atomically(path, file.dump(1));
}

SavedPlan load_plan(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  try {
    const json file = parse_json(text);
    if (!file.is_object() || file.value("format", "") != kFormat) {
      throw Error(ErrorCode::corrupt_file, fmt::format("it is no saved plan: \"format\" should be \"{}\"", kFormat));
    }
    if (file.at("version").get<int>() != kVersion) {
      throw Error(ErrorCode::corrupt_file, fmt::format("version: {} was expected, not {}", kVersion, file.at("version").dump()));
    }
    SavedPlan saved;
    saved.request = request_from(file.at("request"));
    saved.family = family_named(file.at("layout").get<std::string>());
    saved.graph = graph_from_json(file.at("graph").dump());
    saved.plan = plan_from_json(file.at("plan").dump(), saved.graph);
    return saved;
  } catch (const json::exception& error) {
    throw Error(ErrorCode::corrupt_file, fmt::format("{}: {}", path.string(), error.what()));
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", path.string(), error.what()));
  }
}

}  // namespace plimsoll
