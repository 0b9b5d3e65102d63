#include "cli/trained.h"

#include <fmt/format.h>

#include "cli/checks.h"
#include "plimsoll/models.h"
#include "train/process_memory.h"

namespace plimsoll::cli {

void TrainedFlags::add_to(CLI::App& command, const std::string& data_help) {
  command
      .add_option("--checkpoint,--weights", checkpoint,
                  "A checkpoint, or a safetensors file with the weights of torchvision's or timm's network")
      ->type_name("FILE")
      ->required()
      ->check(not_empty());
  command.add_option("--model", model, "Network (default: the checkpoint's); another program's file does not say it")
      ->check(not_empty());
  command.add_option("--data", data, data_help)->check(not_empty());
  command
      .add_option("-b,--batch,--batch-size", batch, "Images at once (default: the checkpoint's, or what fits of it)")
      ->check(whole_number(1, 1 << 20));
  command.add_option("--memory", memory, "Bytes that it may use, weights included: 512MiB (default: the checkpoint's)")
      ->type_name("SIZE");
  add_memory_is_to(command);
  command.add_option("--host-memory", host_memory, "Memory beside --memory that tensors may be moved to: 4GiB")
      ->type_name("SIZE");
  command.add_option("--spill", spill, "Folder on disk that tensors may be moved to, and how much of it")
      ->type_name("DIR[:SIZE]");
  command.add_option("--device", device, "Where it runs (default: the checkpoint's); `plimsoll devices` lists them");
  command.add_option("--threads", threads, "Threads to compute with (default: all cores)")
      ->check(whole_number(1, 4096));
  command.add_option("--image-size", image_size, "Height and width of the images (default: the checkpoint's)")
      ->check(whole_number(1, 1 << 16));
  command.add_flag("--exact", exact, "Choose kernels by a fixed rule, so that results are always the same to the bit");
  command.add_option("-j,--workers", workers, "Threads that prepare images")
      ->capture_default_str()
      ->check(whole_number(1, 256));
}

InferenceRequest TrainedFlags::request(const CLI::App& command, const WeightsFile& file) const {
  const auto given = [&](const char* name) { return command.count(name) > 0; };
  InferenceRequest request = request_of(file);
  TrainOptions& options = request.options;
  if (!model.empty()) {
    if (model != options.model) request.input.reset();  // what fed the other says nothing
    options.model = model;
  }
  if (options.model.empty()) {
    throw Error(
        ErrorCode::invalid_input,
        fmt::format("{}: is another program's file, which does not say its network; name it with --model, as in "
                    "--model resnet50",
                    file.name()));
  }
  options.policy = "auto";
  options.placement = "offline";
  options.threads = threads;
  options.exact = exact || options.exact;
  options.workers = workers;
  if (given("--data")) options.data = data;
  if (given("--image-size")) options.image_size = image_size;
  if (given("--device")) options.device = device;
  request.batch_given = given("--batch");
  if (request.batch_given) options.batch = batch;
  if (given("--memory-is") && !given("--memory") && means_process() != (options.memory_is == MemoryIs::process)) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("--memory-is {}: say with --memory how much of that it is", memory_is));
  }
  if (const auto bytes = memory_bytes()) {
    options.memory = bytes;
    options.memory_is = means_process() ? MemoryIs::process : MemoryIs::arena;
  }
  if (options.memory_is == MemoryIs::process) check_memory_is_process(options.device, true);
  options.remote_memory.reset();  // of a training, under mpirun
  const TierOptions asked = tiers();
  if (given("--host-memory")) options.host_memory = asked.host_memory;
  if (given("--spill")) {
    options.spill = asked.spill;
    options.spill_size = asked.spill_size;
  }
  const Network usual = build_model(options.model, {.batch = 1});
  const std::vector<std::string> head = head_of(usual);
  if (head.empty())
    throw Error(ErrorCode::unsupported, fmt::format("'{}' does not classify, so it has no answers", options.model));
  options.classes = classes_of(file, usual);
  if (options.classes == 0) {
    throw Error(ErrorCode::invalid_input, fmt::format("{}: lacks '{}', the last layer of {}: it is of another network",
                                                      file.name(), head[0], options.model));
  }
  return request;
}

void tell_process(const InferenceRequest& request, const Inference& network) {
  const Bytes peak = process_peak();
  if (request.options.memory_is == MemoryIs::process && peak > network.process()) {
    complain(fmt::format("the process took {} at its peak, more than the {} of --memory; please report this",
                         to_string(peak), to_string(network.process())));
  }
}

std::string class_name(const std::vector<std::string>& names, int64_t label) {
  return label < static_cast<int64_t>(names.size()) ? names[static_cast<size_t>(label)] : fmt::to_string(label);
}

}  // namespace plimsoll::cli
