#include "ops/known_functions.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace plimsoll {
namespace {

std::string known(std::string_view text) { return to_string(with_known_functions(parse_expression(text))); }

TEST(KnownFunctions, AreFoundHoweverTheyAreWritten) {
  for (const char* gelu : {
           // Hugging Face's gelu_new, gelu_fast and Bloom's
           "mul(mul(x0,0.5),add(tanh(mul(add(x0,mul(mul(square(x0),x0),0.044715)),0.7978845608028654)),1))",
           "mul(mul(0.5,x0),add(1,tanh(mul(mul(x0,0.7978845608),add(1,mul(mul(0.044715,x0),x0))))))",
           "mul(mul(x0,0.5),add(1,tanh(mul(mul(0.79788456,x0),add(1,mul(mul(0.044715,x0),x0))))))",
           "mul(x0,sigmoid(mul(2,mul(0.7978845608028654,add(x0,mul(0.044715,pow(x0,3)))))))",
       }) {
    EXPECT_EQ(known(gelu), "gelu_tanh(x0)") << gelu;
  }
  EXPECT_EQ(known("mul(mul(x0,0.5),add(1,erf(div(x0,1.4142135623730951))))"), "gelu(x0)");
  EXPECT_EQ(known("mul(x0,sigmoid(x0))"), "silu(x0)");
  EXPECT_EQ(known("div(x0,add(1,exp(neg(x0))))"), "silu(x0)");
  EXPECT_EQ(known("mul(x0,tanh(log1p(exp(x0))))"), "mish(x0)");
}

TEST(KnownFunctions, AreFoundWithinOthersAndOfWhatIsComputed) {
  EXPECT_EQ(known("t0=add(x0,x1);mul(x2,mul(t0,sigmoid(t0)))"), "mul(x2,silu(add(x0,x1)))");
  EXPECT_EQ(known("t0=mul(x0,sigmoid(x0));mul(t0,sigmoid(t0))"), "silu(silu(x0))");
}

TEST(KnownFunctions, AreNotFoundInOthers) {
  for (const char* other :
       {"mul(x0,sigmoid(mul(1.702,x0)))",  // quick GELU
        "mul(x0,sigmoid(x1))", "mul(mul(x0,0.5),add(1,erf(div(x0,1.4))))", "mul(mul(x0,0.5),add(1,tanh(x0)))",
        "t0=min(x0,20);mul(t0,sigmoid(x0))",
        "mul(mul(x0,0.5),add(tanh(mul(add(x0,mul(mul(square(x0),x0),0.0447)),0.7978845608028654)),1))"}) {
    const std::string plain = to_string(parse_expression(other));
    EXPECT_EQ(known(other), plain);
  }
}

}  // namespace
}  // namespace plimsoll
