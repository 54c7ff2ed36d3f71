// CommunicatorState: what a Communicator, its Works and its watchdog share. The holder of
// submit_mutex may use begin() and the sequence; everything else is [any-thread].
#pragma once

#include <coupler/distributed_backend.h>
#include <coupler/error.h>

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/current_operation.h"
#include "comm/failure_notifier.h"
#include "comm/flight_recorder.h"
#include "comm/raw_communicator.h"
#include "store/peers.h"

namespace coupler::comm {

// The memory to which a backend writes the error of one call. Cheap to construct, a few stores: the
// text is not cleared.
class ErrorBuffer {
 public:
  ErrorBuffer() {
    text_[0] = 0;
    error_ = {.struct_size = sizeof(db_error),
              .code = DB_OK,
              .native_code = 0,
              .failed_rank = -1,
              .flags = 0,
              .message = text_,
              .message_capacity = sizeof(text_)};
  }
  ErrorBuffer(const ErrorBuffer&) = delete;
  ErrorBuffer& operator=(const ErrorBuffer&) = delete;

  db_error* get() { return &error_; }
  const db_error& value() const { return error_; }
  std::string text() const { return text_; }

 private:
  char text_[1024];
  db_error error_;
};

// context: "communicator 'world', operation 3: rank 0 in barrier".
Error make_error(db_status status, const ErrorBuffer& error, const std::string& context,
                 const std::string& backend);
// What a user should do about an error of that kind, one sentence.
std::string hint_for(ErrorCode code);

class Watchdog;

// An asynchronous operation; in CommunicatorState::pending until its request is released.
struct PendingOperation {
  Operation operation;
  db_request* request = nullptr;
  std::chrono::steady_clock::time_point start;
};

struct CommunicatorState {
  CommunicatorState(std::string name, const std::string& group,
                    std::shared_ptr<RawCommunicator> backend, std::shared_ptr<store::Store> store,
                    std::chrono::nanoseconds timeout, std::unique_ptr<FlightRecorder> recorder,
                    std::vector<int> world_ranks, std::shared_ptr<const DeviceMemory> device);
  ~CommunicatorState();
  CommunicatorState(const CommunicatorState&) = delete;
  CommunicatorState& operator=(const CommunicatorState&) = delete;

  // With submit_mutex: checks, numbers and announces op. Throws.
  Operation begin(const db_op& op);
  Operation begin(const Fingerprint& fingerprint);
  // Called around the time in which a thread may be stuck in the backend.
  void enter_backend(const Operation& operation);
  void leave_backend();
  // The error of an operation that the backend returned; ends the communicator if it must.
  Error failed(const Operation& operation, db_status status, const ErrorBuffer& error);
  // Ends the communicator: the first error stays, all ranks learn of it, pending waits end.
  Error end(const Error& error);
  // For the error of another rank or of the watchdog; its text is complete.
  Error end_by(const SharedError& shared_error);

  void throw_if_dead() const {
    if (dead.load(std::memory_order_acquire)) throw_first_error();
  }
  [[noreturn]] void throw_first_error() const;
  std::optional<Error> first_error() const;

  void add_pending(PendingOperation* operation);
  void remove_pending(PendingOperation* operation);

  // Takes over a pending operation that a stream waits for: it is watched until it ends.
  void park(std::unique_ptr<PendingOperation> operation);
  // Releases those that have ended. The failure of one ends the communicator.
  void release_finished();

  // The rank of this communicator that the job has lost, if any; waits up to `wait` for a loss to
  // become known.
  struct LostMember {
    int rank;  // of this communicator
    store::PeerLoss loss;
  };
  std::optional<LostMember> lost_member(std::chrono::milliseconds wait = {}) const;
  // The error of an operation that cannot end because a rank it needs is lost.
  Error peer_error(const Operation& operation, const LostMember& lost) const;

  std::string context(const Operation& operation) const;
  // What this rank is doing, according to the current operation; "" if there is none.
  std::string activity() const;
  Error timeout_error(const Operation& operation, const std::string& backend_text) const;

  const std::string name;
  const int rank, world_size;
  const char* const group;  // of its spans; null if it is this rank alone
  const bool can_abort;
  const std::chrono::nanoseconds timeout;
  // The deadline that the backend gets. If it cannot abort, its own deadline ends the process, so
  // the host's, which can name the missing ranks, comes first.
  const int64_t operation_timeout_ns;

  // Of this communicator; null if the world size is 1, or the other ranks are made up.
  std::shared_ptr<store::Store> store;
  const std::vector<int> world_ranks;         // of the job, by rank of this communicator
  const std::shared_ptr<store::Peers> peers;  // null if they are not watched
  std::shared_ptr<RawCommunicator> backend;
  db_communicator* const communicator;
  const db_communicator_functions* const functions;
  const std::shared_ptr<const DeviceMemory> device;  // null: host memory only
  const bool on_streams;                             // the backend takes its memory
  std::unique_ptr<FlightRecorder> recorder;          // null: no store, or several machines
  std::unique_ptr<FailureNotifier> notifier;         // null: no store

  std::mutex submit_mutex;
  uint64_t sequence = 0, chain = 0, splits = 0, verifications = 0;
  std::vector<uint64_t> sent, received;

  CurrentOperation current;

  std::mutex pending_mutex;
  std::vector<PendingOperation*> pending;
  std::atomic<uint32_t> pending_count{0};
  std::deque<std::unique_ptr<PendingOperation>> parked;  // in order, among pending

  std::atomic<bool> dead{false};
  mutable std::mutex error_mutex;
  std::optional<Error> error;

  std::unique_ptr<Watchdog> watchdog;  // last: it ends first; null: no store

 private:
  void announce(const Operation& operation, const db_op* op);
  bool set_first_error(const Error& error);
};

}  // namespace coupler::comm
