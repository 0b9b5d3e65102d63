#include "plimsoll/models.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "base/by_id.h"
#include "base/names.h"
#include "base/texts.h"
#include "models/catalog.h"
#include "models/network_file.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

struct Entry {
  std::string_view name;
  std::string_view description;
  std::vector<std::string> options;  // the first may be given without its name: "resnet:6-32-788-6"
  int64_t channels, size, classes;
  Network (*build)(const ModelRequest&);
  std::string_view example = {};  // of its options, where it has some
  bool tokens = false;            // the size is the context then, and the classes are the vocabulary
  int32_t mask = -1;              // the id that hides a token; below 0: it names the next token
};

constexpr std::string_view kGptExample = "gpt2:layers=4,width=128,heads=4,context=128";

const std::vector<Entry>& entries() {
  static const std::vector<Entry> list{
      {"mlp", "fully connected layers with ReLU", {"hidden"}, 1, 28, 10, build_mlp, "mlp:256-128"},
      {"lenet", "LeNet-5 with ReLU and max pooling", {}, 1, 28, 10, build_lenet},
      {"alexnet",
       "AlexNet, ungrouped, with LRN: the 23 layers of SuperNeurons",
       {"dropout"},
       3,
       227,
       1000,
       build_alexnet,
       "alexnet:dropout=0.5"},
      {"vgg11", "VGG configuration A", {"dropout"}, 3, 224, 1000, build_vgg, "vgg16:dropout=0.5"},
      {"vgg13", "VGG configuration B", {"dropout"}, 3, 224, 1000, build_vgg, "vgg16:dropout=0.5"},
      {"vgg16", "VGG configuration D", {"dropout"}, 3, 224, 1000, build_vgg, "vgg16:dropout=0.5"},
      {"vgg19", "VGG configuration E", {"dropout"}, 3, 224, 1000, build_vgg, "vgg16:dropout=0.5"},
      {"resnet18", "ResNet of 18 layers for ImageNet", {}, 3, 224, 1000, build_resnet},
      {"resnet34", "ResNet of 34 layers for ImageNet", {}, 3, 224, 1000, build_resnet},
      {"resnet50", "ResNet of 50 layers for ImageNet, bottlenecks", {}, 3, 224, 1000, build_resnet},
      {"resnet101", "ResNet of 101 layers for ImageNet, bottlenecks", {}, 3, 224, 1000, build_resnet},
      {"resnet152", "ResNet of 152 layers for ImageNet, bottlenecks", {}, 3, 224, 1000, build_resnet},
      {"resnet",
       "ResNet with a-b-c-d bottlenecks: depth 3(a+b+c+d)+2",
       {"blocks"},
       3,
       224,
       1000,
       build_resnet,
       "resnet:6-32-788-6"},
      {"resnet20", "ResNet of 20 layers for CIFAR", {"bn"}, 3, 32, 10, build_cifar_resnet, "resnet32:bn=0"},
      {"resnet32", "ResNet of 32 layers for CIFAR", {"bn"}, 3, 32, 10, build_cifar_resnet, "resnet32:bn=0"},
      {"resnet44", "ResNet of 44 layers for CIFAR", {"bn"}, 3, 32, 10, build_cifar_resnet, "resnet32:bn=0"},
      {"resnet56", "ResNet of 56 layers for CIFAR", {"bn"}, 3, 32, 10, build_cifar_resnet, "resnet32:bn=0"},
      {"resnet110", "ResNet of 110 layers for CIFAR", {"bn"}, 3, 32, 10, build_cifar_resnet, "resnet32:bn=0"},
      {"inception3",
       "Inception v3 without the auxiliary classifier",
       {"dropout"},
       3,
       299,
       1000,
       build_inception3,
       "inception3:dropout=0.5"},
      {"inception4", "Inception v4", {"dropout"}, 3, 299, 1000, build_inception4, "inception4:dropout=0.2"},
      {"densenet121", "DenseNet of 121 layers for ImageNet", {}, 3, 224, 1000, build_densenet},
      {"densenet161", "DenseNet of 161 layers for ImageNet", {}, 3, 224, 1000, build_densenet},
      {"densenet169", "DenseNet of 169 layers for ImageNet", {}, 3, 224, 1000, build_densenet},
      {"densenet201", "DenseNet of 201 layers for ImageNet", {}, 3, 224, 1000, build_densenet},
      {"densenet",
       "DenseNet for CIFAR, without bottlenecks",
       {"depth", "growth"},
       3,
       32,
       10,
       build_cifar_densenet,
       "densenet:depth=40,growth=12"},
      {"dcgan",
       "DCGAN: generator and discriminator in one step",
       {"z", "width"},
       3,
       64,
       1,
       build_dcgan,
       "dcgan:z=100,width=64"},
      {"vit-b16",
       "Vision transformer ViT-B/16: 12 blocks of width 768",
       {"layers", "width", "heads"},
       3,
       224,
       1000,
       build_vit,
       "vit-b16:layers=6,width=384,heads=6"},
      {"gpt2",
       "GPT-2, in the small size: 12 blocks of width 768",
       {"layers", "width", "heads", "context", "vocab", "positions", "dropout"},
       1,
       1024,
       50257,
       build_gpt2,
       kGptExample,
       true},
      {"gpt-bytes",
       "GPT-2 of 4 blocks of width 128, on the bytes of a text",
       {"layers", "width", "heads", "context", "vocab", "positions", "dropout"},
       1,
       128,
       256,
       build_gpt2,
       kGptExample,
       true},
      {"llama",
       "Llama of 12 blocks of width 768: RMSNorm, rotary positions, SwiGLU, grouped heads",
       {"layers", "width", "heads", "kv_heads", "ffn", "context", "vocab", "tied", "theta"},
       1,
       1024,
       32000,
       build_llama,
       "llama:layers=22,width=2048,heads=32,kv_heads=4,ffn=5632",
       true},
      {"bert",
       "BERT base with its masked language model: 12 blocks of width 768",
       {"layers", "width", "heads", "context", "vocab", "positions", "mask", "dropout"},
       1,
       128,
       30522,
       build_bert,
       "bert:layers=4,width=256,heads=4,context=128",
       true,
       103},
  };
  return list;
}

[[noreturn]] void bad(const std::string& message) { throw Error(ErrorCode::invalid_input, message); }

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(at, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

const Entry& find_entry(std::string_view kind) {
  std::vector<std::string> known;
  for (const Entry& entry : entries()) {
    if (entry.name == kind) return entry;
    known.emplace_back(entry.name);
  }
  std::string message = unknown_name("model", kind, known);
  if (message.find("; did you mean") == std::string::npos) message += "; `plimsoll models` lists all";
  bad(message);
}

ModelOptions parse_options(const Entry& entry, std::string_view text) {
  ModelOptions options;
  for (std::string_view item : split(text, ',')) {
    const size_t equals = item.find('=');
    const bool named = equals != std::string_view::npos;
    if (entry.options.empty()) bad(fmt::format("model '{}' takes no options, got '{}'", entry.name, item));
    if (item.empty() || item.substr(equals + 1).empty()) {
      bad(fmt::format("model '{}': a value is missing in '{}:{}'; its options are written as in {}", entry.name,
                      entry.name, text, entry.example));
    }
    const std::string name(named ? item.substr(0, equals) : entry.options.front());
    const std::string value(named ? item.substr(equals + 1) : item);
    if (std::find(entry.options.begin(), entry.options.end(), name) == entry.options.end()) {
      bad(unknown_name(fmt::format("option of model '{}'", entry.name), name, entry.options));
    }
    if (options.has(name)) bad(fmt::format("model '{}': option '{}' is given twice", entry.name, name));
    options.set(name, value);
  }
  return options;
}

void check_range(std::string_view what, int64_t value, int64_t most) {
  if (value < 1 || value > most) bad(fmt::format("{} must be between 1 and {}, not {}", what, most, value));
}

// One channel of height 1, whatever is asked for; a window may be shorter than the context.
ModelInput token_input(const Entry& entry, const ModelOptions& options, ModelInput input = {}) {
  const int64_t context = options.integer("context", entry.size, 1, 1 << 24);
  input.channels = input.height = 1;
  input.width = input.width > 0 ? std::min(input.width, context) : context;
  if (options.has("vocab") || input.classes == 0) input.classes = options.integer("vocab", entry.classes, 1, 1 << 24);
  return input;
}

ModelInput fill_in(const Entry& entry, const ModelOptions& options, ModelInput input) {
  if (entry.tokens) {
    check_range("batch", input.batch, 1 << 24);
    return token_input(entry, options, input);
  }
  if (input.channels == 0) input.channels = entry.channels;
  if (input.height == 0) input.height = input.width != 0 ? input.width : entry.size;
  if (input.width == 0) input.width = input.height;
  if (input.classes == 0) input.classes = entry.classes;
  check_range("batch", input.batch, 1 << 24);
  check_range("channels", input.channels, 1 << 16);
  check_range("image height", input.height, 1 << 16);
  check_range("image width", input.width, 1 << 16);
  check_range("classes", input.classes, 1 << 24);
  return input;
}

bool builds_at(const Entry& entry, ModelRequest request, int64_t size) {
  request.input.height = request.input.width = size;
  try {
    entry.build(request);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The smallest square image that the network takes; the default size is known to do.
int64_t least_size(const Entry& entry, const ModelRequest& request) {
  int64_t too_small = 0, enough = entry.size;
  while (enough - too_small > 1) {
    const int64_t middle = (too_small + enough) / 2;
    (builds_at(entry, request, middle) ? enough : too_small) = middle;
  }
  return enough;
}

}  // namespace

int64_t ModelOptions::integer(std::string_view name, int64_t otherwise, int64_t least, int64_t most) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return otherwise;
  const std::optional<int64_t> value = parse_integer(it->second);
  if (value && *value >= least && *value <= most) return *value;
  bad(fmt::format("option '{}': '{}' is not a number between {} and {}", name, it->second, least, most));
}

double ModelOptions::fraction(std::string_view name, double otherwise) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return otherwise;
  double value = 0;
  const char* const begin = it->second.data();
  const char* const end = begin + it->second.size();
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error == std::errc() && stop == end && value >= 0 && value < 1) return value;
  bad(fmt::format("option '{}': '{}' is not a number of at least 0 and below 1", name, it->second));
}

std::vector<int64_t> ModelOptions::list(std::string_view name, std::vector<int64_t> otherwise, size_t count) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return otherwise;
  std::vector<int64_t> numbers;
  for (std::string_view part : split(it->second, '-')) {
    const std::optional<int64_t> value = parse_integer(part);
    if (part.empty()) {
      bad(fmt::format("option '{}': '{}' is no list of whole numbers from 1 on, with a '-' between two: 256-128", name,
                      cut_text(it->second)));
    }
    if (!value || *value < 1 || *value > 1'000'000) {
      bad(fmt::format("option '{}': '{}' in '{}' is not a number between 1 and 1000000", name, part, it->second));
    }
    numbers.push_back(*value);
  }
  if (count != 0 && numbers.size() != count) {
    bad(fmt::format("option '{}': '{}' has {} numbers, expected {}, like {}", name, it->second, numbers.size(), count,
                    fmt::join(otherwise, "-")));
  }
  return numbers;
}

ModelName parse_model_name(std::string_view name) {
  const size_t colon = name.find(':');
  const Entry& entry = find_entry(name.substr(0, colon));
  ModelName parsed{.kind = entry.name, .options = {}};
  if (colon != std::string_view::npos) parsed.options = parse_options(entry, name.substr(colon + 1));
  return parsed;
}

Network build_model(std::string_view name, const ModelInput& input) {
  if (const auto file = network_file_of(name)) return build_network_file(*file, input);
  ModelName parsed = parse_model_name(name);
  const Entry& entry = find_entry(parsed.kind);
  ModelRequest request{.name = std::string(name),
                       .kind = entry.name,
                       .input = fill_in(entry, parsed.options, input),
                       .options = parsed.options};
  try {
    return entry.build(request);
  } catch (const Error& error) {
    const bool small = std::min(request.input.height, request.input.width) < entry.size;
    if (error.code() != ErrorCode::invalid_input || entry.tokens || !small || !builds_at(entry, request, entry.size))
      throw;
    const int64_t least = least_size(entry, request);
    if (std::min(request.input.height, request.input.width) >= least) throw;
    if (!builds_at(entry, request, least + 1)) throw;  // not every size from one on will do
    bad(fmt::format("{} needs images of at least {}x{}, not {}x{}", name, least, least, request.input.height,
                    request.input.width));
  }
}

ModelInput usual_input(std::string_view name) {
  if (const auto file = network_file_of(name)) return read_network_info(*file).input;
  const std::string_view kind = name.substr(0, name.find(':'));
  for (const Entry& entry : entries()) {
    if (entry.name != kind) continue;
    if (entry.tokens) return token_input(entry, parse_model_name(name).options);
    return {.channels = entry.channels, .height = entry.size, .width = entry.size, .classes = entry.classes};
  }
  return {};
}

TokenTask token_task(std::string_view name) {
  if (network_file_of(name)) return {};
  const ModelName parsed = parse_model_name(name);
  const Entry& entry = find_entry(parsed.kind);
  if (!entry.tokens) return {};
  TokenTask task{.tokens = true, .vocabulary_given = parsed.options.has("vocab")};
  if (entry.mask >= 0)
    task.mask = static_cast<int32_t>(parsed.options.integer("mask", entry.mask, 0, (int64_t{1} << 24) - 1));
  return task;
}

std::string usual_optimizer(std::string_view name) {
  const std::string_view kind = name.substr(0, name.find(':'));
  for (const Entry& entry : entries()) {
    if (entry.name == kind && (entry.tokens || entry.build == build_vit)) return "adamw";
  }
  return "sgd";
}

std::vector<ModelListing> list_models() {
  std::vector<ModelListing> result;
  for (const Entry& entry : entries()) {
    result.push_back({.name = std::string(entry.name),
                      .description = std::string(entry.description),
                      .options = fmt::format("{}", fmt::join(entry.options, ", ")),
                      .default_input = usual_input(entry.name)});
  }
  return result;
}

int64_t layer_count(const Network& network) {
  const Graph& graph = network.graph;
  std::set<std::string_view> layers;
  ById<TensorId, int> uses(graph.tensor_count(), 0);
  ById<TensorId, TensorId> seen_as(uses.size());  // what a view shows
  for (TensorId id : seen_as.ids()) seen_as[id] = id;
  for (const Op& op : graph.ops()) {
    if (op.phase != Phase::forward || op.inputs.empty()) continue;
    const TensorId data = op.inputs[0];
    if (op.type->is_view) {
      seen_as[op.outputs[0]] = seen_as[data];
      continue;
    }
    if (graph.tensor(data).role == Role::hyperparameter) continue;  // draws random numbers: data, not a layer
    for (std::string_view layer : split(op.layer, '+')) layers.insert(layer);
    std::set<TensorId> read;
    for (TensorId id : op.inputs) read.insert(seen_as[id]);
    for (TensorId id : read) ++uses[id];
  }
  int64_t forks = 0;
  for (TensorId id : uses.ids()) {
    const Tensor& t = graph.tensor(id);
    const bool value = t.role == Role::activation || (t.role == Role::input && id == network.data);
    if (value && uses[id] > 1) ++forks;
  }
  return static_cast<int64_t>(layers.size()) + forks;
}

namespace {

// The op that a classifier's loss comes from; null where the network does not classify.
const Op* loss_op(const Network& network) {
  if (network.objectives.size() != 1 || !network.labels.valid()) return nullptr;
  const OpId loss = network.graph.tensor(network.objectives[0].loss).producer;
  if (!loss.valid()) return nullptr;
  const std::string& type = network.graph.op(loss).type->name;
  const bool of_classes = type == "SoftmaxCrossEntropyForward" || type.starts_with("LinearCrossEntropy");
  return of_classes ? &network.graph.op(loss) : nullptr;
}

}  // namespace

TensorId logits_of(const Network& network) {
  const Op* loss = loss_op(network);
  return loss != nullptr && loss->type->name == "SoftmaxCrossEntropyForward" ? loss->inputs.at(0) : TensorId{};
}

bool is_language_model(const Network& network) {
  return loss_op(network) != nullptr && !network.correct.valid() && network.data.valid() &&
         network.graph.tensor(network.data).dtype == DType::i32;
}

int32_t padding_label(const Network& network) {
  const Op* loss = loss_op(network);
  return loss != nullptr ? static_cast<int32_t>(loss->attributes.integer("ignore_index", -1)) : -1;
}

double rows_of_loss(const Network& network, int64_t rows, int64_t counted) {
  const Op* loss = loss_op(network);
  const std::string reduction = loss != nullptr ? loss->attributes.text("reduction", "") : "";
  return reduction == "sum" ? 1 : static_cast<double>(reduction == "mean" ? counted : rows);
}

std::vector<std::string> head_of(const Network& network) {
  std::vector<std::string> names;
  const TensorId logits = logits_of(network);
  const OpId producer = logits.valid() ? network.graph.tensor(logits).producer : OpId{};
  if (!producer.valid()) return names;
  for (TensorId input : network.graph.op(producer).inputs) {
    const Tensor& tensor = network.graph.tensor(input);
    if (tensor.role == Role::parameter) names.push_back(tensor.name);
  }
  return names;
}

}  // namespace plimsoll
