// A list with one element for every id, or every step, of a kind: indexed by the id itself, so that no number is cast
// and no tensor's element is taken for an op's.
//
//   ById<OpId, double> ms(graph.op_count());      ms[step.op] += 1;
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace plimsoll {

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

// The key is an id (which has an `index`), an enumerator, or a number such as a StepIndex.
template <class Key, class T>
class ById : public std::vector<T> {
 public:
  using List = std::vector<T>;
  ById() = default;
  explicit ById(size_t count) : List(count) {}
  ById(size_t count, const T& value) : List(count, value) {}
  explicit ById(List list) : List(std::move(list)) {}

  Ids<Key> ids() const { return Ids<Key>(List::size()); }
  decltype(auto) operator[](Key key) { return List::operator[](place(key)); }
  decltype(auto) operator[](Key key) const { return List::operator[](place(key)); }

 private:
  static constexpr size_t place(Key key) {
    if constexpr (requires { key.index; }) {
      return static_cast<size_t>(key.index);
    } else {
      return static_cast<size_t>(key);
    }
  }
};

}  // namespace plimsoll
