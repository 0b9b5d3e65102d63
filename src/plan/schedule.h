// From decisions about values to a schedule: which steps run, recomputations among them, when each value is in the
// arena, and when it is copied out and in. No offsets yet: make_plan.h gives them.
//
// A decision is made for every gap of every value (value_timeline.h): keep it in the arena, let its bytes go, or copy
// it to a tier. What is wanted and not in the arena is brought back on demand: from the tier that has it, else by
// running its producer again, whose own inputs are brought back in the same way. SuperNeurons, sections 3.3 and 3.4.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/value_timeline.h"

namespace plimsoll {

// What happens to a value in a gap: 0 keep, 1 let go, 2 + t: copy to tier t, then let go.
using Choice = int8_t;
inline constexpr Choice kKeep = 0, kDrop = 1, kOffload = 2;

struct Decisions {
  std::vector<Choice> gaps;  // by gap
  std::vector<int8_t> home;  // by value: -1 the arena, else the tier where a value from outside lies between steps
  std::vector<bool> retain;  // by value: rebuilt on the way to another, it stays for its own next use (speed-centric);
                             // else it goes at once and is rebuilt again (memory-centric)
  friend bool operator==(const Decisions&, const Decisions&) = default;
};
Decisions keep_everything(const ValueTimeline& timeline);

// A value is in the arena from the start of step `first` to the end of step `last` of the schedule.
struct Residence {
  int32_t value = -1;
  int32_t first = 0, last = 0;
  int32_t written = -1;              // the step that writes it; -1: a copy brings it, or it is there from the start
  int32_t last_written = -1;         // the last that writes it: one that runs again for another output writes the same
  int32_t in_place_of = -1;          // it begins in the bytes of this residence, which ends at that step
  bool overwritten = false;          // another begins in its bytes
  int32_t out = -1, in = -1;         // the copies of it
  int32_t previous = -1, next = -1;  // residences of the same value
};

struct ScheduledMove {
  bool out = false;
  int8_t tier = 0;
  int32_t residence = -1;
  int32_t after = -1, before = 0;
};

struct ScheduledStep {
  int32_t step = 0;  // of the timeline
  bool recompute = false;
  int32_t first_input = 0;  // in Schedule::inputs: the residences that it reads, in the order of the timeline's list
  int32_t first_residence = 0;  // what it writes, and what copies bring for later steps, follows in order
};

struct Schedule {
  std::vector<ScheduledStep> steps;
  std::vector<int32_t> inputs;
  std::vector<Residence> residences;
  std::vector<ScheduledMove> moves;
  std::vector<int64_t> live;  // by step: bytes in the arena, workspace included
  int64_t peak = 0;
  int32_t peak_step = 0;
  double compute_ms = 0;  // recomputations included
  int32_t recomputations = 0;
  int32_t unrecoverable = -1;  // what is wanted and can no longer be brought back; -1: the schedule is complete
  bool given_up = false;       // incomplete since it became too long, and no value's fault
};

// A cache of tensors in the arena (SuperNeurons, section 3.3.2 and Algorithm 2): nothing moves while everything fits;
// when it does not, what the running step does not want (is not locked) goes to the tier, the least recently used
// first, or, since a planner knows the future, what is wanted last.
struct TensorCache {
  int64_t limit = INT64_MAX;  // bytes in the arena
  int8_t tier = 0;
  bool farthest = false;  // else LRU
};

// Follows the decisions. Copies are where they must be, not yet where they hide best: each comes in right before the
// step that wants it, and goes out between its writer and the step after its last use.
class Scheduler {
 public:
  explicit Scheduler(const ValueTimeline& timeline) : timeline_(timeline) {}
  // Given up where it takes a hundred times the timeline's steps: what is rebuilt from two values, and these from two
  // each, takes steps without end. The schedule is then incomplete (unrecoverable >= 0).
  void run(const Decisions& decisions, Schedule& schedule, const TensorCache* cache = nullptr);
  // The same, given up where it takes more than so many steps, or surely computes longer than `most_ms`.
  void run_within(const Decisions& decisions, Schedule& schedule, size_t most_steps, double most_ms = kAnyTime);
  // The steps in the order of `sequence`, the first time or again, whatever would be decided: each value is there from a
  // run of its producer to the last use before the next run. Homes are those of the decisions, and none may be elsewhere.
  void follow(const Decisions& decisions, std::span<const int32_t> sequence, Schedule& schedule);
  // Counts live bytes and their peak anew, for who changes when values are there.
  void count_live(Schedule& schedule);

 private:
  void start();
  void overwrite(const TimelineStep& step);
  void run_step(int32_t step);
  int32_t append(int32_t step, bool recompute);
  void bring(int32_t value);
  void rebuild(int32_t value);
  void rerun(int32_t step);
  void fetch(int32_t value);
  void arrive(Residence& residence, int32_t step);
  void open(int32_t value, int32_t written);
  void close(int32_t value);
  void copy_out(int32_t value, int8_t tier);
  void begin_gap(int32_t value, int32_t gap);
  void end();
  void make_room(int32_t step, bool recompute);
  int64_t room_for(const TimelineStep& step, bool recompute) const;
  bool may_leave(int32_t value) const;
  void share_places();
  bool has_uses_left(int32_t value) const;
  bool lives_to_the_end(int32_t value) const;

  const ValueTimeline& timeline_;
  const Decisions* decisions_ = nullptr;
  Schedule* out_ = nullptr;
  const TensorCache* cache_ = nullptr;
  size_t most_steps_ = SIZE_MAX, most_of_all_ = SIZE_MAX;
  double most_ms_ = kAnyTime, recompute_ms_ = 0;
  int64_t live_ = 0;           // with a cache: bytes of what is open
  int32_t now_ = 0;            // the step of the timeline
  std::vector<int32_t> open_;  // with a cache: the values in the arena
  // Where a value is while steps are appended.
  struct State {
    int32_t residence = -1;       // the open one; -1: not in the arena
    int32_t last_residence = -1;  // open or not
    int32_t next_use = 0;         // how many uses are over
    int32_t wanted_by = -1;       // the step of the timeline that wants it now
    int32_t locks = 0;            // how many reruns in preparation want it
    int8_t slot = -1;             // the tier that holds it; -1: none
    bool transient = false;       // in the arena only to rebuild another
    bool gone = false;            // overwritten by the new value of its state
  };
  std::vector<State> states_;                      // by value
  std::vector<size_t> place_in_open_;              // by value
  std::vector<std::pair<int32_t, size_t>> stack_;  // reruns in preparation: the step, and how many inputs are there
};

// Spreads copies over time, so that they hide behind compute while the bytes alive stay within `limit`: copies out get
// time to complete, copies in start early (without the limit's room they stay where they are). Updates residences,
// moves and live bytes. `earliest`: by move, the first step that a copy in may run beside.
void spread_copies(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, int64_t limit, Schedule& schedule,
                   const std::vector<int32_t>* earliest = nullptr);

// The same, going through the step as it will run, with its waits: what leaves takes room until its copy is complete, what comes is
// copied in the order in which it is wanted, and what is wanted next has the room first. Where copies run on engines beside
// compute and a network's step waits for them, this is mostly faster; elsewhere it is the same. Returns the time of the step.
double spread_in_turn(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, int64_t limit,
                      Schedule& schedule);

// The time of the step: engines side by side, as simulate.h does it for a plan.
struct ScheduleTime {
  double total_ms = 0, stall_ms = 0;
};
// With `spans`: one of engine 0 for every step, in their order.
ScheduleTime time_of(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, const Schedule& schedule,
                     std::vector<EngineSpan>* spans = nullptr);

}  // namespace plimsoll
