// The cases of ops that move elements, and of those that take them by index.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/conformance/case.h"

namespace plimsoll::conformance {

using Integers = std::vector<int64_t>;

// Of any dtype: floats, or whole numbers.
inline TensorId any_tensor(CaseBuilder& b, const Shape& shape, DType dtype) {
  if (dtype == DType::f32) return b.normal(shape);
  return b.integers(shape, dtype, 0, 200);
}

inline std::vector<Case> move_cases() {
  std::vector<Case> cases;
  struct Permutation {
    Shape x;
    Integers dims;
    DType dtype = DType::f32;
  };
  const std::vector<Permutation> permutations = {
      {{2, 20, 5, 7}, {0, 2, 3, 1}},
      {{2, 5, 7, 20}, {0, 3, 1, 2}},
      {{3, 64, 16, 12}, {0, 2, 3, 1}},
      {{2, 70, 4, 16}, {0, 2, 1, 3}},
      {{2, 3, 33, 40}, {0, 1, 3, 2}},
      {{2, 3, 33, 1}, {0, 3, 1, 2}},
      {{130, 67}, {1, 0}},
      {{1, 300}, {1, 0}},
      {{5, 4, 3, 2, 3}, {4, 2, 0, 3, 1}},
      {{2, 3, 2, 3, 2, 3, 2}, {6, 4, 2, 0, 1, 3, 5}},
      {{7}, {0}},
      {{}, {}},
      {{2, 20, 5, 7}, {1, 0, 3, 2}},
      {{3, 4, 1, 5}, {2, 0, 1, 3}},
      {{64, 48, 3}, {2, 1, 0}},
      {{3, 40, 21}, {0, 2, 1}, DType::u8},
      {{2, 9, 5, 20}, {0, 2, 1, 3}, DType::u8},
      {{3, 40, 21}, {2, 0, 1}, DType::i64},
      {{2, 20, 5, 7}, {0, 2, 3, 1}, DType::i32},
  };
  for (const Permutation& p : permutations) {
    cases.push_back({"Permute", fmt::format("{} {} by {}", to_string(p.x), to_string(p.dtype), fmt::join(p.dims, ",")),
                     [=](CaseBuilder& b) {
                       b.op("Permute", {any_tensor(b, p.x, p.dtype)}, {{"dims", p.dims}});
                     }});
  }
  struct Part {
    Shape x;
    int64_t axis, begin, size, step;
    DType dtype = DType::f32;
  };
  for (const Part& p : std::vector<Part>{{{2, 20, 5, 7}, 1, 3, 9, 1},
                                         {{2, 70, 5, 3}, 1, 16, 32, 1},
                                         {{2, 70, 5, 3}, 1, 40, 30, 1},
                                         {{2, 20, 9, 6}, 2, 1, 4, 2},
                                         {{2, 20, 9, 6}, 1, 0, 7, 3},
                                         {{4, 50, 33}, 2, 1, 16, 2},
                                         {{4, 50, 33}, 0, 0, 1, 5},
                                         {{60}, 0, 7, 18, 3},
                                         {{3, 20, 5, 7}, 1, 2, 6, 3, DType::i64},
                                         {{30, 50}, 1, 5, 40, 1, DType::u8},
                                         {{30, 50}, 0, 2, 7, 4, DType::i32}}) {
    const std::string text = fmt::format("{} {} axis {}: {} from {} step {}", to_string(p.x), to_string(p.dtype),
                                         p.axis, p.size, p.begin, p.step);
    Attributes attributes = {{"axis", p.axis}, {"begin", p.begin}};
    if (p.step > 1) attributes.set("step", p.step);
    cases.push_back({"Slice", text, [=](CaseBuilder& b) {
                       Attributes part = attributes;
                       part.set("size", p.size);
                       b.op("Slice", {any_tensor(b, p.x, p.dtype)}, part);
                     }});
    cases.push_back({"SliceBackward", text, [=](CaseBuilder& b) {
                       Attributes whole = attributes;
                       whole.set("length", p.x[p.axis]);
                       Shape dy = p.x;
                       dy[p.axis] = p.size;
                       b.op("SliceBackward", {any_tensor(b, dy, p.dtype)}, whole);
                     }});
  }
  for (const DType dtype : {DType::u8, DType::i64}) {
    for (const int64_t axis : {0, 1, 3}) {
      cases.push_back({"Concat", fmt::format("{} axis {}", to_string(dtype), axis), [=](CaseBuilder& b) {
                         std::vector<TensorId> inputs;
                         for (const int64_t size : {3, 20, 5}) {
                           Shape shape = {2, 18, 5, 3};
                           shape[axis] = size;
                           inputs.push_back(any_tensor(b, shape, dtype));
                         }
                         b.op("Concat", inputs, {{"axis", axis}});
                       }});
    }
  }
  struct Padded {
    Shape x;
    Integers begin, end;
    DType dtype = DType::f32;
  };
  for (const Padded& p : std::vector<Padded>{{{2, 20, 9, 7}, {0, 0, 3, 2}, {0, 0, 1, 4}},
                                             {{2, 5, 6, 17}, {0, 1, -2, 0}, {0, 3, 1, 0}},
                                             {{4, 30, 40}, {0, 2, 0}, {0, 0, 0}},
                                             {{4, 30, 40}, {0, 0, 8}, {0, 0, -3}},
                                             {{4, 30, 40}, {0, 0, -8}, {0, 0, -3}},
                                             {{300}, {17}, {30}},
                                             {{3, 3, 2, 3, 2}, {2, 1, 0, 1, 1}, {0, 0, 1, 2, 1}},
                                             {{3, 20}, {0, 0}, {0, 0}},
                                             {{7, 9, 5}, {1, 0, 2}, {0, 2, 1}, DType::u8},
                                             {{7, 9}, {1, 0}, {0, 2}, DType::i32},
                                             {{7, 9}, {1, 3}, {0, 2}, DType::i64}}) {
    for (const std::string mode : {"constant", "reflect", "replicate"}) {
      const std::string text = fmt::format("{} {} by {} and {} {}", to_string(p.x), to_string(p.dtype),
                                           fmt::join(p.begin, ","), fmt::join(p.end, ","), mode);
      const Attributes attributes = {{"begin", p.begin}, {"end", p.end}, {"mode", mode}};
      cases.push_back({"Pad", text, [=](CaseBuilder& b) {
                         Attributes with_value = attributes;
                         with_value.set("value", 3.0);
                         b.op("Pad", {any_tensor(b, p.x, p.dtype)}, with_value);
                       }});
      if (p.dtype != DType::f32 || mode == "constant") continue;
      cases.push_back({"PadBackward", text, [=](CaseBuilder& b) {
                         Shape dy = p.x;
                         for (size_t d = 0; d < dy.size(); ++d) dy[d] += p.begin[d] + p.end[d];
                         b.op("PadBackward", {b.normal(dy)}, attributes);
                       }});
    }
  }
  return cases;
}

inline std::vector<Case> resize_cases() {
  std::vector<Case> cases;
  struct Sizes {
    Shape x;
    Integers size;
  };
  const std::vector<Sizes> sizes = {{{2, 20, 5, 7}, {10, 14}}, {{1, 3, 9, 8}, {4, 13}},    {{2, 17, 6, 6}, {1, 1}},
                                    {{3, 16, 1, 1}, {4, 3}},   {{2, 4, 33, 20}, {33, 20}}, {{2, 35, 7, 5}, {3, 17}},
                                    {{1, 2, 40, 37}, {11, 90}}};
  for (const Sizes& s : sizes) {
    for (const std::string mode : {"nearest", "bilinear", "bicubic"}) {
      for (const std::string coordinates : {"", " corners", " factors"}) {
        if (mode == "nearest" && coordinates == " corners") continue;
        Attributes attributes = {{"size", s.size}, {"mode", mode}};
        if (coordinates == " corners") attributes.set("align_corners", int64_t{1});
        if (coordinates == " factors") {  // not quite what the sizes say
          attributes.set("scale", std::vector<double>{(s.size[0] + 0.4) / static_cast<double>(s.x[2]),
                                                      (s.size[1] + 0.3) / static_cast<double>(s.x[3])});
        }
        const std::string text = fmt::format("{} to {} {}{}", to_string(s.x), to_string(s.size), mode, coordinates);
        cases.push_back(
            {"ResizeForward", text, [=](CaseBuilder& b) { b.op("ResizeForward", {b.normal(s.x)}, attributes); }});
        cases.push_back({"ResizeBackward", text, [=](CaseBuilder& b) {
                           Attributes backward = attributes;
                           backward.set("input_size", Integers{s.x[2], s.x[3]});
                           b.op("ResizeBackward", {b.normal({s.x[0], s.x[1], s.size[0], s.size[1]})}, backward);
                         }});
      }
    }
    const std::string text = fmt::format("{} to {}", to_string(s.x), to_string(s.size));
    const Attributes attributes = {{"size", s.size}};
    const Attributes backward = {{"size", s.size}, {"input_size", Integers{s.x[2], s.x[3]}}};
    cases.push_back({"AdaptiveAvgPoolForward", text,
                     [=](CaseBuilder& b) { b.op("AdaptiveAvgPoolForward", {b.normal(s.x)}, attributes); }});
    cases.push_back({"AdaptiveAvgPoolBackward", text, [=](CaseBuilder& b) {
                       b.op("AdaptiveAvgPoolBackward", {b.normal({s.x[0], s.x[1], s.size[0], s.size[1]})}, backward);
                     }});
    cases.push_back({"AdaptiveMaxPoolForward", text,
                     [=](CaseBuilder& b) { b.op("AdaptiveMaxPoolForward", {b.normal(s.x)}, attributes); }});
    cases.push_back({"AdaptiveMaxPoolBackward", text, [=](CaseBuilder& b) {
                       const auto forward = b.op("AdaptiveMaxPoolForward", {b.normal(s.x)}, attributes);
                       b.op("AdaptiveMaxPoolBackward", {b.normal(b.shape(forward[0])), forward[1]}, backward);
                     }});
  }
  return cases;
}

// A table's gradient by its lookups: rows that were looked up often, not at all, or do not count.
inline std::vector<Case> lookup_cases() {
  std::vector<Case> cases;
  struct Table {
    int64_t rows, columns;
    Shape indices;
    int64_t padding = -1;
    DType dtype = DType::i64;
  };
  for (const Table& t : std::vector<Table>{{50, 24, {4, 9}},
                                           {200, 33, {60}, 3, DType::i32},
                                           {300, 1, {2, 3, 5}},
                                           {3, 5000, {7}},
                                           {1, 5, {}, 0, DType::i32}}) {
    const Shape table{t.rows, t.columns};
    const std::string text =
        fmt::format("{} by {}{}", to_string(table), to_string(t.indices), t.padding < 0 ? "" : " padding");
    // The inputs and attributes of an op, with the lookups among them.
    const auto add = [&](const std::string& type, const std::string& how, auto inputs, Attributes attributes) {
      attributes.set("padding_index", t.padding);
      cases.push_back({type, text + how, [=](CaseBuilder& b) {
                         Shape rows = t.indices;
                         rows.push_back(t.columns);
                         std::vector<TensorId> all = inputs(b, table, b.normal(rows));
                         all.push_back(b.integers(t.indices, t.dtype, 0, (t.rows + 1) / 2));
                         b.op(type, all, attributes);
                       }});
    };
    const auto alone = [](CaseBuilder&, const Shape&, TensorId dy) { return std::vector<TensorId>{dy}; };
    add("EmbeddingGradientNorm", "", alone, {{"rows", t.rows}});
    const auto other = [](CaseBuilder& b, const Shape& shape, TensorId dy) {
      return std::vector<TensorId>{b.normal(shape), dy};
    };
    add("EmbeddingAddGradient", "", other, {});
    for (const int64_t count : {0, 2}) {
      const auto sum = [=](CaseBuilder& b, const Shape& shape, TensorId dy) {
        return std::vector<TensorId>{b.normal(shape), dy, b.normal(shape), b.number(count)};
      };
      add("EmbeddingAccumulateGradient", fmt::format(" count {}", count), sum, {});
    }
    for (const double scale : {1.0, 0.25, -1.0}) {  // 1: none is given
      for (const double momentum : {0.0, 0.9}) {
        for (const double decay : {0.0, 1e-2}) {
          const auto sgd = [=](CaseBuilder& b, const Shape& shape, TensorId dy) {
            std::vector<TensorId> inputs{b.normal(shape), dy, b.scalar(0.1)};
            if (momentum != 0) inputs.push_back(b.normal(shape));
            if (scale != 1) inputs.push_back(b.scalar(scale));
            return inputs;
          };
          add("EmbeddingSgdUpdate", fmt::format(" momentum {} decay {} scale {}", momentum, decay, scale), sgd,
              {{"momentum", momentum},
               {"weight_decay", decay},
               {"nesterov", int64_t{momentum != 0 && decay != 0}},
               {"scaled", int64_t{scale != 1}}});
        }
      }
      for (const int64_t decoupled : {0, 1}) {
        const auto adam = [=](CaseBuilder& b, const Shape& shape, TensorId dy) {
          std::vector<TensorId> inputs{b.normal(shape),         dy, b.scalar(0.01), b.number(3), b.normal(shape),
                                       b.uniform(shape, 0.5, 2)};
          if (scale != 1) inputs.push_back(b.scalar(scale));
          return inputs;
        };
        add("EmbeddingAdamUpdate", fmt::format(" decoupled {} scale {}", decoupled, scale), adam,
            {{"beta2", 0.99},
             {"epsilon", 1e-6},
             {"weight_decay", 1e-2},
             {"decoupled", decoupled},
             {"scaled", int64_t{scale != 1}}});
      }
    }
  }
  return cases;
}

inline std::vector<Case> take_cases() {
  std::vector<Case> cases;
  for (const DType indices : {DType::i32, DType::i64}) {
    struct Table {
      int64_t rows, columns;
      Shape indices;
      int64_t padding = -1;
    };
    for (const Table& t : std::vector<Table>{{50, 24, {4, 9}}, {7, 100, {300}, 3}, {300, 1, {2, 3, 5}}, {3, 5, {}}}) {
      const std::string text = fmt::format("{}x{} by {} {}{}", t.rows, t.columns, to_string(indices),
                                           to_string(t.indices), t.padding < 0 ? "" : " padding");
      cases.push_back({"Embedding", text, [=](CaseBuilder& b) {
                         b.op("Embedding", {b.normal({t.rows, t.columns}), b.integers(t.indices, indices, 0, t.rows)},
                              {{"padding_index", t.padding}});
                       }});
      cases.push_back({"EmbeddingBackward", text, [=](CaseBuilder& b) {
                         Shape dy = t.indices;
                         dy.push_back(t.columns);
                         b.op("EmbeddingBackward", {b.normal(dy), b.integers(t.indices, indices, 0, t.rows)},
                              {{"rows", t.rows}, {"padding_index", t.padding}});
                       }});
    }
    struct Selection {
      Shape x;
      int64_t axis, count;
      DType dtype = DType::f32;
    };
    for (const Selection& s : std::vector<Selection>{{{6, 5, 7}, 1, 9},
                                                     {{40, 33}, 0, 100},
                                                     {{300, 17}, 1, 4},
                                                     {{2, 20, 3, 4}, 1, 13},
                                                     {{9}, 0, 1},
                                                     {{12, 30}, 1, 8, DType::i64},
                                                     {{12, 30, 5}, 1, 8, DType::u8}}) {
      const std::string text =
          fmt::format("{} {} axis {}, {} {}", to_string(s.x), to_string(s.dtype), s.axis, s.count, to_string(indices));
      cases.push_back({"IndexSelect", text, [=](CaseBuilder& b) {
                         b.op("IndexSelect",
                              {any_tensor(b, s.x, s.dtype), b.integers({s.count}, indices, 0, s.x[s.axis])},
                              {{"axis", s.axis}});
                       }});
      if (s.dtype != DType::f32) continue;
      cases.push_back({"IndexSelectBackward", text, [=](CaseBuilder& b) {
                         Shape dy = s.x;
                         dy[s.axis] = s.count;
                         b.op("IndexSelectBackward", {b.normal(dy), b.integers({s.count}, indices, 0, s.x[s.axis])},
                              {{"axis", s.axis}, {"length", s.x[s.axis]}});
                       }});
    }
    struct Indexing {
      Shape x;
      std::vector<Shape> indices;
      DType dtype = DType::f32;
    };
    for (const Indexing& n : std::vector<Indexing>{{{6, 20}, {{9}}},
                                                   {{6, 5, 40}, {{4, 1}, {3}}},
                                                   {{6, 5, 4}, {{2, 7}, {2, 7}, {1, 7}}},
                                                   {{30, 40}, {{200}, {200}}},
                                                   {{6, 5}, {{}, {8}}},
                                                   {{6, 5, 3}, {{4, 1}, {3}}, DType::u8},
                                                   {{6, 5}, {{8}, {8}}, DType::i64}}) {
      std::string text = fmt::format("{} {} by {}", to_string(n.x), to_string(n.dtype), to_string(indices));
      for (const Shape& shape : n.indices) text += " [" + to_string(shape) + "]";
      const auto take = [=](CaseBuilder& b, TensorId x) {
        std::vector<TensorId> inputs = {x};
        for (size_t k = 0; k < n.indices.size(); ++k)
          inputs.push_back(b.integers(n.indices[k], indices, -n.x[k], n.x[k]));
        return inputs;
      };
      cases.push_back({"Index", text, [=](CaseBuilder& b) { b.op("Index", take(b, any_tensor(b, n.x, n.dtype))); }});
      if (n.dtype != DType::f32) continue;
      cases.push_back({"IndexBackward", text, [=](CaseBuilder& b) {
                         const std::vector<TensorId> forward = take(b, b.normal(n.x));
                         std::vector<TensorId> inputs = {b.normal(b.shape(b.op("Index", forward)[0]))};
                         inputs.insert(inputs.end(), forward.begin() + 1, forward.end());
                         b.op("IndexBackward", inputs, {{"shape", n.x}});
                       }});
    }
    struct Gathering {
      Shape x, indices;
      int64_t axis;
      DType dtype = DType::f32;
    };
    for (const Gathering& g : std::vector<Gathering>{{{40, 100}, {40, 1}, 1},
                                                     {{6, 5, 7}, {4, 9, 7}, 1},
                                                     {{6, 5, 7}, {6, 5, 20}, 2},
                                                     {{6, 5, 1}, {3, 4, 1}, 0},
                                                     {{6, 5, 3}, {8, 4, 1}, 0},
                                                     {{8, 4000}, {3, 4000}, 0},
                                                     {{9}, {20}, 0},
                                                     {{6, 5, 7}, {4, 9, 6}, 1, DType::u8},
                                                     {{6, 5}, {6, 2}, 1, DType::i64}}) {
      const std::string text = fmt::format("{} {} by {} {} axis {}", to_string(g.x), to_string(g.dtype),
                                           to_string(g.indices), to_string(indices), g.axis);
      cases.push_back({"Gather", text, [=](CaseBuilder& b) {
                         b.op("Gather", {any_tensor(b, g.x, g.dtype), b.integers(g.indices, indices, 0, g.x[g.axis])},
                              {{"axis", g.axis}});
                       }});
      if (g.dtype != DType::f32) continue;
      cases.push_back({"GatherBackward", text, [=](CaseBuilder& b) {
                         b.op("GatherBackward", {b.normal(g.indices), b.integers(g.indices, indices, 0, g.x[g.axis])},
                              {{"axis", g.axis}, {"shape", g.x}});
                       }});
    }
  }
  return cases;
}

}  // namespace plimsoll::conformance
