#include "plimsoll/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/files.h"
#include "base/sha256.h"
#include "plimsoll/error.h"
#include "train/safetensors.h"

namespace plimsoll {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;
constexpr size_t kHashLetters = 64;
// Keys of the file's metadata.
constexpr const char* kStateKey = "plimsoll";
constexpr const char* kDataHashKey = "plimsoll.data_sha256";
constexpr const char* kWeightsHashKey = "plimsoll.weights_sha256";
constexpr const char* kHeaderHashKey = "plimsoll.header_sha256";
constexpr int64_t kVersionWithHeaderHash = 2;

constexpr std::pair<DType, const char*> kDTypes[] = {
    {DType::f32, "F32"}, {DType::f64, "F64"}, {DType::i32, "I32"}, {DType::i64, "I64"}, {DType::u8, "U8"}};

std::string stored_dtype(const CheckpointTensor& tensor) {
  for (const auto& [dtype, name] : kDTypes) {
    if (dtype == tensor.dtype) return name;
  }
  throw Error(ErrorCode::unsupported,
              fmt::format("'{}' of dtype {} cannot be saved in a checkpoint", tensor.name, to_string(tensor.dtype)));
}

bool is_weight(const CheckpointTensor& tensor) {
  return tensor.role == Role::parameter || tensor.role == Role::statistic;
}

// Hands the bytes of all tensors to `sink(tensor, bytes)`, a chunk at a time.
template <class Sink>
void for_each_chunk(std::span<const CheckpointTensor> tensors, const TensorSource& source, Sink&& sink) {
  std::vector<std::byte> chunk;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = tensors[i].bytes().count;
    for (int64_t at = 0; at < bytes; at += kChunkBytes) {
      chunk.resize(std::min(kChunkBytes, bytes - at));
      source(i, {at}, chunk);
      sink(tensors[i], std::span<const std::byte>(chunk));
    }
  }
}

// Where in a header the hash of this key begins; nothing where there is none.
std::optional<size_t> place_of(std::string_view header, std::string_view key) {
  const std::string before = fmt::format("\"{}\":\"", key);
  const size_t found = header.find(before);
  if (found == std::string::npos || found + before.size() + kHashLetters > header.size()) return std::nullopt;
  return found + before.size();
}

void put_hash(std::string& header, std::string_view key, const std::string& hash) {
  header.replace(place_of(header, key).value(), kHashLetters, hash);
}

// Of everything before the tensors' bytes, with zeros in the place of this very hash.
std::string header_hash(std::string header) {
  put_hash(header, kHeaderHashKey, std::string(kHashLetters, '0'));
  return sha256_hex(header);
}

}  // namespace

std::string save_checkpoint(const std::filesystem::path& path, const TrainingState& state,
                            std::span<const CheckpointTensor> tensors, const TensorSource& source) {
  TrainingState stored = state;
  stored.weights_sha256.clear();  // stands beside it, where it can be filled in last
  const std::string no_hash(kHashLetters, '0');
  std::vector<SafetensorsEntry> entries;
  for (const CheckpointTensor& t : tensors)
    entries.push_back({.name = t.name, .dtype = stored_dtype(t), .shape = t.shape});
  std::string header = make_safetensors_header(entries, {{"format", "pt"},
                                                         {kStateKey, to_json(stored)},
                                                         {kDataHashKey, no_hash},
                                                         {kHeaderHashKey, no_hash},
                                                         {kWeightsHashKey, no_hash}});
  if (static_cast<int64_t>(header.size()) - 8 > kLargestSafetensorsHeader) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: its header would have {}; at most {} are possible", path.string(),
                            to_string(Bytes{static_cast<int64_t>(header.size())}),
                            to_string(Bytes{kLargestSafetensorsHeader})));
  }
  AtomicFile file(path);
  file.write(header);
  Sha256 data_hash, weights_hash;
  for_each_chunk(tensors, source, [&](const CheckpointTensor& tensor, std::span<const std::byte> bytes) {
    file.write(bytes);
    data_hash.add(bytes);
    if (is_weight(tensor)) weights_hash.add(bytes);
  });
  const std::string weights = weights_hash.hex();
  put_hash(header, kDataHashKey, data_hash.hex());
  put_hash(header, kWeightsHashKey, weights);
  put_hash(header, kHeaderHashKey, header_hash(header));
  file.write_at(0, header);
  file.commit();
  return weights;
}

std::string weights_sha256(std::span<const CheckpointTensor> tensors, const TensorSource& source) {
  std::vector<CheckpointTensor> weights;
  std::vector<size_t> index;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!is_weight(tensors[i])) continue;
    weights.push_back(tensors[i]);
    index.push_back(i);
  }
  Sha256 hash;
  for_each_chunk(
      weights, [&](size_t i, Bytes offset, std::span<std::byte> into) { source(index[i], offset, into); },
      [&](const CheckpointTensor&, std::span<const std::byte> bytes) { hash.add(bytes); });
  return hash.hex();
}

struct Checkpoint::Impl {
  explicit Impl(const std::filesystem::path& path) : file(path), header(read_safetensors_header(file)) {}

  InputFile file;
  SafetensorsHeader header;
  std::vector<CheckpointTensor> tensors;
  std::map<std::string, size_t, std::less<>> by_name;
  std::optional<TrainingState> state;

  std::string name() const { return file.path().string(); }
  std::string metadata(std::string_view key) const {
    const auto found = header.metadata.find(key);
    return found == header.metadata.end() ? "" : found->second;
  }
  [[noreturn]] void corrupt(const std::string& what) const {
    throw Error(ErrorCode::corrupt_file, fmt::format("{}: {}", name(), what));
  }
  bool is_ours() const {
    return std::any_of(header.metadata.begin(), header.metadata.end(),
                       [](const auto& entry) { return entry.first.starts_with(kStateKey); });
  }
  void check_header() const;
};

// Everything before the tensors is as it was written, and nothing in it has another name. Files of the first version
// have no hash of it.
void Checkpoint::Impl::check_header() const {
  for (const auto& [key, value] : header.metadata) {
    if (key == "format" || key == kStateKey || key == kDataHashKey || key == kWeightsHashKey || key == kHeaderHashKey)
      continue;
    corrupt(fmt::format("header: '{}' is not known in a checkpoint of Plimsoll: the file was damaged or edited", key));
  }
  for (const char* key : {kStateKey, kDataHashKey, kWeightsHashKey}) {
    if (!header.metadata.contains(key)) corrupt(fmt::format("header: lacks '{}': the file was damaged", key));
  }
  if (!header.metadata.contains(kHeaderHashKey)) return;  // the state tells whether there must be one
  std::string head(static_cast<size_t>(header.data_begin), '\0');
  file.read(0, std::as_writable_bytes(std::span(head)));
  if (!place_of(head, kHeaderHashKey) || header_hash(head) != metadata(kHeaderHashKey))
    corrupt(fmt::format("header: is not what its SHA-256 says; expected {}: the file was damaged or edited",
                        metadata(kHeaderHashKey).substr(0, kHashLetters)));
}

Checkpoint::Checkpoint(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {
  if (impl_->is_ours()) impl_->check_header();
  for (const SafetensorsEntry& entry : impl_->header.entries) {
    const auto* known =
        std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](auto& d) { return entry.dtype == d.second; });
    if (known == std::end(kDTypes)) {
      throw Error(ErrorCode::unsupported, fmt::format("{}: '{}' has dtype {}; F32, F64, I32, I64 and U8 are read",
                                                      impl_->name(), entry.name, entry.dtype));
    }
    impl_->by_name[entry.name] = impl_->tensors.size();
    impl_->tensors.push_back({.name = entry.name, .shape = entry.shape, .dtype = known->first});
  }
  const std::string state = impl_->metadata(kStateKey);
  if (state.empty()) return;
  try {
    int64_t version = 0;
    impl_->state = training_state_from_json(state, &version);
    if (version >= kVersionWithHeaderHash && !impl_->header.metadata.contains(kHeaderHashKey))
      throw Error(ErrorCode::corrupt_file, fmt::format("header: lacks '{}': the file was damaged", kHeaderHashKey));
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", impl_->name(), error.what()));
  }
  impl_->state->weights_sha256 = impl_->metadata(kWeightsHashKey);
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;

const TrainingState& Checkpoint::state() const {
  if (!impl_->state) {
    throw Error(
        ErrorCode::invalid_input,
        fmt::format("{}: has tensors but no training state; it is not a checkpoint of Plimsoll", impl_->name()));
  }
  return *impl_->state;
}

const std::vector<CheckpointTensor>& Checkpoint::tensors() const { return impl_->tensors; }

size_t Checkpoint::find(std::string_view name, const Shape& shape, DType dtype) const {
  const auto found = impl_->by_name.find(name);
  if (found == impl_->by_name.end()) {
    throw Error(ErrorCode::corrupt_file, fmt::format("{}: lacks the tensor '{}'", impl_->name(), name));
  }
  const CheckpointTensor& tensor = impl_->tensors[found->second];
  if (tensor.shape != shape || tensor.dtype != dtype) {
    throw Error(ErrorCode::corrupt_file,
                fmt::format("{}: tensor '{}' is {} {}; expected {} {}", impl_->name(), name, to_string(tensor.dtype),
                            to_string(tensor.shape), to_string(dtype), to_string(shape)));
  }
  return found->second;
}

void Checkpoint::read(size_t tensor, Bytes offset, std::span<std::byte> into) const {
  const SafetensorsEntry& entry = impl_->header.entries.at(tensor);
  if (offset.count < 0 || offset.count + static_cast<int64_t>(into.size()) > entry.end - entry.begin) {
    throw Error(ErrorCode::internal, fmt::format("{}: read beyond the end of '{}'", impl_->name(), entry.name));
  }
  impl_->file.read(impl_->header.data_begin + entry.begin + offset.count, into);
}

void Checkpoint::check_contents() const {
  const std::string expected = impl_->metadata(kDataHashKey);
  if (expected.empty()) return;  // another program's file
  Sha256 hash;
  for_each_chunk(
      impl_->tensors, [&](size_t i, Bytes offset, std::span<std::byte> into) { read(i, offset, into); },
      [&](const CheckpointTensor&, std::span<const std::byte> bytes) { hash.add(bytes); });
  const std::string found = hash.hex();
  if (found != expected) {
    throw Error(ErrorCode::corrupt_file,
                fmt::format("{}: its data has the SHA-256 {}; expected {}: the file was damaged", impl_->name(), found,
                            expected));
  }
}

}  // namespace plimsoll
