// coupler bench collectives: JSON rows, a table, and the errors of wrong input.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/network.h"
#include "launch.h"

namespace coupler::matrix {
namespace {

LaunchResult bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {std::string(COUPLER_BINARY_DIR) + "/bin/coupler", "bench"});
  return launch(arguments, "/", std::chrono::seconds(100));
}

const std::string kGloo =
    "backend.use=" + std::string(COUPLER_BINARY_DIR) + "/lib/coupler/libcoupler_gloo_cpu.so";

TEST(BenchCollectives, TwoProcessesAsJson_GivesARowForEachOperationAndSize) {
  const LaunchResult result =
      bench({"collectives", "-n", "2", "-o", kGloo, "--op", "all_reduce,all_gather,barrier",
             "--bytes", "8,1K", "--seconds", "0.01", "--json"});
  ASSERT_EQ(result.code, 0) << result.output;
  const auto rows = nlohmann::json::parse(result.output);
  ASSERT_EQ(rows.size(), 5u) << result.output;
  for (const auto& row : rows) {
    EXPECT_EQ(row.at("world"), 2);
    EXPECT_EQ(row.at("backend"), "gloo_cpu");
    EXPECT_GT(row.at("median_us").get<double>(), 0);
    EXPECT_GE(row.at("p99_us").get<double>(), row.at("median_us").get<double>());
  }
  EXPECT_EQ(rows[1].at("bytes"), 1024);
  EXPECT_EQ(rows[1].at("busbw"), rows[1].at("algbw"));  // 2 (n - 1) / n of two ranks
  EXPECT_EQ(rows[4].at("op"), "barrier");
}

// The ranks connect through an address that the launcher accepts.
TEST(BenchCollectives, Interface_MayBeNamedByItsAddress) {
  for (const auto& [name, address] : network_addresses()) {
    if (address.find('%') != std::string::npos) continue;  // link-local: gloo takes no scope
    const LaunchResult result =
        bench({"collectives", "-n", "2", "-o", kGloo, "-o", "backend.interface=" + address,
               "--bytes", "8", "--seconds", "0.01"});
    EXPECT_EQ(result.code, 0) << address << "\n" << result.output;
  }
}

TEST(BenchCollectives, OneProcess_NeedsNoBackend) {
  const LaunchResult result =
      bench({"collectives", "--bytes", "64", "--seconds", "0.01", "--async"});
  ASSERT_EQ(result.code, 0) << result.output;
  EXPECT_NE(result.output.find("single, 1 ranks"), std::string::npos) << result.output;
}

TEST(BenchCollectives, WrongArguments_AreNamedWithTheValidOnes) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"collectives", "--op", "all_redduce"}, "valid: all_reduce, broadcast"},
      {{"collectives", "--bytes", "12X"}, "'12X' is not a size"},
      {{"collectives", "--dtype", "f33"}, "valid: i8"},
      {{"collectives", "--seconds", "-1"}, "'-1' is not a valid time"},
      {{"collectives", "--fast"}, "unknown argument '--fast'"},
      {{"collectives", "--op"}, "--op needs a value"},
      {{"collective"}, "unknown subcommand 'collective'; did you mean 'collectives'?"},
      {{}, "usage: coupler bench collectives"}};
  for (const auto& [arguments, message] : cases) {
    const LaunchResult result = bench(arguments);
    EXPECT_EQ(result.code, 2) << result.output;
    EXPECT_NE(result.output.find(message), std::string::npos) << result.output;
  }
}

}  // namespace
}  // namespace coupler::matrix
