// Cluster: machines as SimGrid simulates them, and what things cost on them. A message from a rank
// to another crosses the links of both ranks, as fast as one thread moves bytes through sockets,
// and between machines also the network interfaces of both; the switch never blocks. Data in shared
// memory crosses its machine's memory bus.
//
// One of it in a process, since SimGrid's engine is one; it runs any number of jobs, one after
// another. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace coupler::bench::simulated {

class Rank;

// Seconds and bytes a second; docs/internals/simulated.md says where they come from.
struct Costs {
  double network_rate = 12.5e9;      // of a machine's interface, in each direction
  double network_latency = 15e-6;    // of a message between machines
  double local_latency = 4.5e-6;     // of a message within a machine
  double message_overhead = 1.5e-6;  // of a rank's time, for each message that it sends or receives
  double rank_rate = 3.66e9;  // of all messages of a rank, in each direction, combining included
  double bus_rate = 205e9;    // of a machine's memory
  double core_rate = 26.8e9;  // of one rank in memory
  double synchronization = 0.13e-6;  // in shared memory, for each other rank of the machine
  uint64_t header_bytes = 64;        // of a message
};

// What is to be simulated.
struct Job {
  std::vector<int> machines;  // how many ranks each has
  // Two machines stand for all of them: what each machine does must be the same, up to which other
  // machine it is connected to. Needs equal machines, and data must be null.
  bool is_folded = false;
  // Of equal repetitions, such as a ring's rounds, only so many are simulated; 0: all.
  uint64_t repeat_limit = 0;
};

struct Outcome {
  double seconds = 0;    // from the start of all ranks to the end of the last
  uint64_t repeats = 0;  // how many there are in total; 0: the program has not asked
};

using Program = std::function<void(Rank&)>;
using Data = std::vector<std::vector<double>>;  // by rank

class Cluster {
 public:
  Cluster(const Costs& costs, int machines, int ranks_each);
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;
  ~Cluster();

  void set_network_rate(double rate);

  // Runs program on every rank. data: the elements of each rank, which messages really carry; null:
  // messages carry nothing and only take time. Throws std::invalid_argument for a job that does not
  // fit and with the message of what a program throws, std::logic_error if ranks wait forever.
  Outcome run(const Job& job, const Program& program, Data* data = nullptr);

  // The time of the whole job: simulates it with `limit` and 2 * `limit` repetitions, and adds the
  // remaining ones, each as long as those between the two. Simulates everything if there are no
  // more than that.
  double extrapolate(Job job, uint64_t limit, const Program& program);

  const Costs& costs() const { return costs_; }
  simgrid::s4u::Host* host(int machine, int index) const {
    return hosts_[static_cast<size_t>(machine)][static_cast<size_t>(index)];
  }

 private:
  // How many machines are simulated for the job. Throws std::invalid_argument if it does not fit.
  size_t simulated_machines(const Job& job, bool has_data) const;

  Costs costs_;
  std::unique_ptr<simgrid::s4u::Engine> engine_;
  std::vector<simgrid::s4u::SplitDuplexLink*> interfaces_;
  std::vector<std::vector<simgrid::s4u::Host*>> hosts_;
};

}  // namespace coupler::bench::simulated
