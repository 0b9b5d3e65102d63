// The built-in op families: each function stands in the file of its family and returns its op types.
#pragma once

#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll {

std::vector<OpType> accumulate_ops();            // accumulate.cpp: sums of gradients over batches
std::vector<OpType> activation_ops();            // activation.cpp: ReLU, leaky ReLU, sigmoid, tanh
std::vector<OpType> add_ops();                   // add.cpp
std::vector<OpType> assign_ops();                // assign.cpp: a state takes a computed value
std::vector<OpType> attention_ops();             // attention.cpp
std::vector<OpType> batch_norm_ops();            // batch_norm.cpp
std::vector<OpType> bias_ops();                  // bias.cpp
std::vector<OpType> clip_ops();                  // clip.cpp: the norm of gradients, and scaling down to it
std::vector<OpType> collective_ops();            // collective.cpp: AllReduce, ReduceScatter, AllGather
std::vector<OpType> concat_ops();                // concat.cpp: Concat, Slice
std::vector<OpType> constant_ops();              // constant.cpp
std::vector<OpType> conv_ops();                  // conv.cpp
std::vector<OpType> conv_transpose_ops();        // conv_transpose.cpp
std::vector<OpType> costed_ops();                // costed.cpp: nothing but costs, to be planned
std::vector<OpType> cumulative_sum_ops();        // cumulative_sum.cpp
std::vector<OpType> embedding_gradient_ops();    // embedding_gradient.cpp: of a table, by the rows that were looked up
std::vector<OpType> fully_connected_ops();       // fully_connected.cpp
std::vector<OpType> layer_model_ops();           // layer_model.cpp: the layers of the papers' tables
std::vector<OpType> linear_cross_entropy_ops();  // linear_cross_entropy.cpp: a linear layer and the loss behind it
std::vector<OpType> loss_ops();     // loss.cpp: softmax cross entropy, mean squared error, sigmoid cross entropy
std::vector<OpType> lrn_ops();      // lrn.cpp
std::vector<OpType> matmul_ops();   // matmul.cpp
std::vector<OpType> norm_ops();     // norm.cpp: layer norm, RMS norm, group norm
std::vector<OpType> pad_ops();      // pad.cpp
std::vector<OpType> permute_ops();  // permute.cpp
std::vector<OpType> pointwise_linear_ops();  // pointwise_linear.cpp: an expression and the linear layer behind it
std::vector<OpType> pointwise_ops();         // pointwise.cpp
std::vector<OpType> pool_ops();              // pool.cpp: max and average
std::vector<OpType> random_ops();            // random.cpp: dropout, Bernoulli, RandomNormal
std::vector<OpType> recurrent_ops();         // recurrent.cpp: LSTM, GRU and plain recurrent layers
std::vector<OpType> reduce_ops();            // reduce.cpp: Reduce, Expand, Cast
std::vector<OpType> reorder_ops();           // reorder.cpp
std::vector<OpType> reshape_ops();           // reshape.cpp: Reshape, StopGradient
std::vector<OpType> resize_ops();            // resize.cpp: interpolation, adaptive pooling
std::vector<OpType> rotary_ops();            // rotary.cpp
std::vector<OpType> softmax_ops();           // softmax.cpp
std::vector<OpType> sort_ops();              // sort.cpp: Sort, TopK
std::vector<OpType> sync_batch_norm_ops();   // sync_batch_norm.cpp: by the statistics of all ranks
std::vector<OpType> take_ops();              // take.cpp: Embedding, IndexSelect, Index, Gather
std::vector<OpType> update_ops();            // update.cpp: SGD, Adam

inline constexpr std::vector<OpType> (*kOpFamilies[])() = {
    accumulate_ops,
    activation_ops,
    add_ops,
    assign_ops,
    attention_ops,
    batch_norm_ops,
    bias_ops,
    clip_ops,
    collective_ops,
    concat_ops,
    constant_ops,
    conv_ops,
    conv_transpose_ops,
    costed_ops,
    cumulative_sum_ops,
    embedding_gradient_ops,
    fully_connected_ops,
    layer_model_ops,
    linear_cross_entropy_ops,
    loss_ops,
    lrn_ops,
    matmul_ops,
    norm_ops,
    pad_ops,
    permute_ops,
    pointwise_linear_ops,
    pointwise_ops,
    pool_ops,
    random_ops,
    recurrent_ops,
    reduce_ops,
    reorder_ops,
    reshape_ops,
    resize_ops,
    rotary_ops,
    softmax_ops,
    sort_ops,
    sync_batch_norm_ops,
    take_ops,
    update_ops,
};

}  // namespace plimsoll
