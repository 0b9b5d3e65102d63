// io_uring, by liburing.
#include <liburing.h>

#include <cerrno>

#include "device/tier/fault.h"
#include "device/tier/queue.h"

namespace plimsoll {
namespace {

class Ring final : public DiskQueue {
 public:
  explicit Ring(int file) : file_(file) {
    error_ = injected(TierOperation::ring);
    if (error_ == 0) error_ = -io_uring_queue_init(kDiskDepth, &ring_, 0);
    if (error_ == 0 && !probe()) {
      io_uring_queue_exit(&ring_);
      error_ = ENOSYS;
    }
  }
  ~Ring() override {
    if (error_ == 0) io_uring_queue_exit(&ring_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  int error() const { return error_; }

  int depth() const override { return kDiskDepth; }
  int submit(int tag, const DiskRequest& r) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) return EBUSY;
    if (r.write) {
      io_uring_prep_write(entry, file_, r.memory, static_cast<unsigned>(r.bytes), static_cast<uint64_t>(r.at));
    } else {
      io_uring_prep_read(entry, file_, r.memory, static_cast<unsigned>(r.bytes), static_cast<uint64_t>(r.at));
    }
    io_uring_sqe_set_data(entry, reinterpret_cast<void*>(static_cast<intptr_t>(tag)));
    int result = 0;
    do {
      result = io_uring_submit(&ring_);
    } while (result == -EINTR || result == -EAGAIN);
    return result < 0 ? -result : 0;
  }
  Done wait() override {
    io_uring_cqe* entry = nullptr;
    int result = 0;
    do {
      result = io_uring_wait_cqe(&ring_, &entry);
    } while (result == -EINTR || result == -EAGAIN);
    if (result < 0) return {.tag = -1, .result = result};
    const Done done{.tag = static_cast<int>(reinterpret_cast<intptr_t>(io_uring_cqe_get_data(entry))),
                    .result = entry->res};
    io_uring_cqe_seen(&ring_, entry);
    return done;
  }

 private:
  // Reads and writes came to io_uring later than io_uring to kernels.
  bool probe() {
    io_uring_probe* known = io_uring_get_probe_ring(&ring_);
    if (known == nullptr) return false;
    const bool both =
        io_uring_opcode_supported(known, IORING_OP_READ) != 0 && io_uring_opcode_supported(known, IORING_OP_WRITE) != 0;
    io_uring_free_probe(known);
    return both;
  }

  int file_;
  int error_ = 0;
  io_uring ring_{};
};

}  // namespace

std::unique_ptr<DiskQueue> open_ring(int file) {
  auto ring = std::make_unique<Ring>(file);
  if (ring->error() != 0) return nullptr;
  return ring;
}

}  // namespace plimsoll
