#include "accelerator/accelerator.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <coupler/accelerator.h>
#include <coupler/accelerator_options.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <thread>

#include "accelerator/checkpoints.h"
#include "accelerator/memory_limit.h"
#include "accelerator/profile.h"
#include "activations/activation_offload.h"
#include "activations/forward_recorder.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "config/config.h"
#include "config/validate.h"
#include "data/loader.h"
#include "device/device.h"
#include "device/device_memory.h"
#include "device/heap_allocator.h"
#include "dry_run/dry_run.h"
#include "estimate/settings.h"
#include "precision/precision.h"
#include "rendezvous/job_file.h"

namespace coupler {

// Settings that the Accelerator makes once for the whole process. [any-thread], idempotent.

namespace {

constexpr int kTrimThreshold = 1 << 30;

#ifndef COUPLER_SANITIZED
// Ends the process after the program's own destructors and before LibTorch's. The latter only free
// memory of an exiting process and can take longer than a short run (0.08 s of CPU time per rank).
// The loader runs this library's destructors after those of the program, which depends on it, and
// before those of LibTorch, on which it depends. The exit status is no longer available there, so
// an on_exit() handler, which runs earlier, keeps it. COUPLER_FAST_EXIT=0 turns this off.
std::optional<int> exit_status;

[[gnu::destructor]] void exit_fast() {
  if (!exit_status) return;
  std::cout.flush();
  std::cerr.flush();
  std::clog.flush();
  std::fflush(nullptr);
  std::_Exit(*exit_status);
}
#endif

// Lets the process end without LibTorch's destructors (see the definition).
void allow_fast_exit() {
#ifndef COUPLER_SANITIZED
  if (environment_value("COUPLER_FAST_EXIT") == "0") return;
  on_exit([](int status, void*) { exit_status = status; }, nullptr);
#endif
}

// Keeps large blocks in the process instead of returning them to the system after every step
// (glibc's malloc only; a preloaded allocator is left alone). Worth 1.5x on small models.
void keep_large_blocks() {
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(estimate::kMmapThreshold));
  mallopt(M_TRIM_THRESHOLD, kTrimThreshold);
}

// Sets LibTorch's thread count to cores / local_world, at least 1, unless OMP_NUM_THREADS is set.
void limit_threads(int local_world_size) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(std::max(1, cores / std::max(1, local_world_size)));
}

config::Config load(config::ConfigRequest request, const AcceleratorOptions& options) {
  request.code = options.by_key();
  return config::load_config(request);
}

// The plugin of this job. A single process needs no transport, so only a wrapper is loaded then.
plugin::Plugin choose_plugin(const config::BackendConfig& backend,
                             const rendezvous::ProcessInfo& process, c10::Device device) {
  config::BackendConfig resolved = backend;
  if (resolved.use == "auto") {
    if (process.world_size == 1) return plugin::Plugin::single();
    resolved.use = plugin::resolve_auto(backend, rendezvous::mpi_launch_of(process),
                                        !device.is_cuda(), rendezvous::spread_of(process));
  }
  const plugin::Plugin plugin = plugin::Plugin::load(resolved);
  const bool wrapper = plugin.can(DB_CAP_NEEDS_BASE);
  return process.world_size == 1 && !wrapper ? plugin::Plugin::single() : plugin;
}

// The plugin that moves host memory if the job's backend does not.
plugin::Plugin choose_host_side(const config::BackendConfig& backend,
                                const rendezvous::ProcessInfo& process) {
  config::BackendConfig host = backend;
  host.sha256.clear();  // that pins the other plugin
  host.use = plugin::resolve_auto(backend, rendezvous::mpi_launch_of(process), /*on_host=*/true,
                                  rendezvous::spread_of(process));
  return plugin::Plugin::load(host);
}

// Switches off what a dry run cannot do: it is one process, and its parameters have no values.
// Returns the mesh that it stands for, of which the other ranks are made up. prepare_pipeline
// refuses a stage that the pipeline does not have.
Mesh make_dry(dry_run::DryRun& run, config::Config& config,
              const rendezvous::ProcessInfo& process) {
  if (process.world_size > 1) {
    fail_usage(fmt::format("COUPLER_ESTIMATE is set in a job of {} processes", process.world_size),
               "COUPLER_ESTIMATE",
               "a dry run is one process: start the program with `coupler estimate`");
  }
  config.checkpoint = {};
  config.checkpoint.resume = "no";
  config.memory.limit.clear();
  config.memory.offload_optimizer_device = "none";
  config.profile = {};
  config.training.device = "cpu";
  run.set_configuration(config.training.mixed_precision, config.memory.activation_checkpointing);
  detail::set_dataset_scope(
      []() -> std::shared_ptr<void> { return std::make_shared<dry_run::RealTensors>(); });
  const Mesh mesh = groups::mesh_of(config, static_cast<int>(config.launch.processes), 0);
  run.set_mesh(mesh);
  return groups::within_replica(mesh, std::min(run.stage(), mesh.size("pipeline") - 1));
}

// What the mesh and the backend cannot do together, before anything is prepared.
void require_possible(const Mesh& mesh, const comm::Communicator& comm) {
  const int shard = mesh.size("shard"), pipeline = mesh.size("pipeline"),
            expert = mesh.size("expert");
  if (shard > 1 && !comm.can_shard()) {
    fail_config(
        fmt::format("parallel.shard is {}, but the backend '{}' shards no model", shard,
                    comm.backend()),
        "parallel.shard",
        "set backend.use to a backend that shards models (`coupler plugins` lists them), or "
        "use parallel.data for replicas");
  }
  if (pipeline > 1 && comm.can_shard()) {
    fail_config(fmt::format("parallel.pipeline is {}, but the backend '{}' shards models itself; a "
                            "pipeline divides their layers and needs a transport",
                            pipeline, comm.backend()),
                "parallel.pipeline",
                "set backend.use to a transport, or to \"auto\", which chooses one");
  }
  if (expert > 1 && comm.can_shard()) {
    fail_config(fmt::format("parallel.expert is {}, but the backend '{}' shards models itself, "
                            "experts included",
                            expert, comm.backend()),
                "parallel.expert", "set it to 1, or use a backend that does not shard");
  }
  if (expert > 1 && pipeline > 1) {
    fail_config(fmt::format("parallel.expert is {} and parallel.pipeline is {}, but a pipeline's "
                            "stages are not divided over experts",
                            expert, pipeline),
                "parallel.expert", "set one of them to 1");
  }
}

void log_mesh(const Mesh& mesh, const rendezvous::ProcessInfo& process) {
  if (process.rank != 0) return;
  log(LogLevel::kInfo, "train", fmt::format("mesh: {}\n{}", groups::describe(mesh), mesh.text()));
  const int tensor = mesh.size("tensor");
  if (process.local_world_size % tensor == 0) return;
  log(LogLevel::kWarning, "train",
      fmt::format("parallel.tensor is {}, but this machine has {} ranks: some tensor groups span "
                  "machines, whose network is slower",
                  tensor, process.local_world_size));
}

}  // namespace

Accelerator::Impl::Impl(config::Config loaded)
    : config(std::move(loaded)),
      process(rendezvous::detect_process()),
      dry_run(dry_run::DryRun::of_process()) {
  config::throw_first(config::conflicts_in(config));
  const Mesh mesh = dry_run != nullptr ? make_dry(*dry_run, config, process)
                                       : groups::mesh_of(config, process.world_size, process.rank);
  if (process.world_size > 1) set_log_rank(process.rank);
  keep_large_blocks();
  device::use_heap_allocator();
  allow_fast_exit();
  limit_threads(process.local_world_size);
  if (const uint64_t limit = estimate::memory_limit_of(config); limit != 0) {
    enforce_memory_limit(limit, process.rank);
  }
  device = device::choose_device(config.training.device, process);
  device::make_current(device);
  if (config.sources.count("training.seed") != 0) {
    at::manual_seed(static_cast<uint64_t>(config.training.seed));  // seeds every device
  }
  precision::require_precision(config.training, device.type());
  autocast_type = precision::autocast_type(config.training.mixed_precision);
  activations::ActivationOffload::of_process().set_default(config.memory.offload_activations);
  if (process.world_size > 1) store = rendezvous::open_job_store(process, config);
  if (dry_run == nullptr) plugin = choose_plugin(config.backend, process, device);
  comm = comm::Communicator::create(
      {.plugin = plugin,
       .process = process,
       .store = store,
       .backend = &config.backend,
       .name = "world",
       .group =
           groups::is_configured(config) ? groups::name_in_profile(mesh, groups::kWorld) : "world",
       .device = device.is_cpu() ? nullptr : std::make_shared<device::TorchDeviceMemory>(device),
       .host_side = [this] { return choose_host_side(config.backend, process); },
       .settings = {
           {"[parallel]", groups::is_configured(config) ? groups::describe(mesh) : "not set"}}});
  require_possible(mesh, *comm);
  groups = std::make_unique<groups::Groups>(mesh, comm);
  // A dry run has samples of its own, as each rank that they differ on would.
  sample_comm = dry_run != nullptr ? comm : groups->get(groups::kSamples);
  mean_comm = groups->get(groups::kGradients);
  if (groups::is_configured(config) && dry_run == nullptr) log_mesh(mesh, process);
  if (autocast_type == at::kHalf)
    scaler = std::make_unique<optim::GradScaler>(config.training, comm);
  profile = Profile::make(config.profile, process, device.is_cuda(), *comm);
  checkpoints = std::make_unique<Checkpoints>(*this);
}

Accelerator::Impl::~Impl() {
  checkpoints.reset();  // its thread may still write the models' state
  profile.reset();
  activations::ForwardRecorder::of_this_thread().forget_all();
  activations::ActivationOffload::of_process().forget_all();
  activations::ActivationOffload::of_process().set_default(false);
  models.clear();
}

std::shared_ptr<strategy::Strategy> Accelerator::Impl::find(const void* identity) const {
  for (const auto& model : models) {
    if (model->model().identity == identity) return model;
  }
  return nullptr;
}

std::shared_ptr<detail::LoaderCore> Accelerator::Impl::current_loader() const {
  std::shared_ptr<detail::LoaderCore> result;
  for (const auto& weak : loaders) {
    auto loader = weak.lock();
    if (loader == nullptr || !loader->in_loop()) continue;
    if (result == nullptr || loader->loop_number() > result->loop_number()) {
      result = std::move(loader);
    }
  }
  return result;
}

strategy::Strategy& Accelerator::Impl::strategy_of(const detail::ModelRef& model) const {
  if (const auto found = find(model.identity)) return *found;
  const std::string name = model.module != nullptr ? model.module->name() : "TorchScript module";
  fail_usage(fmt::format("the model '{}' was not prepared", name), name,
             "pass it to accelerator.prepare first");
}

namespace {

Accelerator* accelerator_now = nullptr;
const config::Config* config_now = nullptr;
comm::Communicator* communicator_now = nullptr;
const std::shared_ptr<comm::Communicator>* tensor_group_now = nullptr;

}  // namespace

const config::Config* current_config() { return config_now; }
Accelerator* current_accelerator() { return accelerator_now; }
comm::Communicator* current_communicator() { return communicator_now; }
std::shared_ptr<comm::Communicator> current_tensor_group() {
  return tensor_group_now == nullptr ? nullptr : *tensor_group_now;
}

Accelerator::Accelerator(int& argc, char** argv, const AcceleratorOptions& options) {
  install_terminate_handler();
  start(load(config::take_config_arguments(argc, argv), options));
}

Accelerator::Accelerator(const AcceleratorOptions& options) {
  install_terminate_handler();
  start(load({}, options));
}

void Accelerator::start(config::Config config) {
  impl_ = std::make_unique<Impl>(std::move(config));
  const rendezvous::ProcessInfo& process = impl_->process;
  set_place({process.rank, process.world_size, process.local_rank, process.local_world_size});
  accelerator_now = this;
  config_now = &impl_->config;
  communicator_now = impl_->mean_comm->size() > 1 ? impl_->mean_comm.get() : nullptr;
  tensor_group_now = &impl_->tensor_comm;
}

Accelerator::~Accelerator() {
  if (accelerator_now != this) return;
  if (impl_->dry_run == nullptr) {
    impl_->tracking.warn_if_unused(impl_->config.training, impl_->process.rank);
  }
  accelerator_now = nullptr;
  config_now = nullptr;
  communicator_now = nullptr;
  tensor_group_now = nullptr;
}

at::Device Accelerator::device() const { return impl_->device; }
std::string Accelerator::backend() const { return impl_->plugin.name(); }
std::string Accelerator::mixed_precision() const { return impl_->config.training.mixed_precision; }

}  // namespace coupler
