#include "comm/host_services.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"

namespace coupler {
namespace {

void host_log(void*, db_severity severity, const char* component, const char* message) {
  const auto level =
      static_cast<LogLevel>(std::clamp(severity, DB_LOG_TRACE + 0, DB_LOG_ERROR + 0));
  if (log_enabled(level, component)) log(level, component, message);
}

db_status refuse(db_error* error, db_status code, const std::string& text) {
  if (error == nullptr) return code;
  error->code = code;
  error->native_code = 0;
  error->failed_rank = -1;
  error->flags = 0;
  if (error->message != nullptr && error->message_capacity > 0) {
    const size_t length = std::min<size_t>(text.size(), error->message_capacity - 1);
    std::memcpy(error->message, text.data(), length);
    error->message[length] = 0;
  }
  return code;
}

db_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kTimeout:
      return DB_ERR_TIMEOUT;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUsage:
      return DB_ERR_INVALID_ARGUMENT;
    case ErrorCode::kPeerLost:
      return DB_ERR_PEER_LOST;
    case ErrorCode::kAborted:
      return DB_ERR_ABORTED;
    default:
      return DB_ERR_SYSTEM;
  }
}

// No exception may reach the C caller.
template <typename Function>
db_status guarded(db_error* error, const char* what, const char* key, Function function) {
  try {
    return function();
  } catch (const Error& thrown) {
    return refuse(error, status_of(thrown.code()), thrown.what());
  } catch (const std::exception& thrown) {
    return refuse(error, DB_ERR_INTERNAL,
                  fmt::format("store {} of key '{}': {}", what, key, thrown.what()));
  }
}

}  // namespace

const db_host& host_services() {
  static const db_host host = {
      .struct_size = sizeof(db_host),
      .abi_major = DB_ABI_MAJOR,
      .abi_minor = DB_ABI_MINOR,
      .context = nullptr,
      .log = host_log,
      .get_extension = [](void*, const char*) -> const void* { return nullptr; }};
  return host;
}

HostStore::HostStore(std::shared_ptr<Store> store, const std::string& prefix,
                     std::chrono::nanoseconds default_timeout)
    : store_(Store::with_prefix(std::move(store), prefix)),
      default_timeout_(default_timeout),
      table_{.struct_size = sizeof(db_store),
             .context = this,
             .set = &HostStore::set,
             .get = &HostStore::get,
             .add = &HostStore::add,
             .derive_key = &HostStore::derive_key} {}

db_status HostStore::set(void* context, const char* key, const void* value, uint64_t size,
                         db_error* error) {
  auto* self = static_cast<HostStore*>(context);
  return guarded(error, "set", key, [&] {
    self->store_->set(key, std::string(static_cast<const char*>(value), size));
    return DB_OK;
  });
}

db_status HostStore::get(void* context, const char* key, void* value, uint64_t* size,
                         int64_t timeout_ns, db_error* error) {
  auto* self = static_cast<HostStore*>(context);
  return guarded(error, "get", key, [&]() -> db_status {
    const auto timeout =
        timeout_ns < 0 ? self->default_timeout_ : std::chrono::nanoseconds(timeout_ns);
    const std::optional<std::string> found = self->store_->get(key, timeout);
    if (!found) {
      if (timeout_ns == 0) {
        return refuse(error, DB_ERR_NOT_FOUND, fmt::format("the store has no key '{}' yet", key));
      }
      return refuse(error, DB_ERR_TIMEOUT,
                    fmt::format("no rank set the store's key '{}' within {} ms", key,
                                timeout.count() / 1'000'000));
    }
    const uint64_t room = *size;
    *size = found->size();
    if (found->size() > room) {
      return refuse(
          error, DB_ERR_BUFFER_TOO_SMALL,
          fmt::format("the value of '{}' has {} bytes, but the buffer has {}", key, *size, room));
    }
    if (!found->empty()) std::memcpy(value, found->data(), found->size());
    return DB_OK;
  });
}

db_status HostStore::add(void* context, const char* key, int64_t delta, int64_t* result,
                         db_error* error) {
  auto* self = static_cast<HostStore*>(context);
  return guarded(error, "add", key, [&] {
    const int64_t sum = self->store_->add(key, delta);
    if (result != nullptr) *result = sum;
    return DB_OK;
  });
}

db_status HostStore::derive_key(void* context, const char* purpose, uint8_t key[32],
                                db_error* error) {
  auto* self = static_cast<HostStore*>(context);
  return guarded(error, "derive_key", purpose, [&]() -> db_status {
    // Keys for backends differ from the host's own, whatever purpose a backend names.
    const auto derived = self->store_->derived_key(fmt::format("backend {}", purpose));
    if (!derived) {
      return refuse(error, DB_ERR_UNSUPPORTED, "this job has no secret to derive a key from");
    }
    std::copy(derived->begin(), derived->end(), key);
    return DB_OK;
  });
}

}  // namespace coupler
