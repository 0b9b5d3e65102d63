#include "device/cuda/module/nccl.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

#include "device/cuda/module/check.h"
#include "device/cuda/module/nccl_api.h"

namespace plimsoll::cuda {
namespace {

constexpr const char* kInstall =
    "install NCCL 2.14 or newer for this CUDA (Debian and Ubuntu with NVIDIA's packages: libnccl2; or Python's "
    "nvidia-nccl-cu12 or -cu13), or name its file with $PLIMSOLL_NCCL";

std::string text_of(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

// The library's functions.
struct Library {
  nccl::GetVersion* get_version = nullptr;
  nccl::GetUniqueId* get_unique_id = nullptr;
  nccl::InitRank* init_rank = nullptr;
  nccl::Abort* abort = nullptr;
  nccl::GetErrorString* get_error_string = nullptr;
  nccl::GetLastError* get_last_error = nullptr;
  nccl::GetAsyncError* get_async_error = nullptr;
  nccl::AllReduce* all_reduce = nullptr;
  nccl::ReduceScatter* reduce_scatter = nullptr;
  nccl::AllGather* all_gather = nullptr;
  nccl::Reduce* reduce = nullptr;
  nccl::Broadcast* broadcast = nullptr;
  nccl::Send* send = nullptr;
  nccl::Receive* receive = nullptr;
  nccl::GroupStart* group_start = nullptr;
  nccl::GroupEnd* group_end = nullptr;
  int version = 0;
};

// Those whose names are `name`; false where the library lacks it.
template <class Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

Library load() {
  const char* const given = std::getenv("PLIMSOLL_NCCL");
  const char* const file = given != nullptr ? given : "libnccl.so.2";
  void* const handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);  // stays: threads of its own may run
  if (handle == nullptr) {
    throw Error(ErrorCode::unsupported,
                fmt::format("several ranks on GPUs need NCCL, which does not load ({}): {}", dlerror(), kInstall));
  }
  Library l;
  if (!find(handle, "ncclGetVersion", l.get_version) || l.get_version(&l.version) != nccl::kSuccess) {
    throw Error(ErrorCode::unsupported, fmt::format("{} is no NCCL: {}", file, kInstall));
  }
  if (l.version < nccl::kOldest) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{} is NCCL {}, which is too old: {}", file, text_of(l.version), kInstall));
  }
  const bool all =
      find(handle, "ncclGetUniqueId", l.get_unique_id) && find(handle, "ncclCommInitRankConfig", l.init_rank) &&
      find(handle, "ncclCommAbort", l.abort) && find(handle, "ncclGetErrorString", l.get_error_string) &&
      find(handle, "ncclGetLastError", l.get_last_error) && find(handle, "ncclCommGetAsyncError", l.get_async_error) &&
      find(handle, "ncclAllReduce", l.all_reduce) && find(handle, "ncclReduceScatter", l.reduce_scatter) &&
      find(handle, "ncclAllGather", l.all_gather) && find(handle, "ncclReduce", l.reduce) &&
      find(handle, "ncclBroadcast", l.broadcast) && find(handle, "ncclSend", l.send) &&
      find(handle, "ncclRecv", l.receive) && find(handle, "ncclGroupStart", l.group_start) &&
      find(handle, "ncclGroupEnd", l.group_end);
  if (!all) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{} (NCCL {}) lacks a function: {}", file, text_of(l.version), kInstall));
  }
  return l;
}

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

// A call that goes on by itself has not failed.
void check_nccl(int result, const char* call, nccl::Communicator* communicator) {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return;
  const char* const last = library().get_last_error(communicator);
  throw_failure(call, library().get_error_string(result),
                last != nullptr && *last != '\0' ? fmt::format(" ({})", last) : "");
}

class NcclGroup final : public RankGroup {
 public:
  NcclGroup(const GroupId& id, int rank, int ranks, int device, cudaStream_t stream)
      : device_(device), stream_(stream) {
    nccl::UniqueId unique;
    std::memcpy(unique.internal, id.data(), sizeof unique.internal);
    nccl::Config config;
    check_nccl(library().init_rank(&communicator_, ranks, unique, rank, &config), "ncclCommInitRankConfig", nullptr);
  }
  ~NcclGroup() override { abort(); }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  bool is_ready() override {
    if (communicator_ == nullptr) throw_failure("ncclCommGetAsyncError", "the communicator was aborted");
    int state = nccl::kSuccess;
    check_nccl(library().get_async_error(communicator_, &state), "ncclCommGetAsyncError", communicator_);
    if (state == nccl::kInProgress) return false;
    check_nccl(state, "NCCL", communicator_);
    return true;
  }

  void run(std::span<const Transmission> group) override {
    if (communicator_ == nullptr) throw_failure("ncclGroupStart", "the communicator was aborted");
    check_nccl(library().group_start(), "ncclGroupStart", communicator_);
    int failed = nccl::kSuccess;
    const char* call = nullptr;
    for (const Transmission& one : group) {
      failed = ask(one, call);
      if (failed != nccl::kSuccess && failed != nccl::kInProgress) break;
    }
    const int ended = library().group_end();  // also after a failure
    check_nccl(failed, call, communicator_);
    check_nccl(ended, "ncclGroupEnd", communicator_);
  }

  // Not ncclCommDestroy, which may wait for ranks that are gone.
  void abort() noexcept override {
    if (communicator_ == nullptr) return;
    cudaSetDevice(device_);
    library().abort(communicator_);
    communicator_ = nullptr;
  }

 private:
  int ask(const Transmission& t, const char*& call) const {
    const Library& l = library();
    const size_t count = static_cast<size_t>(t.count);
    switch (t.kind) {
      case Transmission::Kind::mean:
        call = "ncclAllReduce";
        return l.all_reduce(t.from, t.to, count, nccl::kFloat, nccl::kAverage, communicator_, stream_);
      case Transmission::Kind::mean_scatter:
        call = "ncclReduceScatter";
        return l.reduce_scatter(t.from, t.to, count, nccl::kFloat, nccl::kAverage, communicator_, stream_);
      case Transmission::Kind::gather:
        call = "ncclAllGather";
        return l.all_gather(t.from, t.to, count, nccl::kFloat, communicator_, stream_);
      case Transmission::Kind::mean_to_root:
        call = "ncclReduce";
        return l.reduce(t.from, t.to, count, nccl::kFloat, nccl::kAverage, t.rank, communicator_, stream_);
      case Transmission::Kind::broadcast:
        call = "ncclBroadcast";
        return l.broadcast(t.from, t.to, count, nccl::kFloat, t.rank, communicator_, stream_);
      case Transmission::Kind::send:
        call = "ncclSend";
        return l.send(t.from, count, nccl::kFloat, t.rank, communicator_, stream_);
      case Transmission::Kind::receive: break;
    }
    call = "ncclRecv";
    return l.receive(t.to, count, nccl::kFloat, t.rank, communicator_, stream_);
  }

  int device_;
  cudaStream_t stream_;
  nccl::Communicator* communicator_ = nullptr;
};

}  // namespace

std::string nccl_version() { return text_of(library().version); }

GroupId make_group_id() {
  nccl::UniqueId unique;
  check_nccl(library().get_unique_id(&unique), "ncclGetUniqueId", nullptr);
  GroupId id;
  static_assert(sizeof id == sizeof unique.internal);
  std::memcpy(id.data(), unique.internal, sizeof unique.internal);
  return id;
}

std::unique_ptr<RankGroup> join_group(const GroupId& id, int rank, int ranks, int device, cudaStream_t stream) {
  return std::make_unique<NcclGroup>(id, rank, ranks, device, stream);
}

}  // namespace plimsoll::cuda
