// The link between ranks that are threads.
#include <gtest/gtest.h>

#include "cost/probe.h"
#include "tests/support/local_transport.h"

namespace plimsoll {
namespace {

using testing::as_ranks;

TEST(LinkProbe, GivesAllRanksTheSameRates) {
  for (const int ranks : {2, 3}) {
    std::vector<LinkInfo> links(ranks);
    as_ranks(ranks, [&](const std::shared_ptr<Communicator>& communicator) {
      const auto device = open_device("cpu", 1);
      const auto wire = open_wire(*device, communicator);
      // The smallest room of all counts: what is measured is measured by all.
      links[communicator->rank()] = probe_link(*device, *wire, communicator->is_first() ? 6_MiB : 64_MiB);
    });
    for (const LinkInfo& link : links) EXPECT_EQ(link, links[0]);
    EXPECT_EQ(links[0].ranks, ranks);
    EXPECT_GE(links[0].latency_us, 0);
    EXPECT_GT(links[0].gb_per_s, 0);
    EXPECT_GE(links[0].compute_share, 0);
    EXPECT_LT(links[0].compute_share, 1);
  }
}

TEST(LinkProbe, FitsALatencyAndARateToTheTimes) {
  const PassTime apart[] = {{4_KiB, 0.1 + 2048e-6}, {256_KiB, 0.1 + 131072e-6}, {512_KiB, 0.1 + 262144e-6}};
  const LinkInfo link = fit_link(apart, 2);
  EXPECT_NEAR(link.latency_us, 100, 1);
  EXPECT_NEAR(link.gb_per_s, 1, 0.01);
  const PassTime busy[] = {{4_KiB, 5}, {256_KiB, 2}, {2_MiB, 4}};  // the small one had to wait
  const LinkInfo of_busy = fit_link(busy, 2);
  EXPECT_NEAR(of_busy.latency_us, 2000, 1);
  EXPECT_NEAR(of_busy.gb_per_s, 1048576 / 4e6, 0.01);
}

// A few hundred KB go at once after a pause; a step's gradients do not.
TEST(LinkProbe, DoesNotTakeABurstForTheRate) {
  testing::PostOffice office(2);
  office.hold_to(0.1, 512_KiB);
  std::vector<LinkInfo> links(2);
  as_ranks(
      2,
      [&](const std::shared_ptr<Communicator>& communicator) {
        const auto device = open_device("cpu", 1);
        const auto wire = open_wire(*device, communicator);
        links[communicator->rank()] = probe_link(*device, *wire, 64_MiB);
      },
      std::chrono::seconds(60), &office);
  const LinkInfo& link = links[0];
  const double ms = link.latency_us * 1e-3 * 16 + 8 / link.gb_per_s;  // 16 MiB, of which half goes over it
  EXPECT_GT(ms, 0.8 * 80);
}

}  // namespace
}  // namespace plimsoll
