// Checkpoints: decides when and where the state of a job is saved, and owns the thread that writes
// it. Owned by the Accelerator; used by the training thread.
//
// Whether a save begins depends only on what all ranks have in common: their steps, and how earlier
// saves ended. When a rank learns that a save ended depends on its timing, so a failure that it
// notices early is only logged and kept until the next common point.
#pragma once

#include <coupler/accelerator.h>
#include <coupler/error.h>

#include <cstdint>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerator/accelerator.h"
#include "accelerator/preemption.h"
#include "checkpoint/checkpoint_commit.h"
#include "checkpoint/folder.h"
#include "checkpoint/snapshot.h"

namespace coupler {

class Checkpoints {
 public:
  using Hook = Accelerator::CheckpointHook;

  explicit Checkpoints(Accelerator::Impl& impl);
  ~Checkpoints();  // waits for the current write
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // See Accelerator.
  void add(std::unique_ptr<detail::Stateful> object) { objects_.push_back(std::move(object)); }
  std::string save(const std::string& folder);
  void load(const std::string& path);
  bool resume();
  void end_training();
  void wait();
  void on_step_end();
  ScopeGuard add_hook(std::list<Hook>& hooks, Hook hook);
  std::list<Hook> save_hooks, load_hooks;

 private:
  checkpoint::TrainingState job() const;
  int64_t steps() const;  // of the optimizers; called after every body
  bool by_itself() const { return !impl_.config.checkpoint.dir.empty(); }
  std::string folder_or(const std::string& folder) const;
  std::future<std::string> begin(const std::string& folder, bool async);
  void auto_save();
  void log_saved(const std::string& path) const;
  void take_end();
  // Returns on every rank what `find` returns on rank 0.
  std::string of_rank_0(const std::function<std::string()>& find);
  bool load_newest(const std::string& folder);
  std::vector<int64_t> on_all_ranks(const std::function<int64_t()>& action);
  std::optional<coupler::Error> try_load(const std::string& path);

  Accelerator::Impl& impl_;
  std::vector<std::unique_ptr<detail::Stateful>> objects_;
  checkpoint::CheckpointCommit writer_;
  const std::shared_ptr<store::Store> questions_;  // null: one process
  std::unique_ptr<Preemption> preemption_;         // null: SIGTERM is not handled
  int64_t asked_ = 0;                              // number of calls of of_rank_0
  int64_t saved_steps_ = 0;                        // optimizer steps when the latest save began
  // Of the latest save in the background: its error, until that is thrown, and whether it failed.
  std::optional<coupler::Error> failure_;
  bool failed_ = false;
  // The latest snapshot made of copies; the next one reuses its memory.
  std::shared_ptr<const checkpoint::Snapshot> copy_;
  std::future<std::string> writing_;  // last: its thread uses the rest
};

}  // namespace coupler
