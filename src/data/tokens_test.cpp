// Texts: files of token ids and of bytes, windows and what is masked in them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <set>

#include "base/files.h"
#include "data/sources.h"
#include "plimsoll/error.h"
#include "tests/support/temporary_folder.h"
#include "train/process_memory.h"

namespace plimsoll {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Action>
std::string said(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

class Tokens : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) const {
    write_file_atomically(folder_.path() / name, bytes);
    return (folder_.path() / name).string();
  }
  // Ids 0, 1, 2, ... of so many bytes.
  static std::string counted(int count, int id_bytes) {
    std::string bytes;
    for (int i = 0; i < count; ++i) {
      for (int b = 0; b < id_bytes; ++b) bytes += static_cast<char>(b < 4 ? i >> 8 * b : 0);
    }
    return bytes;
  }
  static std::vector<int32_t> window(const DataSet& data, Split split, int64_t index) {
    std::vector<int32_t> ids(static_cast<size_t>(data.info().windows.read()));
    data.read_tokens(split, index, ids);
    return ids;
  }
  static DataOptions causal(int64_t context, int64_t classes = 0) {
    return {.classes = classes, .windows = {.context = context, .mask = {}}};
  }
  std::string refusal(const std::string& spec, const DataOptions& options) const {
    return said([&] { open_data(spec, options); });
  }
  TemporaryFolder folder_;
};

TEST_F(Tokens, OfTwoAndFourBytesAreReadInWindowsThatShareATokenWithTheNext) {
  for (const auto& [name, size] : {std::pair("a.bin", 2), std::pair("a.u16", 2), std::pair("a.u32", 4)}) {
    const auto data = open_data("tokens:" + write(name, counted(400, size)), causal(8, 1000));
    EXPECT_EQ(data->info().classes, 1000);
    EXPECT_EQ(data->info().train_count, (360 - 1) / 8);
    EXPECT_EQ(data->info().test_count, (40 - 1) / 8);
    EXPECT_THAT(window(*data, Split::train, 1), ElementsAre(8, 9, 10, 11, 12, 13, 14, 15, 16));
    EXPECT_EQ(window(*data, Split::test, 0)[0], 360);  // the last tenth
    EXPECT_EQ(window(*data, Split::train, data->info().train_count - 1).back(), 352);
  }
}

TEST_F(Tokens, OfAFolderHaveAFileForTrainingAndOneForTesting) {
  write("train.bin", counted(100, 2));
  write("val.bin", counted(30, 2));
  const auto data = open_data("tokens:" + folder_.path().string(), causal(10, 100));
  EXPECT_EQ(data->info().train_count, 9);
  EXPECT_EQ(data->info().test_count, 2);
  EXPECT_THAT(refusal("bytes:" + folder_.path().string() + "/none", causal(4)), HasSubstr("there is no '"));
  std::filesystem::remove(folder_.path() / "val.bin");
  EXPECT_THAT(refusal("tokens:" + folder_.path().string(), causal(10, 100)),
              HasSubstr("there is no val.bin or val.u16 or val.u32 in "));
}

TEST_F(Tokens, OfBytesHaveAVocabularyOf256AndOneMoreForAMask) {
  const std::string spec = "bytes:" + write("text", std::string(1000, '\xFF'));
  EXPECT_EQ(open_data(spec, causal(8))->info().classes, 256);
  EXPECT_EQ(window(*open_data(spec, causal(8)), Split::train, 0)[0], 255);
  EXPECT_EQ(open_data(spec, causal(8, 500))->info().classes, 500);
  const auto masked = open_data(spec, {.windows = {.context = 8, .mask = 103}});
  EXPECT_EQ(masked->info().classes, 257);
  EXPECT_EQ(masked->info().windows.mask, 256);
}

TEST_F(Tokens, ThatAreNotInTheVocabularyAreRefusedWithTheirPlace) {
  const auto data = open_data("tokens:" + write("a.bin", counted(400, 2)), causal(8, 20));
  EXPECT_NO_THROW(window(*data, Split::train, 1));
  EXPECT_THAT(said([&] { window(*data, Split::train, 2); }),
              HasSubstr("a.bin: token 20 is 20, but the vocabulary has 20"));
  // An id of four bytes that is no positive i32.
  const auto large = open_data("tokens:" + write("a.u32", std::string(400, '\xFF')), causal(8, 1 << 24));
  EXPECT_THAT(said([&] { window(*large, Split::train, 0); }), HasSubstr("token 0 is 4294967295"));
}

TEST_F(Tokens, OfFilesThatCannotBeAreRefused) {
  EXPECT_THAT(refusal("tokens:" + write("empty.bin", ""), causal(8, 9)), HasSubstr("empty.bin: is empty"));
  EXPECT_THAT(refusal("tokens:" + write("odd.bin", "abc"), causal(8, 9)),
              HasSubstr("odd.bin: has 3 bytes; expected a multiple of 2, the bytes of a token id"));
  EXPECT_THAT(refusal("tokens:" + write("odd.u32", "abcdef"), causal(8, 9)), HasSubstr("expected a multiple of 4"));
  EXPECT_THAT(
      refusal("bytes:" + write("short", "abc"), causal(8)),
      HasSubstr("has 3 tokens before its last tenth, which is for testing; a window of this network has 9: lower its "
                "context, or give more text"));
  EXPECT_THAT(refusal("bytes", causal(8)), HasSubstr("data 'bytes' needs a file: --data bytes:FILE"));
  EXPECT_THAT(refusal("bytes:" + write("images", "abc"), {}), HasSubstr("which are for a language model"));
}

TEST_F(Tokens, OfAFileThatIsCutMeanwhileAreAnError) {
  const std::string file = write("a.bin", counted(400, 2));
  const auto data = open_data("tokens:" + file, causal(8, 1000));
  std::filesystem::resize_file(file, 100);
  EXPECT_NO_THROW(window(*data, Split::train, 0));
  EXPECT_THAT(said([&] { window(*data, Split::train, 20); }), HasSubstr("a.bin"));
}

// The file is sparse: it takes no room on the disk either.
TEST_F(Tokens, OfAHugeFileAreOpenedAtOnceAndTakeNoMemory) {
  const std::string file = write("huge.u32", counted(1000, 4));
  std::error_code error;
  std::filesystem::resize_file(file, int64_t{100} << 30, error);
  if (error) GTEST_SKIP() << "no file of 100 GiB here: " << error.message();
  const auto data = open_data("tokens:" + file, causal(512, 500));
  EXPECT_EQ(data->info().train_count, ((int64_t{25} << 30) - (int64_t{25} << 30) / 10 - 1) / 512);
  EXPECT_THAT(window(*data, Split::train, 5'000'000), Each(0));
  EXPECT_THAT(said([&] { window(*data, Split::train, 0); }), HasSubstr("token 500 is 500, but the vocabulary has 500"));
  EXPECT_EQ(data_bytes(*data), Bytes{0});
  Loader loader(data, {.batch = 4, .seed = 3});
  EXPECT_THAT(loader.next().ids, Each(0));
}

TEST_F(Tokens, OfTheBundledTextAreMiltons) {
  const auto data = open_data("text", causal(8));
  const std::vector<int32_t> first = window(*data, Split::train, 0);
  EXPECT_EQ(std::string(first.begin(), first.end()), "Book I\n\n\n");
  EXPECT_GT(data->info().train_count, 50'000);
}

TEST_F(Tokens, ThatAreGeneratedAreInTheVocabularyAndAlwaysTheSame) {
  const auto data = open_data("synthetic:50", causal(16, 30));
  EXPECT_EQ(data->info().train_count, 50);
  for (int64_t i = 0; i < 50; ++i) {
    for (int32_t id : window(*data, Split::train, i)) EXPECT_TRUE(id >= 0 && id < 30);
  }
  EXPECT_EQ(window(*data, Split::test, 3), window(*open_data("synthetic:50", causal(16, 30)), Split::test, 3));
  EXPECT_NE(window(*data, Split::train, 3), window(*data, Split::train, 4));
}

TEST(LabelWindow, GivesEveryTokenTheNextOne) {
  std::vector<int32_t> ids(3), labels(3);
  label_window(std::vector<int32_t>{5, 6, 7, 8}, {.context = 3, .mask = {}}, 10, {}, -1, ids, labels);
  EXPECT_THAT(ids, ElementsAre(5, 6, 7));
  EXPECT_THAT(labels, ElementsAre(6, 7, 8));
}

TEST(LabelWindow, MasksFifteenPercentOfEveryWindowByItsKey) {
  constexpr int kContext = 100, kWindows = 400;
  std::vector<int32_t> window(kContext);
  std::iota(window.begin(), window.end(), 1000);
  int hidden = 0, kept = 0;
  std::set<std::vector<int32_t>> seen;
  for (int sample = 0; sample < kWindows; ++sample) {
    std::vector<int32_t> ids(kContext), labels(kContext), again_ids(kContext), again(kContext);
    label_window(window, {.context = kContext, .mask = 3}, 2000, {1, 2, sample}, -1, ids, labels);
    label_window(window, {.context = kContext, .mask = 3}, 2000, {1, 2, sample}, -1, again_ids, again);
    EXPECT_EQ(ids, again_ids);
    EXPECT_EQ(labels, again);
    int masked = 0;
    for (size_t i = 0; i < kContext; ++i) {
      if (labels[i] == -1) {
        EXPECT_EQ(ids[i], window[i]);
        continue;
      }
      ++masked;
      EXPECT_EQ(labels[i], window[i]);
      hidden += ids[i] == 3 ? 1 : 0;
      kept += ids[i] == window[i] ? 1 : 0;
    }
    EXPECT_EQ(masked, 15);
    seen.insert(labels);
  }
  EXPECT_EQ(seen.size(), kWindows);
  EXPECT_NEAR(hidden / (15.0 * kWindows), 0.8, 0.02);
  EXPECT_NEAR(kept / (15.0 * kWindows), 0.1, 0.02);
}

// The ranks' parts together are what one process has; and a loader that begins in the middle goes on alike.
TEST_F(Tokens, OfTwoPartsAreThoseOfOneLoader) {
  const auto data = open_data("text", {.windows = {.context = 16, .mask = 103}});
  Loader whole(data, {.batch = 4, .seed = 5});
  Loader first(data, {.batch = 2, .part = 0, .parts = 2, .seed = 5}),
      second(data, {.batch = 2, .part = 1, .parts = 2, .seed = 5});
  Loader later(data, {.batch = 4, .seed = 5, .first_batch = 2, .threads = 2});
  for (int i = 0; i < 3; ++i) {
    const Batch& all = whole.next();
    std::vector<int32_t> ids, labels;
    for (Loader* part : {&first, &second}) {
      const Batch& batch = part->next();
      EXPECT_TRUE(batch.data.empty());
      ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
      labels.insert(labels.end(), batch.labels.begin(), batch.labels.end());
    }
    EXPECT_EQ(ids, std::vector<int32_t>(all.ids.begin(), all.ids.end()));
    EXPECT_EQ(labels, std::vector<int32_t>(all.labels.begin(), all.labels.end()));
    if (i < 2) continue;
    const Batch& same = later.next();
    EXPECT_EQ(ids, std::vector<int32_t>(same.ids.begin(), same.ids.end()));
    EXPECT_EQ(labels, std::vector<int32_t>(same.labels.begin(), same.labels.end()));
  }
}

TEST_F(Tokens, ThatFillUpTheLastBatchOfAnEvaluationCountNothing) {
  const auto data = open_data("bytes:" + write("text", std::string(500, 'a')), causal(8));
  ASSERT_EQ(data->info().test_count, 6);
  Loader loader(data, {.split = Split::test, .batch = 4, .padding_label = -1});
  loader.next();
  const Batch& last = loader.next();
  EXPECT_EQ(last.count, 2);
  EXPECT_EQ(last.labels[15], 'a');
  EXPECT_EQ(last.labels[16], -1);
  EXPECT_EQ(last.labels[31], -1);
}

}  // namespace
}  // namespace plimsoll
