#include "base/files.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <fstream>

#include "base/sha256.h"
#include "plimsoll/error.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

// A folder of its own for each test, gone afterwards.
class Files : public ::testing::Test {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_)) found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }
  template <class Action>
  static std::string message_of(Action action, ErrorCode code) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return "no error";
  }

  const TemporaryFolder temporary_;
  const fs::path& folder_ = temporary_.path();
};

std::string gzip(const std::string& content) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST_F(Files, ReadsBackWhatItWroteAndLeavesNothingElse) {
  const fs::path file = folder_ / "a.bin";
  std::string content(3000000, 'x');
  content[1234567] = '\0';
  write_file_atomically(file, "old");
  write_file_atomically(file, content);
  EXPECT_EQ(read_file(file), content);
  EXPECT_EQ(names(), std::vector<std::string>{"a.bin"});
}

TEST_F(Files, NamesFileOperationAndCauseWhenAFileCannotBeRead) {
  const fs::path file = folder_ / "absent";
  EXPECT_EQ(message_of([&] { read_file(file); }, ErrorCode::invalid_input),
            file.string() + ": cannot open for reading: No such file or directory");
  EXPECT_EQ(message_of([&] { read_file(folder_); }, ErrorCode::invalid_input),
            folder_.string() + ": cannot read: Is a directory");
  write_file_atomically(file, std::string(2048, 'x'));
  EXPECT_EQ(message_of([&] { read_file(file, 1_KiB); }, ErrorCode::invalid_input),
            file.string() + ": is 2.00 KiB; at most 1.00 KiB is expected");
}

TEST_F(Files, KeepsTheOldFileWholeWhicheverOperationFails) {
  const fs::path file = folder_ / "state";
  const std::string large(1 << 20, 'n');
  const struct {
    FileOperation operation;
    int nth, error;
    std::string message;
  } cases[] = {
      {FileOperation::open, 1, EACCES, "create: Permission denied"},
      {FileOperation::write, 1, ENOSPC, "write: No space left on device"},
      {FileOperation::write, 2, ENOSPC, "write: No space left on device"},
      {FileOperation::write, 3, EIO, "write: Input/output error"},
      {FileOperation::sync, 1, EIO, "sync: Input/output error"},
      {FileOperation::rename, 1, EACCES, "rename the temporary file: Permission denied"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    write_file_atomically(file, "old");
    const FileFault fault(c.operation, c.nth, c.error);
    const std::string message = message_of(
        [&] {
          AtomicFile output(file);
          output.write("begin");
          output.write(large);
          output.write("end");
          output.commit();
        },
        c.error == EACCES ? ErrorCode::invalid_input : ErrorCode::device_failure);
    EXPECT_TRUE(fault.struck());
    EXPECT_NE(message.find("state"), std::string::npos) << message;
    EXPECT_NE(message.find("cannot " + c.message), std::string::npos) << message;
    EXPECT_EQ(read_file(file), "old");
    EXPECT_EQ(names(), std::vector<std::string>{"state"});
  }
}

TEST_F(Files, SaysWhenOnlyTheFoldersSyncFailedAndKeepsTheNewFile) {
  const fs::path file = folder_ / "state";
  const FileFault fault(FileOperation::sync_folder, 1, EIO);
  EXPECT_EQ(message_of([&] { write_file_atomically(file, "new"); }, ErrorCode::device_failure),
            file.string() + ": cannot sync its folder: Input/output error");
  EXPECT_EQ(read_file(file), "new");
}

TEST_F(Files, ReportsARealFullDisk) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "there is no /dev/full";
  EXPECT_EQ(message_of([&] { write_file_atomically("/dev/full", "x"); }, ErrorCode::invalid_input),
            "/dev/full: cannot write: it is a device, not a regular file");
}

TEST_F(Files, RefusesByNameWhatIsNoRegularFileInsteadOfWaitingForIt) {
  const fs::path pipe = folder_ / "pipe", socket = folder_ / "socket", loop = folder_ / "loop";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(::mknod(socket.c_str(), S_IFSOCK | 0600, 0), 0);
  fs::create_symlink(loop, loop);
  EXPECT_EQ(message_of([&] { read_file(pipe); }, ErrorCode::invalid_input),
            pipe.string() + ": cannot read: it is a pipe, not a regular file");
  EXPECT_EQ(message_of([&] { read_gzip_file("/dev/zero"); }, ErrorCode::invalid_input),
            "/dev/zero: cannot read: it is a device, not a regular file");
  EXPECT_EQ(message_of([&] { read_file(socket); }, ErrorCode::invalid_input),
            socket.string() + ": cannot read: it is a socket, not a regular file");
  EXPECT_EQ(message_of([&] { read_file(loop); }, ErrorCode::invalid_input),
            loop.string() + ": cannot open for reading: Too many levels of symbolic links");
  EXPECT_EQ(message_of([&] { AtomicFile{pipe}; }, ErrorCode::invalid_input),
            pipe.string() + ": cannot write: it is a pipe, not a regular file");
  const fs::path temporary = folder_ / ".a.partial";
  ASSERT_EQ(::mkfifo(temporary.c_str(), 0600), 0);
  EXPECT_EQ(message_of([&] { AtomicFile{folder_ / "a"}; }, ErrorCode::invalid_input),
            temporary.string() + ": cannot write: it is a pipe, not a regular file");
}

TEST_F(Files, SaysWhenANameIsTooLongToBeWritten) {
  const fs::path file = folder_ / std::string(250, 'n');
  EXPECT_EQ(message_of([&] { AtomicFile{file}; }, ErrorCode::invalid_input),
            file.string() + ": cannot write: the name is too long, as it is first written under the name ." +
                std::string(250, 'n') + ".partial; choose a shorter one");
}

TEST_F(Files, LeavesTheOldFileWhenItIsNeverCommitted) {
  const fs::path file = folder_ / "a";
  write_file_atomically(file, "old");
  { AtomicFile(file).write("new"); }
  EXPECT_EQ(read_file(file), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(Files, ReusesTheTemporaryThatAKilledProcessLeft) {
  const fs::path file = folder_ / "a";
  std::ofstream(folder_ / ".a.partial") << "a long rest of an earlier write";
  write_file_atomically(file, "new");
  EXPECT_EQ(read_file(file), "new");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(Files, RefusesASecondWriterOfTheSameFile) {
  const fs::path file = folder_ / "a";
  AtomicFile first(file);
  first.write("first");
  EXPECT_EQ(message_of([&] { AtomicFile second(file); }, ErrorCode::device_failure),
            file.string() + ": cannot write: another process is writing it");
  first.commit();
  EXPECT_EQ(read_file(file), "first");
}

TEST_F(Files, KeepsLinksAndPermissions) {
  write_file_atomically(folder_ / "real", "old");
  fs::permissions(folder_ / "real", fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink(folder_ / "real", folder_ / "link");
  write_file_atomically(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_file(folder_ / "real"), "new");
  EXPECT_EQ(fs::status(folder_ / "real").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(Files, ReplacesWhatWasWrittenBefore) {
  AtomicFile output(folder_ / "a");
  output.write("head ???? tail");
  output.write_at(5, "1234");
  output.write(" more");
  output.commit();
  EXPECT_EQ(read_file(folder_ / "a"), "head 1234 tail more");
}

TEST_F(Files, ReadsInPlacesAndSaysWhereAFileEnds) {
  write_file_atomically(folder_ / "a", "0123456789");
  const InputFile input(folder_ / "a");
  EXPECT_EQ(input.size(), 10);
  std::string four(4, ' ');
  input.read(3, std::as_writable_bytes(std::span(four)));
  EXPECT_EQ(four, "3456");
  EXPECT_EQ(message_of([&] { input.read(8, std::as_writable_bytes(std::span(four))); }, ErrorCode::corrupt_file),
            (folder_ / "a").string() + ": ends at byte 10; expected 4 bytes at byte 8");
}

TEST_F(Files, InflatesGzipAndPassesPlainFilesThrough) {
  std::string content;
  for (int i = 0; i < 100000; ++i) content += std::to_string(i * 7919);
  write_file_atomically(folder_ / "a.gz", gzip(content));
  write_file_atomically(folder_ / "plain", content);
  write_file_atomically(folder_ / "twice.gz", gzip("one ") + gzip("two"));
  EXPECT_EQ(read_gzip_file(folder_ / "a.gz"), content);
  EXPECT_EQ(read_gzip_file(folder_ / "plain"), content);
  EXPECT_EQ(read_gzip_file(folder_ / "twice.gz"), "one two");
}

TEST_F(Files, SaysWhereGzipDataIsDamaged) {
  const std::string whole = gzip(std::string(5000, 'a') + "end");
  EXPECT_EQ(message_of([&] { inflate_gzip(whole.substr(0, whole.size() - 9), "f.gz"); }, ErrorCode::corrupt_file),
            "f.gz: gzip data damaged at byte " + std::to_string(whole.size() - 9) + ": it ends early");
  std::string wrong_sum = whole;
  wrong_sum[whole.size() - 6] ^= 1;
  EXPECT_NE(message_of([&] { inflate_gzip(wrong_sum, "f.gz"); }, ErrorCode::corrupt_file).find("incorrect data check"),
            std::string::npos);
  EXPECT_NE(message_of([&] { inflate_gzip(whole + "trash", "f.gz"); }, ErrorCode::corrupt_file).find("damaged at byte"),
            std::string::npos);
  EXPECT_EQ(message_of([&] { inflate_gzip(whole, "f.gz", 4_KiB); }, ErrorCode::corrupt_file),
            "f.gz: holds more than 4.00 KiB uncompressed");
}

TEST(Sha256, KnowsTheStandardsExamples) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace plimsoll
