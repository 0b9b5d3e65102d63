#include "train/training_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "plimsoll/error.h"
#include "plimsoll/models.h"
#include "train/ranks.h"

namespace plimsoll {
namespace {

constexpr double kHostShare = 0.85;  // of the free memory, when no budget is given
constexpr Bytes kHostReserve = 512_MiB;

}  // namespace

// Images that have no size of their own come in the network's size.
std::shared_ptr<const DataSet> open_training_data(const TrainOptions& options) {
  DataOptions wanted{
      .channels = 0, .height = options.image_size, .width = options.image_size, .classes = 0, .seed = options.seed};
  const std::string_view kind = std::string_view(options.data).substr(0, options.data.find(':'));
  if (const TokenTask task = token_task(options.model); task.tokens) {
    if (options.image_size > 0)
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("--image-size: {} takes no images; its option context says how long a window is", options.model));
    const ModelInput usual = usual_input(options.model);
    wanted.windows = {.context = usual.width, .mask = task.mask};
    const bool own = kind == "bytes" || kind == "text";  // data with a vocabulary of its own
    wanted.classes = options.classes > 0 ? options.classes : !own || task.vocabulary_given ? usual.classes : 0;
  }
  if (wanted.windows.context == 0 && (kind == "synthetic" || kind == "images")) {
    const ModelInput usual = usual_input(options.model);
    wanted.channels = usual.channels;
    if (options.image_size == 0) {
      wanted.height = usual.height;
      wanted.width = usual.width;
    }
    wanted.classes = options.classes > 0 ? options.classes : usual.classes;
  }
  std::shared_ptr<const DataSet> data = open_data(options.data, wanted);
  const DataInfo& info = data->info();
  if (info.windows.mask && *info.windows.mask >= info.classes) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("model '{}': token {} hides others, but the vocabulary has {}: its options mask and vocab",
                            options.model, *info.windows.mask, info.classes));
  }
  return data;
}

ModelInput training_input(const TrainOptions& options, const DataInfo& data) {
  if (token_task(options.model).tokens != (data.windows.context > 0)) {
    throw Error(
        ErrorCode::invalid_input,
        data.windows.context > 0
            ? fmt::format("data '{}' gives tokens, but {} takes images", data.name, options.model)
            : fmt::format("data '{}' gives images, but {} takes tokens: --data text, bytes:FILE, tokens:FILE or "
                          "synthetic",
                          data.name, options.model));
  }
  if (options.classes > 0 && options.classes < data.classes) {
    throw Error(ErrorCode::invalid_input, fmt::format("{} has {} classes; {} are too few: raise --num-classes",
                                                      data.name, data.classes, options.classes));
  }
  const TokenTask task = token_task(options.model);
  if (const int64_t known = usual_input(options.model).classes; task.vocabulary_given && known < data.classes) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("model '{}': its vocabulary has {}, but data '{}' needs {}{}: leave the option vocab out, "
                            "or raise it",
                            options.model, known, data.name, data.classes,
                            task.mask ? ", with the token that hides others" : ""));
  }
  return {.batch = own_batch(options),
          .channels = data.channels,
          .height = data.height,
          .width = data.width,
          .classes = std::max(options.classes, data.classes),
          .training = true};
}

SavedInput input_to_save(const DataInfo& data, int64_t classes) {
  return {.channels = data.channels,
          .height = data.height,
          .width = data.width,
          .classes = classes,
          .mean = {data.mean.begin(), data.mean.end()},
          .stddev = {data.stddev.begin(), data.stddev.end()},
          .centre_crop = data.augmentation.resized_crop,
          .class_names = data.class_names};
}

DataInfo data_info(const SavedInput& input) {
  DataInfo info{.channels = input.channels,
                .height = input.height,
                .width = input.width,
                .classes = input.classes,
                .augmentation = {.resized_crop = input.centre_crop},
                .class_names = input.class_names};
  for (double mean : input.mean) info.mean.push_back(static_cast<float>(mean));
  for (double stddev : input.stddev) info.stddev.push_back(static_cast<float>(stddev));
  return info;
}

Bytes default_budget(const Device& device, Bytes host_memory) {
  if (device.info().own_memory) return device.info().memory_available;  // less what it needs itself
  const int64_t free = std::max<int64_t>(0, device.info().memory_available.count - host_memory.count);
  return {
      std::max<int64_t>(free / 2, static_cast<int64_t>(static_cast<double>(free) * kHostShare) - kHostReserve.count)};
}

ModelInput training_input(const TrainOptions& options) {
  return training_input(options, open_training_data(options)->info());
}

}  // namespace plimsoll
