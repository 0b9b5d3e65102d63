// The device's queues and events behind plimsoll/device.h's contract.
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "device/cuda/door.h"
#include "plimsoll/device.h"
#include "plimsoll/error.h"

namespace plimsoll::cuda {

class CudaQueues final : public Queues {
 public:
  explicit CudaQueues(std::shared_ptr<Door> door) : door_(std::move(door)) {}
  ~CudaQueues() override {
    if (captured_ != nullptr) door_->drop_captured(captured_);
    for (Event event : events_) door_->drop_event(event);
  }
  CudaQueues(const CudaQueues&) = delete;
  CudaQueues& operator=(const CudaQueues&) = delete;

  Mark make_mark(bool timed) override {
    events_.push_back(door_->make_event(timed));
    return static_cast<Mark>(events_.size()) - 1;
  }
  void copy_out(std::byte* to_host, const std::byte* from, size_t bytes) override {
    if (bytes > 0) touch(from, bytes, to_host), door_->copy(cuda::Queue::out, to_host, from, bytes, Direction::to_host);
  }
  void copy_in(std::byte* to, const std::byte* from_host, size_t bytes) override {
    if (bytes > 0)
      touch(from_host, bytes, to), door_->copy(cuda::Queue::in, to, from_host, bytes, Direction::to_device);
  }
  void fill(Queue queue, std::byte* at, int byte, size_t bytes) override {
    if (bytes == 0) return;
    if (door_->records()) {
      const Touch written[] = {{at, bytes}};
      door_->touches({}, written);
    }
    door_->fill(of(queue), at, byte, bytes);
  }
  void copy_within(std::byte* to, const std::byte* from, size_t bytes) override {
    if (bytes > 0) touch(from, bytes, to), door_->copy(cuda::Queue::compute, to, from, bytes, Direction::on_device);
  }
  void mark(Queue queue, Mark mark) override { door_->record(of(queue), event(mark)); }
  void wait(Queue queue, Mark mark) override {
    has_messages_ = has_messages_ || queue == Queue::messages;
    door_->wait(of(queue), event(mark));
  }
  bool is_reached(Mark mark) override { return door_->is_reached(event(mark)); }
  void synchronize(Mark mark) override { door_->synchronize(event(mark)); }
  void synchronize() override {
    std::exception_ptr failure;  // no queue is left running because another one failed
    for (const cuda::Queue queue : {cuda::Queue::compute, cuda::Queue::out, cuda::Queue::in, cuda::Queue::messages}) {
      if (queue == cuda::Queue::messages && !has_messages_) continue;
      try {
        door_->synchronize(queue);
      } catch (const Error&) {
        if (!failure) failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }
  double ms_between(Mark from, Mark to) override { return door_->elapsed_ms(event(from), event(to)); }
  bool begin_capture() override {
    door_->begin_capture();
    return true;
  }
  bool end_capture() override {
    captured_ = door_->end_capture();
    return captured_ != nullptr;
  }
  void replay() override { door_->launch_captured(captured_); }

 private:
  static cuda::Queue of(Queue queue) {
    switch (queue) {
      case Queue::compute: return cuda::Queue::compute;
      case Queue::out: return cuda::Queue::out;
      case Queue::in: return cuda::Queue::in;
      case Queue::messages: break;
    }
    return cuda::Queue::messages;
  }
  Event event(Mark mark) const { return events_[mark]; }
  void touch(const std::byte* from, size_t bytes, std::byte* to) {
    if (!door_->records()) return;
    const Touch read[] = {{from, bytes}}, written[] = {{to, bytes}};
    door_->touches(read, written);
  }

  std::shared_ptr<Door> door_;
  std::vector<Event> events_;
  Captured captured_ = nullptr;
  bool has_messages_ = false;  // something was asked of their queue
};

}  // namespace plimsoll::cuda
