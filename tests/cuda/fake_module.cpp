// A CUDA module without CUDA: what the program loads when $PLIMSOLL_CUDA_MODULE names it, so that everything from the
// command line down to the door runs where there is no GPU. Times are made up. The environment says what goes wrong:
//
//   PLIMSOLL_FAKE_FAIL=cudaMemcpyAsync:200   the 200th such call fails
//   PLIMSOLL_FAKE_DEVICES=0                  how many GPUs there are (default 1)
//   PLIMSOLL_FAKE_REFUSE=fft                 convolutions by this algorithm refuse to run
//   PLIMSOLL_FAKE_STATUS=cudnnGet:3009       calls of cuDNN whose names begin so answer with this status;
//                        cudnnConv/fft:5003  those for this algorithm; several stand between commas
//   PLIMSOLL_FAKE_CAPABILITY=7.0             compute capability (default 9.0)
//   PLIMSOLL_FAKE_LOADS=64                   MiB of the GPU's memory that each algorithm takes from its first run on
//   PLIMSOLL_FAKE_NCCL=FOLDER                NCCL is there, and ranks meet in this folder
//   PLIMSOLL_FAKE_UUID=1                     of the GPU, whatever its number
//   PLIMSOLL_FAKE_CALLS=FILE                 how often each call was made is written there at the end
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>

#include "tests/cuda/fake_door.h"

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

#define PLIMSOLL_EXPORT __attribute__((visibility("default")))

extern "C" {

PLIMSOLL_EXPORT int plimsoll_cuda_door_version() { return plimsoll::cuda::kDoorVersion; }

PLIMSOLL_EXPORT int plimsoll_cuda_devices(char* reason, size_t size) {
  const std::string devices = environment("PLIMSOLL_FAKE_DEVICES");
  const int count = devices.empty() ? 1 : std::stoi(devices);
  std::strncpy(reason, count == 0 ? "no CUDA device" : "", size);
  return count;
}

PLIMSOLL_EXPORT plimsoll::cuda::Door* plimsoll_cuda_open(int device) {
  auto door = std::make_unique<plimsoll::testing::FakeDoor>(static_cast<uint64_t>(device) + 1);
  door->as_device(device).without_account();
  const std::string fail = environment("PLIMSOLL_FAKE_FAIL");
  if (const size_t colon = fail.find(':'); colon != std::string::npos) {
    door->fail(fail.substr(0, colon), std::stoi(fail.substr(colon + 1)));
  }
  if (const std::string refused = environment("PLIMSOLL_FAKE_REFUSE"); !refused.empty()) door->refuse(refused);
  std::istringstream statuses(environment("PLIMSOLL_FAKE_STATUS"));
  for (std::string status; std::getline(statuses, status, ',');) {
    const size_t colon = status.find(':');
    const std::string call = status.substr(0, colon);
    const size_t slash = std::min(call.find('/'), call.size());
    door->cudnn().answer(call.substr(0, slash), std::stoi(status.substr(colon + 1)),
                         slash < call.size() ? call.substr(slash + 1) : "");
  }
  if (const std::string capability = environment("PLIMSOLL_FAKE_CAPABILITY"); !capability.empty()) {
    const int major = capability[0] - '0', minor = capability[2] - '0';
    if (const std::string why = plimsoll::cuda::why_too_old(major, minor); !why.empty()) {
      throw plimsoll::Error(plimsoll::ErrorCode::unsupported, why);
    }
  }
  if (const std::string loads = environment("PLIMSOLL_FAKE_LOADS"); !loads.empty())
    door->loads({std::stoll(loads) << 20});
  if (const std::string uuid = environment("PLIMSOLL_FAKE_UUID"); !uuid.empty())
    door->as_device(std::stoi(uuid)).as_number(device);
  if (const std::string folder = environment("PLIMSOLL_FAKE_NCCL"); !folder.empty())
    door->meet_at(std::make_shared<plimsoll::testing::FolderBoard>(folder));
  door->keep_calls(environment("PLIMSOLL_FAKE_CALLS"));
  return door.release();
}

}  // extern "C"
