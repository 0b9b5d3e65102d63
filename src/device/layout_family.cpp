// Layout families by name.
#include "base/names.h"
#include "plimsoll/device.h"
#include "plimsoll/error.h"

namespace plimsoll {

std::string_view to_string(LayoutFamily family) {
  switch (family) {
    case LayoutFamily::plain: return "plain";
    case LayoutFamily::channels_last: return "channels_last";
    case LayoutFamily::blocked: return "blocked";
  }
  return "?";
}

LayoutFamily family_named(std::string_view name) {
  std::vector<std::string> known;
  for (LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked}) {
    if (name == to_string(family)) return family;
    known.emplace_back(to_string(family));
  }
  throw Error(ErrorCode::invalid_input, unknown_name("layout family", name, known));
}

}  // namespace plimsoll
