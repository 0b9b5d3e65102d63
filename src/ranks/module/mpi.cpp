// libplimsoll_mpi.so: messages by MPI, and one-sided operations on the memory of processes that serve it.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
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
  // `begun_here`: nobody else of this process uses MPI, who would end it.
  MpiTransport(std::span<std::byte> served, bool begun_here) : begun_here_(begun_here) {
    // Of its own, so that nobody else's messages are met; those that serve memory have the last numbers.
    int before = 0, processes = 1;
    check(MPI_Comm_rank(MPI_COMM_WORLD, &before), "MPI_Comm_rank");
    check(MPI_Comm_size(MPI_COMM_WORLD, &processes), "MPI_Comm_size");
    check(MPI_Comm_split(MPI_COMM_WORLD, 0, served.empty() ? before : processes + before, &communicator_),
          "MPI_Comm_split");
    check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
    served_.resize(static_cast<size_t>(processes));
    const int64_t mine = static_cast<int64_t>(served.size());
    check(MPI_Allgather(&mine, 1, MPI_INT64_T, served_.data(), 1, MPI_INT64_T, communicator_), "MPI_Allgather");
    while (size_ < processes && served_[static_cast<size_t>(size_)] == 0) ++size_;
    requests_.reserve(8 * static_cast<size_t>(processes));
    free_.reserve(8 * static_cast<size_t>(processes));
    if (servers() > 0) open_window(served);
  }

  std::string name() const override { return library(); }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int servers() const override { return static_cast<int>(served_.size()) - size_; }
  Bytes served(int server) const override { return {served_[static_cast<size_t>(server)]}; }

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

  Ticket put(int server, int64_t at, std::span<const std::byte> bytes) override {
    const Ticket ticket = take();
    const int size = count(bytes.size());
    check(MPI_Rput(bytes.data(), size, MPI_BYTE, server, at, size, MPI_BYTE, window_, &requests_[ticket]), "MPI_Rput");
    return ticket;
  }

  Ticket get(int server, int64_t at, std::span<std::byte> bytes) override {
    const Ticket ticket = take();
    const int size = count(bytes.size());
    check(MPI_Rget(bytes.data(), size, MPI_BYTE, server, at, size, MPI_BYTE, window_, &requests_[ticket]), "MPI_Rget");
    return ticket;
  }

  void flush(int server) override { check(MPI_Win_flush(server, window_), "MPI_Win_flush"); }

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
    if (window_ != MPI_WIN_NULL) {
      check(MPI_Win_unlock_all(window_), "MPI_Win_unlock_all");
      check(MPI_Win_free(&window_), "MPI_Win_free");
    }
    check(MPI_Comm_free(&communicator_), "MPI_Comm_free");
    if (begun_here_) check(MPI_Finalize(), "MPI_Finalize");
  }

 private:
  // Made of memory that the server has already: what MPI allocates by itself may lie in a small file system of the machine.
  void open_window(std::span<std::byte> served) {
    check(
        MPI_Win_create(served.data(), static_cast<MPI_Aint>(served.size()), 1, MPI_INFO_NULL, communicator_, &window_),
        "MPI_Win_create");
    check(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler");
    check(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all");
  }

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

  const bool begun_here_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  int rank_ = 0, size_ = 0;
  std::vector<int64_t> served_;  // by process, 0 of the ranks
  std::vector<MPI_Request> requests_;
  std::vector<Ticket> free_;
};

}  // namespace
}  // namespace plimsoll

extern "C" __attribute__((visibility("default"))) int plimsoll_mpi_version() { return plimsoll::kTransportVersion; }

extern "C" __attribute__((visibility("default"))) plimsoll::Transport* plimsoll_mpi_open(std::byte* served,
                                                                                         size_t served_bytes,
                                                                                         char* reason, size_t size) {
  try {
    // Debian's settings leave Open MPI without one-sided operations where the network has none of its own, as TCP.
    ::setenv("OMPI_MCA_osc", "^ucx", 0);
    int given = 0, begun = 0;
    plimsoll::check(MPI_Initialized(&begun), "MPI_Initialized");  // by mpi4py
    if (begun != 0) {
      plimsoll::check(MPI_Query_thread(&given), "MPI_Query_thread");
    } else {
      plimsoll::check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given), "MPI_Init_thread");
    }
    if (given < MPI_THREAD_SERIALIZED) {
      std::snprintf(reason, size,
                    "this MPI lets only one thread call it; one that gives MPI_THREAD_SERIALIZED is needed");
      return nullptr;
    }
    return new plimsoll::MpiTransport({served, served_bytes}, begun == 0);
  } catch (const std::exception& error) {
    std::snprintf(reason, size, "%s", error.what());
    return nullptr;
  }
}
