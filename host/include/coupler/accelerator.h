// Accelerator: the main object of a training program. It reads the configuration, joins the other
// processes, prepares models, optimizers and data loaders for distributed training, and provides
// the collectives a training loop needs. One per process; used by the training thread.
//
//   coupler::Accelerator accelerator(argc, argv);
//   auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/accelerator_options.h>
#include <coupler/autocast.h>
#include <coupler/checkpoint.h>
#include <coupler/comm_hook.h>
#include <coupler/context_parallel.h>
#include <coupler/data_loader.h>
#include <coupler/detail/object_kinds.h>
#include <coupler/empty_weights.h>
#include <coupler/group.h>
#include <coupler/log_values.h>
#include <coupler/nested.h>
#include <coupler/optimizer.h>
#include <coupler/processes.h>
#include <coupler/tracker.h>
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

// ScopeGuard: returned by Accelerator::accumulate, no_sync, join_uneven_inputs, profile and the
// functions that register hooks, whose effect lasts while it is alive. Must not outlive the
// Accelerator; used by the training thread.
class ScopeGuard {
 public:
  // at_end runs once, when the scope ends; it may be empty.
  explicit ScopeGuard(std::function<void()> at_end) : at_end_(std::move(at_end)) {}
  ScopeGuard(ScopeGuard&& other) noexcept : at_end_(std::exchange(other.at_end_, nullptr)) {}
  ScopeGuard& operator=(ScopeGuard&&) = delete;
  ~ScopeGuard() {
    if (at_end_) at_end_();
  }

 private:
  std::function<void()> at_end_;
};

namespace config {
struct Config;
}
class Checkpoints;
class PipelineParallel;

// For Accelerator::backward, as the arguments of torch.Tensor.backward.
struct BackwardOptions {
  bool retain_graph = false;  // keep the graph for another backward through it
  // Record a graph of the gradients, for derivatives of higher order, and keep both. Gradients that
  // are averaged over ranks, those of prepared models, have none afterwards.
  bool create_graph = false;
  std::vector<at::Tensor> inputs = {};  // the leaves whose gradients are computed; empty: all
};

namespace detail {

struct ObjectCollectives;  // objects.h

}  // namespace detail

class Accelerator : public Processes {
 public:
  // Parses --config F and -o key=value and removes them from the arguments. Throws Error; an
  // uncaught Error ends the program with a message and its documented exit code.
  Accelerator(int& argc, char** argv, const AcceleratorOptions& options = {});
  explicit Accelerator(const AcceleratorOptions& options = {});
  ~Accelerator() override;
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // ---- Process, device and backend (see also Processes) ----
  // The device of prepared models and batches: training.device.
  at::Device device() const;
  // The name of the backend in use; "single" for one process.
  std::string backend() const;
  // training.mixed_precision: "no", "bf16", "fp16", "fp8".
  std::string mixed_precision() const;

  // ---- Mesh and groups (docs/parallelism.md) ----
  // How the ranks are arranged: [parallel]. Otherwise all are along "data".
  const Mesh& mesh() const;
  // This rank's group along a dimension of the mesh, "tensor", or several, "data+shard" (see Mesh).
  // The first call for a group connects its ranks; it is collective over the whole job. Throws
  // Error(kInvalidArgument) if there is no such dimension.
  [[nodiscard]] Group group(const std::string& name, CallSite site = {});
  // Divides all ranks into groups of the program's choice: see Group::split. Collective.
  [[nodiscard]] Group split(int color, int key = 0, CallSite site = {});

  // ---- Prepare ----
  // Prepares any number of objects, in any order, and returns them in that order as a tuple (a
  // single object as itself). A model (module holder, shared_ptr to a module, module, or
  // TorchScript module) keeps its type, and its parameters get rank 0's values. A torch::optim
  // optimizer becomes a coupler::Optimizer. A schedule, or one of torch's schedulers, becomes a
  // coupler::Scheduler bound to its prepared optimizer. A coupler::DataLoader is bound to this
  // rank. Anything else is returned unchanged. Collective.
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
  // Opens the scope of one forward and backward under gradient accumulation. Gradients are
  // synchronized, and step() and zero_grad() take effect, in every gradient_accumulation_steps-th
  // scope of a model and at the last batch of the prepared loader being iterated (unless
  // training.sync_with_dataloader is false). Each model has its own count; models that are passed
  // together once must always be passed together.
  template <class... Models>
  [[nodiscard]] ScopeGuard accumulate(Models&... models) {
    static_assert((detail::is_model_v<std::decay_t<Models>> && ...),
                  "accumulate takes prepared models");
    return begin_accumulate({reference_to(models)...});
  }
  // While the scope is alive, gradients only accumulate on this rank.
  template <class... Models>
  [[nodiscard]] ScopeGuard no_sync(Models&... models) {
    static_assert((detail::is_model_v<std::decay_t<Models>> && ...),
                  "no_sync takes prepared models");
    return begin_no_sync({reference_to(models)...});
  }
  // Makes the model's next backward synchronize gradients even inside a scope that accumulates.
  template <class Model>
  void trigger_sync_in_backward(Model& model) {
    trigger_sync_of(reference_to(model));
  }
  // Runs backward of a mean loss. If it synchronizes, gradients are afterwards the mean over ranks
  // of the mean over the window's batches; a window that ends early is divided by the number of
  // batches it held. Without accumulate(), the loss is divided by gradient_accumulation_steps.
  void backward(const at::Tensor& loss, const BackwardOptions& options = {}, CallSite site = {});
  // Runs backward of a loss that is a sum over `weight` items (tokens, samples). If it
  // synchronizes, gradients are those of the sum over the window and all ranks, divided by the sum
  // of the weights, so every item counts equally however items are distributed over batches and
  // ranks. Weights must be finite and at least 0; if all are 0, gradients are 0. Within a window,
  // either every backward or none has a weight. Adds one small collective per step.
  template <class Number,
            class = std::enable_if_t<std::is_arithmetic_v<Number> && !std::is_same_v<Number, bool>>>
  void backward(const at::Tensor& loss_sum, Number weight, const BackwardOptions& options = {},
                CallSite = {}) {
    backward_sum(loss_sum, static_cast<double>(weight), options);
  }
  // training.gradient_accumulation_steps. A new value (at least 1) applies from the next scope on.
  int64_t gradient_accumulation_steps() const;
  void set_gradient_accumulation_steps(int64_t steps);
  // Whether the current step synchronizes gradients; always true without accumulation.
  bool sync_gradients() const;

  // Scales the gradients so that their norm over all parameters is at most max_norm, and returns
  // the norm before scaling. norm_type: p of the p-norm, above 0; infinity: the largest absolute
  // value. Throws Error naming a parameter if the norm is infinite or NaN; with fp16 it returns
  // infinity instead if the step will be skipped. Does nothing and returns 0 while accumulating.
  // Collective.
  template <class Model,
            class = std::enable_if_t<!std::is_convertible_v<Model&, std::vector<at::Tensor>>>>
  double clip_grad_norm(Model& model, double max_norm, double norm_type = 2, CallSite = {}) {
    return clip_grad_norm_of(reference_to(model), max_norm, norm_type);
  }
  // The same for some parameters of prepared models, whose norm together is at most max_norm. Every
  // rank passes the same ones, those without a gradient, too.
  double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                        double norm_type = 2, CallSite site = {});
  // Clamps every gradient element to [-max_value, max_value]; otherwise like clip_grad_norm.
  template <class Model>
  void clip_grad_value(Model& model, double max_value, CallSite = {}) {
    clip_grad_value_of(reference_to(model), max_value);
  }

  // ---- Communication of gradients (comm_hook.h, docs/less-communication.md) ----
  // While the scope is alive, backward gives each bucket of the model's gradients to the hook
  // instead of averaging it. name appears in errors. The bounds of buckets are then fixed, at
  // training.bucket_cap_mb or 25 MiB. Not called with one process, within LocalSGD and while
  // gradients only accumulate. If it throws, or returns a tensor that does not fit, backward throws
  // on every rank, and the job has to end. The hook's own state is not saved: register that for
  // checkpointing. Throws Error(kUsage) if the model has a hook, Error(kUnsupported) for a pipeline
  // and with communication.local_sgd_steps, Error(kMismatch) if ranks give different names.
  // Collective; the scope ends at the same point on every rank.
  template <class Model>
  [[nodiscard]] ScopeGuard register_comm_hook(Model& model, const std::string& name, CommHook hook,
                                              CallSite = {}) {
    return register_comm_hook_of(reference_to(model), name, std::move(hook));
  }

  // ---- Mixed precision (docs/precision.md) ----
  // While the scope is alive, operations on this thread that can safely do so compute in the type
  // of training.mixed_precision; with "no" the scope does nothing. The body of a loop over a
  // prepared data loader is such a scope unless training.autocast is "explicit". enabled = false
  // computes in full precision inside another scope. backward may run inside or outside the scope.
  // [any-thread], but not concurrently with prepare.
  [[nodiscard]] AutocastScope autocast(bool enabled = true);
  // fp16 scales the loss, so gradients stay scaled until clip_grad_norm, clip_grad_value, an
  // optimizer's step or this function unscales them, once. Call step or zero_grad afterwards,
  // before the next backward. Does nothing without fp16 and while accumulating. Collective.
  void unscale_gradients();
  // Whether an optimizer's last step was skipped because a gradient was infinite or NaN on some
  // rank. Happens with fp16 only; the same on every rank.
  bool optimizer_step_was_skipped() const;
  // The current loss scale of fp16; 1 without fp16.
  double loss_scale() const;

  // Returns the full gradient of a prepared parameter under any backend: the mean over ranks after
  // a synchronized backward, this rank's own if it was only accumulated, undefined if there is
  // none. Under a backend that shards gradients, a parameter's own .grad() is undefined.
  // Collective.
  at::Tensor gradient(const at::Tensor& parameter);

  // Calls visit with the name and full value of each parameter, then of each buffer, in order of
  // registration. Only one full tensor exists at a time, so a model too large for any process can
  // be written out. The tensor is valid until visit returns. Collective; visit is called on every
  // rank.
  template <class Model>
  void for_each_tensor(Model& model,
                       const std::function<void(const std::string&, const at::Tensor&)>& visit) {
    for_each_tensor_of(reference_to(model), visit);
  }

  // The user's module with all its parameters unsharded and readable while the result is alive:
  //   auto whole = accelerator.unwrap_model(net);
  //   whole->fc->weight.norm();
  // Collective. Under a backend that shards parameters, all of them take memory at once.
  template <class Model>
  [[nodiscard]] auto unwrap_model(Model& model) {
    require_prepared(reference_to(model));
    return UnwrappedModel(detail::module_of(model),
                          summon_full_parameters(model, /*writeback=*/false));
  }

  // Releases everything that was prepared, so its memory is freed with the program's own objects.
  // Objects made by prepare, and modules that a backend has sharded, must not be used afterwards.
  void free_memory();

  // ---- Checkpoints (docs/checkpoints.md) ----
  // Adds objects to all later checkpoints, in this order: anything with save(StateDict&) const and
  // load(const StateDict&), and modules that are not prepared (such as a weight average). They are
  // borrowed and must outlive the Accelerator's last checkpoint. Rank 0's objects are saved; every
  // rank loads them.
  template <class... Objects>
  void register_for_checkpointing(Objects&... objects) {
    (register_object(detail::registered(objects)), ...);
  }
  // Saves models, optimizers, schedulers, the loss scale, every rank's random state, the positions
  // of the data loaders and registered objects as the next checkpoint_{n} of `folder` (default:
  // checkpoint.dir, or ./checkpoints if that is not set). Returns its path once it is durable on
  // disk. Allowed only between two optimizer steps. If it fails, every rank throws and older
  // checkpoints are unchanged. Collective.
  std::string save_state(const std::string& folder = "", CallSite site = {});
  // Loads a checkpoint, or the newest valid one in a folder, written by any number of ranks under
  // any backend. If the checkpoint belongs to another program, throws Error(kInvalidArgument)
  // naming every difference and changes nothing. Call it outside of loops. Collective.
  void load_state(const std::string& path = "", CallSite site = {});
  // Loads the checkpoint that checkpoint.resume selects; returns whether one was loaded. Call it
  // after everything is prepared and registered, before the first loop; the remaining epochs start
  // at the loader's next_epoch().
  bool resume(CallSite site = {});
  // If checkpoint.dir is set, saves unsaved progress and waits until it is written. Then ends a
  // running profile (profile.dir) and the trackers, which have TrackerOptions::end_timeout to write
  // queued values. Collective.
  void end_training(CallSite site = {});
  // Waits for a checkpoint that is being written (checkpoint.async). Throws Error if that failed.
  void wait_for_checkpoint();
  // Does what prepared loaders do at the end of each iteration of the outermost loop, for loops
  // over anything else: saves if checkpoint.every is due; after SIGTERM, saves and throws
  // Error(kPreempted), which ends the process with exit code 75. Collective.
  void on_step_end(CallSite site = {});

  // Writes the model's full weights under any backend, without training state, as model.safetensors
  // or, if max_shard_size requires it, as numbered files with model.safetensors.index.json, the
  // layout Python readers expect. Rank 0 writes one tensor at a time, converted if options.dtype is
  // set. Existing files are replaced only after everything is on disk; files left from an older,
  // larger model are removed after that. If it fails, every rank throws. Collective.
  template <class Model>
  void save_model(Model& model, const std::string& folder, const SaveModelOptions& options = {},
                  CallSite = {}) {
    save_model_of(reference_to(model), folder, options);
  }
  // Loads weights into a prepared model under any backend, before or after steps: all copies of
  // them follow (fp32 and 16 bits, parts on other ranks, offloaded). path: a file or folder as for
  // load_checkpoint_in_model, the same for every rank; each reads only its part. Values are
  // converted to the model's dtypes. Optimizers, schedulers and the loss scale are unchanged. If
  // names or shapes do not fit (Error(kInvalidArgument) listing all of them) or a file is damaged
  // (Error(kIo)), every rank throws and the model keeps its weights: everything is checked before
  // the first one changes. Only a disk that fails during the second reading leaves the model partly
  // loaded, which the error says. Collective.
  template <class Model>
  void load_model(Model& model, const std::string& path, const LoadModelOptions& options = {},
                  CallSite = {}) {
    load_model_of(reference_to(model), path, nullptr, options);
  }
  // The same from tensors by name, on any device. Every rank passes the same; Error(kMismatch) if
  // they differ.
  template <class Model>
  void load_model(Model& model, const std::map<std::string, at::Tensor>& state_dict,
                  const LoadModelOptions& options = {}, CallSite = {}) {
    load_model_of(reference_to(model), "the state dict", &state_dict, options);
  }
  // Writes tensors, or a module's parameters and buffers by name, as one safetensors file: once per
  // job, or with on_each_node once per machine (by its local rank 0). Throws on the writing rank if
  // it fails, and keeps the file that was there. coupler::load_state_dict(path) reads it.
  void save(const std::map<std::string, at::Tensor>& tensors, const std::string& path,
            bool on_each_node = false);
  void save(const at::Tensor& tensor, const std::string& path, bool on_each_node = false) {
    save(std::map<std::string, at::Tensor>{{"tensor", tensor}}, path, on_each_node);
  }
  void save(const torch::nn::Module& module, const std::string& path, bool on_each_node = false);
  // The same for numbers and strings, too, which the file's metadata holds.
  void save(const StateDict& state, const std::string& path, bool on_each_node = false);
  // The same for anything with save(StateDict&) const, as register_for_checkpointing takes it.
  template <class Object>
  requires requires(const Object& object, StateDict& state) { object.save(state); }
  void save(const Object& object, const std::string& path, bool on_each_node = false) {
    StateDict state;
    object.save(state);
    save(state, path, on_each_node);
  }

  // ---- Tracking (docs/tracking.md) ----
  // Starts the trackers named by training.log_with for a run of `project` with hyperparameters
  // `config`: on rank 0, or on every rank for trackers that request it. Their files go to a folder
  // named after the project in training.logging_dir. Throws Error if a tracker is unknown or cannot
  // start. Every rank calls it.
  void init_trackers(const std::string& project, LogValues config = {},
                     const TrackerOptions& options = {});
  // Queues values for the trackers and returns; a slow or failing tracker does not delay training.
  // Tensors are read here, which waits for their device. Without a step, the last step plus one is
  // used. Does nothing on ranks without trackers. Not collective.
  void log(LogValues values, std::optional<int64_t> step = std::nullopt);
  // The same for images, tables, and files or folders of the run (coupler/log_values.h,
  // coupler/tracker.h). Trackers that cannot hold them leave them out, with a warning. Without a
  // step, the last one is used. Throw Error(kInvalidArgument) naming what is wrong with one.
  void log_images(const std::vector<LogImage>& images, std::optional<int64_t> step = std::nullopt);
  void log_table(const TrackedTable& table, std::optional<int64_t> step = std::nullopt);
  // name: under which it is kept; empty: the file's own. Do not change it before end_training.
  void log_artifact(const std::string& path, const std::string& name = "",
                    std::optional<int64_t> step = std::nullopt);
  // Returns a started tracker; null on ranks where it does not run. Its own thread uses it, too.
  std::shared_ptr<Tracker> get_tracker(const std::string& name) const;

  // ---- Profiling (docs/profiling.md) ----
  // While the scope is alive, records for this part of the program what `[profile]` records for a
  // whole run; without a schedule, all of it. The end of the scope ends a running round; rank 0
  // then waits until every rank has written its trace, and merges the traces. If profile.dir is
  // set, the configured profile continues as if there were no scope, and a warning is logged.
  // Throws Error(kUsage) inside another such scope. Collective.
  [[nodiscard]] ScopeGuard profile(const ProfileOptions& options = {}, CallSite site = {});

  // While the returned scope is alive, the hook is called on every rank before the files of a
  // checkpoint are written or read. It may change what is saved or loaded, and may call collectives
  // (save_model into the folder, say). If it throws on a rank, the save or load fails on every
  // rank. The hook of a load is called before the checkpoint is compared with the program.
  using CheckpointHook = std::function<void(CheckpointContents& contents)>;
  [[nodiscard]] ScopeGuard register_save_state_pre_hook(CheckpointHook hook);
  [[nodiscard]] ScopeGuard register_load_state_pre_hook(CheckpointHook hook);

  // ---- Long sequences (docs/parallelism.md) ----
  // While the scope is alive, each rank of the context group has its part of these tensors along
  // the given dimension, the sequence: they are changed in place, so list all that run along with
  // it (tokens, targets, positions). scaled_dot_product_attention then attends to the tokens of all
  // ranks: causal, or without a mask. Modules that count positions themselves ask
  // coupler::context_positions. Run backward inside the scope. The end restores the tensors. With
  // parallel.context = 1 it does nothing. Throws Error(kInvalidArgument) for a sequence that does
  // not divide, Error(kUsage) within another such scope. Collective over the group.
  [[nodiscard]] ScopeGuard context_parallel(const std::vector<SequenceTensor>& tensors,
                                            CallSite site = {});

  // ---- Uneven inputs ----
  // Loops started while the scope is alive keep ranks in step when they have different numbers of
  // batches, under every backend. Before every batch the ranks agree whether any rank still has
  // one; a rank that has none repeats its last batch (or sample 0 if it never had one) as a
  // stand-in that does not count. even_batches, if given, overrides that of the loaders meanwhile.
  // Without arguments or with a model (Accelerate's joinable) it applies to every prepared loader;
  // with a loader, to that one. Every rank opens the scope; if a rank has no sample at all, every
  // rank throws Error. Throws Error(kUsage) within a loop or another such scope.
  [[nodiscard]] ScopeGuard join_uneven_inputs(std::optional<bool> even_batches = std::nullopt) {
    return begin_join(nullptr, even_batches);
  }
  template <class Object, class = std::enable_if_t<detail::is_data_loader<Object>::value ||
                                                   detail::is_model_v<Object>>>
  [[nodiscard]] ScopeGuard join_uneven_inputs(Object& object,
                                              std::optional<bool> even_batches = std::nullopt) {
    if constexpr (detail::is_data_loader<Object>::value) {
      return begin_join(object.core(), even_batches);
    } else {
      return begin_join(nullptr, even_batches);
    }
  }

  // Calls coupler::skip_first_batches; a member as in Accelerate.
  template <class Dataset, class CollateFn>
  DataLoader<Dataset, CollateFn> skip_first_batches(DataLoader<Dataset, CollateFn> loader,
                                                    int64_t count) {
    return coupler::skip_first_batches(std::move(loader), count);
  }

  // ---- Collectives; every rank calls them in the same order ----
  // They take a tensor or a nested structure of tensors (nested.h): dense, on the CPU or on this
  // process's device, of any dtype except complex and quantized ones; strided, scalar and empty
  // tensors are allowed. Results are new, on the same device, contiguous and without gradient. If
  // operations, structures, dtypes or shapes differ between ranks, every rank throws
  // Error(kMismatch) naming two ranks and the difference before any data moves. The job can
  // continue after that, and after any other Error about a value. See docs/collectives.md.

  // Concatenates over ranks along dimension 0 (scalars become [world_size]). Every rank passes the
  // same shape.
  at::Tensor gather(const at::Tensor& tensor, CallSite site = {});
  template <class T, class = std::enable_if_t<is_nested_v<T>>>
  T gather(const T& value, CallSite = {}) {
    return detail::with_leaves(value, gather_nested(detail::view_of(value)));
  }

  // Gathers per-sample results of the current batch of the innermost loop, over the ranks that got
  // different samples (every rank, unless [parallel] says otherwise). Over an epoch, every sample
  // of the dataset is returned exactly once for any world size, batch size and remainder. A value
  // has one row (dimension 0) per sample of the batch; rows of repeated samples are dropped, and
  // the others are returned in rank order. Outside of a loop over a prepared loader it acts as
  // gather. Throws Error(kInvalidArgument) for a scalar, or a leaf with another number of rows. A
  // std::vector of anything but tensors requires objects.h to be included.
  template <class T>
  T gather_for_metrics(const T& value, CallSite = {}) {
    if constexpr (is_nested_v<T>) {
      return detail::with_leaves(value, gather_metrics(detail::view_of(value)));
    } else {
      return gather_objects_for_metrics(*this, value);
    }
  }

  // Returns `scale` times the sum (mean, …) over ranks, element by element. For integers, the mean
  // is truncated toward zero, and a scale other than 1 is Error(kUnsupported). For Bool, the sum is
  // "or", and the mean is not supported.
  at::Tensor reduce(const at::Tensor& tensor, ReduceOp reduction = ReduceOp::kSum,
                    double scale = 1.0, CallSite site = {});
  // Reduces every leaf of a structure.
  template <class T, class = std::enable_if_t<is_nested_v<T>>>
  T reduce(const T& value, ReduceOp reduction = ReduceOp::kSum, double scale = 1.0, CallSite = {}) {
    return detail::with_leaves(value, reduce_nested(detail::view_of(value), reduction, scale));
  }

  // Returns the value of rank `from`. Every rank passes the same structure, shapes and dtypes.
  at::Tensor broadcast(const at::Tensor& tensor, int from = 0, CallSite site = {});
  template <class T, class = std::enable_if_t<is_nested_v<T>>>
  T broadcast(const T& value, int from = 0, CallSite = {}) {
    return detail::with_leaves(value, broadcast_nested(detail::view_of(value), from));
  }

  // Pads each tensor in dimension dim (negative: counted from the end) to its largest size on any
  // rank. Fills with pad_index after the data, or before it with pad_first. Other dimensions may
  // differ, too; tensors without that dimension are returned unchanged.
  template <class T, class = std::enable_if_t<is_nested_v<T>>>
  T pad_across_processes(const T& value, int64_t dim = 0, const at::Scalar& pad_index = 0,
                         bool pad_first = false, CallSite = {}) {
    return detail::with_leaves(value,
                               pad_nested(detail::view_of(value), dim, pad_index, pad_first));
  }

  // Returns this rank's part of a value that every rank has; see split_between in nested.h. Not
  // collective.
  template <class T>
  T split_between_processes(const T& value, bool apply_padding = false) const {
    return split_between(value, rank(), world_size(), apply_padding);
  }

  // Any rank may set the trigger, e.g. for early stopping. check_trigger returns on every rank
  // whether any rank did since the last check, and resets it. Only check_trigger is collective.
  void set_trigger();
  bool check_trigger(CallSite site = {});

  void wait_for_everyone(CallSite site = {}) override;
  // Sets LibTorch's random generator of this device to the state of rank 0's.
  void synchronize_random_state();

 private:
  class Impl;
  friend struct detail::ObjectCollectives;
  friend class PipelineParallel;

  template <class Model>
  static detail::ModelRef reference_to(Model& model) {
    return detail::reference_to(model);
  }
  template <class Object>
  void prepare_if_model(Object& object) {
    if constexpr (detail::is_model_v<std::decay_t<Object>>)
      prepare_module(detail::module_of(object));
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
      bind_loader(object);
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
  void register_object(std::unique_ptr<detail::Stateful> object);
  void start(config::Config config);
  void require_prepared(const detail::ModelRef& model) const;
  void prepare_module(torch::nn::Module& module);
  void prepare_module(const torch::jit::Module& module);
  Optimizer prepare_optimizer(torch::optim::Optimizer& optimizer);
  Scheduler prepare_scheduler(const Schedule& schedule);
  Scheduler prepare_scheduler(const TorchSchedule& schedule);
  void bind_schedulers();
  void prepare_loader(std::shared_ptr<detail::LoaderCore> loader);
  // How loaders communicate with the ranks that get other samples; null if there are none.
  std::shared_ptr<detail::LoaderPeers> loader_peers() const;
  // Binds a loader to this rank's place among those that get different samples.
  template <class Loader>
  void bind_loader(Loader& loader) {
    const auto [place, places] = sample_place();
    loader.bind(place, places, device(), loader_peers());
  }
  std::pair<int, int> sample_place() const;
  ScopeGuard begin_join(std::shared_ptr<detail::LoaderCore> only, std::optional<bool> even_batches);
  ScopeGuard begin_accumulate(const std::vector<detail::ModelRef>& models);
  ScopeGuard begin_no_sync(const std::vector<detail::ModelRef>& models);
  void trigger_sync_of(const detail::ModelRef& model);
  ScopeGuard register_comm_hook_of(const detail::ModelRef& model, const std::string& name,
                                   CommHook hook);
  void backward_sum(const at::Tensor& loss_sum, double weight, const BackwardOptions& options);
  void backward_of(const at::Tensor& loss, std::optional<double> weight,
                   const BackwardOptions& options);
  double clip_grad_norm_of(const detail::ModelRef& model, double max_norm, double norm_type);
  void clip_grad_value_of(const detail::ModelRef& model, double max_value);
  void save_model_of(const detail::ModelRef& model, const std::string& folder,
                     const SaveModelOptions& options);
  // state_dict: null: what is at `where`.
  void load_model_of(const detail::ModelRef& model, const std::string& where,
                     const std::map<std::string, at::Tensor>* state_dict,
                     const LoadModelOptions& options);
  void for_each_tensor_of(const detail::ModelRef& model,
                          const std::function<void(const std::string&, const at::Tensor&)>& visit);

  std::vector<at::Tensor> gather_nested(const detail::NestedView& value);
  std::vector<at::Tensor> gather_metrics(const detail::NestedView& value);
  std::vector<at::Tensor> reduce_nested(const detail::NestedView& value, ReduceOp reduction,
                                        double scale);
  std::vector<at::Tensor> broadcast_nested(const detail::NestedView& value, int from);
  std::vector<at::Tensor> pad_nested(const detail::NestedView& value, int64_t dim,
                                     const at::Scalar& pad_index, bool pad_first);

  std::unique_ptr<Impl> impl_;
};

}  // namespace coupler
