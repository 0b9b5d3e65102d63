// plimsoll: trains deep networks inside a stated amount of memory.
#include <fmt/format.h>

#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "base/names.h"
#include "cli/commands.h"

namespace {

using namespace plimsoll;

// What the user may have meant by an argument that nothing took.
std::string suggestion(const CLI::App& app, const std::string& argument) {
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands(nullptr)) known.push_back(command->get_name());
  for (const CLI::App* command : app.get_subcommands()) {  // the one that was chosen
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
  }
  const std::string bare = argument.substr(0, argument.find('='));
  const std::string near = nearest_name(bare, known);
  return near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Trains deep neural networks inside a stated amount of memory: plans every byte of a training step,\n"
      "proves the plan safe, says what it costs, and runs it, or names the least memory that would do.\n\n"
      "  plimsoll train                                          the default network on the bundled digits\n"
      "  plimsoll train resnet50 --batch 16 --memory 1GiB        synthetic images inside 1 GiB\n"
      "  plimsoll plan vgg16 --batch 32 --memory 2GiB            would it fit, and what would it cost?",
      "plimsoll"};
  app.set_version_flag("--version", "plimsoll 0.1.0");
  app.require_subcommand(0, 1);
  app.get_formatter()->column_width(34);
  app.footer("Exit codes: 0 done; 2 bad usage or input; 3 no plan fits the budget; 4 device or library failure; 5 interrupted.\n"
             "`plimsoll COMMAND --help` explains a command.");

  using Adder = cli::Run (*)(CLI::App&);
  const std::pair<std::string, Adder> commands[] = {
      {"train", cli::add_train},   {"plan", cli::add_plan},       {"verify", cli::add_verify},  {"profile", cli::add_profile},
      {"models", cli::add_models}, {"policies", cli::add_policies}, {"devices", cli::add_devices},
  };
  std::vector<std::pair<std::string, cli::Run>> runs;
  for (const auto& [name, add] : commands) runs.emplace_back(name, add(app));

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ExtrasError& error) {
    std::string first;
    for (const std::string& left : app.remaining(true)) {
      if (first.empty() || left.starts_with("-")) first = left;
      if (left.starts_with("-")) break;
    }
    fmt::print(stderr, "plimsoll: unknown argument '{}'{}\n", first, suggestion(app, first));
    return cli::kBadInput;
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "plimsoll: {}\n", error.what());
    return cli::kBadInput;
  }

  for (const auto& [name, run] : runs) {
    if (!app.got_subcommand(name)) continue;
    try {
      return run();
    } catch (const Error& error) {
      fmt::print(stderr, "plimsoll: {}\n", error.what());
      return cli::exit_code(error.code());
    } catch (const std::bad_alloc&) {
      fmt::print(stderr, "plimsoll: the system has no more memory; lower --memory or --batch\n");
      return cli::kFailure;
    } catch (const std::exception& error) {
      fmt::print(stderr, "plimsoll: internal error: {}\n", error.what());
      return cli::kFailure;
    }
  }
  fmt::print("{}", app.help());
  return cli::kDone;
}
