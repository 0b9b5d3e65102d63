#include "data/order.h"

#include <bit>
#include <limits>

namespace plimsoll {
namespace {

constexpr int64_t kListedWindows = 4 << 20;
constexpr uint32_t kLargeOrderSalt = 0xDA7A0022;
constexpr int kRounds = 8;

}  // namespace

int64_t EpochOrder::listed(const DataInfo& info) {
  return info.windows.context > 0 ? kListedWindows : std::numeric_limits<int64_t>::max();
}

Bytes order_memory(const DataInfo& info) {
  return {info.train_count > EpochOrder::listed(info) ? 0 : info.train_count * static_cast<int64_t>(sizeof(int32_t))};
}

EpochOrder::EpochOrder(int64_t count, uint64_t seed, int64_t epoch, int64_t listed)
    : count_(count), random_{.seed = seed, .step = static_cast<uint64_t>(epoch), .salt = kLargeOrderSalt} {
  if (count <= listed) {
    list_ = epoch_order(count, seed, epoch);
    return;
  }
  const int bits = std::bit_width(static_cast<uint64_t>(count - 1));
  low_bits_ = bits / 2, high_bits_ = bits - low_bits_;
}

int64_t EpochOrder::operator[](int64_t position) const {
  if (!list_.empty()) return list_[static_cast<size_t>(position)];
  do {
    position = permuted(position);
  } while (position >= count_);
  return position;
}

int64_t EpochOrder::permuted(int64_t number) const {
  const int64_t low_mask = (int64_t{1} << low_bits_) - 1, high_mask = (int64_t{1} << high_bits_) - 1;
  int64_t low = number & low_mask, high = number >> low_bits_;
  for (int round = 0; round < kRounds; ++round) {
    int64_t& changed = round % 2 == 0 ? high : low;
    const int64_t other = round % 2 == 0 ? low : high;
    changed ^= random_.block(int64_t{round} << 28 | other)[0] & (round % 2 == 0 ? high_mask : low_mask);
  }
  return high << low_bits_ | low;
}

}  // namespace plimsoll
