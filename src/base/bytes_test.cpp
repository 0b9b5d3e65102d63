#include "plimsoll/bytes.h"

#include <gtest/gtest.h>

#include "plimsoll/error.h"

namespace plimsoll {
namespace {

std::string message_of(std::string_view text) {
  try {
    parse_bytes(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "no error";
}

TEST(Bytes, ReadsEveryUnitInAnyCase) {
  EXPECT_EQ(parse_bytes("1000"), 1000_B);
  EXPECT_EQ(parse_bytes("7B"), 7_B);
  EXPECT_EQ(parse_bytes("64k"), 64_KiB);
  EXPECT_EQ(parse_bytes("64KiB"), 64_KiB);
  EXPECT_EQ(parse_bytes("64kb"), 64000_B);
  EXPECT_EQ(parse_bytes("1.5GiB"), 1536_MiB);
  EXPECT_EQ(parse_bytes("  512 MB "), 512000000_B);
  EXPECT_EQ(parse_bytes("3g"), 3_GiB);
  EXPECT_EQ(parse_bytes("2tib"), Bytes{int64_t{2} << 40});
  EXPECT_EQ(parse_bytes("2TB"), Bytes{2000000000000});
  EXPECT_EQ(parse_bytes("1e9"), 1000000000_B);
  EXPECT_EQ(parse_bytes(".5M"), 512_KiB);
  EXPECT_EQ(parse_bytes("0"), 0_B);
}

TEST(Bytes, ReadsWholeNumbersExactlyUpToTheLargest) {
  EXPECT_EQ(parse_bytes("9223372036854775807"), Bytes{INT64_MAX});
  EXPECT_EQ(parse_bytes("9007199254740993"), Bytes{9007199254740993});  // 2^53 + 1, which no double holds
  EXPECT_EQ(message_of("9223372036854775808"),
            "'9223372036854775808' is not a size: it is more than 8 EiB; expected a number and a unit, as in 512MiB, "
            "1.5GiB or 2GB");
}

TEST(Bytes, SaysWhatIsWrongWithASize) {
  EXPECT_EQ(message_of("12GiBB"),
            "'12GiBB' is not a size: unknown unit 'GiBB'; expected a number and a unit, as in 512MiB, 1.5GiB or 2GB");
  EXPECT_NE(message_of("").find("it is empty"), std::string::npos);
  EXPECT_NE(message_of("-1GiB").find("it is negative"), std::string::npos);
  EXPECT_NE(message_of("GiB").find("does not begin with a number"), std::string::npos);
  EXPECT_NE(message_of("inf").find("does not begin with a number"), std::string::npos);
  EXPECT_NE(message_of(".").find("does not begin with a number"), std::string::npos);
  EXPECT_NE(message_of("1e400").find("out of range"), std::string::npos);
  EXPECT_NE(message_of("9000000TiB").find("more than 8 EiB"), std::string::npos);
  EXPECT_NE(message_of("1e30").find("more than 8 EiB"), std::string::npos);
  EXPECT_NE(message_of("1 2").find("unknown unit '2'"), std::string::npos);
  EXPECT_NE(message_of("0x10").find("unknown unit 'x10'"), std::string::npos);
}

TEST(Bytes, ReadsWholeOnesWithoutRounding) {
  EXPECT_EQ(parse_whole_bytes("1.5KiB"), 1536_B);
  EXPECT_EQ(parse_whole_bytes("1e6"), 1'000'000_B);
  EXPECT_EQ(parse_whole_bytes("9223372036854775807").count, INT64_MAX);
  for (const char* part : {"1.5", "0.7KiB", "1e-3", "9007199254740993.5"})
    EXPECT_THROW(parse_whole_bytes(part), Error) << part;
}

TEST(Bytes, PrintsThreeOrFourDigitsInTheLargestUnitThatFits) {
  EXPECT_EQ(to_string(0_B), "0 B");
  EXPECT_EQ(to_string(512_B), "512 B");
  EXPECT_EQ(to_string(1023_B), "1023 B");
  EXPECT_EQ(to_string(1_KiB), "1.00 KiB");
  EXPECT_EQ(to_string(1536_MiB), "1.50 GiB");
  EXPECT_EQ(to_string(Bytes{929248051}), "886.2 MiB");
  EXPECT_EQ(to_string(64_MiB), "64.0 MiB");
  EXPECT_EQ(to_string(1_GiB - 1_B), "1.00 GiB");
  EXPECT_EQ(to_string(Bytes{10 * 1024 - 1}), "10.0 KiB");
  EXPECT_EQ(to_string(Bytes{-1536}), "-1.50 KiB");
  EXPECT_EQ(to_string(Bytes{INT64_MAX}), "8.00 EiB");
}

TEST(Bytes, ReadsBackWhatItPrints) {
  for (int64_t count : {int64_t{0}, int64_t{1023}, int64_t{5} << 20, int64_t{3} << 30, int64_t{1} << 41}) {
    EXPECT_EQ(parse_bytes(to_string(Bytes{count})), Bytes{count}) << count;
  }
}

}  // namespace
}  // namespace plimsoll
