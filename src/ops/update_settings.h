// The settings of an update. The learning rate is an input; the others are attributes. Where the learning rate's input is
// a vector, the others follow it there, and stand for the attributes: so they may change from step to step.
//
//   SgdUpdate   {learning rate, weight decay, momentum}
//   AdamUpdate  {learning rate, weight decay, 1 - beta1, 1 - beta2, epsilon}
//
// Of betas there is what is missing to 1, since f32 keeps that exactly enough.
#pragma once

#include <initializer_list>
#include <vector>

#include "plimsoll/graph.h"

namespace plimsoll {

inline std::vector<float> floats_of(std::initializer_list<double> values) {
  std::vector<float> result;
  for (double value : values) result.push_back(static_cast<float>(value));
  return result;
}

struct SgdSettings {
  static constexpr int64_t kCount = 3;
  explicit SgdSettings(const Attributes& a)
      : weight_decay(a.real("weight_decay", 0)),
        momentum(a.real("momentum", 0)),
        nesterov(a.integer("nesterov", 0) != 0) {}

  template <class T>
  void read(const T* given, int64_t count) {
    learning_rate = given[0];
    if (count != kCount) return;
    weight_decay = given[1];
    momentum = given[2];
  }

  std::vector<float> values() const { return floats_of({learning_rate, weight_decay, momentum}); }

  double learning_rate = 0, weight_decay, momentum;
  bool nesterov;
};

struct AdamSettings {
  static constexpr int64_t kCount = 5;
  explicit AdamSettings(const Attributes& a)
      : weight_decay(a.real("weight_decay", 0)),
        rest1(1 - a.real("beta1", 0.9)),
        rest2(1 - a.real("beta2", 0.999)),
        epsilon(a.real("epsilon", 1e-8)),
        decoupled(a.integer("decoupled", 0) != 0) {}

  template <class T>
  void read(const T* given, int64_t count) {
    learning_rate = given[0];
    if (count != kCount) return;
    weight_decay = given[1];
    rest1 = given[2];
    rest2 = given[3];
    epsilon = given[4];
  }
  std::vector<float> values() const { return floats_of({learning_rate, weight_decay, rest1, rest2, epsilon}); }
  double beta1() const { return 1 - rest1; }
  double beta2() const { return 1 - rest2; }

  double learning_rate = 0, weight_decay, rest1, rest2, epsilon;
  bool decoupled;
};

}  // namespace plimsoll
