// Networks: the zoo by name, and a builder for one's own.
//
//   Network resnet = build_model("resnet50", {.batch = 32});
//
//   Builder net("tiny", {.batch = 32, .channels = 1, .height = 8, .width = 8, .classes = 10});
//   TensorId x = net.conv("conv1", net.data(), {.channels = 16, .kernel = 3, .padding = 1});
//   x = net.relu("relu1", net.batch_norm("bn1", x));
//   x = net.fully_connected("fc", net.flatten("flatten", x), {.channels = 10});
//   Network network = net.finish_classifier(x);
//
// A layer is one or more ops that share its name. Its parameters are called as PyTorch's modules call them
// ("conv1.weight", "bn1.running_mean") and start as PyTorch starts them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/autodiff.h"

namespace plimsoll {

// The shape of a batch, as the data gives it. A field that is 0 takes the model's own default (AlexNet 227, ResNet 224,
// ...). Networks of tokens have one channel of height 1: the width is the context, and the classes are the vocabulary.
struct ModelInput {
  int64_t batch = 32;
  int64_t channels = 0, height = 0, width = 0;
  int64_t classes = 0;
  bool training =
      true;  // false: evaluation. Dropout does nothing, batch norm uses its running statistics, no state changes
};

// `name` may carry options: "resnet50", "resnet:6-32-788-6", "densenet:depth=40,growth=40". "graph:FILE" is the network of
// a file (network_file.h). Throws Error(invalid_input)
// with the nearest known name, or with the option that is wrong, or when the input is too small for the network.
Network build_model(std::string_view name, const ModelInput& input);

// How it is usually fed: a file's network as it was exported. Fields are 0, but for the batch, where there is no such
// network.
ModelInput usual_input(std::string_view name);

// What a network of the zoo reads instead of images, and what it is to answer.
struct TokenTask {
  bool tokens = false;            // its samples are windows of token ids
  std::optional<int32_t> mask;    // it names the tokens that this id hides; none: the token that follows
  bool vocabulary_given = false;  // by the option vocab: then the data's own counts nothing
};
TokenTask token_task(std::string_view name);
// "adamw" for transformers, else "sgd".
std::string usual_optimizer(std::string_view name);
// Whether it gives every token a probability, so that its loss has a perplexity.
bool is_language_model(const Network& network);

struct ModelListing {
  std::string name;
  std::string description;
  std::string options;  // "depth, growth"
  ModelInput default_input;
};
std::vector<ModelListing> list_models();

// How many layers the network has as the papers count them: every CONV, POOL, ACT, BN, LRN, FC, DROPOUT, CONCAT, JOIN
// (add), FORK (a tensor with several forward readers) and SOFTMAX is one; views are none. AlexNet 23, resnet:6-32-788-6
// 9,167. SuperNeurons' 515 (Inception-v4) and 567 (ResNet-152) count the two DATA layers of its programs, one for
// training and one for testing, as well: here they are 513 and 565.
int64_t layer_count(const Network& network);

// The scores that a classifier answers with, a row a sample, before softmax: what its loss is computed from. Invalid
// where the network does not classify. `head`: the names of the parameters of the layer that makes them.
TensorId logits_of(const Network& network);

// The label of a row that counts nothing in a classifier's loss; and what its loss is multiplied by to give the sum over the
// rows, `counted` of which count.
int32_t padding_label(const Network& network);
double rows_of_loss(const Network& network, int64_t rows, int64_t counted);
std::vector<std::string> head_of(const Network& network);

// Height and width; one number stands for both.
struct Extent {
  int64_t h = 1, w = 1;
  constexpr Extent(int64_t both) : h(both), w(both) {}  // NOLINT: {.kernel = 3}
  constexpr Extent(int64_t height, int64_t width) : h(height), w(width) {}
  friend bool operator==(const Extent&, const Extent&) = default;
};

// How weights start. fan_in: inputs that one output sums; fan_out: outputs that one input reaches.
struct WeightInit {
  enum class Kind : uint8_t {
    uniform_fan_in,   // +- 1/sqrt(fan_in), biases too: what PyTorch's layers do of themselves
    kaiming_fan_in,   // normal, sqrt(2/fan_in); biases 0
    kaiming_fan_out,  // normal, sqrt(2/fan_out); biases 0
    normal,           // normal, `deviation`; biases 0
  } kind = Kind::uniform_fan_in;
  double deviation = 0;
};

struct ConvOptions {
  int64_t channels = 0;  // of the output
  Extent kernel = 1, stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
  Extent output_padding = 0;  // transposed convolution only
};
struct BatchNormOptions {
  double epsilon = 1e-5, momentum = 0.1;
  Initializer gamma = {Initializer::Kind::constant, 1, 0};
};
struct PoolOptions {
  Extent kernel = 2, stride = 2, padding = 0;
  bool ceil_mode = false;
  bool count_include_pad = true;  // average only
};
struct LrnOptions {
  int64_t size = 5;
  double alpha = 1e-4, beta = 0.75, k = 1;
};
struct FullyConnectedOptions {
  int64_t channels = 0;
  bool bias = true;
};

struct AttentionOptions {
  bool causal = false;
  double dropout = 0;
};

class Builder {
 public:
  // Declares "data" (and, with `has_labels`, "labels"). The fields of `input` must be filled in.
  Builder(std::string name, const ModelInput& input, bool has_labels = true);
  // The same for token ids: "data" is batch x width, and "labels" has one for each token, row after row.
  static Builder of_tokens(std::string name, const ModelInput& input);

  // Used by the layers that follow; networks set them once at their start.
  WeightInit conv_init, fully_connected_init;
  BatchNormOptions batch_norm_options;

  const ModelInput& input() const { return input_; }
  TensorId data() const { return network_.data; }
  Graph& graph() { return network_.graph; }
  const Shape& shape(TensorId x) const { return network_.graph.tensor(x).shape; }

  TensorId conv(const std::string& layer, TensorId x, const ConvOptions& options);
  TensorId conv_transpose(const std::string& layer, TensorId x, const ConvOptions& options);
  TensorId fully_connected(const std::string& layer, TensorId x, const FullyConnectedOptions& options);
  TensorId batch_norm(const std::string& layer, TensorId x);
  TensorId relu(const std::string& layer, TensorId x);
  TensorId leaky_relu(const std::string& layer, TensorId x, double slope);
  TensorId tanh(const std::string& layer, TensorId x);
  TensorId max_pool(const std::string& layer, TensorId x, const PoolOptions& options);
  TensorId avg_pool(const std::string& layer, TensorId x, const PoolOptions& options);
  TensorId global_avg_pool(const std::string& layer, TensorId x);  // N x C x 1 x 1
  TensorId lrn(const std::string& layer, TensorId x, const LrnOptions& options);
  TensorId dropout(const std::string& layer, TensorId x, double p);  // x itself in evaluation and for p = 0
  TensorId add(const std::string& layer, std::vector<TensorId> terms);
  TensorId concat(const std::string& layer, std::vector<TensorId> parts);  // along the channels
  TensorId constant(const std::string& layer, Shape shape, double value);
  TensorId random_normal(const std::string& layer, Shape shape);
  TensorId parameter(const std::string& name, Shape shape, const Initializer& init = {});
  TensorId embedding(const std::string& layer, TensorId ids, TensorId weight);  // ids' shape x the weight's columns
  TensorId layer_norm(const std::string& layer, TensorId x, double epsilon);    // of the last dimension
  TensorId rms_norm(const std::string& layer, TensorId x, double epsilon);
  TensorId pointwise(const std::string& layer, std::string expression, std::vector<TensorId> inputs);
  TensorId reshape(const std::string& layer, TensorId x, Shape shape);
  TensorId permute(const std::string& layer, TensorId x, std::vector<int64_t> dims);
  TensorId slice(const std::string& layer, TensorId x, int64_t axis, int64_t begin, int64_t size);  // x itself if all
  // Of batch x heads x tokens x width each; q may have a multiple of the heads of k and v.
  TensorId attention(const std::string& layer, TensorId q, TensorId k, TensorId v, const AttentionOptions& options);
  // Any other op: its first output.
  TensorId op(std::string_view type, const std::string& layer, std::vector<TensorId> inputs,
              Attributes attributes = {});
  TensorId flatten(const std::string& layer, TensorId x);  // N x rest; x itself when it is so already
  TensorId sigmoid_cross_entropy(const std::string& layer, TensorId logits,
                                 double target);                                // a scalar called as the layer
  TensorId sum_losses(const std::string& layer, std::vector<TensorId> losses);  // the same

  // Layers from here on are called "<layer>/<tag>", so that the same parameters can be used again. Running statistics
  // advance with each use; `last` says that no use follows.
  void apply_as(std::string tag, bool last);

  // Marks a tensor as one that is read after the step.
  void add_output(TensorId tensor);
  // Parameters so far whose names begin with `prefix`.
  std::vector<TensorId> parameters(std::string_view prefix = "") const;
  void add_objective(TensorId loss, std::vector<TensorId> parameters);

  Network finish() &&;
  // Softmax cross-entropy on the labels ("loss", "correct"), trained by every parameter.
  Network finish_classifier(TensorId logits) &&;
  // The same on a label for each token, without counting those that were named rightly. The loss is the mean over the labels
  // that count.
  Network finish_language_model(TensorId logits) &&;

 private:
  Builder() = default;
  struct Fan {
    int64_t in, out;
  };
  TensorId source(const std::string& name, const Shape& shape, Role role, const Initializer& init);
  TensorId weight(const std::string& layer, const Shape& shape, const WeightInit& init, Fan fan);
  TensorId bias(const std::string& layer, int64_t channels, const WeightInit& init, Fan fan);
  TensorId hyperparameter(const std::string& name);
  OpId append(std::string_view type, const std::string& layer, std::vector<TensorId> inputs, Attributes attributes = {},
              std::vector<std::string> output_names = {});

  ModelInput input_;
  Network network_;
  std::string tag_;
  bool last_use_ = true;
  int64_t next_salt_ = 0;  // tells random ops apart
  std::map<std::string, size_t, std::less<>> state_index_;
};

}  // namespace plimsoll
