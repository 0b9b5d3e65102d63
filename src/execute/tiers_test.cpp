// The tiers that a user gives, from the words on the command line to their rates in the database.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>

#include "plimsoll/error.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temporary_folder.h"
#include "train/session.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string refusal(const std::string& text) {
  TierOptions options;
  try {
    parse_spill(text, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "none";
}

TEST(Tiers, SpillIsAFolderAndPerhapsASize) {
  TemporaryFolder folder;
  TierOptions options;
  parse_spill(folder.path().string(), options);
  EXPECT_EQ(options.spill, folder.path());
  EXPECT_FALSE(options.spill_size);
  parse_spill(folder.path().string() + ":1.5GiB", options);
  EXPECT_EQ(options.spill, folder.path());
  EXPECT_EQ(options.spill_size, 1536_MiB);
  fs::create_directory(folder.path() / "a:1GiB");
  options = {};
  parse_spill((folder.path() / "a:1GiB").string(), options);
  EXPECT_EQ(options.spill, folder.path() / "a:1GiB") << "a folder of that name";
  EXPECT_FALSE(options.spill_size);
  EXPECT_THAT(refusal("/nowhere"), HasSubstr("there is no folder '/nowhere'"));
  EXPECT_THAT(refusal("/nowhere:1GiB"), HasSubstr("there is no folder '/nowhere'"));
  EXPECT_THAT(refusal("/tmp:much"), HasSubstr("--spill /tmp:much: "));
  EXPECT_THAT(refusal("/tmp:0"), HasSubstr("--spill /tmp:0: '0' is less than the 4.00 KiB that a tensor takes there"));
  EXPECT_THAT(refusal(""), HasSubstr("there is no folder ''"));
}

TEST(Tiers, AreProbedOnceAndKeptByFileSystemAndFolder) {
  TemporaryFolder cache, spill;
  ::setenv("PLIMSOLL_CACHE", cache.path().c_str(), 1);
  const TierOptions options{.host_memory = 64_MiB, .spill = spill.path(), .spill_size = 96_MiB};
  const Session session = open_session("cpu", 1, options);
  ASSERT_EQ(session.tiers.size(), 2u);
  for (const TierInfo& tier : session.tiers) {
    EXPECT_EQ(tier.capacity, tier.name == "host" ? 64_MiB : 96_MiB);
    EXPECT_GT(tier.out_gb_per_s, 0.001);
    EXPECT_GT(tier.in_gb_per_s, 0.001);
    EXPECT_GE(tier.compute_share, 0);
    EXPECT_LE(tier.compute_share, 1);
  }
  EXPECT_EQ(session.spill, spill.path());
  EXPECT_TRUE(fs::is_empty(spill.path()));
  if (const int cores = session.device->info().cores.cores; cores > 1 && !kThreadSanitizer) {
    EXPECT_TRUE(session.tiers[0].beside_compute() && session.tiers[1].beside_compute());
    for (const TierInfo& tier : open_session("cpu", cores, options).tiers) {
      EXPECT_EQ(tier.beside_compute(), tier.name == "disk")
          << "no core is left for a thread that copies to " << tier.name;
    }
  }
  // What a database holds is not probed again.
  const double share =
      session.tiers[0].name == "host" ? session.tiers[0].compute_share : session.tiers[1].compute_share;
  session.database->save(
      "host",
      {.name = "", .capacity = {}, .out_gb_per_s = 77, .in_gb_per_s = 78, .latency_us = 3, .compute_share = share});
  const Session again = open_session("cpu", 1, {.host_memory = 32_MiB, .spill = {}, .spill_size = {}});
  ASSERT_EQ(again.tiers.size(), 1u);
  EXPECT_EQ(again.tiers[0], (TierInfo{.name = "host",
                                      .capacity = 32_MiB,
                                      .out_gb_per_s = 77,
                                      .in_gb_per_s = 78,
                                      .latency_us = 3,
                                      .compute_share = share}));
  EXPECT_TRUE(open_session("cpu", 1).tiers.empty());
  ::unsetenv("PLIMSOLL_CACHE");
}

}  // namespace
}  // namespace plimsoll
