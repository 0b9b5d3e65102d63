// The order of a split's samples in an epoch.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "plimsoll/data.h"

namespace plimsoll {

// A permutation of 0..count-1 that seed and epoch decide. Few samples are listed (epoch_order). Of many windows of a text each is
// computed where it is asked for, in no memory: rounds of a Feistel network permute the numbers of as many bits as `count`
// has, and a number that is none of a sample is permuted again (J. Black, P. Rogaway, "Ciphers with arbitrary finite
// domains", 2002, section 4).
class EpochOrder {
 public:
  // At most so many are listed.
  static int64_t listed(const DataInfo& info);

  EpochOrder(int64_t count, uint64_t seed, int64_t epoch, int64_t listed);
  int64_t operator[](int64_t position) const;

 private:
  int64_t permuted(int64_t number) const;

  std::vector<int32_t> list_;
  int64_t count_ = 0;
  int low_bits_ = 0, high_bits_ = 0;  // the halves of a number
  RandomStream random_;
};

}  // namespace plimsoll
