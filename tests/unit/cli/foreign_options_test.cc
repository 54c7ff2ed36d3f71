// The options of accelerate launch, torchrun and deepspeed: each takes effect, or is refused by a
// sentence of its own.
#include <fstream>
#include <set>
#include <sstream>

#include "base/text.h"
#include "cli/import/accelerate_words.h"
#include "cli/launch/launch_options.h"
#include "parsed_options.h"
#include "refusal.h"

namespace coupler::cli {
namespace {

using Words = std::vector<std::string>;

// config: what a file says.
LaunchOptions parse_foreign(const Words& words, const config::Config& config = {}) {
  LaunchOptions options = parsed_options(words);
  apply_settings(options, config);
  return options;
}

// What the options did, as "-n=4 training.seed=1 note: …", or the error's text.
std::string effect_of(const Words& words) {
  LaunchOptions options;
  const std::string problem = refusal([&] { options = parse_foreign(words); });
  if (problem != "no error") return "refused: " + problem;
  std::string text;
  for (const auto& [what, setter] : options.setters) text += what + "=" + setter.value + " ";
  if (options.backend.cpu) text += "cpu ";
  if (options.backend.multi_gpu) text += "multi_gpu ";
  if (options.backend.use_fsdp) text += "use_fsdp ";
  if (options.backend.use_deepspeed) text += "use_deepspeed ";
  for (const std::string& remark : options.remarks) text += "note: " + remark + " ";
  if (!text.empty()) text.pop_back();
  return text;
}

struct Flag {
  Words names, values;  // values: none if it takes none
};

// The flags of the installed Accelerate 1.15, from accelerate_flags.txt.
std::vector<Flag> accelerate_flags() {
  std::vector<Flag> flags;
  std::ifstream file(ACCELERATE_FLAGS);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Flag flag;
    bool takes_value = false;
    for (std::string word; words >> word;) {
      if (word[0] == '-') {
        std::erase(word, ',');
        flag.names.push_back(word);
      } else if (word == "value") {
        takes_value = true;
      } else {
        flag.values = split(word, '|');
      }
    }
    if (takes_value && flag.values.empty()) flag.values = {"1", "2", "3", "true", "node1", "none"};
    flags.push_back(flag);
  }
  return flags;
}

TEST(ForeignOptions, EveryFlagOfAccelerate_TakesEffect_OrExplainsItself) {
  // What these ask for is done anyway, so they say nothing.
  const std::set<std::string> silent = {"-q", "--quiet", "--no_python", "--use_parallelism_config",
                                        "-t", "--tee", "--rdzv_backend", "--monitor_interval",
                                        // Accelerate offers one choice.
                                        "--parallelism_config_cp_backend",
                                        "--parallelism_config_sp_backend"};
  const std::vector<Flag> flags = accelerate_flags();
  ASSERT_EQ(flags.size(), 124U);
  for (const Flag& flag : flags) {
    if (flag.names[0] == "-h") continue;
    for (const std::string& name : flag.names) {
      for (const bool dashes : {false, true}) {
        std::string written = name;
        for (size_t i = 2; dashes && i < written.size(); ++i)
          written[i] = written[i] == '_' ? '-' : written[i];
        bool has_effect = false;  // unless its value is the usual one
        const size_t tries = std::max<size_t>(flag.values.size(), 1);
        for (size_t i = 0; i < tries; ++i) {
          Words words = {written};
          if (!flag.values.empty()) words.push_back(flag.values[i]);
          const std::string effect = effect_of(words);
          has_effect = has_effect || !effect.empty();
          EXPECT_EQ(effect.find("unknown argument"), std::string::npos) << written << effect;
          EXPECT_TRUE(!effect.starts_with("refused: ") || effect.find(written) != std::string::npos)
              << effect;
        }
        EXPECT_TRUE(has_effect || silent.count(name) != 0) << written;
      }
    }
  }
}

TEST(ForeignOptions, EveryFlagOfAccelerate_IsARowOfTheTable) {
  for (const Flag& flag : accelerate_flags()) {
    if (flag.names[0] == "-h") continue;
    int rows = 0;
    for (const AccelerateWord& word : accelerate_words())
      rows += !word.option.empty() && Option{word.option, {}}.is(flag.names[0]) ? 1 : 0;
    EXPECT_EQ(rows, 1) << flag.names[0];
  }
}

struct Effect {
  Words words;
  const char* sets;
};

// accelerate_effects.txt has a line for each: "--zero_stage 3 => …", the effect as above.
TEST(ForeignOptions, OfAccelerate_HaveTheirEffect) {
  std::set<std::string> seen;
  std::ifstream file(ACCELERATE_EFFECTS);
  for (std::string line; std::getline(file, line);) {
    const size_t arrow = line.find(" =>");
    ASSERT_NE(arrow, std::string::npos) << line;
    const Words words = split(line.substr(0, arrow), ' ');
    std::string effect = effect_of(words);
    constexpr std::string_view kHint = "\n  hint:";
    if (const size_t hint = effect.find(kHint); hint != std::string::npos)
      effect.replace(hint, kHint.size(), ";");
    EXPECT_EQ(line, line.substr(0, arrow) + " =>" + (effect.empty() ? "" : " " + effect));
    seen.insert(words[0]);
  }
  for (const Flag& flag : accelerate_flags())
    EXPECT_TRUE(flag.names[0] == "-h" || seen.count(flag.names[0]) != 0) << flag.names[0];
}

TEST(ForeignOptions, OfAccelerate_AreCombined_InAnyOrder) {
  const Effect rows[] = {
      // Accelerate takes the types from a Python model.
      {{"--use_fsdp", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"},
       "use_fsdp note: --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP has no effect: no types are "
       "named, so every module is a unit; set units = \"types\" with unit_types to name them"},
      {{"--use_fsdp", "--fsdp_min_num_params", "9", "--fsdp_auto_wrap_policy",
        "TRANSFORMER_BASED_WRAP", "--fsdp_transformer_layer_cls_to_wrap", "Block"},
       "backend.fsdp.unit_types=Block backend.fsdp.units=types use_fsdp note: "
       "--fsdp_min_num_params 9 has no effect: only for size_based_wrap"},
      {{"--use_fsdp", "--fsdp_min_num_params", "9", "--fsdp_auto_wrap_policy", "NO_WRAP"},
       "backend.fsdp.unit_min_parameters=1000000000000000 backend.fsdp.units=size use_fsdp note: "
       "--fsdp_min_num_params 9 has no effect: NO_WRAP makes one unit"},
      {{"--use_fsdp", "--fsdp_forward_prefetch", "true", "--fsdp_backward_prefetch", "NO_PREFETCH"},
       "backend.fsdp.prefetch=0 use_fsdp note: --fsdp_forward_prefetch true has no effect: "
       "prefetch applies to both directions"},
      {{"--use_fsdp", "--fsdp_offload_params", "true", "--fsdp_sharding_strategy", "NO_SHARD"},
       "backend.fsdp.strategy=no_shard use_fsdp note: --fsdp_offload_params true has no effect: "
       "nothing is sharded, so nothing is offloaded"},
      {{"--use_fsdp", "--parallelism_config_dp_replicate_size", "2",
        "--parallelism_config_dp_shard_size", "4"},
       "backend.fsdp.group_size=4 backend.fsdp.strategy=hybrid_shard use_fsdp"},
      {{"--use_fsdp", "--parallelism_config_dp_shard_size", "4",
        "--parallelism_config_dp_replicate_size", "2", "--fsdp_sharding_strategy", "SHARD_GRAD_OP"},
       "backend.fsdp.group_size=4 backend.fsdp.reshard_after_forward=false "
       "backend.fsdp.strategy=hybrid_shard use_fsdp"},
      {{"--use_fsdp", "--parallelism_config_dp_replicate_size", "2"},
       "backend.fsdp.strategy=no_shard use_fsdp"},
      {{"--parallelism_config_dp_replicate_size", "2"}, ""},
      {{"--use_deepspeed", "--offload_param_device", "cpu"},
       "use_deepspeed note: --offload_param_device cpu has no effect: parameters are offloaded "
       "only with stage 3"},
      {{"--use_deepspeed", "--offload_param_device", "cpu", "--zero_stage", "2", "--zero_stage",
        "3"},
       "backend.deepspeed_like.offload_param.device=cpu backend.deepspeed_like.stage=3 "
       "use_deepspeed"},
  };
  for (const Effect& row : rows) EXPECT_EQ(effect_of(row.words), row.sets) << row.words.back();
  EXPECT_SAYS(effect_of({"--use_deepspeed", "--offload_optimizer_device", "nvme"}),
              "refused: --offload_optimizer_device nvme: offloading to disk needs a folder");
  EXPECT_EQ(parse_foreign({"--parallelism_config_dp_replicate_size", "2",
                           "--parallelism_config_dp_shard_size", "3"})
                .ranks_of_sizes,
            6);
}

TEST(ForeignOptions, OfAccelerate_AreCombined_WithTheFile) {
  config::Config config;
  config.backend.options["deepspeed_like"] = {{"stage", int64_t{3}, {}}};
  const LaunchOptions options =
      parse_foreign({"--use_deepspeed", "--offload_param_device", "cpu"}, config);
  EXPECT_EQ(options.setters.count("backend.deepspeed_like.offload_param.device"), 1U);
  EXPECT_TRUE(options.remarks.empty());
}

TEST(ForeignOptions, OfTorchrun_AreOurs) {
  const Effect rows[] = {
      {{"--nproc_per_node", "2"}, "--per-machine=2"},
      {{"--nproc-per-node=2"}, "--per-machine=2"},
      {{"--nnodes", "2"}, "--machines=2"},
      {{"--nnodes", "2:2"}, "--machines=2"},
      {{"--node_rank", "1"}, "--machine-rank=1"},
      {{"--master_addr", "h", "--master_port", "1"}, "--main-address=h --main-port=1"},
      {{"--rdzv_endpoint", "h:5"}, "--main-address=h --main-port=5"},
      {{"--rdzv_endpoint", "[::1]"}, "--main-address=::1 --main-port=29400"},
      {{"--rdzv_endpoint", "[::1]:5"}, "--main-address=::1 --main-port=5"},
      {{"--rdzv_endpoint", "", "--local_ranks_filter", "", "--duplicate_stdout_filters", "",
        "--duplicate_stderr_filters", ""},
       ""},
      {{"--rdzv_conf", "rank=1"}, "--machine-rank=1"},
      {{"--standalone"}, "--machines=1"},
      {{"--local_addr", "10.0.0.1"}, "--interface=10.0.0.1"},
      {{"--numa_binding", "node"}, "--bind=numa"},
      {{"--max_restarts", "3"}, "--max-restarts=3"},
      {{"--rdzv_backend", "c10d", "--rdzv_id", "7", "--start_method", "spawn", "--role", "default"},
       ""},
  };
  for (const Effect& row : rows) EXPECT_EQ(effect_of(row.words), row.sets) << row.words[0];
  EXPECT_GE(parse_foreign({"--nproc_per_node", "cpu"}).per_machine, 1);
  EXPECT_EQ(parse_foreign({"--tee", "3"}).needs_log_dir, "--tee 3");
}

TEST(ForeignOptions, OfDeepSpeed_ChooseMachinesAndProcesses) {
  const LaunchOptions options =
      parse_foreign({"--num_nodes", "2", "--num_gpus", "3", "-H", "hosts", "--bind_cores_to_rank"});
  EXPECT_EQ(options.hosts.machines, 2);
  EXPECT_EQ(options.hosts.slots, 3);
  EXPECT_EQ(options.hostfile, "hosts");
  EXPECT_EQ(options.via, Via::kMpirun);
  EXPECT_EQ(options.bind, Bind::kCore);
  EXPECT_EQ(parse_foreign({"--include", "n1:0"}).hosts.include, "n1:0");
  EXPECT_EQ(parse_foreign({"-e", "n1:0"}).hosts.exclude, "n1:0");
  EXPECT_FALSE(parse_foreign({"--num_gpus", "-1"}).hosts.given());
}

TEST(ForeignOptions, ThatAreRefused_SayWhy_AndWhatToDo) {
  const struct {
    Words words;
    const char* says;
  } rows[] = {
      {{"--nnodes", "1:4"}, "--nnodes 1:4: the number of machines is fixed for a job"},
      {{"--nproc_per_node", "xpu"}, "transports do not know such devices"},
      {{"--nproc_per_node", "two"}, "'two' is not a valid number of processes"},
      {{"--rdzv_endpoint", "::1"}, "--rdzv_endpoint ::1: an IPv6 address must be in brackets"},
      {{"--rdzv_endpoint", "::1"}, "write [::1]:29500"},
      {{"--local_ranks_filter", "0"}, "all ranks write to the terminal"},
      {{"--rdzv_backend", "etcd"}, "--main-address and --main-port say where"},
      {{"--rdzv_conf", "timeout=9"}, "'timeout' has no counterpart"},
      {{"--rdzv_conf", "rank"}, "'rank' is not key=value"},
      {{"--redirects", "3"}, "--log-dir FOLDER"},
      {{"--tee", "1"}, "write --tee 3"},
      {{"--start_method", "fork"}, "not copies of a Python process"},
      {{"--role", "trainer"}, "ranks have no roles"},
      {{"--run_path"}, "give the program's path"},
      {{"--numa_binding", "socket"}, "--bind core"},
      {{"--signals_to_handle", "SIGSEGV"}, "SIGSEGV is not passed on"},
      {{"--virtual_local_rank"}, "--gpu-ids"},
      {{"--launcher", "pdsh"}, "`coupler launch --machines` on each machine"},
      {{"--autotuning", "run"}, "coupler config recommend"},
      {{"--elastic_training"}, "--max-restarts"},
      {{"--gpu_ids", "0 1"}, "separate them by commas"},
      {{"--deepspeed_config_file", "ds.json"}, "coupler config import ds.json"},
      {{"--megatron_lm_num_micro_batches", "2"}, "coupler::prepare_pipeline"},
      {{"--megatron_lm_pp_degree", "0"}, "a number of ranks"},
      {{"--megatron_lm_expert_tensor_parallel_size", "2"}, "an expert is whole on its rank"},
      {{"--parallelism_config_cp_size", "x"}, "a number of ranks"},
      {{"--gradient_clipping", "1.0"}, "accelerator.clip_grad_norm"},
      {{"--fp8_format", "E5M2"}, "'E5M2' is not one of hybrid, e4m3"},
      {{"--aws_access_key_id", "x"}, "SageMaker jobs are not supported"},
  };
  for (const auto& row : rows) {
    const std::string effect = effect_of(row.words);
    EXPECT_SAYS(effect, row.words[0]);
    EXPECT_SAYS(effect, row.says);
  }
}

TEST(ForeignOptions, WithSecrets_AreRefused_WithoutRepeatingThem) {
  for (const Words& words :
       {Words{"--aws_secret_access_key", "hunter2"}, Words{"--env", "WANDB_API_KEY=hunter2"}}) {
    const std::string effect = effect_of(words);
    EXPECT_SAYS(effect, words[0] + ": ");
    EXPECT_EQ(effect.find("hunter2"), std::string::npos) << effect;
  }
}

TEST(ForeignOptions, ThatLeaveThingsAsTheyAre_SayNothing) {
  for (const Words& words :
       {Words{"--gradient_clipping", "0.0"}, Words{"--gradient_clipping", "auto"},
        Words{"--zero3_init_flag", "false"}, Words{"--fsdp_offload_params", "false"},
        Words{"--fsdp_forward_prefetch", "false"}, Words{"--fsdp_activation_checkpointing", "no"},
        Words{"--fsdp_activation_checkpointing_offload", "false"},
        Words{"--parallelism_config_tp_size", "1"}, Words{"--megatron_lm_pp_degree", "1"},
        Words{"--parallelism_config_dp_replicate_size", "1"}, Words{"--dynamo_backend", "no"},
        Words{"--offload_param_nvme_path", "none"}})
    EXPECT_EQ(effect_of(words), "") << words[0];
}

TEST(ForeignOptions, ThatContradictEachOther_AreRefused_NamingBoth) {
  const struct {
    Words words;
    const char *one, *other;
  } rows[] = {
      {{"-n", "4", "--num_processes", "2"}, "-n 4", "--num_processes 2"},
      {{"--nproc_per_node", "2", "--per-machine", "3"}, "--nproc_per_node 2", "--per-machine 3"},
      {{"--standalone", "--nnodes", "2"}, "--standalone", "--nnodes 2"},
      {{"--via", "slurm", "--mpirun_hostfile", "h"}, "--via slurm", "--mpirun_hostfile h"},
      {{"--mixed_precision", "bf16", "-o", "training.mixed_precision=fp16"},
       "--mixed_precision bf16",
       "-o training.mixed_precision=fp16"},
      {{"--fsdp_sharding_strategy", "NO_SHARD", "--parallelism_config_dp_replicate_size", "2",
        "--parallelism_config_dp_shard_size", "2"},
       "--fsdp_sharding_strategy NO_SHARD",
       "--parallelism_config_dp_replicate_size 2"},
      {{"-n", "3", "-o", "launch.processes=5"}, "-n 3", "-o launch.processes=5"},
      {{"-o", "backend.interface=eth9", "--interface", "lo"},
       "-o backend.interface=eth9",
       "--interface lo"},
      {{"--cpu", "-o", "training.device=cuda"}, "--cpu", "-o training.device=cuda"},
      {{"-o", "training.device=cpu", "--multi_gpu"}, "--multi_gpu", "-o training.device=cpu"},
      {{"--num_processes", "2", "-n", "2", "-n", "3"}, "--num_processes 2", "-n 3"},
      {{"--config", "a.toml", "--config_file", "b.toml"},
       "--config a.toml",
       "--config_file b.toml"},
  };
  for (const auto& row : rows) {
    const std::string effect = effect_of(row.words);
    EXPECT_SAYS(effect, "contradict each other");
    EXPECT_SAYS(effect, row.one);
    EXPECT_SAYS(effect, row.other);
  }
  EXPECT_EQ(effect_of({"-n", "2", "-n", "4"}), "-n=4");
  EXPECT_EQ(effect_of({"-n", "4", "--num_processes", "4"}), "-n=4");
  EXPECT_EQ(effect_of({"--num_processes=02", "-n", "2"}), "-n=2");
  EXPECT_EQ(effect_of({"-n", "4", "-o", "launch.processes=4"}), "-n=4");
  EXPECT_EQ(effect_of({"--cpu", "-o", "training.device=cpu"}), "training.device=cpu cpu");
}

TEST(ForeignOptions, ThatNothingReads_AreRefused_NamingTheKeyAndTheRemedy) {
  const auto unread = [](const Words& words, const config::Config& config) {
    return refusal([&] { check_keys_are_read(parse_foreign(words), config); });
  };
  config::Config config;
  config.backend.use = "gloo_cpu";
  config.sources["backend.use"] = {config::ValueSource::Kind::kFile, "train.toml:2:1"};
  const std::string zero = unread({"--zero_stage", "3"}, config);
  EXPECT_SAYS(zero, "--zero_stage 3 has an effect only if backend.use is \"deepspeed_like\"");
  EXPECT_SAYS(zero, "\"gloo_cpu\" (train.toml:2:1)");
  EXPECT_SAYS(zero, "add --use_deepspeed");
  EXPECT_SAYS(unread({"--fsdp_offload_params", "true"}, config), "add --use_fsdp");
  EXPECT_SAYS(unread({"--fp8_format", "E4M3"}, config), "add --mixed_precision fp8");
  EXPECT_EQ(unread({"-o", "backend.fsdp.prefetch=1"}, config), "no error");
  config.backend.use = "deepspeed_like";
  EXPECT_EQ(unread({"--zero_stage", "3"}, config), "no error");
}

}  // namespace
}  // namespace coupler::cli
