// Rank: a rank of a simulated job, as a schedule sees it: messages, shared memory, and who is
// where. Also Worker, a second thread of a rank. Thread rule: one actor of the simulation at a
// time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <simgrid/s4u.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cluster.h"
#include "hierarchical/layout.h"
#include "parts.h"

namespace coupler::bench::simulated {

struct Send {
  int to = 0;
  Part part;
};

struct Receive {
  int from = 0;
  Part part;
  bool adds = false;  // to what is there, instead of replacing it
};

// What the ranks of one machine share.
struct Machine {
  simgrid::s4u::BarrierPtr barrier;
  std::vector<Rank*> ranks;  // by local index
};

class Rank {
 public:
  Rank(const Cluster& cluster, const Job& job, const db::hierarchical::Layout& layout, int rank,
       Machine* machine, std::vector<double>* data, uint64_t* repeats)
      : cluster_(cluster),
        job_(job),
        layout_(layout),
        rank_(rank),
        machine_(machine),
        data_(data),
        repeats_(repeats) {}
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int rank() const { return rank_; }
  int size() const { return layout_.size(); }
  int machine() const { return layout_.machine_of[static_cast<size_t>(rank_)]; }
  int index() const { return layout_.index_of[static_cast<size_t>(rank_)]; }
  bool is_folded() const { return job_.is_folded; }
  int local_size() const { return static_cast<int>(layout_.on(machine()).size()); }
  const db::hierarchical::Layout& layout() const { return layout_; }

  // Sends and receives at the same time, and returns when all of it is done. Between two ranks,
  // messages arrive in order; one starts when both ranks are there. Received parts are stored in
  // the order given.
  void round(const std::vector<Send>& sends, const std::vector<Receive>& receives);

  // Operations of all ranks of this machine in shared memory; parts are by local index, ranks may
  // have none. Afterwards, this rank's part is the sum of all.
  void reduce_within(const std::vector<Part>& parts);
  // Afterwards, this rank has the parts of all.
  void gather_within(const std::vector<Part>& parts);
  // All ranks of this machine wait for each other.
  void meet_within();

  // Where there is room for so many elements after this rank's data, for it alone.
  uint64_t room(uint64_t elements);
  // Stores the sum of blocks of one length in `to`. Takes no time.
  void store_sum(const std::vector<Block>& blocks, const Block& to);

  void move_memory(uint64_t bytes);  // read or written by this rank
  void compute(double seconds);

  // How many of `total` equal repetitions are to be simulated. All ranks must ask alike, once in a
  // job.
  uint64_t repeats(uint64_t total);

  // A thread of this rank; see Worker.
  simgrid::s4u::Host* host() const { return cluster_.host(stand_in(rank_).first, index()); }

 private:
  // The machine and local index that stand for a peer in a folded job.
  std::pair<int, int> stand_in(int peer) const;
  simgrid::s4u::Mailbox* mailbox(int from, int to);
  void store(const std::vector<double>& values, const Receive& receive);

  const Cluster& cluster_;
  const Job& job_;
  const db::hierarchical::Layout& layout_;
  const int rank_;
  Machine* const machine_;
  std::vector<double>* const data_;
  uint64_t* const repeats_;
  std::map<std::pair<int, int>, simgrid::s4u::Mailbox*> mailboxes_;
};

// Runs jobs in order, in an actor of its own, on the host of a rank. The destructor waits for all
// of them.
class Worker {
 public:
  explicit Worker(const Rank& rank);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  // What is released when the job is done: acquire() waits for it.
  simgrid::s4u::SemaphorePtr post(std::function<void()> job);

 private:
  struct Entry {
    std::function<void()> job;  // empty: the worker ends
    simgrid::s4u::SemaphorePtr done;
  };

  std::deque<Entry> entries_;
  simgrid::s4u::SemaphorePtr posted_ = simgrid::s4u::Semaphore::create(0);
  simgrid::s4u::ActorPtr actor_;
};

}  // namespace coupler::bench::simulated
