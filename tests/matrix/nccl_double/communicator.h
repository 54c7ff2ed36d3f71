// ncclComm: the host side of a communicator of the double. One thread at a time calls its
// functions, as NCCL requires. Its own threads connect and launch; the stream performs the work.
#pragma once

#include <nccl.h>

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collectives.h"
#include "shared_group.h"

namespace nccl_double {

// What the stream's work needs; it may outlive the handle.
struct State {
  int rank = 0, size = 1;
  bool blocking = true;
  std::atomic<int> result{ncclInProgress};
  Aborted aborted{false};
  std::string error;  // written before result
  std::unique_ptr<SharedGroup> group;
  std::atomic<int> running{0};  // unfinished calls on the stream
  std::atomic<int> launched{0};
};

// Where the ranks meet, and this rank's GPU.
struct Place {
  std::string name;
  std::string gpu;
};

// One call in a group: a collective or a message.
struct Call {
  bool is_message = false;
  Collective collective;
  Message message;
  cudaStream_t stream = nullptr;
};

}  // namespace nccl_double

struct ncclComm {
  using State = nccl_double::State;

  static ncclComm* init(const nccl_double::Place& place, int rank, int size, bool blocking);
  ~ncclComm();
  ncclComm(const ncclComm&) = delete;
  ncclComm& operator=(const ncclComm&) = delete;

  ncclResult_t launch(std::vector<nccl_double::Call> calls);
  ncclResult_t split(int color, int key, ncclComm** part, bool blocking);
  // excluded: in ascending order.
  ncclResult_t shrink(const std::vector<int>& excluded, bool aborts, ncclComm** part,
                      bool blocking);
  ncclResult_t know(void* buffer, size_t size, void** handle);
  ncclResult_t forget(void* handle);
  ncclResult_t finalize();
  void end(bool abort);
  // The error of a call that is not allowed now; ncclSuccess if it is allowed.
  ncclResult_t ready() const;
  // Translates a reduction of a type into the double's terms.
  ncclResult_t combine(ncclDataType_t type, ncclRedOp_t op, nccl_double::Combine* result) const;
  ncclRedOp_t make_premul(double scale);
  void drop(ncclRedOp_t op);

  std::shared_ptr<State> state = std::make_shared<State>();

 private:
  ncclComm(nccl_double::Place place, int rank, int size, bool blocking);
  ncclResult_t start(const std::function<void()>& job);

  const nccl_double::Place place_;
  std::thread job_;
  int splits_ = 0, shrinks_ = 0;
  std::set<void*> known_;
  std::vector<double> scales_;  // by op - ncclNumOps; NaN: free
};
