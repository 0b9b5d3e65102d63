// Every body, in the order of the numbers by which they pass through the door.
#pragma once

#include <array>

#include "device/cuda/bodies/attention.h"
#include "device/cuda/bodies/attention_tiles_backward.h"
#include "device/cuda/bodies/attention_tiles_forward.h"
#include "device/cuda/bodies/batch_norm.h"
#include "device/cuda/bodies/clip.h"
#include "device/cuda/bodies/elementwise.h"
#include "device/cuda/bodies/lookups.h"
#include "device/cuda/bodies/loss.h"
#include "device/cuda/bodies/max_pool.h"
#include "device/cuda/bodies/move.h"
#include "device/cuda/bodies/norm.h"
#include "device/cuda/bodies/pointwise.h"
#include "device/cuda/bodies/random.h"
#include "device/cuda/bodies/ranks.h"
#include "device/cuda/bodies/recurrent.h"
#include "device/cuda/bodies/resize.h"
#include "device/cuda/bodies/rotary.h"
#include "device/cuda/bodies/softmax.h"
#include "device/cuda/bodies/sort.h"
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

using Bodies = BodyList<
    Constant, Activate, ActivateBackward, AddTerms, AddBias, ReorderWords, ReorderBytes, Accumulate,
    CopyElements<uint8_t>, CopyElements<uint32_t>, CopyElements<uint64_t>, Sgd, AdamFactors, Adam, Dropout,
    RandomNormal, MaxPool, MaxPoolBackward, MaxPoolByTwo<2>, MaxPoolByTwo<3>, MaxPoolByTwoBackward<2>,
    MaxPoolByTwoBackward<3>, AveragePool, AveragePoolBackward, Lrn, LrnBackward, DirectForward, DirectBackwardData,
    DirectBackwardWeights, SumPieces<Values>, SumPieces<Moments>, SumPieces<Gradients>, SumPiecesAcross<Values>,
    SumPiecesAcross<Moments>, SumPiecesAcross<Gradients>, ChannelTotals, Statistics, Normalize, NormalizeBackward,
    SoftmaxSums, SoftmaxProbabilities, SoftmaxTotal, SoftmaxBackward, SumAll<SquaredError>, SumAll<SigmoidError>,
    MeanTotal, SquaredErrorBackward, SigmoidErrorBackward, SumAll<Squared>, NormTotal, SquareNorm, ClipTotal, ScaleBy,
    RunExpression, RunChain, ExpandElements<uint8_t>, ExpandElements<uint32_t>, ExpandElements<uint64_t>, CastElements,
    ReduceRows, ReducePieces, ReduceTotals, PermuteElements<uint8_t>, PermuteElements<uint32_t>,
    PermuteElements<uint64_t>, PermuteElements<Sixteen>, TransposeFours, CopyRows<uint8_t>, CopyRows<uint32_t>,
    CopyRows<uint64_t>, CopyRows<Sixteen>, TakeSteps<uint8_t>, TakeSteps<uint32_t>, TakeSteps<uint64_t>,
    TakeSteps<Sixteen>, SpreadSteps<uint8_t>, SpreadSteps<uint32_t>, SpreadSteps<uint64_t>, SpreadSteps<Sixteen>,
    MakeRows, TakeRows<uint8_t>, TakeRows<uint32_t>, TakeRows<uint64_t>, TakeRows<Sixteen>, LinkWithinPieces,
    LinkPieces, AddRows, GatherElements<uint8_t>, GatherElements<uint32_t>, GatherElements<uint64_t>, GatherLines,
    PadElements<uint8_t>, PadElements<uint32_t>, PadElements<uint64_t>, PadBackward, ResizeImage, ResizeImageBackward,
    AdaptiveAverage, AdaptiveAverageBackward, AdaptiveMaximum, AdaptiveMaximumBackward, LossScale, RowMoments,
    NormalizeRows, RowGradients, NormalizeRowsBackward, NormColumns, NormColumnTotals, NormChannels, NormWholeRows<3>,
    NormWholeRows<4>, NormWholeRows<8>, NormWholeRowsBackward<3>, NormWholeRowsBackward<4>, NormWholeRowsBackward<8>,
    AxisTops, AxisSums, AxisSoftmax, AxisDots, AxisSoftmaxBackward, AttentionScores, AttentionProbabilities,
    AttentionDots, AttentionScoreGradients, AttentionMaskGradient, ScaleScores, AttentionTiles<64, FullProducts>,
    AttentionTiles<128, FullProducts>, AttentionTilesQueries<64, FullProducts>,
    AttentionTilesQueries<128, FullProducts>, AttentionTilesKeys<64, FullProducts>,
    AttentionTilesKeys<128, FullProducts>, AttentionTiles<64, Tf32Products>, AttentionTiles<64, Tf32InTurn>,
    AttentionTiles<128, Tf32Products>, AttentionTilesQueries<64, Tf32Products>,
    AttentionTilesQueries<128, Tf32Products>, AttentionTilesKeys<64, Tf32Products>,
    AttentionTilesKeys<128, Tf32Products>, AttentionBlindRows, Bernoulli, PlacesInOrder, SortByRanks<float>,
    SortByRanks<int32_t>, SortByRanks<int64_t>, SortByRanks<uint8_t>, SortStep<float>, SortStep<int32_t>,
    SortStep<int64_t>, SortStep<uint8_t>, TakeSorted<float>, TakeSorted<int32_t>, TakeSorted<int64_t>,
    TakeSorted<uint8_t>, PieceSums<float>, PieceSums<int32_t>, PieceSums<int64_t>, PieceSums<uint8_t>,
    SumsBefore<double>, SumsBefore<int64_t>, CumulativeSums<float>, CumulativeSums<int32_t>, CumulativeSums<int64_t>,
    CumulativeSums<uint8_t>, RecurrentStep, RecurrentStepBackward, ChannelMoments, WholeStatistics, MeanInOrder,
    CombineChannels, LogitGradients, SumColumns, ColumnTotals, Joined<Sgd>, Joined<Adam>, Joined<Accumulate>,
    SumAll<SquaredLookups>, ByLookups<Sgd>, ByLookups<Adam>, AddLookups, Turn>;

}  // namespace plimsoll::cuda
