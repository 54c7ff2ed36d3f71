#include <sstream>

#include "config/schema.h"
#include "loading.h"

namespace coupler::config {
namespace {

std::string line_of(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size() + 1, key + " ") == 0) return line;
  }
  return "";
}

TEST(ExplainConfig, EveryKey_HasALineWithItsMeaning) {
  const std::string text = explain_config(load({}));
  for (const SchemaKey& key : schema()) {
    EXPECT_NE(line_of(text, std::string(key.name)).find(key.doc), std::string::npos) << key.name;
  }
  EXPECT_EQ(text.substr(0, text.find('\n')), "No configuration file.");
}

TEST(ExplainConfig, Values_StandBesideSourceAndDefault) {
  const std::string text = explain_config(load({.file = "[backend]\nuse = \"mpi\"\n",
                                                .environment = {"COUPLER_TRAINING_SEED=7"},
                                                .overrides = {"backend.timeout=5s"}}));
  EXPECT_EQ(text.substr(0, text.find('\n')), "Configuration file: train.toml");
  const std::string use = line_of(text, "backend.use");
  EXPECT_NE(use.find("\"mpi\""), std::string::npos) << use;
  EXPECT_NE(use.find("train.toml:2:1"), std::string::npos) << use;
  EXPECT_NE(use.find("\"auto\""), std::string::npos) << use;
  EXPECT_NE(line_of(text, "training.seed").find("COUPLER_TRAINING_SEED"), std::string::npos);
  const std::string timeout = line_of(text, "backend.timeout");
  EXPECT_NE(timeout.find("\"5s\""), std::string::npos) << timeout;
  EXPECT_NE(timeout.find("\"30s\""), std::string::npos) << timeout;
}

TEST(ExplainConfig, Columns_AreAligned) {
  const std::string text = explain_config(load({.overrides = {"backend.fsdp.base=gloo_cpu"}}));
  const size_t value_column = line_of(text, "KEY").find("VALUE");
  const size_t source_column = line_of(text, "KEY").find("SOURCE");
  const std::string option = line_of(text, "backend.fsdp.base");
  EXPECT_EQ(option.find("\"gloo_cpu\""), value_column);
  EXPECT_EQ(option.find("-o backend.fsdp.base"), source_column);
  EXPECT_EQ(line_of(text, "backend.use").find("default"), source_column);
}

TEST(ExplainConfig, MixedPrecision_SaysWhatRunsInWhichType) {
  const auto sentence = [](const std::string& precision) {
    const std::string text =
        explain_config(load({.overrides = {"training.mixed_precision=" + precision,
                                           "training.loss_scale_init_scale=1024",
                                           "training.loss_scale_growth_interval=7"}}));
    return text.substr(text.rfind("\nMixed precision ") + 1);
  };
  const std::string rest =
      "parameters are stored, gradients reduced and optimizers run in the model's own types, "
      "unless the backend's options say otherwise";
  EXPECT_EQ(sentence("no"),
            "Mixed precision no: everything computes in the model's own types; " + rest + "\n");
  EXPECT_EQ(sentence("bf16"),
            "Mixed precision bf16: loops over prepared data loaders and operations inside "
            "accelerator.autocast() compute in bf16 where "
            "that is safe (matrix products, convolutions), in fp32 where it is not (losses); " +
                rest + "\n");
  EXPECT_NE(sentence("fp16").find(rest + "; the loss scale starts at 1024 and is multiplied by 0.5 "
                                         "after an overflow, by 2 after 7 steps without one\n"),
            std::string::npos)
      << sentence("fp16");
  EXPECT_NE(sentence("fp8").find("compute in bf16 where that is safe"), std::string::npos);
  EXPECT_NE(sentence("fp8").find(rest + "; linear layers whose sizes are multiples of 16 multiply "
                                        "there in fp8: inputs and weights as e4m3, gradients as "
                                        "e5m2; a device without fp8 matrix units is rejected at "
                                        "startup\n"),
            std::string::npos)
      << sentence("fp8");
}

TEST(ExplainConfig, ControlCharacters_AreNotPrinted) {
  const std::string text = explain_config(load({.overrides = {"backend.x.y=a\x1b[31m\"b\\"}}));
  EXPECT_NE(text.find("\"a\\u001B[31m\\\"b\\\\\""), std::string::npos) << text;
}

}  // namespace
}  // namespace coupler::config
