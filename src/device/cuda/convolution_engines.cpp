#include "device/cuda/convolution_engines.h"

#include <fmt/format.h>

#include <charconv>

namespace plimsoll::cuda {
namespace {

struct EngineNote {
  std::string_view text;
  bool EngineConfiguration::*flag;
  bool value;
};
constexpr EngineNote kEngineNotes[] = {{"fused_", &EngineConfiguration::fused, true},
                                       {"nondeterministic_", &EngineConfiguration::deterministic, false},
                                       {"winograd_", &EngineConfiguration::winograd, true},
                                       {"fft_", &EngineConfiguration::fft, true}};

// Takes the text from the front of `rest`, where it begins so.
bool take(std::string_view& rest, std::string_view text) {
  if (!rest.starts_with(text)) return false;
  rest.remove_prefix(text.size());
  return true;
}
bool take(std::string_view& rest, int64_t& number) {
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc{}) return false;
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  return true;
}

}  // namespace

std::string name_of(const EngineConfiguration& configuration) {
  std::string name;
  for (const EngineNote& note : kEngineNotes) {
    if (configuration.*note.flag == note.value) name += note.text;
  }
  name += fmt::format("eng{}", configuration.number);
  for (const auto& [type, choice] : configuration.knobs) name += fmt::format("_k{}={}", type, choice);
  return name;
}

std::optional<EngineConfiguration> parse_engine(std::string_view name) {
  EngineConfiguration made;
  for (const EngineNote& note : kEngineNotes) {
    if (take(name, note.text)) made.*note.flag = note.value;
  }
  if (!take(name, "eng") || !take(name, made.number)) return std::nullopt;
  while (!name.empty()) {
    std::pair<int64_t, int64_t> knob;
    if (!take(name, "_k") || !take(name, knob.first) || !take(name, "=") || !take(name, knob.second))
      return std::nullopt;
    made.knobs.push_back(knob);
  }
  return made;
}

}  // namespace plimsoll::cuda
