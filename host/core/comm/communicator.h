// Communicator: RAII over the C table, the only caller of a backend's function pointers. Raw
// buffers in, Work out; tensors/tensor_ops.h adds tensors. Calls on one Communicator are serialized
// inside, so any thread may call; the order of operations must still be the same on every rank.
//
// If the backend takes the device's memory (DB_MEMORY_CUDA, whatever the device is), operations on
// it are in the order of the calling thread's stream, and the host does not wait. Otherwise they go
// through host memory and are complete on the host when submit() returns. If the backend does not
// take host memory, operations on it use a separate communicator (the host side).
#pragma once

#include <coupler/distributed_backend.h>
#include <coupler/sharding.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/preflight.h"
#include "comm/staging.h"
#include "config/config.h"
#include "plugin/plugin.h"
#include "rendezvous/process_info.h"
#include "store/store.h"

namespace coupler::comm {

// Registration: makes memory known to a communicator's backend (coupler/registration.h) while this
// lives, so that the backend may move it without copies through its own buffers. Changes no result.
// Empty if the backend has no such extension or does not take the memory. Movable; must end before
// the memory is freed, on a thread that may use the communicator.

struct CommunicatorState;

class Registration {
 public:
  Registration() = default;
  Registration(Registration&& other) noexcept = default;
  Registration& operator=(Registration&& other) noexcept;
  ~Registration() { end(); }

 private:
  friend class Communicator;
  Registration(std::shared_ptr<CommunicatorState> state, void* handle)
      : state_(std::move(state)), handle_(handle) {}
  void end();

  std::shared_ptr<CommunicatorState> state_;  // null: empty
  void* handle_ = nullptr;
};

// One operation in flight. Movable; the destructor waits if wait() was never called (the buffers
// are the caller's). wait() from one thread at a time.
class Work {
 public:
  Work();  // complete
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  // Blocks until the operation is complete. On device memory that the backend takes, only makes the
  // calling thread's stream wait for it and returns. Throws Error (kTimeout, kPeerLost, kMismatch,
  // …) naming operation, sequence number and rank; afterwards the communicator is dead. The error
  // of an operation that a stream waits for is thrown by the next operation.
  void wait();
  bool done();  // never blocks; throws as wait()

 private:
  friend class Communicator;
  struct State;
  explicit Work(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct CommunicatorOptions {
  plugin::Plugin plugin;
  rendezvous::ProcessInfo process;
  std::shared_ptr<store::Store> store;  // of the job; null if the world size is 1
  const config::BackendConfig*
      backend;                  // timeout, interface, the plugin's options; read during create
  std::string name = "world";   // unique per job: prefixes store keys, appears in messages
  std::string group = "world";  // what profiles call its ranks
  // Where this rank's tensors are, besides host memory; null: nowhere else.
  std::shared_ptr<const DeviceMemory> device = nullptr;
  // What moves host memory (objects, numbers) if the plugin moves only the device's.
  std::function<plugin::Plugin()> host_side = nullptr;
  // What else all ranks must have set alike: compared before they connect.
  SharedSettings settings = {};
};

class Communicator {
 public:
  // Collective. Ranks first verify through the store that they loaded the same plugin, version and
  // options; otherwise throws Error(kMismatch) naming key and ranks.
  static std::shared_ptr<Communicator> create(const CommunicatorOptions& options);

  // A rank of `size` ranks, of which the others do not exist: every operation is complete at once
  // and touches no memory; what others would send is left as it was. For dry runs, whose tensors
  // have none. Cannot be split.
  static std::shared_ptr<Communicator> made_up(const std::string& name, int size, int rank = 0);
  ~Communicator();

  int rank() const;
  int size() const;
  const std::string& name() const;
  // Its ranks' numbers in the job, in the order of this communicator.
  const std::vector<int>& world_ranks() const;
  std::string backend() const;  // its name

  // A db_op without struct_size, flags and timeout (they are filled in); see distributed_backend.h
  // for buffers. run() blocks and, if the backend can, performs the operation on the calling
  // thread; submit() returns at once.
  void run(db_op op);
  Work submit(db_op op);
  bool supports(const db_op& op) const;
  const DeviceMemory* device() const;  // null: host memory only

  // For memory that is sent or received repeatedly; device memory if the backend moves that. Every
  // rank registers its part of the same operations. Not collective; throws if the communicator is
  // dead.
  Registration register_memory(void* memory, uint64_t bytes);

  // At least `bytes` (> 0) of zeroed host memory that the peers of this communicator reach, so that
  // the backend need not copy it to send it (coupler/memory.h). Null if the backend gives none:
  // then use memory of your own; no result depends on it. It may outlive the communicator, and may
  // be freed by any thread. Not collective.
  std::shared_ptr<void> peer_memory(uint64_t bytes);

  // Collective; null for a negative color. group: what profiles call the ranks; "": what they call
  // this communicator's.
  std::shared_ptr<Communicator> split(int color, int key, const std::string& name,
                                      const std::string& group = {});

  // Collective: throws Error(kMismatch) naming key, ranks and both values if some rank's settings
  // differ from rank 0's.
  void verify(const SharedSettings& settings);

  // Whether the backend has the extension DB_SHARDING.
  bool can_shard() const;
  // Requests this rank's plan, which is valid while take runs. Throws Error with the plugin's
  // message.
  void plan_shards(const db_model& model, const std::function<void(const db_plan&)>& take) const;

  // Whether operations on the device's memory are asynchronous; false if they go through host
  // memory.
  bool is_on_streams() const;

  // Makes every operation fail on every rank: with kAborted, or kPeerLost if one of its ranks is
  // lost. why: the message they get; "": that this rank called abort. Never blocks.
  void abort(const std::string& why = {});

 private:
  Communicator(std::shared_ptr<CommunicatorState> state, std::shared_ptr<Communicator> host_side);
  Work submit_on_stream(db_op op);
  Work start(db_op op);
  void run_staged(const db_op& op);

  std::shared_ptr<CommunicatorState> state_;  // shared with the Works in flight
  std::shared_ptr<Communicator> host_side_;   // null: the backend takes host memory
};

}  // namespace coupler::comm
