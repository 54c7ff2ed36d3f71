// The options of the command line: ours and Accelerate's.
#include "cli/launch/launch_options.h"

#include "parsed_options.h"
#include "refusal.h"

namespace coupler::cli {
namespace {

LaunchOptions parse(const std::vector<std::string>& words) {
  LaunchOptions options = parsed_options(words);
  apply_settings(options, {});
  return options;
}

std::string problem_of(const std::vector<std::string>& words) {
  return refusal([&] { parse(words); });
}

using Overrides = std::vector<std::string>;

Overrides backend_of(const std::vector<std::string>& words, const std::string& use = "auto") {
  config::Config config;
  config.backend.use = use;
  return backend_overrides(parse(words).backend, config);
}

TEST(LaunchOptions, AcceleratesWords_AreOurs_WithEitherDash) {
  for (const bool dashes : {false, true}) {
    std::vector<std::string> words = {"--num_processes",
                                      "4",
                                      "--num_machines",
                                      "2",
                                      "--machine_rank",
                                      "1",
                                      "--main_process_ip",
                                      "10.0.0.1",
                                      "--config_file",
                                      "a.toml",
                                      "--log_dir",
                                      "logs",
                                      "--same_network",
                                      "--main_process_port=29501",
                                      "--enable_cpu_affinity"};
    for (auto& word : words) {
      for (size_t i = 2; dashes && i < word.size(); ++i) {
        word[i] = word[i] == '_' ? '-' : word[i];
      }
    }
    const auto options = parse(words);
    EXPECT_EQ(options.processes, 4);
    EXPECT_EQ(options.machines, 2);
    EXPECT_EQ(options.machine_rank, 1);
    EXPECT_EQ(options.main_address, "10.0.0.1");
    EXPECT_EQ(options.main_port, 29501);
    EXPECT_EQ(options.request.file, "a.toml");
    EXPECT_EQ(options.log_dir, "logs");
    EXPECT_EQ(options.bind, Bind::kNuma);
  }
}

TEST(LaunchOptions, AcceleratesSettings_AreKeysOfTheConfiguration) {
  EXPECT_EQ(parse({"--mixed_precision", "bf16", "--num_cpu_threads_per_process=3",
                   "--gradient_accumulation_steps", "4", "--zero_stage", "3",
                   "--fsdp_sharding_strategy", "SHARD_GRAD_OP"})
                .request.overrides,
            (Overrides{"launch.threads_per_process=3", "training.mixed_precision=\"bf16\"",
                       "backend.fsdp.strategy=\"shard_grad_op\"", "backend.deepspeed_like.stage=3",
                       "training.gradient_accumulation_steps=4"}));
  EXPECT_EQ(parse({"--fsdp_sharding_strategy", "1"}).request.overrides,
            Overrides{"backend.fsdp.strategy=\"full_shard\""});
  EXPECT_EQ(parse({"--mpirun_hostfile", "h"}).via, Via::kMpirun);
}

TEST(LaunchOptions, BackendWords_AreBackendAndBase) {
  EXPECT_EQ(backend_of({}), Overrides{});
  EXPECT_EQ(backend_of({"--cpu"}),
            (Overrides{"training.device=\"cpu\"", "backend.use=\"gloo_cpu\""}));
  EXPECT_EQ(backend_of({"--cpu"}, "mpi"), Overrides{"training.device=\"cpu\""});
  EXPECT_EQ(backend_of({"--multi_gpu"}),
            (Overrides{"training.device=\"cuda\"", "backend.use=\"nccl\""}));
  EXPECT_EQ(backend_of({"--use_fsdp"}), Overrides{"backend.use=\"fsdp\""});
  EXPECT_EQ(backend_of({"--use_deepspeed", "--cpu"}),
            (Overrides{"backend.use=\"deepspeed_like\"", "training.device=\"cpu\"",
                       "backend.deepspeed_like.base=\"gloo_cpu\""}));
  EXPECT_EQ(backend_of({"--use_fsdp", "--multi_gpu"}, "fsdp"),
            (Overrides{"backend.use=\"fsdp\"", "training.device=\"cuda\"",
                       "backend.fsdp.base=\"nccl\""}));
}

TEST(LaunchOptions, BackendWordsThatContradict_AreRefused_NamingTheKey) {
  EXPECT_SAYS(refusal([] { backend_of({"--use_fsdp", "--use_deepspeed"}); }), "--use_deepspeed");
  EXPECT_SAYS(refusal([] { backend_of({"--cpu", "--multi_gpu"}); }), "--multi_gpu");
  EXPECT_SAYS(refusal([] { backend_of({"--cpu"}, "nccl"); }), "backend.use is \"nccl\"");
  EXPECT_SAYS(refusal([] { backend_of({"--use_fsdp"}, "mpi"); }), "the configuration has \"mpi\"");
}

TEST(LaunchOptions, WordsOfWhatIsNotThere_AreRefused_WithTheFix) {
  const struct {
    std::vector<std::string> words;
    const char* says;
  } rows[] = {{{"--tpu"}, "no backend for TPUs"},
              {{"--use_megatron_lm"}, "--use_fsdp"},
              {{"--gpu_ids", "0,"}, "expected device numbers"},
              {{"-m"}, "executables"},
              {{"--dynamo_backend", "inductor"}, "torch.compile"},
              {{"--parallelism_config_tp_size", "0"}, "a number of ranks"},
              {{"--deepspeed_config_file", "x"}, "coupler config import x"}};
  for (const auto& row : rows) {
    const auto text = problem_of(row.words);
    EXPECT_SAYS(text, row.words.front());
    EXPECT_SAYS(text, row.says);
  }
}

TEST(LaunchOptions, UnknownWords_AreRefused_NamingTheNearest) {
  EXPECT_SAYS(problem_of({"--num_proceses", "2"}), "did you mean '--num-processes'?");
  EXPECT_SAYS(problem_of({"--prefx"}), "did you mean '--prefix'?");
  EXPECT_SAYS(problem_of({"--hostfil=x"}), "did you mean '--hostfile'?");
  EXPECT_SAYS(problem_of({"--frobnicate"}), "unknown argument '--frobnicate'");
  EXPECT_SAYS(problem_of({"-x"}), "unknown argument '-x'");
}

TEST(LaunchOptions, WrongValues_AreRefused_NamingTheWord) {
  const struct {
    std::vector<std::string> words;
    const char* says;
  } rows[] = {{{"--via", "mpi"}, "'mpi' is not one of local, mpirun, slurm, torchrun, k8s"},
              {{"--via", "mpirn"}, "did you mean 'mpirun'?"},
              {{"--bind", "cores"}, "did you mean 'core'?"},
              {{"--main_process_port", "65536"}, "'65536' is not a valid port"},
              {{"--main_process_port", "http"}, "--main_process_port"},
              {{"--machine_rank", "-1"}, "'-1' is not a valid machine rank"},
              {{"--mixed_precision", "int8"}, "no, bf16, fp16, fp8"},
              {{"--zero_stage", "4"}, "backend.deepspeed_like.stage must be 0 to 3"},
              {{"--fsdp_sharding_strategy", "half"}, "FULL_SHARD"},
              {{"--manifest", "job"}, "jobset"},
              {{"--prefix=yes"}, "--prefix takes no value"},
              {{"--log-dir", ""}, "--log-dir needs a value"},
              {{"-o", "a=\"x\ny\""}, "on one line"}};
  for (const auto& row : rows) {
    EXPECT_SAYS(problem_of(row.words), row.says);
  }
}

TEST(LaunchOptions, TextOverrides_AreToml) {
  EXPECT_EQ(text_override("backend.use", "/a \"b\"\\c"), "backend.use=\"/a \\\"b\\\"\\\\c\"");
}

}  // namespace
}  // namespace coupler::cli
