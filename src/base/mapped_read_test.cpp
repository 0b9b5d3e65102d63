#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include "base/files.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class MappedRead : public ::testing::Test {
 protected:
  // Byte i is i % 251.
  fs::path numbers(int64_t count) const {
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 251);
    const fs::path file = folder_.path() / "numbers";
    write_file_atomically(file, bytes);
    return file;
  }
  static std::string read(const InputFile& file, int64_t offset, size_t count) {
    std::string bytes(count, '?');
    file.read_mapped(offset, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }
  static std::string refusal(const InputFile& file, int64_t offset, size_t count) {
    try {
      read(file, offset, count);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_file);
      return error.what();
    }
    return "no error";
  }
  TemporaryFolder folder_;
};

int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST_F(MappedRead, GivesTheBytesOfAnyPlace) {
  const InputFile file(numbers(20'000));
  for (const int64_t offset : {0, 1, 4095, 4096, 4097, 12'000}) {
    const std::string bytes = read(file, offset, 8000);
    for (size_t i = 0; i < bytes.size(); ++i) {
      ASSERT_EQ(static_cast<uint8_t>(bytes[i]), (static_cast<size_t>(offset) + i) % 251) << offset << " " << i;
    }
  }
  EXPECT_EQ(read(file, 20'000, 0), "");
  EXPECT_THAT(refusal(file, 19'999, 2), HasSubstr("numbers: ends at byte 20000; expected 2 bytes at byte 19999"));
}

TEST_F(MappedRead, OfAFileThatWasCutIsAnErrorAndNoSignal) {
  const fs::path path = numbers(20'000);
  const InputFile file(path);
  fs::resize_file(path, 10'000);
  EXPECT_EQ(read(file, 9990, 10).size(), 10U);
  EXPECT_THAT(refusal(file, 9990, 100), HasSubstr("ends at byte 10000"));    // zeros in the last page
  EXPECT_THAT(refusal(file, 16'000, 100), HasSubstr("ends at byte 16000"));  // a page that is gone
  fs::resize_file(path, 0);
  EXPECT_THAT(refusal(file, 0, 20'000), HasSubstr("ends at byte 0"));
  fs::resize_file(path, 20'000);
  EXPECT_EQ(read(file, 16'000, 100), std::string(100, '\0'));  // what is there now
}

TEST_F(MappedRead, OfAFileThatIsCutAgainAndAgainNeverEndsTheProcess) {
  const fs::path path = numbers(1 << 20);
  const InputFile file(path);
  std::atomic<bool> is_done = false;
  std::thread cutter([&] {
    for (int i = 0; i < 300; ++i) fs::resize_file(path, i % 2 == 0 ? 0 : 1 << 20);
    is_done = true;
  });
  int64_t whole = 0, refused = 0;
  std::string bytes(1 << 18, '?');
  while (!is_done) {
    try {
      file.read_mapped(1000, std::as_writable_bytes(std::span(bytes)));
      ++whole;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_file);
      ++refused;
    }
  }
  cutter.join();
  EXPECT_GT(whole + refused, 0);
}

TEST_F(MappedRead, TakesNoMemory) {
  const fs::path path = folder_.path() / "large";
  write_file_atomically(path, std::string(64 << 20, 'x'));
  const InputFile file(path);
  std::string bytes(1 << 16, '?');
  file.read_mapped(0, std::as_writable_bytes(std::span(bytes)));
  const int64_t before = resident_bytes();
  for (int64_t at = 0; at < file.size(); at += 1 << 16) file.read_mapped(at, std::as_writable_bytes(std::span(bytes)));
  EXPECT_LT(resident_bytes() - before, 8 << 20);
}

using MappedReadDeathTest = MappedRead;
TEST_F(MappedReadDeathTest, LeavesEveryOtherBusErrorAsItWas) {
  const fs::path path = numbers(100);
  read(InputFile(path), 0, 100);
  const int fd = ::open(path.c_str(), O_RDONLY);
  const auto* mapped = static_cast<const volatile char*>(mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd, 0));
  EXPECT_EQ(mapped[1], 1);
  EXPECT_DEATH((void)mapped[5000], "");
  EXPECT_DEATH(raise(SIGBUS), "");
  ::close(fd);
}

}  // namespace
}  // namespace plimsoll
