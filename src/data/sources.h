// The kinds of data sets, a file each, and the readers of their file formats. open_data (data_set.cpp) picks one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/data.h"

namespace plimsoll {

// "kind[:ARGUMENT]", taken apart. Throws Error(invalid_input) on a kind that there is not, with the nearest, and on an
// argument that is missing, too many, or no count; whether a folder is there is judged when it is opened.
struct DataSpec {
  std::string kind;
  std::string folder;     // mnist, cifar10, cifar100, images; of tokens and bytes a file or a folder
  int64_t count = 10240;  // synthetic
};
DataSpec parse_data_spec(std::string_view spec);

std::shared_ptr<const DataSet> open_digits(const DataOptions& options);
std::shared_ptr<const DataSet> open_mnist(const std::filesystem::path& folder, const DataOptions& options);
std::shared_ptr<const DataSet> open_cifar(int classes, const std::filesystem::path& folder, const DataOptions& options);
std::shared_ptr<const DataSet> open_image_folder(const std::filesystem::path& folder, const DataOptions& options);
std::shared_ptr<const DataSet> open_synthetic(int64_t count, const DataOptions& options);

// Texts. `kind`: "tokens" or "bytes".
std::shared_ptr<const DataSet> open_tokens(const std::string& kind, const std::filesystem::path& path,
                                           const DataOptions& options);
std::shared_ptr<const DataSet> open_text(const DataOptions& options);  // the bundled one
std::shared_ptr<const DataSet> open_synthetic_tokens(int64_t windows, const DataOptions& options);
// A file of the bundled data: in the folder that PLIMSOLL_DATA names; else beside or above the program, as an installation or
// a build has it; else where the sources were. Throws Error(invalid_input) naming `data`.
std::filesystem::path bundled_file(const std::string& name, const std::string& data);

// How many ids of so many bytes a file has, and some of them from bytes. Both throw Error(corrupt_file) with the place: the
// second on an id that a vocabulary of that size has not.
int64_t token_count(int64_t file_bytes, int64_t id_bytes, const std::string& file_name);
void parse_tokens(std::span<const std::byte> bytes, int64_t id_bytes, int64_t first, int64_t vocabulary,
                  const std::string& file_name, std::span<int32_t> ids);

// Turns a window of tokens into what a network reads and is to answer (TokenWindows). `labels` has one for each of `ids`;
// `nothing` is the label that counts nothing. Draws from (seed, epoch, sample) alone.
struct WindowKey {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t sample = 0;
};
void label_window(std::span<const int32_t> window, const TokenWindows& windows, int64_t vocabulary,
                  const WindowKey& key, int32_t nothing, std::span<int32_t> ids, std::span<int32_t> labels);

inline constexpr int64_t kImagenetSide = 224;
inline constexpr Bytes kLargestImageFile = 256_MiB;

// Sets channels, height and width of `info` from what the data has to what the network asks for, and mean and stddev
// with the channels. Throws Error(invalid_input) when images cannot be turned into that.
void fit_to_network(DataInfo& info, const DataOptions& options);

// A fixed order for splits that the data does not give: the same on every machine, whatever the training's seed.
std::vector<int32_t> split_order(int64_t count);
// Of `count` samples, how many a split of four to one leaves for training.
int64_t split_train_count(int64_t count);

// digits.csv: 64 pixels of 0..16 and a label of 0..9 a line.
struct DigitsTable {
  std::vector<uint8_t> pixels;  // 64 an image
  std::vector<uint8_t> labels;
};
DigitsTable parse_digits_csv(std::string_view text, const std::string& file_name);

// The head of an idx file of bytes: how many dimensions, how large. Throws Error(corrupt_file) unless it has `rank`
// dimensions of unsigned bytes that fill a file of `file_bytes` exactly.
struct IdxHeader {
  std::vector<int64_t> dimensions;
  int64_t data_offset = 0;
};
IdxHeader parse_idx_header(std::span<const std::byte> head, int64_t file_bytes, size_t rank,
                           const std::string& file_name);

// How many records the binary version of CIFAR with so many classes has in a file of this size, and one record as an
// image.
int64_t cifar_record_count(int classes, int64_t file_bytes, const std::string& file_name);
int64_t cifar_record_bytes(int classes);
void parse_cifar_record(int classes, std::span<const std::byte> record, int64_t index, const std::string& file_name,
                        Image& image);

}  // namespace plimsoll
