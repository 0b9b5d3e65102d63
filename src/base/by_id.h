// A list with one element for every id, or every step, of a kind: indexed by the id itself, so that no number is cast
// and no tensor's element is taken for an op's.
//
//   ById<OpId, double> ms(graph.op_count());      ms[step.op] += 1;
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace plimsoll {

// The place of an id (which has an `index`), an enumerator or a number in a list that has no type of its own.
template <class Key>
constexpr size_t at(Key key) {
  if constexpr (requires { key.index; }) {
    return static_cast<size_t>(key.index);
  } else {
    return static_cast<size_t>(key);
  }
}

template <class Key>
constexpr size_t place(Key key) {  // the same, where `at` is taken
  return at(key);
}

// All ids, in order: for (TensorId id : Ids<TensorId>(graph.tensor_count())).
template <class Key>
class Ids {
 public:
  class Iterator {
   public:
    explicit Iterator(int32_t index) : index_(index) {}
    Key operator*() const { return Key{index_}; }
    Iterator& operator++() { return ++index_, *this; }
    friend bool operator==(Iterator, Iterator) = default;

   private:
    int32_t index_;
  };
  template <class Count>
  explicit Ids(Count count) : count_(static_cast<int32_t>(count)) {}
  Iterator begin() const { return Iterator(0); }
  Iterator end() const { return Iterator(count_); }

 private:
  int32_t count_;
};

template <class Key, class T>
class ById : public std::vector<T> {
 public:
  using List = std::vector<T>;
  ById() = default;
  template <class Count>
  explicit ById(Count count) : List(plimsoll::at(count)) {}
  template <class Count>
  ById(Count count, const T& value) : List(plimsoll::at(count), value) {}
  explicit ById(List list) : List(std::move(list)) {}

  template <class Count>
  void resize(Count count) {
    List::resize(plimsoll::at(count));
  }
  template <class Count>
  void assign(Count count, const T& value) {
    List::assign(plimsoll::at(count), value);
  }

  Ids<Key> ids() const { return Ids<Key>(List::size()); }
  decltype(auto) operator[](Key key) { return List::operator[](plimsoll::at(key)); }
  decltype(auto) operator[](Key key) const { return List::operator[](plimsoll::at(key)); }
};

}  // namespace plimsoll
