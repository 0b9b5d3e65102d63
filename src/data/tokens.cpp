// Texts as token ids: files of ids of 2 or 4 bytes, files of bytes, the bundled book, and generated tokens. Files stay on disk. A
// window is read when it is wanted, and only then are its ids compared with the vocabulary: a file of any size is opened at
// once, and takes no memory. Files are not mapped: one that is cut short meanwhile is an error then, and no signal, and its
// pages are not the process's memory.
//
//   tokens   t0 t1 t2 t3 t4 t5 t6 t7 t8 ...           a window's label is the token that follows, so a window of a causal
//            [------ window 0 ----]                    network has one token more than its context
//                        [------ window 1 ----]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/files.h"
#include "base/random.h"
#include "data/sources.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr int64_t kBytes = 256;
constexpr double kMasked = 0.15, kHidden = 0.8, kReplaced = 0.1;
constexpr uint32_t kMaskSalt = 0xDA7A0020, kTokenSalt = 0xDA7A0021;
constexpr size_t kPiece = 16384;  // bytes that are read at once

// The tokens of a split.
struct TextSource {
  InputFile file;
  int64_t id_bytes = 1;
  int64_t begin = 0, count = 0;  // tokens of the file

  std::string name() const { return file.path().string(); }
  void read(int64_t first, int64_t vocabulary, std::span<int32_t> ids) const {
    std::byte piece[kPiece];
    while (!ids.empty()) {
      const size_t some = std::min(ids.size(), kPiece / static_cast<size_t>(id_bytes));
      const std::span<std::byte> bytes(piece, some * static_cast<size_t>(id_bytes));
      file.read((begin + first) * id_bytes, bytes);
      parse_tokens(bytes, id_bytes, begin + first, vocabulary, name(), ids.first(some));
      first += static_cast<int64_t>(some);
      ids = ids.subspan(some);
    }
  }
};

int64_t window_count(const TextSource& source, const TokenWindows& windows) {
  return std::max<int64_t>(0, (source.count - (windows.read() - windows.context)) / windows.context);
}

class Text : public DataSet {
 public:
  // `train` and `test` may be parts of one file. `own_vocabulary`: of bytes; 0: as the network has it.
  Text(const std::string& name, TextSource train, TextSource test, int64_t own_vocabulary, const DataOptions& options)
      : train_(std::move(train)), test_(std::move(test)) {
    TokenWindows windows = options.windows;
    if (windows.mask && own_vocabulary > 0) windows.mask = static_cast<int32_t>(own_vocabulary++);
    info_ = {.name = name,
             .channels = 1,
             .height = 1,
             .width = windows.context,
             .classes = std::max(own_vocabulary, options.classes),
             .train_count = window_count(train_, windows),
             .test_count = window_count(test_, windows),
             .mean = {0},
             .stddev = {1},
             .windows = windows};
    vocabulary_ = own_vocabulary > 0 ? own_vocabulary : info_.classes;
    if (info_.train_count == 0) {
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("{}: has {} tokens{}; a window of this network has {}: lower its context, or give more text",
                      train_.name(), train_.count,
                      test_.begin == 0 ? "" : " before its last tenth, which is for testing", windows.read()));
    }
    if (std::max(info_.train_count, info_.test_count) > std::numeric_limits<int32_t>::max()) {
      throw Error(ErrorCode::unsupported, fmt::format("{}: has more than 2^31 windows of {} tokens; raise the context",
                                                      train_.name(), windows.context));
    }
  }

  const DataInfo& info() const override { return info_; }
  Bytes memory() const override { return {0}; }
  void read(Split, int64_t, int64_t, Image&) const override {
    throw Error(ErrorCode::internal, fmt::format("data '{}' has tokens, and is asked for an image", info_.name));
  }
  void read_tokens(Split split, int64_t index, std::span<int32_t> ids) const override {
    (split == Split::train ? train_ : test_).read(index * info_.windows.context, vocabulary_, ids);
  }

 private:
  TextSource train_, test_;
  DataInfo info_;
  int64_t vocabulary_ = 0;
};

TextSource file_source(const std::filesystem::path& path, int64_t id_bytes) {
  InputFile file(path);
  const int64_t count = token_count(file.size(), id_bytes, path.string());
  return {.file = std::move(file), .id_bytes = id_bytes, .begin = 0, .count = count};
}

// Its last tenth is for testing.
std::shared_ptr<const DataSet> one_file(const std::string& name, const std::filesystem::path& path, int64_t id_bytes,
                                        int64_t vocabulary, const DataOptions& options) {
  TextSource train = file_source(path, id_bytes), test = file_source(path, id_bytes);
  test.count /= 10;
  train.count -= test.count;
  test.begin = train.count;
  return std::make_shared<Text>(name, std::move(train), std::move(test), vocabulary, options);
}

// The files of a folder, by the first of these names that it has.
std::filesystem::path file_in(const std::filesystem::path& folder, std::string_view kind, std::string_view stem,
                              std::span<const std::string_view> endings) {
  std::error_code ignored;
  std::string names;
  for (std::string_view ending : endings) {
    const std::string name = fmt::format("{}{}", stem, ending);
    if (std::filesystem::exists(folder / name, ignored)) return folder / name;
    names += fmt::format("{}{}", names.empty() ? "" : " or ", name);
  }
  throw Error(ErrorCode::invalid_input, fmt::format("data '{}': there is no {} in {}", kind, names, folder.string()));
}

int64_t id_bytes_of(std::string_view kind, const std::filesystem::path& path) {
  if (kind == "bytes") return 1;
  return path.extension() == ".u32" ? 4 : 2;
}

// Tokens that a network can learn: mostly each follows from the one before, by a fixed rule.
class SyntheticTokens : public DataSet {
 public:
  SyntheticTokens(int64_t windows, const DataOptions& options) : seed_(options.seed) {
    info_ = {.name = "synthetic",
             .channels = 1,
             .height = 1,
             .width = options.windows.context,
             .classes = options.classes,
             .train_count = windows,
             .test_count = std::max<int64_t>(1, windows / 10),
             .mean = {0},
             .stddev = {1},
             .windows = options.windows};
  }

  const DataInfo& info() const override { return info_; }
  Bytes memory() const override { return {0}; }
  void read(Split, int64_t, int64_t, Image&) const override {
    throw Error(ErrorCode::internal, "synthetic tokens are asked for an image");
  }
  void read_tokens(Split split, int64_t index, std::span<int32_t> ids) const override {
    const int64_t sample = split == Split::train ? index : info_.train_count + index;
    const RandomStream random{.seed = seed_, .step = static_cast<uint64_t>(sample), .salt = kTokenSalt};
    const auto vocabulary = static_cast<uint64_t>(info_.classes);
    uint64_t token = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const uint32_t draw = random.bits(static_cast<int64_t>(i));
      const bool is_new = i == 0 || draw % 4 == 0;
      token = is_new ? (uint64_t{draw} * vocabulary) >> 32 : (token * 5 + 1) % vocabulary;
      ids[i] = static_cast<int32_t>(token);
    }
  }

 private:
  uint64_t seed_;
  DataInfo info_;
};

void expect_context(std::string_view kind, const DataOptions& options) {
  if (options.windows.context > 0) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("data '{}' gives tokens, which are for a language model: gpt2, llama, bert", kind));
}

}  // namespace

int64_t token_count(int64_t file_bytes, int64_t id_bytes, const std::string& file_name) {
  if (file_bytes == 0) throw Error(ErrorCode::corrupt_file, fmt::format("{}: is empty; it has no tokens", file_name));
  if (file_bytes % id_bytes != 0) {
    throw Error(ErrorCode::corrupt_file,
                fmt::format("{}: has {} bytes; expected a multiple of {}, the bytes of a token id{}", file_name,
                            file_bytes, id_bytes, id_bytes == 2 ? " (4 where the file's name ends in .u32)" : ""));
  }
  return file_bytes / id_bytes;
}

void parse_tokens(std::span<const std::byte> bytes, int64_t id_bytes, int64_t first, int64_t vocabulary,
                  const std::string& file_name, std::span<int32_t> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    uint32_t id = 0;
    for (int64_t b = id_bytes; b-- > 0;) {
      id = id << 8 | static_cast<uint32_t>(bytes[i * static_cast<size_t>(id_bytes) + static_cast<size_t>(b)]);
    }
    if (int64_t{id} >= vocabulary) {
      throw Error(ErrorCode::corrupt_file,
                  fmt::format("{}: token {} is {}, but the vocabulary has {} (the option vocab of the network); ids "
                              "are little-endian, of {} bytes",
                              file_name, first + static_cast<int64_t>(i), id, vocabulary, id_bytes));
    }
    ids[i] = static_cast<int32_t>(id);
  }
}

void label_window(std::span<const int32_t> window, const TokenWindows& windows, int64_t vocabulary,
                  const WindowKey& key, int32_t nothing, std::span<int32_t> ids, std::span<int32_t> labels) {
  std::copy_n(window.begin(), ids.size(), ids.begin());
  if (!windows.mask) {
    std::copy(window.begin() + 1, window.end(), labels.begin());
    return;
  }
  std::fill(labels.begin(), labels.end(), nothing);
  const auto count = static_cast<int64_t>(ids.size());
  const auto masked = std::max<int64_t>(1, std::llround(kMasked * static_cast<double>(count)));
  const uint64_t sample = key.seed ^ (static_cast<uint64_t>(key.sample) * 0x9E3779B97F4A7C15);
  const RandomStream random{.seed = sample, .step = static_cast<uint64_t>(key.epoch), .salt = kMaskSalt};
  // Position i is one of those that are left to choose with the probability of (still to choose) / (left).
  int64_t draw = 0;
  for (int64_t i = 0, chosen = 0; i < count && chosen < masked; ++i) {
    if (random.uniform(draw++) * static_cast<double>(count - i) >= static_cast<double>(masked - chosen)) continue;
    ++chosen;
    labels[static_cast<size_t>(i)] = ids[static_cast<size_t>(i)];
    const double way = random.uniform(draw++);
    if (way < kHidden) {
      ids[static_cast<size_t>(i)] = *windows.mask;
    } else if (way < kHidden + kReplaced) {
      ids[static_cast<size_t>(i)] =
          static_cast<int32_t>((uint64_t{random.bits(draw++)} * static_cast<uint64_t>(vocabulary)) >> 32);
    }
  }
}

std::shared_ptr<const DataSet> open_tokens(const std::string& kind, const std::filesystem::path& path,
                                           const DataOptions& options) {
  expect_context(kind, options);
  const int64_t vocabulary = kind == "bytes" ? kBytes : 0;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw Error(ErrorCode::invalid_input, fmt::format("data '{}': there is no '{}'", kind, path.string()));
  }
  if (std::filesystem::is_directory(path, ignored)) {
    constexpr std::string_view kOfBytes[] = {".txt", ".bin"}, kOfTokens[] = {".bin", ".u16", ".u32"};
    const std::span<const std::string_view> endings =
        kind == "bytes" ? std::span<const std::string_view>(kOfBytes) : std::span<const std::string_view>(kOfTokens);
    const std::filesystem::path train = file_in(path, kind, "train", endings),
                                test = file_in(path, kind, "val", endings);
    return std::make_shared<Text>(kind, file_source(train, id_bytes_of(kind, train)),
                                  file_source(test, id_bytes_of(kind, test)), vocabulary, options);
  }
  return one_file(kind, path, id_bytes_of(kind, path), vocabulary, options);
}

std::shared_ptr<const DataSet> open_text(const DataOptions& options) {
  expect_context("text", options);
  constexpr const char* kFileName = "paradise_lost.txt";
  return one_file("text", bundled_file(kFileName, "text"), 1, kBytes, options);
}

std::shared_ptr<const DataSet> open_synthetic_tokens(int64_t windows, const DataOptions& options) {
  return std::make_shared<SyntheticTokens>(windows, options);
}

}  // namespace plimsoll
