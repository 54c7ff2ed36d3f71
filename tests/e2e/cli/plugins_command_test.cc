#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "run_program.h"

namespace coupler {
namespace {

// The object of that name in the output of coupler plugins --json.
nlohmann::json find(const Outcome& outcome, const std::string& name) {
  const auto rows = nlohmann::json::parse(outcome.out);
  for (const auto& row : rows) {
    if (row.at("name") == name) return row;
  }
  ADD_FAILURE() << name << " is not in\n" << outcome.out;
  return {};
}

TEST(PluginsCommand, BuiltInBackend_IsListedAndUsable) {
  const Workplace here;
  const Outcome outcome = here.coupler({"plugins"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out.substr(0, 5), "NAME ");
  EXPECT_NE(outcome.out.find("\nsingle "), std::string::npos) << outcome.out;
  const auto row = find(here.coupler({"plugins", "--json"}), "single");
  EXPECT_EQ(row.at("usable"), true);
  EXPECT_EQ(row.at("path"), "");
}

TEST(PluginsCommand, FileThatIsNoLibrary_IsListedWithWhyNot) {
  const Workplace here;
  here.write("plugins/libcoupler_broken.so", "this is text\n");
  const std::string path = (here.path() / "plugins").string();
  const Outcome outcome = here.coupler({"plugins", "--json", "-o", "backend.plugin_path=" + path});
  EXPECT_EQ(outcome.exit_code, 0);
  const auto row = find(outcome, "broken");
  EXPECT_EQ(row.at("usable"), false);
  EXPECT_EQ(row.at("path"), path + "/libcoupler_broken.so");
  EXPECT_NE(row.at("reason").get<std::string>().find("ELF"), std::string::npos) << row;
  const Outcome table = here.coupler({"plugins"}, {{"COUPLER_PLUGIN_PATH", path}});
  EXPECT_NE(table.out.find("\nbroken "), std::string::npos) << table.out;
}

TEST(PluginsCommand, Verbose_PrintsDetailsBelowTheTable) {
  const Workplace here;
  const std::string details = "up to 2 ranks: every rank reads all up to 64 KiB";
  EXPECT_EQ(here.coupler({"plugins"}).out.find(details), std::string::npos);
  EXPECT_NE(here.coupler({"plugins", "-v"}).out.find("\nshm:\n  " + details), std::string::npos);
}

// The fixtures are good and bad plugins; swift, which a third party could have written, has the
// highest score.
TEST(PluginsCommand, Auto_AmongAllKindsOfPlugins_TakesTheHighestScore) {
  const Workplace here;
  const Outcome outcome =
      here.coupler({"launch", "-n", "2", "/bin/true"},
                   {{"COUPLER_PLUGIN_PATH", COUPLER_FIXTURES}, {"COUPLER_LOG", "plugin=info"}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* text : {"backend \"auto\" is swift, whose score 200 is the highest",
                           "passes over crashes: crashed while being loaded or probed: signal 6",
                           "passes over hangs: was stopped after 10 s while being loaded or probed",
                           "passes over no_entry: plugin "}) {
    EXPECT_NE(outcome.err.find(text), std::string::npos) << text << " in\n" << outcome.err;
  }
}

TEST(PluginsCommand, WrongConfiguration_EndsWithTwo) {
  const Workplace here;
  const Outcome outcome = here.coupler({"plugins", "-o", "backend.plugin_path=3"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err,
            "coupler: error: -o backend.plugin_path: backend.plugin_path: expected list of "
            "strings, got integer 3\n");
}

}  // namespace
}  // namespace coupler
