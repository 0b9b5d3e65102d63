// Bytes per second of the memory-bound CPU kernels, counting every input and output once, beside a copy of the same
// size by as many threads. A machine in use changes all of them alike: look at the ratio to the copy.
//
//   ninja -C build kernels_bench && build/bench/micro/kernels_bench --benchmark_filter=blocked
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <thread>

#include "plimsoll/device.h"

namespace plimsoll {
namespace {

struct Case {
  const char* name;
  const char* type;
  std::vector<Shape> inputs;
  Attributes attributes = {};
  std::vector<DType> dtypes = {};  // f32 where there is none
};

const Case kCases[] = {
    {"BN+ReLU 16x64x112x112",
     "BatchNormForward",
     {{16, 64, 112, 112}, {64}, {64}, {64}, {64}},
     {{"activation", std::string("relu")}}},
    {"BN+add+ReLU 16x256x56x56",
     "BatchNormForward",
     {{16, 256, 56, 56}, {256}, {256}, {256}, {256}, {16, 256, 56, 56}},
     {{"activation", std::string("relu")}}},
    {"BN+ReLU 16x256x14x14",
     "BatchNormForward",
     {{16, 256, 14, 14}, {256}, {256}, {256}, {256}},
     {{"activation", std::string("relu")}}},
    {"BN+add+ReLU 16x2048x7x7",
     "BatchNormForward",
     {{16, 2048, 7, 7}, {2048}, {2048}, {2048}, {2048}, {16, 2048, 7, 7}},
     {{"activation", std::string("relu")}}},
    {"BN+ReLU 100x16x32x32",
     "BatchNormForward",
     {{100, 16, 32, 32}, {16}, {16}, {16}, {16}},
     {{"activation", std::string("relu")}}},
    {"BN+ReLU backward 16x64x112x112",
     "BatchNormBackward",
     {{16, 64, 112, 112}, {16, 64, 112, 112}, {64}, {64}, {64}, {16, 64, 112, 112}},
     {{"activation", std::string("relu")}},
     {DType::f32, DType::f32, DType::f32, DType::f32, DType::f32, DType::bit}},
    {"BN+add+ReLU backward 16x256x56x56",
     "BatchNormBackward",
     {{16, 256, 56, 56}, {16, 256, 56, 56}, {256}, {256}, {256}, {16, 256, 56, 56}},
     {{"activation", std::string("relu")}, {"residual", int64_t{1}}},
     {DType::f32, DType::f32, DType::f32, DType::f32, DType::f32, DType::bit}},
    {"BN+ReLU backward 16x256x14x14",
     "BatchNormBackward",
     {{16, 256, 14, 14}, {16, 256, 14, 14}, {256}, {256}, {256}, {16, 256, 14, 14}},
     {{"activation", std::string("relu")}},
     {DType::f32, DType::f32, DType::f32, DType::f32, DType::f32, DType::bit}},
    {"BN+ReLU backward 100x16x32x32",
     "BatchNormBackward",
     {{100, 16, 32, 32}, {100, 16, 32, 32}, {16}, {16}, {16}, {100, 16, 32, 32}},
     {{"activation", std::string("relu")}},
     {DType::f32, DType::f32, DType::f32, DType::f32, DType::f32, DType::bit}},
    {"ReLU 8x64x224x224", "ReluForward", {{8, 64, 224, 224}}},
    {"ReLU backward 8x64x224x224", "ReluBackward", {{8, 64, 224, 224}, {8, 64, 224, 224}}},
    {"Tanh 64x64x32x32", "TanhForward", {{64, 64, 32, 32}}},
    {"Add 16x256x56x56", "Add", {{16, 256, 56, 56}, {16, 256, 56, 56}}},
    {"LRN 64x96x27x27", "LrnForward", {{64, 96, 27, 27}}},
    {"LRN backward 64x96x27x27", "LrnBackward", {{64, 96, 27, 27}, {64, 96, 27, 27}}},
    {"Dropout 64x4096", "DropoutForward", {{64, 4096}, {}, {}}, {{"p", 0.5}}, {DType::f32, DType::i64, DType::i64}},
    {"Dropout 32x40x32x32",
     "DropoutForward",
     {{32, 40, 32, 32}, {}, {}},
     {{"p", 0.2}},
     {DType::f32, DType::i64, DType::i64}},
    {"Concat 32x(240+40)x32x32", "Concat", {{32, 240, 32, 32}, {32, 40, 32, 32}}, {{"axis", int64_t{1}}}},
    {"Slice 32x(280)x32x32",
     "Slice",
     {{32, 280, 32, 32}},
     {{"axis", int64_t{1}}, {"begin", int64_t{240}}, {"size", int64_t{40}}}},
    {"Softmax loss 128x1000", "SoftmaxCrossEntropyForward", {{128, 1000}, {128}}, {}, {DType::f32, DType::i32}},
    {"SGD 4096x4096",
     "SgdUpdate",
     {{4096, 4096}, {4096, 4096}, {}, {4096, 4096}},
     {{"momentum", 0.9}, {"weight_decay", 1e-4}}},
    {"Adam 4096x4096",
     "AdamUpdate",
     {{4096, 4096}, {4096, 4096}, {}, {}, {4096, 4096}, {4096, 4096}},
     {},
     {DType::f32, DType::f32, DType::f32, DType::i64, DType::f32, DType::f32}},
};

int threads() { return open_device("cpu")->info().threads; }

void run_case(benchmark::State& state, const Case& test, LayoutFamily family, bool in_place) {
  const auto device = open_device("cpu");
  Graph graph;
  std::vector<TensorId> ids;
  for (size_t i = 0; i < test.inputs.size(); ++i) {
    const DType dtype = i < test.dtypes.size() ? test.dtypes[i] : DType::f32;
    ids.push_back(graph.add_source("in" + std::to_string(i), test.inputs[i], dtype, Role::input));
  }
  const Op op = graph.op(graph.add_op(test.type, "op", "op", ids, test.attributes));
  const KernelSpec spec = device->kernels(graph, op, family)[0];
  const Layout image{family == LayoutFamily::plain ? "" : family == LayoutFamily::channels_last ? "acdb" : "aBcd16b"};
  auto set = [&](TensorId id, const Layout& layout) {
    const bool any = layout == kAnyLayout;
    graph.tensor(id).layout = !any ? layout : graph.tensor(id).shape.size() == 4 ? image : Layout{};
  };
  for (size_t i = 0; i < ids.size(); ++i) set(ids[i], spec.inputs[i]);
  for (size_t i = 0; i < op.outputs.size(); ++i) set(op.outputs[i], spec.outputs[i]);
  const auto kernel = device->make_kernel(graph, op, spec.name);

  Bytes total = align_up(kernel->workspace(), 4096), moved;
  std::vector<TensorId> all(ids);
  all.insert(all.end(), op.outputs.begin(), op.outputs.end());
  for (TensorId id : all) total += align_up(graph.tensor(id).bytes(), 4096);
  const auto arena = device->take_arena(total);
  std::byte* at = arena->base();
  std::vector<void*> in, out;
  std::minstd_rand random(1);
  for (TensorId id : all) {
    const Tensor& tensor = graph.tensor(id);
    (in.size() < ids.size() ? in : out).push_back(at);
    if (tensor.dtype == DType::f32) {
      float* values = reinterpret_cast<float*>(at);
      for (int64_t i = 0; i < tensor.bytes().count / 4; ++i)
        values[i] = static_cast<float>(random() % 1000) * 0.01f - 3;
    }
    if (tensor.dtype == DType::bit) std::memset(at, 0x5A, tensor.bytes().count);
    moved += tensor.bytes();
    at += align_up(tensor.bytes(), 4096).count;
  }
  if (in_place) out[0] = in[0];
  if (test.type == std::string("BatchNormForward")) out[3] = in[3], out[4] = in[4];
  kernel->bind(in, out, at);
  for (auto _ : state) kernel->run();
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * moved.count);
}

// The yardstick: reads and writes `bytes` in all.
void copy(benchmark::State& state) {
  const size_t half = state.range(0) / 2;
  std::vector<std::byte> from(half, std::byte{1}), to(half, std::byte{2});
  const int count = threads();
  for (auto _ : state) {
#pragma omp parallel for num_threads(count) schedule(static)
    for (int part = 0; part < count; ++part) {
      const size_t n = half / count, begin = n * part;
      std::memcpy(to.data() + begin, from.data() + begin, n);
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(half) * 2);
}
BENCHMARK(copy)->Arg(2 << 20)->Arg(8 << 20)->Arg(100 << 20)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace plimsoll

int main(int argc, char** argv) {
  using namespace plimsoll;
  for (const Case& test : kCases) {
    for (LayoutFamily family : {LayoutFamily::blocked, LayoutFamily::channels_last, LayoutFamily::plain}) {
      for (bool in_place : {false, true}) {
        const std::string type = test.type;
        if (in_place && type != "BatchNormForward" && type != "BatchNormBackward" && type != "ReluForward") continue;
        const std::string name =
            std::string(test.name) + "/" + std::string(to_string(family)) + (in_place ? "/in place" : "");
        benchmark::RegisterBenchmark(
            name.c_str(),
            [&test, family, in_place](benchmark::State& state) { run_case(state, test, family, in_place); })
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
        if (test.inputs[0].size() != 4) break;
      }
      if (test.inputs[0].size() != 4) break;
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
