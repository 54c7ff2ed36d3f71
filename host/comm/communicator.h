// Communicator: RAII over the C table, the only caller of a backend's function pointers. Raw
// buffers in, Work out; comm/tensor_ops.h adds tensors. Calls on one Communicator are serialised
// inside, so any thread may call; the order of operations must still be the same on every rank.
//
// Operations on the device's memory (DB_MEMORY_CUDA, whatever the device is) are in the order of
// the calling thread's stream, and the host waits for none, where the backend takes that memory;
// else they go through host memory and are complete on the host when submit() returns. Operations
// on host memory go over a communicator of their own (the host side) where the backend takes none.
#pragma once

#include <coupler/distributed_backend.h>
#include <coupler/sharding.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "comm/device_memory.h"
#include "comm/preflight.h"
#include "comm/registration.h"
#include "config/config.h"
#include "plugin/plugin.h"
#include "rendezvous/process_info.h"
#include "rendezvous/store.h"

namespace coupler {

struct CommunicatorState;

// One operation under way. Movable; the destructor of one that was never waited for waits (its
// buffers are the caller's). wait() from one thread at a time.
class Work {
 public:
  Work();  // complete
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  // Blocks until the operation is complete; one on a device's memory, where the backend takes that:
  // makes the calling thread's stream wait for it and returns. Throws Error (kTimeout, kPeerLost,
  // kMismatch, …) naming operation, sequence number and rank; afterwards the communicator is dead.
  // What goes wrong with an operation that a stream waits for is thrown by the next one.
  void wait();
  bool done();  // never blocks; throws as wait()

 private:
  friend class Communicator;
  struct State;
  explicit Work(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct CommunicatorOptions {
  Plugin plugin;
  ProcessInfo process;
  std::shared_ptr<Store> store;  // of the job; null where world is 1
  const BackendConfig* backend;  // timeout, interface, the plugin's options; read during create
  std::string name = "world";    // unique per job: prefixes store keys, appears in messages
  // Where tensors of this rank are beside host memory; null: nowhere else.
  std::shared_ptr<const DeviceMemory> device = nullptr;
  // What moves host memory (objects, numbers) where the plugin moves the device's only.
  std::function<Plugin()> host_side = nullptr;
};

class Communicator {
 public:
  // Collective. Ranks first verify through the store that they loaded the same plugin, version and
  // options: a difference is Error(kMismatch) naming key and ranks.
  static std::shared_ptr<Communicator> create(const CommunicatorOptions& options);
  ~Communicator();

  int rank() const;
  int size() const;
  const std::string& name() const;
  std::string backend() const;  // "fsdp"

  // A db_op without struct_size, flags and timeout (they are filled in); see distributed_backend.h
  // for buffers. run() blocks and performs the operation on the calling thread where the backend
  // can; submit() returns at once.
  void run(db_op op);
  Work submit(db_op op);
  bool supports(const db_op& op) const;
  const DeviceMemory* device() const;  // null: host memory only

  // For memory that is sent or received again and again; of the device where the backend moves
  // that. Every rank registers its part of the same operations. Not collective; throws where the
  // communicator is dead.
  Registration register_memory(void* memory, uint64_t bytes);

  // Collective; null for a negative color.
  std::shared_ptr<Communicator> split(int color, int key, const std::string& name);

  // Collective: throws Error(kMismatch) naming key, ranks and both values where some rank's facts
  // differ from rank 0's.
  void verify(const Facts& facts);

  // Whether the backend has the extension DB_SHARDING.
  bool can_shard() const;
  // Asks it for this rank's plan, which is valid while take runs. Throws Error with the plugin's
  // message.
  void plan_shards(const db_model& model, const std::function<void(const db_plan&)>& take) const;

  // Whether operations on the device's memory are asynchronous: not where they go through host
  // memory.
  bool is_on_streams() const;

  // Makes every operation fail on every rank: with kAborted, or kPeerLost where one of its ranks is
  // lost. why is what they read, "" that this rank called abort. Never blocks.
  void abort(const std::string& why = {});

 private:
  Communicator(std::shared_ptr<CommunicatorState> state, std::shared_ptr<Communicator> host_side);
  Work submit_on_stream(db_op op);
  Work start(db_op op);
  void run_staged(const db_op& op);

  std::shared_ptr<CommunicatorState> state_;  // shared with the Works under way
  std::shared_ptr<Communicator> host_side_;   // null: the backend takes host memory
};

}  // namespace coupler
