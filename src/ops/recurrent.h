// A recurrent layer over a whole sequence, for one direction. What the input adds to the gates comes ready, so only what
// depends on the step before is computed step by step:
//
//   s = W h' + b, where h' is h of the step before, and the gates stand one after the other in x and s
//   lstm   i, f, g, o = sigmoid, sigmoid, tanh, sigmoid(x + s);        c = f c' + i g;  h = o tanh(c)
//   gru    r, z = sigmoid(x + s);  n = tanh(x_n + r s_n);              h = (1 - z) n + z h'
//   tanh   h = tanh(x + s)         relu   h = max(0, x + s)
#pragma once

#include "plimsoll/ops.h"

namespace plimsoll {

enum class Cell : uint8_t { lstm, gru, tanh, relu };

struct Recurrence {
  Cell cell = Cell::lstm;
  bool reverse = false;  // from the last step to the first
  int64_t steps = 0, rows = 0, width = 0;
  int64_t gates() const { return cell == Cell::lstm ? 4 : cell == Cell::gru ? 3 : 1; }
  // Per row and step, what the forward pass keeps for the backward pass: i, f, g, o; or r, z, n, s_n; or nothing.
  int64_t kept() const { return cell == Cell::lstm || cell == Cell::gru ? 4 : 0; }
  // The i-th step in the order of time, as its place in the sequence.
  int64_t place(int64_t i) const { return reverse ? steps - 1 - i : i; }
};
Cell cell_named(std::string_view name);  // throws Error(invalid_input)
// From x (or its gradient, as long) and the weights.
Recurrence recurrence_of(const Attributes& attributes, const Shape& sequence, const Shape& weights);

// Which input of RecurrentBackward is which; dy and w come first.
struct BackwardInputs {
  size_t y = 0, c = 0, kept = 0, h0 = 0, c0 = 0, dc = 0;  // 0: not there
};
BackwardInputs backward_inputs(Cell cell, size_t count);

}  // namespace plimsoll
