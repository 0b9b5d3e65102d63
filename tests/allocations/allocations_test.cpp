// A training step takes no memory from the heap, however many ops and copies it has: not to run them one after another,
// nor to start them side by side. Kernels that do nothing: what libraries do inside theirs is their own.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "plimsoll/compile.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"
#include "tests/support/idle_device.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  if (counting) ++allocations;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

// Every form, so that none comes from one allocator and goes back to another. GCC, where it compiles one of a pair into its caller
// and not the other, sees that of malloc and this one as two.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  if (counting) ++allocations;
  return std::malloc(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t& nothrow) noexcept { return operator new(bytes, nothrow); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace plimsoll {
namespace {

// What twenty training steps allocate, when some have run.
int64_t allocations_of(const Graph& graph, const Plan& plan, ExecuteOptions options) {
  const IdleDevice device;
  Executor executor(graph, plan, device, options);
  for (int i = 0; i < 5; ++i) executor.run_step();
  allocations = 0;
  counting = true;
  for (int i = 0; i < 20; ++i) executor.run_step();
  counting = false;
  return allocations;
}

TEST(Allocations, AreCounted) {
  allocations = 0;
  counting = true;
  int* volatile memory = new int;  // a pair that is seen through may be left out
  delete memory;
  counting = false;
  EXPECT_EQ(allocations, 1);
}

TEST(Allocations, NoneInATrainingStep) {
  const auto device = open_reference_device();
  const ModelInput input{.batch = 2, .channels = 3, .height = 32, .width = 32, .classes = 10, .training = true};
  const Network network = build_model("resnet20", input);
  CompileOptions options{.policy = "liveness", .exact = true, .family = LayoutFamily::plain};
  const Plan whole = std::get<Program>(compile_training(network, *device, CostTable(), options)).plan;
  options.policy = "vdnn:layers=all";
  options.memory = {whole.arena.count * 3 / 4};
  options.tiers = {
      {.name = "host", .capacity = 1_GiB, .out_gb_per_s = 4, .in_gb_per_s = 4, .latency_us = 10, .compute_share = 0.1}};
  for (const double share : {0.1, 1.0}) {  // copies beside compute, and between two steps
    options.tiers[0].compute_share = share;
    const Program program = std::get<Program>(compile_training(network, *device, CostTable(), options));
    ASSERT_FALSE(program.plan->moves.empty());
    for (const int inter_op : {1, 2, 3}) {
      for (const bool record_times : {false, true}) {
        SCOPED_TRACE(fmt::format("share {}, {} at once, times {}", share, inter_op, record_times));
        Plan plan = program.plan;
        plan.cores.inter_op = plan.cores.cores = inter_op;
        EXPECT_EQ(allocations_of(program.network.graph, plan, {.record_times = record_times}), 0);
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll
