// How a failure is told. There is one exception type. Its code says what the caller can do about it. Its message says
// what is wrong, where, how much, and which flag or field to change.
#pragma once

#include <stdexcept>
#include <string>

namespace plimsoll {

enum class ErrorCode {
  invalid_input,   // the user's words or files are wrong: exit code 2
  unsupported,     // right, but this build or device cannot do it: exit code 2
  infeasible,      // no plan fits the budget, where a value could not carry it: exit code 3
  device_failure,  // a device, a library or the system failed: exit code 4
  corrupt_file,    // a file is not what it says it is: exit code 2
  interrupted,     // the user stopped it: exit code 5
  internal,        // a bug in Plimsoll: exit code 4
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace plimsoll
