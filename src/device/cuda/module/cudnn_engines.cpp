#include "device/cuda/module/cudnn_engines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "device/cuda/module/libraries.h"

namespace plimsoll::cuda {
namespace {

using Pass = Convolution::Pass;
using Planned = ConvolutionLibrary::Planned;

// Tensors by what they are, whatever their direction.
enum Uid : int64_t { kX = 1, kW, kY, kBias, kSum, kOut };
constexpr int64_t kAlignment = 16;   // of every pointer: parts of a batch begin so
constexpr size_t kRoom = 64;         // for notes and knobs: there are 10 and 44
constexpr size_t kMostPacks = 4096;  // more than a batch has parts

#define PLIMSOLL_TRY(call)                                      \
  do {                                                          \
    if (Answer answer = call; !answer.is_done()) return answer; \
  } while (false)

class Descriptor {
 public:
  Descriptor() = default;
  ~Descriptor() {
    if (handle_ != nullptr) cudnnBackendDestroyDescriptor(handle_);
  }
  Descriptor(Descriptor&& from) noexcept : name_(from.name_), handle_(std::exchange(from.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&& from) noexcept {
    std::swap(name_, from.name_), std::swap(handle_, from.handle_);
    return *this;
  }

  Answer create(cudnnBackendDescriptorType_t type, const char* name) {
    name_ = name;
    return told(cudnnBackendCreateDescriptor(type, &handle_), "cudnnBackendCreateDescriptor");
  }
  template <class T>
  Answer set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, std::span<const T> values) {
    return told(cudnnBackendSetAttribute(handle_, attribute, type, static_cast<int64_t>(values.size()), values.data()),
                "cudnnBackendSetAttribute");
  }
  template <class T>
  Answer set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, const T& value) {
    return set(attribute, type, std::span<const T>(&value, 1));
  }
  Answer set(cudnnBackendAttributeName_t attribute, const Descriptor& value) {
    return set(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, value.handle_);
  }
  Answer set(cudnnBackendAttributeName_t attribute, std::span<const int64_t> values) {
    return set(attribute, CUDNN_TYPE_INT64, values);
  }
  template <class T>
  Answer get(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, T& value) const {
    int64_t count = 0;
    return told(cudnnBackendGetAttribute(handle_, attribute, type, 1, &count, &value), "cudnnBackendGetAttribute");
  }
  // As many as there are, and as `values` has room for.
  template <class T>
  Answer get(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, std::vector<T>& values) const {
    int64_t count = 0;
    Answer answer = told(
        cudnnBackendGetAttribute(handle_, attribute, type, static_cast<int64_t>(values.size()), &count, values.data()),
        "cudnnBackendGetAttribute");
    values.resize(std::min(values.size(), static_cast<size_t>(count)));
    return answer;
  }
  Answer count(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, int64_t& count) const {
    return told(cudnnBackendGetAttribute(handle_, attribute, type, 0, &count, nullptr), "cudnnBackendGetAttribute");
  }
  Answer finalize() { return told(cudnnBackendFinalize(handle_), "cudnnBackendFinalize"); }
  cudnnBackendDescriptor_t handle() const { return handle_; }

 private:
  Answer told(cudnnStatus_t status, const char* call) const {
    return status == CUDNN_STATUS_SUCCESS ? Answer{} : answer_of(status, fmt::format("{}({})", call, name_));
  }

  const char* name_ = "";
  cudnnBackendDescriptor_t handle_ = nullptr;
};

// What an operation graph is made of, which lives as long.
struct OperationGraph {
  std::vector<std::unique_ptr<Descriptor>> parts;
  Descriptor graph;

  Descriptor& part() { return *parts.emplace_back(std::make_unique<Descriptor>()); }
};

// With depth or without; in a window: of each direction.
using Sizes = std::vector<int64_t>;
Sizes sizes(const Convolution& c, int64_t outer, int64_t channels, int64_t depth, int64_t rows, int64_t columns) {
  return c.deep ? Sizes{outer, channels, depth, rows, columns} : Sizes{outer, channels, rows, columns};
}
Sizes directions(const Convolution& c, int64_t depth, int64_t rows, int64_t columns) {
  return c.deep ? Sizes{depth, rows, columns} : Sizes{rows, columns};
}

Answer make_tensor(Descriptor& tensor, Uid uid, const Sizes& sizes, bool channels_last, bool is_virtual) {
  Sizes strides(sizes.size());
  int64_t stride = channels_last ? sizes[1] : 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (channels_last && d == 1) continue;
    strides[d] = stride;
    stride *= sizes[d];
  }
  if (channels_last) strides[1] = 1;
  PLIMSOLL_TRY(tensor.create(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "TENSOR"));
  PLIMSOLL_TRY(tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT));
  PLIMSOLL_TRY(tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, sizes));
  PLIMSOLL_TRY(tensor.set(CUDNN_ATTR_TENSOR_STRIDES, strides));
  PLIMSOLL_TRY(tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, int64_t{uid}));
  PLIMSOLL_TRY(tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment));
  PLIMSOLL_TRY(tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual));
  return tensor.finalize();
}

Answer make_window(Descriptor& window, const Convolution& c) {
  PLIMSOLL_TRY(window.create(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "CONVOLUTION"));
  PLIMSOLL_TRY(window.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT));
  PLIMSOLL_TRY(window.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION));
  PLIMSOLL_TRY(window.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, int64_t{c.deep ? 3 : 2}));
  PLIMSOLL_TRY(window.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, directions(c, c.dilation_d, c.dilation_h, c.dilation_w)));
  PLIMSOLL_TRY(window.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, directions(c, c.stride_d, c.stride_h, c.stride_w)));
  PLIMSOLL_TRY(window.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, directions(c, c.front, c.top, c.left)));
  PLIMSOLL_TRY(window.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, directions(c, c.rear, c.bottom, c.right)));
  return window.finalize();
}

struct ConvolutionOperation {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t alpha, beta, window, x, w, y;
};
constexpr ConvolutionOperation kOperations[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}};

Answer make_convolution_operation(Descriptor& operation, Pass pass, const Descriptor& window, const Descriptor& x,
                                  const Descriptor& w, const Descriptor& y) {
  const ConvolutionOperation& o = kOperations[static_cast<size_t>(pass)];
  PLIMSOLL_TRY(operation.create(o.type, "OPERATION_CONVOLUTION"));
  PLIMSOLL_TRY(operation.set(o.alpha, CUDNN_TYPE_FLOAT, 1.0F));
  PLIMSOLL_TRY(operation.set(o.beta, CUDNN_TYPE_FLOAT, 0.0F));
  PLIMSOLL_TRY(operation.set(o.window, window));
  PLIMSOLL_TRY(operation.set(o.x, x));
  PLIMSOLL_TRY(operation.set(o.w, w));
  PLIMSOLL_TRY(operation.set(o.y, y));
  return operation.finalize();
}

Answer make_pointwise(OperationGraph& made, cudnnPointwiseMode_t mode, const Descriptor& from, const Descriptor* with,
                      const Descriptor& to, std::vector<cudnnBackendDescriptor_t>& operations) {
  Descriptor &function = made.part(), &operation = made.part();
  PLIMSOLL_TRY(function.create(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "POINTWISE"));
  PLIMSOLL_TRY(function.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode));
  PLIMSOLL_TRY(function.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT));
  PLIMSOLL_TRY(function.finalize());
  PLIMSOLL_TRY(operation.create(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "OPERATION_POINTWISE"));
  PLIMSOLL_TRY(operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function));
  PLIMSOLL_TRY(operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, from));
  if (with != nullptr) PLIMSOLL_TRY(operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *with));
  PLIMSOLL_TRY(operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to));
  operations.push_back(operation.handle());
  return operation.finalize();
}

Answer make_graph(OperationGraph& made, const Convolution& c, bool fused, cudnnHandle_t handle) {
  Descriptor &x = made.part(), &w = made.part(), &y = made.part(), &window = made.part(), &operation = made.part();
  const Sizes y_sizes = sizes(c, c.n, c.k, c.od, c.oh, c.ow);
  PLIMSOLL_TRY(make_tensor(x, kX, sizes(c, c.n, c.c, c.d, c.h, c.w), c.channels_last, false));
  PLIMSOLL_TRY(make_tensor(w, kW, sizes(c, c.k, c.c / c.groups, c.q, c.r, c.s), c.channels_last, false));
  PLIMSOLL_TRY(make_tensor(y, kY, y_sizes, c.channels_last, fused));
  PLIMSOLL_TRY(make_window(window, c));
  PLIMSOLL_TRY(make_convolution_operation(operation, c.pass, window, x, w, y));
  std::vector<cudnnBackendDescriptor_t> operations = {operation.handle()};
  if (fused) {
    Descriptor &bias = made.part(), &sum = made.part(), &out = made.part();
    PLIMSOLL_TRY(make_tensor(bias, kBias, sizes(c, 1, c.k, 1, 1, 1), c.channels_last, false));
    PLIMSOLL_TRY(make_tensor(out, kOut, y_sizes, c.channels_last, false));
    if (c.relu) PLIMSOLL_TRY(make_tensor(sum, kSum, y_sizes, c.channels_last, true));
    PLIMSOLL_TRY(make_pointwise(made, CUDNN_POINTWISE_ADD, y, &bias, c.relu ? sum : out, operations));
    if (c.relu) PLIMSOLL_TRY(make_pointwise(made, CUDNN_POINTWISE_RELU_FWD, sum, nullptr, out, operations));
  }
  PLIMSOLL_TRY(made.graph.create(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "OPERATIONGRAPH"));
  if (handle != nullptr) PLIMSOLL_TRY(made.graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle));
  PLIMSOLL_TRY(made.graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                              std::span<const cudnnBackendDescriptor_t>(operations)));
  return made.graph.finalize();
}

// Of a GPU that is not there.
Answer set_properties(Descriptor& descriptor, int attribute, cudnnBackendDescriptor_t properties) {
  if (properties == nullptr) return {};
  return descriptor.set(static_cast<cudnnBackendAttributeName_t>(attribute), CUDNN_TYPE_BACKEND_DESCRIPTOR, properties);
}
#if CUDNN_VERSION >= 90800
constexpr int kHeuristicsProperties = CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
              kEngineProperties = CUDNN_ATTR_ENGINE_DEVICEPROP, kPlanProperties = CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP;
#else
constexpr int kHeuristicsProperties = 0, kEngineProperties = 0, kPlanProperties = 0;
#endif

// What an engine notes of itself.
Answer read_notes(const Descriptor& engine, EngineConfiguration& configuration) {
  std::vector<cudnnBackendNumericalNote_t> notes(kRoom);
  std::vector<cudnnBackendBehaviorNote_t> behaviors(kRoom);
  PLIMSOLL_TRY(engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, notes));
  for (const cudnnBackendNumericalNote_t note : notes) {
    switch (note) {
      case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: configuration.tensor_cores = true; break;
      case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
      case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION: configuration.less_than_tf32 = true; break;
      case CUDNN_NUMERICAL_NOTE_FFT: configuration.fft = true; break;
      case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC: configuration.deterministic = false; break;
      case CUDNN_NUMERICAL_NOTE_WINOGRAD:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13: configuration.winograd = true; break;
      default: break;
    }
  }
  PLIMSOLL_TRY(engine.get(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, behaviors));
  for (const cudnnBackendBehaviorNote_t note : behaviors) {
    if (note == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) configuration.compiles = true;
  }
  return {};
}

// Descriptors for cuDNN to fill.
Answer make_empty(std::vector<Descriptor>& list, size_t count, cudnnBackendDescriptorType_t type, const char* name,
                  std::vector<cudnnBackendDescriptor_t>& handles) {
  list.resize(count);
  for (Descriptor& descriptor : list) {
    PLIMSOLL_TRY(descriptor.create(type, name));
    handles.push_back(descriptor.handle());
  }
  return {};
}

Answer read_knobs(const Descriptor& configuration, EngineConfiguration& made) {
  std::vector<Descriptor> choices;
  std::vector<cudnnBackendDescriptor_t> handles;
  PLIMSOLL_TRY(make_empty(choices, kRoom, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "KNOB_CHOICE", handles));
  PLIMSOLL_TRY(configuration.get(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, handles));
  for (const Descriptor& choice : std::span(choices).first(handles.size())) {
    cudnnBackendKnobType_t type{};
    int64_t value = 0;
    PLIMSOLL_TRY(choice.get(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, type));
    PLIMSOLL_TRY(choice.get(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, value));
    made.knobs.emplace_back(static_cast<int64_t>(type), value);
  }
  return {};
}

Answer read_configuration(const Descriptor& from, bool fused, EngineConfiguration& made) {
  Descriptor engine;
  cudnnBackendDescriptor_t handle = nullptr;
  PLIMSOLL_TRY(engine.create(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "ENGINE"));
  handle = engine.handle();
  PLIMSOLL_TRY(from.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, handle));
  PLIMSOLL_TRY(engine.get(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, made.number));
  made.fused = fused;
  PLIMSOLL_TRY(read_notes(engine, made));
  return read_knobs(from, made);
}

// Where a plan has its tensors: descriptors, which cannot be changed once they are made. A plan runs with few of them again
// and again: one for each part of a batch.
struct Pack {
  std::array<void*, 4> pointers{};
  void* workspace = nullptr;
  Descriptor descriptor;
};

struct EnginePlan final : Planned {
  Pass pass = Pass::forward;
  OperationGraph graph;
  Descriptor engine, engine_configuration, plan;
  std::vector<Descriptor> choices;
  std::vector<Pack> packs;
};

Answer make_engine(EnginePlan& p, const EngineConfiguration& asked, cudnnBackendDescriptor_t properties) {
  PLIMSOLL_TRY(p.engine.create(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "ENGINE"));
  PLIMSOLL_TRY(p.engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, p.graph.graph));
  PLIMSOLL_TRY(p.engine.set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, asked.number));
  PLIMSOLL_TRY(set_properties(p.engine, kEngineProperties, properties));
  PLIMSOLL_TRY(p.engine.finalize());
  PLIMSOLL_TRY(p.engine_configuration.create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "ENGINECFG"));
  PLIMSOLL_TRY(p.engine_configuration.set(CUDNN_ATTR_ENGINECFG_ENGINE, p.engine));
  std::vector<cudnnBackendDescriptor_t> handles;
  PLIMSOLL_TRY(make_empty(p.choices, asked.knobs.size(), CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "KNOB_CHOICE", handles));
  for (size_t i = 0; i < asked.knobs.size(); ++i) {
    const auto& [type, value] = asked.knobs[i];
    PLIMSOLL_TRY(p.choices[i].set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE,
                                  static_cast<cudnnBackendKnobType_t>(type)));
    PLIMSOLL_TRY(p.choices[i].set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, value));
    PLIMSOLL_TRY(p.choices[i].finalize());
  }
  if (!handles.empty()) {
    PLIMSOLL_TRY(p.engine_configuration.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                            std::span<const cudnnBackendDescriptor_t>(handles)));
  }
  return p.engine_configuration.finalize();
}

Answer make_pack(Pack& pack, const std::array<int64_t, 4>& uids, size_t count) {
  PLIMSOLL_TRY(pack.descriptor.create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "VARIANT_PACK"));
  PLIMSOLL_TRY(pack.descriptor.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                                   std::span<void* const>(pack.pointers).first(count)));
  PLIMSOLL_TRY(pack.descriptor.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, std::span<const int64_t>(uids).first(count)));
  PLIMSOLL_TRY(pack.descriptor.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, pack.workspace));
  return pack.descriptor.finalize();
}

}  // namespace

Answer CudnnEngines::guess(const Convolution& convolution, bool fused, bool fallback,
                           std::vector<EngineConfiguration>& found) const {
  OperationGraph graph;
  PLIMSOLL_TRY(make_graph(graph, convolution, fused, handle_));
  Descriptor heuristics;
  PLIMSOLL_TRY(heuristics.create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "ENGINEHEUR"));
  PLIMSOLL_TRY(heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.graph));
  PLIMSOLL_TRY(heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE,
                              fallback ? CUDNN_HEUR_MODE_FALLBACK : CUDNN_HEUR_MODE_A));
  PLIMSOLL_TRY(set_properties(heuristics, kHeuristicsProperties, properties_));
  PLIMSOLL_TRY(heuristics.finalize());
  int64_t count = 0;
  PLIMSOLL_TRY(heuristics.count(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count));
  std::vector<Descriptor> results;
  std::vector<cudnnBackendDescriptor_t> handles;
  PLIMSOLL_TRY(
      make_empty(results, static_cast<size_t>(count), CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "ENGINECFG", handles));
  if (count == 0) return {};
  PLIMSOLL_TRY(heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, handles));
  for (const Descriptor& result : std::span(results).first(handles.size())) {
    EngineConfiguration configuration;
    if (read_configuration(result, fused, configuration).is_done()) found.push_back(std::move(configuration));
  }
  return {};
}

Answer CudnnEngines::plan(const Convolution& convolution, const EngineConfiguration& configuration,
                          std::unique_ptr<Planned>& planned) const {
  auto made = std::make_unique<EnginePlan>();
  made->pass = convolution.pass;
  made->configuration = {.number = configuration.number, .knobs = configuration.knobs, .fused = configuration.fused};
  PLIMSOLL_TRY(make_graph(made->graph, convolution, configuration.fused, handle_));
  PLIMSOLL_TRY(make_engine(*made, configuration, properties_));
  PLIMSOLL_TRY(read_notes(made->engine, made->configuration));
  PLIMSOLL_TRY(made->plan.create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "EXECUTION_PLAN"));
  if (handle_ != nullptr) PLIMSOLL_TRY(made->plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle_));
  PLIMSOLL_TRY(set_properties(made->plan, kPlanProperties, properties_));
  PLIMSOLL_TRY(made->plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, made->engine_configuration));
  PLIMSOLL_TRY(made->plan.finalize());
  int64_t bytes = 0;
  PLIMSOLL_TRY(made->plan.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, bytes));
  made->workspace = with_slack(static_cast<uint64_t>(bytes));
  planned = std::move(made);
  return {};
}

Answer CudnnEngines::run(Planned& planned, const void* a, const void* b, const void* bias, void* out,
                         void* workspace) const {
  auto& p = static_cast<EnginePlan&>(planned);
  static constexpr Uid kUids[3][3] = {{kX, kW, kY}, {kY, kW, kX}, {kX, kY, kW}};  // of a, b, out in each direction
  const Uid(&order)[3] = kUids[static_cast<size_t>(p.pass)];
  const bool fused = p.configuration.fused;
  const std::array<int64_t, 4> uids = {order[0], order[1], fused ? kOut : order[2], kBias};
  const std::array<void*, 4> pointers = {const_cast<void*>(a), const_cast<void*>(b), out, const_cast<void*>(bias)};
  auto pack = std::find_if(p.packs.begin(), p.packs.end(), [&](const Pack& known) {
    return known.pointers == pointers && known.workspace == aligned_workspace(workspace);
  });
  if (pack == p.packs.end()) {
    Pack made{.pointers = pointers, .workspace = aligned_workspace(workspace), .descriptor = {}};
    PLIMSOLL_TRY(make_pack(made, uids, fused ? 4 : 3));
    if (p.packs.size() == kMostPacks) p.packs.clear();
    p.packs.push_back(std::move(made));
    pack = std::prev(p.packs.end());
  }
  PLIMSOLL_ASK(cudnnBackendExecute(handle_, p.plan.handle(), pack->descriptor.handle()));
  return {};
}

}  // namespace plimsoll::cuda
