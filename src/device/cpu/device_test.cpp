#include "plimsoll/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <thread>

#include "device/cpu/dnnl.h"
#include "device/cpu/machine.h"
#include "tests/support/own_test.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

// A folder that stands for "/" with the files of a machine's kernel.
class FakeRoot {
 public:
  void put(const std::string& path, const std::string& text) {
    fs::create_directories((folder_ + path).substr(0, (folder_ + path).find_last_of('/')));
    std::ofstream(folder_ + path) << text;
  }
  const std::string& path() const { return folder_; }

 private:
  TemporaryFolder temporary_;
  std::string folder_ = temporary_.path().string();
};

std::string message_of(const auto& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Machine, MemoryIsWhatTheControlGroupLeaves) {
  FakeRoot root;
  root.put("/proc/meminfo", "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  6291456 kB\n");
  EXPECT_EQ(cpu::machine_memory(root.path()).total, 8_GiB);
  EXPECT_EQ(cpu::machine_memory(root.path()).available, 6_GiB);
  root.put("/proc/self/cgroup", "0::/jobs/one\n");
  root.put("/sys/fs/cgroup/jobs/one/memory.max", "max\n");
  root.put("/sys/fs/cgroup/jobs/memory.max", "4294967296\n");
  root.put("/sys/fs/cgroup/jobs/memory.current", "2147483648\n");
  root.put("/sys/fs/cgroup/jobs/memory.stat", "anon 1\ninactive_file 1073741824\n");
  EXPECT_EQ(cpu::machine_memory(root.path()).total, 4_GiB);
  EXPECT_EQ(cpu::machine_memory(root.path()).available, 3_GiB);
}

TEST(Machine, MemoryKnowsControlGroupsOfTheFirstVersion) {
  FakeRoot root;
  root.put("/proc/meminfo", "MemTotal:  8388608 kB\nMemAvailable:  6291456 kB\n");
  root.put("/proc/self/cgroup", "4:cpuset:/\n3:memory,misc:/a\n0::/\n");
  root.put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n");
  root.put("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1073741824\n");
  EXPECT_EQ(cpu::machine_memory(root.path()).total, 1_GiB);
  EXPECT_EQ(cpu::machine_memory(root.path()).available, 0_B);
}

TEST(Machine, MemoryIsWhatTheProcessMayTake) {
  FakeRoot root;
  root.put("/proc/meminfo", "MemTotal:  8388608 kB\nMemAvailable:  6291456 kB\n");
  root.put("/proc/self/status", "Name:\tx\nVmSize:\t 1048576 kB\nVmData:\t 524288 kB\n");
  const std::string none = "Max data size             unlimited            unlimited            bytes     \n";
  root.put("/proc/self/limits", none + "Max address space         unlimited            unlimited            bytes\n");
  EXPECT_EQ(cpu::machine_memory(root.path()).available, 6_GiB);
  EXPECT_FALSE(cpu::machine_memory(root.path()).limited_by_process);
  root.put("/proc/self/limits", none + "Max address space         4294967296           unlimited            bytes\n");
  EXPECT_EQ(cpu::machine_memory(root.path()).total, 4_GiB);
  EXPECT_EQ(cpu::machine_memory(root.path()).available, 3_GiB);
  EXPECT_TRUE(cpu::machine_memory(root.path()).limited_by_process);
  root.put("/proc/self/limits", "Max data size             268435456            unlimited            bytes     \n");
  EXPECT_EQ(cpu::machine_memory(root.path()).available, 0_B);
}

TEST(Machine, ProcessorsAreNoMoreThanTheQuota) {
  FakeRoot root;
  root.put("/proc/self/cgroup", "0::/\n");
  root.put("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpu::usable_processors(root.path()), 1);
  EXPECT_GE(cpu::usable_processors(), 1);
}

// The paper's Xeon Phi 7250: 34 tiles of two cores that share a cache, four hardware threads a core.
TEST(Machine, KnowsWhichCoresShareACache) {
  const cpu::Topology knl = cpu::machine_topology("l2:34 core:2 pu:4");
  EXPECT_EQ(knl.shape, (CoreShape{.cores = 68, .cores_a_cache = 2, .hardware_threads = 4}));
  EXPECT_EQ(knl.shape.caches(), 34);
  ASSERT_EQ(knl.processors.size(), 68u);
  EXPECT_EQ(knl.processors[1], (std::vector<int>{4, 5, 6, 7}));
  const cpu::Topology server = cpu::machine_topology("package:2 l3:2 l2:8 core:1 pu:2");
  EXPECT_EQ(server.shape, (CoreShape{.cores = 32, .cores_a_cache = 8, .hardware_threads = 2}));
}

TEST(Machine, PlacesAreFirstHardwareThreadsAndThenSecondOnes) {
  const std::string machine = "l3:2 l2:1 core:2 pu:2";  // four cores, two a cache, numbered core by core
  EXPECT_EQ(cpu::processors_of_cores(4, false, machine), (std::vector<int>{0, 2, 4, 6}));
  EXPECT_EQ(cpu::processors_of_cores(4, true, machine), (std::vector<int>{0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_EQ(cpu::processors_of_cores(8, false, machine), (std::vector<int>{0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_TRUE(cpu::processors_of_cores(3, false, machine).empty());  // the fourth core is there for others
  EXPECT_TRUE(cpu::processors_of_cores(8, true, machine).empty());
  EXPECT_TRUE(cpu::processors_of_cores(2, true, "core:2 pu:1").empty());
}

TEST(Machine, HasACoreForEveryProcessorGroup) {
  const cpu::Topology here = cpu::machine_topology();
  EXPECT_GE(here.shape.cores, 1);
  EXPECT_LE(here.shape.cores, cpu::usable_processors());
  EXPECT_GE(std::ssize(here.processors), here.shape.cores);
  for (const auto& processors : here.processors) EXPECT_FALSE(processors.empty());
  EXPECT_EQ(open_device("cpu")->info().cores, here.shape);
}

TEST(CpuDevice, TellsWhatItsTimesDependOn) {
  const auto device = open_device("cpu", 1);
  EXPECT_EQ(device->info().threads, 1);
  EXPECT_THAT(device->info().key, ::testing::HasSubstr("oneDNN " + cpu::dnnl_version_text()));
  EXPECT_THAT(device->info().key, ::testing::HasSubstr(" 1 threads"));
  EXPECT_GT(device->info().memory_available, 0_B);
  EXPECT_NE(open_device("cpu", 2)->info().key, device->info().key);
}

TEST(CpuDevice, IsFoundByNameOnly) {
  EXPECT_THAT(message_of([] { open_device("cpv"); }), ::testing::HasSubstr("did you mean 'cpu'"));
  EXPECT_EQ(list_devices().at(0).name, "cpu");
  EXPECT_TRUE(list_devices().at(0).available);
}

TEST(CpuDevice, ArenaIsWritableZeroAndAligned) {
  const auto device = open_device("cpu");
  const auto arena = device->take_arena(5_MiB + 100_B);
  EXPECT_EQ(arena->bytes(), 5_MiB + 100_B);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->base()) % 4096, 0u);
  for (int64_t at : {int64_t{0}, int64_t{4096}, arena->bytes().count - 1}) EXPECT_EQ(arena->base()[at], std::byte{0});
  const std::vector<std::byte> data(100, std::byte{7});
  std::vector<std::byte> back(100);
  device->write(arena->base() + 5 * (int64_t{1} << 20), data);
  device->read(back, arena->base() + 5 * (int64_t{1} << 20));
  EXPECT_EQ(back, data);
  EXPECT_EQ(device->take_arena(0_B)->bytes(), 0_B);
}

TEST(CpuDevice, SaysHowMuchIsLeftWhenTheArenaIsTooLarge) {
  EXPECT_THAT(
      message_of([] { open_device("cpu")->take_arena(Bytes{int64_t{1} << 50}); }),
      ::testing::MatchesRegex("the arena needs .* but the machine has .* left; lower --memory or end other processes"));
}

TEST(CpuDevice, RunsAnOpOfTheUsersOwnByItsReference) {
  static const OpType& type =
      register_op({.name = "CpuDeviceTestNegate",
                   .infer = [](const Attributes&,
                               std::span<const Tensor* const> in) { return std::vector<TensorSpec>{{in[0]->shape}}; },
                   .gradient = {},
                   .in_place = {},
                   .work = {},
                   .reference =
                       [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
                         for (int i = 0; i < 3; ++i) {
                           static_cast<float*>(out[0].data)[i] = -static_cast<float*>(in[0].data)[i];
                         }
                       },
                   .kind = LayerKind::activation});
  Graph graph;
  const TensorId x = graph.add_source("x", {3}, DType::f32, Role::input);
  const Op& op = graph.op(graph.add_op(type.name, "n", "n", {x}));
  const auto device = open_device("cpu");
  const auto specs = device->kernels(graph, op, LayoutFamily::blocked);
  ASSERT_EQ(specs.size(), 1u);
  auto kernel = device->make_kernel(graph, op, specs[0].name);
  float in[3] = {1, 2, 3}, out[3] = {};
  kernel->bind(std::vector<void*>{in}, std::vector<void*>{out}, nullptr);
  kernel->run();
  EXPECT_THAT(out, ::testing::ElementsAre(-1, -2, -3));
}

TEST(Dnnl, LayoutsSurviveTheWayThroughADescriptor) {
  for (const char* tag : {"", "acdb", "aBcd16b", "ABcd16b16a", "ABcd16a16b", "Acdb16a", "cdba"}) {
    const Layout layout{tag};
    const dnnl_memory_desc_t memory = cpu::describe({40, 35, 3, 5}, DType::f32, layout);
    EXPECT_EQ(cpu::layout_of(memory), layout) << tag;
    EXPECT_EQ(Bytes{static_cast<int64_t>(dnnl_memory_desc_get_size(&memory))},
              storage_bytes({40, 35, 3, 5}, DType::f32, layout))
        << tag;
  }
  // One channel: channels last and row-major are the same bytes.
  EXPECT_EQ(cpu::layout_of(cpu::describe({2, 1, 3, 3}, DType::f32, {"acdb"})), Layout{});
  EXPECT_EQ(cpu::layout_of(cpu::describe({2, 1, 3, 3}, DType::f32, {}), {"acdb"}), Layout{"acdb"});
}

TEST(Dnnl, AFailedCallBecomesOurErrorWithTheCallAsText) {
  cpu::fail_dnnl_call(1);
  EXPECT_THAT(message_of([] {
                cpu::describe({2, 3}, DType::f32, {});
              }),
              ::testing::HasSubstr("oneDNN: out_of_memory: dnnl_memory_desc_init_by_tag"));
  cpu::fail_dnnl_call(0);
}

Graph reorder_graph(const Shape& shape, const Layout& to) {
  Graph graph;
  const TensorId x = graph.add_source("x", shape, DType::f32, Role::input);
  const OpId reorder = graph.add_op("Reorder", "r", "r", {x});
  graph.tensor(graph.output(reorder)).layout = to;
  return graph;
}

TEST(Dnnl, ReorderKeepsPaddingZero) {
  const Shape shape = {2, 20, 3, 3};
  const Graph graph = reorder_graph(shape, {"aBcd16b"});
  const auto device = open_device("cpu");
  const Op& op = graph.op({0});
  const auto specs = device->kernels(graph, op, LayoutFamily::blocked);
  ASSERT_EQ(specs.size(), 1u);
  EXPECT_EQ(specs[0].outputs[0], Layout{"aBcd16b"});
  auto kernel = device->make_kernel(graph, op, specs[0].name);
  std::vector<float> x(2 * 20 * 9), y(2 * 32 * 9, -1);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 1 + static_cast<float>(i);
  kernel->bind(std::vector<void*>{x.data()}, std::vector<void*>{y.data()}, nullptr);
  kernel->run();
  const auto offsets = storage_offsets(shape, {"aBcd16b"});
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(y[offsets[i]], x[i]);
    y[offsets[i]] = 0;
  }
  EXPECT_THAT(y, ::testing::Each(0));
}

TEST(Dnnl, AKernelThatFailsSaysWhichOpItRan) {
  const Graph graph = reorder_graph({2, 20, 3, 3}, {"acdb"});
  auto kernel = open_device("cpu")->make_kernel(graph, graph.op({0}), "reorder");
  std::vector<float> x(2 * 20 * 9), y(2 * 20 * 9);
  kernel->bind(std::vector<void*>{x.data()}, std::vector<void*>{y.data()}, nullptr);
  cpu::fail_dnnl_call(1);
  EXPECT_EQ(message_of([&] { kernel->run(); }), "oneDNN cannot run 'r' (Reorder, reorder): out_of_memory");
  cpu::fail_dnnl_call(0);
  kernel->run();
  EXPECT_THAT(message_of([&] { kernel->bind(std::vector<void*>{nullptr}, std::vector<void*>{y.data()}, nullptr); }),
              ::testing::HasSubstr("has no address"));
}

std::atomic<int> handled;
std::atomic<const char*> first_place, last_place;
extern "C" void note_place(int) {
  const char here = 0;
  if (handled == 0 || &here < first_place) first_place = &here;
  if (handled == 0 || &here > last_place) last_place = &here;
  ++handled;
}

// The products of "gemm" have the stack pointer in a workspace on the heap, whose neighbours a handler's frame would overwrite.
TEST(Dnnl, ASignalWhileAKernelRunsWritesNowhereButOnTheStackForSignals) {
  struct sigaction handler {
  }, before{};
  handler.sa_handler = note_place;
  handler.sa_flags = SA_RESTART | SA_ONSTACK;
  ASSERT_EQ(sigaction(SIGALRM, &handler, &before), 0);
  const auto device = open_device("cpu", 1);
  struct Product {
    const char* type;
    Shape a, b;
  };
  for (const Product& product : {Product{"FullyConnectedForward", {64, 256}, {128, 256}},
                                 {"FullyConnectedBackwardData", {64, 128}, {128, 256}},
                                 {"FullyConnectedBackwardWeights", {64, 256}, {64, 128}}}) {
    Graph graph;
    const std::vector<TensorId> in = {graph.add_source("a", product.a, DType::f32, Role::input),
                                      graph.add_source("b", product.b, DType::f32, Role::input)};
    const Op& op = graph.op(graph.add_op(product.type, "fc", "fc", in));
    std::vector<float> a(64 * 256), b(128 * 256), out(128 * 256);
    int products = 0;
    for (const KernelSpec& spec : device->kernels(graph, op, LayoutFamily::plain)) {
      if (spec.name.find("gemm") == std::string::npos) continue;
      SCOPED_TRACE(spec.name);
      ++products;
      for (size_t i = 0; i < in.size(); ++i) graph.tensor(in[i]).layout = spec.inputs[i];
      graph.tensor(op.outputs[0]).layout = spec.outputs[0];
      const auto kernel = device->make_kernel(graph, op, spec.name);
      std::vector<char> workspace(kernel->workspace().count);
      kernel->bind(std::vector<void*>{a.data(), b.data()}, std::vector<void*>{out.data()}, workspace.data());
      kernel->run();
      handled = 0;
      const struct itimerval often {
        {0, 100}, { 0, 100 }
      }, never{};
      setitimer(ITIMER_REAL, &often, nullptr);
      while (handled < 300) kernel->run();
      setitimer(ITIMER_REAL, &never, nullptr);
      stack_t stack{};
      ASSERT_EQ(sigaltstack(nullptr, &stack), 0);
      ASSERT_EQ(stack.ss_flags & SS_DISABLE, 0);
      EXPECT_GE(first_place, static_cast<char*>(stack.ss_sp));
      EXPECT_LT(last_place, static_cast<char*>(stack.ss_sp) + stack.ss_size);
    }
    EXPECT_GT(products, 0) << product.type;
  }
  sigaction(SIGALRM, &before, nullptr);
}

TEST(Dnnl, KernelsAreMadeInSeveralThreadsAtOnce) {
  const Graph graph = reorder_graph({2, 20, 3, 3}, {"acdb"});
  const auto device = open_device("cpu");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 20; ++k) EXPECT_NE(device->make_kernel(graph, graph.op({0}), "reorder"), nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Every kernel of every layout family, as "name workspace layouts".
std::vector<std::string> offered(const Device& device, const Graph& graph, const Op& op) {
  std::vector<std::string> result;
  for (LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked}) {
    for (const KernelSpec& spec : device.kernels(graph, op, family)) {
      std::string text = std::string(to_string(family)) + " " + spec.name + " " + std::to_string(spec.workspace.count);
      for (const auto& layouts : {spec.inputs, spec.outputs}) {
        for (const Layout& layout : layouts) text += " " + layout.tag;
      }
      result.push_back(text);
    }
  }
  return result;
}

// A plan keeps kernels by name, and so does the database of costs: both are read by processes that made other kernels,
// or none, before. oneDNN remembers the primitives that a process made, and lists implementations differently then.
TEST(Dnnl, OffersTheSameKernelsWhateverWasMadeBefore) {
  struct Case {
    const char* type;
    Shape first, second;
    Attributes attributes;
  };
  const std::vector<int64_t> one = {1, 1, 1, 1};
  const std::vector<int64_t> square = {3, 3}, size = {14, 14};
  const std::vector<Case> cases = {
      {"ConvForward", {4, 32, 14, 14}, {32, 32, 3, 3}, {{"padding", one}}},
      {"ConvForward", {4, 3, 14, 14}, {32, 3, 3, 3}, {{"padding", one}}},
      {"ConvForward", {4, 32, 14, 14}, {64, 32, 1, 1}, {}},
      {"ConvForward", {4, 32, 14, 14}, {32, 1, 1, 3, 3}, {{"padding", one}, {"groups", int64_t{32}}}},
      {"ConvBackwardData", {4, 32, 14, 14}, {32, 32, 3, 3}, {{"padding", one}, {"input_size", size}}},
      {"ConvBackwardWeights", {4, 32, 14, 14}, {4, 32, 14, 14}, {{"padding", one}, {"kernel", square}}},
      {"FullyConnectedForward", {8, 64}, {48, 64}, {}},
      {"FullyConnectedBackwardData", {8, 48}, {48, 64}, {}},
      {"FullyConnectedBackwardWeights", {8, 64}, {8, 48}, {}},
  };
  const auto device = open_device("cpu", 1);
  int capacity = 0;
  ASSERT_EQ(dnnl_get_primitive_cache_capacity(&capacity), dnnl_success);
  for (const Case& test : cases) {
    SCOPED_TRACE(test.type);
    Graph graph;
    const TensorId a = graph.add_source("a", test.first, DType::f32, Role::input);
    const TensorId b = graph.add_source("b", test.second, DType::f32, Role::parameter);
    const OpId id = graph.add_op(test.type, "op", "op", {a, b}, test.attributes);
    const Op& op = graph.op(id);
    ASSERT_EQ(dnnl_set_primitive_cache_capacity(0), dnnl_success);  // as in a new process
    ASSERT_EQ(dnnl_set_primitive_cache_capacity(capacity), dnnl_success);
    const std::vector<std::string> fresh = offered(*device, graph, op);
    std::vector<std::unique_ptr<Kernel>> made;
    for (LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked}) {
      for (const KernelSpec& spec : device->kernels(graph, op, family)) {
        Graph laid_out = graph;
        for (size_t i = 0; i < op.inputs.size(); ++i) laid_out.tensor(op.inputs[i]).layout = spec.inputs[i];
        for (size_t i = 0; i < op.outputs.size(); ++i) laid_out.tensor(op.outputs[i]).layout = spec.outputs[i];
        made.push_back(device->make_kernel(laid_out, laid_out.op(id), spec.name, 1));
        EXPECT_EQ(made.back()->workspace(), spec.workspace) << spec.name;
        EXPECT_EQ(offered(*device, graph, op), fresh) << "after " << spec.name;
      }
    }
  }
  int after = 0;
  ASSERT_EQ(dnnl_get_primitive_cache_capacity(&after), dnnl_success);
  EXPECT_EQ(after, capacity);  // the host program's setting stays
}

// Images with depth lie row-major; most of their kernels run on copies in blocks of channels.
TEST(Dnnl, ConvolvesImagesWithDepthOnCopies) {
  using Ints = std::vector<int64_t>;
  const Ints padding(6, 1), size = {5, 6, 7};
  const Attributes window = {{"padding", padding}}, transposed = {{"padding", padding}, {"stride", Ints{2, 2, 2}}};
  const std::vector<OpCase> cases = {
      {.type = "ConvForward", .inputs = {{{2, 20, 5, 6, 7}}, {{24, 20, 3, 3, 3}}, {{24}}}, .attributes = window},
      {.type = "ConvForward", .inputs = {{{2, 3, 5, 6, 7}}, {{16, 3, 3, 3, 3}}}, .attributes = window},
      {.type = "ConvForward",
       .inputs = {{{2, 32, 5, 6, 7}}, {{32, 1, 1, 3, 3, 3}}},
       .attributes = {{"padding", padding}, {"groups", int64_t{32}}}},
      {.type = "ConvBackwardData",
       .inputs = {{{2, 24, 5, 6, 7}}, {{24, 20, 3, 3, 3}}},
       .attributes = {{"padding", padding}, {"input_size", size}}},
      {.type = "ConvBackwardWeights",
       .inputs = {{{2, 20, 5, 6, 7}}, {{2, 24, 5, 6, 7}}},
       .attributes = {{"padding", padding}, {"kernel", Ints{3, 3, 3}}, {"bias", int64_t{1}}}},
      {.type = "ConvTransposeForward",
       .inputs = {{{2, 20, 3, 4, 3}}, {{20, 16, 3, 3, 3}}, {{16}}},
       .attributes = transposed},
  };
  for (OpCase test : cases) {
    test.tolerance = 1e-4;
    expect_like_reference(test);
  }
  Graph graph;
  const TensorId x = graph.add_source("x", {2, 20, 5, 6, 7}, DType::f32, Role::input);
  const TensorId w = graph.add_source("w", {24, 20, 3, 3, 3}, DType::f32, Role::parameter);
  const OpId id = graph.add_op("ConvForward", "op", "op", {x, w}, window);
  const auto device = open_device("cpu", 1);
  for (const KernelSpec& spec : device->kernels(graph, graph.op(id), LayoutFamily::blocked)) {
    Graph laid_out = graph;
    laid_out.tensor(w).layout = spec.inputs[1];
    EXPECT_EQ(device->make_kernel(laid_out, laid_out.op(id), spec.name, 1)->workspace(), spec.workspace) << spec.name;
    EXPECT_TRUE(spec.inputs[0].is_plain() && spec.outputs[0].is_plain()) << spec.name;
    // 20 and 24 channels are two blocks each.
    const bool is_on_copies = spec.name.find("@aBcde16b") != std::string::npos;
    EXPECT_TRUE(!is_on_copies || spec.workspace.count >= 2 * (2 * 32 * 5 * 6 * 7 * 4)) << spec.name;
  }
}

// oneDNN's int arithmetic on such sizes divides by what overflowed to zero, and takes the process with it.
TEST(Dnnl, RefusesSizesThatOneDnnCannotCount) {
  const auto device = open_device("cpu", 1);
  struct Case {
    const char* type;
    Shape x, w;
  };
  const std::vector<Case> cases = {
      {"ConvForward", {32, 1, 65536, 65536}, {6, 1, 5, 5}},      // pixels of an image
      {"ConvForward", {2048, 1, 8192, 8192}, {2, 1, 1, 1}},      // pixels of a batch
      {"ConvForward", {65536, 12, 1024, 1024}, {10, 12, 1, 1}},  // an output's
      {"FullyConnectedForward", {1, int64_t{1} << 32}, {2, int64_t{1} << 32}},
      {"FullyConnectedForward", {int64_t{1} << 32, 2}, {2, 2}},
  };
  for (const Case& test : cases) {
    Graph graph;
    const TensorId x = graph.add_source("data", test.x, DType::f32, Role::input);
    const TensorId w = graph.add_source("w", test.w, DType::f32, Role::parameter);
    const Op& op = graph.op(graph.add_op(test.type, "first", "first", {x, w}));
    for (LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked}) {
      EXPECT_EQ(message_of([&] { device->kernels(graph, op, family); }),
                "op 'first' (" + std::string(test.type) + "): tensor 'data' of shape " + to_string(test.x) +
                    " is larger than oneDNN's kernels can count; lower --batch, --image-size or --num-classes");
    }
  }
}

}  // namespace
}  // namespace plimsoll
