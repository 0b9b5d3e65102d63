// A list with one element for every id, or every step, of a kind: indexed by the id itself, so that no number is cast and no
// tensor's element is taken for an op's.
//
//   ById<OpId, double> ms(graph.op_count());      ms[step.op] += 1;
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace plimsoll {

// The place of an id (which has an `index`) or of a number in a list.
template <class Key>
constexpr size_t place(Key key) {
  if constexpr (requires { key.index; }) {
    return static_cast<size_t>(key.index);
  } else {
    return static_cast<size_t>(key);
  }
}

template <class Key, class T>
class ById : public std::vector<T> {
 public:
  using List = std::vector<T>;
  ById() = default;
  template <class Count>
  explicit ById(Count count) : List(place(count)) {}
  template <class Count>
  ById(Count count, const T& value) : List(place(count), value) {}
  explicit ById(List list) : List(std::move(list)) {}

  decltype(auto) operator[](Key key) { return List::operator[](place(key)); }
  decltype(auto) operator[](Key key) const { return List::operator[](place(key)); }
};

}  // namespace plimsoll
