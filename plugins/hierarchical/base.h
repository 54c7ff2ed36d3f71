// Base: a communicator of one of the two bases, with the names that its ranks have in the
// communicator that stands on it. Its errors name those.
//
// Pending: one operation on a Base. Thread rule: the holder of the queue's turn; abort() from any
// thread.
#pragma once

#include <coupler/distributed_backend.h>
#include <coupler/memory.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/op.h"

namespace db::hierarchical {

class Base;

// Released when it ends; wait() comes first, because the buffers must stay until it is complete.
class Pending {
 public:
  Pending() = default;
  Pending(const Base* base, db_request* request) : base_(base), request_(request) {}
  Pending(Pending&& other) noexcept { *this = std::move(other); }
  Pending& operator=(Pending&& other) noexcept;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  ~Pending() { release(); }

  // Returns when the operation is complete, at the latest soon after its deadline.
  Failure wait();
  // DB_IN_PROGRESS if it is not complete.
  Failure test();

 private:
  void release();

  const Base* base_ = nullptr;
  db_request* request_ = nullptr;  // NULL: complete
};

class Base {
 public:
  // role: "local" or "across", for messages. Borrowed unless owned.
  Base(std::string role, db_communicator* communicator, std::vector<int32_t> ranks, bool owned);
  Base(const Base&) = delete;
  Base& operator=(const Base&) = delete;
  ~Base();

  int32_t rank() const { return communicator_->rank; }
  int32_t size() const { return communicator_->size; }
  db_communicator* get() const { return communicator_; }

  // For messages, once the ranks are known; before anything else uses it.
  void set_ranks(const std::vector<int32_t>& ranks) { ranks_ = ranks; }

  // Starts op, of which the caller sets kind to scale; the memory is the host's. deadline_ns: of
  // the clock of now_ns(). blocking: op is complete on return.
  Failure start(db_op op, int64_t deadline_ns, bool blocking, Pending* pending) const;

  // Runs a small ALL_GATHER, or BROADCAST from rank 0.
  Failure exchange(db_kind kind, db_dtype dtype, const void* send, void* recv, uint64_t count,
                   int64_t deadline_ns) const;

  // supports of the ABI, for host memory.
  bool supports(db_op op) const;
  // Its coupler.memory/1; NULL: it has none. [any-thread]
  const db_peer_memory* peer_memory() const;
  // Memory that the base's ranks reach; NULL: it gives none. May outlive the base. [any-thread]
  std::shared_ptr<void> allocate(uint64_t bytes) const;
  void abort() const { communicator_->functions->abort(communicator_); }

  // The error that the base returned, with this communicator's ranks.
  Failure translate(db_status status, const HostError& error) const;

 private:
  const std::string role_;
  db_communicator* const communicator_;
  std::vector<int32_t> ranks_;  // by the base's ranks
  const bool owned_;
};

}  // namespace db::hierarchical
