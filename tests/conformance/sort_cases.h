// The cases of Sort, TopK and CumulativeSum.
#pragma once

#include <fmt/format.h>

#include "tests/conformance/case.h"
#include "tests/conformance/move_cases.h"

namespace plimsoll::conformance {

// Of few values, so that many are equal, zeros of both signs among them.
inline TensorId with_ties(CaseBuilder& b, const Shape& shape) {
  const TensorId whole = b.op("Cast", {b.integers(shape, DType::i32, -2, 3)}, {{"dtype", std::string("f32")}})[0];
  const TensorId sign = b.op("Cast", {b.integers(shape, DType::i32, 0, 2)}, {{"dtype", std::string("f32")}})[0];
  return b.op("Pointwise", {whole, sign}, {{"expression", std::string("mul(x0,sub(1,mul(2,x1)))")}})[0];
}

inline std::vector<Case> sort_cases() {
  struct Sorted {
    Shape x;
    int64_t axis;
    std::vector<int64_t> largest;  // k of TopK
    DType dtype = DType::f32;
    bool ties = false;
  };
  const std::vector<Sorted> sizes = {
      {{5, 8}, 1, {1, 2, 8}},
      {{3, 1, 4}, 1, {1}},
      {{1}, 0, {1}},
      {{9, 7}, 0, {1, 5}},
      {{2, 33, 5, 3}, 1, {1, 30}},
      {{4, 3, 70}, 2, {3, 69}},
      {{700}, 0, {5, 300}},
      {{3, 1100}, 1, {4, 1100}},
      {{600, 19}, 0, {40}},
      {{40, 90, 40}, 1, {7}},
      {{6, 50}, 1, {3, 40}, DType::f32, true},
      {{2, 600, 3}, 1, {10, 500}, DType::f32, true},
      {{5, 40}, 1, {4}, DType::u8},
      {{2, 900}, 1, {600}, DType::u8},
      {{5, 40, 3}, 1, {4}, DType::i32},
      {{800, 2}, 0, {20}, DType::i32},
      {{5, 40}, 0, {2}, DType::i64},
      {{2, 700}, 1, {650}, DType::i64},
  };
  std::vector<Case> cases;
  for (const Sorted& s : sizes) {
    const auto x = [=](CaseBuilder& b) {
      if (s.ties) return with_ties(b, s.x);
      return s.dtype == DType::f32 || s.dtype == DType::u8 ? any_tensor(b, s.x, s.dtype)
                                                           : b.integers(s.x, s.dtype, -90, 90);
    };
    const std::string text =
        fmt::format("{} {}{} axis {}", to_string(s.x), to_string(s.dtype), s.ties ? " with ties" : "", s.axis);
    for (const int64_t largest : {0, 1}) {
      cases.push_back({"Sort", fmt::format("{}{}", text, largest == 1 ? " descending" : ""), [=](CaseBuilder& b) {
                         b.op("Sort", {x(b)}, {{"axis", s.axis}, {"descending", largest}});
                       }});
      for (const int64_t k : s.largest) {
        cases.push_back(
            {"TopK", fmt::format("{}: {} {}", text, k, largest == 1 ? "largest" : "smallest"), [=](CaseBuilder& b) {
               b.op("TopK", {x(b)}, {{"axis", s.axis}, {"k", k}, {"largest", largest}});
             }});
      }
    }
  }
  return cases;
}

inline std::vector<Case> cumulative_sum_cases() {
  struct Summed {
    Shape x;
    int64_t axis;
    DType dtype = DType::f32;
  };
  std::vector<Case> cases;
  for (const Summed& s : std::vector<Summed>{{{5, 7}, 1},
                                             {{1}, 0},
                                             {{3, 1, 4}, 1},
                                             {{4, 16}, 1},
                                             {{3, 2000}, 1},
                                             {{70, 513}, 1},
                                             {{9000}, 0},
                                             {{600, 5}, 0},
                                             {{3, 40, 67}, 1},
                                             {{2, 30, 5, 130}, 1},
                                             {{4, 33, 9}, 0, DType::i64},
                                             {{4, 700}, 1, DType::u8},
                                             {{4, 30, 5}, 1, DType::i32}}) {
    for (const int64_t reverse : {0, 1}) {
      cases.push_back(
          {"CumulativeSum",
           fmt::format("{} {} axis {}{}", to_string(s.x), to_string(s.dtype), s.axis, reverse == 1 ? " reverse" : ""),
           [=](CaseBuilder& b) {
             b.op("CumulativeSum", {any_tensor(b, s.x, s.dtype)}, {{"axis", s.axis}, {"reverse", reverse}});
           }});
    }
  }
  return cases;
}

}  // namespace plimsoll::conformance
