#include "base/texts.h"

#include <gtest/gtest.h>

#include "base/names.h"

namespace plimsoll {
namespace {

TEST(Texts, TimesHaveTheUnitThatPeopleRead) {
  EXPECT_EQ(time_text(0), "0 ms");
  EXPECT_EQ(time_text(0.00123), "1.23 µs");
  EXPECT_EQ(time_text(0.0996), "0.0996 ms");
  EXPECT_EQ(time_text(5.444), "5.44 ms");
  EXPECT_EQ(time_text(999.4), "999 ms");
  EXPECT_EQ(time_text(999.6), "1 s");
  EXPECT_EQ(time_text(5440), "5.44 s");
  EXPECT_EQ(time_text(5440000), "5440 s");
  EXPECT_EQ(time_text(12345.678, 4), "12.35 s");
}

TEST(Texts, RatesAndNumbersHaveNoExponents) {
  EXPECT_EQ(rate_text(5.444), "5.44 images/s");
  EXPECT_EQ(rate_text(123456), "123456 images/s");
  EXPECT_EQ(rate_text(2.5, 512), "1280 tokens/s");
  EXPECT_EQ(number_text(999.7), "1000");
  EXPECT_EQ(number_text(-12345), "-12345");
}

TEST(Texts, LongTextsAreCutBetweenLetters) {
  EXPECT_EQ(cut_text("short"), "short");
  EXPECT_EQ(cut_text(std::string(5000, 'x')).size(), 60U);
  EXPECT_EQ(cut_text("äääää", 9), "äää...");
}

TEST(Names, SuggestsWhatBeginsSoAndCutsWhatIsLong) {
  const std::vector<std::string> known{"vgg11", "vgg16", "resnet50"};
  EXPECT_EQ(unknown_name("model", "vgg", known),
            "unknown model 'vgg'; did you mean vgg11 or vgg16? known: vgg11, vgg16, resnet50");
  EXPECT_EQ(unknown_name("model", "resnet5", known),
            "unknown model 'resnet5'; did you mean 'resnet50'? known: vgg11, vgg16, resnet50");
  EXPECT_LT(unknown_name("model", std::string(5000, 'v'), known).size(), 200U);
}

}  // namespace
}  // namespace plimsoll
