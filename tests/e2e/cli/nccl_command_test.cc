// What the coupler program reports about nccl, over the double of NCCL and CUDA in tests/matrix.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "run_program.h"

namespace coupler {
namespace {

std::map<std::string, std::string> with_double(std::map<std::string, std::string> variables) {
  variables.emplace("COUPLER_NCCL_PATH", COUPLER_NCCL_DOUBLE);
  return variables;
}

nlohmann::json nccl_row(const std::map<std::string, std::string>& variables) {
  const Workplace here;
  const Outcome outcome = here.coupler({"plugins", "--json"}, with_double(variables));
  for (const auto& row : nlohmann::json::parse(outcome.out)) {
    if (row.at("name") == "nccl") return row;
  }
  ADD_FAILURE() << outcome.out << outcome.err;
  return {{"usable", false}, {"reason", ""}};
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
}

TEST(PluginsCommand, NcclWithDevices_IsUsableAndSaysWhichLibrary) {
  const auto row = nccl_row({{"CUDA_DOUBLE_DEVICES", "2"}});
  EXPECT_EQ(row.at("usable"), true);
  const std::string reason = row.at("reason");
  expect_contains(reason, COUPLER_NCCL_DOUBLE "/libnccl.so.2");
  expect_contains(reason, COUPLER_NCCL_DOUBLE "/libcudart.so.13");
  expect_contains(reason, "2 devices");
}

// The launcher runs the probe; it has no LibTorch loaded, next to which NCCL could be found.
TEST(PluginsCommand, NcclBesideTheLibTorchThatIsNamed_IsFound) {
  namespace fs = std::filesystem;
  const Workplace here;
  const fs::path packages = here.path() / "torch-of-mine";
  for (const char* const wheel : {"nccl", "cu13"}) {
    fs::create_directories(packages / "nvidia" / wheel);
    fs::create_directory_symlink(COUPLER_NCCL_DOUBLE, packages / "nvidia" / wheel / "lib");
  }
  const auto row =
      nccl_row({{"COUPLER_NCCL_PATH", ""}, {"COUPLER_TORCH_ROOT", (packages / "torch").string()}});
  EXPECT_EQ(row.at("usable"), true);
  expect_contains(row.at("reason"), "/libnccl.so.2");
}

TEST(PluginsCommand, NcclWithoutDriver_IsListedWithWhyNot) {
  const auto row = nccl_row({{"CUDA_DOUBLE_DRIVER", "0"}});
  EXPECT_EQ(row.at("usable"), false);
  expect_contains(row.at("reason"), "no NVIDIA driver was found");
}

// What `coupler launch` logs about its choice for two processes.
std::string log_of_auto(std::map<std::string, std::string> variables) {
  variables["COUPLER_LOG"] = "plugin=info";
  const Workplace here;
  variables["PATH"] = here.path();  // without mpirun, which is slow
  const Outcome outcome = here.coupler({"launch", "-n", "2", "/bin/true"}, with_double(variables));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.err;
}

TEST(LaunchCommand, AutoWithDevices_IsNccl) {
  expect_contains(log_of_auto({}), "backend \"auto\" is nccl");
}

TEST(LaunchCommand, AutoWithoutDevices_PassesOverNcclWithTheReason) {
  expect_contains(log_of_auto({{"CUDA_VISIBLE_DEVICES", ""}}),
                  "passes over nccl: no CUDA device was found");
  expect_contains(log_of_auto({{"CUDA_DOUBLE_DRIVER", "0"}}),
                  "passes over nccl: no NVIDIA driver was found");
  expect_contains(log_of_auto({{"CUDA_DOUBLE_DRIVER", "12040"}}),
                  "passes over nccl: the NVIDIA driver is too old");
}

// Although devices respond.
TEST(LaunchCommand, HierarchicalOverNccl_IsRefusedByItsOptionWithWhatToUse) {
  const Workplace here;
  for (const char* role : {"local", "across"}) {
    const std::string key = std::string("backend.hierarchical.") + role;
    const Outcome outcome = here.coupler(
        {"launch", "-n", "2", "-o", "backend.use=hierarchical", "-o", key + "=nccl", "/bin/true"},
        with_double({}));
    EXPECT_EQ(outcome.exit_code, 2);
    expect_contains(outcome.err, key +
                                     " = \"nccl\": it moves only a device's memory, and "
                                     "hierarchical works on host memory");
    expect_contains(outcome.err, "set " + key + " to a transport for host memory");
    expect_contains(outcome.err, "or backend.use to \"nccl\" alone");
  }
}

}  // namespace
}  // namespace coupler
