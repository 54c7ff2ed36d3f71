// coupler plugins --matrix: what backends report that they support.
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "run_program.h"

namespace coupler {
namespace {

using Json = nlohmann::json;

Json row(const Json& rows, const std::string& name) {
  for (const Json& one : rows) {
    if (one.at("name") == name) return one;
  }
  ADD_FAILURE() << name << " is not in " << rows;
  return {};
}

TEST(MatrixCommand, Transports_HaveEveryOperationAndReduction) {
  const Workplace here;
  const Json rows = Json::parse(here.coupler({"plugins", "--matrix", "--json"}).out);
  const Json single = row(rows, "single");
  EXPECT_EQ(single.at("operations").size(), 14u);
  EXPECT_EQ(single.at("moved").size(), 15u);
  EXPECT_EQ(single.at("reductions").size(), 13u) << "all except the two fp8 types";
  EXPECT_EQ(single.at("reductions").at("f32"),
            Json({"sum", "prod", "min", "max", "avg", "premul_sum"}));
  EXPECT_EQ(single.at("reductions").at("bool"),
            Json({"sum", "prod", "min", "max", "band", "bor", "bxor"}));
  for (const char* name : {"gloo_cpu", "mpi", "shm"}) {
    const Json transport = row(rows, name);
    ASSERT_EQ(transport.at("problem"), "") << name;
    for (const char* field : {"operations", "moved", "reductions"}) {
      EXPECT_EQ(transport.at(field), single.at(field)) << name;
    }
    EXPECT_EQ(transport.at("split"), true);
    EXPECT_EQ(transport.at("memory"), "host");
  }
}

TEST(MatrixCommand, Wrappers_AnswerForTheirBase) {
  const Workplace here;
  const Json rows =
      Json::parse(here.coupler({"plugins", "--matrix", "--json", "-o", "backend.fsdp.base=mpi",
                                "-o", "backend.deepspeed_like.base=gloo_cpu"})
                      .out);
  for (const char* name : {"fsdp", "deepspeed_like"}) ASSERT_EQ(row(rows, name).at("problem"), "");
  EXPECT_EQ(row(rows, "fsdp").at("base"), "mpi");
  EXPECT_EQ(row(rows, "fsdp").at("operations"), row(rows, "mpi").at("operations"));
  EXPECT_EQ(row(rows, "deepspeed_like").at("base"), "gloo_cpu");
}

TEST(MatrixCommand, BackendOverTwo_NamesBoth) {
  const Workplace here;
  const Json rows = Json::parse(
      here.coupler({"plugins", "--matrix", "--json", "-o", "backend.hierarchical.across=gloo_cpu"})
          .out);
  const Json composed = row(rows, "hierarchical");
  ASSERT_EQ(composed.at("problem"), "");
  EXPECT_EQ(composed.at("base"), "shm and gloo_cpu");
  EXPECT_EQ(composed.at("operations"), row(rows, "shm").at("operations"));
}

TEST(MatrixCommand, BackendThatCannotBeAsked_HasItsReason) {
  const Workplace here;
  here.write("plugins/libcoupler_broken.so", "this is text\n");
  const std::vector<std::string> words = {
      "plugins", "--matrix", "-o", "backend.plugin_path=" + (here.path() / "plugins").string()};
  const Outcome text = here.coupler(words);
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_NE(text.out.find("\nbroken: the query failed here: plugin "), std::string::npos)
      << text.out;
  EXPECT_NE(text.out.find("is not an ELF file"), std::string::npos);
  for (const char* line : {"operation +broken .*", "all_reduce +\\? .* yes .*",
                           "type +reductions +broken .*", "f8_e5m2 +- +\\? .* moved .*"}) {
    EXPECT_TRUE(std::regex_search(text.out, std::regex("(^|\n)" + std::string(line) + "\n")))
        << line << " is not in\n"
        << text.out;
  }
}

// Open MPI's daemon cleans up a moment later.
TEST(MatrixCommand, Mpi_LeavesNothingBehind) {
  const Workplace here;
  const std::filesystem::path folder = here.path() / "tmp";
  std::filesystem::create_directory(folder);
  EXPECT_EQ(here.coupler({"plugins", "--matrix"}, {{"TMPDIR", folder}}).exit_code, 0);
  const auto files = [&folder] {
    std::string names;
    std::error_code gone;
    for (std::filesystem::recursive_directory_iterator entry(folder, gone), end;
         !gone && entry != end; entry.increment(gone)) {
      if (!entry->is_directory(gone)) names += entry->path().string() + "\n";
    }
    return names;
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!files().empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(files(), "");
}

}  // namespace
}  // namespace coupler
