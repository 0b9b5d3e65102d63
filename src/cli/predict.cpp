// predict: what a trained network sees in images.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/parallel.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/interrupts.h"
#include "cli/trained.h"
#include "data/decode.h"
#include "data/image_files.h"
#include "train/training_data.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

struct PredictFlags : TrainedFlags {
  std::vector<std::string> images;
  int64_t top = 5;
  std::string csv;
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

  void refuse(const std::string& file, const std::string& why) {
    complain(why);
    out_.write({{"file", file}, {"error", why}});
    ++refused_;
  }

  int finish() {
    if (!flags_.csv.empty()) write_file_atomically(flags_.csv, csv_);
    if (refused_ == 0) return kDone;
    complain(fmt::format("{} of {} images could not be read; the others are answered", refused_, refused_ + answered_));
    return kBadInput;
  }

 private:
  const PredictFlags& flags_;
  const std::vector<std::string>& names_;
  JsonLines out_;
  std::string csv_;
  int64_t answered_ = 0, refused_ = 0;
};

int run_predict(const PredictFlags& flags, const CLI::App& command) {
  std::vector<NamedFile> inputs{{"--checkpoint", flags.checkpoint}};
  for (const std::string& image : flags.images) inputs.push_back({"IMAGE", image});
  check_apart({{"--csv", flags.csv}, {"--json", flags.json}}, inputs);
  check_writable("--csv", flags.csv);
  const std::vector<std::string> files = list_image_files(flags.images);
  const WeightsFile weights(flags.checkpoint);
  const InferenceRequest request = flags.request(command, weights);
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
      } else {
        predictions.write(file, best_guesses(answers.logits.subspan(i * classes, classes), flags.top));
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
  CLI::App* command = app.add_subcommand("predict", "Say what a trained network sees in images");
  command->footer(
      "Examples:\n"
      "  plimsoll predict --checkpoint run.safetensors cat.jpg               the five likeliest classes\n"
      "  plimsoll predict --checkpoint run.safetensors photos/ --top 1 --csv answers.csv\n"
      "  plimsoll predict --checkpoint resnet50.safetensors --model resnet50 cat.jpg      torchvision's weights\n"
      "Images that cannot be read are named, the others go on, and the exit code is 2.");
  command->add_option("IMAGE", flags->images, "JPEG and PNG files, and folders of them")
      ->required()
      ->check(not_empty());
  flags->TrainedFlags::add_to(*command,
                              "Feed images and name classes as this data does (default: as in the checkpoint)");
  command->add_option("--top", flags->top, "How many classes to tell of each image, the likeliest first")
      ->capture_default_str()
      ->check(whole_number(1, 1 << 24));
  command->add_option("--csv", flags->csv, "Write a table: file, rank, class, name, probability")
      ->type_name("FILE")
      ->check(not_empty());
  command->add_option("--json", flags->json, "Write JSON, an object an image, to FILE, or to standard output for '-'")
      ->type_name("FILE")
      ->check(not_empty());
  return [flags, command] { return run_predict(*flags, *command); };
}

}  // namespace plimsoll::cli
