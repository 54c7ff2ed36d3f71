// How the Accelerator prepares models, optimizers and data loaders.
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "accelerator/accelerator.h"
#include "accelerator/checkpoints.h"
#include "accelerator/consistency_check.h"
#include "accelerator/memory_limit.h"
#include "accelerator/profile.h"
#include "activations/activation_offload.h"
#include "activations/forward_recorder.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/units.h"
#include "data/loader.h"
#include "device/device.h"
#include "dry_run/dry_run.h"
#include "expert_parallel/divide_experts.h"
#include "optim/optimizer.h"
#include "optim/scheduler.h"
#include "precision/precision.h"
#include "residency/buffer_pool.h"
#include "residency/parameter_hooks.h"
#include "tensor_parallel/divide.h"
#include "tensor_parallel/module_plan.h"
#include "tensors/autocast_state.h"
#include "tensors/tensor_ops.h"

namespace coupler {
namespace {

// Together with its address, distinguishes an optimizer from a later one at the same address.
at::Tensor first_parameter(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!group.params().empty()) return group.params()[0];
  }
  return {};
}

// For an error message; called before the model is moved away.
std::string describe_size(const strategy::Model& model) {
  size_t bytes = 0;
  if (model.parameters.empty()) return fmt::format("'{}'", model.name);
  const strategy::ModelParameter* largest = &model.parameters.front();
  for (const strategy::ModelParameter& parameter : model.parameters) {
    bytes += parameter.tensor.nbytes();
    if (parameter.tensor.nbytes() > largest->tensor.nbytes()) largest = &parameter;
  }
  return fmt::format("'{}' ({}, the largest parameter '{}' of {})", model.name,
                     format_byte_size(bytes), largest->name,
                     format_byte_size(largest->tensor.nbytes()));
}

// Pipelines are divided by a call of their own: here, ranks would repeat the same work.
void require_no_stages(const Mesh& mesh, const std::string& model) {
  const int pipeline = mesh.size("pipeline");
  if (pipeline == 1) return;
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("parallel.pipeline is {}, but prepare does not divide the model '{}' into "
                  "stages",
                  pipeline, model),
      {.subject = "parallel.pipeline",
       .hint = "pass the model to prepare_pipeline, or set parallel.pipeline to 1"});
}

}  // namespace

void Accelerator::Impl::add(strategy::Model model,
                            const std::vector<sharding::PlannedLayers>& own_plan,
                            const expert_parallel::Layers& experts) {
  if (find(model.identity) != nullptr) {
    fail_usage(fmt::format("the model '{}' was prepared twice", model.name), model.name,
               "prepare each model once");
  }
  strategy::set_fixed_aside(model);
  require_no_stages(groups->mesh(), model.name);
  if (dry_run != nullptr) dry_run->make_fake(model);
  divide_layers(model, own_plan);
  divide_experts(model, experts);
  if ((process.world_size > 1 || comm->can_shard()) && gradient_comm == nullptr) {
    gradient_comm = groups->make(groups::kGradients, "gradients");
  }
  if (dry_run != nullptr) dry_run->take(model);
  check_memory(&model, 0);
  const std::string size = describe_size(model);
  try {
    models.push_back(strategy::make_strategy(std::move(model), gradient_comm, config.training,
                                             config.memory, config.communication, shard_group()));
  } catch (const c10::OutOfMemoryError& cause) {
    device::throw_out_of_memory(cause, "the model " + size);
  }
  if (dry_run != nullptr) dry_run->watch(models.back()->model());
  residency::restore_hooks();
  measure_uncounted_memory();
  if (!config.memory.activation_checkpointing.empty()) {
    activations::ForwardRecorder::of_this_thread().watch(models.back()->model(),
                                                         config.memory.activation_checkpointing);
  }
  activations::ActivationOffload& offload = activations::ActivationOffload::of_process();
  offload.leave_in_place(models.back()->model());
  if (offload.is_default() && device.is_cpu()) offload.log_nothing_moves();
  if (scaler != nullptr) scaler->add(models.back());
  if (process.rank == 0 && log_enabled(LogLevel::kInfo, "train")) {
    coupler::log(LogLevel::kInfo, "train",
                 precision::describe_types(models.back()->model().name,
                                           models.back()->description().types, config.training));
  }
}

strategy::ShardGroup Accelerator::Impl::shard_group() {
  const Mesh& mesh = groups->mesh();
  if (mesh.size("shard") == 1) return {};
  constexpr groups::Dimensions kReplicas = groups::kGradients & ~groups::kShard;
  return {.comm = groups->get(groups::kShard),
          .replica = groups::rank_in_group(mesh, kReplicas),
          .copies_group = groups::name_in_profile(mesh, kReplicas)};
}

void Accelerator::Impl::check_memory(const strategy::Model* coming, double optimizer_factor) {
  if (config.memory.limit.empty()) return;
  if (coming != nullptr) {
    estimate::LoggedModel model = dry_run::describe_for_estimate(*coming);
    model.first_parameter = memory_log.parameter_count();
    memory_log.models.push_back(std::move(model));
    memory_log.base_bytes = resident_bytes();
    for (const estimate::LoggedParameter& p : memory_log.models.back().parameters) {
      // Allocated before the limit was installed; preparing replaces them.
      if (p.in_memory) memory_log.base_bytes -= std::min(memory_log.base_bytes, p.bytes());
    }
  }
  memory_log.optimizer_factor = std::max(memory_log.optimizer_factor, optimizer_factor);
  const estimate::SharingRanks ranks = estimate::sharing_ranks(groups->mesh());
  require_fit(memory_log, config, process.rank, ranks, comm->can_shard());
  residency::MemoryBudget::of_process().expect(
      known_parts(memory_log, ranks.sharding > 1 ? ranks.sharding : ranks.averaging,
                  comm->can_shard()),
      "a smaller batch, memory.activation_checkpointing, training.mixed_precision = \"bf16\", or a "
      "backend that shards or offloads more: `coupler config recommend` finds what fits");
}

void Accelerator::prepare_module(torch::nn::Module& module) {
  impl_->add(strategy::describe(module, impl_->device),
             tensor_parallel::plan_of(module, mesh().size("tensor")),
             expert_parallel::layers_of(module));
}
void Accelerator::prepare_module(const torch::jit::Module& module) {
  if (mesh().size("tensor") > 1) tensor_parallel::run_scripts_as_written();
  impl_->add(strategy::describe(module, impl_->device), {}, {});
}

Optimizer Accelerator::prepare_optimizer(torch::optim::Optimizer& optimizer) {
  const at::Tensor first = first_parameter(optimizer);
  if (std::any_of(impl_->optimizers.begin(), impl_->optimizers.end(), [&](const auto& other) {
        return !other.state.expired() && other.optimizer == &optimizer &&
               other.first_parameter.is_same(first);
      })) {
    fail_usage("an optimizer was prepared twice", "", "prepare each optimizer once");
  }
  // Shared with the rules: parameters of further models may be added later.
  const auto own_models = std::make_shared<std::vector<strategy::Strategy*>>();
  std::vector<strategy::Strategy*>& models = *own_models;
  const auto model_of = [impl = impl_.get(),
                         own_models](const at::Tensor& parameter) -> strategy::ModelState* {
    const auto model = std::find_if(impl->models.begin(), impl->models.end(),
                                    [&](const auto& known) { return known->has(parameter); });
    if (model == impl->models.end()) return nullptr;
    if (std::find(own_models->begin(), own_models->end(), model->get()) == own_models->end()) {
      own_models->push_back(model->get());
    }
    return model->get();
  };
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (model_of(parameter) != nullptr || !parameter.requires_grad()) continue;
      fail_usage(fmt::format("the optimizer holds a parameter of shape [{}] that belongs to no "
                             "prepared model",
                             fmt::join(parameter.sizes(), ", ")),
                 "",
                 "make the optimizer from model->parameters() of a model given to the same "
                 "or an earlier prepare");
    }
  }
  impl_->check_memory(nullptr, state_factor(optimizer));
  const bool in_backward = impl_->config.training.optimizer_in_backward;
  optim::StepRules rules{.loop = &impl_->accumulation.loop(),
                         .scaler = impl_->scaler.get(),
                         .in_backward = in_backward};
  rules.model_of = model_of;
  if (impl_->autocast_type) {
    rules.after_update = precision::drop_cast_copies;
    rules.computing_scope = tensors::outside_autocast;
  }
  if (world_size() > 1) {
    rules.mean_over_ranks = [comm = impl_->comm](double value) {
      return tensors::all_reduce_number(*comm, value, DB_AVG);
    };
    rules.averages_gradients = [own_models] {
      return std::all_of(own_models->begin(), own_models->end(),
                         [](auto* model) { return model->gradient_sync().averages(); });
    };
  }
  if (dry_run::DryRun* const run = impl_->dry_run) {
    rules.after_update = [run, inner = rules.after_update, &optimizer] {
      if (inner) inner();
      run->stepped(&optimizer);
    };
  }
  std::shared_ptr<optim::OptimizerState> state;
  try {
    state = std::make_shared<optim::OptimizerState>(
        optimizer, std::vector<strategy::ModelState*>(models.begin(), models.end()),
        std::move(rules));
  } catch (const c10::OutOfMemoryError& cause) {
    device::throw_out_of_memory(cause, "the optimizer's state");
  }
  if (in_backward) {
    for (strategy::Strategy* model : models) model->gradient_sync().add_consumer(state);
  }
  if (impl_->dry_run != nullptr) {
    const std::string description = state->description();
    impl_->dry_run->add_optimizer(&optimizer, description, description.rfind("fused ", 0) == 0);
  }
  std::erase_if(impl_->optimizers, [](const auto& other) { return other.state.expired(); });
  // If the model is sharded, the optimizer holds different tensors now.
  impl_->optimizers.push_back({&optimizer, first_parameter(optimizer), state});
  return Optimizer(std::move(state));
}

void Accelerator::require_prepared(const detail::ModelRef& model) const {
  impl_->strategy_of(model);
}

void Accelerator::free_memory() {
  impl_->accumulation.clear();
  impl_->optimizers.clear();
  impl_->unbound_schedulers.clear();
  impl_->schedulers.clear();
  impl_->models.clear();
  impl_->loaders.clear();
  activations::ForwardRecorder::of_this_thread().forget_all();
  activations::ActivationOffload::of_process().forget_all();
}

Scheduler Accelerator::prepare_scheduler(const Schedule& schedule) {
  return impl_->add(optim::RateDriver::of(schedule));
}
Scheduler Accelerator::prepare_scheduler(const TorchSchedule& schedule) {
  return impl_->add(optim::RateDriver::of(schedule));
}

Scheduler Accelerator::Impl::add(std::unique_ptr<optim::RateDriver> driver) {
  auto core = std::make_shared<optim::SchedulerCore>(std::move(driver), sample_comm);
  unbound_schedulers.push_back(core);
  return Scheduler(std::move(core));
}

void Accelerator::bind_schedulers() {
  const auto unbound = std::exchange(impl_->unbound_schedulers, {});
  std::vector<std::shared_ptr<optim::OptimizerState>> optimizers;
  for (const auto& prepared : impl_->optimizers) {
    if (auto state = prepared.state.lock()) optimizers.push_back(std::move(state));
  }
  for (const auto& weak : unbound) {
    // Expired if the prepare that it was passed to threw.
    if (const auto core = weak.lock()) core->bind(optimizers);
  }
  std::erase_if(impl_->schedulers, [](const auto& other) { return other.expired(); });
  impl_->schedulers.insert(impl_->schedulers.end(), unbound.begin(), unbound.end());
}

// Ranks that differ only in the dimensions along which samples are the same. What a loader is made
// of is compared when it is prepared, and what it reads at its first batch.
void Accelerator::Impl::require_same_samples(detail::LoaderCore& loader) {
  constexpr groups::Dimensions kAlike = groups::kWorld & ~groups::kSamples;
  if (dry_run != nullptr || groups::group_size(groups->mesh(), kAlike) == 1) return;
  const auto alike = groups->get(kAlike);
  const std::string name = fmt::format("data loader {}", loaders.size());
  const LoaderCursor it = loader.state();
  alike->verify(
      {{fmt::format("the number of samples of {}", name), fmt::to_string(it.dataset_samples)},
       {fmt::format("the seed of {}", name), fmt::to_string(it.seed)},
       {fmt::format("the next epoch of {}", name), fmt::to_string(it.epoch)}});
  loader.set_on_first_batch([alike, name](const std::vector<at::Tensor>& batch) {
    const auto hashes =
        check_consistency(*alike, {.operation = fmt::format("the first batch of {}", name),
                                   .number = detail::hash_of_values(batch)});
    const auto other = std::find_if(hashes.begin(), hashes.end(),
                                    [&](int64_t hash) { return hash != hashes.front(); });
    if (other == hashes.end()) return;
    const std::vector<int>& ranks = alike->world_ranks();
    const int rank = ranks[static_cast<size_t>(other - hashes.begin())];
    throw Error(
        ErrorCode::kMismatch,
        fmt::format("the first batch of {} has other values on rank {} than on rank {}, but "
                    "ranks of one replica of a model need the same samples",
                    name, rank, ranks.front()),
        {.rank = rank,
         .subject = name,
         .hint = "give every process the same dataset, and let what it draws at random "
                 "depend on the sample, not on the rank"});
  });
}

void Accelerator::prepare_loader(std::shared_ptr<detail::LoaderCore> loader) {
  // Loaders that are recreated for every epoch must not accumulate.
  std::erase_if(impl_->loaders, [](const auto& other) { return other.expired(); });
  // A loader may outlive the Accelerator.
  const std::weak_ptr<void> alive = impl_->alive;
  loader->set_on_step_end([impl = impl_.get(), alive] {
    if (alive.expired()) return;
    if (impl->profile != nullptr) impl->profile->step();
    impl->checkpoints->on_step_end();
  });
  detail::LoaderCore::MakeScope body;
  if (impl_->autocast_type && impl_->config.training.autocast == "auto") {
    body = [impl = impl_.get(), alive]() -> std::shared_ptr<void> {
      if (alive.expired()) return nullptr;
      impl->autocast_used = true;
      return precision::loop_scope(*impl->autocast_settings(true));
    };
  }
  impl_->require_same_samples(*loader);
  // The body of an outer loop may be a scope, too.
  loader->set_scopes(body, body ? tensors::outside_autocast : nullptr);
  impl_->loaders.push_back(std::move(loader));
}

}  // namespace coupler
