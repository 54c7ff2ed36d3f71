// Accelerator: the one object a training program talks to. It reads the configuration, joins the
// other processes, prepares models, optimizers and data loaders for them, and offers the
// collectives a training loop needs. One per process; used by the thread that trains.
//
//   coupler::Accelerator accelerator(argc, argv);
//   auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/accelerator_options.h>
#include <coupler/autocast.h>
#include <coupler/data_loader.h>
#include <coupler/detail/object_kinds.h>
#include <coupler/detail/registered.h>
#include <coupler/log_values.h>
#include <coupler/nested.h>
#include <coupler/optimizer.h>
#include <coupler/processes.h>
#include <coupler/profile_options.h>
#include <coupler/save_model.h>
#include <coupler/scheduler.h>
#include <coupler/split.h>
#include <coupler/summon.h>
#include <coupler/sync_scope.h>
#include <coupler/tracker.h>
#include <coupler/unwrapped_model.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace coupler {

struct Config;
class Checkpoints;
class PipelineParallel;

enum class Reduction { kSum, kMean, kMin, kMax, kProduct };

namespace detail {

struct ObjectTransport;  // objects.h

}  // namespace detail

class Accelerator : public Processes {
 public:
  // Takes --config F and -o key=value out of the arguments. Throws Error; an Error nobody catches
  // ends the program with a message and its documented exit code.
  Accelerator(int& argc, char** argv, const AcceleratorOptions& options = {});
  explicit Accelerator(const AcceleratorOptions& options = {});
  ~Accelerator() override;
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // ---- Who and where (and see Processes) ----
  at::Device device() const;
  // The backend in use: "gloo_cpu"; "single" for one process.
  std::string backend() const;
  // training.mixed_precision: "no", "bf16", "fp16", "fp8".
  std::string mixed_precision() const;

  // ---- Prepare ----
  // Any number of objects in any order; they come back in that order, as a tuple (one alone as
  // itself). A model (module holder, shared_ptr to a module, module, or TorchScript module) comes
  // back with its own type, the parameters made equal to rank 0's; a torch::optim optimizer as
  // coupler::Optimizer; a schedule, or a scheduler of torch's, as coupler::Scheduler bound to its
  // prepared optimizer; a coupler::DataLoader bound to this rank; anything else as it is.
  // Collective.
  template <class... Objects>
  auto prepare(Objects&&... objects) {
    (prepare_if_model(objects), ...);
    std::tuple<decltype(prepare_one(std::forward<Objects>(objects)))...> prepared{
        prepare_one(std::forward<Objects>(objects))...};
    bind_schedulers();
    if constexpr (sizeof...(Objects) == 1) {
      return std::get<0>(std::move(prepared));
    } else {
      return prepared;
    }
  }

  // ---- The step ----
  // One forward and backward inside gradient accumulation: gradients are synchronised, and step()
  // and zero_grad() act, in every gradient_accumulation_steps-th scope of a model and at the last
  // batch of the prepared loader that is iterated (unless training.sync_with_dataloader is false).
  // Each model has its own count: models passed together are always passed together.
  template <class... Models>
  [[nodiscard]] SyncScope accumulate(Models&... models) {
    static_assert((detail::is_model_v<std::decay_t<Models>> && ...),
                  "accumulate takes prepared models");
    return begin_accumulate({reference_to(models)...});
  }
  // Gradients only accumulate on this rank while the scope lives.
  template <class... Models>
  [[nodiscard]] SyncScope no_sync(Models&... models) {
    static_assert((detail::is_model_v<std::decay_t<Models>> && ...),
                  "no_sync takes prepared models");
    return begin_no_sync({reference_to(models)...});
  }
  // Has the next backward of the model synchronise although a scope says that it only accumulates.
  template <class Model>
  void trigger_sync_in_backward(Model& model) {
    trigger_sync_of(reference_to(model));
  }
  // Backward of a mean loss. Where it synchronises, gradients are the mean over ranks afterwards,
  // of the mean over the batches of the window: a window that ends early is divided by what it
  // held. Without accumulate() the loss is divided by gradient_accumulation_steps.
  void backward(const at::Tensor& loss, CallSite site = {});
  // Backward of a loss that is a sum over `weight` things (tokens, samples). Where it synchronises,
  // gradients are those of the sum over the window and over all ranks divided by the sum of the
  // weights, so that every thing counts the same however they fall to batches and ranks. Weights
  // are finite and at least 0; gradients are 0 where all are 0. A window has them in every backward
  // or in none. One small collective more per step.
  void backward(const at::Tensor& loss_sum, double weight, CallSite site = {});
  // training.gradient_accumulation_steps; a new value (at least 1) holds from the next scope on.
  int64_t gradient_accumulation_steps() const;
  void set_gradient_accumulation_steps(int64_t steps);
  // Whether the step under way synchronises (always, without accumulation).
  bool sync_gradients() const;

  // Scales the gradients so that their 2-norm over all parameters is at most max_norm; returns the
  // norm from before. Throws Error naming a parameter where the norm is infinite or NaN; with fp16
  // it returns infinity instead where the step will be skipped. Does nothing (and returns 0) while
  // accumulating. Collective.
  template <class Model>
  double clip_grad_norm(Model& model, double max_norm, CallSite = {}) {
    return clip_grad_norm_of(reference_to(model), max_norm);
  }
  // Clamps every gradient element to [-max_value, max_value]; likewise.
  template <class Model>
  void clip_grad_value(Model& model, double max_value, CallSite = {}) {
    clip_grad_value_of(reference_to(model), max_value);
  }

  // ---- Mixed precision (docs/precision.md) ----
  // While the scope lives, operations on this thread compute in the type of
  // training.mixed_precision where that is safe; with "no" it does nothing. enabled = false
  // computes in full precision inside of another scope. backward may be inside or outside.
  // [any-thread], but not beside prepare.
  [[nodiscard]] AutocastScope autocast(bool enabled = true);
  // fp16 scales the loss, so gradients are scaled until they are looked at: by clip_grad_norm,
  // clip_grad_value, an optimizer's step, or this, each of which unscales once. Step or zero_grad
  // afterwards, before the next backward. Does nothing without fp16 and while accumulating.
  // Collective.
  void unscale_gradients();
  // Whether the last step of an optimizer changed nothing because a gradient was infinite or NaN on
  // some rank. Only with fp16; the same on every rank.
  bool optimizer_step_was_skipped() const;
  // What fp16 multiplies the loss by now; 1 without fp16.
  double loss_scale() const;

  // The gradient of a prepared parameter, whole, whatever the backend: the mean over ranks after a
  // synchronised backward, this rank's own where it was only accumulated; undefined where there is
  // none. Under a backend that divides gradients a parameter's own .grad() is empty. Collective.
  at::Tensor gradient(const at::Tensor& parameter);

  // Calls visit with the name and the whole value of each parameter, then of each buffer, in order
  // of registration, one at a time, so that a model that no process can hold may be written out.
  // The tensor is valid until visit returns. Collective; every rank's visit is called.
  template <class Model>
  void for_each_tensor(Model& model,
                       const std::function<void(const std::string&, const at::Tensor&)>& visit) {
    for_each_tensor_of(reference_to(model), visit);
  }

  // The user's own module with all its parameters whole and readable, as long as the result lives:
  //   auto whole = accelerator.unwrap_model(net);
  //   whole->fc->weight.norm();
  // Collective; all of the model's parameters take memory at once under a backend that divides
  // them.
  template <class Model>
  [[nodiscard]] auto unwrap_model(Model& model) {
    require_prepared(reference_to(model));
    return UnwrappedModel(module_of(model), summon_full_parameters(model, /*writeback=*/false));
  }

  // Forgets what was prepared, so that its memory goes with the program's own objects. Nothing made
  // by prepare, and no module that a backend has divided, may be used any more.
  void free_memory();

  // ---- Checkpoints (docs/checkpoints.md) ----
  // Also saved and loaded from now on, in this order: anything with save(StateDict&) const and
  // load(const StateDict&), and modules that are not prepared (an average of weights). Each
  // outlives the Accelerator's last checkpoint. Rank 0's are saved, every rank loads them.
  template <class... Objects>
  void register_for_checkpointing(Objects&... objects) {
    (register_object(detail::registered(objects)), ...);
  }
  // Saves models, optimizers, schedulers, the loss scale, every rank's random state, the places of
  // the data loaders and registered objects as the next checkpoint_{n} of `folder` (checkpoint.dir;
  // ./checkpoints where that is not set), and returns its path once it cannot be lost any more.
  // Between two optimizer steps only. Where it fails, every rank throws and older checkpoints are
  // as they were. Collective.
  std::string save_state(const std::string& folder = "", CallSite site = {});
  // The opposite, of a checkpoint or of the newest valid one in a folder, written by any number of
  // ranks under any backend. Where the checkpoint is of another program, Error(kInvalidArgument)
  // names every difference and nothing has changed. Outside of loops. Collective.
  void load_state(const std::string& path = "", CallSite site = {});
  // What checkpoint.resume says; whether anything was loaded. To be called once all is prepared and
  // registered, before the first loop; the epochs to go begin with the loader's next_epoch().
  bool resume(CallSite site = {});
  // Where checkpoint.dir is set: saves what is not saved yet, and waits until it is. Then ends a
  // profile under way (profile.dir) and the trackers, which have TrackerOptions::end_timeout to
  // write what waits. Collective.
  void end_training(CallSite site = {});
  // Waits for a checkpoint that is being written (checkpoint.async). Throws why it failed.
  void wait_for_checkpoint();
  // What prepared loaders do at the end of each pass through the body of the outermost loop, for
  // loops over anything else: saves where checkpoint.every says so; after SIGTERM saves and throws
  // Error(kPreempted), which ends the process with 75. Collective.
  void end_of_body(CallSite site = {});

  // Writes the model's weights, whole whatever the backend and without anything of training, as
  // model.safetensors or, where max_shard_size asks for it, as numbered files with
  // model.safetensors.index.json, as Python's readers know them. Rank 0 writes, one tensor at a
  // time; nothing that is in the folder is replaced before all is on the disk, and files of an
  // older, larger model are removed after that. Every rank throws where that fails. Collective.
  template <class Model>
  void save_model(Model& model, const std::string& folder, const SaveModelOptions& options = {},
                  CallSite = {}) {
    save_model_of(reference_to(model), folder, options);
  }
  // Writes tensors, or what a module has by name, as one safetensors file: once a job, or with
  // on_each_node once a machine (by its local rank 0). The rank that writes throws where that
  // fails.
  void save(const std::map<std::string, at::Tensor>& tensors, const std::string& path,
            bool on_each_node = false);
  void save(const at::Tensor& tensor, const std::string& path, bool on_each_node = false) {
    save(std::map<std::string, at::Tensor>{{"tensor", tensor}}, path, on_each_node);
  }
  void save(const torch::nn::Module& module, const std::string& path, bool on_each_node = false);

  // ---- Tracking (docs/tracking.md) ----
  // Starts the trackers that training.log_with names for a run of this project, with its
  // hyper-parameters; on rank 0, but for those that want every rank. Their files are in
  // training.logging_dir, in a folder of the project's name. Throws Error where one is not known or
  // cannot start. Every rank calls it.
  void init_trackers(const std::string& project, LogValues config = {},
                     const TrackerOptions& options = {});
  // Hands values to the trackers and returns: a tracker that is slow, broken or gone is not felt. A
  // tensor is read here, which waits for its device. Without a step it is one more than the last.
  // On ranks without trackers it does nothing. Not collective.
  void log(LogValues values, std::optional<int64_t> step = std::nullopt);
  // One that was started; null on ranks on which it does not run. Its own thread uses it, too.
  std::shared_ptr<Tracker> get_tracker(const std::string& name) const;

  // ---- Profiling (docs/profiling.md) ----
  // While the scope lives, what `[profile]` records of a whole run is recorded of this part of it:
  // without a schedule all of it. With the end of the scope a round under way ends, and rank 0
  // waits until every rank has written its trace and joins them. Where profile.dir is set, the
  // configuration's profile goes on as if there were no scope, and a warning says so. Throws
  // Error(kUsage) within another such scope. Collective.
  [[nodiscard]] SyncScope profile(const ProfileOptions& options = {}, CallSite site = {});

  // Called with the folder of a checkpoint before its files are written (what is put there becomes
  // part of it) or read, on every rank, as long as the result lives.
  using CheckpointHook = std::function<void(const std::string& folder)>;
  [[nodiscard]] SyncScope register_save_state_pre_hook(CheckpointHook hook);
  [[nodiscard]] SyncScope register_load_state_pre_hook(CheckpointHook hook);

  // ---- Uneven inputs ----
  // Loops begun while the scope lives keep the ranks in step where they have different numbers of
  // batches, under every backend: before every batch the ranks agree whether any still has one, and
  // one that has none repeats its last batch (or sample 0, where it never had any) as a stand-in
  // that counts for nothing. even_batches, where given, replaces that of the loaders meanwhile.
  // Without arguments it is about every prepared loader, as it is for a model (Accelerate's
  // joinable); for a loader about that one. Every rank opens the scope; a rank without a single
  // sample is an Error on all. Throws Error(kUsage) within a loop or another such scope.
  [[nodiscard]] SyncScope join_uneven_inputs(std::optional<bool> even_batches = std::nullopt) {
    return begin_join(nullptr, even_batches);
  }
  template <class Object, class = std::enable_if_t<detail::is_data_loader<Object>::value ||
                                                   detail::is_model_v<Object>>>
  [[nodiscard]] SyncScope join_uneven_inputs(Object& object,
                                             std::optional<bool> even_batches = std::nullopt) {
    if constexpr (detail::is_data_loader<Object>::value) {
      return begin_join(object.core(), even_batches);
    } else {
      return begin_join(nullptr, even_batches);
    }
  }

  // coupler::skip_first_batches, under Accelerate's name.
  template <class Dataset>
  DataLoader<Dataset> skip_first_batches(DataLoader<Dataset> loader, int64_t count) {
    return coupler::skip_first_batches(std::move(loader), count);
  }

  // ---- Collectives; every rank calls them in the same order ----
  // Of a tensor or a nested structure of tensors (nested.h): dense, in host memory, any type but
  // complex and quantised ones, also strided, scalar or empty ones. Results are new, contiguous and
  // without gradient. Where operations, structures, dtypes or shapes differ between ranks, every
  // rank gets Error(kMismatch) naming two of them and the place, before anything moves; after that
  // and any other Error about a value the job can go on. docs/collectives.md.

  // Concatenation over ranks along dimension 0 (scalars become [world]); the same shape everywhere.
  at::Tensor gather(const at::Tensor& tensor, CallSite site = {});
  template <class T, class = std::enable_if_t<is_nested_v<T>>>
  T gather(const T& value, CallSite = {}) {
    return detail::with_leaves(value, gather_nested(detail::view_of(value)));
  }

  // Of what was computed for each sample of the batch of the innermost loop under way: over an
  // epoch every sample of the dataset once, whatever world, batch size and remainder. A value
  // has a row (dimension 0) for each sample of the batch; those that are no repetition are taken,
  // in the order of ranks. Outside of a loop over a prepared loader it is gather.
  // Error(kInvalidArgument) for a scalar, or a leaf with another number of rows. A std::vector of
  // anything but tensors goes through objects.h, to be included then.
  template <class T>
  T gather_for_metrics(const T& value, CallSite = {}) {
    if constexpr (is_nested_v<T>) {
      return detail::with_leaves(value, gather_metrics(detail::view_of(value)));
    } else {
      return gather_objects_for_metrics(*this, value);
    }
  }

  // `scale` times the sum (mean, …) over ranks, element by element. Integers: the mean is truncated
  // toward zero, a scale other than 1 is Error(kUnsupported); of Bool the sum is "or", and there is
  // no mean.
  at::Tensor reduce(const at::Tensor& tensor, Reduction reduction = Reduction::kSum,
                    double scale = 1.0, CallSite site = {});
  template <class T, class = std::enable_if_t<is_nested_v<T>>>
  T reduce(const T& value, Reduction reduction = Reduction::kSum, double scale = 1.0,
           CallSite = {}) {
    return detail::with_leaves(value, reduce_nested(detail::view_of(value), reduction, scale));
  }

  // The value of rank `from`; every rank passes one of the same structure, shapes and dtypes.
  at::Tensor broadcast(const at::Tensor& tensor, int from = 0, CallSite site = {});
  template <class T, class = std::enable_if_t<is_nested_v<T>>>
  T broadcast(const T& value, int from = 0, CallSite = {}) {
    return detail::with_leaves(value, broadcast_nested(detail::view_of(value), from));
  }

  // Each tensor made as long in dimension dim (negative: from the back) as it is on the rank where
  // it is longest, filled up with pad_index behind (or before) what is there. Other dimensions may
  // differ too; tensors that have no such dimension stay as they are.
  template <class T, class = std::enable_if_t<is_nested_v<T>>>
  T pad_across_processes(const T& value, int64_t dim = 0, const at::Scalar& pad_index = 0,
                         bool pad_first = false, CallSite = {}) {
    return detail::with_leaves(value,
                               pad_nested(detail::view_of(value), dim, pad_index, pad_first));
  }

  // This rank's part of what every rank has; see split.h. Not collective.
  template <class T>
  T split_between_processes(const T& value, bool apply_padding = false) const {
    return split_between(value, rank(), world(), apply_padding);
  }

  // Any rank sets the trigger, e.g. to end early; check_trigger says on every rank whether one did
  // since the last check, and resets it. Only check_trigger is collective.
  void set_trigger();
  bool check_trigger(CallSite site = {});

  void wait_for_everyone(CallSite site = {}) override;
  // Gives LibTorch's generator of this device the state that rank 0's has.
  void synchronize_random_state();

 private:
  class Impl;
  friend struct detail::ObjectTransport;
  friend class PipelineParallel;

  // The module in a holder or pointer; a TorchScript module as it is.
  template <class Model>
  static auto& module_of(Model& model) {
    using Type = std::decay_t<Model>;
    if constexpr (std::is_base_of_v<torch::nn::Module, Type> || detail::is_script_v<Type>) {
      return model;
    } else {
      return *model;
    }
  }
  template <class Model>
  static detail::ModelRef reference_to(Model& model) {
    if constexpr (detail::is_script_v<std::decay_t<Model>>) {
      return {model._ivalue().get(), nullptr};
    } else {
      const torch::nn::Module& module = module_of(model);
      return {&module, &module};
    }
  }
  template <class Object>
  void prepare_if_model(Object& object) {
    if constexpr (detail::is_model_v<std::decay_t<Object>>) prepare_module(module_of(object));
  }
  template <class Object>
  decltype(auto) prepare_one(Object&& object) {
    using Type = std::decay_t<Object>;
    if constexpr (detail::is_optimizer_v<Type>) {
      static_assert(std::is_lvalue_reference_v<Object>,
                    "the optimizer must outlive what prepare makes of it: pass a variable");
      return prepare_optimizer(object);
    } else if constexpr (detail::is_torch_scheduler_v<Type>) {
      static_assert(std::is_lvalue_reference_v<Object>,
                    "the scheduler must outlive what prepare makes of it: pass a variable");
      return prepare_scheduler(TorchSchedule(object));
    } else if constexpr (detail::is_schedule_v<Type>) {
      return prepare_scheduler(object);
    } else if constexpr (detail::is_data_loader<Type>::value) {
      object.bind(rank(), world(), device(), loader_peers());
      prepare_loader(object.core());
      return Type(object);
    } else if constexpr (detail::is_module_holder_v<Type> ||
                         detail::is_shared_module<Type>::value || detail::is_script_v<Type>) {
      return Type(object);
    } else if constexpr (std::is_lvalue_reference_v<Object>) {
      return (object);  // the object itself, by reference
    } else {
      return Type(std::forward<Object>(object));
    }
  }

  friend class Checkpoints;
  friend class GradientState;
  friend class LocalSGD;
  void register_object(std::unique_ptr<detail::Registered> object);
  void start(Config config);
  void require_prepared(const detail::ModelRef& model) const;
  void prepare_module(torch::nn::Module& module);
  void prepare_module(const torch::jit::Module& module);
  Optimizer prepare_optimizer(torch::optim::Optimizer& optimizer);
  Scheduler prepare_scheduler(const Schedule& schedule);
  Scheduler prepare_scheduler(const TorchSchedule& schedule);
  void bind_schedulers();
  void prepare_loader(std::shared_ptr<detail::LoaderView> loader);
  // What loaders ask of the other ranks; null where there are none.
  std::shared_ptr<detail::LoaderPeers> loader_peers() const;
  SyncScope begin_join(std::shared_ptr<detail::LoaderView> only, std::optional<bool> even_batches);
  SyncScope begin_accumulate(const std::vector<detail::ModelRef>& models);
  SyncScope begin_no_sync(const std::vector<detail::ModelRef>& models);
  void trigger_sync_of(const detail::ModelRef& model);
  void backward_of(const at::Tensor& loss, std::optional<double> weight);
  double clip_grad_norm_of(const detail::ModelRef& model, double max_norm);
  void clip_grad_value_of(const detail::ModelRef& model, double max_value);
  void save_model_of(const detail::ModelRef& model, const std::string& folder,
                     const SaveModelOptions& options);
  void for_each_tensor_of(const detail::ModelRef& model,
                          const std::function<void(const std::string&, const at::Tensor&)>& visit);

  std::vector<at::Tensor> gather_nested(const detail::NestedView& value);
  std::vector<at::Tensor> gather_metrics(const detail::NestedView& value);
  std::vector<at::Tensor> reduce_nested(const detail::NestedView& value, Reduction reduction,
                                        double scale);
  std::vector<at::Tensor> broadcast_nested(const detail::NestedView& value, int from);
  std::vector<at::Tensor> pad_nested(const detail::NestedView& value, int64_t dim,
                                     const at::Scalar& pad_index, bool pad_first);

  std::unique_ptr<Impl> impl_;
};

}  // namespace coupler
