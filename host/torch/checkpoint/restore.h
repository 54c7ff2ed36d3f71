// Restores the objects of a job from a checkpoint, whatever number of ranks and whatever backend
// wrote it. Called by the training thread of every rank, each for its own parts.
#pragma once

#include <coupler/data_loader.h>
#include <coupler/state_dict.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/piece_files.h"
#include "checkpoint/snapshot.h"

namespace coupler::checkpoint {

// PieceReader: reads the tensors of a checkpoint's files into LibTorch tensors, whichever rank
// wrote which part. Used by one thread.
class PieceReader {
 public:
  // The safetensors files among `names`, which the manifest lists. Reads their headers only. Throws
  // Error(kIo) naming the file.
  PieceReader(const std::string& folder, const Manifest& manifest,
              const std::vector<std::string>& names)
      : files_(folder, manifest, names) {}

  bool has(const std::string& tensor) const { return files_.tensors().count(tensor) != 0; }
  // The shape of a tensor that one file holds completely; empty for any other.
  std::vector<int64_t> shape(const std::string& tensor) const {
    const auto found = files_.tensors().find(tensor);
    const bool whole = found != files_.tensors().end() && found->second.parts.size() == 1 &&
                       found->second.parts[0].division.is_whole();
    return whole ? found->second.parts[0].shape : std::vector<int64_t>{};
  }
  // Reads the elements from `begin` on of what a division gives this rank of the tensor, as many as
  // `values` has, directly into it if it is contiguous in host memory. Throws
  // Error(kInvalidArgument) for another dtype, Error(kIo) if no file contains some of the elements
  // or a file is damaged.
  void read(const std::string& tensor, const at::Tensor& values, int64_t begin = 0,
            const sharding::Division& division = {});

  // Calls visit with the name and value of every tensor, in order of names. Each must be complete
  // in one file.
  void read_all(const std::function<void(const std::string&, const at::Tensor&)>& visit);

  // "__metadata__" of each file, in the order of `names`.
  const std::vector<safetensors::Metadata>& metadata() const { return files_.metadata(); }

 private:
  PieceFiles files_;
};

// The numbers of a loader's cursor, without what its sampler and stream saved. Throws
// nlohmann::json::exception.
LoaderCursor cursor_of(const nlohmann::json& saved);

// Throws Error(kInvalidArgument) listing everything in which the checkpoint does not match the
// program: models, tensors that are missing, unexpected or of another shape, optimizers,
// schedulers, loaders, objects. Changes nothing.
void check_fits(const TrainingState& job, const Manifest& manifest, const std::string& folder);

// The tensors that were left out of a model, from its entry in the manifest's state.
std::set<std::string> left_out_of(const nlohmann::json& saved_model);

// What hooks added to the checkpoint; empty if nothing. Throws Error(kIo).
StateDict read_extra(const Manifest& manifest, const std::string& folder);

// Call after check_fits. Throws Error(kIo) naming a damaged file; the state is then neither the old
// one nor the checkpoint's. Collective only if parameters are gathered (parameters_changed, which
// the caller calls for each model).
void restore(const TrainingState& job, const Manifest& manifest, const std::string& folder);

}  // namespace coupler::checkpoint
