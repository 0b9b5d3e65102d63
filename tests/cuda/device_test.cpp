// What the CUDA device says of itself, and of what it cannot do.
#include "device/cuda/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <tuple>

#include "plimsoll/error.h"
#include "plimsoll/ops.h"
#include "tests/cuda/fake_door.h"
#include "tests/support/error_text.h"

namespace plimsoll {
namespace {

using testing::error_text;
using testing::FakeDoor;
using ::testing::HasSubstr;

TEST(CudaDevice, IsListedWithTheReasonWhyItIsNotThere) {
  const std::vector<DeviceListing> list = cuda::list();
  ASSERT_FALSE(list.empty());
  for (const DeviceListing& device : list) {
    EXPECT_FALSE(device.description.empty());
    if (device.available) continue;
    EXPECT_THAT(error_text(ErrorCode::unsupported, [] { open_device("cuda:0"); }),
                HasSubstr("device 'cuda:0' is not there: " + device.description));
  }
}

TEST(CudaDevice, HasANameWithANumber) {
  for (const char* name : {"cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cudax"}) {
    EXPECT_EQ(cuda::open(name), nullptr) << name;
    EXPECT_THAT(error_text(ErrorCode::invalid_input, [&] { open_device(name); }), HasSubstr(name));
  }
}

TEST(CudaDevice, CountsTheMemoryThatOthersLeave) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false);
  EXPECT_EQ(device->info().memory_total, 8_GiB);
  EXPECT_EQ(device->info().memory_available, 2_GiB);  // of 3 GiB that are free
  const auto arena = device->take_arena(256_MiB);
  EXPECT_EQ(device->memory_now()->free, 3_GiB - 256_MiB - 4_KiB);
  EXPECT_EQ(device->memory_now()->available, 2_GiB - 256_MiB - 4_KiB);
  EXPECT_FALSE(open_device("cpu", 1)->memory_now().has_value());
  EXPECT_THAT(device->info().description, HasSubstr("Fake GPU"));
  EXPECT_FALSE(device->host_addressable());
}

// What CUDA makes of a direction that is wrong, the door's stand-in says as well: so all tests know that none is.
TEST(CudaDevice, TellsCopiesTheirDirection) {
  FakeDoor door;
  void* const here = door.allocate(64);
  std::array<char, 64> host{};
  using cuda::Direction, cuda::Queue;
  door.copy(Queue::transfer, here, host.data(), 64, Direction::to_device);
  door.copy(Queue::transfer, host.data(), here, 64, Direction::to_host);
  door.pin(host.data(), 64);
  for (const auto& [to, from, direction] : {std::tuple<void*, void*, Direction>{here, host.data(), Direction::to_host},
                                            {host.data(), here, Direction::to_device},
                                            {here, host.data(), Direction::on_device},
                                            {host.data(), here, Direction::on_device}}) {
    EXPECT_THAT(error_text(ErrorCode::device_failure, [&] { door.copy(Queue::transfer, to, from, 64, direction); }),
                HasSubstr("cudaMemcpyAsync: invalid argument"));
  }
  door.unpin(host.data());
  door.synchronize(Queue::transfer);
  door.release(here);
}

TEST(CudaDevice, NamesTheCallThatRefusesTheArena) {
  const auto door = std::make_shared<FakeDoor>();
  const auto device = cuda::open_behind(door, "cuda:0", false);
  door->fail("cudaMalloc", 1);
  const std::string what = error_text(ErrorCode::device_failure, [&] { device->take_arena(1_MiB); });
  EXPECT_THAT(what, HasSubstr("arena of 1.00 MiB"));
  EXPECT_THAT(what, HasSubstr("cudaMalloc"));
}

TEST(CudaDevice, NamesTheOpThatItCannotRun) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false);
  register_op({.name = "CudaTestNothing",
               .infer =
                   [](const Attributes&, std::span<const Tensor* const> in) {
                     return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
                   },
               .kind = LayerKind::other});
  Graph graph;
  const TensorId x = graph.add_source("x", {4}, DType::f32, Role::activation);
  const TensorId d = graph.add_source("d", {4}, DType::f64, Role::activation);
  const OpId strange = graph.add_op("CudaTestNothing", "strange", "layer", {x});
  const OpId exact = graph.add_op("ReluForward", "exact", "layer", {d});
  EXPECT_EQ(error_text(ErrorCode::unsupported, [&] { device->kernels(graph, graph.op(strange), LayoutFamily::plain); }),
            "op 'strange': CUDA has no kernel for ops of type CudaTestNothing");
  EXPECT_EQ(error_text(ErrorCode::unsupported, [&] { device->make_kernel(graph, graph.op(exact), "own"); }),
            "op 'exact' (ReluForward): 'd' is f64; CUDA's kernels are for f32");
}

TEST(CudaDevice, OffersTf32OnlyWhenAskedAndNeverAsExact) {
  Graph graph;
  const TensorId x = graph.add_source("x", {2, 8, 9, 9}, DType::f32, Role::activation);
  const TensorId w = graph.add_source("w", {8, 8, 3, 3}, DType::f32, Role::activation);
  const OpId conv = graph.add_op("ConvForward", "conv", "conv", {x, w});
  for (const bool tf32 : {false, true}) {
    const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", tf32);
    int offered = 0;
    for (const KernelSpec& spec : device->kernels(graph, graph.op(conv), LayoutFamily::plain)) {
      if (!spec.name.ends_with(":tf32")) continue;
      ++offered;
      EXPECT_FALSE(spec.exact);
    }
    EXPECT_EQ(offered > 0, tf32);
  }
}

}  // namespace
}  // namespace plimsoll
