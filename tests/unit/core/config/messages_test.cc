// Every kind of invalid input in a configuration, and the message that the user reads.
#include <sys/stat.h>

#include <filesystem>

#include "loading.h"

namespace coupler::config {
namespace {

std::string in_file(const std::string& text) { return message_of({.file = text}); }
std::string in_override(const std::string& text) { return message_of({.overrides = {text}}); }
std::string in_environment(const std::string& text) { return message_of({.environment = {text}}); }

constexpr const char* kSeeAllKeys = "\n  hint: 'coupler config --explain' lists every key";

TEST(ConfigMessages, UnknownKeyInFile_NamesPlaceAndNearest) {
  EXPECT_EQ(in_file("\n[backend]\nus = \"mpi\"\n"),
            "train.toml:3:1: unknown key 'backend.us'; did you mean 'backend.use'?");
  EXPECT_EQ(in_file("[trainin]\nseed = 1\n"),
            "train.toml:2:1: unknown key 'trainin.seed'; did you mean 'training.seed'?");
  EXPECT_EQ(in_file("[lunch]\n"), "train.toml:1:2: unknown key 'lunch'; did you mean 'launch'?");
  EXPECT_EQ(in_file("seed = 1\n"),
            "train.toml:1:1: unknown key 'seed'; did you mean 'training.seed'?");
  EXPECT_EQ(in_file("[launch]\nthreads = 1\n"),
            "train.toml:2:1: unknown key 'launch.threads'; did you mean "
            "'launch.threads_per_process'?");
  EXPECT_EQ(in_file("\"backend.use\" = \"mpi\"\n"),
            "train.toml:1:1: unknown key '\"backend.use\"'; did you mean 'backend.use'?");
}

TEST(ConfigMessages, UnknownKeyFarFromAll_SaysWhereTheKeysAre) {
  EXPECT_EQ(in_file("colour = 1\n"),
            std::string("train.toml:1:1: unknown key 'colour'") + kSeeAllKeys);
}

TEST(ConfigMessages, UnknownKeyInOverride_NamesTheOption) {
  EXPECT_EQ(in_override("training.sed=3"),
            "-o training.sed: unknown key 'training.sed'; did you mean 'training.seed'?");
}

TEST(ConfigMessages, UnknownKeyInCode_NamesTheOptions) {
  EXPECT_EQ(message_of({.code = {{"backend.timeot", int64_t{3}}}}),
            "AcceleratorOptions: unknown key 'backend.timeot'; did you mean 'backend.timeout'?");
}

TEST(ConfigMessages, UnknownVariable_NamesNearest) {
  EXPECT_EQ(in_environment("COUPLER_TRAINING_SEEDS=3"),
            "environment: unknown variable 'COUPLER_TRAINING_SEEDS'; did you mean "
            "'COUPLER_TRAINING_SEED'?");
}

TEST(ConfigMessages, VariableForAnOptionOfAPlugin_SaysHowToSetIt) {
  EXPECT_EQ(in_environment("COUPLER_BACKEND_GLOO_CPU_CHUNK_BYTES=3"),
            "environment: unknown variable 'COUPLER_BACKEND_GLOO_CPU_CHUNK_BYTES'\n  hint: set "
            "a backend's own options in the file's table [backend.NAME] or with "
            "-o backend.NAME.KEY=value");
}

TEST(ConfigMessages, WrongType_NamesPlaceOfTheValueAndBothTypes) {
  EXPECT_EQ(in_file("[launch]\nprocesses = \"two\"\n"),
            "train.toml:2:13: launch.processes: expected integer, got string \"two\"");
  EXPECT_EQ(in_file("[launch]\nprocesses = 2.5\n"),
            "train.toml:2:13: launch.processes: expected integer, got float 2.5");
  EXPECT_EQ(in_file("[backend]\nuse = 3\n"),
            "train.toml:2:7: backend.use: expected string, got integer 3");
  EXPECT_EQ(in_file("[backend]\nuse = [\"a\"]\n"),
            "train.toml:2:7: backend.use: expected string, got list [\"a\"]");
  EXPECT_EQ(in_file("[backend.use]\nx = 3\n"),
            "train.toml:2:1: backend.use: expected string, got table");
  EXPECT_EQ(in_file("[backend]\ntimeout = 1979-05-27\n"),
            "train.toml:2:11: backend.timeout: expected duration (such as \"30s\", \"500ms\", "
            "\"2min\", or seconds), got date or time");
  EXPECT_EQ(in_file("[backend]\nplugin_path = [1]\n"),
            "train.toml:2:15: backend.plugin_path: expected list of strings, got list with values "
            "that are not strings");
  EXPECT_EQ(in_file("[training]\nbroadcast_buffers = 1\n"),
            "train.toml:2:21: training.broadcast_buffers: expected boolean (true or false), got "
            "integer 1");
  EXPECT_EQ(in_file("[training]\nbucket_cap_mb = true\n"),
            "train.toml:2:17: training.bucket_cap_mb: expected number, got boolean true");
  EXPECT_EQ(in_file("backend = \"mpi\"\n"),
            "train.toml:1:11: backend: expected table, got string \"mpi\"\n  hint: write [backend] "
            "on its own line, and its keys below");
  EXPECT_EQ(in_file("checkpoint = \"saves\"\n"),
            "train.toml:1:14: checkpoint: expected table, got string \"saves\"\n  hint: write "
            "[checkpoint] on its own line, and its keys below");
}

TEST(ConfigMessages, WrongTypeInTexts_NamesVariableOrOption) {
  EXPECT_EQ(in_environment("COUPLER_LAUNCH_PROCESSES=two"),
            "COUPLER_LAUNCH_PROCESSES: launch.processes: expected integer, got string \"two\"");
  EXPECT_EQ(in_override("training.broadcast_buffers=yes"),
            "-o training.broadcast_buffers: training.broadcast_buffers: expected boolean (true or "
            "false), got string \"yes\"");
}

TEST(ConfigMessages, OutOfRange_NamesTheRange) {
  EXPECT_EQ(in_file("[launch]\nprocesses = 0\n"),
            "train.toml:2:13: launch.processes: must be >= 1, got 0");
  EXPECT_EQ(in_override("launch.threads_per_process=-1"),
            "-o launch.threads_per_process: launch.threads_per_process: must be >= 0, got -1");
  EXPECT_EQ(in_override("training.gradient_accumulation_steps=0"),
            "-o training.gradient_accumulation_steps: training.gradient_accumulation_steps: must "
            "be >= 1, got 0");
  EXPECT_EQ(in_override("training.bucket_cap_mb=inf"),
            "-o training.bucket_cap_mb: training.bucket_cap_mb: must be finite and >= 0, got inf");
  EXPECT_EQ(in_override("training.bucket_cap_mb=nan"),
            "-o training.bucket_cap_mb: training.bucket_cap_mb: must be finite and >= 0, got nan");
  EXPECT_EQ(in_override("training.mixed_precision=half"),
            "-o training.mixed_precision: training.mixed_precision: must be no, bf16, fp16 or fp8, "
            "got \"half\"");
  EXPECT_EQ(in_override("training.loss_scale_init_scale=0.0"),
            "-o training.loss_scale_init_scale: training.loss_scale_init_scale: must be finite and "
            "> 0, got 0");
  EXPECT_EQ(in_override("training.loss_scale_growth_factor=1"),
            "-o training.loss_scale_growth_factor: training.loss_scale_growth_factor: must be "
            "finite and > 1, got 1");
  EXPECT_EQ(
      in_override("training.loss_scale_backoff_factor=nan"),
      "-o training.loss_scale_backoff_factor: training.loss_scale_backoff_factor: must be > 0 "
      "and < 1, got nan");
  EXPECT_EQ(in_override("training.loss_scale_growth_interval=0"),
            "-o training.loss_scale_growth_interval: training.loss_scale_growth_interval: must be "
            ">= 1, got 0");
  EXPECT_EQ(in_environment("COUPLER_BACKEND_TIMEOUT=0s"),
            "COUPLER_BACKEND_TIMEOUT: backend.timeout: must be > 0, got \"0s\"");
  EXPECT_EQ(in_override("backend.timeout=-5ms"),
            "-o backend.timeout: backend.timeout: must be > 0, got \"-5ms\"");
  EXPECT_EQ(in_override("backend.use="),
            "-o backend.use: backend.use: must be a name or a path, got \"\"");
  EXPECT_EQ(in_override("backend.sha256=12ab"),
            "-o backend.sha256: backend.sha256: must be empty or 64 hexadecimal digits, got "
            "\"12ab\"");
}

TEST(ConfigMessages, OptionOfAPluginThatIsNoSingleValue_SaysSo) {
  EXPECT_EQ(in_file("[backend.fsdp]\nbases = [\"a\"]\n"),
            "train.toml:2:9: backend.fsdp.bases: expected string, integer, float or boolean, got "
            "list [\"a\"]\n  hint: options of a backend are single values");
}

TEST(ConfigMessages, BadSyntax_NamesPlace) {
  const std::string message = in_file("[backend]\nuse = mpi\n");
  EXPECT_EQ(message.substr(0, 33), "train.toml:2:7: invalid TOML: Err") << message;
  EXPECT_NE(message.find("hint: https://toml.io"), std::string::npos) << message;
  EXPECT_EQ(in_file("[backend\n").substr(0, 16), "train.toml:1:9: ");
  EXPECT_NE(in_file("[backend]\nuse = \"a\"\nuse = \"b\"\n").find("train.toml:3:"),
            std::string::npos);
  EXPECT_NE(in_file("x = \"\xff\"\n").find("train.toml:1:"), std::string::npos);
}

TEST(ConfigMessages, OverrideWithoutEquals_ShowsTheShape) {
  const std::string end =
      ": expected key=value\n  hint: for example -o backend.use=auto; a program's own -o goes "
      "after '--'";
  EXPECT_EQ(in_override("backend.use"), "-o 'backend.use'" + end);
  EXPECT_EQ(in_override("=mpi"), "-o '=mpi'" + end);
  EXPECT_EQ(in_override("backend use=mpi"), "-o 'backend use=mpi'" + end);
}

std::string with_file(const std::string& name) {
  try {
    load_config({.file = name});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.what();
  }
  return "no exception was thrown";
}

TEST(ConfigMessages, FileThatCannotBeRead_SaysWhy) {
  const WorkingFolder folder;
  const std::string hint =
      "\n  hint: check the path; without --config, ./train.toml is read if it exists";
  EXPECT_EQ(with_file("absent.toml"),
            "cannot read 'absent.toml' given by --config: No such file or directory" + hint);
  EXPECT_EQ(with_file("."), "cannot read '.' given by --config: not a regular file" + hint);
  ASSERT_EQ(mkfifo("pipe", 0600), 0);
  EXPECT_EQ(with_file("pipe"), "cannot read 'pipe' given by --config: not a regular file" + hint);
}

TEST(ConfigMessages, DefaultFileThatCannotBeRead_SaysWhoAskedForIt) {
  const WorkingFolder folder;
  std::filesystem::create_directory("train.toml");
  try {
    load_config({});
    FAIL() << "no exception was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "cannot read 'train.toml' (read because no --config was given): not a regular "
                 "file\n  hint: fix or remove it, or name another file with --config");
  }
}

}  // namespace
}  // namespace coupler::config
