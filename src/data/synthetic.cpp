// Generated images: every class has its own coarse pattern of colours, every sample its own noise on it. Nothing is
// kept in memory, and a sample costs less than a nanosecond a pixel, so that it never holds up a measurement.
#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "data/sources.h"

namespace plimsoll {
namespace {

constexpr int64_t kGrid = 4;  // the pattern has 4x4 fields
constexpr uint32_t kPatternSalt = 0xDA7A0010;
constexpr uint32_t kNoiseSalt = 0xDA7A0011;

class Synthetic : public DataSet {
 public:
  Synthetic(int64_t count, const DataOptions& options) : seed_(options.seed) {
    info_ = {.name = "synthetic",
             .channels = options.channels > 0 ? options.channels : 3,
             .height = options.height > 0 ? options.height : 32,
             .width = options.width > 0 ? options.width : 32,
             .classes = options.classes > 0 ? options.classes : 10,
             .train_count = count,
             .test_count = std::max<int64_t>(1, count / 10)};
    // A pixel is the sum of two even draws of 0..127.
    info_.mean.assign(info_.channels, 127.0F / 255);
    info_.stddev.assign(info_.channels, 52.26F / 255);
  }

  const DataInfo& info() const override { return info_; }
  Bytes memory() const override { return {0}; }

  void read(Split split, int64_t index, int64_t, Image& image) const override {
    const int64_t sample = split == Split::train ? index : info_.train_count + index;
    image.channels = info_.channels;
    image.height = info_.height;
    image.width = info_.width;
    image.maximum = 255;
    image.label = static_cast<int32_t>(sample % info_.classes);
    const int64_t row_bytes = info_.width * info_.channels;
    const int64_t padded_bytes = (row_bytes + 7) / 8 * 8;
    image.pixels.resize(row_bytes * info_.height);

    const RandomStream pattern{.seed = seed_, .step = static_cast<uint64_t>(image.label), .salt = kPatternSalt};
    const RandomStream noise{.seed = seed_, .step = static_cast<uint64_t>(sample), .salt = kNoiseSalt};
    uint64_t state = uint64_t{noise.bits(0)} << 32 | noise.bits(1);
    std::vector<uint8_t> row_of_pattern(padded_bytes), row(row_of_pattern.size());
    int64_t field_row = -1;
    for (int64_t y = 0; y < info_.height; ++y) {
      if (y * kGrid / info_.height != field_row) {
        field_row = y * kGrid / info_.height;
        fill_pattern(pattern, field_row, row_of_pattern);
      }
      for (int64_t i = 0; i < padded_bytes; i += 8) {
        uint64_t eight = 0;
        std::memcpy(&eight, row_of_pattern.data() + i, 8);
        eight += next_bits(state) & 0x7F7F7F7F7F7F7F7F;  // no byte runs over: both are below 128
        std::memcpy(row.data() + i, &eight, 8);
      }
      std::copy_n(row.begin(), row_bytes, image.pixels.begin() + y * row_bytes);
    }
  }

 private:
  void fill_pattern(const RandomStream& pattern, int64_t field_row, std::vector<uint8_t>& row) const {
    for (int64_t x = 0; x < info_.width; ++x) {
      const int64_t field = field_row * kGrid + x * kGrid / info_.width;
      for (int64_t c = 0; c < info_.channels; ++c) {
        row[x * info_.channels + c] = static_cast<uint8_t>(pattern.bits(c * kGrid * kGrid + field) & 0x7F);
      }
    }
  }

  uint64_t seed_;
  DataInfo info_;
};

}  // namespace

std::shared_ptr<const DataSet> open_synthetic(int64_t count, const DataOptions& options) {
  return std::make_shared<Synthetic>(count, options);
}

}  // namespace plimsoll
