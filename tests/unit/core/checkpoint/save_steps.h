// Steps: the possible next events in the model of save_model.h. Single-threaded.
#pragma once

#include <functional>
#include <utility>

#include "save_state.h"

namespace coupler::checkpoint::model {

class Steps {
 public:
  using Visit = std::function<void(const State& next, const Event& event)>;
  Steps(const Protocol& protocol, Visit visit) : protocol_(protocol), visit_(std::move(visit)) {}

  // Events of the ranks. Returns whether any event is possible or all ranks are done.
  bool of_ranks(const State& state);
  // Events of a survivor, and a kill.
  void of_others(const State& state);

 private:
  void visit(const State& next, const Event& event);
  Event event_of(const State& state, Action action, int number, Fault fault = Fault::kNone,
                 int folder = kNo) const;
  void of_rank(const State& state, int number);
  void step(const State& state, int number);
  void learn(State& next, size_t r) const;
  void begin(const State& state, int number);

  uint8_t at_path(const State& state, uint8_t id) const;
  void open(State& next, Rank& process, size_t r, uint8_t id, Fault fault) const;
  void write(State& next, Rank& process, size_t r, uint8_t id, Fault fault) const;

  void settle(State& next) const;
  Phase after_pruning() const;
  void lead(const State& state);
  void go_on(const State& state, Action action, Phase phase, Fault fault = Fault::kNone,
             int folder = kNo);
  void remove(const State& state, Action action, uint8_t id, Phase then, Phase if_it_fails);
  void make(const State& state);
  void collect(const State& state);
  void name(const State& state);
  void tell(const State& state);

  const Protocol protocol_;
  const Visit visit_;
  size_t visits_ = 0;
};

}  // namespace coupler::checkpoint::model
