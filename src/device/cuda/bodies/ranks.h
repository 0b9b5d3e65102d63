// What a GPU does with what other ranks sent it (device/wire.h).
#pragma once

#include "device/cuda/bodies/common.h"

namespace plimsoll::cuda {

// The mean of all ranks' pieces, added in the order of the ranks.
struct MeanInOrder {
  using Kind = EachElement;
  float* out;
  const float* mine;
  const float* received;  // the others' pieces, in their order
  int64_t count;          // of a piece
  int32_t rank, ranks;
  PLIMSOLL_BODY float of_rank(int32_t r, int64_t i) const {
    return r == rank ? mine[i] : received[(r < rank ? r : r - 1) * count + i];
  }
  PLIMSOLL_BODY void run(int64_t i) const {
    float sum = of_rank(0, i);
    for (int32_t r = 1; r < ranks; ++r) sum += of_rank(r, i);
    out[i] = sum * (1.0F / static_cast<float>(ranks));
  }
};

// Of each channel, the mean and squares around it of all ranks, or the sums of two sums.
struct CombineChannels {
  using Kind = EachElement;
  float* first;
  float* second;
  const float* gathered;  // [rank][2][channel]
  int64_t channels;
  int32_t ranks;
  double count;  // elements of a channel of one rank; 0: sums
  PLIMSOLL_BODY void run(int64_t c) const {
    double mean = 0, sum = 0;
    for (int32_t r = 0; r < ranks; ++r) mean += gathered[2 * channels * r + c];
    if (count > 0) mean /= ranks;
    for (int32_t r = 0; r < ranks; ++r) {
      const float* const part = gathered + 2 * channels * r + c;
      const double off = count > 0 ? part[0] - mean : 0;
      sum += part[channels] + count * off * off;
    }
    first[c] = static_cast<float>(mean);
    second[c] = static_cast<float>(sum);
  }
};

}  // namespace plimsoll::cuda
