#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>

#include "base/names.h"
#include "ops/families.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<OpType>, std::less<>> types;

  const OpType& add(OpType type) {
    if (type.kind == LayerKind::unset) {
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("op type '{}' has no kind: set OpType::kind to that of its layer, such as LayerKind::activation, "
                      "or to LayerKind::other",
                      type.name));
    }
    auto [it, added] = types.emplace(type.name, nullptr);
    if (!added) throw Error(ErrorCode::invalid_input, fmt::format("there is already an op type '{}'", type.name));
    it->second = std::make_unique<OpType>(std::move(type));
    return *it->second;
  }
};

Registry& registry() {
  static Registry& instance = *[] {
    auto* fresh = new Registry;
    for (auto family : kOpFamilies) {
      for (OpType& type : family()) fresh->add(std::move(type));
    }
    return fresh;
  }();
  return instance;
}

}  // namespace

const OpType& register_op(OpType type) {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  return r.add(std::move(type));
}

const OpType& op_type(std::string_view name) {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  auto it = r.types.find(name);
  if (it != r.types.end()) return *it->second;
  std::vector<std::string> known;
  for (const auto& [type_name, type] : r.types) known.push_back(type_name);
  throw Error(ErrorCode::invalid_input, unknown_name("op type", name, known));
}

std::vector<const OpType*> all_op_types() {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  std::vector<const OpType*> result;
  for (const auto& [name, type] : r.types) result.push_back(type.get());
  return result;
}

}  // namespace plimsoll
