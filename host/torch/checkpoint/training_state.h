// TrainingState: the objects of a training job that a checkpoint holds, and how they are stored in
// its files and its manifest. Used by the training thread.
//
// Files: model, model_1, … (parameters and buffers under the names of the modules); optimizer, …
// ("exp_avg/fc.weight"); custom_checkpoint_0, … (registered objects, written by rank 0). With
// several ranks, each writes its part of models and optimizers as NAME-00001-of-00004.safetensors.
// random_states_0, … are per rank and also hold what the rank's models carry from step to step.
// The rest is in the manifest's state.
#pragma once

#include <coupler/detail/loader_view.h>
#include <coupler/state_dict.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/state_piece.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer_state.h"
#include "optim/scheduler_core.h"
#include "strategy/strategy.h"

namespace coupler::checkpoint {

struct TrainingState {
  int rank = 0, world = 1;
  c10::Device device = c10::kCPU;  // this rank's training device
  std::vector<std::shared_ptr<Strategy>> models;
  std::vector<std::shared_ptr<OptimizerState>> optimizers;
  std::vector<std::shared_ptr<SchedulerCore>> schedulers;
  LossScaler* scaler = nullptr;
  std::vector<std::shared_ptr<detail::LoaderView>> loaders;
  std::vector<detail::Registered*> objects;
  bool own_buffers = false;  // buffers differ by rank: training.broadcast_buffers is false

  // Optimizer steps the job has taken.
  int64_t steps() const;
};

// One of this rank's files.
struct StateFile {
  std::string name;
  std::vector<StatePiece> pieces;
  std::map<std::string, std::string> metadata;
};

struct Snapshot {
  std::vector<StateFile> files;
  nlohmann::json state;  // the same on every rank
  int64_t steps = 0;
};

// What this rank must write. The pieces refer to the objects' own memory, or with `copy` are copies
// of it. Copies reuse the memory of `old`, an earlier snapshot of copies that is no longer needed
// (null: none), if they fit. Throws Error if something cannot be saved.
Snapshot take_snapshot(const TrainingState& job, bool copy, const Snapshot* old = nullptr);

// "model-00002-of-00004.safetensors"
std::string file_name(const std::string& base, int rank, int world);

}  // namespace coupler::checkpoint
