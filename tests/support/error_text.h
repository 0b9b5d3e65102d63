// What an operation that must fail says.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "plimsoll/error.h"

namespace plimsoll::testing {

// The message of the Error that `action` throws. Fails the test where the Error has another code, and where there is
// none.
template <class Action>
std::string error_text(ErrorCode code, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// The same whatever its code; empty where nothing is thrown.
template <class Action>
std::string text_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace plimsoll::testing
