#include "common/bootstrap_store.h"

#include <mutex>

namespace db {

BootstrapStore BootstrapStore::with_prefix(const std::string& prefix) const {
  BootstrapStore result = *this;
  result.prefix_ += prefix + "/";
  return result;
}

// Calls body(store, full key, error), which calls the host.
template <class Body>
Failure BootstrapStore::call(const std::string& key, const Body& body) const {
  const std::shared_lock lock(shared_->mutex);
  if (shared_->store == nullptr)
    return Failure::make(DB_ERR_ABORTED, "the communicator that owned the store was destroyed");
  const std::string full = prefix_ + key;
  HostError error;
  const db_status status = body(*shared_->store, full.c_str(), &error.error);
  return status < 0 ? error.failure(status, "store, key '" + full + "'") : Failure{};
}

Failure BootstrapStore::set(const std::string& key, const std::string& value) const {
  return call(key, [&](const db_store& store, const char* full, db_error* error) {
    return store.set(store.context, full, value.data(), value.size(), error);
  });
}

Failure BootstrapStore::get(const std::string& key, int64_t timeout_ns, std::string* value) const {
  return call(key, [&](const db_store& store, const char* full, db_error* error) {
    value->resize(1024);
    for (;;) {
      uint64_t size = value->size();
      const db_status status =
          store.get(store.context, full, value->data(), &size, timeout_ns, error);
      const bool too_small = status == DB_ERR_BUFFER_TOO_SMALL && size > value->size();
      if (status < 0 && !too_small) return status;
      value->resize(size);
      if (!too_small) return status;
    }
  });
}

Failure BootstrapStore::add(const std::string& key, int64_t delta, int64_t* result) const {
  return call(key, [&](const db_store& store, const char* full, db_error* error) {
    return store.add(store.context, full, delta, result, error);
  });
}

Failure BootstrapStore::derive_key(const char* purpose, uint8_t key[32], bool* found) const {
  *found = false;
  return call(purpose, [&](const db_store& store, const char*, db_error* error) -> db_status {
    if (!DB_HAS(&store, db_store, derive_key) || store.derive_key == nullptr) return DB_OK;
    const db_status status = store.derive_key(store.context, purpose, key, error);
    *found = status == DB_OK;
    return status == DB_ERR_UNSUPPORTED ? DB_OK : status;
  });
}

void BootstrapStore::close() const {
  const std::unique_lock lock(shared_->mutex);
  shared_->store = nullptr;
}

}  // namespace db
