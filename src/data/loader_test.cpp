#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <set>

#include "plimsoll/data.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

// Images of one pixel whose value, and label, is the sample's number; sample `bad` cannot be read.
class Numbers : public DataSet {
 public:
  explicit Numbers(int64_t train, int64_t test = 5, int64_t bad = -1) : bad_(bad) {
    info_ = {.name = "numbers",
             .channels = 1,
             .height = 1,
             .width = 1,
             .classes = 100,
             .train_count = train,
             .test_count = test};
    info_.mean = {0};
    info_.stddev = {1};
  }
  const DataInfo& info() const override { return info_; }
  Bytes memory() const override { return {}; }
  void read(Split, int64_t index, int64_t, Image& image) const override {
    ++reads;
    if (index == bad_) throw Error(ErrorCode::corrupt_file, "numbers.bin: sample is damaged");
    image = {.channels = 1,
             .height = 1,
             .width = 1,
             .maximum = 1,
             .pixels = {static_cast<uint8_t>(index)},
             .label = static_cast<int32_t>(index)};
  }
  mutable std::atomic<int> reads = 0;

 private:
  DataInfo info_;
  int64_t bad_;
};

std::vector<int32_t> labels_of(const Batch& batch) { return {batch.labels.begin(), batch.labels.end()}; }

TEST(Loader, GivesEverySampleOnceAnEpochInANewOrder) {
  Loader loader(std::make_shared<Numbers>(23), {.batch = 5, .seed = 7});
  EXPECT_EQ(loader.batches_per_epoch(), 4);
  std::vector<std::vector<int32_t>> epochs(3);
  for (auto& seen : epochs) {
    for (int64_t i = 0; i < 4; ++i) {
      const Batch& batch = loader.next();
      EXPECT_EQ(batch.index, i);
      EXPECT_EQ(batch.epoch, &seen - epochs.data());
      EXPECT_EQ(batch.count, 5);
      for (size_t row = 0; row < 5; ++row) {
        EXPECT_EQ(batch.data[row], static_cast<float>(batch.labels[row]));
        seen.push_back(batch.labels[row]);
      }
    }
    EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), 20U);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST(Loader, FillsTheLastBatchOfAnEvaluationWithLabelMinusOne) {
  Loader loader(std::make_shared<Numbers>(9, 5), {.split = Split::test, .batch = 3});
  EXPECT_EQ(loader.batches_per_epoch(), 2);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(labels_of(loader.next()), (std::vector<int32_t>{0, 1, 2}));
    const Batch& last = loader.next();
    EXPECT_EQ(labels_of(last), (std::vector<int32_t>{3, 4, -1}));
    EXPECT_EQ(last.count, 2);
    EXPECT_EQ(last.data[2], 0);
  }
}

TEST(Loader, BeginsAtAnyBatchWithExactlyWhatAFullRunGivesThere) {
  for (const char* spec : {"digits", "synthetic:200"}) {
    const auto data = open_data(spec);
    LoaderOptions options{.batch = 32, .seed = 3, .augmentation = {.flip = true, .padding = 2, .resized_crop = true}};
    Loader full(data, options);
    std::map<std::pair<int64_t, int64_t>, std::pair<std::vector<float>, std::vector<int32_t>>> expected;
    for (int64_t i = 0; i < 2 * full.batches_per_epoch(); ++i) {
      const Batch& batch = full.next();
      expected[{batch.epoch, batch.index}] = {{batch.data.begin(), batch.data.end()}, labels_of(batch)};
    }
    for (auto [epoch, index] : {std::pair<int64_t, int64_t>{0, 3}, {1, 0}, {1, full.batches_per_epoch() - 1}}) {
      for (int threads : {1, 3}) {
        options.epoch = epoch;
        options.first_batch = index;
        options.threads = threads;
        options.queue = threads;
        Loader part(data, options);
        const Batch& batch = part.next();
        ASSERT_EQ(batch.epoch, epoch);
        ASSERT_EQ(batch.index, index);
        EXPECT_EQ(labels_of(batch), (expected[{epoch, index}].second)) << spec;
        EXPECT_TRUE(std::equal(batch.data.begin(), batch.data.end(), (expected[{epoch, index}].first).begin())) << spec;
      }
    }
  }
}

TEST(Loader, BeginsInTheNextEpochWhenStartedAfterTheLastBatch) {
  Loader loader(std::make_shared<Numbers>(20), {.batch = 5, .epoch = 1, .first_batch = 4});
  const Batch& batch = loader.next();
  EXPECT_EQ(batch.epoch, 2);
  EXPECT_EQ(batch.index, 0);
}

TEST(Loader, ThrowsWhatAWorkerMetAtTheBatchWhereItHappened) {
  for (int threads : {1, 3}) {
    const auto data = std::make_shared<Numbers>(12, 12, 7);
    Loader loader(data, {.split = Split::test, .batch = 4, .threads = threads});
    EXPECT_EQ(labels_of(loader.next()), (std::vector<int32_t>{0, 1, 2, 3}));
    for (int again = 0; again < 2; ++again) {
      try {
        loader.next();
        FAIL() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::corrupt_file);
        EXPECT_STREQ(error.what(), "numbers.bin: sample is damaged");
      }
    }
  }
}

// Samples that are read only while another thread reads as well.
class ReadTogether final : public Numbers {
 public:
  explicit ReadTogether(int64_t train) : Numbers(train) {}
  void read(Split split, int64_t index, int64_t side, Image& image) const override {
    std::unique_lock lock(mutex_);
    ++reading_;
    met_ = met_ || reading_ > 1;
    changed_.notify_all();
    if (!gave_up_) gave_up_ = !changed_.wait_for(lock, std::chrono::seconds(10), [&] { return met_; });
    --reading_;
    lock.unlock();
    Numbers::read(split, index, side, image);
  }
  bool have_met() const { return met_; }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int reading_ = 0;
  mutable bool met_ = false, gave_up_ = false;
};

TEST(Loader, PreparesOneBatchByAllItsThreads) {
  const auto data = std::make_shared<ReadTogether>(20);
  Loader loader(data, {.batch = 20, .threads = 2, .queue = 1});
  std::vector<int32_t> labels = labels_of(loader.next());
  EXPECT_TRUE(data->have_met());
  std::sort(labels.begin(), labels.end());
  std::vector<int32_t> all(20);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(labels, all);
}

TEST(Loader, PreparesNoMoreThanItsQueueAndReusesItsMemory) {
  const auto data = std::make_shared<Numbers>(100);
  Loader loader(data, {.batch = 10, .queue = 2});
  EXPECT_EQ(loader.memory(), Bytes{2 * 10 * 8});
  std::set<const float*> places;
  for (int i = 0; i < 12; ++i) {
    places.insert(loader.next().data.data());
    EXPECT_LE(data->reads, 10 * (i + 2));
  }
  EXPECT_EQ(places.size(), 2U);
}

TEST(Loader, PreparesLargeBatchesOneAtATime) {
  EXPECT_EQ(batches_prepared(4_MiB, 1), 2);
  EXPECT_EQ(batches_prepared(4_MiB + 1_B, 1), 1) << "it is prepared while the step before it runs";
  EXPECT_EQ(batches_prepared(4_MiB + 1_B, 2), 2) << "so that the threads go on while one waits";
  EXPECT_EQ(batches_prepared(32_MiB + 1_B, 2), 1);
  const auto data = std::make_shared<Numbers>(4'000'000);
  EXPECT_EQ(Loader(data, {.batch = 1'000'000}).memory(), Bytes{2 * 8'000'000})
      << "4 bytes a sample, and 4 of its label";
  EXPECT_EQ(Loader(data, {.batch = 1'100'000}).memory(), Bytes{8 * 1'100'000});
}

// So that a device may pin them: memory is pinned by whole pages, and no page twice.
TEST(Loader, PreparesBatchesInPagesOfTheirOwn) {
  Loader loader(std::make_shared<Numbers>(100), {.batch = 10, .queue = 2});
  const std::span<std::byte> buffer = loader.buffer();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0u);
  EXPECT_EQ(buffer.size() % 4096, 0u);
  for (int i = 0; i < 4; ++i) {
    const Batch& batch = loader.next();
    for (const auto part : {std::as_bytes(batch.data), std::as_bytes(batch.labels)}) {
      EXPECT_GE(part.data(), buffer.data());
      EXPECT_LE(part.data() + part.size(), buffer.data() + buffer.size());
    }
  }
}

TEST(Loader, StopsCleanlyWhileItsThreadsAreBusy) {
  for (int i = 0; i < 20; ++i) {
    Loader loader(std::make_shared<Numbers>(5000), {.batch = 1000, .threads = 3, .queue = 3});
    if (i % 2 == 0) loader.next();
  }
}

TEST(Loader, RefusesABatchThatTheDataCannotFill) {
  try {
    Loader loader(std::make_shared<Numbers>(20), {.batch = 21});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "data 'numbers' has 20 training samples but a batch has 21; lower --batch");
  }
}

TEST(EpochOrder, IsAPermutationThatSeedAndEpochDecide) {
  for (int64_t count : {1, 2, 3, 100, 4097}) {
    std::vector<int32_t> order = epoch_order(count, 1, 2);
    EXPECT_EQ(order, epoch_order(count, 1, 2));
    if (count > 3) {
      EXPECT_NE(order, epoch_order(count, 2, 2));
      EXPECT_NE(order, epoch_order(count, 1, 3));
    }
    std::sort(order.begin(), order.end());
    std::vector<int32_t> all(count);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order, all);
  }
}

TEST(EpochOrder, PutsEveryItemAtEveryPositionEquallyOften) {
  constexpr int kItems = 6, kRounds = 6000;
  int seen[kItems][kItems] = {};
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<int32_t> order = epoch_order(kItems, 11, round);
    for (size_t i = 0; i < kItems; ++i) ++seen[order[i]][i];
  }
  for (const auto& row : seen) {
    for (int count : row) EXPECT_NEAR(count, kRounds / kItems, 150);  // five standard deviations
  }
}

}  // namespace
}  // namespace plimsoll
