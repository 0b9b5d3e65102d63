#include "tests/support/own_test.h"

namespace plimsoll {
namespace {

int64_t product(const Shape& shape, size_t from, size_t to) {
  int64_t result = 1;
  for (size_t d = from; d < to; ++d) result *= shape[d];
  return result;
}

void expect_norm(const std::string& type, const Shape& x, const Shape& affine_shape, const Shape& statistics,
                 Attributes attributes) {
  for (const std::string affine : {"none", "gamma", "gamma_beta"}) {
    const bool centred = type != "RmsNorm";
    if (!centred && affine == "gamma_beta") continue;
    attributes.set("affine", affine);
    OpCase forward{.type = type + "Forward", .inputs = {{x}}, .attributes = attributes, .tolerance = 3e-6};
    if (affine != "none") forward.inputs.push_back({affine_shape});
    if (affine == "gamma_beta") forward.inputs.push_back({affine_shape});
    expect_like_reference(forward);
    OpCase backward{.type = type + "Backward", .inputs = {{x}, {x}}, .attributes = attributes, .tolerance = 3e-6};
    if (centred) backward.inputs.push_back({statistics});
    backward.values[backward.inputs.size()] =
        std::vector<double>(static_cast<size_t>(product(statistics, 0, statistics.size())), 0.75);
    backward.inputs.push_back({statistics});
    if (affine != "none") backward.inputs.push_back({affine_shape});
    expect_like_reference(backward);
  }
}

TEST(OwnNorm, RowsAreTheReference) {
  struct Sizes {
    Shape x;
    int64_t axes;
  };
  for (const Sizes& s : {Sizes{{64, 768}, 1},
                         {{3, 5, 17}, 1},
                         {{2, 3, 4, 5}, 2},
                         {{7}, 1},
                         {{1, 1}, 1},
                         {{100, 33}, 1},
                         {{2, 9001}, 1},
                         {{70, 16}, 1},
                         {{5, 2, 64}, 2}}) {
    const size_t leading = s.x.size() - static_cast<size_t>(s.axes);
    const Shape affine(s.x.begin() + static_cast<int64_t>(leading), s.x.end());
    const Shape statistics(s.x.begin(), s.x.begin() + static_cast<int64_t>(leading));
    for (const std::string type : {"LayerNorm", "RmsNorm"}) {
      expect_norm(type, s.x, affine, statistics, {{"axes", s.axes}, {"epsilon", 1e-3}});
    }
  }
}

TEST(OwnNorm, GroupsAreTheReference) {
  struct Sizes {
    Shape x;
    int64_t groups;
  };
  for (const Sizes& s : {Sizes{{4, 32, 9, 9}, 8},
                         {{1, 48, 13, 12}, 3},
                         {{2, 6, 5, 7}, 6},
                         {{3, 20, 7}, 1},
                         {{5, 12}, 4},
                         {{1, 3, 1, 1}, 1},
                         {{2, 35, 8, 3}, 5}}) {
    expect_norm("GroupNorm", s.x, {s.x[1]}, {s.x[0], s.groups}, {{"groups", s.groups}, {"epsilon", 1e-3}});
  }
}

TEST(OwnNorm, ALargeMeanDoesNotEatTheVariance) {
  std::vector<double> x;
  for (int i = 0; i < 4 * 96; ++i) x.push_back(1000 + (i * 37 % 64) / 64.0);
  expect_like_reference({.type = "LayerNormForward",
                         .inputs = {{{4, 96}}},
                         .attributes = {{"axes", int64_t{1}}},
                         .values = {{0, x}},
                         .tolerance = 3e-4});  // of the mean's last digit
  expect_like_reference({.type = "GroupNormForward",
                         .inputs = {{{4, 8, 3, 4}}},
                         .attributes = {{"groups", int64_t{2}}},
                         .values = {{0, x}},
                         .tolerance = 3e-4});
}

}  // namespace
}  // namespace plimsoll
