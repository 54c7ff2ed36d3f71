#include <algorithm>

#include "folder.h"
#include "plugin/plugin.h"
#include "plugin/probe.h"

namespace coupler::test {
namespace {

class PluginReports : public ::testing::Test {
 protected:
  PluginReports() {
    backend_.plugin_path = {folder_.path()};
    const char* path = getenv("PATH");
    path_ = path != nullptr ? path : "";
  }
  ~PluginReports() override { setenv("PATH", path_.c_str(), 1); }

  plugin::PluginReport row(const std::string& name) {
    for (plugin::PluginReport& report : plugin::list_plugins(backend_)) {
      if (report.name == name) return report;
    }
    ADD_FAILURE() << "no row " << name;
    return {};
  }
  // Sets a PATH with or without mpirun.
  void set_mpirun(bool there) {
    if (there) {
      std::filesystem::permissions(folder_.write("mpirun", "#!/bin/sh\n"),
                                   std::filesystem::perms(0755));
    }
    setenv("PATH", folder_.path().c_str(), 1);
  }

  Folder folder_;
  config::BackendConfig backend_;
  std::string path_;
};

TEST_F(PluginReports, GoodPlugin_IsUsableWithItsFacts) {
  folder_.add("good");
  const plugin::PluginReport report = row("good");
  EXPECT_TRUE(report.usable);
  EXPECT_EQ(report.score, 5);
  EXPECT_EQ(report.version, "1.2.3");
  EXPECT_EQ(report.description, "A fixture.");
  EXPECT_EQ(report.abi, "0.1");
  EXPECT_EQ(report.reason, "a fixture of the tests");
  EXPECT_EQ(report.path, folder_.path(Folder::file_name("good")));
  EXPECT_FALSE(report.can(DB_CAP_NEEDS_BASE));
  EXPECT_FALSE(report.can(DB_CAP_NEEDS_MPI_LAUNCH));
}

TEST_F(PluginReports, Single_IsListed) { EXPECT_TRUE(row("single").usable); }

TEST_F(PluginReports, BadPlugins_CostTheirRowsOnly) {
  for (const char* name : {"throws", "crashes", "other_major", "no_entry", "good"}) {
    folder_.add(name);
  }
  folder_.write(Folder::file_name("text"), "hello");
  expect_text(row("throws").reason, "threw in its constructor");
  expect_text(row("throws").reason, "no license file");
  expect_text(row("crashes").reason, "crashed while being loaded or probed: signal 6");
  expect_text(row("other_major").reason, "the major versions differ");
  expect_text(row("no_entry").reason, "does not export");
  expect_text(row("text").reason, "is not an ELF file");
  for (const plugin::PluginReport& report : plugin::list_plugins(backend_)) {
    if (report.path.starts_with(folder_.path())) {
      EXPECT_EQ(report.usable, report.name == "good") << report.name;
    }
  }
}

TEST_F(PluginReports, BackendByPath_IsTheFirstRow) {
  backend_.plugin_path.clear();
  backend_.use = folder_.add("good");
  const std::vector<plugin::PluginReport> reports = plugin::list_plugins(backend_);
  EXPECT_EQ(reports.front().name, "good");
  EXPECT_TRUE(reports.front().usable);
}

TEST_F(PluginReports, Pin_IsForTheChosenBackendOnly) {
  folder_.add("good");
  folder_.add("gloo_cpu");
  backend_.use = "gloo_cpu";
  backend_.sha256 = std::string(64, '0');
  EXPECT_TRUE(row("good").usable);
  expect_text(row("gloo_cpu").reason, "backend.sha256 pins");
}

TEST_F(PluginReports, Auto_TakesNcclWhereItsProbeSaysSo) {
  for (const char* name : {"nccl", "mpi", "gloo_cpu"}) folder_.add(name);
  set_mpirun(true);
  EXPECT_EQ(plugin::resolve_auto(backend_, plugin::MpiLaunch::kPossible), "nccl");
}

TEST_F(PluginReports, Auto_PassesOverAnUnusableNccl) {
  folder_.add("nccl_unusable", "nccl");
  folder_.add("mpi");
  folder_.add("gloo_cpu");
  set_mpirun(true);
  EXPECT_EQ(plugin::resolve_auto(backend_, plugin::MpiLaunch::kPossible), "mpi");
}

TEST_F(PluginReports, Auto_TakesMpiInsideAnMpiLaunchOnly_WithoutMpirun) {
  folder_.add("nccl_unusable", "nccl");
  folder_.add("mpi");
  folder_.add("gloo_cpu");
  set_mpirun(false);
  EXPECT_EQ(plugin::resolve_auto(backend_, plugin::MpiLaunch::kPossible), "gloo_cpu");
  EXPECT_EQ(plugin::resolve_auto(backend_, plugin::MpiLaunch::kInside), "mpi");
}

TEST_F(PluginReports, Auto_InAProcessThatMpirunDidNotStart_IsNotMpi) {
  folder_.add("nccl_unusable", "nccl");
  folder_.add("mpi");
  folder_.add("gloo_cpu");
  set_mpirun(true);
  EXPECT_EQ(plugin::resolve_auto(backend_, plugin::MpiLaunch::kTooLate), "gloo_cpu");
}

TEST_F(PluginReports, Auto_AsksEveryPlugin_AndAThirdPartysWinsByItsScore) {
  for (const char* name : {"nccl", "mpi", "gloo_cpu", "swift"}) folder_.add(name);
  set_mpirun(true);
  EXPECT_EQ(plugin::resolve_auto(backend_, plugin::MpiLaunch::kPossible), "swift");
}

TEST_F(PluginReports, Auto_AsksEveryPlugin_AndAThirdPartysLosesByItsScore) {
  folder_.add("nccl_unusable", "nccl");
  folder_.add("mpi");
  folder_.add("gloo_cpu");
  folder_.add("good");  // 5 is less than all others have
  set_mpirun(true);
  EXPECT_EQ(plugin::resolve_auto(backend_, plugin::MpiLaunch::kPossible), "mpi");
  EXPECT_EQ(plugin::resolve_auto(backend_, plugin::MpiLaunch::kTooLate), "gloo_cpu");
}

TEST_F(PluginReports, Auto_OfEqualScores_IsTheFirstInSearchOrder) {
  const Folder first;
  first.add("gloo_cpu");
  folder_.add("gloo_cpu");
  folder_.add("good");
  backend_.plugin_path = {first.path(), folder_.path()};
  EXPECT_EQ(
      plugin::try_plugin(plugin::resolve_auto(backend_, plugin::MpiLaunch::kTooLate), backend_)
          .path,
      first.path(Folder::file_name("gloo_cpu")));
}

TEST_F(PluginReports, Auto_OnHost_TakesNoneThatMovesOnlyADevicesMemory) {
  for (const char* name : {"nccl", "mpi", "gloo_cpu"}) folder_.add(name);
  set_mpirun(true);
  EXPECT_EQ(plugin::resolve_auto(backend_, plugin::MpiLaunch::kPossible, /*on_host=*/true), "mpi");
}

TEST_F(PluginReports, Auto_SkipsPluginsThatCrashOrHang_WithTheirReasons) {
  for (const char* name : {"crashes", "throws", "no_entry", "gloo_cpu"}) folder_.add(name);
  EXPECT_EQ(plugin::resolve_auto(backend_, plugin::MpiLaunch::kTooLate), "gloo_cpu");
  std::filesystem::remove(folder_.path(Folder::file_name("gloo_cpu")));
  for (const char* name : {"gloo_cpu", "shm"}) folder_.write(Folder::file_name(name), "hello");
  folder_.add("hangs");
  folder_.add("nccl_unusable", "nccl");
  const std::string message = message_of(
      ErrorCode::kPlugin, [&] { plugin::resolve_auto(backend_, plugin::MpiLaunch::kTooLate); });
  expect_text(message, "crashes: crashed while being loaded or probed: signal 6");
  expect_text(message, "hangs: was stopped after 10 s while being loaded or probed");
  expect_text(message, "no license file");
  expect_text(message, "is a shared library but not a backend");
}

TEST_F(PluginReports, Auto_WithoutAnyTransport_GivesEveryReason) {
  // Unusable plugins of the same names hide those in the build tree.
  folder_.add("nccl_unusable", "nccl");
  folder_.add("throws", "mpi");
  for (const char* name : {"gloo_cpu", "shm"}) folder_.write(Folder::file_name(name), "hello");
  set_mpirun(true);
  const std::string message = message_of(
      ErrorCode::kPlugin, [&] { plugin::resolve_auto(backend_, plugin::MpiLaunch::kPossible); });
  expect_text(message, "found no usable transport");
  expect_text(message, "nccl: no CUDA device answers");
  expect_text(message, "mpi: plugin ");
  expect_text(message, "threw in its constructor");
  expect_text(message, "is not an ELF file");
  expect_text(message, folder_.path() + " (backend.plugin_path)");
}

}  // namespace
}  // namespace coupler::test
