// What is used of NCCL, 2.14 and newer, in prototypes of our own: the library is loaded when ranks meet, and nothing else needs it.
// nccl_signatures.cpp, which is compiled where nccl.h is found, says that they are NCCL's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace plimsoll::cuda::nccl {

inline constexpr int kOldest = 21400, kLoadedAs = 2;  // versions: the oldest of those that libnccl.so.2 may be

enum Result : int { kSuccess = 0, kInProgress = 7 };
enum DataType : int { kFloat = 7 };
enum Reduction : int { kAverage = 4 };

struct Communicator;  // ncclComm

struct UniqueId {
  char internal[128];
};

// The beginning of ncclConfig_t, as NCCL 2.14 has it: what is shorter than the library's own gets its defaults.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = kOldest;
  int blocking = 0;  // calls come back at once, and are asked for until they are done
};

using GetVersion = int(int* version);
using GetUniqueId = int(UniqueId* id);
using InitRank = int(Communicator** communicator, int ranks, UniqueId id, int rank, Config* config);
using Abort = int(Communicator* communicator);
using GetErrorString = const char*(int result);
using GetLastError = const char*(Communicator* communicator);
using GetAsyncError = int(Communicator* communicator, int* result);
using AllReduce = int(const void* from, void* to, size_t count, int type, int reduction, Communicator* communicator,
                      cudaStream_t stream);
using ReduceScatter = AllReduce;
using AllGather = int(const void* from, void* to, size_t count, int type, Communicator* communicator,
                      cudaStream_t stream);
using Reduce = int(const void* from, void* to, size_t count, int type, int reduction, int root,
                   Communicator* communicator, cudaStream_t stream);
using Broadcast = int(const void* from, void* to, size_t count, int type, int root, Communicator* communicator,
                      cudaStream_t stream);
using Send = int(const void* from, size_t count, int type, int rank, Communicator* communicator, cudaStream_t stream);
using Receive = int(void* to, size_t count, int type, int rank, Communicator* communicator, cudaStream_t stream);
using GroupStart = int();
using GroupEnd = int();

}  // namespace plimsoll::cuda::nccl
