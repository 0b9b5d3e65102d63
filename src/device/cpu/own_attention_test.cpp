#include <cmath>
#include <limits>

#include "tests/support/own_test.h"

namespace plimsoll {
namespace {

TEST(OwnSoftmax, IsTheReferenceAlongEveryAxis) {
  for (const int64_t axis : {0, 1, 2}) {
    for (const int64_t log : {0, 1}) {
      const Attributes attributes{{"axis", axis}, {"log", log}};
      for (const Shape& shape : std::vector<Shape>{{3, 50, 70}, {17, 1, 33}, {2, 3, 5000}}) {
        expect_like_reference(
            {.type = "SoftmaxForward", .inputs = {{shape}}, .attributes = attributes, .tolerance = 2e-6});
        expect_like_reference(
            {.type = "SoftmaxBackward", .inputs = {{shape}, {shape}}, .attributes = attributes, .tolerance = 3e-6});
      }
    }
  }
}

// Several blocks of queries, the last of them smaller, and more heads of q than of k.
TEST(OwnAttention, IsTheReferenceInBlocksOfQueries) {
  const Shape q{2, 2, 283, 16}, k{2, 1, 300, 16}, v{2, 1, 300, 8}, y{2, 2, 283, 8}, log_sum{2, 2, 283};
  const std::vector<double> large(static_cast<size_t>(element_count(log_sum)), 7.5);
  for (const int64_t causal : {0, 1}) {
    for (const double dropout : {0.0, 0.25}) {
      Attributes attributes{{"enable_gqa", int64_t{1}}, {"causal", causal}, {"dropout", dropout}, {"salt", int64_t{5}}};
      OpCase forward{.type = "AttentionForward", .inputs = {{q}, {k}, {v}}, .attributes = attributes};
      OpCase backward{.type = "AttentionBackward",
                      .inputs = {{q}, {k}, {v}, {y}, {log_sum}},
                      .attributes = attributes,
                      .values = {{4, large}}};
      if (dropout > 0) {
        for (OpCase* test : {&forward, &backward}) {
          test->values[test->inputs.size()] = {3};
          test->inputs.push_back({{}, DType::i64});
          test->values[test->inputs.size()] = {1234567};
          test->inputs.push_back({{}, DType::i64});
        }
      }
      expect_like_reference(forward);
      expect_like_reference(backward);
    }
  }
}

// More threads than heads of keys: each has some of the queries, and what they add to keys and values is summed.
TEST(OwnAttention, IsTheReferenceWhereThreadsShareAHeadOfKeys) {
  for (const int64_t groups : {1, 3}) {
    const Shape q{1, groups, 283, 16}, k{1, 1, 300, 16}, v{1, 1, 300, 8}, y{1, groups, 283, 8}, log_sum{1, groups, 283};
    const std::vector<double> large(static_cast<size_t>(element_count(log_sum)), 7.5);
    for (const bool masked : {false, true}) {
      Attributes attributes{{"enable_gqa", int64_t{1}}, {"causal", int64_t{1}}, {"mask_gradient", int64_t{masked}}};
      OpCase backward{.type = "AttentionBackward",
                      .inputs = {{q}, {k}, {v}, {y}, {log_sum}},
                      .attributes = attributes,
                      .values = {{4, large}}};
      if (masked) backward.inputs.push_back({{1, 1, 283, 300}});
      expect_like_reference(backward);
    }
  }
}

// Tiles that the window leaves out at both ends, and others that it cuts.
TEST(OwnAttention, IsTheReferenceWithinAWindow) {
  const Shape q{1, 2, 283, 16}, k{1, 2, 450, 16}, log_sum{1, 2, 283};
  const std::vector<double> large(static_cast<size_t>(element_count(log_sum)), 7.5);
  for (const int64_t causal : {0, 1}) {
    const Attributes attributes{{"causal", causal}, {"window_left", int64_t{40}}, {"window_right", int64_t{7}}};
    expect_like_reference({.type = "AttentionForward", .inputs = {{q}, {k}, {k}}, .attributes = attributes});
    expect_like_reference({.type = "AttentionBackward",
                           .inputs = {{q}, {k}, {k}, {q}, {log_sum}},
                           .attributes = attributes,
                           .values = {{4, large}}});
  }
}

// Scores that reach far into the cap, with a mask of its own gradient, a window, dropout and grouped heads.
TEST(OwnAttention, IsTheReferenceWithCappedScores) {
  const Shape q{2, 2, 283, 16}, k{2, 1, 300, 16}, v{2, 1, 300, 8}, y{2, 2, 283, 8}, log_sum{2, 2, 283};
  const std::vector<double> large(static_cast<size_t>(element_count(log_sum)), 7.5);
  for (const bool more : {false, true}) {
    Attributes attributes{{"enable_gqa", int64_t{1}}, {"softcap", 1.5}, {"causal", int64_t{more}}};
    OpCase forward{.type = "AttentionForward", .inputs = {{q}, {k}, {v}}};
    OpCase backward{.type = "AttentionBackward", .inputs = {{q}, {k}, {v}, {y}, {log_sum}}, .values = {{4, large}}};
    if (more) attributes.set("dropout", 0.25), attributes.set("window_left", int64_t{150});
    forward.attributes = attributes;
    if (more) attributes.set("mask_gradient", int64_t{1});
    backward.attributes = attributes;
    for (OpCase* test : {&forward, &backward}) {
      if (!more) break;
      test->inputs.push_back({{2, 283, 300}});
      test->values[test->inputs.size()] = {3};
      test->inputs.push_back({{}, DType::i64});
      test->values[test->inputs.size()] = {1234567};
      test->inputs.push_back({{}, DType::i64});
    }
    expect_like_reference(forward);
    expect_like_reference(backward);
  }
}

// Documents that are shorter and longer than a tile, alone in a row, and one that comes again behind another; with a
// window, dropout and padding.
TEST(OwnAttention, IsTheReferenceOnSeveralDocumentsInARow) {
  const Shape q{2, 2, 450, 16}, k{2, 1, 450, 16}, log_sum{2, 2, 450};
  const std::vector<double> large(static_cast<size_t>(element_count(log_sum)), 7.5);
  std::vector<double> ids, padding;
  for (int64_t i = 0; i < 450; ++i) ids.push_back(i < 3 ? 0 : i < 60 ? 1 : i < 330 ? 2 : i < 400 ? 3 : 4);
  for (int64_t i = 0; i < 450; ++i) ids.push_back(i < 100 ? 9 : i < 300 ? -1 : 9);
  for (int64_t i = 0; i < 900; ++i) padding.push_back(i % 450 < 420 ? 1 : 0);
  for (const bool more : {false, true}) {
    Attributes attributes{{"enable_gqa", int64_t{1}}, {"documents", int64_t{1}}, {"causal", int64_t{more}}};
    OpCase forward{.type = "AttentionForward", .inputs = {{q}, {k}, {k}}};
    OpCase backward{.type = "AttentionBackward", .inputs = {{q}, {k}, {k}, {q}, {log_sum}}, .values = {{4, large}}};
    for (OpCase* test : {&forward, &backward}) {
      const auto add = [&](const TensorSpec& spec, const std::vector<double>& values) {
        test->values[test->inputs.size()] = values;
        test->inputs.push_back(spec);
      };
      if (more) add({{2, 1, 1, 450}, DType::u8}, padding);
      add({{2, 450}, DType::i32}, ids);
      if (more) add({{}, DType::i64}, {3}), add({{}, DType::i64}, {1234567});
      if (more) attributes.set("dropout", 0.25), attributes.set("window_left", int64_t{150});
      test->attributes = attributes;
      expect_like_reference(*test);
    }
  }
}

// The keys behind 100 are padding: whole tiles of them. Query 0 sees none at all.
TEST(OwnAttention, LeavesOutWhatTheMaskHides) {
  const Shape q{2, 2, 70, 16}, k{2, 2, 450, 16}, log_sum{2, 2, 70};
  const std::vector<double> large(static_cast<size_t>(element_count(log_sum)), 7.5);
  for (const bool by_row : {false, true}) {
    const int64_t rows = by_row ? 70 : 1;
    std::vector<double> mask;
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t l = 0; l < rows; ++l) {
        for (int64_t s = 0; s < 450; ++s) mask.push_back(s < 100 && !(by_row && l == 0) ? 1 : 0);
      }
    }
    const TensorSpec spec{{2, 1, rows, 450}, DType::u8};
    expect_like_reference({.type = "AttentionForward", .inputs = {{q}, {k}, {k}, spec}, .values = {{3, mask}}});
    expect_like_reference({.type = "AttentionBackward",
                           .inputs = {{q}, {k}, {k}, {q}, {log_sum}, spec},
                           .values = {{4, large}, {5, mask}}});
  }
}

// Of all keys but some, or of all, a mask adds the least number or one that is only large: of the first half of the queries.
TEST(OwnAttention, IsTheReferenceWhereAMaskAddsLargeNumbers) {
  const Shape q{1, 2, 70, 16}, k{1, 2, 450, 16}, log_sum{1, 2, 70};
  for (const double number : {static_cast<double>(std::numeric_limits<float>::lowest()), -2e9}) {
    for (const int64_t hidden : {400, 450}) {
      if (hidden == 450 && number == -2e9) continue;  // doubles keep of the scores what floats lose
      std::vector<double> mask, log_sums;
      for (int64_t l = 0; l < 70; ++l) {
        for (int64_t s = 0; s < 450; ++s) mask.push_back(l < 35 && s < hidden ? number : 0);
      }
      for (int64_t i = 0; i < 140; ++i) log_sums.push_back(i % 70 < 35 && hidden == 450 ? number : 7.5);
      const Attributes causal{{"window_right", int64_t{300}}};
      expect_like_reference({.type = "AttentionForward",
                             .inputs = {{q}, {k}, {k}, {{70, 450}}},
                             .attributes = hidden == 450 ? causal : Attributes{},
                             .values = {{3, mask}}});
      expect_like_reference({.type = "AttentionBackward",
                             .inputs = {{q}, {k}, {k}, {q}, {log_sum}, {{70, 450}}},
                             .attributes = hidden == 450 ? causal : Attributes{},
                             .values = {{4, log_sums}, {5, mask}}});
    }
  }
}

// Of 283 queries those behind 160 see no key of 150.
TEST(OwnAttention, IsTheReferenceWhereQueriesSeeNoKey) {
  const Shape q{2, 2, 283, 16}, k{2, 1, 150, 16}, v{2, 1, 150, 8}, y{2, 2, 283, 8}, log_sum{2, 2, 283};
  std::vector<double> log_sums;
  for (int64_t i = 0; i < 4 * 283; ++i) log_sums.push_back(i % 283 < 160 ? 7.5 : INFINITY);
  for (const int64_t blind : {1, 2}) {
    for (const bool more : {false, true}) {
      Attributes attributes{{"enable_gqa", int64_t{1}}, {"window_left", int64_t{10}}, {"blind", blind}};
      OpCase forward{.type = "AttentionForward", .inputs = {{q}, {k}, {v}}};
      OpCase backward{
          .type = "AttentionBackward", .inputs = {{q}, {k}, {v}, {y}, {log_sum}}, .values = {{4, log_sums}}};
      if (more) attributes.set("dropout", 0.25), attributes.set("softcap", 1.5);
      forward.attributes = attributes;
      if (more) attributes.set("mask_gradient", int64_t{1});
      backward.attributes = attributes;
      for (OpCase* test : {&forward, &backward}) {
        if (!more) break;
        test->inputs.push_back({{2, 283, 150}});
        test->values[test->inputs.size()] = {3};
        test->inputs.push_back({{}, DType::i64});
        test->values[test->inputs.size()] = {1234567};
        test->inputs.push_back({{}, DType::i64});
      }
      expect_like_reference(forward);
      expect_like_reference(backward);
    }
  }
}

}  // namespace
}  // namespace plimsoll
