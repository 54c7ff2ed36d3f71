// Later layers override earlier ones, for every key, and each value knows its source.
#include <array>
#include <sstream>

#include "config/schema.h"
#include "loading.h"

namespace coupler::config {
namespace {

using SourceKind = ValueSource::Kind;

// A value that a key accepts.
struct Sample {
  std::string toml;
  std::string rendered;  // of the key, if only this sample is set
};

// A key and what four layers set: code, file, environment, command line.
struct KeySamples {
  const SchemaKey* key;
  std::array<Sample, 4> layers;
};

std::string text(const std::string& value) { return "\"" + value + "\""; }

// Values as TOML for keys of a type, from which each key takes those that it accepts. Words of its
// constraint, "none, cpu or nvme", may be values, too.
std::vector<std::string> candidates(const SchemaKey& key) {
  std::vector<std::string> result;
  switch (key.type) {
    case ValueType::kBoolean:
      return {"true", "false"};
    case ValueType::kInteger:
      return {"-1", "1", "2", "3", "4", "8", "16", "32", "64", "0"};
    case ValueType::kNumber:
      return {"0.5", "3", "1.5", "0.25", "3.25", "0.75", "0.9", "1024.0"};
    case ValueType::kDuration:
      return {text("1s"), text("0s"), text("3ms"), text("4us"), text("5ns")};
    case ValueType::kStringList:
      return {text("a"), "[\"b\", \"bb\"]", "[\"c.*\"]", "[\"**.d\"]"};
    case ValueType::kMeshSize:
      return {text("rest"), "2", "3", "4", "5"};
    case ValueType::kString:
      break;
  }
  std::istringstream words(key.constraint);
  for (std::string word; words >> word;) {
    if (word.ends_with(',')) word.pop_back();
    if (word != "or") result.push_back(text(word));
  }
  for (const char* word : {"a", "/b", "c.d", "e:1", "1GiB", "2GB", "3MiB", "4096"}) {
    result.push_back(text(word));
  }
  for (const char digit : {'a', 'b', 'c', 'd'}) result.push_back(text(std::string(64, digit)));
  return result;
}

// Empty if the key does not accept it.
std::string rendered(const SchemaKey& key, const std::string& toml) {
  const char* const none = nullptr;
  try {
    return render(
        key.get(load_config({.overrides = {key.name + "=" + toml}, .environment = &none})));
  } catch (const Error&) {
    return "";
  }
}

// The first accepted candidates; the default only if there are few others, and then last.
KeySamples samples_of(const SchemaKey& key) {
  std::vector<Sample> samples, defaults;
  for (const std::string& toml : candidates(key)) {
    const std::string value = rendered(key, toml);
    if (value.empty()) continue;
    (value == render(key.get(Config{})) ? defaults : samples).push_back({toml, value});
  }
  samples.insert(samples.end(), defaults.begin(), defaults.end());
  KeySamples result = {&key, {}};
  for (size_t i = 0; i < 4 && !samples.empty(); ++i) {
    result.layers.at(i) = samples[i % samples.size()];
  }
  return result;
}

const std::vector<KeySamples>& all_samples() {
  static const std::vector<KeySamples> all = [] {
    const WorkingFolder empty;
    std::vector<KeySamples> made;
    for (const SchemaKey& key : schema()) made.push_back(samples_of(key));
    return made;
  }();
  return all;
}

OptionValue to_code(const std::string& toml) {
  if (toml.front() == '"') return toml.substr(1, toml.size() - 2);
  if (toml == "true" || toml == "false") return toml == "true";
  if (toml.find('.') != std::string::npos) return std::stod(toml);
  return static_cast<int64_t>(std::stoll(toml));
}

TEST(ConfigPrecedence, Samples_CoverTheWholeSchema) {
  std::vector<std::string> names;
  for (const auto& [key, layers] : all_samples()) {
    names.push_back(key->name);
    std::string below = render(key->get(Config{}));
    for (const Sample& sample : layers) {
      EXPECT_FALSE(sample.toml.empty()) << key->name << ": candidates() has no value for it";
      EXPECT_NE(sample.rendered, below) << key->name << ": candidates() has too few values for it";
      below = sample.rendered;
    }
  }
  EXPECT_EQ(names, schema_names());
}

// All 16 subsets of the four layers above the default, for all keys.
TEST(ConfigPrecedence, AnySubsetOfLayers_TheHighestWins) {
  for (const auto& [key, samples] : all_samples()) {
    ASSERT_EQ(find_key(key->name), key);
    for (unsigned subset = 0; subset < 16; ++subset) {
      SCOPED_TRACE(key->name + " from layers " + std::to_string(subset));
      Layers layers;
      std::string expected = render(key->get(Config{}));
      ValueSource source;
      if (subset & 1) {
        layers.code = {{key->name, to_code(samples[0].toml)}};
        source = {SourceKind::kCode, "AcceleratorOptions"};
        expected = samples[0].rendered;
      }
      if (subset & 2) {
        layers.file = key->name + " = " + samples[1].toml + "\n";
        source = {SourceKind::kFile, "train.toml:1:" + std::to_string(key->name.find('.') + 2)};
        expected = samples[1].rendered;
      }
      if (subset & 4) {
        const std::string name = environment_name(key->name);
        layers.environment = {name + "=" + samples[2].toml};
        source = {SourceKind::kEnvironment, name};
        expected = samples[2].rendered;
      }
      if (subset & 8) {
        layers.overrides = {key->name + "=" + samples[3].toml};
        source = {SourceKind::kCommandLine, "-o " + key->name};
        expected = samples[3].rendered;
      }
      const Config config = load(layers);
      EXPECT_EQ(render(key->get(config)), expected);
      if (subset == 0) {
        EXPECT_EQ(config.sources.count(key->name), 0U);
      } else {
        ASSERT_EQ(config.sources.count(key->name), 1U);
        EXPECT_EQ(config.sources.at(key->name).kind, source.kind);
        EXPECT_EQ(config.sources.at(key->name).text, source.text);
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
}  // namespace coupler::config
