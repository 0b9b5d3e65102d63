#include "train/old_settings.h"

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <string_view>

#include "plimsoll/error.h"
#include "plimsoll/verify.h"

namespace plimsoll {
namespace {

using nlohmann::json;

enum class Kind { whole, real, flag, text };
struct OldSetting {
  std::string_view name;
  Kind kind;
  json otherwise;  // where a checkpoint says nothing of it; null: then nothing is said now either
  double least = 0, most = 0;
};

// Ranges are those that the settings' texts were read by.
const std::vector<OldSetting>& old_settings() {
  constexpr double kMostEpochs = 1 << 30, kMostBytes = 1e18;
  static const std::vector<OldSetting> settings = {{"image_size", Kind::whole, 0U, 0, 1 << 16},
                                                   {"classes", Kind::whole, 0U, 0, 1 << 24},
                                                   {"augment", Kind::flag, true, 0, 1},
                                                   {"warmup_epochs", Kind::whole, 0U, 0, kMostEpochs},
                                                   {"warmup_lr", Kind::real, 0, 0, 1e9},
                                                   {"min_lr", Kind::real, 0, 0, 1e9},
                                                   {"decay_rate", Kind::real, 0.1, 0, 1},
                                                   {"decay_epochs", Kind::whole, 30U, 1, kMostEpochs},
                                                   {"inter_op", Kind::whole, 1U, 0, kMostThreads},
                                                   {"intra_op", Kind::whole, 0U, 0, kMostThreads},
                                                   {"climb_interval", Kind::whole, 0U, 0, kMostThreads},
                                                   {"strategies", Kind::text, nullptr},
                                                   {"host_memory", Kind::whole, nullptr, 1, kMostBytes},
                                                   {"spill", Kind::text, nullptr},
                                                   {"spill_size", Kind::whole, nullptr, 1, kMostBytes},
                                                   {"peer", Kind::text, nullptr},
                                                   {"peer_size", Kind::whole, nullptr, 1, kMostBytes}};
  return settings;
}

[[noreturn]] void refuse(std::string_view name, std::string_view what) {
  throw Error(ErrorCode::corrupt_file, fmt::format("training state: setting '{}'{}", name, what));
}

template <class Number>
Number number_in(std::string_view name, const std::string& text, double least, double most) {
  Number found{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), found);
  const auto value = static_cast<double>(found);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= most)) {
    refuse(name, fmt::format(": expected a number from {} to {}, not '{}'", least, most, text.substr(0, 60)));
  }
  return found;
}

json value_of(const OldSetting& setting, const std::string& text) {
  switch (setting.kind) {
    case Kind::whole: return number_in<uint64_t>(setting.name, text, setting.least, setting.most);
    case Kind::real: return number_in<double>(setting.name, text, setting.least, setting.most);
    case Kind::flag: return number_in<int64_t>(setting.name, text, setting.least, setting.most) == 1;
    case Kind::text: break;
  }
  return text;
}

// "inter_op_chosen", "threads of OP" and "affinity of OP"; false for any other name.
bool take_core_setting(std::string_view name, const std::string& text, std::optional<SavedCores>& cores) {
  constexpr std::string_view kThreads = "threads of ", kAffinity = "affinity of ";
  const auto count = [&](int least, int most) { return number_in<int>(name, text, least, most); };
  const auto op_after = [&](std::string_view words) -> SavedCores::OpThreads& {
    if (!cores) cores.emplace();
    return cores->ops[std::string(name.substr(words.size()))];
  };
  if (name == "inter_op_chosen") {
    if (!cores) cores.emplace();
    cores->sharing.inter_op = count(1, kMostThreads);
  } else if (name.starts_with(kThreads)) {
    op_after(kThreads).threads = count(0, kMostThreads);
  } else if (name.starts_with(kAffinity)) {
    op_after(kAffinity).affinity = static_cast<Affinity>(count(0, static_cast<int>(Affinity::smt)));
  } else {
    return false;
  }
  return true;
}

}  // namespace

std::optional<SavedCores> upgrade_settings(json& state) {
  const json old = state.contains("settings") ? state["settings"] : json();
  if (!old.is_object()) throw Error(ErrorCode::corrupt_file, "training state: field 'settings': expected an object");
  json settings = json::object();
  for (const OldSetting& setting : old_settings()) {
    if (!setting.otherwise.is_null()) settings[std::string(setting.name)] = setting.otherwise;
  }
  std::optional<SavedCores> cores;
  for (const auto& [name, value] : old.items()) {
    if (!value.is_string()) refuse(name, ": expected a text");
    const std::string& text = value.get_ref<const std::string&>();
    const auto known = std::find_if(old_settings().begin(), old_settings().end(),
                                    [&](const OldSetting& setting) { return setting.name == name; });
    if (known != old_settings().end()) {
      settings[name] = value_of(*known, text);
    } else if (!take_core_setting(name, text, cores)) {
      refuse(name, " is not known");
    }
  }
  state["settings"] = std::move(settings);
  if (cores && !old.contains("inter_op_chosen")) cores.reset();  // nothing was chosen
  return cores;
}

}  // namespace plimsoll
