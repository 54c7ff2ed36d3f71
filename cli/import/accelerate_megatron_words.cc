// Accelerate's settings for what is not here: Megatron-LM, TPUs, SageMaker, torch.compile, IPEX. An
// option of Megatron-LM names what does the same here, if anything does.
#include "cli/import/accelerate_words.h"

namespace coupler::cli {
namespace {

struct MegatronSetting {
  std::string_view option, key;
  const char* usual;  // the value that asks for nothing
  const char* why;
  const char* instead;
};

constexpr MegatronSetting kMegatron[] = {
    {"--megatron_lm_num_micro_batches N", "megatron_lm_config.megatron_lm_num_micro_batches", "1",
     "a pipeline's micro-batches are set in the program",
     "set micro_batches of coupler::prepare_pipeline"},
    {"--megatron_lm_decoder_last_pipeline_num_layers N",
     "megatron_lm_config.megatron_lm_decoder_last_pipeline_num_layers", "",
     "a pipeline's stages are set in the program",
     "name the layers of each stage for coupler::prepare_pipeline"},
    {"--megatron_lm_expert_tensor_parallel_size N",
     "megatron_lm_config.megatron_lm_expert_tensor_parallel_size", "1",
     "an expert is whole on its rank", "divide the experts with parallel.expert"},
    {"--megatron_lm_use_custom_fsdp BOOL", "megatron_lm_config.megatron_lm_use_custom_fsdp",
     "false", "Megatron-LM's FSDP is not supported", "use --use_fsdp"},
    {"--megatron_lm_use_distributed_optimizer BOOL",
     "megatron_lm_config.megatron_lm_use_distributed_optimizer", "false",
     "Megatron-LM's optimizer is not supported",
     "shard optimizer state with --use_deepspeed --zero_stage 1"},
    {"--megatron_lm_optimizer_cpu_offload BOOL",
     "megatron_lm_config.megatron_lm_optimizer_cpu_offload", "false",
     "Megatron-LM's optimizer is not supported",
     "use --use_deepspeed --offload_optimizer_device cpu"},
    {"--megatron_lm_overlap_cpu_optimizer_d2h_h2d BOOL",
     "megatron_lm_config.megatron_lm_overlap_cpu_optimizer_d2h_h2d", "false",
     "offloaded state is always moved during the update",
     "use --use_deepspeed --offload_optimizer_device cpu"},
    {"--megatron_lm_use_precision_aware_optimizer BOOL",
     "megatron_lm_config.megatron_lm_use_precision_aware_optimizer", "false",
     "optimizer state has the dtype of the parameters", "omit it"},
    {"--megatron_lm_no_load_optim BOOL", "megatron_lm_config.megatron_lm_no_load_optim", "false",
     "load_state restores all that was prepared",
     "to load weights only, call coupler::load_checkpoint_in_model"},
    {"--megatron_lm_no_save_optim BOOL", "megatron_lm_config.megatron_lm_no_save_optim", "false",
     "save_state saves all that was prepared", "to save weights only, call accelerator.save_model"},
    {"--megatron_lm_gradient_clipping X", "megatron_lm_config.megatron_lm_gradient_clipping", "",
     "gradients are clipped in the loop", "call accelerator.clip_grad_norm(net, …) in the loop"},
    {"--megatron_lm_recompute_activations BOOL",
     "megatron_lm_config.megatron_lm_recompute_activations", "false",
     "memory.activation_checkpointing takes module names: [\"blocks.*\"]",
     "set it in train.toml, or with -o"},
    {"--megatron_lm_recompute_granularity full|selective",
     "megatron_lm_config.megatron_lm_recompute_granularity", "",
     "memory.activation_checkpointing recomputes whole modules",
     "name them in train.toml, or with -o"},
    {"--megatron_lm_recompute_method uniform|block",
     "megatron_lm_config.megatron_lm_recompute_method", "",
     "memory.activation_checkpointing names the modules to recompute",
     "name them in train.toml, or with -o"},
    {"--megatron_lm_recompute_num_layers N", "megatron_lm_config.megatron_lm_recompute_num_layers",
     "", "memory.activation_checkpointing names the modules to recompute",
     "name them in train.toml, or with -o"},
    {"--megatron_lm_eod_mask_loss BOOL", "megatron_lm_config.megatron_lm_eod_mask_loss", "false",
     "the loss is computed in the program", "leave out those tokens there"},
    {"--megatron_lm_calculate_per_token_loss BOOL",
     "megatron_lm_config.megatron_lm_calculate_per_token_loss", "false",
     "the loss is computed in the program", "divide by the number of tokens there"},
    {"--megatron_lm_attention_backend BOOL", "megatron_lm_config.megatron_lm_attention_backend", "",
     "the model's own attention is used", "choose it in the program"},
    {"--megatron_lm_attention_dropout X", "megatron_lm_config.megatron_lm_attention_dropout", "",
     "dropout is set in the model", "give it to the model's constructor"},
    {"--megatron_lm_hidden_dropout X", "megatron_lm_config.megatron_lm_hidden_dropout", "",
     "dropout is set in the model", "give it to the model's constructor"},
    {"--megatron_lm_attention_softmax_in_fp32 BOOL",
     "megatron_lm_config.megatron_lm_attention_softmax_in_fp32", "true",
     "autocast computes softmax in fp32 already", "omit it"},
    {"--megatron_lm_use_rotary_position_embeddings BOOL",
     "megatron_lm_config.megatron_lm_use_rotary_position_embeddings", "false",
     "position embeddings are part of the model", "choose them in the program"},
};

std::vector<AccelerateWord> words_of_tpus() {
  constexpr const char* kForTpus = "for TPUs: LibTorch has no XLA in C++";
  return {
      {"--tpu",
       {},
       without_unless_off("there is no backend for TPUs", "omit it to run the program on CPUs")},
      {"--tpu_cluster",
       {"tpu_use_cluster"},
       without_unless_off(kForTpus, "use --machines for several machines")},
      {"--no_tpu_cluster", {}, without("a cluster of TPUs is never used")},
      {"--tpu_use_sudo",
       {"tpu_use_sudo"},
       without_unless_off(kForTpus, "run coupler launch itself with sudo")},
      {"--vm NAME",
       {"tpu_vm"},
       without_unless_off(kForTpus, "list machines in a file for --via mpirun --hostfile FILE")},
      {"--env NAME=VALUE",
       {"tpu_env"},
       without_unless_off(kForTpus, "set the variable before the command: ranks inherit it")},
      {"--downcast_bf16",
       {"downcast_bf16"},
       without_unless_off(kForTpus, "use --mixed_precision bf16")},
      {"",
       {"tpu_name", "tpu_zone", "command_file", "command", "commands"},
       without_unless_off(kForTpus)},
  };
}

std::vector<AccelerateWord> words_of_other_libraries() {
  constexpr const char* kNoTracing = "C++ modules cannot be traced";
  constexpr const char* kNoCompile =
      "torch.compile is for Python; a C++ program is already compiled";
  constexpr const char* kNoSageMaker = "SageMaker jobs are not supported";
  return {
      {"--dynamo_backend NAME", {"dynamo_backend"}, without_unless_off(kNoCompile)},
      {"--dynamo_mode NAME", {}, without_unless("default", kNoCompile)},
      {"--dynamo_use_fullgraph", {}, without_unless_off(kNoTracing)},
      {"--dynamo_use_dynamic", {}, without_unless_off(kNoTracing, "omit it: shapes may vary")},
      {"--dynamo_use_regional_compilation", {}, without_unless_off(kNoTracing)},
      {"", {"dynamo_config"}, without_unless_off(kNoTracing)},
      {"", {"ipex_config.ipex"}, without_unless_off("LibTorch's own kernels are used")},
      {"",
       {"ipex_config.use_xpu"},
       without_unless_off("LibTorch knows XPUs, but Coupler's transports do not")},
      {"--aws_access_key_id ID",
       {},
       without_unless_off(kNoSageMaker, "start coupler launch inside the job's container")},
      {"--aws_secret_access_key KEY",
       {},
       without_unless_off(kNoSageMaker,
                          "omit it, and do not write secrets on a command line, which others can "
                          "read")},
  };
}

}  // namespace

std::vector<AccelerateWord> accelerate_megatron_words() {
  std::vector<AccelerateWord> words = {
      {"--use_megatron_lm",
       {},
       without_unless_off("Megatron-LM is not supported",
                          "divide the model with --megatron_lm_tp_degree, or shard with --use_fsdp "
                          "or --use_deepspeed")}};
  for (const MegatronSetting& setting : kMegatron) {
    words.push_back({setting.option,
                     {setting.key},
                     without_unless(setting.usual, setting.why, setting.instead)});
  }
  words.push_back({"--megatron_lm_tp_degree N",
                   {"megatron_lm_config.megatron_lm_tp_degree"},
                   as_mesh_size("parallel.tensor")});
  words.push_back({"--megatron_lm_pp_degree N",
                   {"megatron_lm_config.megatron_lm_pp_degree"},
                   as_mesh_size("parallel.pipeline")});
  words.push_back({"--megatron_lm_sequence_parallelism BOOL",
                   {"megatron_lm_config.megatron_lm_sequence_parallelism"},
                   as_boolean("parallel.sequence")});
  words.push_back({"--megatron_lm_context_parallel_size N",
                   {"megatron_lm_config.megatron_lm_context_parallel_size"},
                   as_mesh_size("parallel.context")});
  words.push_back({"--megatron_lm_expert_model_parallel_size N",
                   {"megatron_lm_config.megatron_lm_expert_model_parallel_size"},
                   as_mesh_size("parallel.expert")});
  for (const auto& part : {words_of_tpus(), words_of_other_libraries()})
    words.insert(words.end(), part.begin(), part.end());
  return words;
}

}  // namespace coupler::cli
