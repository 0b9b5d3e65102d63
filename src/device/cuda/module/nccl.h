// NCCL, loaded when ranks meet: $PLIMSOLL_NCCL, else libnccl.so.2 where the system's loader finds it.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "device/cuda/door.h"

namespace plimsoll::cuda {

// As the door's functions of these names.
std::string nccl_version();
GroupId make_group_id();
// `stream`: of the queue of messages, on the device that is current.
std::unique_ptr<RankGroup> join_group(const GroupId& id, int rank, int ranks, int device, cudaStream_t stream);

}  // namespace plimsoll::cuda
