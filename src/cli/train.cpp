// train: the whole way from a network's name to trained weights.
#include <memory>

#include "cli/checks.h"
#include "cli/interrupts.h"
#include "cli/narrator.h"
#include "cli/ranks.h"
#include "cli/train_options.h"

namespace plimsoll::cli {
namespace {

// One of several ranks that is not the first: what it is asked for is written by that one.
TrainListener quiet_listener() {
  TrainListener listener;
  listener.stop = [] { return interrupted(); };
  return listener;
}

int run_train(TrainFlags& flags, const CLI::App& command, const std::shared_ptr<Communicator>& ranks) {
  const bool tells = ranks == nullptr || ranks->is_first();
  if (!tells) {
    for (std::string* file : {&flags.json, &flags.log_csv, &flags.tensorboard, &flags.trace, &flags.report})
      file->clear();
  }
  // A checkpoint may take the place of what the training began with.
  check_apart({{"--json", flags.json},
               {"--log-csv", flags.log_csv},
               {"--trace", flags.trace},
               {"--report", flags.report},
               {"--tensorboard", flags.tensorboard}},
              {{"--checkpoint", flags.checkpoint},
               {"--resume", flags.resume},
               {"--weights", flags.weights},
               {"--plan", flags.plan},
               file_read_by("--data", flags.data),
               file_read_by("MODEL", flags.model)});
  check_apart({{"--checkpoint", flags.checkpoint}}, {{"--plan", flags.plan},
                                                     {"--weights", flags.weights},
                                                     file_read_by("--data", flags.data),
                                                     file_read_by("MODEL", flags.model)});
  check_is_no_stream("--log-csv", flags.log_csv);
  check_is_no_stream("--tensorboard", flags.tensorboard);
  if (tells) check_writable("--checkpoint", flags.checkpoint);
  check_writable("--trace", flags.trace);
  check_writable("--report", flags.report);
  TrainOptions options = options_from(flags, command);
  options.communicator = ranks;
  take_remote_memory(options, ranks, command.count("--remote-memory") == 0 && options.resume.has_value());
  if (tells && flags.checkpoint.empty() && options.checkpoint)
    check_writable("--resume (without --checkpoint it is saved to again)", options.checkpoint->string());
  Narrator narrator(flags, options);
  const TrainListener listener = tells ? narrator.listener() : quiet_listener();
  catch_interrupts(options.checkpoint ? Hangup::saves : Hangup::stops);
  if (ranks != nullptr) ranks->set_ending([] { return interrupted(); });
  const auto result = train(options, listener);
  if (const auto* infeasible = std::get_if<Infeasible>(&result)) {
    if (tells) narrator.tell_infeasible(*infeasible);
    return kInfeasible;
  }
  const DoneEvent& done = std::get<DoneEvent>(result);
  if (tells) narrator.tell_done(done);
  if (done.interrupted) return kInterrupted;
  return narrator.lost_a_log() ? kFailure : kDone;
}

// What is trained on, and how long.
void add_data_to(CLI::App& command, TrainFlags& flags) {
  command
      .add_option(
          "--data", flags.data,
          "digits, mnist:DIR, cifar10:DIR, cifar100:DIR, images:DIR (a folder a class), synthetic; for language "
          "models text, bytes:FILE, tokens:FILE (ids of 2 bytes; of 4 where it ends in .u32), synthetic")
      ->check(not_empty());
  command.add_option("--epochs", flags.epochs, "Passes over the training data")
      ->check(whole_number(1, int64_t{1} << 30));
  command.add_option("--steps", flags.steps, "Stop after this many steps in all")
      ->check(whole_number(1, int64_t{1} << 40));
}

void add_learning_rate_to(CLI::App& command, TrainFlags& flags) {
  command
      .add_option("--lr", flags.lr,
                  "Learning rate (default: 0.05 for sgd, PyTorch's for the others, as 0.001 for adam)")
      ->check(positive_number());
  command.add_option("--sched", flags.schedule.name, "Learning-rate schedule: constant, step, cosine")
      ->capture_default_str();
  command.add_option("--warmup-epochs", flags.schedule.warmup_epochs, "Epochs of linear warm-up")
      ->check(whole_number(0, int64_t{1} << 30));
  command.add_option("--warmup-lr", flags.schedule.warmup_lr, "Learning rate that the warm-up begins with")
      ->check(cli::number());
  command.add_option("--min-lr", flags.schedule.min_lr, "Where the cosine schedule ends")->check(cli::number());
  command.add_option("--decay-epochs", flags.schedule.decay_epochs, "Epochs between the decays of the step schedule")
      ->capture_default_str()
      ->check(whole_number(1, int64_t{1} << 30));
  command.add_option("--decay-rate", flags.schedule.decay_rate, "Factor of a decay of the step schedule")
      ->capture_default_str()
      ->check(cli::number(0, 1));
}

// How batches are drawn and made, and how often what was learnt is judged.
void add_batches_to(CLI::App& command, TrainFlags& flags) {
  command.add_option("--seed", flags.seed, "Of weights, order, augmentation and dropout")
      ->capture_default_str()
      ->check(seed_number());
  command.add_flag("--no-augment", flags.no_augment, "No random flips and crops");
  command.add_option("-j,--workers", flags.workers, "Threads that prepare batches")
      ->capture_default_str()
      ->check(whole_number(1, 256));
  command.add_option("--evaluate-every", flags.evaluate_every, "Epochs between evaluations on the test set; 0: never")
      ->capture_default_str()
      ->check(whole_number(0, int64_t{1} << 30));
}

// What a training begins with, and what it leaves.
void add_files_to(CLI::App& command, TrainFlags& flags) {
  command
      .add_option(
          "--checkpoint", flags.checkpoint,
          "Save here (safetensors) after every epoch, at the end, when interrupted and when the terminal hangs up")
      ->type_name("FILE")
      ->check(not_empty());
  command.add_option("--checkpoint-every", flags.checkpoint_every, "Save every so many steps, besides")
      ->check(whole_number(0, int64_t{1} << 40));
  command
      .add_option("--resume", flags.resume,
                  "Go on exactly where this checkpoint stopped; flags not given are taken from it")
      ->type_name("FILE")
      ->check(not_empty());
  command.get_option("--resume")
      ->excludes(
          command
              .add_option("--plan", flags.plan,
                          "Run this plan, saved by `plimsoll plan --save`; it says model, batch, optimizer and policy")
              ->type_name("FILE")
              ->check(not_empty()));
  command
      .add_option(
          "--weights", flags.weights,
          "Begin with the weights of this safetensors file: ours, torchvision's or timm's; with --num-classes the "
          "last layer may be a new one")
      ->type_name("FILE")
      ->check(not_empty())
      ->excludes(command.get_option("--resume"));
  command
      .add_option("--log-csv", flags.log_csv,
                  "Write a table with a line an epoch: losses, accuracies, learning rate, time; --resume adds to it")
      ->type_name("FILE.csv")
      ->check(not_empty());
  command
      .add_option("--tensorboard", flags.tensorboard,
                  "Write losses, accuracies and learning rate for `tensorboard --logdir DIR`")
      ->type_name("DIR")
      ->check(not_empty());
  command.add_option("--trace", flags.trace, "Write a Chrome trace (Perfetto) of the plan and of the last step")
      ->type_name("FILE")
      ->check(not_empty());
  command
      .add_option("--report", flags.report,
                  "Write a report of the plan and the run, with charts: one HTML file that needs no network")
      ->type_name("FILE.html")
      ->check(not_empty());
}

}  // namespace

Run add_train(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command = app.add_subcommand("train", "Train a network inside a memory budget");
  command->footer(
      "Examples:\n"
      "  plimsoll train                                                      the default network on the bundled digits\n"
      "  plimsoll train resnet50 --batch 16 --memory 1GiB --steps 100        on synthetic images, inside 1 GiB\n"
      "  plimsoll train resnet20 --data cifar10:DIR --epochs 30 --sched cosine --checkpoint c.safetensors\n"
      "  plimsoll train --resume c.safetensors                               goes on where that stopped");
  flags->add_to(*command, false);
  command->get_option("--threads")
      ->description(
          "Threads to compute with (default: all cores, and fewer while other processes keep them busy, where that is "
          "faster and --exact is not given)");
  flags->add_optimizer_to(*command);
  flags->add_sharing_to(*command);
  flags->add_zero_to(*command);
  flags->add_workspace_to(*command);
  add_data_to(*command, *flags);
  add_learning_rate_to(*command, *flags);
  add_batches_to(*command, *flags);
  add_files_to(*command, *flags);
  command->add_option("--costs", flags->costs, "measured: time kernels that the database lacks; estimated: do not")
      ->capture_default_str()
      ->check(CLI::IsMember({"measured", "estimated"}));
  command
      ->add_option("--timeout", flags->timeout,
                   "Seconds after which a rank that does not answer ends the training of all, where mpirun or srun "
                   "started several")
      ->capture_default_str()
      ->check(positive_number());
  command->add_flag("--check-memory", flags->check_memory,
                    "Overwrite memory as soon as the plan says that it is free (slow; finds planning bugs)");
  return [flags, command] {
    return as_rank(flags->timeout,
                   [&](const std::shared_ptr<Communicator>& ranks) { return run_train(*flags, *command, ranks); });
  };
}

}  // namespace plimsoll::cli
