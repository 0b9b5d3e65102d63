// plimsoll: trains deep networks inside a stated amount of memory.
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/names.h"
#include "base/texts.h"
#include "cli/commands.h"
#include "cli/interrupts.h"
#include "plimsoll/communicator.h"

namespace {

using namespace plimsoll;

struct Command {
  const char* name;
  cli::Run (*add)(CLI::App&);
};
constexpr Command kCommands[] = {
    {"train", cli::add_train},     {"eval", cli::add_eval},
    {"predict", cli::add_predict}, {"plan", cli::add_plan},
    {"verify", cli::add_verify},   {"profile", cli::add_profile},
    {"models", cli::add_models},   {"policies", cli::add_policies},
    {"devices", cli::add_devices}, {"compare", cli::add_compare},
    {"max", cli::add_max},         {"reproduce", cli::add_reproduce},
    {"place", cli::add_place},     {"convolutions", cli::add_convolutions},
    {"heaps", cli::add_heaps},     {"serve-memory", cli::add_serve_memory},
};

// What the user may have meant by an argument that nothing took.
std::string suggestion(const CLI::App& app, const CLI::App& command, const std::string& argument) {
  const std::string flag = argument.substr(0, argument.find('='));
  std::vector<std::string> elsewhere;
  for (const Command& other : kCommands) {
    if (flag.starts_with("--") && app.get_subcommand(other.name)->get_option_no_throw(flag) != nullptr)
      elsewhere.emplace_back(other.name);
  }
  if (!elsewhere.empty()) {
    return fmt::format("; it is a flag of {}{}", fmt::join(elsewhere, ", "),
                       &command == &app ? fmt::format(": plimsoll {} {} ...", elsewhere[0], flag) : "");
  }
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  const std::string near = nearest_name(flag, known);
  return near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
}

// What is wrong with the arguments that nothing took, flags first; nothing when all were taken.
std::optional<std::string> complaint(const CLI::App& app) {
  const std::vector<std::string> left = app.remaining(true);
  if (left.empty()) return std::nullopt;
  const bool has_command = !app.get_subcommands().empty();
  if (!has_command && !left[0].starts_with("-")) {
    std::vector<std::string> known;
    for (const Command& command : kCommands) known.emplace_back(command.name);
    return unknown_name("command", left[0], known);
  }
  std::string first = left[0];
  for (const std::string& argument : left) {
    if (!argument.starts_with("-")) continue;
    first = argument;
    break;
  }
  const CLI::App& command = has_command ? *app.get_subcommands()[0] : app;
  return fmt::format("unknown argument '{}'{}", cut_text(first), suggestion(app, command, first));
}

// What the parser says, in our words.
std::string parser_text(const CLI::App& app, const CLI::ParseError& error) {
  const std::string text = error.what(), kind = error.get_name();
  const std::string name = text.substr(0, text.find_first_of(": "));
  const bool has_command = !app.get_subcommands().empty();
  const std::string help =
      fmt::format("`plimsoll {}--help` has examples", has_command ? app.get_subcommands()[0]->get_name() + " " : "");
  if (kind == "ArgumentMismatch" && text.find("At Most") != std::string::npos)
    return fmt::format("{} was given {} times; give it once", name, text.substr(text.rfind(' ') + 1));
  if (kind == "ArgumentMismatch" && text.ends_with("missing"))
    return fmt::format("{} needs a value after it; {}", name, help);
  if (kind == "ArgumentMismatch" && text.ends_with("flag override"))
    return fmt::format("--{} takes no value; leave out what stands behind the =", name);
  if (kind == "RequiredError") return fmt::format("{} is missing; {}", name, help);
  if (kind == "ExcludesError") return text + ": give one of them";
  return text;
}

// What is on where it stands takes no value: by itself the parser takes `--exact=1e30` as `--exact`, and `--exact=0` as nothing.
void refuse_values_of_switches(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() == 0) option->disable_flag_override();
  }
}

// The exit code when there is nothing to run: help was asked for, or the arguments are wrong.
std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  auto refuse = [](const std::string& what) {
    // All ranks have the same arguments, unless mpirun was given several programs.
    const char* const programs = std::getenv("OMPI_NUM_APP_CTX");
    if (launched_rank() == 0 || (programs != nullptr && std::atoi(programs) > 1)) {
      cli::complain(what);
    } else {  // the launcher ends all as soon as one has failed: the first says why before that
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    return cli::kBadInput;
  };
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::Success& asked) {  // for help, or for the version
    if (const auto wrong = complaint(app)) return refuse(*wrong);
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    const auto wrong = complaint(app);
    return refuse(wrong ? *wrong : parser_text(app, error));
  }
}

int run(const cli::Run& command) {
  try {
    return command();
  } catch (const Error& error) {
    cli::complain(error.what());
    return cli::exit_code(error.code());
  } catch (const std::bad_alloc&) {
    cli::complain("the system has no more memory; lower --memory or --batch");
  } catch (const std::system_error& error) {
    cli::complain(
        fmt::format("the system refused what was asked of it: {}; a limit (ulimit -a) may be too low", error.what()));
  } catch (const std::exception& error) {
    cli::complain(fmt::format("internal error: {}", error.what()));
  }
  return cli::kFailure;
}

// Output that could not be written, to a full disk perhaps, is a failure whatever else went well.
int after_output(int code) {
  if (cli::output_closed()) {
    cli::complain("standard output was closed before all was written");
    return cli::kFailure;
  }
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  cli::complain(
      fmt::format("standard output could not be written: {}", errno != 0 ? std::strerror(errno) : "unknown cause"));
  return code == cli::kDone ? cli::kFailure : code;
}

// A standard stream that was closed leaves its number to the next file that is opened, and messages would end up in a
// checkpoint. The place is taken by what cannot be written, so that writing fails as it should.
void occupy_standard_streams() {
  int handle = 0;
  do {
    handle = ::open("/dev/null", O_RDONLY);
  } while (handle >= 0 && handle <= STDERR_FILENO);
  if (handle > STDERR_FILENO) ::close(handle);
}

// What is freed goes back to the system, so that what planning took is not held beside the training's arena. By itself
// the allocator keeps more and more of large pieces once some were freed, and an arena for each of many threads.
void keep_little_memory() {
  constexpr int kLargePiece = 1 << 20, kMostArenas = 4;
  mallopt(M_MMAP_THRESHOLD, kLargePiece);
  mallopt(M_TRIM_THRESHOLD, 2 * kLargePiece);
  mallopt(M_ARENA_MAX, kMostArenas);
}

int run_program(int argc, char** argv) {
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
  app.footer(
      "Exit codes:\n"
      "  0  done\n"
      "  2  bad usage or input: the message names the flag or the file, and the place in it\n"
      "  3  no plan fits the budget: the message names the least that would do\n"
      "  4  the device, a library or the system failed\n"
      "  5  interrupted; with --checkpoint, what was reached is saved\n"
      "`plimsoll COMMAND --help` explains a command.");

  std::vector<cli::Run> runs;
  for (const Command& command : kCommands) runs.push_back(command.add(app));
  refuse_values_of_switches(app);
  for (CLI::App* command : app.get_subcommands({})) refuse_values_of_switches(*command);
  if (const auto code = parse(app, argc, argv)) return after_output(*code);
  for (size_t i = 0; i < runs.size(); ++i) {
    if (app.got_subcommand(kCommands[i].name)) return after_output(run(runs[i]));
  }
  std::fputs(app.help().c_str(), stdout);
  return after_output(cli::kDone);
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_streams();
  keep_little_memory();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error like a full disk
  try {
    return run_program(argc, argv);
  } catch (...) {  // not even the message could be made
    std::fputs("plimsoll: the system has no more memory\n", stderr);
    return cli::kFailure;
  }
}
