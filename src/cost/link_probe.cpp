// How fast messages between ranks are, and what they cost the computing beside them.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <numeric>
#include <vector>

#include "base/clock.h"
#include "base/no_signals.h"
#include "base/statistics.h"
#include "cost/probe.h"
#include "device/collectives.h"
#include "device/tier/turns.h"

namespace plimsoll {
namespace {

constexpr Bytes kLinkSizes[] = {4_KiB, 32_KiB, 256_KiB, 2_MiB, 16_MiB, 64_MiB};
constexpr Bytes kBesideCompute = 16_MiB;  // at most
constexpr int kLinkRuns = 3, kLinkRounds = 3;
constexpr double kLongMs = 150;  // what takes longer tells enough of larger sizes
constexpr double kSustainedMs = 30, kLinkWindowMs = 80;
constexpr int kMostAtOnce = 500;
constexpr int64_t kLinkProductSize = 512;  // dense work, as a step's convolutions are
constexpr double kMostLinkShare = 0.95;
constexpr int64_t kFloat = sizeof(float);

double slowest(Communicator& ranks, double ms) {
  const std::vector<double> all = ranks.all_gather(ms);
  return *std::ranges::max_element(all);
}

double mean_of_ranks(Communicator& ranks, double x) {
  const std::vector<double> all = ranks.all_gather(x);
  return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
}

// One after the other for a while: many links let a short burst through faster than what they carry for long.
PassTime time_size(Wire& wire, Bytes bytes) {
  Communicator& ranks = wire.communicator();
  const std::function<void()> mean = mean_over_ranks(wire, bytes.count / kFloat);
  const auto run = [&](int count) {
    ranks.barrier();
    const Stopwatch watch;
    for (int i = 0; i < count; ++i) mean();
    return watch.ms() / count;
  };
  run(1);
  const double once = slowest(ranks, run(1));  // the same on all ranks, and so is the count
  const int count = std::clamp(static_cast<int>(std::lround(kSustainedMs / std::max(once, 1e-3))), 1, kMostAtOnce);
  run(count);  // what may go faster for a moment is over
  std::vector<double> times(kLinkRuns);
  for (double& ms : times) ms = run(count);
  return {bytes, slowest(ranks, median(std::move(times))) / 2};
}

// Of what messages take alone: how much less is computed meanwhile, perhaps more than all. All ranks compute, and all send.
double share_of_compute(const Device& device, Wire& wire, const PassTime& time) {
  Communicator& ranks = wire.communicator();
  const double alone_ms = 2 * time.ms;
  const int count =
      std::clamp(static_cast<int>(std::lround(kLinkWindowMs / alone_ms)), 1, 100);  // the same on all ranks
  const std::function<void()> mean = mean_over_ranks(wire, time.bytes.count / kFloat);
  const TimedRun product = runs_on(device).product(kLinkProductSize, device.info().threads);
  product();
  mean();
  std::vector<double> shares;
  for (int round = 0; round < kLinkRounds; ++round) {
    ranks.barrier();
    const Stopwatch alone;
    int products = 0;
    for (; alone.ms() < kLinkWindowMs || products < 2; ++products) product();
    const double product_ms = alone.ms() / products;
    ranks.barrier();
    const Stopwatch beside;
    std::future<void> messages;
    {
      const NoSignals quiet;
      messages = std::async(std::launch::async, [&] {
        take_short_turns();  // as the message engine does
        for (int i = 0; i < count; ++i) mean();
      });
    }
    products = 0;
    do {
      product();
      ++products;
    } while (messages.wait_for(std::chrono::seconds(0)) != std::future_status::ready);
    const double lost_ms = beside.ms() - products * product_ms;
    messages.get();
    shares.push_back(lost_ms / (count * alone_ms));
  }
  return std::max(mean_of_ranks(ranks, median(std::move(shares))), 0.0);
}

}  // namespace

LinkInfo fit_link(std::span<const PassTime> times, int ranks) {
  double rr = 0, rs = 0, ss = 0, r1 = 0, s1 = 0;
  const double most = static_cast<double>(message_bytes(ranks).count);
  const auto sent_of = [&](const PassTime& time) {
    return static_cast<double>(time.bytes.count) * (ranks - 1) / ranks;
  };
  for (const PassTime& time : times) {
    const double ms = std::max(time.ms, 1e-6), sent = sent_of(time) / ms;
    const double rounds = std::max(1.0, std::ceil(static_cast<double>(time.bytes.count) / most)) / ms;
    rr += rounds * rounds;
    rs += rounds * sent;
    ss += sent * sent;
    r1 += rounds;
    s1 += sent;
  }
  const double determinant = rr * ss - rs * rs;
  double latency_ms = determinant > 0 ? (r1 * ss - s1 * rs) / determinant : 0;
  double ms_a_byte = determinant > 0 ? (s1 * rr - r1 * rs) / determinant : s1 / ss;
  if (ms_a_byte <= 0) {
    latency_ms = std::ranges::min(times, {}, &PassTime::ms).ms;
    ms_a_byte = std::max(times.back().ms, 1e-6) / sent_of(times.back());
  }
  if (latency_ms < 0) {
    latency_ms = 0;
    ms_a_byte = s1 / ss;
  }
  return {.ranks = ranks, .latency_us = 1000 * latency_ms, .gb_per_s = 1e-6 / ms_a_byte};
}

LinkInfo probe_link(const Device& device, Wire& wire, Bytes room) {
  room = {std::ranges::min(wire.communicator().all_gather(room.count))};
  std::vector<PassTime> times;
  PassTime beside;
  for (const Bytes size : kLinkSizes) {
    if (times.size() > 1 && (size * 2 > room || times.back().ms > kLongMs)) break;
    times.push_back(time_size(wire, size));
    if (size <= kBesideCompute) beside = times.back();
  }
  LinkInfo link = fit_link(times, wire.ranks());
  if (device.info().asynchronous) return link;
  link.compute_share = share_of_compute(device, wire, beside);
  if (link.compute_share > kMostLinkShare) {  // then they are under way for longer than alone
    const double longer = link.compute_share / kMostLinkShare;
    link.latency_us *= longer;
    link.gb_per_s /= longer;
    link.compute_share = kMostLinkShare;
  }
  return link;
}

}  // namespace plimsoll
