// The prototypes of nccl_api.h are those of NCCL's own header.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "device/cuda/module/nccl_api.h"

namespace plimsoll::cuda::nccl {
namespace {

// NCCL's type for ours: enumerations are passed as ints.
template <class T>
struct Ours {
  using Type = std::conditional_t<std::is_enum_v<T>, int, T>;
};
template <>
struct Ours<ncclComm*> {
  using Type = Communicator*;
};
template <>
struct Ours<ncclComm**> {
  using Type = Communicator**;
};
template <>
struct Ours<ncclUniqueId> {
  using Type = UniqueId;
};
template <>
struct Ours<ncclUniqueId*> {
  using Type = UniqueId*;
};
template <>
struct Ours<ncclConfig_t*> {
  using Type = Config*;
};
template <>
struct Ours<ncclResult_t*> {
  using Type = int*;
};

template <class F>
struct Signature;
template <class R, class... A>
struct Signature<R(A...)> {
  using Type = typename Ours<R>::Type(typename Ours<A>::Type...);
};
template <class Theirs, class Function>
constexpr bool kSame = std::is_same_v<typename Signature<Theirs>::Type, Function>;

static_assert(kSame<decltype(ncclGetVersion), GetVersion>);
static_assert(kSame<decltype(ncclGetUniqueId), GetUniqueId>);
static_assert(kSame<decltype(ncclCommInitRankConfig), InitRank>);
static_assert(kSame<decltype(ncclCommAbort), Abort>);
static_assert(kSame<decltype(ncclGetErrorString), GetErrorString>);
static_assert(kSame<decltype(ncclGetLastError), GetLastError>);
static_assert(kSame<decltype(ncclCommGetAsyncError), GetAsyncError>);
static_assert(kSame<decltype(ncclAllReduce), AllReduce>);
static_assert(kSame<decltype(ncclReduceScatter), ReduceScatter>);
static_assert(kSame<decltype(ncclAllGather), AllGather>);
static_assert(kSame<decltype(ncclReduce), Reduce>);
static_assert(kSame<decltype(ncclBroadcast), Broadcast>);
static_assert(kSame<decltype(ncclSend), Send>);
static_assert(kSame<decltype(ncclRecv), Receive>);
static_assert(kSame<decltype(ncclGroupStart), GroupStart>);
static_assert(kSame<decltype(ncclGroupEnd), GroupEnd>);

static_assert(sizeof(ncclResult_t) == sizeof(int) && sizeof(ncclDataType_t) == sizeof(int) &&
              sizeof(ncclRedOp_t) == sizeof(int));
static_assert(int{ncclSuccess} == int{kSuccess} && int{ncclInProgress} == int{kInProgress});
static_assert(int{ncclFloat32} == int{kFloat} && int{ncclAvg} == int{kAverage});
static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId) && NCCL_UNIQUE_ID_BYTES == sizeof(UniqueId::internal));
static_assert(NCCL_MAJOR == kLoadedAs && NCCL_VERSION(2, 14, 0) == kOldest);

static_assert(offsetof(ncclConfig_t, size) == offsetof(Config, size));
static_assert(offsetof(ncclConfig_t, magic) == offsetof(Config, magic));
static_assert(offsetof(ncclConfig_t, version) == offsetof(Config, version));
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(Config, blocking));
constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
static_assert(kTheirs.magic == Config{}.magic);

}  // namespace
}  // namespace plimsoll::cuda::nccl
