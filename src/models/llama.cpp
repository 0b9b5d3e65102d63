// Llama (Touvron et al., "LLaMA: open and efficient foundation language models", 2023): RMSNorm before each part, rotary
// positions (Su et al., "RoFormer", 2021), SwiGLU, and heads of keys that several heads of queries share. Parameters are
// called as in transformers' LlamaForCausalLM.
#include <fmt/format.h>

#include <cmath>

#include "models/transformer.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr double kLlamaDeviation = 0.02, kLlamaEpsilon = 1e-5;

// tokens x 1 x half a head: the cosines and sines of every position's angles.
struct Rotation {
  TensorId cosine, sine;
};

// 0, 1, 2, ... along a dimension of its own.
TensorId count(Builder& net, const std::string& layer, Shape shape, int64_t axis) {
  const TensorId ones = net.constant(layer + ".ones", std::move(shape), 1);
  return net.op("CumulativeSum", layer, {ones}, {{"axis", axis}, {"reverse", int64_t{0}}});
}

Rotation rotation(Builder& net, const TransformerSize& size, double theta) {
  const std::string at = "model.rotary_emb.";
  const int64_t half = size.head_width() / 2;
  const TensorId position = count(net, at + "position", {size.tokens, 1, 1}, 0);
  const TensorId pair = count(net, at + "pair", {1, 1, half}, 2);
  // Pair i of position p turns by p * theta^(-i / half); both are counted from 1.
  const TensorId angle =
      net.pointwise(at + "angle", fmt::format("mul(sub(x0,1),exp(mul(sub(x1,1),{:.17g})))", -std::log(theta) / half),
                    {position, pair});
  return {net.pointwise(at + "cos", "cos(x0)", {angle}), net.pointwise(at + "sin", "sin(x0)", {angle})};
}

// As divide_heads, turned by their positions: element j of the first half of a head and element j of the second are a pair.
TensorId rotated_heads(Builder& net, const std::string& layer, TensorId rows, const TransformerSize& size,
                       int64_t heads, const Rotation& by) {
  const TensorId x = net.reshape(layer + ".view", rows, {size.batch, size.tokens, heads, size.head_width()});
  const TensorId turned = net.op("Rotary", layer + ".rotated", {x, by.cosine, by.sine});
  return net.permute(layer + ".heads", turned, {0, 2, 1, 3});
}

struct LlamaSize : TransformerSize {
  int64_t kv_heads = 12, ffn = 2048;
};

TensorId llama_block(Builder& net, const std::string& at, TensorId x, const LlamaSize& size, const Rotation& by) {
  const Initializer init = normal_init(kLlamaDeviation);
  const auto project = [&](const std::string& layer, TensorId from, int64_t outputs) {
    return linear(net, at + layer, from, outputs, init, false);
  };
  const int64_t of_keys = size.kv_heads * size.head_width();
  TensorId y = net.rms_norm(at + "input_layernorm", x, kLlamaEpsilon);
  const std::string to = at + "self_attn.";
  const TensorId q = rotated_heads(net, to + "q", project("self_attn.q_proj", y, size.width), size, size.heads, by);
  const TensorId k = rotated_heads(net, to + "k", project("self_attn.k_proj", y, of_keys), size, size.kv_heads, by);
  const TensorId v = divide_heads(net, to + "v", project("self_attn.v_proj", y, of_keys), size, size.kv_heads);
  y = join_heads(net, to + "joined", net.attention(to + "attention", q, k, v, {.causal = true}));
  x = net.add(to + "add", {x, project("self_attn.o_proj", y, size.width)});
  y = net.rms_norm(at + "post_attention_layernorm", x, kLlamaEpsilon);
  y = net.pointwise(at + "mlp.act", "mul(silu(x0),x1)",
                    {project("mlp.gate_proj", y, size.ffn), project("mlp.up_proj", y, size.ffn)});
  return net.add(at + "mlp.add", {x, project("mlp.down_proj", y, size.width)});
}

LlamaSize llama_size(const ModelRequest& request) {
  LlamaSize size{transformer_size(request, {.tokens = request.input.width})};
  size.kv_heads = request.options.integer("kv_heads", size.heads, 1, size.heads);
  // Two thirds of four times the width, to the next multiple of 256, as the paper has it.
  size.ffn = request.options.integer("ffn", (8 * size.width / 3 + 255) / 256 * 256, 1, 1 << 20);
  if (size.heads % size.kv_heads != 0) {
    throw Error(ErrorCode::invalid_input, fmt::format("model '{}': {} heads are no multiple of the {} of kv_heads",
                                                      request.name, size.heads, size.kv_heads));
  }
  if (size.head_width() % 2 != 0) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("model '{}': a head is {} wide, which rotary positions do not divide into pairs",
                            request.name, size.head_width()));
  }
  return size;
}

}  // namespace

Network build_llama(const ModelRequest& request) {
  const LlamaSize size = llama_size(request);
  const Initializer init = normal_init(kLlamaDeviation);
  const bool tied = request.options.integer("tied", 0, 0, 1) != 0;
  const auto theta = static_cast<double>(request.options.integer("theta", 10000, 2, int64_t{1} << 40));
  Builder net = Builder::of_tokens(request.name, request.input);
  const TensorId words = net.parameter("model.embed_tokens.weight", {request.input.classes, size.width}, init);
  TensorId x =
      net.reshape("model.rows", net.embedding("model.embed_tokens", net.data(), words), {size.rows(), size.width});
  const Rotation by = rotation(net, size, theta);
  for (int64_t i = 0; i < size.layers; ++i) x = llama_block(net, fmt::format("model.layers.{}.", i), x, size, by);
  x = net.rms_norm("model.norm", x, kLlamaEpsilon);
  const TensorId logits = tied ? net.op("FullyConnectedForward", "lm_head", {x, words})
                               : linear(net, "lm_head", x, request.input.classes, init, false);
  return std::move(net).finish_language_model(logits);
}

}  // namespace plimsoll
