// What the host provides to a backend: the log, and a view of the job's store. The C structs'
// functions are [any-thread], as the ABI requires, and never throw.
#pragma once

#include <coupler/distributed_backend.h>

#include <chrono>
#include <memory>
#include <string>

#include "store/store.h"

namespace coupler {

const db_host& host_services();  // lives as long as the process

// A db_store over a Store; keys get the prefix. It must outlive the communicator that uses it.
class HostStore {
 public:
  HostStore(std::shared_ptr<Store> store, const std::string& prefix,
            std::chrono::nanoseconds default_timeout);
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;

  const db_store* table() const { return &table_; }

 private:
  static db_status set(void* context, const char* key, const void* value, uint64_t size,
                       db_error* error);
  static db_status get(void* context, const char* key, void* value, uint64_t* size,
                       int64_t timeout_ns, db_error* error);
  static db_status add(void* context, const char* key, int64_t delta, int64_t* result,
                       db_error* error);
  static db_status derive_key(void* context, const char* purpose, uint8_t key[32], db_error* error);

  std::shared_ptr<Store> store_;
  std::chrono::nanoseconds default_timeout_;
  db_store table_;
};

}  // namespace coupler
