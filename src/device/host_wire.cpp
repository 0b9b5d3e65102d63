#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "device/channel_collectives.h"
#include "device/wire.h"

namespace plimsoll {
namespace {

class HostWire final : public Wire {
 public:
  using Wire::Wire;
  std::string key() const override { return communicator().network(); }

  std::shared_ptr<float> take_buffer(int64_t elements) override {
    const auto buffer = std::make_shared<std::vector<float>>(elements);
    return {buffer, buffer->data()};
  }
  void copy(const float* from, int64_t count, float* to) override { std::copy_n(from, count, to); }
  void clear(float* at, int64_t count) override { std::fill_n(at, count, 0.0F); }

  void exchange(const float* pieces, std::span<const int64_t> sizes, float* received) override {
    const int64_t all = sum(sizes), theirs = sizes[rank()] * (ranks() - 1);
    communicator().exchange({pieces, static_cast<size_t>(all)}, sizes, {received, static_cast<size_t>(theirs)});
  }
  void spread(float* pieces, std::span<const int64_t> sizes) override {
    communicator().spread({pieces, static_cast<size_t>(sum(sizes))}, sizes);
  }

  // Block by block, so that the sums of a block stay in the first cache.
  void take_mean(const float* mine, const float* received, int64_t count, float* out) override {
    constexpr int64_t kBlock = 1024;
    std::array<float, kBlock> sums;
    const float mean = 1.0F / static_cast<float>(ranks());
    for (int64_t at = 0; at < count; at += kBlock) {
      const int64_t n = std::min(kBlock, count - at);
      const auto piece = [&](int64_t r) {
        return (r == rank() ? mine : received + (r < rank() ? r : r - 1) * count) + at;
      };
      const float* x = piece(0);
      const float* y = piece(1);
      float* const to = ranks() == 2 ? out + at : sums.data();
      const float scale = ranks() == 2 ? mean : 1.0F;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) to[i] = (x[i] + y[i]) * scale;
      for (int64_t r = 2; r < ranks(); ++r) {
        x = piece(r);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) sums[i] += x[i];
      }
      if (ranks() == 2) continue;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) out[at + i] = sums[i] * mean;
    }
  }

  void combine(const float* gathered, int64_t channels, std::optional<double> count, float* first,
               float* second) override {
    for (int64_t c = 0; c < channels; ++c) {
      const ChannelPair all = combine_channel(gathered, channels, ranks(), count, c);
      first[c] = static_cast<float>(all.first);
      second[c] = static_cast<float>(all.second);
    }
  }

  void copy_in_step(Memory from, std::span<std::byte> to) override {
    std::copy(from.begin(), from.end(), to.begin());
    std::fill(to.begin() + std::ssize(from), to.end(), std::byte{0});
  }
  std::optional<float> value_at(const float* at) const override { return *at; }

 private:
  static int64_t sum(std::span<const int64_t> sizes) {
    int64_t all = 0;
    for (const int64_t size : sizes) all += size;
    return all;
  }
};

}  // namespace

std::shared_ptr<Wire> open_wire(const Device& device, std::shared_ptr<Communicator> communicator) {
  if (std::shared_ptr<Wire> own = device.open_wire(communicator)) return own;
  if (!device.host_addressable()) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("several ranks on device '{}' are not supported: train on cpu or cuda", device.info().name));
  }
  return std::make_shared<HostWire>(std::move(communicator));
}

}  // namespace plimsoll
