// MNIST, CIFAR and image folders, as files that the tests write.
#include <gtest/gtest.h>
#include <spng.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <turbojpeg.h>
#include <zlib.h>

#include <fstream>

#include "base/files.h"
#include "data/decode.h"
#include "data/sources.h"
#include "plimsoll/data.h"
#include "plimsoll/error.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

using testing::error_text;

namespace fs = std::filesystem;

void write(const fs::path& file, const std::string& bytes) {
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void write_gzip(const fs::path& file, const std::string& bytes) {
  gzFile out = gzopen(file.c_str(), "wb");
  gzwrite(out, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(out);
}

std::string idx(std::vector<uint32_t> dimensions, const std::string& data) {
  std::string bytes{0, 0, 8, static_cast<char>(dimensions.size())};
  for (uint32_t d : dimensions) {
    for (int shift : {24, 16, 8, 0}) bytes += static_cast<char>(d >> shift);
  }
  return bytes + data;
}

// An image of one colour, or with a gradient to the right in red.
std::vector<uint8_t> picture(int width, int height, uint8_t red, uint8_t green, uint8_t blue, bool gradient = false) {
  std::vector<uint8_t> pixels;
  for (int i = 0; i < width * height; ++i) {
    pixels.insert(pixels.end(), {static_cast<uint8_t>(gradient ? i % width * 255 / width : red), green, blue});
  }
  return pixels;
}

std::string jpeg(int width, int height, const std::vector<uint8_t>& rgb) {
  tjhandle encoder = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  EXPECT_EQ(tjCompress2(encoder, rgb.data(), width, 0, height, TJPF_RGB, &bytes, &size, TJSAMP_444, 95, 0), 0);
  std::string file(reinterpret_cast<char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(encoder);
  return file;
}

std::string png(int width, int height, const std::vector<uint8_t>& pixels,
                uint8_t color_type = SPNG_COLOR_TYPE_TRUECOLOR) {
  spng_ctx* encoder = spng_ctx_new(SPNG_CTX_ENCODER);
  spng_set_option(encoder, SPNG_ENCODE_TO_BUFFER, 1);
  spng_ihdr header{};
  header.width = static_cast<uint32_t>(width);
  header.height = static_cast<uint32_t>(height);
  header.bit_depth = 8;
  header.color_type = color_type;
  spng_set_ihdr(encoder, &header);
  EXPECT_EQ(spng_encode_image(encoder, pixels.data(), pixels.size(), SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE), 0);
  size_t size = 0;
  int error = 0;
  void* bytes = spng_get_png_buffer(encoder, &size, &error);
  std::string file(static_cast<char*>(bytes), size);
  free(bytes);
  spng_ctx_free(encoder);
  return file;
}

class DataFiles : public ::testing::Test {
 protected:
  std::string open_error(const std::string& kind, ErrorCode code = ErrorCode::corrupt_file) const {
    return error_text(code, [&] { open_data(kind + ":" + folder_.string()); });
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Three training images and two test images of 2x2.
  void write_mnist() const {
    write(folder_ / "train-images-idx3-ubyte", idx({3, 2, 2}, "abcdefghijkl"));
    write(folder_ / "train-labels-idx1-ubyte", idx({3}, std::string("\7\0\2", 3)));
    write(folder_ / "t10k-images-idx3-ubyte", idx({2, 2, 2}, "ABCDEFGH"));
    write(folder_ / "t10k-labels-idx1-ubyte", idx({2}, "\1\11"));
  }
  void write_cifar10(const std::string& record) const {
    for (int i = 1; i <= 5; ++i) write(folder_ / ("data_batch_" + std::to_string(i) + ".bin"), record);
    write(folder_ / "test_batch.bin", record);
  }

  const TemporaryFolder temporary_;
  const fs::path& folder_ = temporary_.path();
};

TEST_F(DataFiles, WhatNobodyCanReadToItsEndIsRefusedByName) {
  write(folder_ / "cat" / "1.png", png(2, 2, picture(2, 2, 255, 0, 0)));
  write(folder_ / "dog" / "1.png", png(2, 2, picture(2, 2, 0, 255, 0)));
  const fs::path bad = folder_ / "dog" / "2.png";
  ASSERT_EQ(::mkfifo(bad.c_str(), 0600), 0);
  EXPECT_EQ(open_error("images", ErrorCode::invalid_input),
            bad.string() +
                ": is no regular file but a pipe, a socket or a device; remove it, or name it without the "
                "ending of an image");
  fs::remove(bad);
  fs::create_symlink(bad, bad);
  EXPECT_EQ(open_error("images", ErrorCode::invalid_input),
            bad.string() + ": is a link that leads back to itself; remove it");
  fs::remove(bad);
  fs::create_symlink("nowhere", bad);
  EXPECT_EQ(open_error("images", ErrorCode::invalid_input),
            bad.string() + ": is a link to what is no file; remove it, or name it without the ending of an image");
  fs::remove(bad);
  for (const char* name : {"again", "once more"}) fs::create_directory_symlink("..", folder_ / "dog" / name);
  EXPECT_EQ(open_error("images", ErrorCode::invalid_input),
            path("dog/again") + ": is a link to a folder that it lies in; remove it");
  fs::remove(folder_ / "dog" / "again");
  fs::remove(folder_ / "dog" / "once more");
  fs::create_symlink("bird", folder_ / "bird");
  EXPECT_EQ(open_error("images", ErrorCode::invalid_input),
            path("bird") + ": is a link that leads back to itself; remove it");
}

TEST_F(DataFiles, APipeInThePlaceOfADataFileIsRefusedByName) {
  write_mnist();
  fs::remove(folder_ / "t10k-labels-idx1-ubyte");
  ASSERT_EQ(::mkfifo(path("t10k-labels-idx1-ubyte").c_str(), 0600), 0);
  EXPECT_EQ(open_error("mnist", ErrorCode::invalid_input),
            path("t10k-labels-idx1-ubyte") + ": cannot read: it is a pipe, not a regular file");
  ASSERT_EQ(::mkfifo(path("data_batch_1.bin").c_str(), 0600), 0);
  EXPECT_EQ(open_error("cifar10", ErrorCode::invalid_input),
            path("data_batch_1.bin") + ": cannot read: it is a pipe, not a regular file");
}

TEST_F(DataFiles, MnistIsReadPlainAndCompressed) {
  write_mnist();
  fs::remove(folder_ / "t10k-images-idx3-ubyte");
  write_gzip(folder_ / "t10k-images-idx3-ubyte.gz", idx({2, 2, 2}, "ABCDEFGH"));
  const auto data = open_data("mnist:" + folder_.string());
  EXPECT_EQ(data->info().train_count, 3);
  EXPECT_EQ(data->info().test_count, 2);
  EXPECT_EQ(data->info().height, 2);
  Image image;
  data->read(Split::train, 1, 0, image);
  EXPECT_EQ(image.pixels, (std::vector<uint8_t>{'e', 'f', 'g', 'h'}));
  EXPECT_EQ(image.label, 0);
  data->read(Split::test, 1, 0, image);
  EXPECT_EQ(image.pixels, (std::vector<uint8_t>{'E', 'F', 'G', 'H'}));
  EXPECT_EQ(image.label, 9);
}

TEST_F(DataFiles, MnistSaysWhatIsWrong) {
  EXPECT_EQ(open_error("mnist", ErrorCode::invalid_input),
            "data 'mnist': there is no train-images-idx3-ubyte or train-images-idx3-ubyte.gz in " + folder_.string());
  write_mnist();
  const std::string images = path("train-images-idx3-ubyte"), labels = path("train-labels-idx1-ubyte");
  write(images, idx({3, 2, 2}, "abcdefghijk"));
  EXPECT_EQ(open_error("mnist"), images + ": has 27 bytes; expected 28: a header of 16 and 12 of data");
  write(images, idx({3, 2, 2}, "abcdefghijkl+"));
  EXPECT_EQ(open_error("mnist"), images + ": has 29 bytes; expected 28: a header of 16 and 12 of data");
  write(images, "\0\0");
  EXPECT_EQ(open_error("mnist"), images + ": ends at byte 0; expected an idx header of 16 bytes");
  write(images, idx({12}, "abcdefghijkl"));
  EXPECT_EQ(open_error("mnist"),
            images + ": begins with 0x00000801; expected 0x00000803, an idx file of bytes in 3 dimensions");
  write(images, idx({3, 0, 2}, ""));
  EXPECT_EQ(open_error("mnist"), images + ": dimension 1 at byte 8 is 0; expected 1..16384");
  write(images, idx({0xFFFFFFFF, 2, 2}, ""));
  EXPECT_EQ(open_error("mnist"), images + ": dimension 0 at byte 4 is 4294967295; expected 1..1073741824");
  write_mnist();
  write(labels, idx({2}, "\1\2"));
  EXPECT_EQ(open_error("mnist"), labels + ": has 2 labels; expected 3, one for each image of " + images);
  write(labels, idx({3}, "\1\2\12"));
  EXPECT_EQ(open_error("mnist"), labels + ": label 2 is 10; expected 0..9");
  write_mnist();
  write(folder_ / "t10k-images-idx3-ubyte", idx({2, 2, 1}, "ABCD"));
  EXPECT_EQ(open_error("mnist"), path("t10k-images-idx3-ubyte") + ": has images of 2x1; expected 2x2, as in " + images);
}

TEST_F(DataFiles, CifarRecordsBecomeInterleavedImages) {
  std::string record(1, '\6');
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < 1024; ++i) record += static_cast<char>(c * 50 + i % 50);
  }
  write_cifar10(record + record);
  const auto data = open_data("cifar10:" + folder_.string());
  EXPECT_EQ(data->info().train_count, 10);
  EXPECT_EQ(data->info().test_count, 2);
  Image image;
  for (int64_t i = 0; i < 10; ++i) {
    data->read(Split::train, i, 0, image);
    EXPECT_EQ(image.label, 6);
    EXPECT_EQ(image.pixels[3 * 7 + 2], 107);
    EXPECT_EQ(image.pixels[3 * 1023], 23);
  }
}

TEST_F(DataFiles, Cifar100TakesTheFineLabelFromTheUsualFolder) {
  const std::string record = std::string("\3\143", 2) + std::string(3072, 'x');
  write(folder_ / "cifar-100-binary/train.bin", record + record);
  write(folder_ / "cifar-100-binary/test.bin", record);
  const auto data = open_data("cifar100:" + folder_.string());
  Image image;
  data->read(Split::train, 1, 0, image);
  EXPECT_EQ(image.label, 99);
  EXPECT_EQ(data->info().classes, 100);
}

TEST_F(DataFiles, CifarSaysWhatIsWrong) {
  EXPECT_EQ(open_error("cifar10", ErrorCode::invalid_input),
            "data 'cifar10': there is no data_batch_1.bin in " + folder_.string() + "; the binary version is needed");
  std::string record(3073, 'x');
  record[0] = 10;
  write_cifar10(record);
  const auto data = open_data("cifar10:" + folder_.string());
  Image image;
  EXPECT_EQ(error_text(ErrorCode::corrupt_file, [&] { data->read(Split::train, 2, 0, image); }),
            path("data_batch_3.bin") + ": the label at byte 0 is 10; expected 0..9");
  write(folder_ / "data_batch_4.bin", record.substr(1));
  EXPECT_EQ(open_error("cifar10"),
            path("data_batch_4.bin") + ": has 3072 bytes; expected a multiple of 3073, the size of a CIFAR-10 record");
  write_cifar10("");
  EXPECT_NE(open_error("cifar10").find("has 0 bytes"), std::string::npos);
}

TEST_F(DataFiles, ACifarFileThatShrinksWhileItIsUsedIsNoticed) {
  write_cifar10(std::string(2 * 3073, '\1'));
  const auto data = open_data("cifar10:" + folder_.string());
  fs::resize_file(folder_ / "test_batch.bin", 4000);
  Image image;
  EXPECT_EQ(error_text(ErrorCode::corrupt_file, [&] { data->read(Split::test, 1, 0, image); }),
            path("test_batch.bin") + ": ends at byte 4000; expected 3073 bytes at byte 3073");
}

TEST_F(DataFiles, ImageFoldersHaveTheirClassesInTheOrderOfTheirNames) {
  write(folder_ / "train/dog/b.jpg", jpeg(40, 30, picture(40, 30, 200, 0, 0)));
  write(folder_ / "train/dog/deep/a.PNG", png(40, 30, picture(40, 30, 0, 200, 0)));
  write(folder_ / "train/cat/1.jpeg", jpeg(40, 30, picture(40, 30, 0, 0, 200)));
  write(folder_ / "train/cat/notes.txt", "no image");
  write(folder_ / "train/.hidden/1.jpg", "no image");
  write(folder_ / "val/dog/1.png", png(40, 30, picture(40, 30, 9, 9, 9)));
  const auto data = open_data("images:" + folder_.string());
  EXPECT_EQ(data->info().class_names, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(data->info().train_count, 3);
  EXPECT_EQ(data->info().test_count, 1);
  Image image;
  data->read(Split::train, 0, 0, image);
  EXPECT_EQ(image.label, 0);
  EXPECT_NEAR(image.pixels[2], 200, 3);
  data->read(Split::train, 2, 0, image);
  EXPECT_EQ(image.label, 1);
  EXPECT_EQ(image.pixels[1], 200);
  data->read(Split::test, 0, 0, image);
  EXPECT_EQ(image.label, 1);
}

TEST_F(DataFiles, ImageFoldersWithoutASplitGetOneOfFourToOne) {
  for (int i = 0; i < 20; ++i) {
    const std::string name = (i % 2 ? "a/" : "b/") + std::to_string(i) + ".png";
    write(folder_ / name, png(2, 2, picture(2, 2, static_cast<uint8_t>(i), 0, 0)));
  }
  const auto data = open_data("images:" + folder_.string());
  EXPECT_EQ(data->info().train_count, 16);
  EXPECT_EQ(data->info().test_count, 4);
  std::vector<int> seen;
  Image image;
  for (Split split : {Split::train, Split::test}) {
    for (int64_t i = 0; i < data->count(split); ++i) {
      data->read(split, i, 0, image);
      seen.push_back(image.pixels[0]);
      EXPECT_EQ(image.label, image.pixels[0] % 2 ? 0 : 1);
    }
  }
  std::sort(seen.begin(), seen.end());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(seen[i], i);
}

TEST_F(DataFiles, ImageFoldersSayWhatIsWrong) {
  EXPECT_EQ(open_error("images", ErrorCode::invalid_input),
            folder_.string() + ": has 0 class folders; expected at least 2, each with its images");
  const std::string image = png(2, 2, picture(2, 2, 1, 2, 3));
  write(folder_ / "train/a/1.png", image);
  fs::create_directories(folder_ / "train/b");
  EXPECT_EQ(open_error("images", ErrorCode::invalid_input), path("train/b") + ": has no JPEG or PNG image");
  write(folder_ / "train/b/1.png", image);
  EXPECT_EQ(open_error("images", ErrorCode::invalid_input),
            folder_.string() + ": has train/ but neither val/ nor test/");
  write(folder_ / "test/c/1.png", image);
  EXPECT_EQ(open_error("images", ErrorCode::invalid_input),
            path("test/c") + ": is a class that the training images do not have");
  write(folder_ / "train/b/2.webp", image);
  EXPECT_EQ(open_error("images", ErrorCode::unsupported),
            path("train/b/2.webp") + ": only JPEG and PNG images are read");
}

TEST(DecodeImage, NamesTheFileWhoseDataIsDamaged) {
  const std::string good_jpeg = jpeg(64, 64, picture(64, 64, 0, 100, 50, true));
  const std::string good_png = png(64, 64, picture(64, 64, 0, 100, 50, true));
  Image image;
  const auto message = [&](const std::string& bytes, ErrorCode code = ErrorCode::corrupt_file) {
    return error_text(code, [&] { decode_image(bytes, "dir/x", 0, image); });
  };
  EXPECT_EQ(message(""), "dir/x: is empty; expected a JPEG or PNG image");
  EXPECT_EQ(message("GIF89a", ErrorCode::unsupported), "dir/x: is neither JPEG nor PNG");
  for (size_t share = 1; share < 10; ++share) {
    EXPECT_TRUE(message(good_jpeg.substr(0, good_jpeg.size() * share / 10)).starts_with("dir/x: damaged JPEG: "))
        << share;
    EXPECT_TRUE(message(good_png.substr(0, good_png.size() * share / 10 + 4)).starts_with("dir/x: damaged PNG: "))
        << share;
  }
  EXPECT_EQ(message(good_jpeg.substr(0, good_jpeg.size() - 2)), "dir/x: damaged JPEG: Premature end of JPEG file");
  std::string wrong_sum = good_png;
  wrong_sum[60] ^= 1;
  EXPECT_TRUE(message(wrong_sum).starts_with("dir/x: damaged PNG: ")) << message(wrong_sum);
}

TEST(DecodeImage, RefusesImagesThatWouldFillTheMemory) {
  std::string lying = png(4, 4, picture(4, 4, 1, 2, 3));
  const std::string ihdr = std::string("IHDR\0\1\0\0\0\1\0\0", 12) + lying.substr(24, 5);
  const uint32_t sum =
      static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(ihdr.data()), static_cast<uInt>(ihdr.size())));
  lying.replace(12, 17, ihdr);
  for (int i = 0; i < 4; ++i) lying[29 + i] = static_cast<char>(sum >> (24 - 8 * i));
  Image image;
  EXPECT_EQ(error_text(ErrorCode::unsupported, [&] { decode_image(lying, "x", 0, image); }),
            "x: is 65536x65536 pixels; at most 100 million are read");
}

TEST(DecodeImage, NoticesASizeThatTheFileCannotFill) {
  std::string lying = jpeg(16, 16, picture(16, 16, 1, 2, 3));
  const size_t frame = lying.find("\xFF\xC0");
  ASSERT_NE(frame, std::string::npos);
  lying.replace(frame + 5, 4, "\x27\x10\x1F\x40");
  Image image;
  EXPECT_EQ(error_text(ErrorCode::corrupt_file, [&] { decode_image(lying, "x", 0, image); }),
            "x: damaged JPEG: it says 8000x10000 pixels, but has " + std::to_string(lying.size()) + " bytes only");
}

TEST(DecodeImage, GivesRgbForGreyAndPaletteAndAlpha) {
  Image image;
  decode_image(png(2, 1, {10, 20}, SPNG_COLOR_TYPE_GRAYSCALE), "x", 0, image);
  EXPECT_EQ(image.pixels, (std::vector<uint8_t>{10, 10, 10, 20, 20, 20}));
  decode_image(png(1, 1, {1, 2, 3, 0}, SPNG_COLOR_TYPE_TRUECOLOR_ALPHA), "x", 0, image);
  EXPECT_EQ(image.pixels, (std::vector<uint8_t>{1, 2, 3}));
}

TEST(DecodeImage, ScalesLargeJpegsDownButNotBelowWhatIsAskedFor) {
  const std::string file = jpeg(800, 640, picture(800, 640, 200, 100, 50));
  Image image;
  decode_image(file, "x", 0, image);
  EXPECT_EQ(image.width, 800);
  decode_image(file, "x", 160, image);
  EXPECT_EQ(image.width, 200);
  EXPECT_EQ(image.height, 160);
  EXPECT_NEAR(image.pixels[0], 200, 3);
  decode_image(file, "x", 161, image);
  EXPECT_EQ(image.height, 240);
  EXPECT_EQ(image.pixels.size(), 300U * 240 * 3);
}

TEST(DecodeImage, ReadsALargePngAsItIsDecoded) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "large.png";
  std::vector<uint8_t> pixels(3 * 1400 * 1200);
  uint32_t random = 1;
  for (uint8_t& value : pixels) value = static_cast<uint8_t>((random = random * 1664525 + 1013904223) >> 24);
  const std::string bytes = png(1400, 1200, pixels);
  ASSERT_GT(bytes.size(), size_t{4} << 20);
  const auto write = [&](std::string_view content) { std::ofstream(file, std::ios::binary) << content; };
  write(bytes);
  Image held, streamed;
  decode_image(bytes, "x", 0, held);
  decode_image_file(file, 0, streamed);
  EXPECT_EQ(streamed.width, 1400);
  EXPECT_EQ(streamed.pixels, held.pixels);
  const auto is_refused = [&](std::string_view content) {
    write(content);
    const std::string text = error_text(ErrorCode::corrupt_file, [&] { decode_image_file(file, 0, streamed); });
    return text.find("large.png: damaged PNG") != std::string::npos;
  };
  EXPECT_TRUE(is_refused(std::string_view(bytes).substr(0, bytes.size() - 1000)));
  std::string changed = bytes;
  changed[changed.size() / 2] ^= 1;
  EXPECT_TRUE(is_refused(changed));
}

}  // namespace
}  // namespace plimsoll
