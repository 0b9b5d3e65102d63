// How what lies in a device's memory reaches the other ranks: what collectives are made of (device/collectives.cpp).
//
//   HostWire                 memory that the host addresses, by the communicator's messages: done on return
//   cuda/nccl_wire.h         GPUs, by NCCL: asked of a queue of its own, done later
//
// A collective asks for its parts between begin and end. Buffers lie beside the arena. All ranks ask for the same in the
// same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "plimsoll/communicator.h"
#include "plimsoll/device.h"

namespace plimsoll {

class Wire {
 public:
  using Memory = std::span<const std::byte>;

  explicit Wire(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {}
  virtual ~Wire() = default;
  Communicator& communicator() const { return *communicator_; }
  int rank() const { return communicator_->rank(); }
  int ranks() const { return communicator_->size(); }
  // What the link's speed depends on: libraries and devices of all ranks. Empty: it is not worth keeping.
  virtual std::string key() const { return {}; }

  // Memory beside the arena.
  virtual std::shared_ptr<float> take_buffer(int64_t elements) = 0;

  // A collective, which touches these bytes.
  virtual void begin(std::span<const Memory> /*reads*/, std::span<const Memory> /*writes*/) {}
  virtual void end() {}

  virtual void copy(const float* from, int64_t count, float* to) = 0;
  virtual void clear(float* at, int64_t count) = 0;
  // Communicator::exchange and Communicator::spread, in the device's memory.
  virtual void exchange(const float* pieces, std::span<const int64_t> sizes, float* received) = 0;
  virtual void spread(float* pieces, std::span<const int64_t> sizes) = 0;
  // out = the mean of `mine` and of what exchange received, added in the order of the ranks. `mine` may be `out`.
  virtual void take_mean(const float* mine, const float* received, int64_t count, float* out) = 0;
  // Of each rank first[channels], second[channels] in `gathered`: put together in the order of the ranks. With `count` they
  // are means of so many elements each and squares around them, without it sums.
  virtual void combine(const float* gathered, int64_t channels, std::optional<double> count, float* first,
                       float* second) = 0;

  // A step of the plan itself: in its order, without the other ranks.
  virtual void copy_in_step(Memory from, std::span<std::byte> to) = 0;  // what is longer in `to` becomes zero
  // A collective that is a step of its own lies between these two.
  virtual void follow_steps() {}
  virtual void precede_steps() {}

  // The number there, where the host can look.
  virtual std::optional<float> value_at(const float* at) const = 0;

  // The device's library does what an op asks for by itself, in an order of sums of its own. Empty: it does not.
  virtual std::string_view library_kernel() const { return {}; }
  virtual std::unique_ptr<Kernel> make_library_kernel(const Graph& /*graph*/, std::span<const OpId> /*ops*/) {
    return nullptr;
  }

  // Until all is done that was asked for. Throws RankFailed, as look does.
  virtual void finish() {}
  // Called again and again by who waits for the device. Throws RankFailed when another rank has ended, or what was sent is
  // under way for longer than the communicator's timeout; nothing is under way any more then.
  virtual void look() {}

 private:
  const std::shared_ptr<Communicator> communicator_;
};

// The device's own, or the host's.
std::shared_ptr<Wire> open_wire(const Device& device, std::shared_ptr<Communicator> communicator);

}  // namespace plimsoll
