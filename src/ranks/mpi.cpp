#include "ranks/mpi.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>

#include "base/files.h"

namespace plimsoll {
namespace {

constexpr const char* kFile = "libplimsoll_mpi.so";

// The number that the first of these variables has; `otherwise` where none is set.
int number_in(std::initializer_list<const char*> variables, int otherwise) {
  for (const char* variable : variables) {
    if (const char* text = std::getenv(variable)) return std::atoi(text);
  }
  return otherwise;
}

std::filesystem::path file_of_module() {
  const char* const given = std::getenv("PLIMSOLL_MPI_MODULE");
  return given != nullptr ? std::filesystem::path(given) : find_module(kFile);
}

}  // namespace

// Open MPI's mpirun, MPICH's and Intel's, and srun by PMI. A job step of srun without an MPI plugin has tasks, but no
// way to meet: PMI's variables are missing then.
int launched_ranks() { return number_in({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}, 1); }
int launched_rank() { return number_in({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"}, 0); }

std::unique_ptr<Transport> open_mpi(std::span<std::byte> served) {
  const int ranks = launched_ranks();
  if (ranks < 2) return nullptr;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::unsupported,
                fmt::format("this is one of {} processes that were started to train together, but {}", ranks, why));
  };
  const std::filesystem::path file = file_of_module();
  std::error_code error;
  if (file.empty() || !std::filesystem::exists(file, error)) {
    refuse(fmt::format(
        "this build has no MPI ({} is not beside the program or the package): install libopenmpi-dev, configure again, "
        "and build",
        kFile));
  }
  // Its symbols are for all: MPI loads parts of its own that look for them.
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) refuse(fmt::format("MPI does not load: {}", dlerror()));
  const auto version = reinterpret_cast<MpiVersion>(dlsym(handle, "plimsoll_mpi_version"));
  const auto open = reinterpret_cast<MpiOpen>(dlsym(handle, "plimsoll_mpi_open"));
  if (version == nullptr || open == nullptr || version() != kTransportVersion)
    refuse(fmt::format("{} belongs to another version of Plimsoll; build it again", file.string()));
  std::array<char, 512> reason{};
  std::unique_ptr<Transport> transport(open(served.data(), served.size(), reason.data(), reason.size()));
  if (!transport) refuse(fmt::format("MPI failed: {}", reason.data()));
  if (const int seen = transport->size() + transport->servers(); seen != ranks) {
    refuse(fmt::format("MPI sees {}: the program that started them belongs to another MPI than {}", seen,
                       transport->name()));
  }
  return transport;
}

}  // namespace plimsoll
