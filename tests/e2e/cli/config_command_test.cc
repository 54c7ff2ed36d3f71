#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "config/schema.h"
#include "run_program.h"

namespace coupler {
namespace {

TEST(ConfigCommand, RightFile_IsSaidToBeRight) {
  const Workplace here;
  EXPECT_EQ(here.coupler({"config", "check"}).out,
            "The configuration is valid; no file was read.\n");
  here.write("train.toml", "[backend]\nuse = \"mpi\"\n");
  const Outcome outcome = here.coupler({"config", "check"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "The configuration is valid; train.toml was read.\n");
}

TEST(ConfigCommand, Explain_NamesTheSourceOfEachLayer) {
  const Workplace here;
  here.write("other.toml", "[backend]\nuse = \"mpi\"\n[backend.mpi]\nchunk = 5\n");
  const Outcome outcome =
      here.coupler({"config", "--explain", "--config", "other.toml", "-o", "training.seed=3"},
                   {{"COUPLER_BACKEND_TIMEOUT", "5s"}});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  for (const char* text :
       {"Configuration file: other.toml\n", "\"mpi\"", "other.toml:2:1", "\"5s\"",
        "COUPLER_BACKEND_TIMEOUT", "-o training.seed", "\nbackend.mpi.chunk ", "\"30s\""}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << " in\n" << outcome.out;
  }
}

// Without mpirun, and with what is in host memory, on whatever machine this runs.
TEST(ConfigCommand, Explain_SaysWhatAutoIs_AndWhy) {
  const Workplace here;
  const std::map<std::string, std::string> variables = {{"PATH", here.path()}};
  const auto explained = [&](const std::string& backend) {
    return here
        .coupler(
            {"config", "--explain", "-o", "training.device=cpu", "-o", "backend.use=" + backend},
            variables)
        .out;
  };
  const std::string text = explained("auto");
  for (const char* part :
       {"backend.use = \"auto\", for several processes on this machine:\n  shm ",
        "score 55: taken, as it is the highest\n  gloo_cpu      score 10\n",
        "hierarchical  passed over: it composes transports for several machines, and the job is on "
        "one\n",
        "backend.use = \"auto\", for several processes on each of several machines:\n  "
        "hierarchical  "
        "score 55",
        "shm           passed over: it connects the ranks of one machine"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
  EXPECT_NE(explained("fsdp").find("\nbackend.fsdp.base = \"auto\", for"), std::string::npos);
  EXPECT_EQ(explained("gloo_cpu").find("passed over"), std::string::npos);
}

struct WrongInput {
  std::vector<std::string> arguments;
  std::string file;
  std::map<std::string, std::string> variables;
  std::string message;
};

TEST(ConfigCommand, WrongInput_EndsWithItsMessageAndTwo) {
  const std::vector<WrongInput> inputs = {
      {{},
       "[backend]\nus = 1\n",
       {},
       "train.toml:2:1: unknown key 'backend.us'; did you mean 'backend.use'?"},
      {{},
       "[launch]\nprocesses = \"two\"\n",
       {},
       "train.toml:2:13: launch.processes: expected integer, got string \"two\""},
      {{"--config", "absent.toml"},
       "",
       {},
       "cannot read 'absent.toml' given by --config: No such file or directory\n"
       "  hint: check the path; without --config, ./train.toml is read if it exists"},
      {{"--config"},
       "",
       {},
       "--config: expected a file after it\n  hint: write --config train.toml"},
      {{"-o", "launch.processes=0"},
       "",
       {},
       "-o launch.processes: launch.processes: must be >= 1, got 0"},
      {{},
       "",
       {{"COUPLER_LAUNCH_PROCESES", "2"}},
       "environment: unknown variable 'COUPLER_LAUNCH_PROCESES'; did you mean "
       "'COUPLER_LAUNCH_PROCESSES'?"},
  };
  for (const WrongInput& input : inputs) {
    const Workplace here;
    if (!input.file.empty()) here.write("train.toml", input.file);
    std::vector<std::string> arguments = {"config", "check"};
    arguments.insert(arguments.end(), input.arguments.begin(), input.arguments.end());
    const Outcome outcome = here.coupler(arguments, input.variables);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err, "coupler: error: " + input.message + "\n");
  }
}

TEST(ConfigCommand, Json_SaysTheSame_ToPrograms) {
  const Workplace here;
  here.write("train.toml", "[backend]\ntimeout = \"20s\"\n[backend.gloo_cpu]\nchunk_bytes = 7\n");
  const Outcome explained =
      here.coupler({"config", "--explain", "--json", "-o", "training.seed=3"});
  ASSERT_EQ(explained.exit_code, 0) << explained.err;
  const auto json = nlohmann::json::parse(explained.out);
  EXPECT_EQ(json["file"], "train.toml");
  std::map<std::string, nlohmann::json> keys;
  for (const auto& key : json["keys"]) keys[key["key"]] = key;
  EXPECT_EQ(keys["backend.timeout"]["value"], "20s");
  EXPECT_EQ(keys["backend.timeout"]["default"], "30s");
  EXPECT_EQ(keys["backend.timeout"]["source"], "train.toml:2:1");
  EXPECT_EQ(keys["training.seed"]["value"], 3);
  EXPECT_EQ(keys["training.seed"]["source"], "-o training.seed");
  EXPECT_EQ(keys["training.sync_each_batch"]["value"], false);
  EXPECT_EQ(keys["training.log_with"]["value"], nlohmann::json::array());
  EXPECT_EQ(keys["backend.gloo_cpu.chunk_bytes"]["value"], 7);

  const Outcome right = here.coupler({"config", "check", "--json"});
  EXPECT_EQ(right.exit_code, 0) << right.err;
  EXPECT_TRUE(nlohmann::json::parse(right.out)["right"]);
  const Outcome ranks = here.coupler({"config", "check", "-n", "2", "--json"});
  EXPECT_EQ(ranks.exit_code, 0) << ranks.err;
  const auto of_ranks = nlohmann::json::parse(ranks.out);
  EXPECT_TRUE(of_ranks["right"]);
  EXPECT_EQ(of_ranks["machines"][0]["processes"], 2);
  here.write("train.toml", "[backend]\ntimeuot = 3\n");
  const Outcome wrong = here.coupler({"config", "check", "--json"});
  EXPECT_EQ(wrong.exit_code, 2);
  const auto verdict = nlohmann::json::parse(wrong.out);
  EXPECT_FALSE(verdict["right"]);
  EXPECT_NE(verdict["problems"][0].get<std::string>().find("timeuot"), std::string::npos);
  EXPECT_NE(wrong.err.find("timeuot"), std::string::npos) << "the error is reported as usual";
}

TEST(ConfigCommand, Keys_AreThoseOfTheSchemaWhateverTheFileHolds) {
  const Workplace here;
  here.write("train.toml", "[backend]\nno_such = 1\n");
  const Outcome outcome = here.coupler({"config", "keys", "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::set<std::string> keys;
  for (const auto& row : nlohmann::json::parse(outcome.out)) {
    keys.insert(row.at("key").get<std::string>());
    EXPECT_FALSE(row.at("meaning").get<std::string>().empty()) << row;
    if (row.at("key") != "backend.timeout") continue;
    EXPECT_EQ(row.at("type"), "duration");
    EXPECT_EQ(row.at("default"), "\"30s\"");
    EXPECT_EQ(row.at("constraint"), "> 0");
    EXPECT_EQ(row.at("variable"), "COUPLER_BACKEND_TIMEOUT");
  }
  EXPECT_EQ(keys.size(), config::schema().size());
  const Outcome text = here.coupler({"config", "keys"});
  EXPECT_NE(text.out.find("\nlaunch.processes = 1\n    integer, COUPLER_LAUNCH_PROCESSES\n"),
            std::string::npos)
      << text.out;
}

TEST(ConfigCommand, KeysOfABackend_AreWhatItsPluginDeclares) {
  const Workplace here;
  const std::string fsdp = COUPLER_BINARY_DIR "/lib/coupler/libcoupler_fsdp.so";
  const Outcome outcome = here.coupler({"config", "keys", fsdp, "--markdown"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.rfind("| option | type | default | meaning |\n", 0), 0u) << outcome.out;
  for (const char* row : {"\n| `backend.fsdp.base` | string | `\"auto\"` | ",
                          "\n| `backend.fsdp.prefetch` | integer | `1` | "}) {
    EXPECT_NE(outcome.out.find(row), std::string::npos) << row << " in\n" << outcome.out;
  }
  EXPECT_EQ(outcome.out.find("launch.processes"), std::string::npos);
}

TEST(ConfigCommand, KeysOfNoBackend_EndsWithWhatThereIs) {
  const Workplace here;
  const Outcome outcome = here.coupler({"config", "keys", "no_such"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_NE(outcome.err.find("backend \"no_such\" was not found"), std::string::npos)
      << outcome.err;
  const Outcome both = here.coupler({"config", "keys", "--json", "--markdown"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_NE(both.err.find("give --json or --markdown"), std::string::npos) << both.err;
}

}  // namespace
}  // namespace coupler
