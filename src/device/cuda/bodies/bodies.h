// Every body, in the order of the numbers by which they pass through the door.
#pragma once

#include <array>

#include "device/cuda/bodies/attention.h"
#include "device/cuda/bodies/batch_norm.h"
#include "device/cuda/bodies/clip.h"
#include "device/cuda/bodies/elementwise.h"
#include "device/cuda/bodies/loss.h"
#include "device/cuda/bodies/norm.h"
#include "device/cuda/bodies/random.h"
#include "device/cuda/bodies/softmax.h"
#include "device/cuda/bodies/sums.h"
#include "device/cuda/bodies/window.h"

namespace plimsoll::cuda {

template <class... B>
struct BodyList {
  static constexpr int size = sizeof...(B);
  template <class Body>
  static constexpr int number() {
    int result = -1, i = 0;
    ((std::is_same_v<Body, B> ? void(result = i) : void(), ++i), ...);
    return result;
  }
  template <template <class> class Launcher>
  static constexpr auto table() {
    return std::array{&Launcher<B>::launch...};
  }
};

using Bodies =
    BodyList<Constant, Activate, ActivateBackward, AddTerms, AddBias, ReorderWords, ReorderBytes, CopyRows, Accumulate,
             Sgd, AdamFactors, Adam, Dropout, RandomNormal, MaxPool, MaxPoolBackward, AveragePool, AveragePoolBackward,
             Lrn, LrnBackward, DirectForward, DirectBackwardData, DirectBackwardWeights, SumPieces<Values>,
             SumPieces<Moments>, SumPieces<Gradients>, SumPiecesAcross<Values>, SumPiecesAcross<Moments>,
             SumPiecesAcross<Gradients>, ChannelTotals, Statistics, Normalize, NormalizeBackward, SoftmaxTops,
             SoftmaxSums, SoftmaxProbabilities, SoftmaxTotal, LossScale, SoftmaxBackward, SumAll<SquaredError>,
             SumAll<SigmoidError>, MeanTotal, SquaredErrorBackward, SigmoidErrorBackward, SumAll<Squared>, NormTotal,
             SquareNorm, ClipTotal, ScaleBy, RowMoments, NormalizeRows, RowGradients, NormalizeRowsBackward,
             NormColumns, NormColumnTotals, NormChannels, AxisTops, AxisSums, AxisSoftmax, AxisDots,
             AxisSoftmaxBackward, AttentionScores, AttentionProbabilities, AttentionDots, AttentionScoreGradients,
             AttentionMaskGradient, ScaleScores>;

}  // namespace plimsoll::cuda
