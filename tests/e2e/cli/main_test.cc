// The program as a whole: help, version, wrong commands.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "run_program.h"

namespace coupler {
namespace {

TEST(CouplerProgram, Help_ListsCommandsAndExitCodes) {
  const Workplace here;
  for (const char* flag : {"--help", "-h", "help"}) {
    const Outcome outcome = here.coupler({flag});
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.err, "");
    for (const char* text : {"usage: coupler COMMAND", "\n  config ", "\n  plugins ", "\n  env ",
                             "Exit codes: 0 success; 2 usage or configuration error;"}) {
      EXPECT_NE(outcome.out.find(text), std::string::npos) << text << " in\n" << outcome.out;
    }
    EXPECT_EQ(outcome.out.find("rank-shim"), std::string::npos) << "it is for internal use only";
  }
}

TEST(CouplerProgram, NoCommand_PrintsHelpAsAnError) {
  const Workplace here;
  const Outcome outcome = here.coupler({});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, here.coupler({"--help"}).out);
}

TEST(CouplerProgram, Version_NamesItsOwnAndThatOfTheAbi) {
  const Workplace here;
  const Outcome outcome = here.coupler({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out.substr(0, 8), "coupler ");
  EXPECT_NE(outcome.out.find("(plugin ABI 0."), std::string::npos) << outcome.out;
}

TEST(CouplerProgram, Version_NamesLibTorchAndPlugins) {
  const Workplace here;
  here.write("torch/version.py", "__version__ = '2.12.1+cu130'\ncuda: Optional[str] = '13.0'\n");
  here.write("plugins/libcoupler_broken.so", "text\n");
  const std::string root = (here.path() / "torch").string();
  const std::map<std::string, std::string> variables = {
      {"COUPLER_TORCH_ROOT", root}, {"COUPLER_PLUGIN_PATH", (here.path() / "plugins").string()}};
  const Outcome text = here.coupler({"--version"}, variables);
  EXPECT_EQ(text.exit_code, 0);
  for (const std::string& part : {"\nLibTorch 2.12.1+cu130, " + root + " (built for CUDA 13.0)\n",
                                  std::string("\nplugin single "), std::string(", built in\n"),
                                  std::string("\nplugin broken cannot be loaded, ")}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part << " in\n" << text.out;
  }
  const auto json = nlohmann::json::parse(here.coupler({"--version", "--json"}, variables).out);
  EXPECT_EQ(json.at("libtorch").at("version"), "2.12.1+cu130");
  EXPECT_EQ(json.at("libtorch").at("cuda"), "13.0");
  EXPECT_EQ(json.at("abi").get<std::string>().rfind("0.", 0), 0u);
  EXPECT_EQ(json.at("plugins").back().at("name"), "single");
  // An invalid configuration does not matter.
  here.write("train.toml", "no toml");
  EXPECT_EQ(here.coupler({"--version"}, variables).exit_code, 0);
}

TEST(CouplerProgram, UnknownCommand_NamesTheNearest) {
  const Workplace here;
  const Outcome outcome = here.coupler({"pluggins"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err,
            "coupler: error: unknown command 'pluggins'; did you mean 'plugins'?\n"
            "  hint: 'coupler --help' lists the commands\n");
  EXPECT_EQ(here.coupler({"frobnicate"}).err,
            "coupler: error: unknown command 'frobnicate'\n"
            "  hint: 'coupler --help' lists the commands\n");
}

TEST(CouplerProgram, UnknownArgument_NamesTheNearest) {
  const Workplace here;
  const Outcome outcome = here.coupler({"config", "--explian"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err,
            "coupler: error: config: unknown argument '--explian'; did you mean '--explain'?\n"
            "  hint: 'coupler config --help' lists the options\n");
}

TEST(CouplerProgram, HelpOfEveryCommand_ShowsItsUsage) {
  const Workplace here;
  for (const char* command :
       {"config", "plugins", "env", "doctor", "checkpoint", "merge-weights"}) {
    const Outcome outcome = here.coupler({command, "--help"});
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.out.substr(0, 15), "usage: coupler ") << outcome.out;
    EXPECT_EQ(here.coupler({"help", command}).out, outcome.out);
  }
}

TEST(CouplerProgram, OutputIntoAPipe_HasNoColours) {
  const Workplace here;
  for (const char* command : {"plugins", "env", "--help"}) {
    EXPECT_EQ(here.coupler({command}).out.find('\x1b'), std::string::npos) << command;
  }
}

}  // namespace
}  // namespace coupler
