// Numbers and foreign texts as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plimsoll {

// "0.0123", "54.4", "5440": so many digits that count, and never an exponent for what is large.
std::string number_text(double value, int digits = 3);
// "5.44 s", "12.3 ms", "870 µs".
std::string time_text(double ms, int digits = 3);
// "321 images/s", "5.44 images/s".
// Of samples; of their tokens where they are texts of so many.
std::string rate_text(double samples_per_second, int64_t tokens = 0);

// What somebody wrote, for a message: its beginning where it is long.
std::string cut_text(std::string_view text, size_t most = 60);

}  // namespace plimsoll
