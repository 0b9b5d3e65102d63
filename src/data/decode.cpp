#include "data/decode.h"

#include <fmt/format.h>
#include <spng.h>
#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <span>

#include "base/files.h"
#include "data/sources.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

// A JPEG block of 64 pixels takes a bit at least, an eighth of it when arithmetically coded. Deflate shrinks to 1/1032
// at best, and a PNG pixel has at least one bit.
constexpr int64_t kMostJpegPixelsPerByte = 64 * 8 * 8;
constexpr int64_t kMostPngPixelsPerByte = 1032 * 8;
constexpr Bytes kHeldFile = 4_MiB;  // of more, a PNG is not held whole beside its pixels

[[noreturn]] void corrupt(const std::string& file_name, std::string_view format, std::string_view why) {
  throw Error(ErrorCode::corrupt_file, fmt::format("{}: damaged {}: {}", file_name, format, why));
}

void require_moderate(const std::string& file_name, int64_t width, int64_t height) {
  if (height <= kMostDecodedPixels / width) return;
  throw Error(ErrorCode::unsupported, fmt::format("{}: is {}x{} pixels; at most {} million are read", file_name, width,
                                                  height, kMostDecodedPixels / 1'000'000));
}

// Of the image as it is decoded.
void require_at_most(const std::string& file_name, int64_t width, int64_t height, int64_t most_pixels) {
  if (height <= most_pixels / width) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("{}: would be decoded to {}x{} pixels, and there is memory for {} million", file_name, width,
                          height, most_pixels / 1'000'000));
}

// A size that so few bytes cannot fill, found before memory for it is taken.
void require_plausible(const std::string& file_name, std::string_view format, int64_t width, int64_t height,
                       size_t file_bytes, int64_t pixels_per_byte) {
  if (width * height <= static_cast<int64_t>(file_bytes) * pixels_per_byte) return;
  corrupt(file_name, format, fmt::format("it says {}x{} pixels, but has {} bytes only", width, height, file_bytes));
}

// The smallest scaling that leaves both sides at least `smallest_side`.
tjscalingfactor choose_scaling(int width, int height, int64_t smallest_side) {
  tjscalingfactor best{1, 1};
  int count = 0;
  const tjscalingfactor* factors = tjGetScalingFactors(&count);
  if (smallest_side <= 0 || factors == nullptr) return best;
  for (int i = 0; i < count; ++i) {
    const tjscalingfactor factor = factors[i];
    const bool enough = TJSCALED(width, factor) >= smallest_side && TJSCALED(height, factor) >= smallest_side;
    if (enough && factor.num * best.denom < best.num * factor.denom) best = factor;
  }
  return best;
}

// Printing colours, inverted as Adobe's programs write them.
void cmyk_to_rgb(std::vector<uint8_t>& pixels) {
  const size_t count = pixels.size() / 4;
  for (size_t i = 0; i < count; ++i) {
    const unsigned black = pixels[4 * i + 3];
    for (size_t c = 0; c < 3; ++c) pixels[3 * i + c] = static_cast<uint8_t>(pixels[4 * i + c] * black / 255);
  }
  pixels.resize(3 * count);
}

void decode_jpeg(std::string_view bytes, const std::string& file_name, int64_t smallest_side, Image& image,
                 int64_t most_pixels) {
  const std::unique_ptr<void, int (*)(void*)> decoder(tjInitDecompress(), tjDestroy);
  if (!decoder) throw Error(ErrorCode::device_failure, "TurboJPEG: tjInitDecompress failed");
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  int width = 0, height = 0, subsampling = 0, colours = 0;
  if (tjDecompressHeader3(decoder.get(), data, bytes.size(), &width, &height, &subsampling, &colours) < 0) {
    corrupt(file_name, "JPEG", tjGetErrorStr2(decoder.get()));
  }
  if (width < 1 || height < 1) corrupt(file_name, "JPEG", "it ends before the size of the image");
  require_moderate(file_name, width, height);
  require_plausible(file_name, "JPEG", width, height, bytes.size(), kMostJpegPixelsPerByte);
  const tjscalingfactor scaling = choose_scaling(width, height, smallest_side);
  width = TJSCALED(width, scaling);
  height = TJSCALED(height, scaling);
  require_at_most(file_name, width, height, most_pixels);
  const bool cmyk = colours == TJCS_CMYK || colours == TJCS_YCCK;
  const int format = cmyk ? TJPF_CMYK : TJPF_RGB;
  image.pixels.resize(int64_t{width} * height * (cmyk ? 4 : 3));
  // A file that ends early is only warned about; a strange byte between segments harms nothing.
  if (tjDecompress2(decoder.get(), data, bytes.size(), image.pixels.data(), width, 0, height, format,
                    TJFLAG_ACCURATEDCT) < 0) {
    const std::string_view why = tjGetErrorStr2(decoder.get());
    const bool harmless = tjGetErrorCode(decoder.get()) == TJERR_WARNING &&
                          why.find("extraneous bytes before marker") != std::string_view::npos;
    if (!harmless) corrupt(file_name, "JPEG", why);
  }
  if (cmyk) cmyk_to_rgb(image.pixels);
  image.width = width;
  image.height = height;
}

// Reads a file as the decoder asks for it. What goes wrong is thrown when the decoder has given up.
struct FileSource {
  const InputFile& file;
  int64_t at = 0;
  std::exception_ptr error = {};

  static int read(spng_ctx*, void* user, void* into, size_t length) {
    FileSource& source = *static_cast<FileSource*>(user);
    if (length > static_cast<size_t>(source.file.size() - source.at)) return SPNG_IO_EOF;
    try {
      source.file.read(source.at, {static_cast<std::byte*>(into), length});
    } catch (const Error&) {
      source.error = std::current_exception();
      return SPNG_IO_ERROR;
    }
    source.at += static_cast<int64_t>(length);
    return 0;
  }
};

// Of so many bytes, which `feed` gives to the decoder.
template <class Feed>
void decode_png(size_t bytes, const Feed& feed, const std::string& file_name, Image& image, int64_t most_pixels) {
  const std::unique_ptr<spng_ctx, void (*)(spng_ctx*)> context(spng_ctx_new(0), spng_ctx_free);
  if (!context) throw Error(ErrorCode::device_failure, "libspng: spng_ctx_new failed");
  const auto check = [&](int status) {
    if (status != 0) corrupt(file_name, "PNG", spng_strerror(status));
  };
  check(spng_set_chunk_limits(context.get(), 8 << 20, 16 << 20));
  check(feed(context.get()));
  spng_ihdr header{};
  check(spng_get_ihdr(context.get(), &header));
  require_moderate(file_name, header.width, header.height);
  require_plausible(file_name, "PNG", header.width, header.height, bytes, kMostPngPixelsPerByte);
  require_at_most(file_name, header.width, header.height, most_pixels);
  size_t size = 0;
  check(spng_decoded_image_size(context.get(), SPNG_FMT_RGB8, &size));
  image.pixels.resize(size);
  check(spng_decode_image(context.get(), image.pixels.data(), size, SPNG_FMT_RGB8, 0));
  check(spng_decode_chunks(context.get()));
  image.width = header.width;
  image.height = header.height;
}

bool is_png(std::string_view bytes) { return bytes.starts_with("\x89PNG"); }

void begin_image(Image& image) {
  image.channels = 3;
  image.maximum = 255;
}

}  // namespace

void decode_image(std::string_view bytes, const std::string& file_name, int64_t smallest_side, Image& image,
                  int64_t most_pixels) {
  begin_image(image);
  if (bytes.starts_with("\xFF\xD8")) return decode_jpeg(bytes, file_name, smallest_side, image, most_pixels);
  if (is_png(bytes)) {
    const auto feed = [&](spng_ctx* context) { return spng_set_png_buffer(context, bytes.data(), bytes.size()); };
    return decode_png(bytes.size(), feed, file_name, image, most_pixels);
  }
  if (bytes.empty())
    throw Error(ErrorCode::corrupt_file, fmt::format("{}: is empty; expected a JPEG or PNG image", file_name));
  throw Error(ErrorCode::unsupported, fmt::format("{}: is neither JPEG nor PNG", file_name));
}

void decode_image_file(const std::filesystem::path& file, int64_t smallest_side, Image& image, int64_t most_pixels) {
  const InputFile input(file);
  std::array<char, 4> first{};
  if (input.size() > kHeldFile.count && input.size() <= kLargestImageFile.count)
    input.read(0, std::as_writable_bytes(std::span(first)));
  if (!is_png({first.data(), first.size()}))
    return decode_image(read_file(file, kLargestImageFile), file.string(), smallest_side, image, most_pixels);
  begin_image(image);
  FileSource source{input};
  try {
    decode_png(
        static_cast<size_t>(input.size()),
        [&](spng_ctx* context) { return spng_set_png_stream(context, FileSource::read, &source); }, file.string(),
        image, most_pixels);
  } catch (const Error&) {
    if (source.error) std::rethrow_exception(source.error);
    throw;
  }
}

}  // namespace plimsoll
