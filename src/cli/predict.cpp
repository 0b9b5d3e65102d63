// predict: what a trained network sees in images.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/files.h"
#include "base/parallel.h"
#include "base/texts.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/interrupts.h"
#include "cli/trained.h"
#include "data/decode.h"
#include "data/image_files.h"
#include "train/process_memory.h"
#include "train/sampling.h"
#include "train/training_data.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

struct PredictFlags : TrainedFlags {
  std::vector<std::string> images;
  int64_t top = 5;
  std::string csv;
  std::optional<std::string> prompt;
  SamplingOptions sampling;
};

// How the network is fed: by the data that is named, else as it was trained.
DataInfo fed_by(const InferenceRequest& request, const PredictFlags& flags) {
  const TrainOptions& options = request.options;
  if (flags.data.empty() && request.input) {
    DataInfo info = data_info(*request.input);
    if (flags.image_size > 0) info.height = info.width = flags.image_size;
    return info;
  }
  if (!options.data.empty()) return open_training_data(options)->info();
  // Another program's weights: images as torchvision feeds its networks.
  const ModelInput usual = usual_input(options.model);
  return imagenet_info({.channels = usual.channels,
                        .height = options.image_size > 0 ? options.image_size : usual.height,
                        .width = options.image_size > 0 ? options.image_size : usual.width});
}

// A field of a CSV file, quoted where it must be.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

// Answers image after image, and writes them where they are wanted.
class Predictions {
 public:
  Predictions(const PredictFlags& flags, const std::vector<std::string>& names)
      : flags_(flags), names_(names), out_(flags.json), csv_("file,rank,class,name,probability\n") {}

  void write(const std::string& file, const std::vector<Guess>& guesses) {
    std::string text;
    json list = json::array();
    for (size_t i = 0; i < guesses.size(); ++i) {
      const auto& [label, probability] = guesses[i];
      const std::string name = class_name(names_, label);
      text += fmt::format("{}{} {:.2f} %", i == 0 ? "" : ", ", name, 100 * probability);
      list.push_back({{"class", label}, {"name", name}, {"probability", probability}});
      csv_ += fmt::format("{},{},{},{},{:.6g}\n", csv_field(file), i + 1, label, csv_field(name), probability);
    }
    if (!out_.to_stdout()) say(out_, fmt::format("{}: {}", file, text));
    out_.write({{"file", file}, {"predictions", list}});
    ++answered_;
  }

  // An image without an answer. `damaged`: the file, and not the weights.
  void refuse(const std::string& file, const std::string& why, bool damaged = true) {
    complain(why);
    out_.write({{"file", file}, {"error", why}});
    ++(damaged ? unread_ : unanswered_);
  }

  int finish() {
    if (!flags_.csv.empty()) write_file_atomically(flags_.csv, csv_);
    const int64_t all = answered_ + unread_ + unanswered_;
    if (unread_ > 0) {
      complain(fmt::format("{} of {} images could not be read{}", unread_, all,
                           unread_ == all    ? ""
                           : unanswered_ > 0 ? "; the others are seen"
                                             : "; the others are answered"));
    }
    if (unanswered_ > 0)
      complain(fmt::format("{} of {} images have no answer; weights of a training that diverged give none", unanswered_,
                           all));
    return unread_ + unanswered_ == 0 ? kDone : kBadInput;
  }

 private:
  const PredictFlags& flags_;
  const std::vector<std::string>& names_;
  JsonLines out_;
  std::string csv_;
  int64_t answered_ = 0, unread_ = 0, unanswered_ = 0;
};

// The tokens of a prompt: its bytes, or where the vocabulary is not that of bytes the ids that it lists.
std::vector<int32_t> prompt_tokens(const std::string& prompt, bool bytes, int64_t vocabulary) {
  std::vector<int32_t> tokens;
  if (bytes) {
    for (char c : prompt) tokens.push_back(static_cast<uint8_t>(c));
  } else {
    const char* at = prompt.data();
    const char* const end = at + prompt.size();
    while (true) {
      while (at != end && (*at == ' ' || *at == ',')) ++at;
      if (at == end) break;
      int32_t id = 0;
      const auto [stop, error] = std::from_chars(at, end, id);
      if (error != std::errc() || id < 0 || id >= vocabulary || (stop != end && *stop != ' ' && *stop != ',')) {
        throw Error(
            ErrorCode::invalid_input,
            fmt::format("--prompt: '{}' is no list of token ids from 0 to {}, as in --prompt \"15496 995\": the "
                        "network's vocabulary is not of bytes",
                        cut_text(prompt), vocabulary - 1));
      }
      tokens.push_back(id);
      at = stop;
    }
  }
  if (tokens.empty()) throw Error(ErrorCode::invalid_input, "--prompt: has no token to go on from; give some text");
  return tokens;
}

// Goes on with a text.
int run_sample(const PredictFlags& flags, const CLI::App& command) {
  for (const char* flag : {"--csv", "--top", "--image-size", "--batch"}) {
    if (command.count(flag) > 0)
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{}: is of images, and --prompt of a text; leave one out", flag));
  }
  if (flags.images.size() > 1)
    throw Error(ErrorCode::invalid_input, "--prompt: goes with no images; name the network alone, or nothing");
  check_apart({{"--json", flags.json}}, {{"--checkpoint", flags.checkpoint}});
  JsonLines out(flags.json);
  const WeightsFile weights(flags.checkpoint);
  InferenceRequest request = flags.request(command, weights);
  request.batch_given = true;
  const TrainOptions& options = request.options;
  const TokenTask task = token_task(options.model);
  if (!task.tokens || task.mask) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("--prompt: {} {}; gpt2 and llama go on with a text", options.model,
                            task.tokens ? "names masked tokens, and not the next one" : "takes images"));
  }
  const std::string_view kind = std::string_view(options.data).substr(0, options.data.find(':'));
  if (command.count("--data") > 0 && kind != "text" && kind != "bytes" && kind != "tokens" && kind != "synthetic")
    throw Error(ErrorCode::invalid_input,
                fmt::format("--data: '{}' is no text, and --prompt is one: text, bytes:FILE or tokens:FILE, or leave "
                            "it out",
                            options.data));
  const int64_t vocabulary = options.classes, context = usual_input(options.model).width;
  const bool bytes = vocabulary == 256 || options.data == "text" || options.data.starts_with("bytes:");
  const std::vector<int32_t> prompt = prompt_tokens(*flags.prompt, bytes, vocabulary);
  // Causal networks answer the same in a window that is no longer than the text will be.
  constexpr int64_t kWindowStep = 16;
  const int64_t length = std::ssize(prompt) + std::min(flags.sampling.tokens, context);
  const int64_t window = std::min(context, (length + kWindowStep - 1) / kWindowStep * kWindowStep);
  Inference network(request, {.batch = 1, .channels = 1, .height = 1, .width = window, .classes = vocabulary}, weights,
                    0_B, 0, complain);
  catch_interrupts();
  const auto text_of = [&](int32_t id) -> std::string {
    if (!bytes) return fmt::format(" {}", id);
    return id < 256 ? std::string(1, static_cast<char>(id)) : "\uFFFD";  // a vocabulary may have more than bytes
  };
  const auto print = [&](const std::string& text) {
    if (out.to_stdout()) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    if (std::fflush(stdout) != 0) note_output_closed();
  };
  print(*flags.prompt);
  const Stopwatch watch;
  std::string added;
  const std::vector<int32_t> tokens = sample_text(network, prompt, window, flags.sampling, [&](int32_t id) {
    added += text_of(id);
    print(text_of(id));
    return !interrupted() && !output_closed();
  });
  print("\n");
  tell_process(request, network);
  const int64_t count = std::ssize(tokens) - std::ssize(prompt);
  json object{{"checkpoint", flags.checkpoint},
              {"model", options.model},
              {"prompt", *flags.prompt},
              {"tokens", std::vector<int32_t>(tokens.begin() + std::ssize(prompt), tokens.end())},
              {"tokens_per_second", static_cast<double>(count) / std::max(watch.seconds(), 1e-9)},
              {"peak_bytes", network.peak().count},
              {"budget_bytes", network.budget().count},
              {"process_bytes", network.process().count},
              {"process_peak_bytes", process_peak().count}};
  if (bytes) object["text"] = added;
  out.write(object);
  return count < flags.sampling.tokens ? kInterrupted : kDone;
}

int run_predict(PredictFlags& flags, const CLI::App& command) {
  if (flags.prompt) {
    if (flags.images.size() == 1 && flags.model.empty()) flags.model = flags.images[0];
    return run_sample(flags, command);
  }
  if (flags.images.empty())
    throw Error(ErrorCode::invalid_input, "say which images to look at, or with --prompt which text to go on with");
  for (const char* flag : {"--tokens", "--temperature", "--top-k", "--seed"}) {
    if (command.count(flag) > 0)
      throw Error(ErrorCode::invalid_input, fmt::format("{}: is of a text; give --prompt as well", flag));
  }
  std::vector<NamedFile> inputs{{"--checkpoint", flags.checkpoint}};
  for (const std::string& image : flags.images) inputs.push_back({"IMAGE", image});
  check_apart({{"--csv", flags.csv}, {"--json", flags.json}}, inputs);
  check_writable("--csv", flags.csv);
  const std::vector<std::string> files = list_image_files(flags.images);
  const WeightsFile weights(flags.checkpoint);
  const InferenceRequest request = flags.request(command, weights);
  if (const TokenTask task = token_task(request.options.model); task.tokens) {
    throw Error(
        ErrorCode::invalid_input,
        task.mask
            ? fmt::format("predict: {} takes texts, and names masked tokens: eval says how well", request.options.model)
            : fmt::format("predict: {} takes texts, not images: say with --prompt TEXT which to go on with",
                          request.options.model));
  }
  const DataInfo info = fed_by(request, flags);
  ModelInput input{.batch = std::min<int64_t>(request.options.batch, std::max<int64_t>(1, std::ssize(files))),
                   .channels = info.channels,
                   .height = info.height,
                   .width = info.width,
                   .classes = request.options.classes};
  std::vector<std::string> names = info.class_names;
  if (names.empty() && request.input) names = request.input->class_names;
  Predictions predictions(flags, names);
  Inference network(request, input, weights, 0_B, threads_in_parallel(static_cast<size_t>(input.batch)), complain);
  catch_interrupts();

  const auto batch = static_cast<size_t>(network.batch()), classes = static_cast<size_t>(network.classes());
  const auto elements = static_cast<size_t>(info.channels * info.height * info.width);
  std::vector<float> pixels(batch * elements);
  const std::vector<int32_t> labels(batch, network.padding_label());
  const bool stated = request.options.memory_is == MemoryIs::process;
  const int64_t most_pixels = stated ? kCountedPixels : kMostDecodedPixels;
  for (size_t first = 0; first < files.size(); first += batch) {
    const size_t count = std::min(batch, files.size() - first);
    std::vector<std::string> problems(count);
    std::fill(pixels.begin(), pixels.end(), 0.0F);
    for_each_in_parallel(count, [&](size_t i) {
      problems[i] =
          read_image_file(files[first + i], info, std::span(pixels).subspan(i * elements, elements), most_pixels);
    });
    const Inference::Answers answers = network.run(pixels, labels);
    for (size_t i = 0; i < count; ++i) {
      const std::string& file = files[first + i];
      if (!problems[i].empty()) {
        predictions.refuse(file, problems[i]);
      } else if (const auto guesses = best_guesses(answers.logits.subspan(i * classes, classes), flags.top);
                 !std::isfinite(guesses.front().probability)) {
        predictions.refuse(file, fmt::format("{}: the network's scores are not finite numbers", file), false);
      } else {
        predictions.write(file, guesses);
      }
    }
    if (interrupted() || output_closed()) {
      predictions.finish();
      complain(fmt::format("interrupted after {} of {} images", first + count, files.size()));
      return kInterrupted;
    }
  }
  tell_process(request, network);
  return predictions.finish();
}

}  // namespace

Run add_predict(CLI::App& app) {
  auto flags = std::make_shared<PredictFlags>();
  CLI::App* command = app.add_subcommand("predict", "Say what a trained network sees in images, or go on with a text");
  command->footer(
      "Examples:\n"
      "  plimsoll predict --checkpoint run.safetensors cat.jpg               the five likeliest classes\n"
      "  plimsoll predict --checkpoint run.safetensors photos/ --top 1 --csv answers.csv\n"
      "  plimsoll predict --checkpoint resnet50.safetensors --model resnet50 cat.jpg      torchvision's weights\n"
      "  plimsoll predict --checkpoint gpt.safetensors --prompt \"Of Man's first\" --tokens 300 --temperature 0.8\n"
      "Images that cannot be read are named, the others go on, and the exit code is 2.");
  command->add_option("IMAGE", flags->images, "JPEG and PNG files, and folders of them; with --prompt the network")
      ->check(not_empty());
  flags->TrainedFlags::add_to(*command,
                              "Feed images and name classes as this data does (default: as in the checkpoint)");
  command->add_option("--top", flags->top, "How many classes to tell of each image, the likeliest first")
      ->capture_default_str()
      ->check(whole_number(1, 1 << 24));
  command
      ->add_option("--prompt", flags->prompt,
                   "Go on with this text, by a language model; token ids where its vocabulary is not that of bytes")
      ->type_name("TEXT")
      ->check(not_empty());
  command->add_option("--tokens", flags->sampling.tokens, "How many tokens to add to the prompt")
      ->capture_default_str()
      ->check(whole_number(1, 1 << 24));
  command
      ->add_option("--temperature", flags->sampling.temperature,
                   "Below 1 likely tokens are drawn more often, above 1 less often; 0: always the likeliest")
      ->capture_default_str()
      ->check(cli::number(0, 1e6));
  command->add_option("--top-k", flags->sampling.top_k, "Draw among so many likeliest tokens; 0: among all")
      ->capture_default_str()
      ->check(whole_number(0, 1 << 24));
  command->add_option("--seed", flags->sampling.seed, "Of the draws")->capture_default_str()->check(seed_number());
  command->add_option("--csv", flags->csv, "Write a table: file, rank, class, name, probability")
      ->type_name("FILE")
      ->check(not_empty());
  command->add_option("--json", flags->json, "Write JSON, an object an image, to FILE, or to standard output for '-'")
      ->type_name("FILE")
      ->check(not_empty());
  return [flags, command] { return run_predict(*flags, *command); };
}

}  // namespace plimsoll::cli
