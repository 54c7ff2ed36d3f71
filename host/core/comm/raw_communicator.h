// RawCommunicator: one db_communicator with everything it borrows (options, store view, base), in
// order of their lifetimes. One thread creates and destroys it; the functions of the table keep the
// ABI's threading rules.
#pragma once

#include <coupler/distributed_backend.h>

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/host_services.h"
#include "comm/options.h"
#include "comm/preflight.h"

namespace coupler {

class RawCommunicator {
 public:
  // Also loads the base if the plugin needs one. Nothing is connected yet.
  explicit RawCommunicator(const CommunicatorOptions& options);
  // Of a split: the store, options and base that create() was given stay alive in the parent.
  RawCommunicator(Plugin plugin, db_communicator* communicator,
                  std::shared_ptr<RawCommunicator> parent);
  ~RawCommunicator();
  RawCommunicator(const RawCommunicator&) = delete;
  RawCommunicator& operator=(const RawCommunicator&) = delete;

  void connect();       // collective; throws
  Facts facts() const;  // what ranks must agree on, of the plugin and its base

  const Plugin& plugin() const { return plugin_; }
  db_communicator* get() const { return communicator_; }
  const db_communicator_functions& functions() const { return *communicator_->functions; }
  bool can(uint64_t capability) const { return (plugin_.table().capabilities & capability) != 0; }
  // Whether abort frees a thread that is stuck in it; a wrapper is limited by its base.
  bool can_abort() const;
  // Whether operations on that memory may be submitted; a base must take it, too.
  bool takes(db_memory memory) const;

 private:
  Plugin plugin_;
  std::shared_ptr<RawCommunicator> base_;    // of a wrapper
  std::shared_ptr<RawCommunicator> parent_;  // of a split
  ProcessInfo process_;
  std::string prefix_;
  std::string interface_name_;
  int device_index_ = -1;
  std::chrono::nanoseconds timeout_{};
  std::unique_ptr<PluginOptions> options_;
  std::unique_ptr<HostStore> store_;
  db_communicator* communicator_ = nullptr;
};

}  // namespace coupler
