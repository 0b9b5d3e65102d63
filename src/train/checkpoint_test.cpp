#include "plimsoll/checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/files.h"
#include "base/sha256.h"
#include "plimsoll/error.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary_folder.h"
#include "train/safetensors.h"

namespace plimsoll {
namespace {

using testing::error_text;

namespace fs = std::filesystem;

class Checkpoints : public ::testing::Test {
 protected:
  static TrainingState example_state() {
    TrainingState state{.step = 123, .epoch = 4, .batch_in_epoch = 5, .seed = UINT64_MAX, .model = "resnet:1-2-3-4"};
    state.data = "digits";
    state.batch = 32;
    state.optimizer = {.name = "adam", .momentum = 0.1, .nesterov = true, .weight_decay = 1e-4, .beta1 = 0.8};
    state.learning_rate = 0.1;
    state.schedule = "cosine";
    state.total_steps = 1000;
    state.policy = "liveness";
    state.budget = Bytes{INT64_MAX};
    state.exact = true;
    state.threads = 2;
    state.kernels = {{"conv1/forward", "jit:avx512_core"}, {"a \"quoted\" name\n", "ref"}};
    state.state_layouts = {{"conv1.weight", "ABcd16b16a"}};
    state.settings = {
        .image_size = 40, .augment = false, .inter_op = 0, .host_memory = Bytes{123456}, .peer = "cuda:1"};
    state.settings.strategies = strategies_named("1,3");
    return state;
  }
  // A large tensor, so that it is written in several pieces, beside small ones of every dtype.
  static std::vector<CheckpointTensor> example_tensors() {
    return {{.name = "fc.weight", .shape = {1500, 1001}},
            {.name = "bn.running_mean", .shape = {3}, .role = Role::statistic},
            {.name = "fc.weight.momentum", .shape = {1500, 1001}, .role = Role::optimizer_state},
            {.name = "count", .shape = {}, .dtype = DType::i64, .role = Role::statistic},
            {.name = "u", .shape = {5}, .dtype = DType::u8, .role = Role::optimizer_state},
            {.name = "d", .shape = {2, 1}, .dtype = DType::f64},
            {.name = "i", .shape = {2}, .dtype = DType::i32}};
  }
  static std::byte value_at(size_t tensor, int64_t place) {
    return static_cast<std::byte>(static_cast<uint64_t>(place) * 2654435761U >> 13 ^ tensor);
  }
  static void fill(size_t tensor, Bytes offset, std::span<std::byte> into) {
    for (size_t i = 0; i < into.size(); ++i) into[i] = value_at(tensor, offset.count + static_cast<int64_t>(i));
  }

  const TemporaryFolder temporary_;
  const fs::path& folder_ = temporary_.path();
  fs::path file_ = folder_ / "model.safetensors";
};

TEST_F(Checkpoints, ComeBackAsTheyWereSaved) {
  const TrainingState state = example_state();
  const auto tensors = example_tensors();
  const std::string hash = save_checkpoint(file_, state, tensors, fill);
  const Checkpoint checkpoint(file_);
  TrainingState back = checkpoint.state();
  EXPECT_EQ(back.weights_sha256, hash);
  back.weights_sha256.clear();
  EXPECT_EQ(to_json(back), to_json(state));
  ASSERT_EQ(checkpoint.tensors().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_EQ(checkpoint.find(tensors[i].name, tensors[i].shape, tensors[i].dtype), i);
    std::vector<std::byte> bytes(tensors[i].bytes().count);
    checkpoint.read(i, {}, bytes);
    std::vector<std::byte> expected(bytes.size());
    fill(i, {}, expected);
    EXPECT_TRUE(bytes == expected) << tensors[i].name;
    std::byte last{};
    checkpoint.read(i, Bytes{static_cast<int64_t>(bytes.size()) - 1}, {&last, 1});
    EXPECT_EQ(last, bytes.back());
  }
  checkpoint.check_contents();
}

TEST_F(Checkpoints, HashTheBytesOfParametersAndStatisticsInTheirOrder) {
  const auto tensors = example_tensors();
  std::string bytes;
  for (size_t i : {0, 1, 3, 5, 6}) {
    std::string part(tensors[i].bytes().count, ' ');
    fill(i, {}, std::as_writable_bytes(std::span(part)));
    bytes += part;
  }
  EXPECT_EQ(save_checkpoint(file_, {}, tensors, fill), sha256_hex(bytes));
  EXPECT_EQ(weights_sha256(tensors, fill), sha256_hex(bytes));
}

TEST_F(Checkpoints, AskForWholeElementsInOrderAndNeverForMuch) {
  int64_t next = 0;
  size_t tensor = 0, largest = 0;
  save_checkpoint(file_, {}, example_tensors(), [&](size_t i, Bytes offset, std::span<std::byte> into) {
    if (i != tensor) next = 0;
    tensor = i;
    EXPECT_EQ(offset.count, next);
    EXPECT_EQ(offset.count % 8, 0);
    next += static_cast<int64_t>(into.size());
    largest = std::max(largest, into.size());
    fill(i, offset, into);
  });
  EXPECT_LE(largest, size_t{4} << 20);
}

TEST_F(Checkpoints, StayWholeWhenSavingFails) {
  save_checkpoint(file_, {.step = 1}, example_tensors(), fill);
  const struct {
    FileOperation operation;
    int nth, error;
    const char* message;
  } cases[] = {{FileOperation::write, 1, ENOSPC, "cannot write: No space left on device"},
               {FileOperation::write, 4, ENOSPC, "cannot write: No space left on device"},
               {FileOperation::sync, 1, EIO, "cannot sync: Input/output error"},
               {FileOperation::rename, 1, EIO, "cannot rename the temporary file: Input/output error"}};
  for (const auto& c : cases) {
    const FileFault fault(c.operation, c.nth, c.error);
    EXPECT_EQ(
        error_text(ErrorCode::device_failure, [&] { save_checkpoint(file_, {.step = 2}, example_tensors(), fill); }),
        file_.string() + ": " + c.message);
    EXPECT_TRUE(fault.struck());
  }
  const Checkpoint old(file_);
  EXPECT_EQ(old.state().step, 1);
  old.check_contents();
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(Checkpoints, StayWholeWhenATensorCannotBeRead) {
  save_checkpoint(file_, {.step = 1}, example_tensors(), fill);
  EXPECT_EQ(error_text(ErrorCode::device_failure,
                       [&] {
                         save_checkpoint(file_, {.step = 2}, example_tensors(),
                                         [](size_t i, Bytes, std::span<std::byte>) {
                                           if (i == 2) throw Error(ErrorCode::device_failure, "the device is gone");
                                         });
                       }),
            "the device is gone");
  EXPECT_EQ(Checkpoint(file_).state().step, 1);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(Checkpoints, AreRefusedWhenCutOffAnywhere) {
  save_checkpoint(file_, example_state(), std::vector<CheckpointTensor>{{.name = "w", .shape = {3}}}, fill);
  const std::string whole = read_file(file_);
  for (size_t size = 0; size < whole.size(); size += size < 20 ? 1 : 97) {
    std::ofstream(file_, std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    const std::string message = error_text(ErrorCode::corrupt_file, [&] { Checkpoint{file_}; });
    EXPECT_TRUE(message.starts_with(file_.string() + ": ")) << size << ": " << message;
    EXPECT_NE(message.find("expected"), std::string::npos) << size << ": " << message;
  }
  std::ofstream(file_, std::ios::binary | std::ios::trunc) << whole << "x";
  EXPECT_EQ(error_text(ErrorCode::corrupt_file, [&] { Checkpoint{file_}; }),
            file_.string() + ": has 13 bytes of data; expected 12, as its header says");
}

TEST_F(Checkpoints, NoticeASingleFlippedBit) {
  save_checkpoint(file_, example_state(), example_tensors(), fill);
  std::string whole = read_file(file_);
  whole[whole.size() - 1000000] ^= 4;
  std::ofstream(file_, std::ios::binary | std::ios::trunc) << whole;
  EXPECT_NE(
      error_text(ErrorCode::corrupt_file, [&] { Checkpoint(file_).check_contents(); }).find("the file was damaged"),
      std::string::npos);
}

TEST_F(Checkpoints, NoticeEveryFlippedBitOfTheHeader) {
  const std::vector<CheckpointTensor> tensors{{.name = "w", .shape = {600}}, {.name = "s", .shape = {2}}};
  save_checkpoint(file_, example_state(), tensors, fill);
  const std::string whole = read_file(file_);
  uint64_t length = 0;
  std::memcpy(&length, whole.data(), sizeof length);
  const size_t header = 8 + static_cast<size_t>(length);
  std::fstream stream(file_, std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&](size_t at, char byte) {
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(byte).flush();
  };
  const auto open = [&] {
    const Checkpoint checkpoint(file_);
    checkpoint.state();
    checkpoint.check_contents();
  };
  open();
  size_t flipped = 0;
  for (size_t at = 0; at < whole.size(); at += at < header ? 1 : 97) {
    for (int bit = 0; bit < 8; ++bit, ++flipped) {
      put(at, static_cast<char>(whole[at] ^ (1 << bit)));
      try {
        open();
        ADD_FAILURE() << "bit " << bit << " of byte " << at << ", near "
                      << whole.substr(at - std::min<size_t>(at, 20), 40);
      } catch (const Error& error) {
        EXPECT_TRUE(std::string(error.what()).starts_with(file_.string() + ": ")) << error.what();
      }
    }
    put(at, whole[at]);
  }
  EXPECT_GT(flipped, 8 * header);
  open();
}

// As version 1 wrote them: without a hash of the header, and with settings as texts.
std::string first_version(const TrainingState& state, std::vector<SafetensorsEntry> entries, const std::string& data) {
  nlohmann::json json = nlohmann::json::parse(to_json(state));
  json["format_version"] = 1;
  json["settings"] = {{"image_size", "48"}};
  return make_safetensors_header(entries, {{"format", "pt"},
                                           {"plimsoll", json.dump()},
                                           {"plimsoll.data_sha256", sha256_hex(data)},
                                           {"plimsoll.weights_sha256", sha256_hex(data)}}) +
         data;
}

TEST_F(Checkpoints, OfTheFirstVersionAreStillRead) {
  const std::vector<SafetensorsEntry> entries{{.name = "w", .dtype = "F32", .shape = {1}}};
  const std::string old = first_version(example_state(), entries, "abcd");
  write_file_atomically(file_, old);
  const Checkpoint checkpoint(file_);
  checkpoint.check_contents();
  EXPECT_EQ(checkpoint.state().step, 123);
  EXPECT_EQ(checkpoint.state().settings.image_size, 48);
  EXPECT_EQ(checkpoint.state().weights_sha256, sha256_hex("abcd"));
}

TEST_F(Checkpoints, RefuseNamesThatNothingReadsAndNewFilesWithoutTheirHash) {
  save_checkpoint(file_, example_state(), std::vector<CheckpointTensor>{{.name = "w", .shape = {3}}}, fill);
  const std::string whole = read_file(file_);
  const auto message = [&](const std::string& from, const std::string& to) {
    std::string changed = whole;
    changed.replace(changed.find(from), from.size(), to);
    write_file_atomically(file_, changed);
    return error_text(ErrorCode::corrupt_file, [&] { Checkpoint{file_}; });
  };
  EXPECT_EQ(
      message("plimsoll.header_sha256", "plimsoll.heater_sha256"),
      file_.string() +
          ": header: 'plimsoll.heater_sha256' is not known in a checkpoint of Plimsoll: the file was damaged or edited");
  EXPECT_EQ(
      message("\"plimsoll\":", "\"plimsolm\":"),
      file_.string() + ": header: 'plimsolm' is not known in a checkpoint of Plimsoll: the file was damaged or edited");
  EXPECT_TRUE(message("\\\"step\\\":123", "\\\"step\\\":124")
                  .starts_with(file_.string() + ": header: is not what its SHA-256 says; expected "));
  std::vector<SafetensorsEntry> entries{{.name = "w", .dtype = "F32", .shape = {1}}};
  write_file_atomically(file_, make_safetensors_header(entries, {{"plimsoll", to_json(example_state())},
                                                                 {"plimsoll.data_sha256", sha256_hex("abcd")},
                                                                 {"plimsoll.weights_sha256", sha256_hex("abcd")}}) +
                                   "abcd");
  EXPECT_EQ(error_text(ErrorCode::corrupt_file, [&] { Checkpoint{file_}; }),
            file_.string() + ": header: lacks 'plimsoll.header_sha256': the file was damaged");
}

TEST_F(Checkpoints, SayWhichTensorIsMissingOrAnother) {
  save_checkpoint(file_, {}, example_tensors(), fill);
  const Checkpoint checkpoint(file_);
  EXPECT_EQ(error_text(ErrorCode::corrupt_file, [&] { checkpoint.find("fc2.weight", {3}, DType::f32); }),
            file_.string() + ": lacks the tensor 'fc2.weight'");
  EXPECT_EQ(error_text(ErrorCode::corrupt_file, [&] { checkpoint.find("u", {5}, DType::f32); }),
            file_.string() + ": tensor 'u' is u8 5; expected f32 5");
}

TEST_F(Checkpoints, OfAnotherProgramHaveTensorsButNoState) {
  std::vector<SafetensorsEntry> entries{{.name = "w", .dtype = "F32", .shape = {1}}};
  write_file_atomically(file_, make_safetensors_header(entries, {{"format", "pt"}}) + "abcd");
  const Checkpoint checkpoint(file_);
  EXPECT_EQ(checkpoint.tensors().size(), 1U);
  checkpoint.check_contents();
  EXPECT_EQ(error_text(ErrorCode::invalid_input, [&] { checkpoint.state(); }),
            file_.string() + ": has tensors but no training state; it is not a checkpoint of Plimsoll");
  EXPECT_EQ(error_text(ErrorCode::invalid_input, [&] { Checkpoint(folder_ / "absent"); }),
            (folder_ / "absent").string() + ": cannot open for reading: No such file or directory");
}

std::string header_error(const std::string& json, int64_t data_bytes = 4) {
  return error_text(ErrorCode::corrupt_file, [&] { parse_safetensors_header(json, data_bytes, "f"); });
}

TEST(Safetensors, NameWhatIsWrongInAHeader) {
  const std::string w = R"("w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_EQ(parse_safetensors_header("{" + w + "}  ", 4, "f").entries.size(), 1U);
  const struct {
    std::string json, message;
  } cases[] = {
      {"[]", "f: header: is a list; expected an object"},
      {"7", "f: header: is a number; expected an object"},
      {"{" + w + "," + w + "}", "f: header: 'w' comes twice"},
      {R"({"w":7})", "f: header: 'w' is a number; expected an object"},
      {R"({"w":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", "f: header: 'w' has the unknown dtype 'F33'"},
      {R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
       "f: header: 'w' has a negative number in shape; expected whole numbers"},
      {R"({"w":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})",
       "f: header: 'w' has a number that is not whole in shape; expected whole numbers"},
      {R"({"w":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})",
       "f: header: 'w' has a list in shape; expected whole numbers"},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
       "f: header: 'w' has bytes [0, 4); expected 8 bytes for F32 2"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})",
       "f: header: 'w' has bytes [4, 0); expected 4 bytes for F32 1"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", "f: header: 'w' has more than 2 data_offsets"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "f: header: 'w' has 1 data_offsets; expected 2"},
      {R"({"w":{"dtype":"F32","shape":[281474976710656,281474976710656],"data_offsets":[0,4]}})",
       "f: header: 'w' is too large: 281474976710656x281474976710656"},
      {R"({"w":{"dtype":"F32","shape":[1]}})", "f: header: 'w' lacks data_offsets"},
      {R"({"w":{"dtype":"F32","dtype":"F32"}})", "f: header: 'w' has the field 'dtype' twice"},
      {R"({"w":{"dtype":"F32","stride":[1]}})",
       "f: header: 'w' has the field 'stride'; expected dtype, shape and data_offsets"},
      {R"({"__metadata__":{"a":1},)" + w + "}", "f: header: '__metadata__' has a number for 'a'; expected a text"},
      {R"({"__metadata__":{"a":"1","a":"2"},)" + w + "}", "f: header: '__metadata__' has the key 'a' twice"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       "f: header: 'b' begins at byte 2 of the data; expected 1, where a ends (hole)"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       "f: header: 'b' begins at byte 2 of the data; expected 3, where a ends (overlap)"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",
       "f: header: 'a' begins at byte 1 of the data; expected 0, where the header ends (hole)"},
      {"{}", "f: has 4 bytes of data; expected 0, as its header says"},
  };
  for (const auto& c : cases) EXPECT_EQ(header_error(c.json), c.message);
  EXPECT_TRUE(header_error("{" + w).starts_with("f: header: not valid JSON at byte 61: ")) << header_error("{" + w);
  EXPECT_TRUE(header_error("{" + w + "}}").starts_with("f: header: not valid JSON at byte"))
      << header_error("{" + w + "}}");
  EXPECT_NE(header_error("{\"\xff\":{}}").find("UTF-8"), std::string::npos) << header_error("{\"\xff\":{}}");
}

TEST_F(Checkpoints, ReadAFileOfTheReferenceImplementation) {
  // safetensors.numpy.save({"w": arange(6, float32).reshape(2, 3), "n": int64(7)}, {"format": "pt"})
  using namespace std::string_literals;
  write_file_atomically(file_,
                        "\x90\0\0\0\0\0\0\0"s
                        R"({"__metadata__":{"format":"pt"},"n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"s
                        R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]}}    )"s
                        "\7\0\0\0\0\0\0\0\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@"s);
  const Checkpoint checkpoint(file_);
  int64_t n = 0;
  float w[6] = {};
  checkpoint.read(checkpoint.find("n", {}, DType::i64), {}, std::as_writable_bytes(std::span(&n, 1)));
  checkpoint.read(checkpoint.find("w", {2, 3}, DType::f32), {}, std::as_writable_bytes(std::span(w)));
  EXPECT_EQ(n, 7);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(w[i], static_cast<float>(i));
}

TEST(Safetensors, SurviveDeepNesting) {
  std::string json = R"({"w":)" + std::string(1000000, '[');
  EXPECT_EQ(header_error(json), "f: header: 'w' is a list; expected an object");
}

TEST(Safetensors, HaveAHeaderThatEndsOnAMultipleOf64) {
  for (int i = 0; i < 70; ++i) {
    std::vector<SafetensorsEntry> entries{{.name = std::string(i + 1, 'n'), .dtype = "F32", .shape = {2}}};
    const std::string header = make_safetensors_header(entries, {});
    EXPECT_EQ(header.size() % 64, 0U);
    EXPECT_EQ(parse_safetensors_header(std::string_view(header).substr(8), 8, "f").entries[0].name, entries[0].name);
  }
}

TEST(Safetensors, RefuseToWriteANameTwiceOrOneThatIsNotText) {
  std::vector<SafetensorsEntry> twice{{.name = "w", .dtype = "F32"}, {.name = "w", .dtype = "F32"}};
  EXPECT_EQ(error_text(ErrorCode::invalid_input, [&] { make_safetensors_header(twice, {}); }),
            "a checkpoint cannot hold 'w' twice");
  std::vector<SafetensorsEntry> bad{{.name = "\xff", .dtype = "F32"}};
  EXPECT_EQ(error_text(ErrorCode::invalid_input, [&] { make_safetensors_header(bad, {}); }),
            "a checkpoint's names and texts must be UTF-8");
}

TEST(TrainingState, NamesTheFieldThatIsWrong) {
  const auto message = [](const std::string& from, const std::string& to, ErrorCode code) {
    std::string json = to_json(TrainingState{});
    const size_t at = json.find(from);
    EXPECT_NE(at, std::string::npos) << from << " in " << json;
    json.replace(at, from.size(), to);
    return error_text(code, [&] { training_state_from_json(json); });
  };
  EXPECT_EQ(message("\"step\":0", "\"step\":\"0\"", ErrorCode::corrupt_file),
            "training state: field 'step': expected a whole number, not negative");
  EXPECT_EQ(message("\"step\":0", "\"stop\":0", ErrorCode::corrupt_file), "training state: field 'stop' is not known");
  EXPECT_EQ(message("\"step\":0,", "", ErrorCode::corrupt_file), "training state: field 'step' is missing");
  EXPECT_EQ(message("\"beta1\":", "\"beta3\":", ErrorCode::corrupt_file),
            "training state: field 'optimizer.beta3' is not known");
  EXPECT_EQ(message("\"beta1\":0.9", "\"beta1\":null", ErrorCode::corrupt_file),
            "training state: field 'optimizer.beta1': expected a number");
  EXPECT_EQ(message("\"beta1\":0.9", "\"beta1\":1e999", ErrorCode::corrupt_file),
            "training state: not valid JSON: number overflow parsing '1e999'");
  EXPECT_EQ(message("\"learning_rate\":0.0", "\"learning_rate\":-0.1", ErrorCode::corrupt_file),
            "training state: field 'learning_rate': expected a number from 0 to 1000000000, not -0.1");
  EXPECT_EQ(message("\"momentum\":0.9", "\"momentum\":7", ErrorCode::corrupt_file),
            "training state: field 'optimizer.momentum': expected a number from 0 to 1, not 7");
  for (const char* field : {"step", "epoch", "batch_in_epoch", "total_steps"}) {
    EXPECT_EQ(
        message(fmt::format("\"{}\":0", field), fmt::format("\"{}\":4611686018427387904", field),
                ErrorCode::corrupt_file),
        fmt::format("training state: field '{}': expected a whole number up to 1099511627776, not 4611686018427387904",
                    field));
  }
  EXPECT_EQ(message("\"batch\":0", "\"batch\":20000000", ErrorCode::corrupt_file),
            "training state: field 'batch': expected a whole number up to 16777216, not 20000000");
  EXPECT_EQ(message("\"kernels\":{}", "\"kernels\":{\"conv\":1}", ErrorCode::corrupt_file),
            "training state: field 'kernels.conv': expected a text");
  EXPECT_EQ(message("\"format_version\":3", "\"format_version\":4", ErrorCode::unsupported),
            "training state: has format version 4; this program reads up to 3");
  EXPECT_EQ(error_text(ErrorCode::corrupt_file, [] { training_state_from_json("[]"); }),
            "training state: expected an object");
  EXPECT_TRUE(error_text(ErrorCode::corrupt_file, [] {
                training_state_from_json("{");
              }).starts_with("training state: not valid JSON: parse error at line 1, column 2"));
}

}  // namespace
}  // namespace plimsoll
