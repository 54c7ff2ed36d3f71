#include "config/schema.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

namespace coupler {
namespace {

// How a key reaches its field: the field's own type says how a SettingValue is taken and given.
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

// The unit is looked at where the size is used.
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
          "How long an operation may wait for other ranks before it ends in an error."),
      key<kBackend, &BackendConfig::peer_timeout>(
          "backend.peer_timeout", T::kDuration, ">= 0", is_not_negative_duration,
          "How long a rank may give no sign of life (it is stopped, or cut off) before the others "
          "count it as lost; 0s is for ever. One that ends is lost at once."),
      key<kBackend, &BackendConfig::interface_name>(
          "backend.interface", T::kString, "", nullptr,
          "The network interface that connections use, or its address; empty is loopback."),
      key<kBackend, &BackendConfig::sha256>(
          "backend.sha256", T::kString, "empty or 64 hexadecimal digits", is_sha256_or_empty,
          "The SHA-256 that the plugin's file must have; empty checks nothing."),
      key<kBackend, &BackendConfig::plugin_path>(
          "backend.plugin_path", T::kStringList, "", nullptr,
          "Folders searched first for plugins; as one text they are separated by colons."),
      key<kTraining, &TrainingConfig::device>(
          "training.device", T::kString, "auto or a device of LibTorch", is_not_empty,
          "Where models are trained: \"auto\" takes CUDA devices where a driver and LibTorch's "
          "CUDA "
          "part are there, else the CPU; \"cuda\" takes the device of the process's local rank, "
          "\"cuda:1\" that one."),
      key<kTraining, &TrainingConfig::gradient_accumulation_steps>(
          "training.gradient_accumulation_steps", T::kInteger, ">= 1", at_least<1>,
          "How many batches are accumulated before gradients are reduced and a step is taken."),
      key<kTraining, &TrainingConfig::sync_each_batch>(
          "training.sync_each_batch", T::kBoolean, "", nullptr,
          "Whether gradients are reduced in every batch that is accumulated: more communication, "
          "and with sharding less memory, since no rank keeps whole gradients."),
      key<kTraining, &TrainingConfig::sync_with_dataloader>(
          "training.sync_with_dataloader", T::kBoolean, "", nullptr,
          "Whether the last batch of a prepared loader ends the accumulation of gradients, however "
          "few batches it holds; else the next epoch goes on with it."),
      key<kTraining, &TrainingConfig::optimizer_in_backward>(
          "training.optimizer_in_backward", T::kBoolean, "", nullptr,
          "Whether optimizers update a parameter as soon as backward is done with it, on every "
          "rank, "
          "and not all of them in step(): this goes on beside the reduction of the next gradients, "
          "and what is offloaded to a disk is read and written meanwhile. Gradients are gone then: "
          "none can be clipped."),
      key<kTraining, &TrainingConfig::broadcast_buffers>(
          "training.broadcast_buffers", T::kBoolean, "", nullptr,
          "Whether rank 0's buffers (batch norm statistics) replace the others' after every "
          "reduction."),
      key<kTraining, &TrainingConfig::bucket_cap_mb>(
          "training.bucket_cap_mb", T::kNumber, "finite and >= 0", finite_and_not_negative,
          "Size of a gradient bucket in MiB; 0 adapts it to what is measured."),
      key<kTraining, &TrainingConfig::seed>(
          "training.seed", T::kInteger, "", nullptr,
          "Seeds LibTorch's random numbers on every rank when the Accelerator is made, if set."),
      key<kTraining, &TrainingConfig::mixed_precision>(
          "training.mixed_precision", T::kString, "no, bf16, fp16 or fp8", is_precision,
          "What operations inside accelerator.autocast() compute in where that is safe; no: in the "
          "model's own types."),
      key<kTraining, &TrainingConfig::loss_scale_init_scale>(
          "training.loss_scale_init_scale", T::kNumber, "finite and > 0", is_finite_and_above_0,
          "With fp16: what the loss is multiplied by in the first step."),
      key<kTraining, &TrainingConfig::loss_scale_growth_factor>(
          "training.loss_scale_growth_factor", T::kNumber, "finite and > 1", is_finite_and_above_1,
          "With fp16: what the scale is multiplied by after growth_interval steps without "
          "overflow."),
      key<kTraining, &TrainingConfig::loss_scale_backoff_factor>(
          "training.loss_scale_backoff_factor", T::kNumber, "> 0 and < 1", is_between_0_and_1,
          "With fp16: what the scale is multiplied by when a gradient was infinite or NaN; that "
          "step "
          "is skipped."),
      key<kTraining, &TrainingConfig::loss_scale_growth_interval>(
          "training.loss_scale_growth_interval", T::kInteger, ">= 1", at_least<1>,
          "With fp16: how many steps in a row without overflow make the scale grow."),
      key<kTraining, &TrainingConfig::fp8_format>(
          "training.fp8_format", T::kString, "hybrid or e4m3", is_fp8_format,
          "With fp8: the type of gradients in products; hybrid: e5m2, which has more range and "
          "less "
          "precision than e4m3, the type of inputs and weights."),
      key<kTraining, &TrainingConfig::fp8_emulate>(
          "training.fp8_emulate", T::kBoolean, "", nullptr,
          "With fp8: whether a device without fp8 matrix units computes what one with them would, "
          "slower than fp32; to try a program."),
      key<kTraining, &TrainingConfig::log_with>(
          "training.log_with", T::kStringList, "", nullptr,
          "The trackers that accelerator.init_trackers starts: csv, jsonl, tensorboard, mlflow, "
          "those of the program, or all. As one text they are separated by colons."),
      key<kTraining, &TrainingConfig::project_dir>(
          "training.project_dir", T::kString, "a path", is_not_empty,
          "The folder of the program's results: trackers write there unless logging_dir is set."),
      key<kTraining, &TrainingConfig::logging_dir>(
          "training.logging_dir", T::kString, "", nullptr,
          "The folder in which each project that is tracked has one of its own; empty is "
          "project_dir."),
      key<kCheckpoint, &CheckpointConfig::dir>(
          "checkpoint.dir", T::kString, "", nullptr,
          "The folder of the job's checkpoints, checkpoint_0 and so on; all machines share it. "
          "Empty: none are made or looked for by themselves."),
      key<kCheckpoint, &CheckpointConfig::every>(
          "checkpoint.every", T::kInteger, ">= 0", at_least<0>,
          "After how many optimizer steps a checkpoint is made, at the end of the loop's body; 0 "
          "makes none by itself."),
      key<kCheckpoint, &CheckpointConfig::resume>(
          "checkpoint.resume", T::kString, "auto, no or a path", is_not_empty,
          "What accelerator.resume() loads: the newest valid checkpoint of checkpoint.dir if there "
          "is one (auto), nothing (no), or this checkpoint."),
      key<kCheckpoint, &CheckpointConfig::total_limit>(
          "checkpoint.total_limit", T::kInteger, ">= 0", at_least<0>,
          "How many checkpoints are kept: older ones are removed once a new one is there; 0 keeps "
          "all."),
      key<kCheckpoint, &CheckpointConfig::async>(
          "checkpoint.async", T::kBoolean, "", nullptr,
          "Whether checkpoints are written while training goes on, from a copy in memory."),
      key<kCheckpoint, &CheckpointConfig::timeout>(
          "checkpoint.timeout", T::kDuration, "> 0", is_positive_duration,
          "How long the slowest rank may take to write its part of a checkpoint."),
      key<kCheckpoint, &CheckpointConfig::grace>(
          "checkpoint.grace", T::kDuration, "> 0", is_positive_duration,
          "How long the processes have after SIGTERM to save and end, where checkpoint.dir is set, "
          "before the launcher kills them."),
      key<kCommunication, &CommunicationConfig::gradients>(
          "communication.gradients", T::kString, "none, bf16, fp16, int8 or powersgd",
          is_gradient_compression,
          "How gradients in fp32 are compressed on their way between ranks: not at all (none), as "
          "16-bit numbers (bf16, fp16), as 8-bit integers with a scale a block (int8), or as two "
          "narrow matrices (powersgd)."),
      key<kCommunication, &CommunicationConfig::int8_block>(
          "communication.int8_block", T::kInteger, ">= 8", at_least<8>,
          "With int8: how many neighbouring elements share a scale."),
      key<kCommunication, &CommunicationConfig::powersgd_rank>(
          "communication.powersgd_rank", T::kInteger, ">= 1", at_least<1>,
          "With powersgd: the columns of the two matrices that stand for one; more are closer to "
          "it and larger."),
      key<kCommunication, &CommunicationConfig::powersgd_start_step>(
          "communication.powersgd_start_step", T::kInteger, ">= 0", at_least<0>,
          "With powersgd: how many steps are reduced whole before it begins."),
      key<kCommunication, &CommunicationConfig::powersgd_warm_start>(
          "communication.powersgd_warm_start", T::kBoolean, "", nullptr,
          "With powersgd: whether a step begins with the last one's factors, not with random "
          "ones."),
      key<kCommunication, &CommunicationConfig::local_sgd_steps>(
          "communication.local_sgd_steps", T::kInteger, ">= 0", at_least<0>,
          "LocalSGD: ranks take so many steps by themselves before parameters are averaged; 0 "
          "averages gradients in every step."),
      key<kCommunication, &CommunicationConfig::local_sgd_momentum>(
          "communication.local_sgd_momentum", T::kNumber, ">= 0 and < 1", is_at_least_0_and_below_1,
          "With LocalSGD: the momentum with which averages go on from one to the next (slow "
          "momentum); 0 has none."),
      key<kMemory, &MemoryConfig::activation_checkpointing>(
          "memory.activation_checkpointing", T::kStringList, "", nullptr,
          "Modules, by patterns of their names, whose intermediate results are computed again in "
          "backward instead of being kept: * stands for any characters but dots, ** for any. As "
          "one "
          "text they are separated by colons."),
      key<kMemory, &MemoryConfig::offload_activations>(
          "memory.offload_activations", T::kBoolean, "", nullptr,
          "Whether what activation checkpointing keeps for backward is in host memory until then, "
          "where the model is on another device."),
      key<kMemory, &MemoryConfig::offload_optimizer_device>(
          "memory.offload_optimizer_device", T::kString, "none, cpu or nvme", is_offload_device,
          "Where the state of an optimizer is between its steps, for a model that every rank holds "
          "whole: with the parameters (none), in host memory (cpu), or in a file (nvme)."),
      key<kMemory, &MemoryConfig::offload_optimizer_nvme_path>(
          "memory.offload_optimizer_nvme_path", T::kString, "", nullptr,
          "With nvme: a folder on that disk; the file has no name there and leaves nothing "
          "behind."),
      key<kMemory, &MemoryConfig::offload_optimizer_buffer_count>(
          "memory.offload_optimizer_buffer_count", T::kInteger, ">= 1", at_least<1>,
          "With nvme: how many pieces of state are read ahead, and may wait to be written."),
      key<kMemory, &MemoryConfig::offload_optimizer_sub_group_size>(
          "memory.offload_optimizer_sub_group_size", T::kInteger, ">= 1", at_least<1>,
          "With nvme: about how many elements of the parameters are updated at a time; one "
          "parameter is never parted."),
      key<kMemory, &MemoryConfig::limit>(
          "memory.limit", T::kString, "empty or a size such as 4GiB", is_empty_or_begins_with_digit,
          "The memory that a process may hold: a plan that needs more is refused at prepare, and "
          "an "
          "allocation that would pass it ends in an error. Empty: no limit."),
      key<kProfile, &ProfileConfig::dir>(
          "profile.dir", T::kString, "", nullptr,
          "The folder into which each rank writes a trace of some steps, and rank 0 one of all "
          "ranks. Empty: none are made."),
      key<kProfile, &ProfileConfig::skip_first>(
          "profile.skip_first", T::kInteger, ">= 0", at_least<0>,
          "How many passes through the loop's body are left out at first."),
      key<kProfile, &ProfileConfig::wait>("profile.wait", T::kInteger, ">= 0", at_least<0>,
                                          "How many are left out in each round."),
      key<kProfile, &ProfileConfig::warmup>(
          "profile.warmup", T::kInteger, ">= 0", at_least<0>,
          "How many the profiler then runs without keeping what it sees."),
      key<kProfile, &ProfileConfig::active>("profile.active", T::kInteger, ">= 1", at_least<1>,
                                            "How many the trace then holds."),
      key<kProfile, &ProfileConfig::repeat>(
          "profile.repeat", T::kInteger, ">= 0", at_least<0>,
          "How many rounds there are, each with a trace of its own; 0: until training ends."),
      key<kProfile, &ProfileConfig::record_shapes>(
          "profile.record_shapes", T::kBoolean, "", nullptr,
          "Whether traces hold the shapes of operations' inputs."),
      key<kProfile, &ProfileConfig::profile_memory>(
          "profile.profile_memory", T::kBoolean, "", nullptr,
          "Whether traces hold what is allocated and freed."),
      key<kProfile, &ProfileConfig::with_stack>(
          "profile.with_stack", T::kBoolean, "", nullptr,
          "Whether traces hold where TorchScript called operations from."),
      key<kProfile, &ProfileConfig::with_flops>(
          "profile.with_flops", T::kBoolean, "", nullptr,
          "Whether traces hold the floating-point operations of products and convolutions."),
      key<kLaunch, &LaunchConfig::processes>("launch.processes", T::kInteger, ">= 1", at_least<1>,
                                             "How many processes `coupler launch` starts."),
      key<kLaunch, &LaunchConfig::threads_per_process>(
          "launch.threads_per_process", T::kInteger, ">= 0", at_least<0>,
          "OMP_NUM_THREADS of a process; 0 is cores divided by processes."),
      key<kLaunch, &LaunchConfig::tls>(
          "launch.tls", T::kBoolean, "", nullptr,
          "Whether the store in which the processes meet speaks TLS 1.3; tensors are not covered."),
      key<kLaunch, &LaunchConfig::all_interfaces>(
          "launch.all_interfaces", T::kBoolean, "", nullptr,
          "Whether the store of a job on several machines may listen on all network interfaces, "
          "where backend.interface names none."),
      key<kLaunch, &LaunchConfig::secret_file>(
          "launch.secret_file", T::kString, "", nullptr,
          "File of mode 0600, the same on every machine, from whose bytes the job's secret is "
          "made; "
          "for ranks that several machines start without a launcher in common."),
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
