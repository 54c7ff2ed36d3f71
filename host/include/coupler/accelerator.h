// Accelerator: the one object a training program talks to. It reads the configuration, joins the
// other processes, prepares models, optimizers and data loaders for them, and offers the
// collectives a training loop needs. One per process; used by the thread that trains.
//
//   coupler::Accelerator accelerator(argc, argv);
//   auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/autocast.h>
#include <coupler/data_loader.h>
#include <coupler/optimizer.h>
#include <coupler/scheduler.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace coupler {

// Settings from code. Each is the full key of a TOML setting and wins over the default only: a
// file, the environment and the command line win over it.
//   AcceleratorOptions options;
//   options.set("training.gradient_accumulation_steps", int64_t{4});
struct AcceleratorOptions {
  using Value = std::variant<std::string, int64_t, double, bool>;
  std::vector<std::pair<std::string, Value>> values;
  AcceleratorOptions& set(std::string key, Value value) {
    values.emplace_back(std::move(key), std::move(value));
    return *this;
  }
};

enum class Reduction { kSum, kMean, kMin, kMax, kProduct };

// Returned by accumulate() and no_sync(); while it lives gradients are, or are not, synchronised.
// Must not outlive the Accelerator.
class SyncScope {
 public:
  explicit SyncScope(std::function<void()> at_end) : at_end_(std::move(at_end)) {}
  SyncScope(SyncScope&& other) noexcept : at_end_(std::exchange(other.at_end_, nullptr)) {}
  SyncScope& operator=(SyncScope&&) = delete;
  ~SyncScope() {
    if (at_end_) at_end_();
  }

 private:
  std::function<void()> at_end_;
};

namespace detail {

template <class T>
struct is_shared_module : std::false_type {};
template <class M>
struct is_shared_module<std::shared_ptr<M>> : std::is_base_of<torch::nn::Module, M> {};
template <class T>
struct is_data_loader : std::false_type {};
template <class D>
struct is_data_loader<DataLoader<D>> : std::true_type {};

template <class T>
inline constexpr bool is_module_holder_v =
    std::is_base_of_v<torch::detail::ModuleHolderIndicator, T>;
template <class T>
inline constexpr bool is_script_v = std::is_same_v<T, torch::jit::Module>;
template <class T>
inline constexpr bool is_model_v = is_module_holder_v<T> || is_shared_module<T>::value ||
                                   std::is_base_of_v<torch::nn::Module, T> || is_script_v<T>;

// A model in a call: what tells it from others, and the module itself unless it is TorchScript.
struct ModelRef {
  const void* identity = nullptr;
  const torch::nn::Module* module = nullptr;
};
template <class T>
inline constexpr bool is_optimizer_v = std::is_base_of_v<torch::optim::Optimizer, T>;
template <class T>
inline constexpr bool is_torch_scheduler_v =
    std::is_base_of_v<torch::optim::LRScheduler, T> ||
    std::is_base_of_v<torch::optim::ReduceLROnPlateauScheduler, T>;
template <class T>
inline constexpr bool is_schedule_v =
    std::is_same_v<T, Schedule> || std::is_same_v<T, TorchSchedule>;

}  // namespace detail

class Accelerator {
 public:
  // Takes --config F and -o key=value out of the arguments. Throws Error; an Error nobody catches
  // ends the program with a message and its documented exit code.
  Accelerator(int& argc, char** argv, const AcceleratorOptions& options = {});
  explicit Accelerator(const AcceleratorOptions& options = {});
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // ---- Who and where ----
  int rank() const;
  int world() const;
  int local_rank() const;
  bool is_main_process() const { return rank() == 0; }
  bool is_local_main_process() const { return local_rank() == 0; }
  at::Device device() const;
  // The backend in use: "gloo_cpu"; "single" for one process.
  std::string backend() const;

  // Writes its arguments and a newline to standard output, once per machine.
  template <class... Args>
  void print(const Args&... args) const {
    if (!is_local_main_process()) return;
    std::ostringstream line;
    (line << ... << args);
    line << '\n';
    std::cout << line.str() << std::flush;
  }

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
  // and zero_grad() act, on every gradient_accumulation_steps-th call and at a prepared loader's
  // last batch.
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
  // Backward of loss / gradient_accumulation_steps; gradients are the mean over ranks afterwards.
  void backward(const at::Tensor& loss);
  // Whether the step under way synchronises (always, without accumulation).
  bool sync_gradients() const;

  // Scales the gradients so that their 2-norm over all parameters is at most max_norm; returns the
  // norm from before. Throws Error naming a parameter where the norm is infinite or NaN; with fp16
  // it returns infinity instead where the step will be skipped. Does nothing (and returns 0) while
  // accumulating. Collective.
  template <class Model>
  double clip_grad_norm(Model& model, double max_norm) {
    return clip_grad_norm_of(reference_to(model), max_norm);
  }
  // Clamps every gradient element to [-max_value, max_value]; likewise.
  template <class Model>
  void clip_grad_value(Model& model, double max_value) {
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

  // ---- Collectives; every rank calls them in the same order ----
  // Concatenation over ranks along dimension 0 (scalars become [world]); the same shape everywhere.
  at::Tensor gather(const at::Tensor& tensor);
  at::Tensor reduce(const at::Tensor& tensor, Reduction reduction = Reduction::kSum);
  // The tensor of rank `from`; every rank passes one of that shape and dtype.
  at::Tensor broadcast(const at::Tensor& tensor, int from = 0);
  void wait_for_everyone();

 private:
  class Impl;

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
      object.bind(rank(), world(), device());
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

  void prepare_module(torch::nn::Module& module);
  void prepare_module(const torch::jit::Module& module);
  Optimizer prepare_optimizer(torch::optim::Optimizer& optimizer);
  Scheduler prepare_scheduler(const Schedule& schedule);
  Scheduler prepare_scheduler(const TorchSchedule& schedule);
  void bind_schedulers();
  void prepare_loader(std::shared_ptr<detail::LoaderView> loader);
  SyncScope begin_accumulate(const std::vector<detail::ModelRef>& models);
  SyncScope begin_no_sync(const std::vector<detail::ModelRef>& models);
  double clip_grad_norm_of(const detail::ModelRef& model, double max_norm);
  void clip_grad_value_of(const detail::ModelRef& model, double max_value);
  void for_each_tensor_of(const detail::ModelRef& model,
                          const std::function<void(const std::string&, const at::Tensor&)>& visit);

  std::unique_ptr<Impl> impl_;
};

}  // namespace coupler
