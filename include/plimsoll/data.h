// Data sets, and the loader that prepares their batches in the background.
//
//   open_data("cifar10:DIR") -> DataSet: sample i of a split, as 8-bit pixels and a label
//   Loader(data, options)    -> next(): float pixels, NCHW or NHWC, normalised and augmented, and i32 labels
//
// A sample of a text is a window of token ids, and has a label for each of them.
//
// Everything random is drawn from a counter-based generator keyed by (seed, epoch, sample). So any batch can be made
// again exactly: by another thread, after a resume, on another machine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/bytes.h"

namespace plimsoll {

enum class Split : uint8_t { train, test };
std::string_view to_string(Split split);

// How training samples are varied. Nothing is done to test samples.
struct Augmentation {
  bool flip = false;          // mirror left-right, every second time
  int64_t padding = 0;        // shift by up to so many pixels each way, black moving in
  bool resized_crop = false;  // a random part of 8 to 100 % of the image, 3:4 to 4:3, scaled to the input size
};

// Texts. Window i has the tokens from i * context on. The label of a token is the one that follows; or with a mask, itself
// where it is masked, and the padding label elsewhere. So many are masked in every window that it is 15 % of them, to the
// next whole number and at least one: of these 80 % are read as the mask, 10 % as any token, and 10 % as they are (Devlin et
// al., "BERT", 2019, section 3.1).
struct TokenWindows {
  int64_t context = 0;  // 0: samples are images
  std::optional<int32_t> mask;
  int64_t labels() const { return context > 0 ? context : 1; }                   // of a sample
  int64_t read() const { return mask || context == 0 ? context : context + 1; }  // tokens that a sample is made of
};

struct DataInfo {
  std::string name;  // "cifar10"
  int64_t channels = 0, height = 0, width = 0, classes = 0;
  int64_t train_count = 0, test_count = 0;
  std::vector<float> mean, stddev;       // per channel; black is 0 and white is 1
  Augmentation augmentation;             // what is usual for this data
  std::vector<std::string> class_names;  // where the data has them
  TokenWindows windows;                  // of a text: width is the context, and classes the vocabulary
};

// Pixels as they are stored: interleaved, row after row.
struct Image {
  int64_t channels = 0, height = 0, width = 0;
  int maximum = 255;  // the value of white
  std::vector<uint8_t> pixels;
  int32_t label = 0;
};

// Samples by index. Safe to read from several threads.
class DataSet {
 public:
  virtual ~DataSet() = default;
  virtual const DataInfo& info() const = 0;
  // Reuses image's memory. `smallest_side`: an image that is larger than this on both sides may come scaled down to
  // not less than so many pixels a side (0: full size). Throws Error(corrupt_file) that names the file, the place and
  // what was expected.
  virtual void read(Split split, int64_t index, int64_t smallest_side, Image& image) const = 0;
  // The tokens of a window: windows.read() of them. Throws the same, for an id that the vocabulary has not as well; and
  // Error(internal) where samples are images, as read() does where they are not.
  virtual void read_tokens(Split split, int64_t index, std::span<int32_t> ids) const;
  virtual Bytes memory() const = 0;  // that the set itself holds

  int64_t count(Split split) const { return split == Split::train ? info().train_count : info().test_count; }
};

struct DataOptions {
  int64_t channels = 0, height = 0,
          width = 0;     // what the network takes; 0: as the data has it, 3x224x224 for image folders
  int64_t classes = 0;   // synthetic (0: 10), and tokens: the vocabulary
  TokenWindows windows;  // of a network of tokens
  uint64_t seed = 0;     // of synthetic images and of splits that a folder does not give
};

// "kind[:DIR]": digits, mnist:DIR, cifar10:DIR, cifar100:DIR, images:DIR, synthetic[:COUNT]. Throws
// Error(invalid_input) with the nearest kind, or with the file that is missing; Error(corrupt_file) where a file is not
// what it should be.
std::shared_ptr<const DataSet> open_data(std::string_view spec, const DataOptions& options = {});

struct DataListing {
  std::string name, description;
};
std::vector<DataListing> list_data();

// The order of a split's samples in an epoch: a permutation of 0..count-1.
std::vector<int32_t> epoch_order(int64_t count, uint64_t seed, int64_t epoch);

// Of the order in which a loader has the training samples of an epoch. None of more than 4 million windows of a text: where
// one stands in the order is computed then, and it is another order than epoch_order's.
Bytes order_memory(const DataInfo& info);

struct LoaderOptions {
  Split split = Split::train;
  int64_t batch = 32;
  // Where several processes share every batch: this is part `part` of `parts`, each of `batch` rows. All parts of one
  // number together are the rows of a batch of `parts` times the size.
  int64_t part = 0, parts = 1;
  uint64_t seed = 0;
  Augmentation augmentation;   // of Split::train; none unless said: DataInfo has what is usual
  int64_t epoch = 0;           // where to begin
  int64_t first_batch = 0;     // in that epoch
  int threads = 1;             // that prepare batches beside the training, all of them the same one
  int32_t padding_label = -1;  // of rows that fill up the last batch of an evaluation
  int queue = 0;               // batches prepared at most; each costs its bytes. 0: batches_prepared()
  bool channels_last = false;  // images are written so (Batch::channels_last)
};

// How many batches are prepared at most where `queue` says nothing: two, and one where a batch is over 4 MiB, since it is
// prepared while the step before it runs. Several threads get two of up to 32 MiB, so that they go on with the next one
// while the first waits for its step.
int batches_prepared(Bytes batch, int threads);

// Valid until the next call of release() or next().
struct Batch {
  std::span<const float> data;      // batch x channels x height x width, row-major; none of a text:
  bool channels_last = false;       // instead batch x height x width x channels
  std::span<const int32_t> ids;     // batch x context
  std::span<const int32_t> labels;  // LoaderOptions::padding_label for rows that fill up the last batch
  int64_t epoch = 0;
  int64_t index = 0;  // in the epoch
  int64_t count = 0;  // rows with a sample
};

// Batches one after another, epoch after epoch without end. Training shuffles every epoch and drops a last batch that
// is not full; evaluation takes the samples in order and fills the last batch up with label -1.
class Loader {
 public:
  // Throws Error(invalid_input) when the split has less samples than a training batch.
  Loader(std::shared_ptr<const DataSet> data, const LoaderOptions& options);
  ~Loader();  // stops the threads
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Waits for the next batch, releasing the last. Throws what went wrong while it was prepared.
  const Batch& next();
  // Gives the batch's memory back, so that the next one is prepared while the training step runs. Call it as soon as
  // the batch was copied.
  void release();

  int64_t batches_per_epoch() const;
  // The memory in which batches are prepared: whole pages, the same for as long as the loader lives.
  std::span<std::byte> buffer();
  Bytes memory() const;  // of the prepared batches

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plimsoll
