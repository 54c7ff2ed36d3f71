// Checkpoints: when the state of a job is saved, where, and the thread that writes it. Owned by the
// Accelerator; used by the thread that trains.
//
// Whether a save begins depends on nothing but what all ranks have in common: their steps, and how
// earlier saves ended. When this rank learns of an end does depend on its timing, so that a failure
// that is noticed early only becomes a log line and is kept for the next common point.
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

#include "checkpoint/folder.h"
#include "checkpoint/job_writer.h"
#include "checkpoint/training_state.h"
#include "train/accelerator_impl.h"
#include "train/preemption.h"

namespace coupler {

class Checkpoints {
 public:
  using Hook = Accelerator::CheckpointHook;

  explicit Checkpoints(Accelerator::Impl& impl);
  ~Checkpoints();  // waits for what is being written
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // See Accelerator.
  void add(std::unique_ptr<detail::Registered> object) { objects_.push_back(std::move(object)); }
  std::string save(const std::string& folder);
  void load(const std::string& path);
  bool resume();
  void end_training();
  void wait();
  void end_of_body();
  SyncScope add_hook(std::list<Hook>& hooks, Hook hook);
  std::list<Hook> save_hooks, load_hooks;

 private:
  checkpoint::TrainingState job() const;
  int64_t steps() const;  // that the optimizers have taken; asked for after every body
  bool by_itself() const { return !impl_.config.checkpoint.dir.empty(); }
  std::string folder_or(const std::string& folder) const;
  std::future<std::string> begin(const std::string& folder, bool async);
  void save_by_itself();
  void take_end();
  // What rank 0 finds, on every rank.
  std::string of_rank_0(const std::function<std::string()>& find);
  bool load_newest(const std::string& folder);
  std::vector<int64_t> on_all_ranks(const std::function<int64_t()>& action);
  std::optional<coupler::Error> try_load(const std::string& path);

  Accelerator::Impl& impl_;
  std::vector<std::unique_ptr<detail::Registered>> objects_;
  checkpoint::JobWriter writer_;
  const std::shared_ptr<Store> questions_;  // null: one process
  std::unique_ptr<Preemption> preemption_;  // null: SIGTERM is not ours
  int64_t asked_ = 0;                       // by of_rank_0
  int64_t saved_steps_ = 0;                 // optimizer steps when the latest save began
  // Of the latest save that was written by a thread: why it failed, until that was thrown; and
  // whether it did.
  std::optional<coupler::Error> failure_;
  bool failed_ = false;
  // The latest that was taken of copies: the next one needs as much memory, and has it there.
  std::shared_ptr<const checkpoint::Snapshot> copy_;
  std::future<std::string> writing_;  // last: its thread uses the rest
};

}  // namespace coupler
