// RawCommunicator: one db_communicator with everything it borrows (options, store view, bases), in
// order of their lifetimes. One thread creates and destroys it; the functions of the table keep the
// ABI's threading rules.
#pragma once

#include <coupler/distributed_backend.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/preflight.h"
#include "config/config.h"
#include "plugin/bases.h"
#include "store/store.h"

namespace coupler::comm {

// A db_store over a Store; keys get the prefix. It must outlive the communicator that uses it. The
// C struct's functions are [any-thread], as the ABI requires, and never throw.
class BackendStore {
 public:
  BackendStore(std::shared_ptr<store::Store> store, const std::string& prefix,
               std::chrono::nanoseconds default_timeout);
  BackendStore(const BackendStore&) = delete;
  BackendStore& operator=(const BackendStore&) = delete;

  const db_store* table() const { return &table_; }

 private:
  static db_status set(void* context, const char* key, const void* value, uint64_t size,
                       db_error* error);
  static db_status get(void* context, const char* key, void* value, uint64_t* size,
                       int64_t timeout_ns, db_error* error);
  static db_status add(void* context, const char* key, int64_t delta, int64_t* result,
                       db_error* error);
  static db_status derive_key(void* context, const char* purpose, uint8_t key[32], db_error* error);

  std::shared_ptr<store::Store> store_;
  std::chrono::nanoseconds default_timeout_;
  db_store table_;
};

// PluginOptions: the [backend.NAME] table of one plugin in the form of the ABI. First checked
// against the plugin's own list, so that errors can name where the option was written. Immutable
// after construction; any thread may read it.
class PluginOptions {
 public:
  // Throws Error(kConfig) naming the source of an unknown or mistyped option. The options that name
  // the plugin's bases are the host's own: they are only checked, and not passed to the plugin.
  PluginOptions(const DistributedBackend& plugin, const config::BackendConfig& backend);

  PluginOptions(const PluginOptions&) = delete;
  PluginOptions& operator=(const PluginOptions&) = delete;

  const db_option* const* data() const { return pointers_.data(); }
  uint64_t size() const { return pointers_.size(); }
  // Key and value as strings, for ranks to compare.
  const SharedSettings& settings() const { return settings_; }

 private:
  SharedSettings settings_;
  std::deque<std::string> texts_;
  std::deque<db_option> options_;
  std::vector<const db_option*> pointers_;
};

class RawCommunicator {
 public:
  // Also loads the bases if the plugin needs any. Nothing is connected yet.
  explicit RawCommunicator(const CommunicatorOptions& options);
  // Of a split: the store, options and bases that create() was given stay alive in the parent.
  RawCommunicator(plugin::Plugin plugin, db_communicator* communicator,
                  std::shared_ptr<RawCommunicator> parent);
  ~RawCommunicator();
  RawCommunicator(const RawCommunicator&) = delete;
  RawCommunicator& operator=(const RawCommunicator&) = delete;

  void connect();                   // collective; throws
  SharedSettings settings() const;  // what ranks must agree on, of the plugin and its bases

  const plugin::Plugin& plugin() const { return plugin_; }
  db_communicator* get() const { return communicator_; }
  const db_communicator_functions& functions() const { return *communicator_->functions; }
  bool can(uint64_t capability) const { return plugin_.can(capability); }
  // Whether abort frees a thread that is stuck in it; a wrapper is limited by its bases.
  bool can_abort() const;
  // Whether operations on that memory may be submitted; a base must take it, too.
  bool takes(db_memory memory) const;

 private:
  struct Base {
    plugin::WantedBase wanted;
    std::unique_ptr<RawCommunicator> communicator;
  };

  std::unique_ptr<RawCommunicator> make_base(const CommunicatorOptions& options,
                                             const plugin::WantedBase& wanted) const;
  void move_to_machine();

  plugin::Plugin plugin_;
  std::vector<Base> bases_;                  // of a wrapper
  std::shared_ptr<RawCommunicator> parent_;  // of a split
  rendezvous::ProcessInfo process_;
  std::string name_;  // of the keys in the store
  std::shared_ptr<store::Store> job_store_;
  std::string interface_name_;
  int device_index_ = -1;
  std::chrono::nanoseconds timeout_{};
  std::unique_ptr<PluginOptions> options_;
  std::unique_ptr<BackendStore> store_;
  db_communicator* communicator_ = nullptr;
};

}  // namespace coupler::comm
