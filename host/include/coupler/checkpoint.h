// For Accelerator's functions that write and read weights and checkpoints (docs/checkpoints.md):
// their options, and CheckpointContents, which hooks of checkpoints change. Used by the training
// thread.
//
//   auto hook = accelerator.register_save_state_pre_hook(
//       [&](coupler::CheckpointContents& contents) { contents.leave_out(teacher); });
#pragma once

#include <c10/core/ScalarType.h>
#include <coupler/detail/object_kinds.h>
#include <coupler/state_dict.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace coupler {

// For Accelerator::save_model, and save_pretrained of a prepared model.
struct SaveModelOptions {
  // The maximum file size; "10GB" is decimal, "10GiB" binary. A larger tensor gets its own file.
  std::string max_shard_size = "10GB";
  // For compatibility with Accelerate: only safetensors is supported, because other formats could
  // carry code; false throws Error(kUnsupported).
  bool safe_serialization = true;
  // Floating-point tensors are converted to it, rounded to the nearest, while they are written;
  // integers and bools stay as they are. Unset: as the optimizer updates them. Error
  // (kInvalidArgument) for a dtype that is not floating-point.
  std::optional<c10::ScalarType> dtype = {};
};

// For Accelerator::load_model.
struct LoadModelOptions {
  // Whether the model and what is loaded must have the same tensors. Otherwise tensors that are
  // missing keep their values, and unexpected ones are ignored. Shapes must always be the same.
  bool strict = true;
  // Maps the name of a loaded tensor to its name in the model; "" skips it. Empty: names stay.
  std::function<std::string(const std::string& name)> rename = {};
};

namespace detail {

// A prepared model, as CheckpointContents knows it.
struct ModelContents {
  const void* identity = nullptr;  // of detail::ModelRef
  std::string type;                // for messages
  std::vector<std::string> tensors;
  std::vector<std::pair<std::string, std::string>> aliases;  // other names of tied tensors
  std::set<std::string> left_out = {};
};

}  // namespace detail

// CheckpointContents: what a checkpoint is about to hold, or what is about to be loaded from one,
// for the hooks of Accelerator::register_save_state_pre_hook and register_load_state_pre_hook,
// which may change it. Every rank must make the same changes. Valid during the hook.
//
// A tensor that is left out when it is saved is not demanded when the checkpoint is loaded, and one
// that is left out at loading need not be in the checkpoint: it keeps its value. Optimizers keep
// and load their state of it.
class CheckpointContents {
 public:
  // Made by the Accelerator.
  CheckpointContents(std::string folder, std::vector<detail::ModelContents> models)
      : folder_(std::move(folder)), models_(std::move(models)) {}

  // The checkpoint's folder. Files that a hook puts there while it is saved become part of it.
  const std::string& folder() const { return folder_; }
  // Implicit, for hooks that only take the folder.
  operator const std::string&() const { return folder_; }  // NOLINT(google-explicit-constructor)

  // The names of a prepared model's parameters and buffers that are saved or loaded, in order of
  // registration. Under any backend these are the model's own; tied tensors are listed once. These
  // functions throw Error(kUsage) if the model is not prepared.
  template <class Model>
  std::vector<std::string> tensors(Model& model) const {
    return tensors_of(detail::reference_to(model));
  }
  // Leaves out a whole model.
  template <class Model>
  void leave_out(Model& model) {
    leave_out_of(detail::reference_to(model), nullptr);
  }
  // Leaves out some of a model's tensors. Throws Error(kInvalidArgument) for a name that the model
  // does not have.
  template <class Model>
  void leave_out(Model& model, const std::vector<std::string>& names) {
    leave_out_of(detail::reference_to(model), &names);
  }

  // Tensors, numbers and strings to be saved in addition, as rank 0 sets them. At loading: those
  // that were saved, on every rank; none if there were none.
  StateDict& extra() { return extra_; }
  const StateDict& extra() const { return extra_; }

  // For the Accelerator.
  const std::vector<detail::ModelContents>& models() const { return models_; }

 private:
  size_t index_of(const detail::ModelRef& model) const;
  std::vector<std::string> tensors_of(const detail::ModelRef& model) const;
  void leave_out_of(const detail::ModelRef& model, const std::vector<std::string>* names);

  std::string folder_;
  std::vector<detail::ModelContents> models_;
  StateDict extra_;
};

}  // namespace coupler
