#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <coupler/accelerator.h>
#include <coupler/detail/loader_core.h>
#include <coupler/error.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "comm/communicator.h"
#include "comm/tensor_ops.h"
#include "config/config.h"
#include "log/log.h"
#include "optim/optimizer_state.h"
#include "rendezvous/process_info.h"
#include "rendezvous/store.h"
#include "strategy/strategy.h"
#include "train/current.h"
#include "train/process_setup.h"

namespace coupler {
namespace {

db_reduce to_db_reduce(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return DB_SUM;
    case Reduction::kMean:
      return DB_AVG;
    case Reduction::kMin:
      return DB_MIN;
    case Reduction::kMax:
      return DB_MAX;
    case Reduction::kProduct:
      return DB_PROD;
  }
  return DB_SUM;
}

// A contiguous copy that a collective may overwrite.
at::Tensor copy_to_send(const at::Tensor& tensor) {
  require_dense_host(tensor);
  return tensor.detach().clone(at::MemoryFormat::Contiguous);
}

Config load(ConfigRequest request, const AcceleratorOptions& options) {
  for (const auto& [key, value] : options.values) request.code.emplace_back(key, value);
  return load_config(request);
}

// The plugin of this job. A single process needs no transport: only a wrapper is worth loading
// then.
Plugin choose_plugin(const BackendConfig& backend, const ProcessInfo& process) {
  BackendConfig resolved = backend;
  if (resolved.use == "auto") {
    if (process.world == 1) return Plugin::single();
    resolved.use = resolve_auto(backend, mpi_launch_of(process));
  }
  const Plugin plugin = Plugin::load(resolved);
  const bool wrapper = (plugin.table().capabilities & DB_CAP_NEEDS_BASE) != 0;
  return process.world == 1 && !wrapper ? Plugin::single() : plugin;
}

// Together with its address it tells an optimizer from a later one that lies where it did.
at::Tensor first_parameter(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!group.params().empty()) return group.params()[0];
  }
  return {};
}

}  // namespace

class Accelerator::Impl {
 public:
  explicit Impl(Config loaded) : config(std::move(loaded)), process(detect_process()) {
    if (process.world > 1) set_log_rank(process.rank);
    keep_large_blocks();
    allow_fast_exit();
    limit_threads(process.local_world);
    if (config.sources.count("training.seed") != 0) {
      at::manual_seed(static_cast<uint64_t>(config.training.seed));
    }
    if (process.world > 1) store = join_store(process, config.backend.timeout);
    plugin = choose_plugin(config.backend, process);
    comm = Communicator::create({.plugin = plugin,
                                 .process = process,
                                 .store = store,
                                 .backend = &config.backend,
                                 .name = "world"});
    if (process.world > 1) set_current_communicator(comm.get());
  }
  ~Impl() {
    set_current_communicator(nullptr);
    models.clear();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::shared_ptr<Strategy> find(const void* identity) const {
    for (const auto& model : models) {
      if (model->model().identity == identity) return model;
    }
    return nullptr;
  }

  Strategy& strategy_of(const detail::ModelRef& model) const {
    if (const auto found = find(model.identity)) return *found;
    const std::string name = model.module != nullptr ? model.module->name() : "TorchScript module";
    throw Error(ErrorCode::kUsage, fmt::format("the model '{}' was not prepared", name),
                {.subject = name, .hint = "pass it to accelerator.prepare first"});
  }

  void add(Model model) {
    if (find(model.identity) != nullptr) {
      throw Error(ErrorCode::kUsage, fmt::format("the model '{}' was prepared twice", model.name),
                  {.subject = model.name, .hint = "prepare each model once"});
    }
    if ((process.world > 1 || comm->can_shard()) && gradient_comm == nullptr) {
      gradient_comm = comm->split(0, process.rank, "gradients");
    }
    models.push_back(make_strategy(std::move(model), gradient_comm, config.training));
  }

  Config config;
  ProcessInfo process;
  Plugin plugin = Plugin::single();
  std::shared_ptr<Store> store;
  std::shared_ptr<Communicator> comm;
  std::shared_ptr<Communicator> gradient_comm;  // made with the first model
  std::vector<std::shared_ptr<Strategy>> models;
  std::vector<std::pair<torch::optim::Optimizer*, at::Tensor>> optimizers;  // and first parameter
  std::vector<std::weak_ptr<detail::LoaderCore>> loaders;
  std::vector<Strategy*> scope;  // the models of the accumulate() scope under way
  int64_t micro_steps = 0;       // accumulate() calls since the last synchronised one
  bool sync = true;
};

Accelerator::Accelerator(int& argc, char** argv, const AcceleratorOptions& options) {
  install_terminate_handler();
  impl_ = std::make_unique<Impl>(load(take_config_arguments(argc, argv), options));
}

Accelerator::Accelerator(const AcceleratorOptions& options) {
  install_terminate_handler();
  impl_ = std::make_unique<Impl>(load({}, options));
}

Accelerator::~Accelerator() = default;

int Accelerator::rank() const { return impl_->process.rank; }
int Accelerator::world() const { return impl_->process.world; }
int Accelerator::local_rank() const { return impl_->process.local_rank; }
at::Device Accelerator::device() const { return at::kCPU; }
std::string Accelerator::backend() const { return impl_->plugin.name(); }

void Accelerator::prepare_module(torch::nn::Module& module) { impl_->add(describe(module)); }
void Accelerator::prepare_module(const torch::jit::Module& module) { impl_->add(describe(module)); }

Optimizer Accelerator::prepare_optimizer(torch::optim::Optimizer& optimizer) {
  const at::Tensor first = first_parameter(optimizer);
  if (std::any_of(impl_->optimizers.begin(), impl_->optimizers.end(), [&](const auto& other) {
        return other.first == &optimizer && other.second.is_same(first);
      })) {
    throw Error(ErrorCode::kUsage, "an optimizer was prepared twice",
                {.hint = "prepare each optimizer once"});
  }
  std::vector<Strategy*> models;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto model = std::find_if(impl_->models.begin(), impl_->models.end(),
                                      [&](const auto& known) { return known->has(parameter); });
      if (model != impl_->models.end()) {
        if (std::find(models.begin(), models.end(), model->get()) == models.end()) {
          models.push_back(model->get());
        }
        continue;
      }
      if (!parameter.requires_grad()) continue;
      throw Error(
          ErrorCode::kUsage,
          fmt::format("the optimizer holds a parameter of shape [{}] that belongs to no "
                      "prepared model",
                      fmt::join(parameter.sizes(), ", ")),
          {.hint = "make the optimizer from model->parameters() of a model given to the same "
                   "or an earlier prepare"});
    }
  }
  auto state = std::make_shared<OptimizerState>(optimizer, models,
                                                [impl = impl_.get()] { return !impl->sync; });
  // A model that is divided has other tensors in the optimizer now.
  impl_->optimizers.emplace_back(&optimizer, first_parameter(optimizer));
  return Optimizer(std::move(state));
}

void Accelerator::prepare_loader(std::shared_ptr<detail::LoaderCore> loader) {
  impl_->loaders.push_back(std::move(loader));
}

SyncScope Accelerator::begin_accumulate(const std::vector<detail::ModelRef>& models) {
  Impl& impl = *impl_;
  impl.scope.clear();
  for (const detail::ModelRef& model : models) impl.scope.push_back(&impl.strategy_of(model));
  ++impl.micro_steps;
  const bool last_batch =
      std::any_of(impl.loaders.begin(), impl.loaders.end(), [](const auto& weak) {
        const auto loader = weak.lock();
        return loader != nullptr && loader->at_last_batch();
      });
  impl.sync =
      last_batch || impl.micro_steps % impl.config.training.gradient_accumulation_steps == 0;
  if (impl.sync) impl.micro_steps = 0;
  const bool reduce = impl.sync || impl.config.training.sync_each_batch;
  for (Strategy* model : impl.scope) model->set_sync(reduce);
  return SyncScope([&impl] {
    for (Strategy* model : impl.scope) model->set_sync(true);
    impl.scope.clear();
    impl.sync = true;
  });
}

SyncScope Accelerator::begin_no_sync(const std::vector<detail::ModelRef>& models) {
  std::vector<Strategy*> found;
  for (const detail::ModelRef& model : models) found.push_back(&impl_->strategy_of(model));
  for (Strategy* model : found) model->set_sync(false);
  return SyncScope([found] {
    for (Strategy* model : found) model->set_sync(true);
  });
}

void Accelerator::backward(const at::Tensor& loss) {
  Impl& impl = *impl_;
  // Models that this backward must reach on every rank: those of the scope, or the only one.
  std::vector<Strategy*> expected = impl.scope;
  if (expected.empty() && impl.models.size() == 1) expected.push_back(impl.models[0].get());
  for (Strategy* model : expected) model->begin_backward();
  const int64_t steps = impl.config.training.gradient_accumulation_steps;
  try {
    (steps == 1 ? loss : loss / static_cast<double>(steps)).backward();
  } catch (...) {
    for (const auto& model : impl.models) model->abandon_backward();
    throw;
  }
  for (Strategy* model : expected) model->end_backward();
}

bool Accelerator::sync_gradients() const { return impl_->sync; }

double Accelerator::clip_grad_norm_of(const detail::ModelRef& model, double max_norm) {
  if (!(max_norm > 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("clip_grad_norm: max_norm is {}, it must be above 0", max_norm));
  }
  return impl_->sync ? impl_->strategy_of(model).clip_grad_norm(max_norm) : 0;
}

void Accelerator::clip_grad_value_of(const detail::ModelRef& model, double max_value) {
  if (!(max_value > 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("clip_grad_value: max_value is {}, it must be above 0", max_value));
  }
  if (impl_->sync) impl_->strategy_of(model).clip_grad_value(max_value);
}

at::Tensor Accelerator::gradient(const at::Tensor& parameter) {
  for (const auto& model : impl_->models) {
    if (model->has(parameter)) return model->whole_gradient(parameter);
  }
  throw Error(ErrorCode::kUsage, "gradient: the tensor is no parameter of a prepared model",
              {.hint = "pass a parameter of a model given to prepare"});
}

void Accelerator::for_each_tensor_of(
    const detail::ModelRef& model,
    const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  Strategy& strategy = impl_->strategy_of(model);
  strategy.for_each_parameter(visit);
  for (const auto& [name, buffer] : strategy.model().buffers) visit(name, buffer);
}

at::Tensor Accelerator::gather(const at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  require_dense_host(tensor);
  const at::Tensor input = tensor.detach().contiguous();
  std::vector<int64_t> shape = input.dim() == 0 ? std::vector<int64_t>(1, 1) : input.sizes().vec();
  shape[0] *= world();
  const at::Tensor output = at::empty(shape, input.options());
  impl_->comm->run(all_gather_op(input, output));
  return output;
}

at::Tensor Accelerator::reduce(const at::Tensor& tensor, Reduction reduction) {
  at::NoGradGuard no_grad;
  const at::Tensor result = copy_to_send(tensor);
  impl_->comm->run(all_reduce_op(result, to_db_reduce(reduction)));
  return result;
}

at::Tensor Accelerator::broadcast(const at::Tensor& tensor, int from) {
  at::NoGradGuard no_grad;
  const at::Tensor result = copy_to_send(tensor);
  impl_->comm->run(broadcast_op(result, from));
  return result;
}

void Accelerator::wait_for_everyone() {
  db_op op{};
  op.kind = DB_BARRIER;
  op.dtype = DB_U8;
  op.memory = DB_MEMORY_HOST;
  impl_->comm->run(op);
}

}  // namespace coupler
