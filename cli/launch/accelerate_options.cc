// The options of `accelerate launch` and what they mean here: an option of ours, a configuration
// key, nothing (already the default), or an error that gives the reason.
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "cli/launch/launch_options.h"
#include "config/validate.h"

namespace coupler::cli {
namespace {

using O = LaunchOptions;
using S = const std::string;

// Applies one of our own options; messages name the option as it was written.
void as(const char* ours, O& options, S& value, S& as_written) {
  for (const LaunchOption& one : own_launch_options()) {
    if (one.option.is(ours)) {
      one.apply(options, value, as_written);
    }
  }
}

constexpr std::string_view kAccelerate = "Accelerate-compatible options, with - or _";

void nothing(O&, S&, S&) {}

[[noreturn]] void refuse_flag(S& as_written, const char* reason, const char* fix) {
  fail_usage(fmt::format("{}: {}", as_written, reason), as_written, fix);
}

// Accelerate takes the name or its number, starting from 1.
void sharding_strategy(O& options, S& value, S& as_written) {
  constexpr std::array kNames = {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard"};
  std::string name = lower(value);
  if (name.size() == 1 && name[0] >= '1' && name[0] <= '4') {
    name = kNames[static_cast<size_t>(name[0] - '1')];
  }
  if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) {
    fail_usage(
        fmt::format("{}: '{}' is not one of FULL_SHARD (1), SHARD_GRAD_OP (2), NO_SHARD (3), "
                    "HYBRID_SHARD (4)",
                    as_written, value),
        as_written);
  }
  options.request.overrides.push_back(text_override("backend.fsdp.strategy", name));
}

void set_number(O& options, const char* key, S& value, S& as_written, int least, int most) {
  const int number = parse_number(value, least, most, as_written, key);
  options.request.overrides.push_back(fmt::format("{}={}", key, number));
}

}  // namespace

const std::vector<LaunchOption>& accelerate_options() {
  static const std::vector<LaunchOption> options = {
      {{"--num_processes N", "same as -n N", kAccelerate},
       [](O& o, S& v, S& w) { as("-n", o, v, w); }},
      {{"--num_machines M", "same as --machines M", kAccelerate},
       [](O& o, S& v, S& w) { as("--machines", o, v, w); }},
      {{"--main_process_ip H", "same as --main-address H", kAccelerate},
       [](O& o, S& v, S& w) { as("--main-address", o, v, w); }},
      {{"--main_process_port P", "same as --main-port P", kAccelerate},
       [](O& o, S& v, S& w) { as("--main-port", o, v, w); }},
      {{"--config_file FILE", "same as --config FILE", kAccelerate},
       [](O& o, S& v, S& w) { as("--config", o, v, w); }},
      {{"--mpirun_hostfile FILE", "same as --via mpirun --hostfile FILE", kAccelerate},
       [](O& o, S& v, S& w) {
         as("--hostfile", o, v, w);
         o.via = Via::kMpirun;
       }},
      {{"--enable_cpu_affinity", "same as --bind numa", kAccelerate},
       [](O& o, S&, S&) { o.bind = Bind::kNuma; }},
      {{"--num_cpu_threads_per_process N", "same as -o launch.threads_per_process=N", kAccelerate},
       [](O& o, S& v, S& w) { set_number(o, "launch.threads_per_process", v, w, 0, 4096); }},
      {{"--mixed_precision no|bf16|fp16|fp8", "set training.mixed_precision", kAccelerate},
       [](O& o, S& v, S& w) {
         if (v != "no" && v != "bf16" && v != "fp16" && v != "fp8") {
           fail_usage(fmt::format("{}: '{}' is not one of no, bf16, fp16, fp8", w, v), w);
         }
         o.request.overrides.push_back(text_override("training.mixed_precision", v));
       }},
      {{"--gradient_accumulation_steps N", "same as -o training.gradient_accumulation_steps=N",
        kAccelerate},
       [](O& o, S& v, S& w) {
         set_number(o, "training.gradient_accumulation_steps", v, w, 1, 1 << 30);
       }},
      {{"--cpu", "train on CPUs", kAccelerate}, [](O& o, S&, S&) { o.backend.cpu = true; }},
      {{"--multi_gpu", "train on CUDA devices", kAccelerate},
       [](O& o, S&, S&) { o.backend.multi_gpu = true; }},
      {{"--use_fsdp", "shard parameters, gradients and optimizer state", kAccelerate},
       [](O& o, S&, S&) { o.backend.use_fsdp = true; }},
      {{"--use_deepspeed", "shard by DeepSpeed's ZeRO stages", kAccelerate},
       [](O& o, S&, S&) { o.backend.use_deepspeed = true; }},
      {{"--fsdp_sharding_strategy full_shard|shard_grad_op|no_shard|hybrid_shard",
        "what --use_fsdp shards; a number from 1 to 4 also works", kAccelerate},
       sharding_strategy},
      {{"--zero_stage 0|1|2|3", "the stage of --use_deepspeed", kAccelerate},
       [](O& o, S& v, S& w) { set_number(o, "backend.deepspeed_like.stage", v, w, 0, 3); }},
      {{"--same_network, --no_python, -q, --quiet", "no effect (already the default)", kAccelerate},
       nothing},
      {{"--tpu", ""},
       [](O&, S&, S& w) {
         refuse_flag(w, "there is no backend for TPUs", "omit it to run the program on CPUs");
       }},
      {{"--use_megatron_lm", ""},
       [](O&, S&, S& w) {
         refuse_flag(w, "Megatron-LM is not supported", "shard with --use_fsdp or --use_deepspeed");
       }},
      {{"--use_parallelism_config", ""},
       [](O&, S&, S& w) {
         refuse_flag(w, "tensor and context parallelism are not supported",
                     "shard with --use_fsdp or --use_deepspeed; for pipeline parallelism, call "
                     "coupler::prepare_pipeline in the program");
       }},
      {{"--dynamo_backend BACKEND", ""},
       [](O&, S&, S& w) {
         refuse_flag(w, "torch.compile is for Python; a C++ program is already compiled",
                     "omit it");
       }},
      {{"-m, --module", ""},
       [](O&, S&, S& w) {
         refuse_flag(w, "programs are executables, not Python modules", "give the program's path");
       }},
      {{"--gpu_ids IDS", ""},
       [](O&, S&, S& w) {
         refuse_flag(w, "CUDA_VISIBLE_DEVICES selects the devices",
                     "omit it, or set CUDA_VISIBLE_DEVICES=0,1 before the command");
       }},
      {{"--deepspeed_config_file FILE", ""},
       [](O&, S&, S& w) {
         refuse_flag(w, "DeepSpeed's JSON file is not read at launch",
                     "convert it with `coupler config import`, or use --zero_stage or the keys of "
                     "[backend.deepspeed_like] in train.toml");
       }},
  };
  return options;
}

namespace {

void check_unlike(const char* word, const std::string& key, const std::string& value,
                  const std::string& wanted) {
  if (value != "auto" && value != wanted) {
    fail_usage(fmt::format("{} means {} = \"{}\", but the configuration has \"{}\"", word, key,
                           wanted, value),
               key, fmt::format("omit {}, or change {}", word, key));
  }
}

}  // namespace

std::vector<std::string> backend_overrides(const BackendFlags& words,
                                           const config::Config& config) {
  if (words.use_fsdp && words.use_deepspeed) {
    fail_usage("--use_fsdp and --use_deepspeed cannot be combined", "--use_deepspeed",
               "omit one of them");
  }
  if (words.cpu && words.multi_gpu) {
    fail_usage("--cpu and --multi_gpu cannot be combined", "--multi_gpu", "omit one of them");
  }
  std::vector<std::string> overrides;
  std::string use = config.backend.use;
  if (words.use_fsdp || words.use_deepspeed) {
    const char* word = words.use_fsdp ? "--use_fsdp" : "--use_deepspeed";
    const std::string wrapper = words.use_fsdp ? "fsdp" : "deepspeed_like";
    check_unlike(word, "backend.use", use, wrapper);
    use = wrapper;
    overrides.push_back(text_override("backend.use", wrapper));
  }
  if (!words.cpu && !words.multi_gpu) {
    return overrides;
  }
  overrides.push_back(text_override("training.device", words.cpu ? "cpu" : "cuda"));
  // The transport: the wrapper's base if there is a wrapper, else the backend itself.
  const bool wraps = use == "fsdp" || use == "deepspeed_like";
  const std::string key = wraps ? fmt::format("backend.{}.base", use) : "backend.use";
  const std::string transport = wraps ? config::wrapper_base(config.backend, use) : use;
  if (words.multi_gpu) {
    check_unlike("--multi_gpu", key, transport, "nccl");
    overrides.push_back(text_override(key, "nccl"));
  } else if (transport == "nccl") {
    fail_usage(fmt::format("--cpu needs a CPU transport, but {} is \"nccl\"", key), key,
               fmt::format("omit --cpu, or set {} to gloo_cpu or mpi", key));
  } else if (transport == "auto") {
    overrides.push_back(text_override(key, "gloo_cpu"));
  }
  return overrides;
}

}  // namespace coupler::cli
