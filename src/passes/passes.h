// Graph -> graph before and after autodiff, from one list through one wrapper that names, times, can switch off, and checks each
// pass.
#pragma once

#include <string_view>
#include <vector>

#include "plimsoll/autodiff.h"
#include "plimsoll/compile.h"

namespace plimsoll {

// Fuses what runs better together (BN + add + ReLU, convolution + ReLU, add + ReLU, rotary positions, RMSNorm) in a forward network, before
// autodiff: the fused ops' own gradients give the fused backward ops. Then splits large fully connected layers. Results
// stay equal up to rounding. Checked after each pass.
std::vector<PassReport> run_fusion_passes(Network& network, const FusionOptions& options = {});
std::vector<std::string_view> fusion_pass_names();
// Those that are named elsewhere: not every device has kernels for the ops of the first four.
inline constexpr std::string_view kRotaryPass = "fuse_rotary", kPointwiseLinearPass = "fuse_pointwise_linear",
                                  kLinearLossPass = "fuse_linear_cross_entropy",
                                  kSparseEmbeddingPass = "sparse_embedding_gradients",
                                  kSliceGradientsPass = "join_slice_gradients", kRmsNormPass = "fuse_rms_norm",
                                  kPooledReluPass = "relu_gradients_before_pools";
bool runs_wide_layers_by_rows(const Op& op);  // what kPointwiseLinearPass makes

// What several ranks change in a forward network, after what is fused there and before autodiff: with
// OptimizerOptions::sync_batch_norm, batch norms take the statistics of all ranks' parts of the batch
// (sync_batch_norm.h). Nothing with one rank.
std::vector<PassReport> run_rank_passes(Network& network, const OptimizerOptions& options);

// What is fused in the graph of a training step: pointwise ops of its backward pass, unless "fuse_pointwise" is off, and
// the two ops of a loss that makes logits, unless "fuse_linear_cross_entropy" is; and what reads the gradient of an embedding
// with what makes it, unless "sparse_embedding_gradients" is; and the gradients of slices that make up a whole, unless
// "join_slice_gradients" is; and gradients go through a ReLU before they go through the pool behind it, unless
// "relu_gradients_before_pools" is off.
std::vector<PassReport> run_training_passes(Network& training, const FusionOptions& options = {});

// Puts a piece of each parameter that is divided among the ranks in its place among the states, and gathers it where it is
// read first. Of a forward network, before its gradients; of an evaluation too. Only stage 3 divides parameters.
void divide_parameters(Network& network, const Sharding& sharding, int ranks);
// Of its training step: where the backward pass reads what was gathered for the forward pass, and others were in between,
// it is gathered anew. So it need not be there in between.
void gather_again(Network& training);

// The options, with nothing split that the optimizer updates as a whole.
FusionOptions fusion_for(const OptimizerOptions& optimizer, FusionOptions fusion);

// From a forward network to the graph of its training step: all of the above around make_training_network.
Network make_training_step(const Network& forward, const OptimizerOptions& optimizer, const FusionOptions& fusion = {},
                           std::vector<PassReport>* reports = nullptr);

}  // namespace plimsoll
