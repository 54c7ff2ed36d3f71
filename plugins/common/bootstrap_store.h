// BootstrapStore: the host's key-value store as a transport uses it. A communicator made by split
// shares its ancestor's store under its own prefix. Once that ancestor is destroyed, the host's
// functions must not be called, and every call here returns DB_ERR_ABORTED instead.
// Thread rule: any thread.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string>

#include "common/error.h"

namespace db {

class BootstrapStore {
 public:
  explicit BootstrapStore(const db_store* store) : shared_(std::make_shared<Shared>(store)) {}

  // The same store, with keys that start with prefix + "/".
  BootstrapStore with_prefix(const std::string& prefix) const;

  Failure set(const std::string& key, const std::string& value) const;
  // timeout_ns 0: a single attempt.
  Failure get(const std::string& key, int64_t timeout_ns, std::string* value) const;
  Failure add(const std::string& key, int64_t delta, int64_t* result) const;

  // 32 bytes that only processes of this job can compute. *found: whether the job has a secret; if
  // not, key is not modified.
  Failure derive_key(const char* purpose, uint8_t key[32], bool* found) const;

  // No call reaches the host afterwards; waits for calls in flight. Called by the communicator that
  // was given the store, when it is destroyed.
  void close() const;

 private:
  template <class Body>
  Failure call(const std::string& key, const Body& body) const;

  struct Shared {
    explicit Shared(const db_store* given) : store(given) {}
    std::shared_mutex mutex;
    const db_store* store;  // NULL: closed
  };

  std::shared_ptr<Shared> shared_;
  std::string prefix_;
};

}  // namespace db
