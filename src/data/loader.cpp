// Worker threads take pieces of batches in turn, some rows each, and fill slots of a ring; next() hands the slots out in
// order. So all of them work on one batch, also where there is room for only one.
//
//   number of batch:   released <= delivered <= claimed <= released + slots        slot of a batch: number % slots
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "data/order.h"
#include "data/prepare.h"
#include "data/sources.h"
#include "plimsoll/data.h"
#include "plimsoll/error.h"

namespace plimsoll {

struct Loader::Impl {
  struct Slot {              // in the region
    std::span<float> data;   // of images
    std::span<int32_t> ids;  // of a text, in the same place
    std::span<int32_t> labels;
    int64_t count = 0;
    std::shared_ptr<const EpochOrder> order;  // of the epoch's samples
    int64_t unfinished = 0;                   // pieces
    bool ready = false;
    int64_t failed = 0;        // of the pieces that went wrong, the first
    std::exception_ptr error;  // of it
  };

  std::shared_ptr<const DataSet> data;
  LoaderOptions options;
  int64_t sample_elements = 0;
  int64_t sample_count = 0;
  int64_t batches_per_epoch = 0;

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> region;  // whole pages: what a device pins may share none with anything else
  size_t region_bytes = 0;

  std::mutex mutex;
  std::condition_variable slot_free, batch_ready;
  std::vector<Slot> slots;
  int64_t claimed = 0, delivered = 0, released = 0;  // numbers of batches, from the first batch of epoch 0 on
  int64_t claimed_rows = 0;                          // of batch `claimed`
  int64_t rows_a_piece = 0;
  std::atomic<bool> stopping = false;       // set while locked
  std::shared_ptr<const EpochOrder> order;  // of the samples in order_epoch
  int64_t order_epoch = -1;
  std::vector<std::thread> threads;
  Batch current;

  void make_slots(size_t count, size_t elements, size_t rows) {
    constexpr size_t kPage = 4096, kLine = 64;
    const auto whole = [](size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; };
    const bool text = data->info().windows.context > 0;
    const size_t labels = rows * static_cast<size_t>(data->info().windows.labels());
    static_assert(sizeof(float) == sizeof(int32_t));
    const size_t data_bytes = whole(elements * sizeof(float), kLine),
                 label_bytes = whole(labels * sizeof(int32_t), kLine);
    region_bytes = whole(count * (data_bytes + label_bytes), kPage);
    region.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, region_bytes)));
    if (!region) {
      throw Error(ErrorCode::device_failure,
                  fmt::format("the system gives no memory for {} batches of {} samples; lower --batch", count, rows));
    }
    std::memset(region.get(), 0, region_bytes);
    slots.resize(count);
    std::byte* at = region.get();
    for (Slot& slot : slots) {
      if (text) {
        slot.ids = {reinterpret_cast<int32_t*>(at), elements};
      } else {
        slot.data = {reinterpret_cast<float*>(at), elements};
      }
      slot.labels = {reinterpret_cast<int32_t*>(at + data_bytes), labels};
      at += data_bytes + label_bytes;
    }
  }

  Slot& slot_of(int64_t number) { return slots[number % slots.size()]; }

  // Null where the order is the samples' own. Called while locked.
  std::shared_ptr<const EpochOrder> order_of(int64_t epoch) {
    if (options.split == Split::test) return nullptr;
    if (order_epoch != epoch) {
      order = std::make_shared<EpochOrder>(sample_count, options.seed, epoch, EpochOrder::listed(data->info()));
      order_epoch = epoch;
    }
    return order;
  }

  // Rows [begin, end) of the slot's.
  void fill(int64_t number, int64_t begin, int64_t end, const Slot& slot, PrepareScratch& scratch) {
    const int64_t epoch = number / batches_per_epoch, first = first_sample(number);
    const TokenWindows& windows = data->info().windows;
    const int64_t labels = windows.labels();
    const bool training = options.split == Split::train;
    const int64_t side = smallest_side(data->info(), options.split);
    const int64_t filled = std::clamp(slot.count, begin, end);
    for (int64_t row = begin; row < filled; ++row) {
      if (stopping) return;
      const int64_t sample = slot.order ? (*slot.order)[first + row] : first + row;
      if (windows.context > 0) {
        scratch.window.resize(static_cast<size_t>(windows.read()));
        data->read_tokens(options.split, sample, scratch.window);
        // The test set's masks are always the same.
        label_window(scratch.window, windows, data->info().classes,
                     {.seed = options.seed, .epoch = training ? epoch : -1, .sample = sample}, options.padding_label,
                     slot.ids.subspan(row * sample_elements, sample_elements),
                     slot.labels.subspan(row * labels, labels));
        continue;
      }
      data->read(options.split, sample, side, scratch.image);
      prepare(scratch.image, data->info(), training ? &options.augmentation : nullptr,
              {.seed = options.seed, .epoch = epoch, .sample = sample}, scratch,
              slot.data.subspan(row * sample_elements, sample_elements), options.channels_last);
      slot.labels[row] = scratch.image.label;
    }
    const auto clear = [&](auto values, int64_t of_row, auto value) {
      const auto rest = values.subspan(filled * of_row, (end - filled) * of_row);
      std::fill(rest.begin(), rest.end(), value);
    };
    if (windows.context > 0) {
      clear(slot.ids, sample_elements, 0);
    } else {
      clear(slot.data, sample_elements, 0.0F);
    }
    clear(slot.labels, labels, options.padding_label);
  }

  int64_t first_sample(int64_t number) const {
    return (number % batches_per_epoch * options.parts + options.part) * options.batch;
  }

  void work() {
    PrepareScratch scratch;
    std::unique_lock lock(mutex);
    while (true) {
      slot_free.wait(lock, [&] { return stopping || claimed < released + static_cast<int64_t>(slots.size()); });
      if (stopping) return;
      const int64_t number = claimed, begin = claimed_rows, end = std::min(begin + rows_a_piece, options.batch);
      Slot& slot = slot_of(number);
      if (begin == 0) {
        slot.count = std::clamp<int64_t>(sample_count - first_sample(number), 0, options.batch);
        slot.unfinished = (options.batch + rows_a_piece - 1) / rows_a_piece;
        slot.error = nullptr;
      }
      claimed_rows = end;
      if (end == options.batch) ++claimed, claimed_rows = 0;
      std::exception_ptr error;
      try {
        if (begin == 0) slot.order = order_of(number / batches_per_epoch);
        lock.unlock();
        fill(number, begin, end, slot, scratch);
      } catch (...) {
        error = std::current_exception();
      }
      if (!lock.owns_lock()) lock.lock();
      if (error && (!slot.error || begin < slot.failed)) slot.error = error, slot.failed = begin;
      if (--slot.unfinished > 0) continue;
      slot.ready = true;
      batch_ready.notify_all();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    slot_free.notify_all();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
};

int batches_prepared(Bytes batch, int threads) {
  constexpr Bytes kLargeBatch = 4_MiB, kLargestOfTwo = 32_MiB;
  return batch > (threads > 1 ? kLargestOfTwo : kLargeBatch) ? 1 : 2;
}

Loader::Loader(std::shared_ptr<const DataSet> data, const LoaderOptions& options) : impl_(std::make_unique<Impl>()) {
  Impl& impl = *impl_;
  impl.data = std::move(data);
  impl.options = options;
  const DataInfo& info = impl.data->info();
  const bool training = options.split == Split::train;
  impl.sample_count = impl.data->count(options.split);
  if (options.batch < 1)
    throw Error(ErrorCode::invalid_input, fmt::format("a batch of {} samples; at least 1 is needed", options.batch));
  const int64_t whole = options.batch * options.parts;
  if (impl.sample_count < (training ? whole : 1)) {
    throw Error(ErrorCode::invalid_input,
                training ? fmt::format("data '{}' has {} training samples but a batch has {}; lower --batch", info.name,
                                       impl.sample_count, whole)
                         : fmt::format("data '{}' has no test samples", info.name));
  }
  impl.sample_elements = info.channels * info.height * info.width;
  impl.batches_per_epoch = training ? impl.sample_count / whole : (impl.sample_count + whole - 1) / whole;
  impl.claimed = impl.delivered = impl.released = options.epoch * impl.batches_per_epoch + options.first_batch;
  constexpr int64_t kPiecesAThread = 8;  // so that the last ones end at about the same time
  const int64_t pieces = options.threads > 1 ? kPiecesAThread * options.threads : 1;
  impl.rows_a_piece = (options.batch + pieces - 1) / pieces;

  const int64_t batch_elements = options.batch * impl.sample_elements;
  const Bytes batch_bytes{batch_elements * int64_t{sizeof(float)}};
  impl.make_slots(options.queue > 0 ? options.queue : batches_prepared(batch_bytes, options.threads), batch_elements,
                  options.batch);
  try {
    for (int i = 0; i < std::max(1, options.threads); ++i) impl.threads.emplace_back([&impl] { impl.work(); });
  } catch (const std::system_error& error) {
    impl.stop();
    throw Error(ErrorCode::device_failure, fmt::format("cannot start a thread for loading data: {}", error.what()));
  }
}

Loader::~Loader() { impl_->stop(); }

const Batch& Loader::next() {
  release();
  Impl& impl = *impl_;
  std::unique_lock lock(impl.mutex);
  Impl::Slot& slot = impl.slot_of(impl.delivered);
  impl.batch_ready.wait(lock, [&] { return slot.ready; });
  if (slot.error) std::rethrow_exception(slot.error);
  impl.current = {.data = slot.data,
                  .channels_last = impl.options.channels_last,
                  .ids = slot.ids,
                  .labels = slot.labels,
                  .epoch = impl.delivered / impl.batches_per_epoch,
                  .index = impl.delivered % impl.batches_per_epoch,
                  .count = slot.count};
  ++impl.delivered;
  return impl.current;
}

void Loader::release() {
  Impl& impl = *impl_;
  {
    const std::lock_guard lock(impl.mutex);
    if (impl.released == impl.delivered) return;
    impl.slot_of(impl.released).ready = false;
    ++impl.released;
    impl.current = {};
  }
  impl.slot_free.notify_all();
}

int64_t Loader::batches_per_epoch() const { return impl_->batches_per_epoch; }

std::span<std::byte> Loader::buffer() { return {impl_->region.get(), impl_->region_bytes}; }

Bytes Loader::memory() const {
  const Impl::Slot& slot = impl_->slots.front();
  return Bytes{static_cast<int64_t>((slot.data.size() + slot.ids.size()) * sizeof(float) +
                                    slot.labels.size() * sizeof(int32_t))} *
         static_cast<int64_t>(impl_->slots.size());
}

}  // namespace plimsoll
