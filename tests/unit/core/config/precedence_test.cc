// Later layers override earlier ones, for every key, and each value knows its source.
#include "config/schema.h"
#include "loading.h"

namespace coupler {
namespace {

using SourceKind = ValueSource::Kind;

// A key and the values that four layers give it, as TOML.
struct Sample {
  std::string key;
  std::vector<std::string> toml;  // code, file, environment, command line
};

std::string text(const std::string& value) { return "\"" + value + "\""; }

std::vector<Sample> samples() {
  return {
      {"backend.use", {text("a"), text("b"), text("c"), text("d")}},
      {"backend.timeout", {text("1s"), text("2ms"), text("3us"), text("4ns")}},
      {"backend.peer_timeout", {text("1s"), text("0s"), text("3ms"), text("4us")}},
      {"backend.interface", {text("a"), text("b"), text("c"), text("d")}},
      {"backend.sha256",
       {text(std::string(64, 'a')), text(std::string(64, 'b')), text(std::string(64, 'c')),
        text(std::string(64, 'd'))}},
      {"backend.plugin_path", {text("/a"), "[\"/b\", \"/bb\"]", "[\"/c\"]", "[\"/d\"]"}},
      {"training.device", {text("cpu"), text("cuda"), text("cuda:1"), text("xpu")}},
      {"training.gradient_accumulation_steps", {"2", "3", "4", "5"}},
      {"training.sync_each_batch", {"true", "false", "true", "false"}},
      {"training.sync_with_dataloader", {"false", "true", "false", "true"}},
      {"training.optimizer_in_backward", {"true", "false", "true", "false"}},
      {"training.broadcast_buffers", {"false", "true", "false", "true"}},
      {"training.bucket_cap_mb", {"0.5", "1.5", "2", "3.25"}},
      {"training.seed", {"-1", "2", "3", "4"}},
      {"training.mixed_precision", {text("bf16"), text("fp16"), text("fp8"), text("no")}},
      {"training.loss_scale_init_scale", {"1024.0", "2", "0.5", "65535.0"}},
      {"training.loss_scale_growth_factor", {"1.5", "3", "4", "1.25"}},
      {"training.loss_scale_backoff_factor", {"0.25", "0.125", "0.75", "0.9"}},
      {"training.loss_scale_growth_interval", {"1", "3", "4", "5"}},
      {"training.fp8_format", {text("e4m3"), text("hybrid"), text("e4m3"), text("hybrid")}},
      {"training.fp8_emulate", {"true", "false", "true", "false"}},
      {"training.log_with", {text("csv"), "[\"csv\", \"jsonl\"]", "[\"all\"]", "[\"mine\"]"}},
      {"training.project_dir", {text("a"), text("b"), text("c"), text("d")}},
      {"training.logging_dir", {text("a"), text("b"), text("c"), text("d")}},
      {"checkpoint.dir", {text("a"), text("b"), text("c"), text("d")}},
      {"checkpoint.every", {"1", "2", "3", "4"}},
      {"checkpoint.resume", {text("no"), text("auto"), text("/a"), text("no")}},
      {"checkpoint.total_limit", {"1", "2", "3", "4"}},
      {"checkpoint.async", {"true", "false", "true", "false"}},
      {"checkpoint.timeout", {text("1s"), text("2ms"), text("3us"), text("4ns")}},
      {"checkpoint.grace", {text("1s"), text("2ms"), text("3us"), text("4ns")}},
      {"communication.gradients", {text("bf16"), text("fp16"), text("int8"), text("powersgd")}},
      {"communication.int8_block", {"8", "16", "32", "64"}},
      {"communication.powersgd_rank", {"2", "3", "4", "5"}},
      {"communication.powersgd_start_step", {"0", "1", "2", "3"}},
      {"communication.powersgd_warm_start", {"false", "true", "false", "true"}},
      {"communication.local_sgd_steps", {"1", "2", "3", "4"}},
      {"communication.local_sgd_momentum", {"0.5", "0.25", "0.75", "0.9"}},
      {"memory.activation_checkpointing",
       {text("a"), "[\"b\", \"bb\"]", "[\"c.*\"]", "[\"**.d\"]"}},
      {"memory.offload_activations", {"true", "false", "true", "false"}},
      {"memory.offload_optimizer_device", {text("cpu"), text("nvme"), text("none"), text("cpu")}},
      {"memory.offload_optimizer_nvme_path", {text("/a"), text("/b"), text("/c"), text("/d")}},
      {"memory.offload_optimizer_buffer_count", {"1", "2", "3", "4"}},
      {"memory.offload_optimizer_sub_group_size", {"1", "2", "3", "4"}},
      {"memory.limit", {text("1GiB"), text("2GB"), text("3MiB"), text("4096")}},
      {"profile.dir", {text("a"), text("b"), text("c"), text("d")}},
      {"profile.skip_first", {"1", "2", "3", "4"}},
      {"profile.wait", {"2", "3", "4", "5"}},
      {"profile.warmup", {"2", "3", "4", "5"}},
      {"profile.active", {"4", "5", "6", "7"}},
      {"profile.repeat", {"2", "3", "4", "5"}},
      {"profile.record_shapes", {"true", "false", "true", "false"}},
      {"profile.profile_memory", {"true", "false", "true", "false"}},
      {"profile.with_stack", {"true", "false", "true", "false"}},
      {"profile.with_flops", {"true", "false", "true", "false"}},
      {"launch.processes", {"2", "3", "4", "5"}},
      {"launch.threads_per_process", {"2", "3", "4", "5"}},
      {"launch.tls", {"true", "false", "true", "false"}},
      {"launch.all_interfaces", {"true", "false", "true", "false"}},
      {"launch.secret_file", {text("/a"), text("/b"), text("/c"), text("/d")}},
  };
}

OptionValue to_code(const std::string& toml) {
  if (toml.front() == '"') return toml.substr(1, toml.size() - 2);
  if (toml == "true" || toml == "false") return toml == "true";
  if (toml.find('.') != std::string::npos) return std::stod(toml);
  return static_cast<int64_t>(std::stoll(toml));
}

// The resulting value if only this layer sets it.
std::string alone(const Sample& sample, size_t layer) {
  Layers layers;
  layers.overrides = {sample.key + "=" + sample.toml[layer]};
  const SchemaKey* key = find_key(sample.key);
  return render(key->get(load(layers)));
}

TEST(ConfigPrecedence, Samples_CoverTheWholeSchema) {
  std::vector<std::string> names;
  for (const Sample& sample : samples()) names.push_back(sample.key);
  EXPECT_EQ(names, schema_names());
}

// All 16 subsets of the four layers above the default, for all keys.
TEST(ConfigPrecedence, AnySubsetOfLayers_TheHighestWins) {
  for (const Sample& sample : samples()) {
    const SchemaKey* key = find_key(sample.key);
    ASSERT_NE(key, nullptr) << sample.key;
    for (unsigned subset = 0; subset < 16; ++subset) {
      SCOPED_TRACE(sample.key + " from layers " + std::to_string(subset));
      Layers layers;
      std::string expected = render(key->get(Config{}));
      ValueSource source;
      if (subset & 1) {
        layers.code = {{sample.key, to_code(sample.toml[0])}};
        source = {SourceKind::kCode, "AcceleratorOptions"};
        expected = alone(sample, 0);
      }
      if (subset & 2) {
        layers.file = sample.key + " = " + sample.toml[1] + "\n";
        source = {SourceKind::kFile, "train.toml:1:" + std::to_string(sample.key.find('.') + 2)};
        expected = alone(sample, 1);
      }
      if (subset & 4) {
        const std::string name = environment_name(sample.key);
        layers.environment = {name + "=" + sample.toml[2]};
        source = {SourceKind::kEnvironment, name};
        expected = alone(sample, 2);
      }
      if (subset & 8) {
        layers.overrides = {sample.key + "=" + sample.toml[3]};
        source = {SourceKind::kCommandLine, "-o " + sample.key};
        expected = alone(sample, 3);
      }
      const Config config = load(layers);
      EXPECT_EQ(render(key->get(config)), expected);
      if (subset == 0) {
        EXPECT_EQ(config.sources.count(sample.key), 0U);
      } else {
        ASSERT_EQ(config.sources.count(sample.key), 1U);
        EXPECT_EQ(config.sources.at(sample.key).kind, source.kind);
        EXPECT_EQ(config.sources.at(sample.key).text, source.text);
      }
    }
  }
}

TEST(ConfigPrecedence, OptionsOfPlugins_MergeByKey) {
  const Config config =
      load({.file = "[backend.fsdp]\nbase = \"mpi\"\nprefetch = 2\ndeep.er = 1.5\n",
            .overrides = {"backend.fsdp.base=gloo_cpu", "backend.fsdp.new=true"},
            .code = {{"backend.fsdp.prefetch", int64_t{1}}}});
  const auto& options = config.backend.options.at("fsdp");
  ASSERT_EQ(options.size(), 4U);
  const auto value = [&](const std::string& key) -> const PluginOption& {
    for (const PluginOption& option : options) {
      if (option.key == key) return option;
    }
    throw std::out_of_range(key);
  };
  EXPECT_EQ(value("base").value, OptionValue(std::string("gloo_cpu")));
  EXPECT_EQ(value("base").source.text, "-o backend.fsdp.base");
  EXPECT_EQ(value("prefetch").value, OptionValue(int64_t{2}));
  EXPECT_EQ(value("prefetch").source.text, "train.toml:3:1");
  EXPECT_EQ(value("deep.er").value, OptionValue(1.5));
  EXPECT_EQ(value("new").value, OptionValue(true));
}

TEST(ConfigPrecedence, SameKeyTwiceOnTheCommandLine_TheLaterWins) {
  EXPECT_EQ(load({.overrides = {"training.seed=1", "training.seed=2"}}).training.seed, 2);
}

TEST(ConfigTexts, BareWords_AreStrings) {
  EXPECT_EQ(load({.overrides = {"backend.use=mpi"}}).backend.use, "mpi");
  EXPECT_EQ(load({.overrides = {"backend.use=\"mpi\""}}).backend.use, "mpi");
  EXPECT_EQ(load({.overrides = {"backend.use=/opt/a=b.so"}}).backend.use, "/opt/a=b.so");
  EXPECT_EQ(load({.overrides = {"backend.use=true"}}).backend.use, "true");
  const std::string digits(64, '1');
  EXPECT_EQ(load({.environment = {"COUPLER_BACKEND_SHA256=" + digits}}).backend.sha256, digits);
}

TEST(ConfigTexts, Durations_TakeUnitsOrSeconds) {
  using std::chrono::milliseconds;
  EXPECT_EQ(load({.overrides = {"backend.timeout=5s"}}).backend.timeout, milliseconds(5000));
  EXPECT_EQ(load({.overrides = {"backend.timeout=2"}}).backend.timeout, milliseconds(2000));
  EXPECT_EQ(load({.file = "backend.timeout = 0.5\n"}).backend.timeout, milliseconds(500));
  EXPECT_EQ(load({.environment = {"COUPLER_BACKEND_TIMEOUT=1.5"}}).backend.timeout,
            milliseconds(1500));
}

TEST(ConfigTexts, Lists_TakeColons) {
  const std::vector<std::string> expected = {"/a", "/b"};
  EXPECT_EQ(load({.environment = {"COUPLER_BACKEND_PLUGIN_PATH=/a::/b:"}}).backend.plugin_path,
            expected);
  EXPECT_EQ(load({.overrides = {"backend.plugin_path=[\"/a\", \"/b\"]"}}).backend.plugin_path,
            expected);
  EXPECT_EQ(load({.file = "[backend]\nplugin_path = []\n"}).backend.plugin_path,
            std::vector<std::string>{});
}

TEST(ConfigTexts, OptionOfAPlugin_HasTheTypeOfItsText) {
  const Config config = load({.overrides = {"backend.gloo_cpu.chunk_bytes=65536"}});
  EXPECT_EQ(config.backend.options.at("gloo_cpu").at(0).value, OptionValue(int64_t{65536}));
}

TEST(ConfigEnvironment, OtherVariablesOfCoupler_AreNoKeys) {
  const Config config = load({.environment = {"COUPLER_LOG=debug", "COUPLER_PLUGIN_PATH=/x",
                                              "COUPLER_JOB_FILE=/y", "COUPLER_BACKEND_USE="}});
  EXPECT_TRUE(config.sources.empty());
  EXPECT_EQ(config.backend.use, "auto");
}

TEST(ConfigFile, NoneThere_GivesDefaults) {
  const Config config = load({});
  EXPECT_EQ(config.file, "");
  EXPECT_TRUE(config.sources.empty());
}

TEST(ConfigFile, GivenOne_IsReadInsteadOfTheDefaultOne) {
  const WorkingFolder folder;
  folder.write("train.toml", "training.seed = 1\n");
  folder.write("other.toml", "launch.processes = 3\n");
  const char* const none = nullptr;
  const Config config = load_config({.file = "other.toml", .environment = &none});
  EXPECT_EQ(config.file, "other.toml");
  EXPECT_EQ(config.training.seed, 0);
  EXPECT_EQ(config.launch.processes, 3);
}

TEST(ConfigFile, EmptyTables_SetNothing) {
  EXPECT_TRUE(load({.file = "[backend]\n[backend.fsdp]\n[training]\n[launch]\n"}).sources.empty());
}

}  // namespace
}  // namespace coupler
