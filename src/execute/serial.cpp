// Runs the steps of a plan one after another; copies run beside them, and are started and waited for between two steps.
#include <optional>

#include "base/clock.h"
#include "execute/copy_engines.h"
#include "execute/driver.h"
#include "execute/memory_check.h"
#include "execute/message_engine.h"
#include "execute/run_kernel.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

class SerialDriver final : public Driver {
 public:
  explicit SerialDriver(ReadyPlan& ready)
      : Driver(ready), ready_(ready), ends_(ready.steps() + 1), engines_(ready), messages_(ready) {
    const std::vector<Collective>& collectives = ready.plan.collectives;
    for (size_t c = 0; c < collectives.size(); ++c) ends_[collectives[c].before].push_back(static_cast<int32_t>(c));
    if (ready.options.check_memory) check_.emplace(ready.graph, ready.plan, ready.bindings);
  }

  void start(std::vector<KernelRefused>*) override {
    start_ = Clock::now();
    engines_.begin(start_);
    messages_.begin(start_);
    if (measuring_) meter_.begin();
    if (check_) {
      check_->begin();
      check_->remember();
    }
    const std::vector<Boundary>& boundaries = ready_.boundaries.before;
    for (size_t s = 0; s < ready_.steps(); ++s) {
      receive(s);
      pass(boundaries[s].out);
      if (check_ && s > 0) check_->fill_dying(static_cast<StepIndex>(s) - 1);
      pass(boundaries[s].in);
      if (ready_.kernels[s]) {
        run_step(s);
      } else if (!ready_.collectives.empty()) {
        send(s);
      }
    }
    receive(ready_.steps());
    pass(boundaries.back().out);
    pass(boundaries.back().in);
    measuring_ = false;  // every training step is the same
  }

  void rest() noexcept override {
    messages_.rest();
    engines_.rest();
  }

 private:
  void pass(const Pass& pass) {
    for (const CopyRange& range : pass.starts) {
      for_each_move(range, [&](int32_t move) {
        if (measuring_) meter_.start(node_of(move));
        if (check_ && !is_out(ready_.plan.moves[move])) check_->arriving(move);
      });
      engines_.start(range);
    }
    for (const CopyRange& range : pass.waits) {
      engines_.wait(range);
      for_each_move(range, [&](int32_t move) {
        if (measuring_) meter_.end(node_of(move));
        if (check_ && !is_out(ready_.plan.moves[move])) check_->arrived(move);
      });
    }
  }

  // A step whose bytes are the wire's from now on.
  void send(size_t s) {
    const StepIndex step = static_cast<StepIndex>(s);
    const bool in_collective = ready_.graph.op(ready_.plan.steps[s].op).type->is_collective;
    if (!in_collective) return;  // a view
    if (measuring_) meter_.start(step);
    if (check_) check_->expect_inputs(step);
    if (check_) check_->sending(step);
    messages_.reached(step);
    if (!ready_.records.empty()) ready_.records[s] = {now_ms(), now_ms()};
  }

  void receive(size_t s) {
    messages_.wait_before(static_cast<StepIndex>(s));
    for (const int32_t c : ends_[s]) {
      for (const StepIndex step : ready_.plan.collectives[c].steps) {
        if (check_) {
          check_->received(step);
          check_->expect_outputs(step);
        }
        if (measuring_) meter_.end(step);
      }
    }
  }

  template <class Action>
  void for_each_move(const CopyRange& range, const Action& action) {
    if (!measuring_ && !check_) return;
    const std::vector<int32_t>& moves = ready_.boundaries.routes[range.route].moves;
    for (int32_t k = range.first; k < range.end; ++k) action(moves[k]);
  }
  int32_t node_of(int32_t move) const { return static_cast<int32_t>(ready_.steps()) + move; }

  void run_step(size_t s) {
    const StepIndex step = static_cast<StepIndex>(s);
    const bool timed = !ready_.records.empty();
    if (measuring_) meter_.start(step);
    if (check_) check_->expect_inputs(step);
    if (timed) ready_.records[s].start_ms = now_ms();
    run_kernel(ready_.graph, ready_.plan.steps[s], *ready_.kernels[s]);
    if (timed) ready_.records[s].end_ms = now_ms();
    if (check_) {
      check_->expect_others_unchanged(step);
      check_->expect_outputs(step);
    }
    if (measuring_) meter_.end(step);
  }

  double now_ms() const { return std::chrono::duration<double, std::milli>(Clock::now() - start_).count(); }

  ReadyPlan& ready_;
  std::optional<MemoryCheck> check_;
  bool measuring_ = true;
  Clock::time_point start_;
  std::vector<std::vector<int32_t>> ends_;  // by step: collectives that are complete before it
  CopyEngines engines_;                     // the first to go: they copy between what stands above
  MessageEngine messages_;
};

}  // namespace

std::unique_ptr<Driver> make_serial_driver(ReadyPlan& ready) { return std::make_unique<SerialDriver>(ready); }

}  // namespace plimsoll
