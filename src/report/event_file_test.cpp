#include "report/event_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "base/files.h"
#include "report/epoch_log.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

// RFC 3720, B.4, and the catalogue's check value.
TEST(Crc32c, GivesTheKnownValues) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c(""), 0U);
}

// A reader of its own, as protobuf's documentation says; of what is not expected it makes a failure.
struct ReadEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string version;
  std::map<std::string, float> scalars;
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  bool empty() const { return text_.empty(); }
  std::string_view take(size_t count) {
    if (count > text_.size()) throw std::runtime_error("cut off");
    const std::string_view result = text_.substr(0, count);
    text_.remove_prefix(count);
    return result;
  }
  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= uint64_t{byte & 127U} << shift;
      if (byte < 128) return value;
    }
  }

 private:
  std::string_view text_;
};

ReadEvent read_event(std::string_view bytes) {
  ReadEvent event;
  for (Reader in(bytes); !in.empty();) {
    switch (in.varint()) {
      case 1 << 3 | 1: event.wall_time = in.number<double>(); break;
      case 2 << 3 | 0: event.step = static_cast<int64_t>(in.varint()); break;
      case 3 << 3 | 2: event.version = in.take(in.varint()); break;
      case 5 << 3 | 2:
        for (Reader summary(in.take(in.varint())); !summary.empty();) {
          EXPECT_EQ(summary.varint(), 1U << 3 | 2);
          Reader value(summary.take(summary.varint()));
          EXPECT_EQ(value.varint(), 1U << 3 | 2);
          const std::string tag(value.take(value.varint()));
          EXPECT_EQ(value.varint(), 2U << 3 | 5);
          event.scalars[tag] = value.number<float>();
          EXPECT_TRUE(value.empty());
        }
        break;
      default: ADD_FAILURE() << "an unknown field"; return event;
    }
  }
  return event;
}

std::vector<ReadEvent> read_events(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  std::vector<ReadEvent> events;
  for (Reader in(text); !in.empty();) {
    const std::string_view length = in.take(8);
    EXPECT_EQ(in.number<uint32_t>(), masked_crc32c(length));
    const std::string_view bytes = in.take(Reader(length).number<uint64_t>());
    EXPECT_EQ(in.number<uint32_t>(), masked_crc32c(bytes));
    events.push_back(read_event(bytes));
  }
  return events;
}

TEST(EventFile, IsReadBackByAReaderOfItsOwn) {
  const TemporaryFolder folder;
  EventFile file(folder.path() / "new" / "run");
  const Scalar two[] = {{"loss/train", 2.5}, {"lr", 0.05}};
  file.write(1, two);
  const Scalar one[] = {{"loss/eval", std::nan("")}};
  file.write(int64_t{1} << 33, one);
  EXPECT_TRUE(file.path().filename().string().starts_with("events.out.tfevents."));
  const std::vector<ReadEvent> events = read_events(file.path());
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.6e9);
  EXPECT_EQ(events[1].step, 1);
  EXPECT_EQ(events[1].scalars, (std::map<std::string, float>{{"loss/train", 2.5F}, {"lr", 0.05F}}));
  EXPECT_EQ(events[2].step, int64_t{1} << 33);
  EXPECT_TRUE(std::isnan(events[2].scalars.at("loss/eval")));
}

// Encoded by hand from event.proto and summary.proto.
TEST(EventFile, EncodesAnEventAsOthersDo) {
  const Scalar scalar[] = {{"a", 1.0}};
  const std::string expected(
      "\x09\0\0\0\0\0\0\xf8\x3f\x10\x03\x2a\x0a\x0a\x08\x0a\x01"
      "a\x15\0\0\x80\x3f",
      23);
  EXPECT_EQ(scalar_event(1.5, 3, scalar), expected);
}

TEST(EventFile, NamesAFolderThatCannotBeWrittenTo) {
  const TemporaryFolder folder;
  write_file_atomically(folder.path() / "file", "x");
  const std::string text =
      testing::error_text(ErrorCode::invalid_input, [&] { EventFile file(folder.path() / "file"); });
  EXPECT_TRUE(text.starts_with("--tensorboard ")) << text;
}

EpochEvent example_epoch(int64_t number) {
  return {.epoch = number,
          .epochs = 3,
          .step = 10 * number,
          .train_loss = 0.5,
          .train_accuracy = 0.75,
          .test_loss = 0.25,
          .seconds = 1.5,
          .lr = 0.05,
          .images_per_second = 100};
}
constexpr const char* kHeader =
    "epoch,step,train_loss,train_accuracy,eval_loss,eval_accuracy,lr,seconds,images_per_second,gradient_norm\n";

TEST(EpochLog, HasALineAnEpochAndGoesOn) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "log.csv";
  EpochLog(file, false).write(example_epoch(1));
  const std::string first = std::string(kHeader) + "1,10,0.5,0.75,0.25,,0.05,1.500,100,\n";
  EXPECT_EQ(read_file(file), first);
  EpochLog(file, true).write(example_epoch(2));
  EXPECT_EQ(read_file(file), first + "2,20,0.5,0.75,0.25,,0.05,1.500,100,\n");
  EpochLog(file, false);
  EXPECT_EQ(read_file(file), kHeader);
}

TEST(EpochLog, GoesOnAfterALineThatWasCutOff) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "log.csv";
  write_file_atomically(file, std::string(kHeader) + "1,10,0.5");
  EpochLog(file, true).write(example_epoch(2));
  EXPECT_EQ(read_file(file), std::string(kHeader) + "1,10,0.5\n2,20,0.5,0.75,0.25,,0.05,1.500,100,\n");
}

TEST(EpochLog, AddsNothingToAnotherTable) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "log.csv";
  write_file_atomically(file, "epoch,loss\n1,2\n");
  const std::string text = testing::error_text(ErrorCode::invalid_input, [&] { EpochLog(file, true); });
  EXPECT_NE(text.find("has other columns"), std::string::npos) << text;
  EXPECT_EQ(read_file(file), "epoch,loss\n1,2\n");
}

}  // namespace
}  // namespace plimsoll
