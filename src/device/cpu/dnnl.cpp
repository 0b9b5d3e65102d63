#include "device/cpu/dnnl.h"

#include <fmt/format.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <limits>
#include <map>
#include <mutex>

#include "base/signal_stack.h"
#include "device/cpu/device.h"

namespace plimsoll::cpu {
namespace {

std::atomic<int> calls_until_failure{0};

// The status of a call, or the failure that a test asked for.
dnnl_status_t observed(dnnl_status_t status) {
  if (calls_until_failure.load(std::memory_order_relaxed) > 0 && calls_until_failure.fetch_sub(1) == 1) {
    return dnnl_out_of_memory;
  }
  return status;
}

dnnl_data_type_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return dnnl_f32;
    case DType::i32: return dnnl_s32;
    case DType::u8: return dnnl_u8;
    default: throw Error(ErrorCode::unsupported, fmt::format("oneDNN has no tensors of {}", to_string(dtype)));
  }
}

struct Tag {
  std::string text;
  dnnl_format_tag_t value;
  size_t rank;
};

// oneDNN's tags by name, in its order.
const std::vector<Tag>& all_tags() {
  static const std::vector<Tag> tags = [] {
    std::vector<Tag> result;
    for (int value = dnnl_a; value < dnnl_format_tag_last; ++value) {
      const std::string text = dnnl_fmt_tag2str(static_cast<dnnl_format_tag_t>(value));
      const auto letters = std::find_if_not(text.begin(), text.end(), [](unsigned char c) { return std::isalpha(c); });
      result.push_back({text, static_cast<dnnl_format_tag_t>(value), static_cast<size_t>(letters - text.begin())});
    }
    return result;
  }();
  return tags;
}

dnnl_format_tag_t find_tag(const Layout& layout, size_t rank) {
  static const std::map<std::string, dnnl_format_tag_t, std::less<>> by_name = [] {
    std::map<std::string, dnnl_format_tag_t, std::less<>> result;
    for (const Tag& tag : all_tags()) result.emplace(tag.text, tag.value);
    return result;
  }();
  const std::string text = layout.tag.empty() ? std::string("abcdefghijkl").substr(0, rank) : layout.tag;
  auto it = by_name.find(text);
  if (it == by_name.end()) throw Error(ErrorCode::unsupported, fmt::format("oneDNN has no layout '{}'", text));
  return it->second;
}

void fill_dimensions(const Shape& shape, dnnl_dims_t& dimensions) {
  if (shape.size() > DNNL_MAX_NDIMS) {
    throw Error(ErrorCode::unsupported, fmt::format("oneDNN has no tensors of {} dimensions", shape.size()));
  }
  std::copy(shape.begin(), shape.end(), dimensions);
}

bool has_layout(const dnnl_memory_desc_t& descriptor, dnnl_format_tag_t tag) {
  dnnl_memory_desc_t candidate;
  return dnnl_memory_desc_init_by_tag(&candidate, descriptor.ndims, descriptor.dims, descriptor.data_type, tag) ==
             dnnl_success &&
         same_storage(descriptor, candidate);
}

class DnnlKernel final : public Kernel {
 public:
  DnnlKernel(const Op& op, const Implementation& implementation, const std::vector<Argument>& arguments, int threads)
      : what_(fmt::format("'{}' ({}, {})", op.name, op.type->name, implementation.name)), threads_(threads) {
    const ThreadCount scope(threads);
    workspace_ = implementation.workspace();
    dnnl_primitive_t primitive = nullptr;
    check(dnnl_primitive_create(&primitive, implementation.descriptor.get()), "prepare");
    primitive_.reset(primitive);
    dnnl_stream_t stream = nullptr;
    PLIMSOLL_DNNL(dnnl_stream_create(&stream, dnnl_cpu_engine(), dnnl_stream_default_flags));
    stream_.reset(stream);
    for (const Argument& argument : arguments) add(argument.id, argument.memory, argument.slot);
    if (workspace_.count > 0) {
      add(DNNL_ARG_SCRATCHPAD, implementation.memory(dnnl_query_scratchpad_md), std::nullopt);
    }
  }

  Bytes workspace() const override { return workspace_; }

  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) override {
    for (size_t i = 0; i < memories_.size(); ++i) {
      void* data = workspace;
      if (slots_[i]) data = slots_[i]->is_output ? outputs[slots_[i]->index] : inputs[slots_[i]->index];
      if (data == nullptr) throw Error(ErrorCode::internal, fmt::format("a tensor of {} has no address", what_));
      PLIMSOLL_DNNL(dnnl_memory_set_data_handle_v2(memories_[i].get(), data, stream_.get()));
    }
  }

  // The matrix products of "gemm" have the stack pointer in a workspace on the heap while they multiply: a handler that used
  // this thread's stack then would write over what lies before it.
  void run() override {
    use_signal_stack();
    if (omp_get_max_threads() != threads_) omp_set_num_threads(threads_);
    check(
        dnnl_primitive_execute(primitive_.get(), stream_.get(), static_cast<int>(arguments_.size()), arguments_.data()),
        "run");
    check(dnnl_stream_wait(stream_.get()), "finish");
  }

 private:
  void add(int id, const dnnl_memory_desc_t& descriptor, std::optional<Slot> slot) {
    dnnl_memory_t memory = nullptr;
    PLIMSOLL_DNNL(dnnl_memory_create(&memory, &descriptor, dnnl_cpu_engine(), nullptr));
    memories_.emplace_back(memory);
    slots_.push_back(slot);
    arguments_.push_back({id, memory});
  }

  void check(dnnl_status_t status, const char* verb) const {
    status = observed(status);
    if (status == dnnl_success) return;
    throw Error(ErrorCode::device_failure,
                fmt::format("oneDNN cannot {} {}: {}", verb, what_, dnnl_status2str(status)));
  }

  std::string what_;
  int threads_;
  Bytes workspace_;
  OwnedPrimitive primitive_;
  OwnedStream stream_;
  std::vector<OwnedMemory> memories_;
  std::vector<std::optional<Slot>> slots_;  // of each memory; none: the workspace
  std::vector<dnnl_exec_arg_t> arguments_;
};

struct IteratorGuard {
  dnnl_primitive_desc_iterator_t iterator = nullptr;
  ~IteratorGuard() {
    if (iterator != nullptr) dnnl_primitive_desc_iterator_destroy(iterator);
  }
};
struct AttributeGuard {
  dnnl_primitive_attr_t attributes = nullptr;
  dnnl_post_ops_t post_ops = nullptr;
  ~AttributeGuard() {
    if (post_ops != nullptr) dnnl_post_ops_destroy(post_ops);
    if (attributes != nullptr) dnnl_primitive_attr_destroy(attributes);
  }
};

void fill_attributes(AttributeGuard& guard, const PrimitiveAttributes& wanted) {
  PLIMSOLL_DNNL(dnnl_primitive_attr_create(&guard.attributes));
  PLIMSOLL_DNNL(dnnl_primitive_attr_set_scratchpad_mode(guard.attributes, dnnl_scratchpad_mode_user));
  if (!wanted.relu && !wanted.sum) return;
  PLIMSOLL_DNNL(dnnl_post_ops_create(&guard.post_ops));
  if (wanted.sum) PLIMSOLL_DNNL(dnnl_post_ops_append_sum(guard.post_ops, 1.0f));
  if (wanted.relu) PLIMSOLL_DNNL(dnnl_post_ops_append_eltwise(guard.post_ops, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f));
  PLIMSOLL_DNNL(dnnl_primitive_attr_set_post_ops(guard.attributes, guard.post_ops));
}

// Keeps oneDNN's cache of primitives empty for a scope, and the host program's setting after it. The iterator over
// implementations takes what the cache has for its n-th step without stepping on in the list, so what follows is listed
// once more, under other numbers: names would depend on what was made before. One scope at a time, or the second would
// keep the first one's setting.
class EmptyPrimitiveCache {
 public:
  EmptyPrimitiveCache() : lock_(mutex()) {
    PLIMSOLL_DNNL(dnnl_get_primitive_cache_capacity(&capacity_));
    if (capacity_ > 0) PLIMSOLL_DNNL(dnnl_set_primitive_cache_capacity(0));
  }
  ~EmptyPrimitiveCache() {
    if (capacity_ > 0) dnnl_set_primitive_cache_capacity(capacity_);
  }
  EmptyPrimitiveCache(const EmptyPrimitiveCache&) = delete;
  EmptyPrimitiveCache& operator=(const EmptyPrimitiveCache&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  std::lock_guard<std::mutex> lock_;
  int capacity_ = 0;
};

// Every implementation with its name, the useless ones too.
std::vector<Implementation> list_implementations(const_dnnl_op_desc_t operation, const PrimitiveAttributes& wanted,
                                                 const Implementation* hint) {
  AttributeGuard attributes;
  fill_attributes(attributes, wanted);
  const EmptyPrimitiveCache cache;
  IteratorGuard guard;
  const dnnl_status_t status =
      dnnl_primitive_desc_iterator_create(&guard.iterator, operation, attributes.attributes, dnnl_cpu_engine(),
                                          hint != nullptr ? hint->descriptor.get() : nullptr);
  if (status == dnnl_unimplemented || status == dnnl_invalid_arguments) return {};
  check_dnnl(status, "dnnl_primitive_desc_iterator_create");
  std::vector<Implementation> result;
  do {
    Implementation one{OwnedPrimitiveDescriptor(dnnl_primitive_desc_iterator_fetch(guard.iterator)), {}};
    if (one.descriptor == nullptr) break;
    const char* name = nullptr;
    PLIMSOLL_DNNL(dnnl_primitive_desc_query(one.descriptor.get(), dnnl_query_impl_info_str, 0, &name));
    one.name = name;
    result.push_back(std::move(one));
  } while (dnnl_primitive_desc_iterator_next(guard.iterator) == dnnl_success);
  std::map<std::string, int> seen;
  for (Implementation& one : result) {
    const int count = ++seen[one.name];
    if (count > 1) one.name += fmt::format("#{}", count);
  }
  return result;
}

bool mentions(const Implementation& implementation, std::string_view word) {
  return implementation.name.find(word) != std::string::npos;
}

}  // namespace

void check_dnnl(dnnl_status_t status, const char* call) {
  status = observed(status);
  if (status == dnnl_success) return;
  throw Error(ErrorCode::device_failure, fmt::format("oneDNN: {}: {}", dnnl_status2str(status), call));
}

bool fail_dnnl_call(int n) { return calls_until_failure.exchange(n) == 0; }

std::string dnnl_version_text() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

std::string dnnl_instruction_set() {
  switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41: return "sse41";
    case dnnl_cpu_isa_avx: return "avx";
    case dnnl_cpu_isa_avx2: return "avx2";
    case dnnl_cpu_isa_avx2_vnni: return "avx2_vnni";
    case dnnl_cpu_isa_avx512_core: return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni: return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16: return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx: return "avx512_core_amx";
    default: return fmt::format("isa_{:x}", static_cast<unsigned>(dnnl_get_effective_cpu_isa()));
  }
}

void forget_kernels() {
  int capacity = 0;
  PLIMSOLL_DNNL(dnnl_get_primitive_cache_capacity(&capacity));
  PLIMSOLL_DNNL(dnnl_set_primitive_cache_capacity(0));
  PLIMSOLL_DNNL(dnnl_set_primitive_cache_capacity(capacity));
}

dnnl_engine_t dnnl_cpu_engine() {
  static const dnnl_engine_t engine = [] {
    dnnl_engine_t fresh = nullptr;
    PLIMSOLL_DNNL(dnnl_engine_create(&fresh, dnnl_cpu, 0));
    return fresh;
  }();
  return engine;
}

ThreadCount::ThreadCount(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
ThreadCount::~ThreadCount() { omp_set_num_threads(before_); }

dnnl_memory_desc_t describe(const Shape& shape, DType dtype, const Layout& layout) {
  dnnl_memory_desc_t result;
  dnnl_dims_t dimensions = {1};
  fill_dimensions(shape, dimensions);
  const size_t rank = std::max<size_t>(shape.size(), 1);  // a scalar is a vector of one
  PLIMSOLL_DNNL(dnnl_memory_desc_init_by_tag(&result, static_cast<int>(rank), dimensions, data_type(dtype),
                                             find_tag(layout, rank)));
  return result;
}

dnnl_memory_desc_t describe_any(const Shape& shape, DType dtype) {
  dnnl_memory_desc_t result;
  dnnl_dims_t dimensions;
  fill_dimensions(shape, dimensions);
  PLIMSOLL_DNNL(dnnl_memory_desc_init_by_tag(&result, static_cast<int>(shape.size()), dimensions, data_type(dtype),
                                             dnnl_format_tag_any));
  return result;
}

bool same_storage(const dnnl_memory_desc_t& a, const dnnl_memory_desc_t& b) {
  if (a.format_kind != dnnl_blocked || b.format_kind != dnnl_blocked) return false;
  const dnnl_blocking_desc_t& x = a.format_desc.blocking;
  const dnnl_blocking_desc_t& y = b.format_desc.blocking;
  if (x.inner_nblks != y.inner_nblks) return false;
  if (!std::equal(x.inner_blks, x.inner_blks + x.inner_nblks, y.inner_blks) ||
      !std::equal(x.inner_idxs, x.inner_idxs + x.inner_nblks, y.inner_idxs)) {
    return false;
  }
  dnnl_dims_t blocks;
  std::fill(blocks, blocks + a.ndims, 1);
  for (int i = 0; i < x.inner_nblks; ++i) blocks[x.inner_idxs[i]] *= x.inner_blks[i];
  for (int d = 0; d < a.ndims; ++d) {
    if (a.padded_dims[d] != b.padded_dims[d]) return false;
    if (a.padded_dims[d] / blocks[d] > 1 && x.strides[d] != y.strides[d]) return false;
  }
  return true;
}

std::optional<Layout> layout_of(const dnnl_memory_desc_t& descriptor, const Layout& preferred) {
  if (descriptor.format_kind != dnnl_blocked || descriptor.extra.flags != dnnl_memory_extra_flag_none ||
      descriptor.offset0 != 0) {
    return std::nullopt;
  }
  const size_t rank = descriptor.ndims;
  for (const Layout& layout : {preferred, Layout{}}) {
    if (has_layout(descriptor, find_tag(layout, rank))) return layout;
  }
  for (const Tag& tag : all_tags()) {
    if (tag.rank == rank && has_layout(descriptor, tag.value)) return Layout{tag.text};
  }
  return std::nullopt;
}

const dnnl_memory_desc_t& Implementation::memory(dnnl_query_t query, int index) const {
  const dnnl_memory_desc_t* result = dnnl_primitive_desc_query_md(descriptor.get(), query, index);
  if (result == nullptr) throw Error(ErrorCode::internal, fmt::format("oneDNN's {} describes no such memory", name));
  return *result;
}

Bytes Implementation::workspace() const {
  const dnnl_memory_desc_t* scratch = dnnl_primitive_desc_query_md(descriptor.get(), dnnl_query_scratchpad_md, 0);
  return {scratch != nullptr ? static_cast<int64_t>(dnnl_memory_desc_get_size(scratch)) : 0};
}

std::vector<Implementation> implementations(const_dnnl_op_desc_t operation, const PrimitiveAttributes& attributes,
                                            const Implementation* hint) {
  std::vector<Implementation> all = list_implementations(operation, attributes, hint);
  const bool modern = std::any_of(all.begin(), all.end(), [](const auto& one) { return mentions(one, "avx512"); });
  std::erase_if(all, [&](const Implementation& one) {
    return mentions(one, "ref") || mentions(one, "simple") || mentions(one, "sse41") ||
           (modern && mentions(one, "avx2"));
  });
  return all;
}

std::optional<Implementation> find_implementation(const_dnnl_op_desc_t operation, std::string_view name,
                                                  const PrimitiveAttributes& attributes, const Implementation* hint) {
  for (Implementation& one : list_implementations(operation, attributes, hint)) {
    if (one.name == name) return std::move(one);
  }
  return std::nullopt;
}

void expect_countable(const Graph& graph, const Op& op) {
  auto check = [&](TensorId id) {
    const Tensor& tensor = graph.tensor(id);
    const Shape& shape = tensor.shape;
    if (shape.size() < 2) return;
    Shape batch = shape;
    batch[1] = 1;
    const Shape image(shape.begin() + 1, shape.end());
    for (const Shape& part : {batch, image}) {
      if (element_count(part) <= std::numeric_limits<int32_t>::max()) continue;
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}' ({}): tensor '{}' of shape {} is larger than oneDNN's kernels can count; lower "
                              "--batch, --image-size or --num-classes",
                              op.name, op.type->name, tensor.name, to_string(shape)));
    }
  };
  for (TensorId id : op.inputs) check(id);
  for (TensorId id : op.outputs) check(id);
}

const Tensor& tensor_at(const Graph& graph, const Op& op, Slot slot) {
  return graph.tensor(slot.is_output ? op.outputs.at(slot.index) : op.inputs.at(slot.index));
}

Layout& layout_at(KernelSpec& spec, Slot slot) {
  return slot.is_output ? spec.outputs.at(slot.index) : spec.inputs.at(slot.index);
}

KernelSpec make_spec(const Op& op, std::string name, Bytes workspace) {
  return {.name = std::move(name),
          .inputs = std::vector<Layout>(op.inputs.size()),
          .outputs = std::vector<Layout>(op.outputs.size()),
          .workspace = workspace};
}

std::unique_ptr<Kernel> make_dnnl_kernel(const Op& op, const Implementation& implementation,
                                         const std::vector<Argument>& arguments, int threads) {
  return std::make_unique<DnnlKernel>(op, implementation, arguments, threads);
}

}  // namespace plimsoll::cpu
