// What is told of a training.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/train_options.h"
#include "plimsoll/train.h"
#include "report/epoch_log.h"
#include "report/event_file.h"

namespace plimsoll::cli {

// Of a language model: a sample is a window of so many tokens.
struct Language {
  int64_t context = 0;  // 0: none
  explicit operator bool() const { return context > 0; }
};

// Tells of a training while it goes on: to a person, as JSON lines, and in the files of --trace and --report.
class Narrator {
 public:
  Narrator(const TrainFlags& flags, const TrainOptions& options);

  TrainListener listener();
  void tell_infeasible(const Infeasible& infeasible);
  void tell_done(const DoneEvent& done);

  bool lost_a_log() const { return lost_a_log_; }

 private:
  struct Recorded {
    Program program;
    std::vector<StepRecord> steps;
  };

  void tell_plan(const Program& program, const std::string& data, const ProcessMemory& process);
  void tell_step(const StepEvent& e);
  void tell_epoch(const EpochEvent& e);
  void write(const nlohmann::json& event);
  template <class Write, class Drop>
  void or_go_on_without(const Write& write, const Drop& drop,
                        std::string_view what_then = "the training goes on without it");
  void keep_record(const Program& program, std::span<const StepRecord> steps, std::span<const StepRecord> copies,
                   std::span<const StepRecord> messages);
  void write_report(const DoneEvent& done);

  const TrainFlags& flags_;
  const TrainOptions& options_;
  JsonLines out_;
  std::optional<EpochLog> epoch_log_;
  std::optional<EventFile> event_file_;
  bool lost_a_log_ = false;
  bool told_no_number_ = false;  // of a loss that is not finite
  Language language_;
  Progress progress_;
  std::string memory_text_;
  std::optional<Recorded> recorded_;  // the report also tells what is known only when all is done
};

}  // namespace plimsoll::cli
