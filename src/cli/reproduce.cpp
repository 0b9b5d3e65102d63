// reproduce: the papers' tables, what they print beside what comes out here.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/checks.h"
#include "cli/commands.h"
#include "papers/papers.h"

namespace plimsoll::cli {
namespace {

std::string figure_text(const std::optional<double>& value) { return value ? fmt::format("{:.7g}", *value) : "-"; }

nlohmann::json json_number(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

void write(JsonLines& out, const std::vector<Finding>& findings) {
  std::string table;
  for (const Finding& f : findings) {
    out.write({{"table", f.table},
               {"row", f.row},
               {"quantity", f.quantity},
               {"paper", json_number(f.paper)},
               {"ours", json_number(f.ours)},
               {"unit", f.unit},
               {"note", f.note}});
    if (out.to_stdout()) continue;
    if (f.table != table)
      say(out, fmt::format("{}{:<24} {:<34} {:>12} {:>12}", table.empty() ? "" : "\n", f.table, "", "paper", "ours"));
    table = f.table;
    say(out, fmt::format("  {:<22} {:<34} {:>12} {:>12} {}{}{}", f.row, f.quantity, figure_text(f.paper),
                         figure_text(f.ours), f.unit, f.note.empty() ? "" : "  ", f.note));
  }
}

}  // namespace

Run add_reproduce(CLI::App& app) {
  struct Flags {
    std::string table, json;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("reproduce", "Make the papers' tables again, theirs beside ours");
  command->footer(
      "Examples:\n  plimsoll reproduce                 which tables there are\n  plimsoll reproduce table1\n  plimsoll reproduce all --json -");
  command->add_option("TABLE", flags->table, "Which one, or all (default: list them)");
  command->add_option("--json", flags->json, "Write JSON, one object a line, to FILE, or to standard output for '-'")
      ->type_name("FILE")
      ->check(not_empty());
  return [flags] {
    JsonLines out(flags->json);
    if (flags->table.empty()) {
      for (const PaperTable& table : paper_tables()) {
        say(out, fmt::format("{:<18} {}", table.name, table.description));
        out.write({{"name", table.name}, {"description", table.description}});
      }
      return kDone;
    }
    if (flags->table != "all") {
      write(out, reproduce(flags->table));
      return kDone;
    }
    for (const PaperTable& table : paper_tables()) write(out, table.make());  // each as soon as it is there
    return kDone;
  };
}

}  // namespace plimsoll::cli
