#include <gtest/gtest.h>

#include "run_program.h"

namespace coupler {
namespace {

TEST(ConfigCommand, RightFile_IsSaidToBeRight) {
  const Workplace here;
  EXPECT_EQ(here.coupler({"config", "check"}).out,
            "The configuration is right; no file was read.\n");
  here.write("train.toml", "[backend]\nuse = \"mpi\"\n");
  const Outcome outcome = here.coupler({"config", "check"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "The configuration is right; train.toml was read.\n");
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
       "  hint: check the path; without --config ./train.toml is read where it exists"},
      {{"--config"},
       "",
       {},
       "--config: expected a file behind it\n  hint: write --config train.toml"},
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

}  // namespace
}  // namespace coupler
