// The gates of a recurrent layer at one step, a thread an element of h. See ops/recurrent.h.
#pragma once

#include "device/cuda/bodies/common.h"

namespace plimsoll::cuda {

enum class RecurrentCell : int32_t { lstm, gru, tanh, relu };

PLIMSOLL_BODY int64_t gates_of(RecurrentCell cell) {
  return cell == RecurrentCell::lstm ? 4 : cell == RecurrentCell::gru ? 3 : 1;
}
PLIMSOLL_BODY float gate_of(float v) { return 1 / (1 + expf(-v)); }

struct RecurrentStep {
  using Kind = EachElement;
  const float* x;
  const float* s;     // h of the step before times the weights
  const float* bias;  // or null
  const float* h_before;
  const float* c_before;
  float* h;
  float* c;
  float* kept;
  Divisor width;
  RecurrentCell cell;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division at = divide(i, width);
    const int64_t j = at.remainder;
    const int64_t gates = gates_of(cell);
    float g[4] = {}, of_state[4] = {};
    for (int64_t k = 0; k < gates; ++k) {
      const int64_t from = (at.quotient * gates + k) * width + j;
      of_state[k] = s[from] + (bias != nullptr ? bias[k * width + j] : 0);
      g[k] = x[from];
    }
    float* const keep = kept + at.quotient * 4 * width + j;
    switch (cell) {
      case RecurrentCell::lstm: {
        const float in = gate_of(g[0] + of_state[0]), forget = gate_of(g[1] + of_state[1]);
        const float next = tanhf(g[2] + of_state[2]), out = gate_of(g[3] + of_state[3]);
        const float state = forget * c_before[i] + in * next;
        keep[0] = in, keep[width] = forget, keep[2 * width] = next, keep[3 * width] = out;
        c[i] = state;
        h[i] = out * tanhf(state);
        break;
      }
      case RecurrentCell::gru: {
        const float reset = gate_of(g[0] + of_state[0]), z = gate_of(g[1] + of_state[1]);
        const float next = tanhf(g[2] + reset * of_state[2]);
        keep[0] = reset, keep[width] = z, keep[2 * width] = next, keep[3 * width] = of_state[2];
        h[i] = (1 - z) * next + z * h_before[i];
        break;
      }
      case RecurrentCell::tanh: h[i] = tanhf(g[0] + of_state[0]); break;
      case RecurrentCell::relu: h[i] = g[0] + of_state[0] > 0 ? g[0] + of_state[0] : 0; break;
    }
  }
};

// dh and dc hold the gradients of h and c, and afterwards what goes to those of the step before without passing through
// the weights.
struct RecurrentStepBackward {
  using Kind = EachElement;
  const float* dy;
  const float* given_dc;  // or null
  const float* h;
  const float* h_before;
  const float* c;
  const float* c_before;
  const float* kept;
  float* dx;
  float* ds;
  float* dh;
  float* dc;
  Divisor width;
  RecurrentCell cell;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division at = divide(i, width);
    const int64_t j = at.remainder;
    const int64_t gates = gates_of(cell);
    const int64_t to = at.quotient * gates * width + j;
    const float* const gate = kept + at.quotient * 4 * width + j;
    const float d = dh[i] + dy[i];
    switch (cell) {
      case RecurrentCell::lstm: {
        const float in = gate[0], forget = gate[width], next = gate[2 * width], out = gate[3 * width];
        const float bent = tanhf(c[i]);
        const float e = dc[i] + d * out * (1 - bent * bent) + (given_dc != nullptr ? given_dc[i] : 0);
        dx[to] = e * next * in * (1 - in);
        dx[to + width] = e * c_before[i] * forget * (1 - forget);
        dx[to + 2 * width] = e * in * (1 - next * next);
        dx[to + 3 * width] = d * bent * out * (1 - out);
        dc[i] = e * forget;
        dh[i] = 0;
        break;
      }
      case RecurrentCell::gru: {
        const float reset = gate[0], z = gate[width], next = gate[2 * width], s_n = gate[3 * width];
        const float dn = d * (1 - z) * (1 - next * next);
        dx[to] = ds[to] = dn * s_n * reset * (1 - reset);
        dx[to + width] = ds[to + width] = d * (h_before[i] - next) * z * (1 - z);
        dx[to + 2 * width] = dn;
        ds[to + 2 * width] = dn * reset;
        dh[i] = d * z;
        break;
      }
      case RecurrentCell::tanh: dx[to] = d * (1 - h[i] * h[i]), dh[i] = 0; break;
      case RecurrentCell::relu: dx[to] = h[i] > 0 ? d : 0, dh[i] = 0; break;
    }
  }
};

}  // namespace plimsoll::cuda
