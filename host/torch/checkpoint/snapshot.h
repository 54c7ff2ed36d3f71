// TrainingState: the objects of a training job that a checkpoint holds, and how they are stored in
// its files and its manifest. Used by the training thread.
//
// Files: model, model_1, … (parameters and buffers under the names of the modules); optimizer, …
// ("exp_avg/fc.weight"); custom_checkpoint_0, … (registered objects, written by rank 0); sampler,
// … and stream, … (what a loader's sampler and stream saved, if anything). With several ranks, each
// writes its part of models and optimizers as NAME-00001-of-00004.safetensors, and one rank for
// each part of a stream that is read in parts that part; rank 0 writes what is the same on every
// rank. random_states_0, … are per rank and also hold what the rank's models carry from step to
// step. The rest is in the manifest's state.
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/detail/loader.h>
#include <coupler/state_dict.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/durable_file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "optim/grad_scaler.h"
#include "optim/optimizer.h"
#include "optim/scheduler.h"
#include "strategy/model_state.h"

namespace coupler::optim {
class OptimizerState;
}

namespace coupler::checkpoint {

// StatePiece: what one rank holds of one tensor of a checkpoint: a range of its elements, so that
// any number of ranks can load it. Plain data.
struct StatePiece {
  std::string name;               // canonical: the same under every backend and on every rank
  std::vector<int64_t> shape;     // of the whole tensor
  int64_t begin = 0, end = 0;     // of its elements, row-major, of those of its division
  at::Tensor values;              // as many elements, in any shape; loading writes to it
  int copies = 1, copy = 0;       // ranks that hold the same piece, and which of them this one is
  std::vector<int> holders = {};  // see strategy::ParameterPart
  sharding::Division division = {};

  static StatePiece whole_of(std::string name, const at::Tensor& tensor);

  int64_t numel() const { return end - begin; }
  // Whether the piece is the whole tensor.
  bool whole() const;
};

// The name of its entry in a file: see checkpoint/names.h.
std::string entry_name(const StatePiece& piece);

// The pieces that this rank saves: those that only it holds, and its share of those that other
// ranks hold, too. Ranks that hold the same pieces compute the same division without communication,
// in whole pieces and about equal bytes. Pure function, any thread.
std::vector<StatePiece> deduplicated(const std::vector<StatePiece>& pieces);

// The names of a training job's objects in a checkpoint: files, tensors, metadata. Shared by its
// writer and its reader; pure functions.

struct TrainingState;

inline constexpr const char* kOptimizerKey = "coupler.optimizer";
inline constexpr const char* kExtraBase = "hooks";  // what hooks add
inline constexpr const char* kTorchGenerator = "torch_cpu";
inline constexpr const char* kDeviceGenerator = "torch_device";

inline std::string random_base(int rank) { return "random_states_" + std::to_string(rank); }
inline std::string object_base(size_t index) {
  return "custom_checkpoint_" + std::to_string(index);
}
// loader: its number in the job.
inline std::string sampler_file(size_t loader) { return numbered("sampler", loader) + kExtension; }
// parts: 0: the stream is not read in parts.
std::string stream_file(size_t loader, int part, int64_t parts);
inline std::string own_buffer_prefix(size_t model) { return numbered("model", model) + "/"; }
inline std::string carried_prefix(size_t model) { return numbered("carried", model) + "/"; }
// The name of a parameter, unique even if several models have one of that name.
inline std::string parameter_name(size_t model, const std::string& name) {
  return model == 0 ? name : numbered("model", model) + "/" + name;
}

// The part of a parameter that this rank's optimizer holds.
struct OptimizerPart {
  std::string name;            // parameter_name
  std::vector<int64_t> shape;  // of the whole parameter
  strategy::ParameterPart part;
};
std::vector<OptimizerPart> parts_of(const TrainingState& job,
                                    const optim::OptimizerState& optimizer);
// The full names of an optimizer's parameters, by group; "" for one of no model.
std::vector<std::vector<std::string>> parameter_names(const TrainingState& job,
                                                      const optim::OptimizerState& optimizer);
StatePiece state_piece(const OptimizerPart& part, const std::string& state, at::Tensor values);

struct TrainingState {
  int rank = 0, world_size = 1;
  // Of the ranks that get different samples, this one's number; and whether it is the first of
  // those with that number, which all get the same.
  int sample_rank = 0;
  bool first_of_samples = true;
  c10::Device device = c10::kCPU;  // this rank's training device
  std::vector<std::shared_ptr<strategy::ModelState>> models;
  std::vector<std::shared_ptr<optim::OptimizerState>> optimizers;
  std::vector<std::shared_ptr<optim::SchedulerCore>> schedulers;
  optim::GradScaler* scaler = nullptr;
  std::vector<std::shared_ptr<detail::LoaderCore>> loaders;
  std::vector<detail::Stateful*> objects;
  bool own_buffers = false;  // buffers differ by rank: training.broadcast_buffers is false
  // By model, the names of tensors that are not saved, or not loaded: what hooks left out, and what
  // a checkpoint that is loaded does not have by its own account (left_out_of). A tied tensor's
  // other names are included. Empty: none of any model.
  std::vector<std::set<std::string>> left_out = {};
  StateDict* extra = nullptr;  // saved by rank 0 unless empty, loaded by every rank; null: none

  bool leaves_out(size_t model, const std::string& name) const {
    return model < left_out.size() && left_out[model].count(name) != 0;
  }
  bool leaves_out_all(size_t model) const;

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
std::string file_name(const std::string& base, int rank, int world_size);

// Writes one rank's part of a checkpoint into a file, directly from the pieces' memory, which must
// be contiguous; device memory is copied one tensor at a time. Returns when the file is on disk.
// Throws Error(kIo) naming the file, and leaves none. [any-thread]
WrittenFile write_pieces(const std::string& path, const std::vector<StatePiece>& pieces,
                         const std::map<std::string, std::string>& metadata);

}  // namespace coupler::checkpoint
