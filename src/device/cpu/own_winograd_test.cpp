// Winograd's kernels of the three passes against their references, and where they are offered.
#include <algorithm>

#include "tests/support/own_test.h"

namespace plimsoll {
namespace {

struct ConvCase {
  int64_t images, in, out, height, width;
  int64_t top = 1, left = 1, bottom = 1, right = 1;
  int64_t taps = 3, stride = 1;

  int64_t out_height() const { return (height + top + bottom - taps) / stride + 1; }
  int64_t out_width() const { return (width + left + right - taps) / stride + 1; }
  Shape x() const { return {images, in, height, width}; }
  Shape dy() const { return {images, out, out_height(), out_width()}; }
  Shape w() const { return {out, in, taps, taps}; }
  Attributes attributes() const {
    using Ints = std::vector<int64_t>;
    return {{"padding", Ints{top, left, bottom, right}}, {"stride", Ints{stride, stride}}};
  }
};

const std::vector<ConvCase> kCases = {
    {2, 16, 32, 17, 21},              // tiles that reach beyond each end
    {32, 16, 16, 4, 4},               // one tile an image, all of it at the edges
    {3, 48, 16, 14, 15, 0, 0, 0, 0},  // nothing around it
    {2, 16, 16, 18, 18, 2, 0, 1, 2},  // another padding at each side
    {33, 32, 16, 1, 3},               // smaller than a tile
    {1, 48, 64, 60, 61},              // several blocks of tiles
    {33, 144, 208, 3, 3},             // by panels of different widths, input channels in two steps
    {2, 16, 80, 20, 20},              // panels of different widths, tiles by blocks
    {2, 16, 32, 17, 21, 2, 2, 2, 2, 5},
    {5, 144, 160, 3, 5, 2, 1, 3, 4, 5},  // by panels
    {3, 16, 16, 11, 12, 0, 0, 0, 0, 5},
    {2, 16, 32, 17, 22, 1, 1, 1, 1, 3, 2},
    {9, 64, 160, 8, 7, 1, 0, 0, 2, 3, 2},  // by panels
    {3, 32, 16, 23, 24, 0, 2, 1, 0, 3, 2},
    {33, 16, 16, 3, 1, 1, 1, 1, 1, 3, 2},
    {2, 16, 32, 18, 22, 1, 1, 1, 1, 4, 2},
    {3, 32, 16, 23, 25, 0, 3, 2, 1, 4, 2},
    {2, 16, 32, 18, 22, 2, 2, 2, 2, 5, 2},
    {3, 32, 16, 23, 25, 1, 3, 0, 4, 5, 2},
};
constexpr double kTolerance = 1e-4;

TEST(OwnWinograd, ForwardIsTheReferenceWithBiasAndRelu) {
  for (const ConvCase& c : kCases) {
    OpCase test{.type = "ConvForward", .inputs = {{c.x()}, {c.w()}}, .tolerance = kTolerance};
    test.attributes = c.attributes();
    expect_like_reference(test);
    test.inputs.push_back({{c.out}});
    test.attributes.set("activation", std::string("relu"));
    expect_like_reference(test);
  }
}

TEST(OwnWinograd, BackwardToDataIsTheReference) {
  for (const ConvCase& c : kCases) {
    OpCase test{.type = "ConvBackwardData", .inputs = {{c.dy()}, {c.w()}}, .tolerance = kTolerance};
    test.attributes = c.attributes();
    test.attributes.set("input_size", std::vector<int64_t>{c.height, c.width});
    expect_like_reference(test);
  }
}

TEST(OwnWinograd, BackwardToWeightsIsTheReference) {
  std::vector<ConvCase> cases = kCases;
  cases.push_back({1, 16, 16, 172, 172});  // several blocks of tiles, of two lengths
  for (const ConvCase& c : cases) {
    OpCase test{.type = "ConvBackwardWeights", .inputs = {{c.x()}, {c.dy()}}, .tolerance = kTolerance};
    test.attributes = c.attributes();
    test.attributes.set("kernel", std::vector<int64_t>{c.taps, c.taps});
    expect_like_reference(test);
  }
}

TEST(OwnWinograd, MoreThreadsThanTilesSumNothingTwiceNorWhatIsNotThere) {
  for (const int64_t stride : {1, 2}) {
    const ConvCase c{.images = 11, .in = 16, .out = 32, .height = 4 * stride, .width = 4 * stride, .stride = stride};
    OpCase test{.type = "ConvBackwardWeights", .inputs = {{c.x()}, {c.dy()}}, .tolerance = kTolerance, .threads = {12}};
    test.attributes = c.attributes();
    test.attributes.set("kernel", std::vector<int64_t>{3, 3});
    expect_like_reference(test);
  }
}

// Of a transposed convolution x is the other's dy.
TEST(OwnWinograd, TransposedPassesAreTheReference) {
  for (const ConvCase& c : kCases) {
    if (c.in * c.out > 1024) continue;  // the reference takes long
    OpCase test{.type = "ConvTransposeForward", .inputs = {{c.dy()}, {c.w()}}, .tolerance = kTolerance};
    test.attributes = c.attributes();
    using Ints = std::vector<int64_t>;
    test.attributes.set("output_padding", Ints{(c.height + c.top + c.bottom - c.taps) % c.stride,
                                               (c.width + c.left + c.right - c.taps) % c.stride});
    const Attributes attributes = test.attributes;
    expect_like_reference(test);
    test.inputs.push_back({{c.in}});
    expect_like_reference(test);

    test = {.type = "ConvTransposeBackwardData", .inputs = {{c.x()}, {c.w()}}, .tolerance = kTolerance};
    test.attributes = attributes;
    expect_like_reference(test);

    test = {.type = "ConvTransposeBackwardWeights", .inputs = {{c.dy()}, {c.x()}}, .tolerance = kTolerance};
    test.attributes = attributes;
    test.attributes.set("kernel", Ints{c.taps, c.taps});
    expect_like_reference(test);
    test.attributes.set("bias", int64_t{1});
    expect_like_reference(test);
  }
}

bool is_offered(const Shape& x, const Shape& w, const Attributes& attributes) {
  Graph graph;
  const TensorId data = graph.add_source("x", x, DType::f32, Role::input);
  const TensorId weights = graph.add_source("w", w, DType::f32, Role::parameter);
  const OpId op = graph.add_op("ConvForward", "conv", "conv", {data, weights}, attributes);
  const auto device = open_device("cpu", 1);
  return std::ranges::any_of(
      device->kernels(graph, graph.op(op), LayoutFamily::channels_last), [](const KernelSpec& s) {
        return s.name == "own:winograd" && s.algorithm == Algorithm::winograd && s.workspace.count > 0;
      });
}

TEST(OwnWinograd, IsOfferedForWholeVectorsOfChannelsAndDenseWindowsOnly) {
  using Ints = std::vector<int64_t>;
  const Ints padding{1, 1, 1, 1};
  const Shape x{2, 32, 16, 16};
  EXPECT_TRUE(is_offered(x, {32, 32, 3, 3}, {{"padding", padding}}));
  EXPECT_FALSE(is_offered({2, 24, 16, 16}, {32, 24, 3, 3}, {{"padding", padding}})) << "half a vector";
  EXPECT_FALSE(is_offered(x, {24, 32, 3, 3}, {{"padding", padding}}));
  EXPECT_TRUE(is_offered(x, {32, 32, 5, 5}, {{"padding", padding}}));
  EXPECT_TRUE(is_offered(x, {32, 32, 3, 3}, {{"padding", padding}, {"stride", Ints{2, 2}}}));
  EXPECT_TRUE(is_offered(x, {32, 32, 4, 4}, {{"padding", padding}, {"stride", Ints{2, 2}}}));
  EXPECT_TRUE(is_offered(x, {32, 32, 5, 5}, {{"padding", padding}, {"stride", Ints{2, 2}}}));
  EXPECT_FALSE(is_offered(x, {32, 32, 4, 4}, {{"padding", padding}}));
  EXPECT_FALSE(is_offered(x, {32, 32, 1, 1}, {{"padding", Ints{0, 0, 0, 0}}}));
  EXPECT_FALSE(is_offered(x, {32, 32, 7, 7}, {{"padding", padding}, {"stride", Ints{2, 2}}}));
  EXPECT_FALSE(is_offered(x, {32, 32, 5, 3}, {{"padding", padding}}));
  EXPECT_FALSE(is_offered(x, {32, 32, 3, 3}, {{"padding", padding}, {"stride", Ints{3, 3}}}));
  EXPECT_FALSE(is_offered(x, {32, 32, 3, 3}, {{"padding", padding}, {"stride", Ints{2, 1}}}));
  EXPECT_FALSE(is_offered(x, {32, 32, 3, 3}, {{"padding", padding}, {"dilation", Ints{1, 2}}}));
  EXPECT_FALSE(is_offered(x, {2, 16, 16, 3, 3}, {{"padding", padding}, {"groups", int64_t{2}}}));
  EXPECT_FALSE(is_offered(x, {32, 32, 3, 3}, {{"padding", Ints{3, 3, 3, 3}}}))
      << "the pass to the data has no such padding";
  EXPECT_FALSE(is_offered({1, 32, 7, 7}, {32, 32, 3, 3}, {{"padding", padding}})) << "few tiles for so many weights";
}

}  // namespace
}  // namespace plimsoll
