// The cases of layer norm, RMS norm, group norm and rotary positions.
#pragma once

#include <fmt/format.h>

#include "tests/conformance/case.h"

namespace plimsoll::conformance {

inline void add_norm_cases(std::vector<Case>& cases, const std::string& type, const Shape& x, const Shape& affine_shape,
                           const Attributes& attributes, const std::string& text) {
  for (const std::string affine : {"none", "gamma", "gamma_beta"}) {
    if (type == "RmsNorm" && affine == "gamma_beta") continue;
    auto build = [=](CaseBuilder& b, bool backward) {
      Attributes all = attributes;
      all.set("affine", affine);
      std::vector<TensorId> inputs = {b.normal(x, 0.5, 2)};
      if (affine != "none") inputs.push_back(b.normal(affine_shape, 1, 0.3));
      if (affine == "gamma_beta") inputs.push_back(b.normal(affine_shape));
      const auto outputs = b.op(type + "Forward", inputs, all);
      if (!backward) return;
      std::vector<TensorId> back = {inputs[0], b.normal(x)};
      back.insert(back.end(), outputs.begin() + 1, outputs.end());
      if (affine != "none") back.push_back(inputs[1]);
      b.op(type + "Backward", back, all);
    };
    cases.push_back({type + "Forward", text + " " + affine, [=](CaseBuilder& b) { build(b, false); }});
    cases.push_back({type + "Backward", text + " " + affine, [=](CaseBuilder& b) { build(b, true); }});
  }
}

inline std::vector<Case> norm_cases() {
  struct Sizes {
    Shape x;
    int64_t count;  // of axes, or of groups
  };
  std::vector<Case> cases;
  for (const Sizes& s : {Sizes{{4, 20}, 1},
                         {{3, 5, 17}, 1},
                         {{2, 3, 4, 5}, 3},
                         {{1, 1, 7}, 1},
                         {{6, 1000}, 1},
                         {{40, 300}, 1},
                         {{3400, 16}, 1},  // more than one row for each group of threads
                         {{7, 512}, 1},
                         {{5, 1028}, 1},
                         {{9, 4096}, 1},
                         {{2, 8192}, 1},
                         {{2, 8196}, 1},
                         {{5, 12}, 2}}) {
    const Shape affine(s.x.end() - s.count, s.x.end());
    for (const std::string type : {"LayerNorm", "RmsNorm"}) {
      add_norm_cases(cases, type, s.x, affine, {{"axes", s.count}, {"epsilon", 1e-4}},
                     fmt::format("{} axes {}", to_string(s.x), s.count));
    }
  }
  for (const Sizes& s : {Sizes{{2, 20, 5, 7}, 5},
                         {{1, 6, 3, 3}, 6},
                         {{3, 64, 8, 8}, 8},
                         {{2, 35, 6}, 1},
                         {{4, 12}, 3},
                         {{2, 3, 1, 1}, 1}}) {
    add_norm_cases(cases, "GroupNorm", s.x, {s.x[1]}, {{"groups", s.count}, {"epsilon", 1e-4}},
                   fmt::format("{} groups {}", to_string(s.x), s.count));
  }
  return cases;
}

inline std::vector<Case> rotary_cases() {
  struct Sizes {
    Shape x, table;
    int64_t width = 0;  // 0: all of a row
  };
  std::vector<Case> cases;
  for (const Sizes& s : {Sizes{{2, 3, 4, 64}, {3, 1, 32}},
                         {{2, 4, 5, 64}, {5, 64}},
                         {{2, 4, 5, 96}, {1, 1, 5, 24}, 48},
                         {{2, 4, 5, 80}, {2, 1, 5, 32}, 32},
                         {{3, 5, 22}, {5, 6}, 12},
                         {{3, 4, 2, 10}, {3, 1, 1, 10}},
                         {{2, 3, 2, 2, 36}, {3, 1, 2, 18}},
                         {{600, 128}, {64}},
                         {{4}, {2}}}) {
    for (const int64_t inverse : {0, 1}) {
      Attributes attributes{{"inverse", inverse}};
      if (s.width > 0) attributes.set("width", s.width);
      const std::string text =
          fmt::format("{} by {} width {}{}", to_string(s.x), to_string(s.table), s.width, inverse ? " inverse" : "");
      cases.push_back(
          {"Rotary", text, [=](CaseBuilder& b) {
             b.op("Rotary", {b.normal(s.x), b.uniform(s.table, -1, 1), b.uniform(s.table, -1, 1)}, attributes);
           }});
    }
  }
  return cases;
}

}  // namespace plimsoll::conformance
