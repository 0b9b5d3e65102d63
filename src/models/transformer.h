// What the transformers of the zoo have in common. Rows are tokens: batch * tokens x width.
#pragma once

#include <string>

#include "models/catalog.h"

namespace plimsoll {

struct TransformerSize {
  int64_t batch = 1, tokens = 1;
  int64_t layers = 12, width = 768, heads = 12;
  int64_t head_width() const { return width / heads; }
  int64_t rows() const { return batch * tokens; }
};
// From the request's batch and its options layers, width and heads, where it has them. Throws Error(invalid_input) where the
// width is no multiple of the heads.
TransformerSize transformer_size(const ModelRequest& request, const TransformerSize& usual);

inline Initializer normal_init(double deviation) { return {Initializer::Kind::normal, 0, deviation}; }

// y = x weight' + bias, with parameters "<layer>.weight" (outputs x inputs) and "<layer>.bias".
TensorId linear(Builder& net, const std::string& layer, TensorId x, int64_t outputs, const Initializer& init,
                bool bias = true);

// Rows to batch x heads x tokens x width of a head, and back.
TensorId divide_heads(Builder& net, const std::string& layer, TensorId rows, const TransformerSize& size,
                      int64_t heads);
TensorId join_heads(Builder& net, const std::string& layer, TensorId x);

// Self-attention of rows that hold query, key and value one after another.
TensorId attend(Builder& net, const std::string& at, TensorId qkv, const TransformerSize& size,
                const AttentionOptions& options);

}  // namespace plimsoll
