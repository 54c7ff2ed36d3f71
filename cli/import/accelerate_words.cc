// What the settings of Accelerate 1.15 become (commands/launch.py, commands/config/config_args.py
// and cluster.py there), and older keys that it still reads. Here: hardware, processes, precision.
#include "cli/import/accelerate_words.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/text.h"

namespace coupler::cli {
namespace {

constexpr const char* kNoHistory = "scales come from the current tensor, not from a history";
constexpr const char* kOurStore = "ranks meet in the launcher's store";
constexpr std::array<std::string_view, 7> kOtherHardware = {
    "multi_npu", "multi_mlu", "multi_sdaa", "multi_musa", "multi_xpu", "multi_hpu", "multi_neuron"};

Answer precision(ConfigDraft& draft, const std::string& value) {
  static const ImportRule word = as_word("training.mixed_precision", {"no", "bf16", "fp16", "fp8"});
  return word(draft, lower(value) == "false" ? "no" : value);  // YAML reads "no" as false
}

Answer distributed_type(ConfigDraft& draft, const std::string& value) {
  const std::string text = lower(value);
  if (text == "no") return "one process needs no backend";
  if (text == "fsdp") {
    draft.set("backend.use", std::string("fsdp"));
  } else if (text == "deepspeed") {
    draft.set("backend.use", std::string("deepspeed_like"));
  } else if (text == "multi_gpu") {
    draft.set("backend.use", std::string("nccl"));
  } else if (text == "multi_cpu") {
    draft.set("training.device", std::string("cpu"));
    draft.set("backend.use", std::string("auto"));
  } else if (text == "megatron_lm") {
    return unsupported("Megatron-LM is not supported", "parallel.tensor divides unmodified models");
  } else if (text == "tp") {
    return unsupported("tensor parallelism is not a type", "set parallel.tensor");
  } else if (text == "tpu" || text == "xla") {
    return unsupported("TPUs are not supported: LibTorch has no XLA in C++");
  } else if (text == "data_parallel" || text == "model_parallel") {
    return "SageMaker jobs are not supported";
  } else if (std::find(kOtherHardware.begin(), kOtherHardware.end(), text) !=
             kOtherHardware.end()) {
    return unsupported("LibTorch knows such devices, but Coupler's transports do not");
  } else {
    return refused(value, "an Accelerate type");
  }
  return {};
}

Answer processes(ConfigDraft& draft, const std::string& value) {
  const auto number = integer_of(value);
  if (is_left_open(value) || number == -1) return "set it with -n of coupler launch";
  if (!number || *number < 1) return refused(value, "a number of processes");
  draft.set("launch.processes", *number);
  return {};
}

Answer use_cpu(ConfigDraft& draft, const std::string& value) {
  if (is_left_open(value)) return left_open();
  if (!is_on(value)) return switched_off();
  draft.set("training.device", std::string("cpu"));
  return {};
}

// In a file; the option of the launcher does not decide about the backend. resolve_import() sets
// the transport, since the backend may be named after it.
Answer mpirun_hostfile(ConfigDraft&, const std::string& value) {
  if (is_left_open(value)) return left_open();
  return {Answer::Kind::kTaken,
          "also needs options of coupler launch: --via mpirun --hostfile " + for_message(value)};
}

// An option of `coupler launch`, unless the value is the usual one.
ImportRule launch_option_unless(const char* usual, const char* words) {
  return [usual, words](ConfigDraft&, const std::string& value) -> Answer {
    if (is_left_open(value)) return left_open();
    if (lower(value) == usual) return "nothing to set";
    return "an option of coupler launch: " + with_value(words, for_message(value));
  };
}

std::vector<AccelerateWord> words_of_processes() {
  return {
      {"--config_file FILE", {}, {}, "--config {}", "same as --config FILE"},
      {"",
       {"compute_environment"},
       [](ConfigDraft&, const std::string& value) -> Answer {
         if (lower(value) == "local_machine") return "nothing to set";
         return "SageMaker jobs are not supported";
       }},
      {"", {"distributed_type"}, distributed_type},
      {"--cpu", {"use_cpu"}, use_cpu, {}, "train on CPUs"},
      {"--multi_gpu", {}, {}, {}, "train on CUDA devices"},
      {"--num_processes N", {"num_processes"}, processes, "-n {}", "same as -n N"},
      {"--num_machines M",
       {"num_machines"},
       launch_option_unless("1", "--machines {}"),
       "--machines {}",
       "same as --machines M"},
      {"--machine_rank R", {"machine_rank"}, {}, "--machine-rank {}", "same as --machine-rank R"},
      {"--main_process_ip H",
       {"main_process_ip"},
       {},
       "--main-address {}",
       "same as --main-address H"},
      {"--main_process_port P",
       {"main_process_port"},
       launch_option_unless("", "--main-port {}; on one machine a free port is chosen"),
       "--main-port {}",
       "same as --main-port P"},
      {"--gpu_ids IDS", {"gpu_ids"}, launch_option_unless("all", "--gpu_ids {}"), {}, {}},
      {"--same_network", {"same_network"}, without("nothing to set: only --main-address matters")},
      {"--rdzv_backend NAME", {"rdzv_backend"}, without(kOurStore)},
      {"--rdzv_conf SETTINGS", {"rdzv_conf"}, without(kOurStore)},
      {"--max_restarts N", {}, {}, "--max-restarts {}"},
      {"--monitor_interval S", {}, without("the kernel reports at once that a process ended")},
      {"--log_dir FOLDER", {}, {}, "--log-dir {}"},
      {"-t, --tee WHAT", {}, without("--log-dir writes both outputs to file and terminal")},
      {"--role NAME", {}, without("ranks have no roles")},
      {"--main_training_function NAME",
       {"main_training_function"},
       without("a whole program is launched, not a function")},
      {"--mpirun_hostfile FILE",
       {"mpirun_config.mpirun_hostfile"},
       mpirun_hostfile,
       "--via mpirun --hostfile {}",
       "same as --via mpirun --hostfile FILE"},
      {"", {"mpirun_config.mpirun_ccl"}, without("Open MPI needs no such setting")},
      {"--enable_cpu_affinity",
       {"enable_cpu_affinity"},
       [](ConfigDraft&, const std::string& value) -> Answer {
         if (is_left_open(value)) return left_open();
         if (is_off(value)) return switched_off();
         return "an option of coupler launch: --bind numa";
       },
       "--bind numa",
       "same as --bind numa"},
      {"--num_cpu_threads_per_process N",
       {"num_cpu_threads_per_process"},
       as_integer("launch.threads_per_process"),
       {},
       "same as -o launch.threads_per_process=N"},
      {"-q, --quiet", {}, without("")},
      {"--no_python", {}, without("")},
      {"--debug", {"debug"}, without("operations are always compared between ranks")},
      {"-m, --module",
       {},
       without_unless_off("programs are executables, not Python modules",
                          "give the program's path")},
  };
}

std::vector<AccelerateWord> words_of_precision() {
  return {
      {"--mixed_precision no|bf16|fp16|fp8",
       {"mixed_precision"},
       precision,
       {},
       "set training.mixed_precision"},
      {"",
       {"fp16"},
       [](ConfigDraft& draft, const std::string& value) -> Answer {
         draft.set("training.mixed_precision", std::string(is_on(value) ? "fp16" : "no"));
         return {};
       }},
      {"--fp8_format HYBRID|E4M3|E5M2",
       {"fp8_config.fp8_format"},
       as_word("training.fp8_format", {"hybrid", "e4m3"}),
       {},
       "set training.fp8_format; E5M2 alone is refused"},
      {"--fp8_backend ao|te|msamp",
       {"fp8_config.backend"},
       without("there is only one implementation")},
      {"--fp8_use_autocast_during_eval",
       {"fp8_config.use_autocast_during_eval"},
       without("autocast applies in loops over prepared loaders and inside accelerator.autocast(), "
               "in evaluation, too")},
      {"--fp8_margin N", {"fp8_config.margin"}, without(kNoHistory)},
      {"--fp8_interval N",
       {"fp8_config.interval"},
       without("scales are computed for every tensor, not at intervals")},
      {"--fp8_amax_history_len N",
       {"fp8_config.amax_history_len", "fp8_config.amax_history_length"},
       without(kNoHistory)},
      {"--fp8_amax_compute_algo max|most_recent",
       {"fp8_config.amax_compute_algo", "fp8_config.amax_compute_algorithm"},
       without("the largest value of the current tensor is used")},
      {"--fp8_override_linear_precision VALUES",
       {"fp8_config.override_linear_precision"},
       without("linear layers are fp8 in both directions")},
      {"--fp8_opt_level O1|O2",
       {"fp8_config.opt_level", "fp8_config.optimization_level"},
       without("for MS-AMP, which is not used")},
      {"--fp8_enable_fsdp_float8_all_gather BOOL",
       {"fp8_config.enable_fsdp_float8_all_gather"},
       without_unless_off("parameters are gathered in their own dtype or in param_dtype",
                          "set backend.fsdp.param_dtype to bf16 to send half as much")},
      {"--fp8_pad_inner_dim BOOL",
       {"fp8_config.pad_inner_dim"},
       without("matrix products of every size work")},
  };
}

}  // namespace

const std::vector<AccelerateWord>& accelerate_words() {
  static const std::vector<AccelerateWord> all = [] {
    std::vector<AccelerateWord> words = words_of_processes();
    for (const auto& part :
         {words_of_precision(), accelerate_sharding_words(), accelerate_megatron_words()})
      words.insert(words.end(), part.begin(), part.end());
    return words;
  }();
  return all;
}

std::string with_value(std::string_view launch_words, const std::string& value) {
  std::string text(launch_words);
  const size_t at = text.find("{}");
  return at == std::string::npos ? text : text.replace(at, 2, value);
}

ImportRules accelerate_rules() {
  ImportRules rules;
  for (const AccelerateWord& word : accelerate_words()) {
    for (const std::string_view key : word.keys) {
      rules[std::string(key)] =
          word.rule ? word.rule : launch_option_unless("", word.launch_words.data());
    }
  }
  return rules;
}

std::string accelerate_table_answer(const std::string& table) {
  if (table == "megatron_lm_config") return "Megatron-LM is not supported";
  if (table == "tpu_env") return "set the variables before the command: ranks inherit them";
  if (table == "dynamo_config") return "C++ modules cannot be traced";
  if (table == "parallelism_config") return "no such setting is known; [parallel] has the sizes";
  static const std::set<std::string> of_sagemaker = {"additional_args",
                                                     "base_job_name",
                                                     "ec2_instance_type",
                                                     "iam_role_name",
                                                     "image_uri",
                                                     "profile",
                                                     "py_version",
                                                     "pytorch_version",
                                                     "region",
                                                     "sagemaker_inputs_file",
                                                     "sagemaker_metrics_file",
                                                     "transformers_version"};
  return of_sagemaker.count(table) != 0 ? "for SageMaker" : "";
}

}  // namespace coupler::cli
