#include "graph/json_parts.h"

#include <algorithm>
#include <limits>

namespace plimsoll {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::i32, DType::i64, DType::u8, DType::bit};
constexpr Role kRoles[] = {Role::input,     Role::hyperparameter, Role::parameter, Role::optimizer_state,
                           Role::statistic, Role::activation,     Role::gradient,  Role::output};
constexpr Initializer::Kind kKinds[] = {Initializer::Kind::constant, Initializer::Kind::normal,
                                        Initializer::Kind::uniform};

}  // namespace

DType read_dtype(const JsonReader& r) { return read_named(r, kDTypes); }
Role read_role(const JsonReader& r) { return read_named(r, kRoles); }

Initializer read_initializer(const JsonReader& r) {
  r.only({"kind", "mean", "scale"});
  return {read_named(r.member("kind"), kKinds), r.member("mean").number(), r.member("scale").number()};
}

Attributes read_attributes(const JsonReader& r, const std::function<int64_t(const JsonReader&)>& read_size) {
  if (!r.raw().is_object()) r.expected("an object");
  Attributes attributes;
  for (const auto& [name, value] : r.raw().items()) {
    const JsonReader item = r.member(name);
    if (value.is_string() && (item.text() == "inf" || item.text() == "-inf")) {  // JSON has no numbers for these
      attributes.set(name, item.text() == "inf" ? kInfinity : -kInfinity);
    } else if (value.is_string()) {
      attributes.set(name, item.text());
    } else if (value.is_number_float()) {
      attributes.set(name, item.number());
    } else if (value.is_array() &&
               std::any_of(value.begin(), value.end(), [](const auto& v) { return v.is_number_float(); })) {
      std::vector<double> list;
      for (size_t i = 0; i < item.size(); ++i) list.push_back(item.item(i).number());
      attributes.set(name, std::move(list));
    } else if (value.is_array()) {
      std::vector<int64_t> list;
      for (size_t i = 0; i < item.size(); ++i)
        list.push_back(read_size ? read_size(item.item(i)) : item.item(i).integer());
      attributes.set(name, std::move(list));
    } else if (value.is_number_integer()) {
      attributes.set(name, item.integer());
    } else {
      item.expected("an integer, a number, a text or a list of numbers");
    }
  }
  return attributes;
}

}  // namespace plimsoll
