// coupler config import: every configuration that Accelerate's own tests read, in the format of
// each version (tests/e2e/cli/accelerate), and DeepSpeed's JSON.
#include <gtest/gtest.h>

#include <regex>
#include <sstream>

#include "run_program.h"

namespace coupler {
namespace {

struct Case {
  const char* name;
  std::vector<std::string> keys;   // lines of the TOML file
  std::vector<std::string> words;  // parts of the output
};

void PrintTo(const Case& it, std::ostream* out) { *out << it.name; }

class Imported : public ::testing::TestWithParam<Case> {};

TEST_P(Imported, IsTakenOver_AndNoKeyIsPassedOver) {
  const Workplace here;
  const std::string source = text_of(std::string(ACCELERATE_CONFIGS) + "/" + GetParam().name);
  here.write("theirs.yaml", source);
  const Outcome outcome = here.coupler({"config", "import", "theirs.yaml"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string toml = text_of(here.path() / "train.toml");
  for (const std::string& key : GetParam().keys)
    EXPECT_TRUE(has(toml, "\n" + key + "\n")) << key << " is not in\n" << toml;
  for (const std::string& words : GetParam().words)
    EXPECT_TRUE(has(outcome.out, words)) << words << " is not in\n" << outcome.out;
  // Each of the file's keys with a value is named.
  const std::regex line("^( *)([a-z0-9_]+): *(.*)$");
  std::istringstream lines(source);
  for (std::string text; std::getline(lines, text);) {
    std::smatch parts;
    if (!std::regex_match(text, parts, line) || parts[3] == "{}" || parts[3].length() == 0)
      continue;
    EXPECT_TRUE(has(outcome.out, parts[2].str() + ": ")) << parts[2] << " is not in\n"
                                                         << outcome.out;
  }
  // The written file is a valid configuration.
  const Outcome checked = here.coupler({"config", "--explain"});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
}

INSTANTIATE_TEST_SUITE_P(
    OfAccelerate, Imported,
    ::testing::Values(
        Case{"0_11_0.yaml", {"mixed_precision = \"no\"", "processes = 1"}, {"fp16: false"}},
        Case{"0_12_0.yaml", {"mixed_precision = \"no\"", "processes = 1"}, {}},
        Case{"0_28_0_mpi.yaml",
             {"use = \"mpi\"", "device = \"cpu\"", "processes = 16"},
             {"num_machines: 4: mpirun takes its machines from the hostfile",
              "--hostfile /home/user/hostfile"}},
        Case{"0_30_0_sagemaker.yaml", {"mixed_precision = \"fp16\""}, {"SageMaker"}},
        Case{"0_34_0_fp8.yaml",
             {"use = \"nccl\"", "mixed_precision = \"fp8\"", "fp8_format = \"e4m3\"",
              "processes = 2"},
             {"fp8_config.margin"}},
        Case{"debug.yaml", {"processes = 1"}, {"operations are always compared"}},
        Case{"downcast.yaml", {"processes = 1"}, {"downcast_bf16: yes: for TPUs"}},
        Case{"fsdp.yaml",
             {"use = \"fsdp\"", "strategy = \"shard_grad_op\"", "units = \"size\"",
              "unit_min_parameters = 2000", "offload.device = \"cpu\"", "prefetch = 0",
              "mixed_precision = \"bf16\""},
             {}},
        Case{"invalid_keys.yaml",
             {"processes = 1"},
             {"invalid_key: invalid_value: unknown key", "did you mean 'mixed_precision'?"}},
        Case{"latest.yaml", {"processes = 1"}, {"tpu_name: test-tpu: for TPUs"}},
        Case{"latest_fsdp.yaml",
             {"use = \"fsdp\"", "strategy = \"full_shard\"", "units = \"types\"",
              "unit_types = \"BertLayer\"", "prefetch = 1"},
             {"fsdp_config.fsdp_use_orig_params"}},
        Case{"megatron.yaml", {"processes = 1"}, {"Megatron-LM is not supported"}},
        Case{"mpi_multicpu.yaml", {"use = \"mpi\""}, {}},
        Case{"one_proc.yaml", {"processes = 1"}, {}},
        Case{"validate_launch_cmd.yaml",
             {"processes = 1"},
             {"coupler config import path/to/be/ignored"}},
        Case{"deepspeed.yaml",
             {"use = \"deepspeed_like\"", "stage = 3", "offload_optimizer.device = \"cpu\"",
              "gradient_accumulation_steps = 2", "processes = 8"},
             {"clip_grad_norm", "EmptyWeights"}}),
    [](const auto& of) {
      std::string name = of.param.name;
      return "v" + name.substr(0, name.find('.'));
    });

constexpr const char* kDeepSpeed = R"({
  "train_batch_size": "auto",
  "gradient_accumulation_steps": 4,
  "gradient_clipping": 1.0,
  "fp16": {"enabled": true, "initial_scale_power": 10, "loss_scale_window": 500},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-5}},
  "zero_optimization": {
    "stage": 3,
    "overlap_comm": true,
    "reduce_bucket_size": 5e8,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/scratch", "pin_memory": true},
    "stage3_max_reuse_distance": 1e9
  },
  "no_such": 1
})";

TEST(ConfigImport, OfDeepSpeed_TakesStagesAndOffloading) {
  const Workplace here;
  here.write("ds.json", kDeepSpeed);
  const Outcome outcome = here.coupler({"config", "import", "ds.json", "--output", "ds.toml"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string toml = text_of(here.path() / "ds.toml");
  for (const char* key :
       {"use = \"deepspeed_like\"", "stage = 3", "overlap_comm = \"true\"",
        "reduce_bucket_size = 500000000", "offload_optimizer.device = \"nvme\"",
        "offload_optimizer.nvme_path = \"/scratch\"", "gradient_accumulation_steps = 4",
        "mixed_precision = \"fp16\"", "loss_scale_growth_interval = 500"})
    EXPECT_TRUE(has(toml, key)) << key << " is not in\n" << toml;
  EXPECT_TRUE(has(toml, "loss_scale_init_scale = 1024")) << toml;
  EXPECT_TRUE(has(outcome.out, "optimizer.params.lr: 3e-05: created in the program"))
      << outcome.out;
  EXPECT_TRUE(has(outcome.out, "no_such: 1: unknown key")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "pin_memory: true: only for the device cpu")) << outcome.out;
  const Outcome checked =
      here.coupler({"config", "check", "--config", "ds.toml", "-n", "2", "-o",
                    "backend.deepspeed_like.base=gloo_cpu", "-o",
                    "backend.deepspeed_like.offload_optimizer.nvme_path=" + here.path().string()});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_EQ(here.coupler({"config", "--explain", "--config", "ds.toml"}).exit_code, 0);
}

TEST(ConfigImport, OfWhatIsNeither_SaysWhere_AndWritesNothing) {
  const Workplace here;
  here.write("list.yaml", "- a\n- b\n");
  here.write("broken.yaml", "a: [1, 2\nb: 3\n");
  here.write("broken.json", "{\"a\": 1,\n");
  here.write("text", "just text");
  for (const auto& [name, words] :
       {std::pair<std::string, std::string>{"list.yaml", "no keys and values"},
        {"broken.yaml", "broken.yaml:"},
        {"broken.json", "invalid JSON"},
        {"text", "no keys and values"},
        {"absent", "cannot read absent"}}) {
    const Outcome outcome = here.coupler({"config", "import", name});
    EXPECT_NE(outcome.exit_code, 0) << name;
    EXPECT_TRUE(has(outcome.err, words)) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(here.path() / "train.toml")) << name;
  }
}

// The imported configuration is complete: the backend accepts all of it.
void expect_right(const Workplace& here, const std::string& base) {
  const Outcome checked =
      here.coupler({"config", "check", "-n", "2", "-o", "backend." + base + ".base=gloo_cpu"});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
}

TEST(ConfigImport, OfDeepSpeed_LeavesOpenWhatIsAuto) {
  const Workplace here;
  here.write("ds.json",
             "\xef\xbb\xbf// made by hand\n{\"bf16\": {\"enabled\": \"auto\"},\n"
             "\"gradient_clipping\": \"auto\", \"train_batch_size\": \"auto\",\n"
             "\"optimizer\": {\"params\": {\"betas\": [0.9, [0.5]]}},\n"
             "\"zero_optimization\": {\"stage\": \"2\", \"overlap_comm\": \"auto\",\n"
             "\"offload_optimizer\": {\"device\": \"none\", \"pin_memory\": true},\n"
             "\"offload_param\": {\"device\": \"cpu\"}, \"reduce_bucket_size\": 0}}");
  const Outcome outcome = here.coupler({"config", "import", "ds.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string toml = text_of(here.path() / "train.toml");
  EXPECT_TRUE(has(toml, "\nstage = 2\n")) << toml;
  for (const char* key : {"overlap_comm", "mixed_precision", "offload_param", "pin_memory"})
    EXPECT_FALSE(has(toml, key)) << key << " is in\n" << toml;
  for (const char* words :
       {"bf16.enabled: auto: unspecified there: set training.mixed_precision",
        "gradient_clipping: auto: unspecified there; left at its default",
        "betas: 0.9,0.5: created in the program",
        "offload_param.device: cpu: parameters are offloaded only with stage 3",
        "reduce_bucket_size: 0: backend.deepspeed_like.reduce_bucket_size must be >= 1"})
    EXPECT_TRUE(has(outcome.out, words)) << words << " is not in\n" << outcome.out;
  expect_right(here, "deepspeed_like");
}

TEST(ConfigImport, OfDeepSpeedWithoutZero_DividesNothing) {
  const Workplace here;
  here.write("ds.json", "{\"communication_data_type\": \"fp16\"}");
  const Outcome outcome = here.coupler({"config", "import", "ds.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(text_of(here.path() / "train.toml"), "\nstage = 0\n"));
  expect_right(here, "deepspeed_like");
}

TEST(ConfigImport, OfAccelerate_LeavesOutWhatHasNoEffectThere) {
  const Workplace here;
  here.write("acc.yaml",
             "distributed_type: FSDP\nnum_processes: \"8\"\nmain_process_port: null\n"
             "deepspeed_config: &d {gradient_accumulation_steps: -1}\n"
             "fsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
             "  fsdp_min_num_params: 1000\n  fsdp_forward_prefetch: false\n"
             "  fsdp_ignored_modules: 'head|.*norm'\n"
             "parallelism_config:\n  parallelism_config_dp_replicate_size: 1\n"
             "  parallelism_config_dp_shard_size: 4\n  parallelism_config_tp_size: 2\n");
  const Outcome outcome = here.coupler({"config", "import", "acc.yaml"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string toml = text_of(here.path() / "train.toml");
  EXPECT_TRUE(has(toml, "\nprocesses = 8\n")) << toml;
  EXPECT_TRUE(has(toml, "\ntensor = 2\n")) << toml;
  for (const char* key : {"units", "unit_min_parameters", "prefetch", "ignore", "group_size"})
    EXPECT_FALSE(has(toml, key)) << key << " is in\n" << toml;
  for (const char* words :
       {"no types are named", "only for size_based_wrap", "a regular expression: name the modules",
        "all ranks share one replica",
        "main_process_port: null: unspecified there; left at its default",
        "training.gradient_accumulation_steps must be >= 1: left at its default"})
    EXPECT_TRUE(has(outcome.out, words)) << words << " is not in\n" << outcome.out;
  expect_right(here, "fsdp");
}

TEST(ConfigImport, OfAcceleratesJson_IsNotTakenForDeepSpeeds) {
  const Workplace here;
  here.write("acc.json", "{\"distributed_type\": \"FSDP\", \"num_processes\": 2}\n");
  const Outcome outcome = here.coupler({"config", "import", "acc.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(text_of(here.path() / "train.toml"), "use = \"fsdp\""));
}

std::string aliases_of_aliases() {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string below = "*a" + std::to_string(i - 1);
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + below;
    for (int j = 0; j < 9; ++j) text += ", " + below;
    text += "]\n";
  }
  return text;
}

TEST(ConfigImport, OfWhatIsTooMuch_Ends) {
  const Workplace here;
  here.write("bomb.yaml", aliases_of_aliases());
  here.write("circle.yaml", "a: &a\n  b: *a\n");
  here.write("list.yaml", "a: &a [*a]\n");
  here.write("key.yaml", "[a, b]: 1\n");
  here.write("deep.json", "{\"a\": " + std::string(100000, '[') + std::string(100000, ']') + "}");
  here.write("twice.json", "{\"zero_optimization\": {\"stage\": 1, \"stage\": 3}}");
  here.write("long.yaml", "a: " + std::string(2 << 20, 'x') + "\n");
  here.write("latin.yaml", "a: \xe4\n");
  for (const auto& [name, words] :
       {std::pair<std::string, std::string>{"bomb.yaml", "more than 10000 values"},
        {"circle.yaml", "more than 16 levels"},
        {"list.yaml", "more than 16 levels"},
        {"key.yaml", "key.yaml:1:1: a key is not a string"},
        {"deep.json", "more than 16 levels"},
        {"twice.json", "the key 'stage' occurs twice"},
        {"long.yaml", "longer than 1 MiB"},
        {"/dev/zero", "longer than 1 MiB"},
        {"latin.yaml", "not valid UTF-8"},
        {".", "cannot read .: Is a directory"}}) {
    const Outcome outcome = here.coupler({"config", "import", name});
    EXPECT_NE(outcome.exit_code, 0) << name;
    EXPECT_LT(outcome.exit_code, 128) << name << outcome.err;
    EXPECT_TRUE(has(outcome.err, words)) << name << ": " << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(here.path() / "train.toml")) << name;
  }
}

TEST(ConfigImport, ToALink_ReplacesWhatItPointsTo) {
  const Workplace here;
  here.write("ds.json", kDeepSpeed);
  std::filesystem::create_directory(here.path() / "a folder");
  here.write("a folder/mine.toml", "# mine\n", 0600);
  std::filesystem::create_symlink("a folder/mine.toml", here.path() / "train.toml");
  EXPECT_EQ(here.coupler({"config", "import", "ds.json"}).exit_code, 2);
  const Outcome outcome = here.coupler({"config", "import", "ds.json", "--force"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::is_symlink(here.path() / "train.toml"));
  EXPECT_TRUE(has(text_of(here.path() / "a folder/mine.toml"), "deepspeed_like"));
  EXPECT_EQ(std::filesystem::status(here.path() / "a folder/mine.toml").permissions(),
            std::filesystem::perms(0600));
  const Outcome folder = here.coupler({"config", "import", "ds.json", "--output", "a folder"});
  EXPECT_EQ(folder.exit_code, 2);
  EXPECT_TRUE(has(folder.err, "a folder is a folder")) << folder.err;
  const Outcome absent = here.coupler({"config", "import", "ds.json", "--output=no/where.toml"});
  EXPECT_TRUE(has(absent.err, "cannot write no/where.toml: no: No such file")) << absent.err;
}

TEST(ConfigImport, OverAFile_IsRefused_UnlessForced) {
  const Workplace here;
  here.write("train.toml", "# mine\n");
  here.write("ds.json", kDeepSpeed);
  const Outcome refused = here.coupler({"config", "import", "ds.json"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_TRUE(has(refused.err, "train.toml exists")) << refused.err;
  EXPECT_EQ(text_of(here.path() / "train.toml"), "# mine\n");
  EXPECT_EQ(here.coupler({"config", "import", "ds.json", "--force"}).exit_code, 0);
  EXPECT_TRUE(has(text_of(here.path() / "train.toml"), "deepspeed_like"));
}

TEST(ConfigImport, OfAcceleratesWordsForMegatron_NamesWhatDoesTheSame) {
  const Workplace here;
  here.write("acc.yaml",
             "distributed_type: MEGATRON_LM\nnum_processes: 4\ngpu_ids: 0,1\n"
             "megatron_lm_config:\n  megatron_lm_pp_degree: 2\n  megatron_lm_tp_degree: 2\n"
             "  megatron_lm_num_micro_batches: 4\n  megatron_lm_new_word: 1\n"
             "parallelism_config:\n  parallelism_config_new_size: 2\n");
  const Outcome outcome = here.coupler({"config", "import", "acc.yaml"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* words :
       {"megatron_lm_num_micro_batches: 4: a pipeline's micro-batches are set in the program; set "
        "micro_batches of coupler::prepare_pipeline",
        "parallelism_config_new_size: 2: no such setting is known; [parallel] has the sizes",
        "megatron_lm_new_word: 1: Megatron-LM is not supported",
        "gpu_ids: 0,1: an option of coupler launch: --gpu_ids 0,1"})
    EXPECT_TRUE(has(outcome.out, words)) << words << " is not in\n" << outcome.out;
  const std::string toml = text_of(here.path() / "train.toml");
  for (const char* line : {"\npipeline = 2\n", "\ntensor = 2\n"})
    EXPECT_TRUE(has(toml, line)) << line << " is not in\n" << toml;
}

TEST(ConfigUpdate, OfTodaysFile_ChangesNothing_AndSaysSo) {
  const Workplace here;
  const std::string mine = "# mine\n[training]\nseed = 1  # lucky\n";
  here.write("train.toml", mine, 0600);
  here.write("other.toml", mine);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"config", "update"},
        {"config", "update", "other.toml"},
        {"config", "update", "--config_file", "other.toml"}}) {
    const Outcome outcome = here.coupler(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(has(outcome.out, "has today's form; nothing was changed")) << outcome.out;
  }
  EXPECT_EQ(text_of(here.path() / "train.toml"), mine);
}

TEST(ConfigUpdate, OfWhatIsNotOurs_IsRefused_WithTheRemedy) {
  const Workplace here;
  here.write("a.yaml", "num_processes: 2\n");
  here.write("ds.config", "{\"zero_optimization\": {\"stage\": 1}}");
  here.write("wrong.toml", "[training]\nsed = 1\n");
  here.write("broken.toml", "[training\n");
  for (const auto& [name, words] :
       {std::pair<std::string, std::string>{"a.yaml", "convert it: coupler config import a.yaml"},
        {"ds.config", "convert it: coupler config import ds.config"},
        {"wrong.toml", "wrong.toml:2:1: unknown key 'training.sed'; did you mean 'training.seed'?"},
        {"broken.toml", "broken.toml:1:"},
        {"absent.toml", "cannot read absent.toml: No such file"}}) {
    const Outcome outcome = here.coupler({"config", "update", name});
    EXPECT_NE(outcome.exit_code, 0) << name;
    EXPECT_TRUE(has(outcome.err, words)) << outcome.err;
  }
  EXPECT_TRUE(has(here.coupler({"config", "update", "a.toml", "--config_file", "b.toml"}).err,
                  "name two files"));
}

TEST(ConfigUpdate, OfUnknownKeysOfABackend_IsRefused_NamingThemAndWhatThereIs) {
  const Workplace here;
  const std::string gloo = COUPLER_BINARY_DIR "/lib/coupler/libcoupler_gloo_cpu.so";
  for (const auto& [text, words] :
       {std::pair<std::string, std::string>{
            "[backend]\nuse = \"fsdp\"\n[backend.fsdp]\nbase = \"gloo_cpu\"\nno_such = 1\n",
            "a.toml:5:1: backend.fsdp.no_such: the backend 'fsdp' has no such option; it has: "},
        // Also a table that no job uses, and one whose backend a path names.
        {"[backend.fsdp]\nno_such = 1\n", "a.toml:2:1: backend.fsdp.no_such: "},
        {"backend.use = \"" + gloo + "\"\nbackend.gloo_cpu.no_such = 1\n",
         "a.toml:2:18: backend.gloo_cpu.no_such: "},
        {"[backend.single]\nno_such = 1\n", "it has no options"},
        {"[backend.fsdp]\nprefetch = \"1\"\n",
         "a.toml:2:1: backend.fsdp.prefetch must be an integer"},
        {"[backend.fsdp]\nbase = 1\n", "a.toml:2:1: backend.fsdp.base must be a string"}}) {
    here.write("a.toml", text);
    const Outcome outcome = here.coupler({"config", "update", "a.toml"});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_TRUE(has(outcome.err, words)) << outcome.err;
    EXPECT_TRUE(has(outcome.err, "hint: ")) << outcome.err;
    EXPECT_EQ(text_of(here.path() / "a.toml"), text);
  }
}

TEST(ConfigUpdate, OfKnownKeysOfABackend_ChangesNothing) {
  const Workplace here;
  here.write("a.toml",
             "[backend]\nuse = \"fsdp\"\n[backend.fsdp]\nbase = \"auto\"\nprefetch = 2\n"
             "[backend.gloo_cpu]\nchunk_bytes = 131072\n");
  const Outcome outcome = here.coupler({"config", "update", "a.toml"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "a.toml has today's form; nothing was changed.\n");
}

TEST(ConfigUpdate, OfABackendThatIsNotInstalled_SaysThatItsKeysWereNotChecked) {
  const Workplace here;
  here.write("a.toml", "[backend.absent]\nno_such = 1\n[backend.fsdp]\nprefetch = 2\n");
  const Outcome outcome = here.coupler({"config", "update", "a.toml"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* words :
       {"a.toml: the keys of [backend.absent] were not checked: backend \"absent\" was not found",
        "; install the plugin, or correct or remove the table\n",
        "today's form, apart from the keys that were not checked; nothing was changed"})
    EXPECT_TRUE(has(outcome.out, words)) << outcome.out;
  EXPECT_FALSE(has(outcome.out, "backend.fsdp")) << outcome.out;
  // A file that is there and cannot be loaded.
  here.write("libcoupler_torn.so", "not a library");
  here.write("a.toml", "backend.use = \"./libcoupler_torn.so\"\nbackend.torn.no_such = 1\n");
  const Outcome torn = here.coupler({"config", "update", "a.toml"});
  EXPECT_EQ(torn.exit_code, 0) << torn.err;
  EXPECT_TRUE(has(torn.out, "the keys of [backend.torn] were not checked: plugin ")) << torn.out;
  EXPECT_FALSE(has(torn.out, "install the plugin")) << torn.out;
}

}  // namespace
}  // namespace coupler
