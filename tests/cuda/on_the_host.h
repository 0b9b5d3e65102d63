// A body of our CUDA kernels on the host: one thread after the other, in the order of its kind.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/cuda/bodies/common.h"

namespace plimsoll::testing {

namespace fake {

using namespace cuda;

// Threads take turns in an order that changes from phase to phase: what reads in a phase what another thread writes in
// it gets now what was there before, now what comes. Memory begins as garbage, as on a GPU.
template <class Body>
class TileOnHost {
 public:
  static_assert((Body::kThreads & (Body::kThreads - 1)) == 0);
  explicit TileOnHost(const Body& body) : body_(body), states_(Body::kThreads) {}
  void run(int64_t block) {
    std::memset(static_cast<void*>(&*shared_), 0xFF, sizeof(typename Body::Shared));
    std::memset(static_cast<void*>(states_.data()), 0xFF, states_.size() * sizeof(typename Body::State));
    each([&](int thread) { body_.begin(block, thread, state(thread), *shared_); });
    const int rounds = body_.rounds(block);
    for (int round = 0; round < rounds; ++round) {
      if (body_.skips(block, round)) continue;
      phases(block, round, std::make_integer_sequence<int, Body::kPhases>());
    }
    finishes(block, std::make_integer_sequence<int, Body::kFinishes>());
  }

 private:
  typename Body::State& state(int thread) { return states_[static_cast<size_t>(thread)]; }
  template <class Action>
  void each(const Action& action) {
    order_ = order_ * 1664525 + 1013904223;
    const int first = static_cast<int>(order_ >> 8) & (Body::kThreads - 1);
    const int step = (order_ >> 31) != 0 ? 1 : Body::kThreads - 1;
    for (int i = 0; i < Body::kThreads; ++i) action((first + i * step) % Body::kThreads);
  }
  template <int... kPhase>
  void phases([[maybe_unused]] int64_t block, [[maybe_unused]] int round, std::integer_sequence<int, kPhase...>) {
    (each([&](int thread) { body_.template phase<kPhase>(block, round, thread, state(thread), *shared_); }), ...);
  }
  template <int... kFinish>
  void finishes([[maybe_unused]] int64_t block, std::integer_sequence<int, kFinish...>) {
    (each([&](int thread) { body_.template finish<kFinish>(block, thread, state(thread), *shared_); }), ...);
  }

  const Body& body_;
  std::unique_ptr<typename Body::Shared> shared_ = std::make_unique<typename Body::Shared>();
  std::vector<typename Body::State> states_;
  uint32_t order_ = 1;
};

template <class Body>
struct HostLauncher {
  static void launch(const void* parameters, int64_t count) {
    Body body;
    std::memcpy(static_cast<void*>(&body), parameters, sizeof(Body));
    if constexpr (std::is_same_v<typename Body::Kind, EachFour>) {
      int64_t done = 0;
      if (body.by_four()) {
        for (; done + 4 <= count; done += 4) body.four(done);
      }
      for (; done < count; ++done) body.run(done);
    } else if constexpr (std::is_same_v<typename Body::Kind, EachElement>) {
      for (int64_t i = 0; i < count; ++i) body.run(i);
    } else if constexpr (std::is_same_v<typename Body::Kind, EachTile>) {
      TileOnHost<Body> tile(body);
      for (int64_t block = 0; block < count; ++block) tile.run(block);
    } else {
      std::vector<typename Body::Value> values(kBlock);
      for (int64_t block = 0; block < count; ++block) {
        for (int thread = 0; thread < kBlock; ++thread)
          values[static_cast<size_t>(thread)] = body.partial(block, thread);
        for (int distance = kBlock / 2; distance > 0; distance /= 2) {
          for (int thread = 0; thread < distance; ++thread) {
            values[static_cast<size_t>(thread)].add(values[static_cast<size_t>(thread + distance)]);
          }
        }
        body.finish(block, values[0]);
      }
    }
  }
};

}  // namespace fake

}  // namespace plimsoll::testing
