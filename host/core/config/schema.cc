#include "config/schema.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

namespace coupler {
namespace {

// Access to a key's field: the field's own type selects the SettingValue alternative.
template <auto Group, auto Field>
void set_field(Config& config, SettingValue value) {
  auto& field = (config.*Group).*Field;
  field = std::get<std::decay_t<decltype(field)>>(std::move(value));
}

template <auto Group, auto Field>
SettingValue get_field(const Config& config) {
  return (config.*Group).*Field;
}

template <auto Group, auto Field>
SchemaKey key(std::string_view name, ValueType type, std::string_view constraint,
              bool (*accepts)(const SettingValue&), std::string_view doc) {
  return {name, type, constraint, doc, accepts, set_field<Group, Field>, get_field<Group, Field>};
}

template <int64_t Least>
bool at_least(const SettingValue& value) {
  return std::get<int64_t>(value) >= Least;
}

bool finite_and_not_negative(const SettingValue& value) {
  const double number = std::get<double>(value);
  return std::isfinite(number) && number >= 0;
}

bool is_finite_and_above_0(const SettingValue& value) {
  const double number = std::get<double>(value);
  return std::isfinite(number) && number > 0;
}

bool is_finite_and_above_1(const SettingValue& value) {
  const double number = std::get<double>(value);
  return std::isfinite(number) && number > 1;
}

bool is_between_0_and_1(const SettingValue& value) {
  const double number = std::get<double>(value);
  return number > 0 && number < 1;
}

bool is_precision(const SettingValue& value) {
  const auto& text = std::get<std::string>(value);
  return text == "no" || text == "bf16" || text == "fp16" || text == "fp8";
}

bool is_offload_device(const SettingValue& value) {
  const auto& text = std::get<std::string>(value);
  return text == "none" || text == "cpu" || text == "nvme";
}

bool is_gradient_compression(const SettingValue& value) {
  const auto& text = std::get<std::string>(value);
  return text == "none" || text == "bf16" || text == "fp16" || text == "int8" || text == "powersgd";
}

bool is_at_least_0_and_below_1(const SettingValue& value) {
  const double number = std::get<double>(value);
  return number >= 0 && number < 1;
}

bool is_fp8_format(const SettingValue& value) {
  const auto& text = std::get<std::string>(value);
  return text == "hybrid" || text == "e4m3";
}

bool is_not_negative_duration(const SettingValue& value) {
  return std::get<std::chrono::nanoseconds>(value) >= std::chrono::nanoseconds(0);
}

bool is_positive_duration(const SettingValue& value) {
  return std::get<std::chrono::nanoseconds>(value).count() > 0;
}

bool is_not_empty(const SettingValue& value) { return !std::get<std::string>(value).empty(); }

// The unit is checked when the size is used.
bool is_empty_or_begins_with_digit(const SettingValue& value) {
  const auto& text = std::get<std::string>(value);
  return text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) != 0;
}

bool is_sha256_or_empty(const SettingValue& value) {
  const auto& text = std::get<std::string>(value);
  const auto is_hex = [](unsigned char c) { return std::isxdigit(c) != 0; };
  return text.empty() || (text.size() == 64 && std::all_of(text.begin(), text.end(), is_hex));
}

std::vector<SchemaKey> make_schema() {
  constexpr auto kBackend = &Config::backend;
  constexpr auto kTraining = &Config::training;
  constexpr auto kCheckpoint = &Config::checkpoint;
  constexpr auto kCommunication = &Config::communication;
  constexpr auto kMemory = &Config::memory;
  constexpr auto kProfile = &Config::profile;
  constexpr auto kLaunch = &Config::launch;
  using T = ValueType;
  return {
      key<kBackend, &BackendConfig::use>(
          "backend.use", T::kString, "a name or a path", is_not_empty,
          "The backend: a plugin's name, a path to a plugin's file, or \"auto\"."),
      key<kBackend, &BackendConfig::timeout>(
          "backend.timeout", T::kDuration, "> 0", is_positive_duration,
          "How long an operation may wait for other ranks before it fails."),
      key<kBackend, &BackendConfig::peer_timeout>(
          "backend.peer_timeout", T::kDuration, ">= 0", is_not_negative_duration,
          "How long a rank may show no sign of life (stopped or disconnected) before the others "
          "count it as lost; 0s waits forever. A rank that exits is reported lost at once."),
      key<kBackend, &BackendConfig::interface_name>(
          "backend.interface", T::kString, "", nullptr,
          "The network interface that connections use, or its address; empty: loopback."),
      key<kBackend, &BackendConfig::sha256>(
          "backend.sha256", T::kString, "empty or 64 hexadecimal digits", is_sha256_or_empty,
          "The SHA-256 that the plugin's file must have; empty: not checked."),
      key<kBackend, &BackendConfig::plugin_path>(
          "backend.plugin_path", T::kStringList, "", nullptr,
          "Folders searched first for plugins; in a string they are separated by colons."),
      key<kTraining, &TrainingConfig::device>(
          "training.device", T::kString, "auto or a device of LibTorch", is_not_empty,
          "Where models are trained: \"auto\" uses CUDA if a driver and LibTorch's CUDA "
          "libraries are present, else the CPU; \"cuda\" uses the device of the process's local "
          "rank, \"cuda:1\" that one."),
      key<kTraining, &TrainingConfig::gradient_accumulation_steps>(
          "training.gradient_accumulation_steps", T::kInteger, ">= 1", at_least<1>,
          "How many batches are accumulated before gradients are reduced and a step is taken."),
      key<kTraining, &TrainingConfig::sync_each_batch>(
          "training.sync_each_batch", T::kBoolean, "", nullptr,
          "Whether gradients are reduced after every accumulated batch: more communication, but "
          "less memory with sharding, since no rank keeps whole gradients."),
      key<kTraining, &TrainingConfig::sync_with_dataloader>(
          "training.sync_with_dataloader", T::kBoolean, "", nullptr,
          "Whether the last batch of a prepared loader ends gradient accumulation even if the "
          "window is incomplete; otherwise the next epoch continues it."),
      key<kTraining, &TrainingConfig::optimizer_in_backward>(
          "training.optimizer_in_backward", T::kBoolean, "", nullptr,
          "Whether optimizers update each parameter as soon as backward has its gradient, "
          "instead of all in step(). Updates overlap with the reduction of later gradients and "
          "with reads and writes of state offloaded to disk. Gradients are freed immediately and "
          "cannot be clipped."),
      key<kTraining, &TrainingConfig::broadcast_buffers>(
          "training.broadcast_buffers", T::kBoolean, "", nullptr,
          "Whether rank 0's buffers (batch norm statistics) replace the others' after every "
          "reduction."),
      key<kTraining, &TrainingConfig::bucket_cap_mb>(
          "training.bucket_cap_mb", T::kNumber, "finite and >= 0", finite_and_not_negative,
          "Size of a gradient bucket in MiB; 0 adapts it to measurements."),
      key<kTraining, &TrainingConfig::seed>(
          "training.seed", T::kInteger, "", nullptr,
          "Seeds LibTorch's random number generators on every rank when the Accelerator is "
          "created, if set."),
      key<kTraining, &TrainingConfig::mixed_precision>(
          "training.mixed_precision", T::kString, "no, bf16, fp16 or fp8", is_precision,
          "The type in which operations inside accelerator.autocast() compute where that is "
          "safe; no: the model's own types."),
      key<kTraining, &TrainingConfig::loss_scale_init_scale>(
          "training.loss_scale_init_scale", T::kNumber, "finite and > 0", is_finite_and_above_0,
          "With fp16: the initial loss scale."),
      key<kTraining, &TrainingConfig::loss_scale_growth_factor>(
          "training.loss_scale_growth_factor", T::kNumber, "finite and > 1", is_finite_and_above_1,
          "With fp16: factor applied to the loss scale after loss_scale_growth_interval steps "
          "without overflow."),
      key<kTraining, &TrainingConfig::loss_scale_backoff_factor>(
          "training.loss_scale_backoff_factor", T::kNumber, "> 0 and < 1", is_between_0_and_1,
          "With fp16: factor applied to the loss scale when a gradient is infinite or NaN; that "
          "step is skipped."),
      key<kTraining, &TrainingConfig::loss_scale_growth_interval>(
          "training.loss_scale_growth_interval", T::kInteger, ">= 1", at_least<1>,
          "With fp16: how many consecutive steps without overflow make the loss scale grow."),
      key<kTraining, &TrainingConfig::fp8_format>(
          "training.fp8_format", T::kString, "hybrid or e4m3", is_fp8_format,
          "With fp8: the type of gradients in matrix products. hybrid: e5m2, which has more "
          "range and less precision than e4m3, the type of inputs and weights."),
      key<kTraining, &TrainingConfig::fp8_emulate>(
          "training.fp8_emulate", T::kBoolean, "", nullptr,
          "With fp8: whether devices without fp8 matrix units emulate them. This is slower than "
          "fp32 and meant for trying out a program."),
      key<kTraining, &TrainingConfig::log_with>(
          "training.log_with", T::kStringList, "", nullptr,
          "The trackers that accelerator.init_trackers starts: csv, jsonl, tensorboard, mlflow, "
          "the program's own, or all. In a string they are separated by colons."),
      key<kTraining, &TrainingConfig::project_dir>(
          "training.project_dir", T::kString, "a path", is_not_empty,
          "The folder for the program's results; trackers write there unless logging_dir is set."),
      key<kTraining, &TrainingConfig::logging_dir>(
          "training.logging_dir", T::kString, "", nullptr,
          "The folder in which every tracked project gets a folder of its own; empty: "
          "project_dir."),
      key<kCheckpoint, &CheckpointConfig::dir>(
          "checkpoint.dir", T::kString, "", nullptr,
          "The folder of the job's checkpoints (checkpoint_0 and so on), shared by all machines. "
          "Empty: no automatic checkpoints or resuming."),
      key<kCheckpoint, &CheckpointConfig::every>(
          "checkpoint.every", T::kInteger, ">= 0", at_least<0>,
          "Number of optimizer steps between checkpoints, which are saved at the end of an "
          "iteration; 0: no automatic checkpoints."),
      key<kCheckpoint, &CheckpointConfig::resume>(
          "checkpoint.resume", T::kString, "auto, no or a path", is_not_empty,
          "What accelerator.resume() loads: the newest valid checkpoint of checkpoint.dir if there "
          "is one (auto), nothing (no), or this checkpoint."),
      key<kCheckpoint, &CheckpointConfig::total_limit>(
          "checkpoint.total_limit", T::kInteger, ">= 0", at_least<0>,
          "How many checkpoints to keep; older ones are removed after a new one is complete. 0 "
          "keeps all."),
      key<kCheckpoint, &CheckpointConfig::async>(
          "checkpoint.async", T::kBoolean, "", nullptr,
          "Whether checkpoints are written while training continues, from a copy in memory."),
      key<kCheckpoint, &CheckpointConfig::timeout>(
          "checkpoint.timeout", T::kDuration, "> 0", is_positive_duration,
          "How long the slowest rank may take to write its part of a checkpoint."),
      key<kCheckpoint, &CheckpointConfig::grace>(
          "checkpoint.grace", T::kDuration, "> 0", is_positive_duration,
          "How long the processes have after SIGTERM to save and exit before the launcher kills "
          "them, if checkpoint.dir is set."),
      key<kCommunication, &CommunicationConfig::gradients>(
          "communication.gradients", T::kString, "none, bf16, fp16, int8 or powersgd",
          is_gradient_compression,
          "How fp32 gradients are compressed for communication: not at all (none), as 16-bit "
          "floats (bf16, fp16), as 8-bit integers with one scale per block (int8), or as two "
          "low-rank factors (powersgd)."),
      key<kCommunication, &CommunicationConfig::int8_block>(
          "communication.int8_block", T::kInteger, ">= 8", at_least<8>,
          "With int8: how many consecutive elements share a scale."),
      key<kCommunication, &CommunicationConfig::powersgd_rank>(
          "communication.powersgd_rank", T::kInteger, ">= 1", at_least<1>,
          "With powersgd: the rank of the two factors; a higher rank is more exact and sends "
          "more."),
      key<kCommunication, &CommunicationConfig::powersgd_start_step>(
          "communication.powersgd_start_step", T::kInteger, ">= 0", at_least<0>,
          "With powersgd: how many steps are reduced uncompressed before it starts."),
      key<kCommunication, &CommunicationConfig::powersgd_warm_start>(
          "communication.powersgd_warm_start", T::kBoolean, "", nullptr,
          "With powersgd: whether a step starts from the previous step's factors instead of "
          "random ones."),
      key<kCommunication, &CommunicationConfig::local_sgd_steps>(
          "communication.local_sgd_steps", T::kInteger, ">= 0", at_least<0>,
          "LocalSGD: how many steps every rank takes on its own before parameters are averaged; "
          "0 averages gradients in every step."),
      key<kCommunication, &CommunicationConfig::local_sgd_momentum>(
          "communication.local_sgd_momentum", T::kNumber, ">= 0 and < 1", is_at_least_0_and_below_1,
          "With LocalSGD: momentum applied from one average to the next (slow momentum); 0: none."),
      key<kMemory, &MemoryConfig::activation_checkpointing>(
          "memory.activation_checkpointing", T::kStringList, "", nullptr,
          "Modules, by name patterns, whose intermediate results are recomputed in backward "
          "instead of being kept: * matches any characters except dots, ** any characters. In a "
          "string they are separated by colons."),
      key<kMemory, &MemoryConfig::offload_activations>(
          "memory.offload_activations", T::kBoolean, "", nullptr,
          "Whether the activations that checkpointing keeps for backward are stored in host "
          "memory, if the model is on another device."),
      key<kMemory, &MemoryConfig::offload_optimizer_device>(
          "memory.offload_optimizer_device", T::kString, "none, cpu or nvme", is_offload_device,
          "Where optimizer state is kept between steps, for models that every rank holds whole: "
          "with the parameters (none), in host memory (cpu), or in a file (nvme)."),
      key<kMemory, &MemoryConfig::offload_optimizer_nvme_path>(
          "memory.offload_optimizer_nvme_path", T::kString, "", nullptr,
          "With nvme: a folder on that disk; the file is anonymous and disappears with the "
          "process."),
      key<kMemory, &MemoryConfig::offload_optimizer_buffer_count>(
          "memory.offload_optimizer_buffer_count", T::kInteger, ">= 1", at_least<1>,
          "With nvme: how many pieces of state are read ahead, and how many may wait to be "
          "written."),
      key<kMemory, &MemoryConfig::offload_optimizer_sub_group_size>(
          "memory.offload_optimizer_sub_group_size", T::kInteger, ">= 1", at_least<1>,
          "With nvme: approximate number of parameter elements updated at a time; a single "
          "parameter is never split."),
      key<kMemory, &MemoryConfig::limit>(
          "memory.limit", T::kString, "empty or a size such as 4GiB", is_empty_or_begins_with_digit,
          "The memory that a process may hold. prepare() rejects a plan that needs more, and an "
          "allocation that would exceed it fails. Empty: no limit."),
      key<kProfile, &ProfileConfig::dir>(
          "profile.dir", T::kString, "", nullptr,
          "The folder into which each rank writes a trace of some steps, and rank 0 a merged "
          "trace of all ranks. Empty: no traces."),
      key<kProfile, &ProfileConfig::skip_first>(
          "profile.skip_first", T::kInteger, ">= 0", at_least<0>,
          "How many iterations of the loop are skipped at the start."),
      key<kProfile, &ProfileConfig::wait>("profile.wait", T::kInteger, ">= 0", at_least<0>,
                                          "How many iterations are then skipped in each round."),
      key<kProfile, &ProfileConfig::warmup>(
          "profile.warmup", T::kInteger, ">= 0", at_least<0>,
          "How many iterations the profiler then runs without recording."),
      key<kProfile, &ProfileConfig::active>("profile.active", T::kInteger, ">= 1", at_least<1>,
                                            "How many iterations are then recorded."),
      key<kProfile, &ProfileConfig::repeat>(
          "profile.repeat", T::kInteger, ">= 0", at_least<0>,
          "How many rounds to run, each with its own trace; 0: until training ends."),
      key<kProfile, &ProfileConfig::record_shapes>(
          "profile.record_shapes", T::kBoolean, "", nullptr,
          "Whether traces contain the shapes of operations' inputs."),
      key<kProfile, &ProfileConfig::profile_memory>(
          "profile.profile_memory", T::kBoolean, "", nullptr,
          "Whether traces contain memory allocations and frees."),
      key<kProfile, &ProfileConfig::with_stack>(
          "profile.with_stack", T::kBoolean, "", nullptr,
          "Whether traces contain the TorchScript call stacks of operations."),
      key<kProfile, &ProfileConfig::with_flops>(
          "profile.with_flops", T::kBoolean, "", nullptr,
          "Whether traces contain the floating-point operations of matrix products and "
          "convolutions."),
      key<kLaunch, &LaunchConfig::processes>("launch.processes", T::kInteger, ">= 1", at_least<1>,
                                             "How many processes `coupler launch` starts."),
      key<kLaunch, &LaunchConfig::threads_per_process>(
          "launch.threads_per_process", T::kInteger, ">= 0", at_least<0>,
          "OMP_NUM_THREADS of each process; 0: number of cores divided by number of processes."),
      key<kLaunch, &LaunchConfig::tls>(
          "launch.tls", T::kBoolean, "", nullptr,
          "Whether the rendezvous store uses TLS 1.3; tensors are not covered."),
      key<kLaunch, &LaunchConfig::all_interfaces>(
          "launch.all_interfaces", T::kBoolean, "", nullptr,
          "Whether the rendezvous store of a multi-machine job may listen on all network "
          "interfaces if backend.interface is not set."),
      key<kLaunch, &LaunchConfig::secret_file>(
          "launch.secret_file", T::kString, "", nullptr,
          "A file of mode 0600, identical on every machine, from which the job's secret is "
          "derived; for ranks started on several machines without a common launcher."),
  };
}

}  // namespace

const std::vector<SchemaKey>& schema() {
  static const std::vector<SchemaKey> keys = make_schema();
  return keys;
}

const SchemaKey* find_key(std::string_view name) {
  for (const SchemaKey& entry : schema()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::string environment_name(std::string_view key) {
  std::string name = "COUPLER_";
  for (const char c : key) {
    name += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

std::vector<std::string> schema_names() {
  std::vector<std::string> names;
  for (const SchemaKey& entry : schema()) names.emplace_back(entry.name);
  return names;
}

}  // namespace coupler
