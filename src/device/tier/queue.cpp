#include "device/tier/queue.h"

#include <unistd.h>

#include <cerrno>

namespace plimsoll {
namespace {

class PlainQueue final : public DiskQueue {
 public:
  explicit PlainQueue(int file) : file_(file) {}
  int depth() const override { return 1; }
  int submit(int tag, const DiskRequest& r) override {
    ssize_t result = 0;
    do {
      result = r.write ? ::pwrite(file_, r.memory, r.bytes, r.at) : ::pread(file_, r.memory, r.bytes, r.at);
    } while (result < 0 && errno == EINTR);
    done_ = {tag, result < 0 ? -errno : result};
    return 0;
  }
  Done wait() override { return done_; }

 private:
  int file_;
  Done done_;
};

}  // namespace

std::unique_ptr<DiskQueue> open_plain_queue(int file) { return std::make_unique<PlainQueue>(file); }

}  // namespace plimsoll
