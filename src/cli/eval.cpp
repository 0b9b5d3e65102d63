// eval: how well a trained network answers on a data set.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/interrupts.h"
#include "cli/progress.h"
#include "cli/trained.h"
#include "train/process_memory.h"
#include "train/training_data.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

struct EvalFlags : TrainedFlags {
  bool per_class = false;
};

// The network's input for the data. What the checkpoint and the data call their classes must agree.
ModelInput input_for(const InferenceRequest& request, const DataInfo& data) {
  const TrainOptions& options = request.options;
  if (data.classes > options.classes) {
    throw Error(ErrorCode::invalid_input, fmt::format("--data {}: has {} classes, but the network was trained for {}",
                                                      options.data, data.classes, options.classes));
  }
  if (request.input && !request.input->class_names.empty() && !data.class_names.empty()) {
    const std::vector<std::string>&trained = request.input->class_names, &now = data.class_names;
    for (size_t i = 0; i < std::max(trained.size(), now.size()); ++i) {
      const std::string then = i < trained.size() ? trained[i] : "", here = i < now.size() ? now[i] : "";
      if (then == here) continue;
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("--data {}: its class {} is '{}', but the network was trained with '{}' in its place; the "
                      "folders' names must be those of the training",
                      options.data, i, here, then));
    }
  }
  return training_input(options, data);
}

json counts_json(const Assessment& a, const std::vector<std::string>& names) {
  json list = json::array();
  for (size_t c = 0; c < a.classes.size(); ++c) {
    const ClassCount& count = a.classes[c];
    list.push_back(
        {{"class", c},
         {"name", class_name(names, static_cast<int64_t>(c))},
         {"images", count.images},
         {"right", count.right},
         {"answered", count.answered},
         {"accuracy", count.images > 0 ? json(static_cast<double>(count.right) / static_cast<double>(count.images))
                                       : json(nullptr)}});
  }
  return list;
}

// A line a class that has images or was answered.
void say_classes(const JsonLines& out, const Assessment& a, const std::vector<std::string>& names) {
  say(out, fmt::format("{:<24} {:>8} {:>8} {:>9} {:>9}", "class", "images", "right", "accuracy", "answered"));
  for (size_t c = 0; c < a.classes.size(); ++c) {
    const ClassCount& count = a.classes[c];
    if (count.images == 0 && count.answered == 0) continue;
    const std::string accuracy =
        count.images > 0
            ? fmt::format("{:.2f} %", 100.0 * static_cast<double>(count.right) / static_cast<double>(count.images))
            : "-";
    say(out, fmt::format("{:<24} {:>8} {:>8} {:>9} {:>9}", class_name(names, static_cast<int64_t>(c)), count.images,
                         count.right, accuracy, count.answered));
  }
}

json result_json(const EvalFlags& flags, const TrainOptions& options, const Inference& network, const Assessment& a) {
  return {{"checkpoint", flags.checkpoint},
          {"model", options.model},
          {"data", options.data},
          {"images", a.images},
          {"loss", a.loss},
          {"accuracy", a.accuracy},
          {"top5_accuracy", a.top5_accuracy ? json(*a.top5_accuracy) : json(nullptr)},
          {"batch", network.batch()},
          {"seconds", a.seconds},
          {"images_per_second", static_cast<double>(a.images) / std::max(a.seconds, 1e-9)},
          {"peak_bytes", network.peak().count},
          {"budget_bytes", network.budget().count},
          {"process_bytes", network.process().count},
          {"process_peak_bytes", process_peak().count}};
}

int run_eval(const EvalFlags& flags, const CLI::App& command) {
  check_apart({{"--json", flags.json}}, {{"--checkpoint", flags.checkpoint}, file_read_by("--data", flags.data)});
  JsonLines out(flags.json);
  const WeightsFile file(flags.checkpoint);
  InferenceRequest request = flags.request(command, file);
  TrainOptions& options = request.options;
  if (options.data.empty()) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("{}: does not say what data to evaluate on; name it with --data, as in --data images:DIR",
                            flags.checkpoint));
  }
  const std::shared_ptr<const DataSet> data = open_training_data(options);
  if (data->info().test_count == 0)
    throw Error(ErrorCode::invalid_input, fmt::format("--data {}: has no test {}", options.data,
                                                      data->info().windows.context > 0 ? "windows" : "images"));
  const ModelInput input = input_for(request, data->info());
  Inference network(request, input, file, data->memory(), options.data.starts_with("images") ? options.workers : 0,
                    complain);
  const int64_t context = data->info().windows.context;
  if (context > 0 && flags.per_class)
    throw Error(ErrorCode::invalid_input, "--per-class: a language model has no classes; leave the flag out");
  say(out,
      fmt::format("{} of {} on {}: {} test {}, batch {}, in {}", options.model, flags.checkpoint, data->info().name,
                  data->info().test_count, context > 0 ? fmt::format("windows of {} tokens", context) : "images",
                  network.batch(), to_string(network.arena())));
  catch_interrupts();
  Progress progress;
  const Assessment a = assess(network, data, options.seed, options.workers, [&](int64_t done, int64_t total) {
    progress.update("evaluating", done, total, "");
    return !interrupted() && !output_closed();
  });
  progress.finish();
  if (flags.per_class) say_classes(out, a, data->info().class_names);
  const double rate = static_cast<double>(a.images) / std::max(a.seconds, 1e-9);
  if (a.language) {
    say(out,
        fmt::format("{} windows: loss {:.4f}, perplexity {:.4f} ({:.1f} s, {:.4g} tokens/s; peak {})", a.images, a.loss,
                    std::exp(a.loss), a.seconds, rate * static_cast<double>(context), to_string(network.peak())));
  } else {
    std::string text = fmt::format("{} images: loss {:.4f}, accuracy {:.2f} %", a.images, a.loss, 100 * a.accuracy);
    if (a.top5_accuracy) text += fmt::format(", among the first five {:.2f} %", 100 * *a.top5_accuracy);
    say(out, fmt::format("{} ({:.1f} s, {:.4g} images/s; peak {})", text, a.seconds, rate, to_string(network.peak())));
  }
  tell_process(request, network);
  json object = result_json(flags, options, network, a);
  if (a.language) {
    object["accuracy"] = nullptr;
    object["perplexity"] = std::exp(a.loss);
    object["tokens_per_second"] = rate * static_cast<double>(context);
  }
  if (flags.per_class) object["classes"] = counts_json(a, data->info().class_names);
  out.write(object);
  return kDone;
}

}  // namespace

Run add_eval(CLI::App& app) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = app.add_subcommand("eval", "Say how well a trained network answers on a data set");
  command->footer(
      "Examples:\n"
      "  plimsoll eval --checkpoint run.safetensors                          on the test images of its own data\n"
      "  plimsoll eval --checkpoint run.safetensors --data images:DIR --memory 256MiB --per-class\n"
      "  plimsoll eval --checkpoint resnet50.safetensors --model resnet50 --data images:DIR      torchvision's weights");
  flags->add_to(
      *command,
      "Test images, or the end of a text, of this data (default: the checkpoint's): digits, mnist:DIR, cifar10:DIR, "
      "images:DIR, text, bytes:FILE, tokens:FILE, ...");
  command->add_flag("--per-class", flags->per_class, "A table of the classes: images, right answers, accuracy");
  command->add_option("--json", flags->json, "Write the result as JSON to FILE, or to standard output for '-'")
      ->type_name("FILE")
      ->check(not_empty());
  return [flags, command] { return run_eval(*flags, *command); };
}

}  // namespace plimsoll::cli
