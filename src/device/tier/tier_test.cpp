#include "device/tier/tier.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <thread>

#include "device/tier/fault.h"
#include "plimsoll/error.h"
#include "plimsoll/plan.h"
#include "tests/support/local_transport.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::vector<std::byte> noise(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> result(bytes);
  for (std::byte& b : result) b = static_cast<std::byte>(random());
  return result;
}

std::string message_of(const std::function<void()>& action, ErrorCode code = ErrorCode::device_failure) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  return "no error";
}

// Host memory; a disk with io_uring where there is any; a disk without; the memory of three other processes.
enum class Kind { host, disk, plain_disk, remote };
std::string name_of(Kind kind) {
  constexpr const char* kNames[] = {"host", "disk", "plain_disk", "remote"};
  return kNames[static_cast<int>(kind)];
}
class EveryTier : public ::testing::TestWithParam<Kind> {
 protected:
  std::shared_ptr<Tier> open(Bytes capacity) {
    if (GetParam() == Kind::host) return open_host_tier(capacity);
    if (GetParam() == Kind::remote) {
      servers_.emplace(std::vector<Bytes>{13_MiB, Bytes{capacity.count / 2} + 4096_B, capacity}, capacity);
      return open_remote_tier(servers_->memory());
    }
    std::optional<TierFault> refused;
    if (GetParam() == Kind::plain_disk) refused.emplace(TierOperation::ring, 1, EPERM);
    return open_disk_tier(folder_.path(), capacity);
  }
  // What its errors name.
  std::string place() const {
    return GetParam() == Kind::host     ? "host memory"
           : GetParam() == Kind::remote ? "memory of rank "
                                        : folder_.path().string();
  }
  bool has_files() const { return GetParam() == Kind::disk || GetParam() == Kind::plain_disk; }
  TemporaryFolder folder_;
  std::optional<testing::LocalServers> servers_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, EveryTier, ::testing::Values(Kind::host, Kind::disk, Kind::plain_disk, Kind::remote),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(EveryTier, GivesBackWhatWasWrittenWhateverItsSizeAndPlace) {
  const std::shared_ptr<Tier> tier = open(64_MiB);
  tier->reserve(40_MiB);
  const auto channel = tier->open_channel();
  uint64_t seed = 1;
  for (const int64_t bytes : {int64_t{1}, int64_t{64}, int64_t{4096}, int64_t{4097}, kTierPiece - 1, kTierPiece,
                              kTierPiece + 1, 9 * kTierPiece, 7 * kTierPiece + 12345}) {
    for (const int64_t shift : {0, 64, 512, 4096}) {
      Slot& slot = tier->slot({4096 * static_cast<int64_t>(seed)}, {bytes});
      const std::vector<std::byte> there = noise(bytes + 8192, seed++);
      std::vector<std::byte> here(there.size() + 8192, std::byte{7});
      auto aligned = [&](const std::vector<std::byte>& v) {
        return const_cast<std::byte*>(v.data()) + (4096 - reinterpret_cast<uintptr_t>(v.data()) % 4096) % 4096 + shift;
      };
      if (aligned(there) + bytes > there.data() + there.size()) continue;
      channel->write(slot, aligned(there));
      channel->read(slot, aligned(here));
      ASSERT_EQ(std::memcmp(aligned(here), aligned(there), bytes), 0) << bytes << " at +" << shift;
      ASSERT_EQ(aligned(here)[bytes], std::byte{7}) << "beyond the end";
    }
  }
}

// A disk's channels share a fixed number of buffers: more of them at once than there are buffers all get their turn.
TEST_P(EveryTier, ChannelsThatShareBuffersDoNotDisturbEachOther) {
  constexpr int kChannels = 12, kRounds = 10;
  constexpr int64_t kBytes = 5 * kTierPiece + 777;
  const std::shared_ptr<Tier> tier = open(96_MiB);
  tier->reserve(96_MiB);
  std::vector<std::unique_ptr<Channel>> channels;
  for (int i = 0; i < kChannels; ++i) channels.push_back(tier->open_channel());
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kChannels; ++i) {
    threads.emplace_back([&, i] {
      Slot& slot = tier->slot({i * 6 * kTierPiece}, {kBytes});
      std::vector<std::byte> found(kBytes + 1);
      for (int round = 0; round < kRounds; ++round) {
        const std::vector<std::byte> there = noise(kBytes + 1, i * kRounds + round);
        channels[i]->write(slot, there.data() + 1);  // at no address that a file takes directly
        channels[i]->read(slot, found.data() + 1);
        right += std::memcmp(found.data() + 1, there.data() + 1, kBytes) == 0 ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, kChannels * kRounds);
}

TEST_P(EveryTier, WritesAndReadsPartsOfASlot) {
  const std::shared_ptr<Tier> tier = open(16_MiB);
  tier->reserve(16_MiB);
  const auto channel = tier->open_channel();
  constexpr int64_t kBytes = 3 * kTierPiece + 1000;
  Slot& slot = tier->slot(8192_B, {kBytes});
  std::vector<std::byte> expected(kBytes, std::byte{0});
  std::mt19937_64 random(5);
  for (int i = 0; i < 40; ++i) {
    const int64_t first = static_cast<int64_t>(random() % kBytes);
    const std::vector<std::byte> part = noise(1 + random() % static_cast<uint64_t>(kBytes - first), random());
    channel->write(slot, first, part);
    std::copy(part.begin(), part.end(), expected.begin() + first);
    if (i == 0) channel->write(slot, 0, expected);
    const int64_t from = static_cast<int64_t>(random() % kBytes);
    std::vector<std::byte> found(1 + random() % static_cast<uint64_t>(kBytes - from));
    channel->read(slot, from, found);
    ASSERT_EQ(std::memcmp(found.data(), expected.data() + from, found.size()), 0) << i;
  }
}

TEST_P(EveryTier, TellsEveryCallThatFailsWithItsPlace) {
  const std::vector<std::byte> there = noise(6 * kTierPiece + 77, 3);
  for (const auto& [operation, says] :
       std::vector<std::pair<TierOperation, std::string>>{{TierOperation::write, "writing"},
                                                          {TierOperation::read, "reading"},
                                                          {TierOperation::corrupt, "checksum"},
                                                          {TierOperation::short_read, "the file ends early"}}) {
    if (operation == TierOperation::short_read && !has_files()) continue;
    for (int nth = 1;; ++nth) {
      const std::shared_ptr<Tier> tier = open(16_MiB);
      tier->reserve(16_MiB);
      const auto channel = tier->open_channel();
      Slot& slot = tier->slot(4096_B, {static_cast<int64_t>(there.size())});
      std::vector<std::byte> here(there.size());
      const TierFault fault(operation, nth, EIO);
      const std::string message = message_of([&] {
        channel->write(slot, there.data());
        channel->read(slot, here.data());
      });
      if (!fault.struck()) {
        EXPECT_EQ(message, "no error");
        EXPECT_EQ(nth, 8) << "a call for each of seven pieces";
        break;
      }
      EXPECT_THAT(message, AllOf(HasSubstr(says), HasSubstr(place()), HasSubstr("byte ")));
      if (operation == TierOperation::read || operation == TierOperation::write) {
        EXPECT_THAT(message, HasSubstr(std::strerror(EIO)));
      }
    }
  }
}

TEST_P(EveryTier, RefusesMoreThanItsCapacityBeforeAnythingRuns) {
  EXPECT_THAT(message_of([&] { open(1_MiB)->reserve(2_MiB); }), HasSubstr("the plan needs 2.00 MiB"));
}

TEST_P(EveryTier, ARetiredSlotIsNotReadBeforeItIsWrittenAgain) {
  const std::shared_ptr<Tier> tier = open(1_MiB);
  tier->reserve(1_MiB);
  const auto channel = tier->open_channel();
  Slot& slot = tier->slot(0_B, 100_B);
  std::vector<std::byte> bytes = noise(100, 1);
  channel->write(slot, bytes.data());
  slot.retired = true;
  EXPECT_THAT(message_of([&] { channel->read(slot, bytes.data()); }, ErrorCode::internal),
              HasSubstr("after the last copy"));
  channel->write(slot, bytes.data());
  EXPECT_NO_THROW(channel->read(slot, bytes.data()));
}

// Pieces that lie on two servers, and all of them there.
TEST(RemoteTier, LiesOnTheServersAsItWasShared) {
  testing::LocalServers servers({24_MiB, 9_MiB, 16_MiB}, 40_MiB);
  const std::vector<RemoteRange>& ranges = servers.memory()->ranges();
  ASSERT_EQ(ranges.size(), 2u);
  const std::shared_ptr<Tier> tier = open_remote_tier(servers.memory());
  const auto channel = tier->open_channel();
  Slot& slot = tier->slot({kSlotAlignment}, 39_MiB);
  const std::vector<std::byte> there = noise(slot.bytes, 11);
  channel->write(slot, there.data());
  for (int64_t at = 0; at < slot.bytes; at += 4096) {
    const int64_t place = at + slot.offset;
    const RemoteRange& range = place < ranges[0].bytes.count ? ranges[0] : ranges[1];
    const int64_t byte = range.first + place - (place < ranges[0].bytes.count ? 0 : ranges[0].bytes.count);
    ASSERT_EQ(servers.office().served(range.server)[byte], there[at]) << at;
  }
  EXPECT_THAT(message_of([&] { open_remote_tier(servers.memory()); }, ErrorCode::internal),
              HasSubstr("in use already"));
}

// What another process wrote over it is found, and where.
TEST(RemoteTier, ABitThatChangedOnAServerIsFound) {
  testing::LocalServers servers({16_MiB}, 16_MiB);
  const std::shared_ptr<Tier> tier = open_remote_tier(servers.memory());
  const auto channel = tier->open_channel();
  Slot& slot = tier->slot(8192_B, {3 * kTierPiece});
  std::vector<std::byte> bytes = noise(slot.bytes, 12);
  channel->write(slot, bytes.data());
  servers.office().served(1)[8192 + 2 * kTierPiece + 5] ^= std::byte{4};
  EXPECT_THAT(message_of([&] { channel->read(slot, bytes.data()); }),
              AllOf(HasSubstr("checksum"), HasSubstr("memory of rank 1 ("), HasSubstr("serve-memory")));
}

TEST(RemoteTier, AServerThatDoesNotAnswerIsNamed) {
  testing::LocalServers servers({16_MiB}, 16_MiB, std::chrono::milliseconds(200));
  const std::shared_ptr<Tier> tier = open_remote_tier(servers.memory());
  const auto channel = tier->open_channel();
  Slot& slot = tier->slot(0_B, {2 * kTierPiece});
  std::vector<std::byte> bytes = noise(slot.bytes, 13);
  std::string told;
  servers.ranks()->set_teller([&](std::string_view why) { told = why; });
  servers.office().freeze();
  EXPECT_THAT(message_of([&] { channel->write(slot, bytes.data()); }),
              AllOf(HasSubstr("rank 1 ("), HasSubstr("has not answered"), HasSubstr("--timeout")));
  EXPECT_THAT(told, HasSubstr("rank 1 ("));
  EXPECT_EQ(servers.end(), 0) << "it was told of the failure";
}

TEST(HostTier, TellsWhenTheSystemGivesNoMemory) {
  const TierFault fault(TierOperation::map, 1, ENOMEM);
  EXPECT_THAT(message_of([] { open_host_tier(1_GiB); }),
              AllOf(HasSubstr("1.00 GiB"), HasSubstr("--host-memory"), HasSubstr(std::strerror(ENOMEM))));
  EXPECT_THAT(message_of([] { open_host_tier(1024_GiB)->reserve(900_GiB); }),
              AnyOf(HasSubstr("the machine has"), HasSubstr("the system gives no 1.00 TiB")));
}

TEST(DiskTier, NamesTheFolderThatIsNotThere) {
  EXPECT_EQ(message_of([] { open_disk_tier("/nowhere/at/all", 1_MiB); }, ErrorCode::invalid_input),
            "--spill: there is no folder '/nowhere/at/all'; make it, or name another");
  EXPECT_THAT(message_of([] { spill_room("/nowhere/at/all"); }, ErrorCode::invalid_input),
              HasSubstr("/nowhere/at/all"));
}

TEST(DiskTier, TellsAFullDiskWithTheSizeBeforeAnythingIsWritten) {
  TemporaryFolder folder;
  const TierFault fault(TierOperation::allocate, 1, ENOSPC);
  EXPECT_THAT(
      message_of([&] { open_disk_tier(folder.path(), 3_GiB)->reserve(2_GiB); }),
      AllOf(HasSubstr("--spill " + folder.path().string()), HasSubstr("2.00 GiB"), HasSubstr(std::strerror(ENOSPC))));
}

TEST(DiskTier, TellsAFileSystemThatIsReallyFull) {
  TemporaryFolder folder;
  if (::mount("none", folder.path().c_str(), "tmpfs", 0, "size=4m") != 0) {
    GTEST_SKIP() << "mounting a small file system: " << std::strerror(errno);
  }
  {
    const std::shared_ptr<Tier> tier = open_disk_tier(folder.path(), 100_MiB);
    EXPECT_THAT(message_of([&] { tier->reserve(64_MiB); }),
                AllOf(HasSubstr("64.0 MiB"), HasSubstr(std::strerror(ENOSPC))));
    tier->reserve(1_MiB);  // what it had taken was given back
    std::vector<std::byte> bytes = noise(1 << 20, 1), found(1 << 20);
    const auto channel = tier->open_channel();
    channel->write(tier->slot(0_B, 1_MiB), bytes.data());
    channel->read(tier->slot(0_B, 1_MiB), found.data());
    EXPECT_EQ(bytes, found);
  }
  ::umount(folder.path().c_str());
}

TEST(DiskTier, ALimitOnFileSizesIsAnErrorAndNoSignal) {
  TemporaryFolder folder;
  const std::shared_ptr<Tier> tier = open_disk_tier(folder.path(), 100_MiB);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 1 << 20;
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = message_of([&] { tier->reserve(64_MiB); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(message, HasSubstr(std::strerror(EFBIG)));
}

TEST(DiskTier, LeavesNoFileNeitherInUseNorAfterBeingKilled) {
  TemporaryFolder folder;
  {
    const std::shared_ptr<Tier> tier = open_disk_tier(folder.path(), 1_MiB);
    tier->reserve(1_MiB);
    EXPECT_EQ(folder.files(), 0u);
  }
  const pid_t child = ::fork();
  if (child == 0) {
    const std::shared_ptr<Tier> tier = open_disk_tier(folder.path(), 1_MiB);
    tier->reserve(1_MiB);
    ::raise(SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(folder.files(), 0u);
}

TEST(DiskTier, IsNotTouchedByAProcessThatIsForked) {
  TemporaryFolder folder;
  const std::shared_ptr<Tier> tier = open_disk_tier(folder.path(), 1_MiB);
  tier->reserve(1_MiB);
  const auto channel = tier->open_channel();
  Slot& slot = tier->slot({0}, {100'000});
  const std::vector<std::byte> there = noise(100'000, 1), other = noise(100'000, 2);
  std::vector<std::byte> here(100'000);
  channel->write(slot, there.data());
  const pid_t child = ::fork();
  if (child == 0) {
    int refused = 0;
    for (const auto& access : {std::function<void()>([&] { channel->read(slot, here.data()); }),
                               std::function<void()>([&] { channel->write(slot, other.data()); })}) {
      try {
        access();
      } catch (const Error& error) {
        refused += std::string(error.what()).find("A forked process has none of its own") != std::string::npos ? 1 : 0;
      }
    }
    ::_exit(refused);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 2);
  channel->read(slot, here.data());
  EXPECT_EQ(here, there);
}

TEST(DiskTier, RemovesWhatDeadProcessesLeftAndNothingElse) {
  TemporaryFolder folder;
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ::waitpid(dead, nullptr, 0);
  auto touch = [&](const std::string& name) { std::ofstream(folder.path() / name) << "x"; };
  touch(fmt::format("plimsoll-{}-0000.spill", dead));
  touch(fmt::format("plimsoll-{}-0001.spill", dead));
  touch(fmt::format("plimsoll-{}-0000.spill", ::getpid()));
  touch(fmt::format("plimsoll-{}.spill", dead));
  touch(fmt::format("my-plimsoll-{}-0000.spill", dead));
  touch("plimsoll-notes.spill");
  const int held = ::open((folder.path() / fmt::format("plimsoll-{}-0001.spill", dead)).c_str(), O_RDWR);
  ::flock(held, LOCK_EX);
  open_disk_tier(folder.path(), 1_MiB);
  ::close(held);
  EXPECT_FALSE(fs::exists(folder.path() / fmt::format("plimsoll-{}-0000.spill", dead)));
  EXPECT_TRUE(fs::exists(folder.path() / fmt::format("plimsoll-{}-0001.spill", dead))) << "somebody holds its lock";
  EXPECT_EQ(folder.files(), 5u);
}

}  // namespace
}  // namespace plimsoll
