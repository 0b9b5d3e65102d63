// libplimsoll_mpi.so: messages by MPI.
#include <mpi.h>

#include <cstdio>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include "ranks/mpi.h"

namespace plimsoll {
namespace {

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "error " + std::to_string(code);
  return {text, static_cast<size_t>(length)};
}

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  throw Error(ErrorCode::device_failure, std::string(call) + ": " + text_of(code));
}

std::string library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  check(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  const std::string whole(text, static_cast<size_t>(length));
  return whole.substr(0, whole.find(','));
}

class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    // Of its own, so that nobody else's messages are met.
    check(MPI_Comm_dup(MPI_COMM_WORLD, &communicator_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(communicator_, &size_), "MPI_Comm_size");
    requests_.reserve(8 * static_cast<size_t>(size_));
    free_.reserve(8 * static_cast<size_t>(size_));
  }

  std::string name() const override { return library(); }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Ticket send(Channel channel, int to, std::span<const std::byte> bytes) override {
    const Ticket ticket = take();
    check(MPI_Isend(bytes.data(), count(bytes.size()), MPI_BYTE, to, static_cast<int>(channel), communicator_,
                    &requests_[ticket]),
          "MPI_Isend");
    return ticket;
  }

  Ticket receive(Channel channel, int from, std::span<std::byte> bytes) override {
    const Ticket ticket = take();
    check(MPI_Irecv(bytes.data(), count(bytes.size()), MPI_BYTE, from, static_cast<int>(channel), communicator_,
                    &requests_[ticket]),
          "MPI_Irecv");
    return ticket;
  }

  bool is_done(Ticket ticket) override {
    int done = 0;
    check(MPI_Test(&requests_[ticket], &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) return false;
    free_.push_back(ticket);
    return true;
  }

  void finish() override {
    for (MPI_Request& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      check(MPI_Cancel(&request), "MPI_Cancel");
      check(MPI_Request_free(&request), "MPI_Request_free");
    }
    check(MPI_Comm_free(&communicator_), "MPI_Comm_free");
    check(MPI_Finalize(), "MPI_Finalize");
  }

 private:
  static int count(size_t bytes) {
    if (bytes > static_cast<size_t>(std::numeric_limits<int>::max()))
      throw Error(ErrorCode::internal, "a message of more than 2 GiB");
    return static_cast<int>(bytes);
  }

  Ticket take() {
    if (free_.empty()) {
      requests_.push_back(MPI_REQUEST_NULL);
      return static_cast<Ticket>(requests_.size()) - 1;
    }
    const Ticket ticket = free_.back();
    free_.pop_back();
    return ticket;
  }

  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::vector<MPI_Request> requests_;
  std::vector<Ticket> free_;
};

}  // namespace
}  // namespace plimsoll

extern "C" __attribute__((visibility("default"))) int plimsoll_mpi_version() { return plimsoll::kTransportVersion; }

extern "C" __attribute__((visibility("default"))) plimsoll::Transport* plimsoll_mpi_open(char* reason, size_t size) {
  try {
    int given = 0;
    plimsoll::check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given), "MPI_Init_thread");
    if (given < MPI_THREAD_SERIALIZED) {
      std::snprintf(reason, size,
                    "this MPI lets only one thread call it; one that gives MPI_THREAD_SERIALIZED is needed");
      return nullptr;
    }
    return new plimsoll::MpiTransport;
  } catch (const std::exception& error) {
    std::snprintf(reason, size, "%s", error.what());
    return nullptr;
  }
}
