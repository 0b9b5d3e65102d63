// The cases of what attention is made of: products of matrices, softmax, attention itself.
#pragma once

#include <fmt/format.h>

#include "tests/conformance/case.h"

namespace plimsoll::conformance {

inline std::vector<Case> matmul_cases() {
  struct Sizes {
    Shape a, b;
    int64_t ta = 0, tb = 0;
    std::vector<int64_t> batch = {-1};  // -1: not stated
  };
  std::vector<Case> cases;
  for (const Sizes& s : {Sizes{{5, 7}, {7, 3}},
                         {{7, 5}, {7, 3}, 1},
                         {{5, 7}, {3, 7}, 0, 1},
                         {{7, 5}, {3, 7}, 1, 1},
                         {{1, 1}, {1, 1}},
                         {{64, 100}, {100, 33}},
                         {{2, 3, 5, 16}, {2, 3, 16, 9}},
                         {{2, 3, 5, 16}, {2, 3, 9, 16}, 0, 1},
                         {{2, 3, 16, 5}, {2, 3, 16, 9}, 1},
                         {{2100, 40}, {2100, 24}, 1},  // K in parts
                         {{24, 2048}, {40, 2048}, 0, 1},
                         {{4, 6, 8}, {8, 10}},
                         {{4, 6, 8}, {10, 8}, 0, 1},
                         {{4, 8, 6}, {8, 10}, 1},
                         {{6, 8}, {3, 8, 10}},
                         {{2, 1, 4, 8}, {3, 8, 5}},
                         {{1, 3, 4, 8}, {2, 1, 8, 5}},
                         {{4, 6, 8}, {4, 6, 10}, 1, 0, {}},
                         {{2, 3, 6, 8}, {2, 3, 6, 5}, 1, 0, {3}},
                         {{2, 3, 8, 6}, {2, 3, 6, 5}, 0, 0, {2, 1}},
                         {{2, 3, 6, 8}, {5, 8}, 0, 1, {1, 3}},
                         {{3, 6, 8}, {3, 5, 8}, 0, 1, {}}}) {
    Attributes attributes = {{"transpose_a", s.ta}, {"transpose_b", s.tb}};
    const bool stated = s.batch != std::vector<int64_t>{-1};
    if (stated) attributes.set("batch", s.batch);
    cases.push_back({"MatMul",
                     fmt::format("{}{} by {}{}{}", to_string(s.a), s.ta != 0 ? "'" : "", to_string(s.b),
                                 s.tb != 0 ? "'" : "", stated ? fmt::format(" to [{}]", fmt::join(s.batch, ",")) : ""),
                     [=](CaseBuilder& b) {
                       b.op("MatMul", {b.normal(s.a), b.normal(s.b)}, attributes);
                     }});
  }
  return cases;
}

inline std::vector<Case> softmax_cases() {
  struct Sizes {
    Shape x;
    int64_t axis;
  };
  std::vector<Case> cases;
  for (const Sizes& s : {Sizes{{4, 37}, 1},
                         {{4, 37}, 0},
                         {{2, 20, 5, 7}, 1},
                         {{2, 20, 5, 7}, 3},
                         {{3, 1, 2}, 1},
                         {{1}, 0},
                         {{2, 3, 1000}, 2},
                         {{2, 6, 33}, 1}}) {
    for (const int64_t log : {0, 1}) {
      const Attributes attributes = {{"axis", s.axis}, {"log", log}};
      const std::string text = fmt::format("{} axis {}{}", to_string(s.x), s.axis, log != 0 ? " log" : "");
      cases.push_back(
          {"SoftmaxForward", text, [=](CaseBuilder& b) { b.op("SoftmaxForward", {b.normal(s.x, 0, 3)}, attributes); }});
      cases.push_back({"SoftmaxBackward", text, [=](CaseBuilder& b) {
                         const TensorId y = b.op("SoftmaxForward", {b.normal(s.x, 0, 3)}, attributes)[0];
                         b.op("SoftmaxBackward", {y, b.normal(s.x)}, attributes);
                       }});
    }
  }
  return cases;
}

inline std::vector<Case> attention_cases() {
  struct Sizes {
    Shape batch;    // of q
    int64_t heads;  // of k and v
    int64_t l, s, e, ev;
    Shape mask;  // empty: none
    bool bytes = false, causal = false;
    double dropout = 0;
    int64_t part = 0;
    int64_t left = -1, right = -1;  // a window's; -1: none
    int64_t documents = 0;          // rows of ids
    double softcap = 0;
    int64_t blind = 0;
  };
  std::vector<Case> cases;
  for (const Sizes& s : {Sizes{{}, 0, 5, 7, 8, 8, {}},
                         {{2, 3}, 3, 5, 7, 8, 6, {}},
                         {{2, 2}, 2, 33, 40, 16, 16, {}, false, true},
                         {{1, 2}, 2, 40, 33, 16, 16, {}, false, true},
                         {{2, 4}, 2, 9, 9, 8, 8, {}, false, true},
                         {{2, 6}, 1, 4, 9, 8, 5, {4, 9}},
                         {{2, 3}, 3, 6, 10, 8, 8, {2, 1, 1, 10}, true},
                         {{2, 3}, 3, 6, 10, 8, 8, {2, 1, 1, 10}},
                         {{2, 3}, 3, 6, 10, 8, 8, {3, 6, 1}},
                         {{3}, 3, 6, 20, 4, 4, {1, 6, 20}, true},
                         {{2, 2}, 2, 7, 18, 8, 8, {}, false, false, 0.3},
                         {{1, 4}, 2, 7, 70, 8, 8, {4, 1, 70}, true, false, 0.5},
                         {{3, 1}, 1, 5, 7, 8, 8, {}, false, false, 0.4, 3},
                         {{1, 1}, 1, 1, 1, 1, 1, {}},
                         {{1, 2}, 2, 130, 130, 32, 32, {}, false, true, 0.1},
                         {{2, 2}, 2, 40, 40, 16, 16, {2, 1, 1, 40}, true, true},
                         {{1, 2}, 1, 200, 200, 16, 16, {}, false, true, 0, 0, 30},
                         {{1, 2}, 2, 150, 210, 16, 16, {}, false, false, 0.2, 0, 9, 12},
                         {{2, 4}, 2, 70, 70, 8, 8, {}, false, true, 0, 0, -1, -1, 2},
                         {{2, 2}, 2, 40, 40, 8, 8, {2, 1, 1, 40}, true, false, 0.3, 0, 20, 9, 1},
                         {{3, 2}, 2, 20, 20, 8, 8, {2, 20, 20}, false, false, 0, 0, -1, -1, 3},
                         {{1, 2}, 2, 70, 210, 16, 16, {}, false, false, 0, 0, -1, -1, 0, 0.5},
                         {{2, 4}, 2, 70, 70, 8, 8, {2, 1, 1, 70}, true, true, 0.2, 0, 20, -1, 0, 2.5},
                         {{2, 2}, 2, 20, 25, 8, 8, {2, 20, 25}, false, false, 0.2, 0, -1, -1, 0, 1.5},
                         {{2, 4}, 2, 64, 30, 8, 8, {}, false, false, 0, 0, 5, -1, 0, 0, 1},
                         {{2, 4}, 2, 70, 30, 8, 8, {4, 70, 30}, false, false, 0.2, 0, 5, -1, 0, 1.5, 2},
                         {{1, 4}, 2, 150, 150, 64, 64, {}, false, true, 0.1},
                         {{1, 2}, 2, 70, 140, 37, 66, {2, 1, 140}, true, false, 0, 0, 60, 20, 0, 0, 2},
                         {{1, 2}, 1, 130, 140, 128, 90, {}, false, true, 0, 0, -1, -1, 0, 3},
                         {{2, 1}, 1, 70, 130, 100, 100, {2, 1, 70, 130}, false, false, 0.2}}) {
    auto build = [=](CaseBuilder& b, bool backward, bool of_mask = true) {
      auto with = [&](int64_t heads, int64_t rows, int64_t columns) {
        Shape shape = s.batch;
        if (!shape.empty()) shape.back() = heads;
        shape.push_back(rows);
        shape.push_back(columns);
        return shape;
      };
      const int64_t q_heads = s.batch.empty() ? 0 : s.batch.back();
      std::vector<TensorId> inputs = {b.normal(with(q_heads, s.l, s.e)), b.normal(with(s.heads, s.s, s.e)),
                                      b.normal(with(s.heads, s.s, s.ev))};
      Attributes attributes = {{"causal", int64_t{s.causal}}, {"dropout", s.dropout}, {"salt", int64_t{9}}};
      if (q_heads != s.heads) attributes.set("enable_gqa", int64_t{1});
      if (s.ev != s.e) attributes.set("scale", 0.3);
      if (s.softcap > 0) attributes.set("softcap", s.softcap);
      if (s.blind > 0) attributes.set("blind", s.blind);
      if (s.left >= 0) attributes.set("window_left", s.left);
      if (s.right >= 0) attributes.set("window_right", s.right);
      std::vector<TensorId> more;
      if (!s.mask.empty()) more.push_back(s.bytes ? b.bytes(s.mask, 6) : b.normal(s.mask));
      if (s.documents > 0) more.push_back(b.integers({s.documents, s.s}, DType::i32, -1, 2));
      if (s.documents > 0) attributes.set("documents", int64_t{1});
      if (s.dropout > 0) more.insert(more.end(), {b.number(3), b.seed(77, s.part)});
      inputs.insert(inputs.end(), more.begin(), more.end());
      const auto outputs = b.op("AttentionForward", inputs, attributes);
      if (!backward) return;
      std::vector<TensorId> back = {inputs[0], inputs[1], inputs[2], b.normal(b.shape(outputs[0])), outputs[1]};
      back.insert(back.end(), more.begin(), more.end());
      // A mask that is the same for all keys of a query changes nothing: there is only rounding to compare.
      if (of_mask && !s.mask.empty() && !s.bytes && s.mask.back() > 1) attributes.set("mask_gradient", int64_t{1});
      b.op("AttentionBackward", back, attributes);
    };
    const std::string text = fmt::format("{} heads, {} by {}, {} and {}{}{}{}", to_string(s.batch), s.l, s.s, s.e, s.ev,
                                         s.mask.empty() ? "" : " mask " + to_string(s.mask), s.causal ? " causal" : "",
                                         s.part > 0      ? " dropout of a part"
                                         : s.dropout > 0 ? " dropout"
                                                         : "") +
                             (s.left >= 0 ? fmt::format(" window {}", s.left) : "") +
                             (s.documents > 0 ? fmt::format(" {} rows of documents", s.documents) : "") +
                             (s.softcap > 0 ? fmt::format(" capped at {}", s.softcap) : "") +
                             (s.blind > 0 ? fmt::format(" blind {}", s.blind) : "");
    cases.push_back({"AttentionForward", text, [=](CaseBuilder& b) { build(b, false); }});
    if (s.s == 1) continue;  // nor does what one key has to say
    cases.push_back({"AttentionBackward", text, [=](CaseBuilder& b) { build(b, true); }});
    if (s.mask.empty() || s.bytes || s.mask.back() == 1) continue;
    cases.push_back(
        {"AttentionBackward", text + " that nobody learns", [=](CaseBuilder& b) { build(b, true, false); }});
  }
  return cases;
}

}  // namespace plimsoll::conformance
