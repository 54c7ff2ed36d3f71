// coupler config import: every configuration that Accelerate's own tests read, in the words of its
// versions (tests/e2e/cli/accelerate), and DeepSpeed's JSON.
#include <gtest/gtest.h>

#include <regex>
#include <sstream>

#include "run_program.h"

namespace coupler {
namespace {

struct Case {
  const char* name;
  std::vector<std::string> keys;   // lines of the TOML file
  std::vector<std::string> words;  // of what is said
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
  // Each key of theirs with a value is named.
  const std::regex line("^( *)([a-z0-9_]+): *(.*)$");
  std::istringstream lines(source);
  for (std::string text; std::getline(lines, text);) {
    std::smatch parts;
    if (!std::regex_match(text, parts, line) || parts[3] == "{}" || parts[3].length() == 0)
      continue;
    EXPECT_TRUE(has(outcome.out, parts[2].str() + ": ")) << parts[2] << " is not in\n"
                                                         << outcome.out;
  }
  // And back: what was written is a right configuration.
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
             {"--machines 4", "--hostfile /home/user/hostfile"}},
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
             {"invalid_key: invalid_value: not a key", "did you mean 'mixed_precision'?"}},
        Case{"latest.yaml", {"processes = 1"}, {"tpu_name: test-tpu: for TPUs"}},
        Case{"latest_fsdp.yaml",
             {"use = \"fsdp\"", "strategy = \"full_shard\"", "units = \"types\"",
              "unit_types = \"BertLayer\"", "prefetch = 1"},
             {"fsdp_config.fsdp_use_orig_params"}},
        Case{"megatron.yaml", {"processes = 1"}, {"tensor parallelism is not there"}},
        Case{"mpi_multicpu.yaml", {"use = \"mpi\""}, {}},
        Case{"one_proc.yaml", {"processes = 1"}, {}},
        Case{"validate_launch_cmd.yaml", {"processes = 1"}, {"coupler config import FILE.json"}},
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
  for (const char* key : {"use = \"deepspeed_like\"", "stage = 3", "overlap_comm = \"true\"",
                          "reduce_bucket_size = 500000000", "offload_optimizer.device = \"nvme\"",
                          "offload_optimizer.nvme_path = \"/scratch\"",
                          "offload_optimizer.pin_memory = true", "gradient_accumulation_steps = 4",
                          "mixed_precision = \"fp16\"", "loss_scale_growth_interval = 500"})
    EXPECT_TRUE(has(toml, key)) << key << " is not in\n" << toml;
  EXPECT_TRUE(has(toml, "loss_scale_init_scale = 1024")) << toml;
  EXPECT_TRUE(has(outcome.out, "optimizer.params.lr: 3e-05: made in the program")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "no_such: 1: not a key")) << outcome.out;
  EXPECT_EQ(here.coupler({"config", "--explain", "--config", "ds.toml"}).exit_code, 0);
}

TEST(ConfigImport, OfWhatIsNeither_SaysWhere_AndWritesNothing) {
  const Workplace here;
  here.write("list.yaml", "- a\n- b\n");
  here.write("broken.yaml", "a: [1, 2\nb: 3\n");
  here.write("broken.json", "{\"a\": 1,\n");
  here.write("text", "just text");
  for (const auto& [name, words] : {std::pair<std::string, std::string>{"list.yaml", "no keys"},
                                    {"broken.yaml", "broken.yaml:"},
                                    {"broken.json", "no JSON"},
                                    {"text", "no keys"},
                                    {"absent", "cannot read absent"}}) {
    const Outcome outcome = here.coupler({"config", "import", name});
    EXPECT_NE(outcome.exit_code, 0) << name;
    EXPECT_TRUE(has(outcome.err, words)) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(here.path() / "train.toml")) << name;
  }
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

}  // namespace
}  // namespace coupler
