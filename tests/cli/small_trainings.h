// What tests of trained networks share: a small training that leaves a checkpoint, and what it said last.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/program.h"

namespace plimsoll::testing {

class SmallTrainings : public Cli {
 protected:
  // Its checkpoint is c.safetensors.
  Outcome train(const std::string& arguments) {
    return run("train " + arguments + " --costs estimated --threads 1 --json - --checkpoint " + path("c.safetensors"));
  }
  static nlohmann::json last(const Outcome& outcome, const std::string& event) {
    nlohmann::json found;
    for (const nlohmann::json& line : outcome.lines()) {
      if (line.contains("event") && line["event"] == event) found = line;
    }
    EXPECT_FALSE(found.is_null()) << outcome.err;
    return found;
  }
};

}  // namespace plimsoll::testing
