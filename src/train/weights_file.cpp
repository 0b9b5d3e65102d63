#include "train/weights_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "plimsoll/error.h"
#include "plimsoll/models.h"

namespace plimsoll {
namespace {

constexpr size_t kNamesTold = 6;

float from_half(uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const float sign = (half & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) return mantissa != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

float from_bfloat(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

template <class Stored, class Convert>
void convert(std::span<const std::byte> stored, std::span<float> into, const Convert& to_float) {
  for (size_t i = 0; i < into.size(); ++i) {
    Stored value{};
    std::memcpy(&value, stored.data() + i * sizeof(Stored), sizeof(Stored));
    into[i] = to_float(value);
  }
}

// What PyTorch's files begin with: a zip archive, or a pickle of the old kind.
bool is_pytorch_file(const InputFile& file) {
  std::byte head[4] = {};
  if (file.size() < 4) return false;
  file.read(0, head);
  return std::memcmp(head, "PK\x03\x04", 4) == 0 || std::memcmp(head, "\x80\x02", 2) == 0;
}

SafetensorsHeader header_of(const InputFile& file) {
  if (is_pytorch_file(file)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: is a file of PyTorch, not safetensors; there, write it anew by "
                            "safetensors.torch.save_file(model.state_dict(), \"weights.safetensors\")",
                            file.path().string()));
  }
  return read_safetensors_header(file);
}

bool replace_start(std::string& name, std::string_view from, std::string_view to) {
  if (!name.starts_with(from)) return false;
  name.replace(0, from.size(), to);
  return true;
}

// Wrappers put their own name before every name.
std::string unwrapped(std::string_view text) {
  std::string name(text);
  while (replace_start(name, "module.", "") || replace_start(name, "_orig_mod.", "") ||
         replace_start(name, "model.", "")) {
  }
  return name;
}

// torchvision's AlexNet, by the names of SuperNeurons' layers, which ours has.
constexpr std::pair<std::string_view, std::string_view> kAlexnetLayers[] = {
    {"features.0.", "conv1."},  {"features.3.", "conv2."}, {"features.6.", "conv3."}, {"features.8.", "conv4."},
    {"features.10.", "conv5."}, {"classifier.1.", "fc6."}, {"classifier.4.", "fc7."}, {"classifier.6.", "fc8."}};
// timm's VGG.
constexpr std::pair<std::string_view, std::string_view> kVggLayers[] = {{"pre_logits.fc1.", "classifier.0."},
                                                                        {"pre_logits.fc2.", "classifier.3."}};
// What programs call the last layer.
constexpr std::string_view kHeads[] = {"fc.", "head.fc.", "head.", "linear.", "last_linear.", "classifier."};

// transformers' files of the part below the head begin their names later.
constexpr std::pair<std::string_view, std::string_view> kBases[] = {
    {"gpt", "transformer."}, {"llama", "model."}, {"bert", "bert."}};
// Masks, positions and frequencies that transformers keeps, and that are computed here.
constexpr std::string_view kBuffers[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", ".position_ids"};
// Older names of the same: of transformers' BERT, and of torchvision's ViT.
constexpr std::pair<std::string_view, std::string_view> kOlder[] = {{".LayerNorm.gamma", ".LayerNorm.weight"},
                                                                    {".LayerNorm.beta", ".LayerNorm.bias"},
                                                                    {".mlp.linear_1.", ".mlp.0."},
                                                                    {".mlp.linear_2.", ".mlp.3."}};

// Optimizer states of our checkpoints, and counters that no network here has.
bool says_nothing(std::string_view name, const std::set<std::string_view>& parameters) {
  for (std::string_view ending : {".momentum", ".exp_avg", ".exp_avg_sq", ".gradient_sum"}) {
    if (name.ends_with(ending) && parameters.contains(name.substr(0, name.size() - ending.size()))) return true;
  }
  if (parameters.contains(name)) return false;
  return name.ends_with(".num_batches_tracked") ||
         std::ranges::any_of(kBuffers, [&](std::string_view buffer) { return name.ends_with(buffer); });
}

Shape without_ones(const Shape& shape) {
  Shape rest(shape.begin(), shape.begin() + std::min<ptrdiff_t>(1, std::ssize(shape)));
  for (size_t i = 1; i < shape.size(); ++i) {
    if (shape[i] != 1) rest.push_back(shape[i]);
  }
  return rest;
}

// A fully connected layer may be stored as the convolution that it is: 4096x512x7x7 for 4096x25088.
bool same_elements(const Shape& ours, const Shape& theirs) {
  if (ours == theirs || without_ones(ours) == without_ones(theirs)) return true;
  const bool flat = std::min(ours.size(), theirs.size()) == 2 && std::max(ours.size(), theirs.size()) == 4;
  return flat && ours[0] == theirs[0] && element_count(ours) == element_count(theirs);
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < kNamesTold; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kNamesTold) text += fmt::format(" and {} more", names.size() - kNamesTold);
  return text;
}

}  // namespace

bool is_floating(std::string_view dtype) {
  return dtype == "F32" || dtype == "F64" || dtype == "F16" || dtype == "BF16";
}

WeightsFile::WeightsFile(const std::filesystem::path& path) : file_(path), header_(header_of(file_)) {}

bool WeightsFile::is_checkpoint() const { return header_.metadata.contains("plimsoll"); }

void WeightsFile::read(size_t index, int64_t first, std::span<float> into) const {
  const SafetensorsEntry& entry = header_.entries.at(index);
  const int64_t size = safetensors_dtype_bytes(entry.dtype);
  std::vector<std::byte> stored(into.size() * static_cast<size_t>(size));
  file_.read(header_.data_begin + entry.begin + first * size, stored);
  if (entry.dtype == "F32") {
    convert<float>(stored, into, [](float value) { return value; });
  } else if (entry.dtype == "F64") {
    convert<double>(stored, into, [](double value) { return static_cast<float>(value); });
  } else if (entry.dtype == "F16") {
    convert<uint16_t>(stored, into, from_half);
  } else if (entry.dtype == "BF16") {
    convert<uint16_t>(stored, into, from_bfloat);
  } else {
    throw Error(ErrorCode::unsupported, fmt::format("{}: '{}' has dtype {}; weights are F32, F64, F16 or BF16", name(),
                                                    entry.name, entry.dtype));
  }
}

std::string our_name(std::string_view model, std::string_view name, std::string_view head) {
  std::string ours = unwrapped(name);
  if (model.starts_with("alexnet")) {
    for (const auto& [from, to] : kAlexnetLayers) {
      if (replace_start(ours, from, to)) return ours;
    }
  }
  if (model.starts_with("vgg")) {
    for (const auto& [from, to] : kVggLayers) {
      if (replace_start(ours, from, to)) return ours;
    }
  }
  if (model.starts_with("densenet")) {  // torchvision's older files: "denselayer1.norm.1.weight"
    for (std::string_view part : {"norm", "relu", "conv"}) {
      const size_t at = ours.find(fmt::format(".{}.", part));
      const size_t digit = at + part.size() + 2;
      if (at == std::string::npos || ours.find(".denselayer") == std::string::npos || digit >= ours.size()) continue;
      if (ours[digit] >= '1' && ours[digit] <= '2') ours.erase(digit - 1, 1);
    }
  }
  for (const auto& [from, to] : kOlder) {
    if (const size_t at = ours.find(from); at != std::string::npos) ours.replace(at, from.size(), to);
  }
  for (const auto& [kind, base] : kBases) {
    if (model.starts_with(kind)) return ours.starts_with(base) ? ours : std::string(base) + ours;
  }
  for (std::string_view other : kHeads) {
    std::string_view rest = ours;
    if (!rest.starts_with(other)) continue;
    rest.remove_prefix(other.size());
    if (rest == "weight" || rest == "bias") return fmt::format("{}.{}", head, rest);
  }
  return ours;
}

WeightsMatch match_weights(const WeightsFile& file, const Network& network, bool new_head) {
  const Graph& graph = network.graph;
  const std::vector<std::string> head = head_of(network);
  std::string head_layer = head.empty() ? "" : head[0].substr(0, head[0].rfind('.'));
  std::map<std::string, const Tensor*, std::less<>> wanted;
  std::set<std::string_view> parameters;
  for (const State& state : graph.states) {
    const Tensor& tensor = graph.tensor(state.before);
    if (tensor.role != Role::parameter && tensor.role != Role::statistic) continue;
    wanted[tensor.name] = &tensor;
    if (tensor.role == Role::parameter) parameters.insert(tensor.name);
  }
  WeightsMatch match;
  std::map<std::string, size_t, std::less<>> found;  // by our name
  for (size_t i = 0; i < file.entries().size(); ++i) {
    const SafetensorsEntry& entry = file.entries()[i];
    if (says_nothing(unwrapped(entry.name), parameters)) continue;
    std::string name = wanted.contains(entry.name) ? entry.name : our_name(graph.name, entry.name, head_layer);
    if (!wanted.contains(name) || !is_floating(entry.dtype)) {
      match.left_over.push_back(entry.name);
    } else if (const auto [it, first] = found.emplace(name, i); !first) {
      throw Error(ErrorCode::invalid_input, fmt::format("{}: '{}' and '{}' are both '{}' of {}", file.name(),
                                                        file.entries()[it->second].name, entry.name, name, graph.name));
    }
  }
  for (const auto& [name, tensor] : wanted) {
    const auto it = found.find(name);
    if (it == found.end()) {
      match.missing.push_back(name);
      continue;
    }
    const SafetensorsEntry& entry = file.entries()[it->second];
    if (same_elements(tensor->shape, entry.shape)) {
      match.taken.emplace_back(name, it->second);
      continue;
    }
    const bool is_head = std::find(head.begin(), head.end(), name) != head.end();
    if (is_head && new_head) {
      match.new_head.push_back(name);
      continue;
    }
    const std::string shapes = fmt::format("{}: '{}' is {}, but '{}' of {} is {}", file.name(), entry.name,
                                           to_string(entry.shape), name, graph.name, to_string(tensor->shape));
    if (!is_head) throw Error(ErrorCode::invalid_input, fmt::format("{}: the file is of another network", shapes));
    throw Error(ErrorCode::invalid_input,
                fmt::format("{}: it was trained for {} classes; give --num-classes {} to begin with a new last layer",
                            shapes, entry.shape.empty() ? 1 : entry.shape[0], tensor->shape[0]));
  }
  if (match.taken.empty()) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("{}: none of its {} tensors has a name of {}'s, as '{}'; it has {}", file.name(),
                            file.entries().size(), graph.name, wanted.empty() ? "" : wanted.begin()->first,
                            match.left_over.empty() ? "no weights" : list_of(match.left_over)));
  }
  return match;
}

int64_t classes_of(const WeightsFile& file, const Network& network) {
  const std::vector<std::string> head = head_of(network);
  if (head.empty()) return 0;
  const std::string layer = head[0].substr(0, head[0].rfind('.'));
  for (const SafetensorsEntry& entry : file.entries()) {
    const std::string name = entry.name == head[0] ? entry.name : our_name(network.graph.name, entry.name, layer);
    if (name == head[0] && !entry.shape.empty() && is_floating(entry.dtype)) return entry.shape[0];
  }
  return 0;
}

std::string to_text(const WeightsMatch& match) {
  const size_t all = match.taken.size() + match.missing.size() + match.new_head.size();
  std::string text = fmt::format("taken {} of the network's {} tensors", match.taken.size(), all);
  if (!match.new_head.empty()) text += fmt::format("; new, for another number of classes: {}", list_of(match.new_head));
  if (!match.missing.empty()) text += fmt::format("; not in the file, so they start anew: {}", list_of(match.missing));
  if (!match.left_over.empty()) {
    text += fmt::format("; {} of the file left over, which the network has not: {}", match.left_over.size(),
                        list_of(match.left_over));
  }
  return text;
}

}  // namespace plimsoll
