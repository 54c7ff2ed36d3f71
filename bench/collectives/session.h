// Session: shared by all contests of collectives: the arguments, core binding, the job's store, and
// our own contenders over the configured backend. Used by one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comparison.h"

namespace coupler::bench {

class Session {
 public:
  // PROGRAM --out FILE [--bytes B,…] [--rounds N] [--milliseconds M] [--no-pin] [--peer-memory]
  // [--beside BACKEND], plus configuration arguments. Collective: joins the other ranks of the
  // launch. Binds the process to one core first, so that threads created later stay on it, too.
  Session(int argc, char** argv);

  int rank() const { return process_.rank; }
  int world_size() const { return process_.world_size; }
  store::Store& store() { return *store_; }
  comm::Communicator& communicator() { return *communicator_; }

  Candidate blocking();      // Communicator::run
  Candidate asynchronous();  // Communicator::submit, Work::wait

  // Runs the contest and writes rank 0's results to --out as a JSON array of {name, bytes,
  // medians_us, p99_us}. Adds what the arguments ask for: with --peer-memory, the backend on memory
  // of its own (coupler/memory.h), and a copy of as many bytes by each process for itself; with
  // --beside, another backend.
  void hold(std::vector<Candidate> candidates);

 private:
  Candidate on_peer_memory();

  config::Config config_;
  rendezvous::ProcessInfo process_;
  ComparisonPlan plan_;
  std::string out_;
  bool peer_memory_ = false;
  std::shared_ptr<store::Store> store_;
  std::shared_ptr<comm::Communicator> communicator_;
  std::shared_ptr<comm::Communicator> beside_;  // null: no other backend
};

// The operation of our contenders: a sum in place.
db_op all_reduce_of(float* data, uint64_t count);

// Runs the body of a main function, prints any exception, and returns the exit code.
int guarded(const std::function<void()>& body);

}  // namespace coupler::bench
