// The cases of recurrent layers.
#pragma once

#include <fmt/format.h>

#include "tests/conformance/case.h"

namespace plimsoll::conformance {

inline std::vector<Case> recurrent_cases() {
  struct Sizes {
    int64_t steps, rows, width;
  };
  std::vector<Case> cases;
  for (const std::string cell : {"lstm", "gru", "tanh", "relu"}) {
    for (const Sizes& s : {Sizes{5, 3, 20}, Sizes{1, 1, 1}, Sizes{7, 16, 64}, Sizes{12, 5, 33}}) {
      for (const int64_t reverse : {0, 1}) {
        const bool lstm = cell == "lstm", bias = reverse == 0;
        const int64_t gates = (lstm ? 4 : cell == "gru" ? 3 : 1) * s.width;
        const Attributes attributes = {{"cell", cell}, {"reverse", reverse}};
        const auto forward = [=](CaseBuilder& b) {
          std::vector<TensorId> inputs = {b.normal({s.steps, s.rows, gates}), b.normal({gates, s.width}, 0, 0.2),
                                          b.normal({s.rows, s.width}, 0, 0.5)};
          if (lstm) inputs.push_back(b.normal({s.rows, s.width}, 0, 0.5));
          if (bias) inputs.push_back(b.normal({gates}));
          return inputs;
        };
        const std::string text = fmt::format("{} of {} steps, {} rows, {} wide{}{}", cell, s.steps, s.rows, s.width,
                                             reverse != 0 ? ", reverse" : "", bias ? ", with bias" : "");
        cases.push_back(
            {"RecurrentForward", text, [=](CaseBuilder& b) { b.op("RecurrentForward", forward(b), attributes); }});
        cases.push_back({"RecurrentBackward", text, [=](CaseBuilder& b) {
                           const std::vector<TensorId> in = forward(b), out = b.op("RecurrentForward", in, attributes);
                           std::vector<TensorId> inputs = {b.normal({s.steps, s.rows, s.width}), in[1]};
                           if (lstm) {
                             inputs.insert(inputs.end(), {out[1], out[2], in[3]});
                             if (bias) inputs.push_back(b.normal({s.steps, s.rows, s.width}));
                           } else {
                             inputs.push_back(out[0]);
                             if (cell == "gru") inputs.insert(inputs.end(), {out[1], in[2]});
                           }
                           b.op("RecurrentBackward", inputs, attributes);
                         }});
      }
    }
  }
  return cases;
}

}  // namespace plimsoll::conformance
