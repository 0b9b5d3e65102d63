// models, policies, devices: what there is.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/checks.h"
#include "cli/commands.h"
#include "plan/policy.h"
#include "plimsoll/device.h"

namespace plimsoll::cli {
namespace {

Run add_list(CLI::App& app, const std::string& name, const std::string& help,
             std::function<void(const JsonLines&, JsonLines&)> print) {
  auto json = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(name, help);
  command->footer(fmt::format("Example:\n  plimsoll {0}\n  plimsoll {0} --json -        for programs", name));
  command->add_option("--json", *json, "Write JSON, one object a line, to FILE, or to standard output for '-'")
      ->type_name("FILE")
      ->check(not_empty());
  return [json, print] {
    JsonLines lines(*json);
    print(lines, lines);
    return kDone;
  };
}

}  // namespace

Run add_models(CLI::App& app) {
  return add_list(app, "models", "List the networks", [](const JsonLines& human, JsonLines& json) {
    for (const ModelListing& m : list_models()) {
      const ModelInput& in = m.default_input;
      const bool tokens = token_task(m.name).tokens;
      const std::string shape =
          tokens ? fmt::format("{} tokens", in.width) : fmt::format("{}x{}x{}", in.channels, in.height, in.width);
      if (!json.to_stdout())
        say(human, fmt::format("{:<14} {:<12} {}{}", m.name, shape, m.description,
                               m.options.empty() ? "" : fmt::format(" (options: {})", m.options)));
      json.write({{"name", m.name},
                  {"description", m.description},
                  {"options", m.options},
                  {"channels", in.channels},
                  {"height", in.height},
                  {"width", in.width},
                  {"classes", in.classes},
                  {"tokens", tokens}});
    }
  });
}

Run add_policies(CLI::App& app) {
  return add_list(app, "policies", "List the memory policies", [](const JsonLines& human, JsonLines& json) {
    for (const Policy& p : policies()) {
      if (!json.to_stdout()) say(human, fmt::format("{:<14} {}", p.name, p.description));
      if (!json.to_stdout() && !p.options.empty())
        say(human, fmt::format("{:<14} {}:OPTION=VALUE,... of {}", "", p.name, p.options));
      json.write({{"name", p.name}, {"description", p.description}, {"options", p.options}});
    }
  });
}

Run add_devices(CLI::App& app) {
  return add_list(app, "devices", "List the devices, and why one is not there",
                  [](const JsonLines& human, JsonLines& json) {
                    for (const DeviceListing& d : list_devices()) {
                      if (!json.to_stdout())
                        say(human, fmt::format("{:<10} {:<14} {}", d.name,
                                               d.simulated   ? "simulated"
                                               : d.available ? "available"
                                                             : "not available",
                                               d.description));
                      json.write({{"name", d.name},
                                  {"available", d.available},
                                  {"simulated", d.simulated},
                                  {"description", d.description}});
                    }
                  });
}

}  // namespace plimsoll::cli
