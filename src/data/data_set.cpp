#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/names.h"
#include "base/random.h"
#include "data/sources.h"
#include "plimsoll/data.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr uint32_t kOrderSalt = 0xDA7A00FF;

std::vector<std::string> kinds() {
  std::vector<std::string> names;
  for (const DataListing& listing : list_data()) names.push_back(listing.name);
  return names;
}

int64_t parse_count(std::string_view text) {
  int64_t count = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (status != std::errc() || end != text.data() + text.size() || count < 1 || count > (1 << 30)) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("data 'synthetic:{}': expected a number of training images, as in synthetic:10000", text));
  }
  return count;
}

}  // namespace

std::string_view to_string(Split split) { return split == Split::train ? "train" : "test"; }

std::vector<DataListing> list_data() {
  return {
      {"digits", "1,797 handwritten digits of 8x8 pixels, part of Plimsoll"},
      {"mnist", "mnist:DIR: idx files, also .gz; MNIST and what has its form"},
      {"cifar10", "cifar10:DIR: the binary version"},
      {"cifar100", "cifar100:DIR: the binary version"},
      {"images",
       "images:DIR: folders train/ and val/ or test/ of class folders of JPEG and PNG, or class folders directly"},
      {"synthetic", "synthetic[:COUNT]: generated images of any size, or tokens, which a network can learn"},
      {"text", "Paradise Lost, part of Plimsoll: 457 KB, a token a byte"},
      {"bytes", "bytes:FILE: any file, a token a byte; or a folder with train.txt and val.txt"},
      {"tokens",
       "tokens:FILE: token ids, little-endian, of 2 bytes (4 where it ends in .u32); or a folder with train.bin and "
       "val.bin"},
  };
}

DataSpec parse_data_spec(std::string_view text) {
  const size_t colon = text.find(':');
  DataSpec spec{.kind = std::string(text.substr(0, colon)), .folder = {}};
  const bool has_argument = colon != std::string_view::npos;
  const std::string argument(has_argument ? text.substr(colon + 1) : "");
  const std::vector<std::string> known = kinds();
  if (std::find(known.begin(), known.end(), spec.kind) == known.end()) {
    throw Error(ErrorCode::invalid_input, unknown_name("data", spec.kind, known));
  }
  if (spec.kind == "digits" || spec.kind == "text") {
    if (has_argument) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("data '{}' takes no folder; PLIMSOLL_DATA names another place", spec.kind));
    }
  } else if (spec.kind == "synthetic") {
    if (has_argument) spec.count = parse_count(argument);
  } else {
    if (argument.empty()) {
      const bool is_file = spec.kind == "tokens" || spec.kind == "bytes";
      throw Error(ErrorCode::invalid_input, fmt::format("data '{0}' needs a {1}: --data {0}:{2}", spec.kind,
                                                        is_file ? "file" : "folder", is_file ? "FILE" : "DIR"));
    }
    spec.folder = argument;
  }
  return spec;
}

void DataSet::read_tokens(Split, int64_t, std::span<int32_t>) const {
  throw Error(ErrorCode::internal, fmt::format("data '{}' has images, and is asked for tokens", info().name));
}

std::shared_ptr<const DataSet> open_data(std::string_view text, const DataOptions& options) {
  const DataSpec spec = parse_data_spec(text);
  if (spec.kind == "digits") return open_digits(options);
  if (spec.kind == "synthetic")
    return options.windows.context > 0 ? open_synthetic_tokens(spec.count, options)
                                       : open_synthetic(spec.count, options);
  if (spec.kind == "text") return open_text(options);
  if (spec.kind == "tokens" || spec.kind == "bytes") return open_tokens(spec.kind, spec.folder, options);
  std::error_code ignored;
  if (!std::filesystem::is_directory(spec.folder, ignored)) {
    throw Error(ErrorCode::invalid_input, fmt::format("data '{}': there is no folder '{}'", spec.kind, spec.folder));
  }
  if (spec.kind == "mnist") return open_mnist(spec.folder, options);
  if (spec.kind == "images") return open_image_folder(spec.folder, options);
  return open_cifar(spec.kind == "cifar10" ? 10 : 100, spec.folder, options);
}

void fit_to_network(DataInfo& info, const DataOptions& options) {
  if (options.height > 0) info.height = options.height;
  if (options.width > 0) info.width = options.width;
  const int64_t wanted = options.channels > 0 ? options.channels : info.channels;
  if (wanted == info.channels) return;
  if (wanted == 3 && info.channels == 1) {
    info.mean.resize(3, info.mean[0]);
    info.stddev.resize(3, info.stddev[0]);
  } else if (wanted == 1 && info.channels == 3) {
    info.mean = {(info.mean[0] + info.mean[1] + info.mean[2]) / 3};
    info.stddev = {(info.stddev[0] + info.stddev[1] + info.stddev[2]) / 3};
  } else {
    throw Error(ErrorCode::invalid_input, fmt::format("data '{}' has images of {} channels; the network takes {}",
                                                      info.name, info.channels, wanted));
  }
  info.channels = wanted;
}

std::vector<int32_t> epoch_order(int64_t count, uint64_t seed, int64_t epoch) {
  std::vector<int32_t> order(count);
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const RandomStream random{.seed = seed, .step = static_cast<uint64_t>(epoch), .salt = kOrderSalt};
  std::array<uint32_t, 4> draws{};
  // Fisher and Yates: position i takes one of the i + 1 that are left.
  for (int64_t i = count - 1, draw = 0; i > 0; --i, ++draw) {
    if (draw % 4 == 0) draws = random.block(draw / 4);
    const uint64_t other = (uint64_t{draws[draw % 4]} * static_cast<uint64_t>(i + 1)) >> 32;
    std::swap(order[i], order[other]);
  }
  return order;
}

std::vector<int32_t> split_order(int64_t count) { return epoch_order(count, 0x5EED, 0); }
int64_t split_train_count(int64_t count) { return count * 4 / 5; }

}  // namespace plimsoll
