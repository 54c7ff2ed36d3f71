#include "rendezvous/process_info.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <string>

#include "plugin/plugin.h"
#include "variables.h"

namespace coupler::rendezvous {
namespace {

// The message of the Error(kConfig) that these variables cause.
std::string refusal(const Variables& variables) {
  try {
    detect(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_FALSE(error.detail().hint.empty());
    return error.what();
  }
  return "no error";
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};

TEST(ProcessInfo, NoLauncher_IsAWorldOfOne) {
  const auto info = detect({});
  EXPECT_EQ(info.launcher, LauncherKind::kNone);
  EXPECT_EQ(info.rank, 0);
  EXPECT_EQ(info.world_size, 1);
}

TEST(ProcessInfo, CouplersVariables_AreRead_WithTheJobFile) {
  const auto info = detect({{"COUPLER_RANK", "2"},
                            {"COUPLER_WORLD_SIZE", "3"},
                            {"COUPLER_LOCAL_RANK", "0"},
                            {"COUPLER_LOCAL_WORLD_SIZE", "1"},
                            {"COUPLER_JOB_FILE", "/proc/1/fd/5"}});
  EXPECT_EQ(info.launcher, LauncherKind::kCoupler);
  EXPECT_EQ(info.rank, 2);
  EXPECT_EQ(info.world_size, 3);
  EXPECT_EQ(info.local_rank, 0);
  EXPECT_EQ(info.local_world_size, 1);
  EXPECT_EQ(info.job_file, "/proc/1/fd/5");
}

TEST(ProcessInfo, TorchrunsVariables_AreRead_WithTheMaster) {
  const auto info = detect({{"RANK", "1"},
                            {"WORLD_SIZE", "2"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "localhost"},
                            {"MASTER_PORT", "29500"}});
  EXPECT_EQ(info.launcher, LauncherKind::kTorchrun);
  EXPECT_EQ(info.store_host, "localhost");
  EXPECT_EQ(info.store_port, 29500);
}

TEST(ProcessInfo, OpenMpisVariables_AreRead_WithoutAStore) {
  const auto info = detect(kOpenMpi);
  EXPECT_EQ(info.launcher, LauncherKind::kOpenMpi);
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.world_size, 4);
  EXPECT_TRUE(info.job_file.empty());
}

// Only if the launcher said so: RANK and WORLD_SIZE alone may be those of several machines.
TEST(ProcessInfo, Spread_IsOneMachineIfAllRanksAreSaidToBeOnIt) {
  Variables variables = {{"RANK", "1"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"MASTER_ADDR", "localhost"},
                         {"MASTER_PORT", "29500"}};
  EXPECT_EQ(spread_of(detect(variables)), plugin::Spread::kUnknown);
  variables["LOCAL_WORLD_SIZE"] = "2";
  EXPECT_EQ(spread_of(detect(variables)), plugin::Spread::kUnknown);
  variables["LOCAL_WORLD_SIZE"] = "4";
  EXPECT_EQ(spread_of(detect(variables)), plugin::Spread::kOneMachine);
  EXPECT_EQ(spread_of(detect(kOpenMpi)), plugin::Spread::kOneMachine);
}

TEST(ProcessInfo, LaunchersThatAgree_ArePassed_TheMoreExplicitCounts) {
  auto variables = kOpenMpi;
  variables.insert({{"COUPLER_RANK", "1"}, {"COUPLER_WORLD_SIZE", "4"}, {"COUPLER_JOB_FILE", "f"}});
  EXPECT_EQ(detect(variables).launcher, LauncherKind::kCoupler);
}

TEST(ProcessInfo, LaunchersThatDisagree_AreRefused_NamingBothVariables) {
  auto variables = kOpenMpi;
  variables.insert({{"RANK", "0"}, {"WORLD_SIZE", "4"}});
  const auto text = refusal(variables);
  EXPECT_SAYS(text, "RANK=0");
  EXPECT_SAYS(text, "OMPI_COMM_WORLD_RANK=1");
  EXPECT_SAYS(text, "unset");
}

TEST(ProcessInfo, WorldsThatDisagree_AreRefused_NamingBothVariables) {
  auto variables = kOpenMpi;
  variables.insert({{"COUPLER_RANK", "1"}, {"COUPLER_WORLD_SIZE", "2"}});
  const auto text = refusal(variables);
  EXPECT_SAYS(text, "COUPLER_WORLD_SIZE=2");
  EXPECT_SAYS(text, "OMPI_COMM_WORLD_SIZE=4");
}

TEST(ProcessInfo, RankOutsideTheWorld_IsRefused_NamingBoth) {
  const auto text = refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}});
  EXPECT_SAYS(text, "RANK=2");
  EXPECT_SAYS(text, "WORLD_SIZE=2");
  EXPECT_SAYS(text, "0 to 1");
}

TEST(ProcessInfo, TextsThatAreNoNumbers_AreRefused_NamingTheVariable) {
  for (const char* text : {"one", "-1", "1.5", "1 ", "99999999999", "0x1"}) {
    const auto message = refusal({{"RANK", text}, {"WORLD_SIZE", "4"}});
    EXPECT_SAYS(message, "RANK");
    EXPECT_SAYS(message, text);
  }
  EXPECT_SAYS(refusal({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), "WORLD_SIZE");
}

TEST(ProcessInfo, HalfAPair_IsRefused_NamingWhatIsMissing) {
  EXPECT_SAYS(refusal({{"RANK", "1"}}), "WORLD_SIZE is not");
  EXPECT_SAYS(refusal({{"COUPLER_WORLD_SIZE", "2"}}), "COUPLER_RANK is not");
}

TEST(ProcessInfo, NoPlaceToMeet_IsRefused_NamingWhatIsMissing) {
  EXPECT_SAYS(refusal({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}), "MASTER_ADDR");
  EXPECT_SAYS(refusal({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}), "MASTER_PORT");
  EXPECT_SAYS(refusal({{"COUPLER_RANK", "1"}, {"COUPLER_WORLD_SIZE", "2"}}), "COUPLER_JOB_FILE");
  EXPECT_EQ(detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).world_size, 1);
}

}  // namespace
}  // namespace coupler::rendezvous
