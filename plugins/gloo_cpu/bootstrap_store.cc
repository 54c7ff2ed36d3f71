#include "gloo_cpu/bootstrap_store.h"

#include <array>
#include <mutex>

namespace db::gloo_cpu {
namespace {

Failure closed() {
  return Failure::make(DB_ERR_ABORTED, "the communicator that owned the store was destroyed");
}

// A db_error with a message buffer, and its conversion to a Failure.
struct StoreError {
  StoreError() {
    error.struct_size = sizeof error;
    error.failed_rank = -1;
    error.message = text.data();
    error.message_capacity = text.size();
  }
  Failure failure(db_status status, const std::string& key) const {
    return Failure::make(status, "store, key '" + key + "': " + text.data(), 0, error.failed_rank,
                         error.native_code);
  }
  std::array<char, 512> text{};
  db_error error{};
};

}  // namespace

BootstrapStore BootstrapStore::with_prefix(const std::string& prefix) const {
  BootstrapStore result = *this;
  result.prefix_ += prefix + "/";
  return result;
}

Failure BootstrapStore::set(const std::string& key, const std::string& value) const {
  const std::shared_lock lock(shared_->mutex);
  if (shared_->store == nullptr) return closed();
  const std::string full = prefix_ + key;
  StoreError error;
  const db_status status = shared_->store->set(shared_->store->context, full.c_str(), value.data(),
                                               value.size(), &error.error);
  return status < 0 ? error.failure(status, full) : Failure{};
}

Failure BootstrapStore::get(const std::string& key, int64_t timeout_ns, std::string* value) const {
  const std::shared_lock lock(shared_->mutex);
  if (shared_->store == nullptr) return closed();
  const std::string full = prefix_ + key;
  value->resize(1024);
  for (;;) {
    StoreError error;
    uint64_t size = value->size();
    const db_status status = shared_->store->get(shared_->store->context, full.c_str(),
                                                 value->data(), &size, timeout_ns, &error.error);
    if (status == DB_ERR_BUFFER_TOO_SMALL && size > value->size()) {
      value->resize(size);
      continue;
    }
    if (status < 0) return error.failure(status, full);
    value->resize(size);
    return {};
  }
}

Failure BootstrapStore::add(const std::string& key, int64_t delta, int64_t* result) const {
  const std::shared_lock lock(shared_->mutex);
  if (shared_->store == nullptr) return closed();
  const std::string full = prefix_ + key;
  StoreError error;
  const db_status status =
      shared_->store->add(shared_->store->context, full.c_str(), delta, result, &error.error);
  return status < 0 ? error.failure(status, full) : Failure{};
}

Failure BootstrapStore::derive_key(const char* purpose, uint8_t key[32], bool* found) const {
  const std::shared_lock lock(shared_->mutex);
  *found = false;
  if (shared_->store == nullptr) return closed();
  if (!DB_HAS(shared_->store, db_store, derive_key) || shared_->store->derive_key == nullptr)
    return {};
  StoreError error;
  const db_status status =
      shared_->store->derive_key(shared_->store->context, purpose, key, &error.error);
  if (status == DB_ERR_UNSUPPORTED) return {};
  if (status < 0) return error.failure(status, purpose);
  *found = true;
  return {};
}

void BootstrapStore::close() const {
  const std::unique_lock lock(shared_->mutex);
  shared_->store = nullptr;
}

}  // namespace db::gloo_cpu
