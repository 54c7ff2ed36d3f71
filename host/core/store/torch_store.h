// TorchStore: a client of the store that torchrun hosts (c10d's TCPStore). [any-thread]: every call
// has a connection to itself while it lasts, so a get() that waits blocks only its caller.
//
// That store has no secret: anyone who reaches its port can read and write. This is a property of
// torchrun; the store of `coupler launch` authenticates.
#pragma once

#include <coupler/error.h>

#include <mutex>
#include <string>
#include <vector>

#include "base/socket.h"
#include "store/store.h"

namespace coupler::store {

class TorchStore : public Store {
 public:
  // Connects once, to check that a TCPStore answers there. Throws Error(kTimeout or kPeerLost)
  // naming the address. timeout bounds this and each later set() and add().
  TorchStore(std::string host, int port, std::chrono::nanoseconds timeout);

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key, std::chrono::nanoseconds timeout) override;
  int64_t add(const std::string& key, int64_t delta) override;

 private:
  class Call;

  UniqueFd take_connection(Deadline deadline);
  void give_back(UniqueFd connection);
  [[noreturn]] void fail(ErrorCode code, const std::string& what) const;

  const std::string host_;
  const int port_;
  const std::chrono::nanoseconds timeout_;
  std::mutex mutex_;
  std::vector<UniqueFd> idle_;  // guarded by mutex_
};

}  // namespace coupler::store
