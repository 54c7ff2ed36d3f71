#include "comm/raw_communicator.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/machines.h"
#include "comm/state.h"
#include "plugin/probe.h"

namespace coupler::comm {
namespace {

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

BackendStore::BackendStore(std::shared_ptr<store::Store> store, const std::string& prefix,
                           std::chrono::nanoseconds default_timeout)
    : store_(store::Store::with_prefix(std::move(store), prefix)),
      default_timeout_(default_timeout),
      table_{.struct_size = sizeof(db_store),
             .context = this,
             .set = &BackendStore::set,
             .get = &BackendStore::get,
             .add = &BackendStore::add,
             .derive_key = &BackendStore::derive_key} {}

db_status BackendStore::set(void* context, const char* key, const void* value, uint64_t size,
                            db_error* error) {
  auto* self = static_cast<BackendStore*>(context);
  return guarded(error, "set", key, [&] {
    self->store_->set(key, std::string(static_cast<const char*>(value), size));
    return DB_OK;
  });
}

db_status BackendStore::get(void* context, const char* key, void* value, uint64_t* size,
                            int64_t timeout_ns, db_error* error) {
  auto* self = static_cast<BackendStore*>(context);
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

db_status BackendStore::add(void* context, const char* key, int64_t delta, int64_t* result,
                            db_error* error) {
  auto* self = static_cast<BackendStore*>(context);
  return guarded(error, "add", key, [&] {
    const int64_t sum = self->store_->add(key, delta);
    if (result != nullptr) *result = sum;
    return DB_OK;
  });
}

db_status BackendStore::derive_key(void* context, const char* purpose, uint8_t key[32],
                                   db_error* error) {
  auto* self = static_cast<BackendStore*>(context);
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

namespace {

std::string_view type_name(db_option_type type) {
  switch (type) {
    case DB_OPTION_STRING:
      return "a string";
    case DB_OPTION_I64:
      return "an integer";
    case DB_OPTION_F64:
      return "a number";
    default:
      return "true or false";
  }
}

db_option convert(const config::PluginOption& option) {
  db_option result{};
  result.struct_size = sizeof(result);
  if (std::holds_alternative<int64_t>(option.value)) {
    result.type = DB_OPTION_I64;
    result.i64 = std::get<int64_t>(option.value);
  } else if (std::holds_alternative<double>(option.value)) {
    result.type = DB_OPTION_F64;
    result.f64 = std::get<double>(option.value);
  } else if (std::holds_alternative<bool>(option.value)) {
    result.type = DB_OPTION_BOOL;
    result.boolean = std::get<bool>(option.value) ? 1 : 0;
  } else {
    result.type = DB_OPTION_STRING;
  }
  return result;
}

std::string place(const config::PluginOption& option) {
  return option.source.text.empty() ? "" : option.source.text + ": ";
}

void check_base_option(const std::string& plugin, const config::PluginOption& option) {
  if (std::holds_alternative<std::string>(option.value)) return;
  const std::string key = fmt::format("backend.{}.{}", plugin, option.key);
  fail_config(
      fmt::format("{}{} must be a string: the name or path of a transport", place(option), key),
      key, fmt::format("write {} = \"auto\", or a transport's name in quotes", option.key));
}

}  // namespace

PluginOptions::PluginOptions(const DistributedBackend& plugin,
                             const config::BackendConfig& backend) {
  const std::string name = plugin.name;
  uint64_t count = 0;
  const db_option* const* known = plugin.default_options(&count);
  const auto table = backend.options.find(name);
  if (table == backend.options.end()) return;
  const std::vector<plugin::WantedBase> bases = plugin::wanted_bases(plugin);
  for (const config::PluginOption& option : table->second) {
    if (std::any_of(bases.begin(), bases.end(),
                    [&](const plugin::WantedBase& base) { return base.option == option.key; })) {
      check_base_option(name, option);
      continue;
    }
    const std::string key = fmt::format("backend.{}.{}", name, option.key);
    const auto* const* found = std::find_if(
        known, known + count, [&](const db_option* other) { return option.key == other->key; });
    if (found == known + count) {
      std::string valid;
      for (uint64_t i = 0; i < count; ++i) {
        valid += fmt::format("{}{}", valid.empty() ? "" : ", ", known[i]->key);
      }
      fail_config(fmt::format("{}{}: the backend '{}' has no such option; {}", place(option), key,
                              name, valid.empty() ? "it has no options" : "it has: " + valid),
                  key, "correct or remove the option");
    }
    db_option converted = convert(option);
    if ((*found)->type == DB_OPTION_F64 && converted.type == DB_OPTION_I64) {
      converted.type = DB_OPTION_F64;
      converted.f64 = static_cast<double>(converted.i64);
    }
    if (converted.type != (*found)->type) {
      fail_config(fmt::format("{}{} must be {}, not {}", place(option), key,
                              type_name((*found)->type), type_name(converted.type)),
                  key, "write a value of that type");
    }
    converted.key = texts_.emplace_back(option.key).c_str();
    if (converted.type == DB_OPTION_STRING) {
      converted.string = texts_.emplace_back(std::get<std::string>(option.value)).c_str();
    }
    pointers_.push_back(&options_.emplace_back(converted));
    settings_.emplace_back(
        key, std::visit([](const auto& value) { return fmt::format("{}", value); }, option.value));
  }
}

std::unique_ptr<RawCommunicator> RawCommunicator::make_base(
    const CommunicatorOptions& options, const plugin::WantedBase& wanted) const {
  const std::string wrapper = plugin_.name();
  config::BackendConfig backend = *options.backend;
  backend.use = plugin::use_of(wanted, backend, wrapper);
  backend.sha256.clear();  // the pin is the wrapper's
  if (backend.use == "auto") {
    const bool on_host =
        options.device == nullptr || !options.device->is_cuda() || !plugin_.can(DB_CAP_CUDA_MEMORY);
    backend.use = plugin::resolve_auto(
        backend, rendezvous::mpi_launch_of(options.process), on_host,
        wanted.of_machine ? plugin::Spread::kOneMachine : rendezvous::spread_of(options.process));
  }
  CommunicatorOptions base = options;
  try {
    base.plugin = plugin::Plugin::load(backend);
  } catch (const Error& error) {
    throw plugin::about_base(error, plugin_.table(), wanted, backend.use);
  }
  plugin::check_base(plugin_.table(), wanted, base.plugin.table());
  // Two bases may be of one backend. Those of one role need no keys of their own.
  if (wanted.role != "world") base.name += fmt::format("/{}", wanted.role);
  return std::make_unique<RawCommunicator>(base);
}

RawCommunicator::RawCommunicator(const CommunicatorOptions& options)
    : plugin_(options.plugin),
      process_(options.process),
      name_(options.name),
      job_store_(options.store),
      interface_name_(options.backend->interface),
      device_index_(options.device != nullptr && options.device->is_cuda() ? options.device->index()
                                                                           : -1),
      timeout_(options.backend->timeout),
      options_(std::make_unique<PluginOptions>(plugin_.table(), *options.backend)) {
  for (plugin::WantedBase& wanted : plugin::wanted_bases(plugin_.table())) {
    auto base = make_base(options, wanted);
    bases_.push_back({std::move(wanted), std::move(base)});
  }
}

RawCommunicator::RawCommunicator(plugin::Plugin plugin, db_communicator* communicator,
                                 std::shared_ptr<RawCommunicator> parent)
    : plugin_(std::move(plugin)), parent_(std::move(parent)), communicator_(communicator) {}

RawCommunicator::~RawCommunicator() {
  if (communicator_ != nullptr) communicator_->functions->destroy(communicator_);
}

// The communicator is that of this rank's machine, not of all ranks.
void RawCommunicator::move_to_machine() {
  const std::vector<int> ranks =
      share_machine({.store = job_store_ ? store::Store::with_prefix(job_store_, name_) : nullptr,
                     .name = name_,
                     .rank = process_.rank,
                     .world_size = process_.world_size,
                     .timeout = timeout_},
                    process_);
  const auto own = std::find(ranks.begin(), ranks.end(), process_.rank) - ranks.begin();
  name_ += fmt::format("/of rank {}", ranks.front());
  process_.rank = process_.local_rank = static_cast<int>(own);
  process_.world_size = process_.local_world_size = static_cast<int>(ranks.size());
  if (process_.world_size == 1) job_store_ = nullptr;
}

void RawCommunicator::connect() {
  std::vector<db_base> bases;
  std::vector<const db_base*> pointers;
  bases.reserve(bases_.size());
  for (const Base& base : bases_) {
    if (base.wanted.of_machine) base.communicator->move_to_machine();
    base.communicator->connect();
    bases.push_back({.struct_size = sizeof(db_base),
                     .role = base.wanted.role.c_str(),
                     .communicator = base.communicator->communicator_});
    pointers.push_back(&bases.back());
  }
  if (job_store_) {
    store_ =
        std::make_unique<BackendStore>(job_store_, name_ + "/backend/" + plugin_.name(), timeout_);
  }
  const db_communicator_params params = {
      .struct_size = sizeof(db_communicator_params),
      .host = &plugin::host_services(),
      .store = store_ ? store_->table() : nullptr,
      .options = options_->data(),
      .option_count = options_->size(),
      .rank = process_.rank,
      .size = process_.world_size,
      .local_rank = process_.local_rank,
      .local_size = process_.local_world_size,
      .device_index = device_index_,
      .memory = device_index_ < 0 ? DB_MEMORY_HOST : DB_MEMORY_CUDA,
      .default_timeout_ns = timeout_.count(),
      .interface_name = interface_name_.empty() ? nullptr : interface_name_.c_str(),
      .bases = pointers.empty() ? nullptr : pointers.data(),
      .base_count = pointers.size(),
  };
  ErrorBuffer error;
  const db_status status = plugin_.table().create(&params, &communicator_, error.get());
  if (status != DB_OK) {
    communicator_ = nullptr;
    throw make_error(status, error,
                     fmt::format("rank {} of {} cannot create its communicator", process_.rank,
                                 process_.world_size),
                     plugin_.name());
  }
}

SharedSettings RawCommunicator::settings() const {
  const DistributedBackend& table = plugin_.table();
  SharedSettings settings = {{"backend.use", table.name},
                             {table.name + std::string(" (plugin version)"), table.version},
                             {table.name + std::string(" (plugin ABI)"),
                              fmt::format("{}.{}", table.abi_major, table.abi_minor)}};
  const SharedSettings& own = options_->settings();
  settings.insert(settings.end(), own.begin(), own.end());
  for (const Base& base : bases_) {
    SharedSettings below = base.communicator->settings();
    // Two bases may be of one backend, from different files.
    const std::string key = fmt::format("backend.{}.{}", table.name, base.wanted.option);
    below[0].first = key;
    below[1].first = key + " (plugin version)";
    below[2].first = key + " (plugin ABI)";
    for (auto& setting : below) settings.push_back(std::move(setting));
  }
  return settings;
}

bool RawCommunicator::takes(db_memory memory) const {
  if (parent_) return parent_->takes(memory);
  constexpr uint64_t kHost = DB_CAP_HOST_MEMORY, kCuda = DB_CAP_CUDA_MEMORY;
  const bool says = can(kHost) || can(kCuda);  // else host memory, which older plugins imply
  if (memory == DB_MEMORY_CUDA ? !can(kCuda) : says && !can(kHost)) return false;
  return std::all_of(bases_.begin(), bases_.end(),
                     [memory](const Base& base) { return base.communicator->takes(memory); });
}

bool RawCommunicator::can_abort() const {
  if (parent_) return parent_->can_abort();
  return can(DB_CAP_ABORT) && std::all_of(bases_.begin(), bases_.end(), [](const Base& base) {
           return base.communicator->can_abort();
         });
}

}  // namespace coupler::comm
