// coupler doctor on machines that lack something; the environment simulates what is missing.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "run_program.h"

namespace coupler {
namespace {

using Json = nlohmann::json;

bool finding_has(const Json& finding, const char* field, const std::string& part) {
  return finding.at(field).get<std::string>().find(part) != std::string::npos;
}

// The findings of a check whose level is one of levels ("" for all).
std::vector<Json> findings(const Outcome& outcome, const std::string& check,
                           const std::string& level) {
  std::vector<Json> found;
  const Json report = Json::parse(outcome.out);
  for (const Json& finding : report.at("findings")) {
    if (finding.at("check") == check && (level.empty() || finding.at("level") == level)) {
      found.push_back(finding);
    }
  }
  return found;
}

// The finding whose "what" contains the text.
Json finding(const Outcome& outcome, const std::string& check, const std::string& level,
             const std::string& what) {
  for (const Json& one : findings(outcome, check, level)) {
    if (finding_has(one, "what", what)) return one;
  }
  ADD_FAILURE() << check << " has no " << level << " with '" << what << "' in\n" << outcome.out;
  return {{"what", ""}, {"why", ""}, {"mend", ""}};
}

Outcome doctor(const Workplace& here, std::vector<std::string> arguments,
               const std::map<std::string, std::string>& variables = {}) {
  arguments.insert(arguments.begin(), {"doctor", "--json"});
  return here.coupler(arguments, variables);
}

TEST(DoctorCommand, EveryFinding_IsCompleteAndEveryCheckSaysSomething) {
  const Workplace here;
  const Outcome outcome = doctor(here, {});
  const Json report = Json::parse(outcome.out);
  EXPECT_EQ(report.at("exit_code"), outcome.exit_code);
  for (const Json& one : report.at("findings")) {
    EXPECT_FALSE(one.at("what").get<std::string>().empty()) << one;
    const bool fine = one.at("level") == "ok";
    EXPECT_EQ(one.at("why").get<std::string>().empty(), fine) << one;
    EXPECT_EQ(one.at("mend").get<std::string>().empty(), fine) << one;
  }
  for (const char* check : {"configuration", "LibTorch", "backends", "Open MPI", "GPUs", "network",
                            "processors", "memory", "shared memory", "limits", "folders",
                            "leftovers", "clock", "huge pages", "frequency"}) {
    EXPECT_FALSE(findings(outcome, check, "").empty()) << check;
  }
}

TEST(DoctorCommand, Text_HasAllThatJsonHas) {
  const Workplace here;
  const Json report = Json::parse(doctor(here, {}).out);
  const Outcome text = here.coupler({"doctor"});
  EXPECT_EQ(text.exit_code, report.at("exit_code"));
  for (const Json& one : report.at("findings")) {
    // The machine's numbers change between two runs.
    if (one.at("check") == "memory" || one.at("check") == "shared memory" ||
        one.at("check") == "folders" || one.at("check") == "leftovers") {
      continue;
    }
    const std::string check = one.at("check"), what = one.at("what"), mend = one.at("mend");
    EXPECT_NE(text.out.find(check + ": " + what + "\n"), std::string::npos) << what << text.out;
    EXPECT_NE(text.out.find("fix:  " + mend), mend.empty() ? 0 : std::string::npos);
  }
}

TEST(DoctorCommand, NothingInstalled_StillReportsAndNamesTheCommands) {
  const Workplace here;
  const Outcome outcome =
      doctor(here, {}, {{"PATH", here.path()}, {"COUPLER_TORCH_ROOT", "/nowhere"}});
  EXPECT_NE(outcome.exit_code, 0);
  const Json torch = finding(outcome, "LibTorch", "error", "/nowhere/lib/libtorch_cpu.so");
  EXPECT_TRUE(finding_has(torch, "mend", "coupler setup-torch")) << torch;
  const Json mpi = finding(outcome, "Open MPI", "note", "mpirun is not in PATH");
  EXPECT_TRUE(finding_has(mpi, "mend", "openmpi-bin")) << mpi;
}

TEST(DoctorCommand, LibTorchThatIsNoLibrary_IsAnError) {
  const Workplace here;
  here.write("torch/lib/libtorch_cpu.so", "text\n");
  here.write("torch/version.py", "__version__ = '2.11.0'\n");
  const Outcome outcome =
      doctor(here, {}, {{"COUPLER_TORCH_ROOT", (here.path() / "torch").string()}});
  finding(outcome, "LibTorch", "error", "cannot be loaded");
}

TEST(DoctorCommand, BackendThatCannotBeUsed_EndsWithThree) {
  const Workplace here;
  here.write("plugins/libcoupler_broken.so", "this is text\n");
  const std::string folder = "backend.plugin_path=" + (here.path() / "plugins").string();
  const Outcome named = doctor(here, {"-o", folder, "-o", "backend.use=broken"});
  EXPECT_EQ(named.exit_code, 3);
  finding(named, "backends", "error", "is not an ELF file");
  // A broken backend that is not used is a note.
  finding(doctor(here, {"-o", folder, "-o", "backend.use=single"}), "backends", "note",
          "broken cannot be used");
  const Outcome unknown = doctor(here, {"-o", "backend.use=nobodys"});
  EXPECT_EQ(unknown.exit_code, 3);
  finding(unknown, "backends", "error", "\"nobodys\" was not found");
}

TEST(DoctorCommand, WrongConfiguration_EndsWithTwoAndTheRestIsLookedAt) {
  const Workplace here;
  here.write("train.toml", "[backend]\nus = 1\n");
  const Outcome outcome = doctor(here, {});
  EXPECT_EQ(outcome.exit_code, 2);
  finding(outcome, "configuration", "error", "unknown key 'backend.us'");
  EXPECT_FALSE(findings(outcome, "clock", "").empty());
  const Outcome option = doctor(here, {"-o", "backend.use=single", "-o", "backend.single.speed=3"});
  EXPECT_EQ(option.exit_code, 2) << option.out;
}

TEST(DoctorCommand, MoreRanksThanCores_IsAWarning) {
  const Workplace here;
  const Json one = finding(doctor(here, {"-o", "launch.processes=5000"}), "processors", "warning",
                           "launch.processes is 5000");
  EXPECT_TRUE(finding_has(one, "mend", "-o launch.processes=")) << one;
}

TEST(DoctorCommand, OmpNumThreads_ThatIsWrongIsAWarning) {
  const Workplace here;
  for (const char* value : {"many", "0", "100000", "-1"}) {
    const Outcome outcome = doctor(here, {}, {{"OMP_NUM_THREADS", value}});
    const Json one = finding(outcome, "processors", "warning", "OMP_NUM_THREADS is");
    EXPECT_TRUE(finding_has(one, "mend", "unset OMP_NUM_THREADS")) << value;
  }
  const Outcome outcome =
      doctor(here, {"-o", "launch.threads_per_process=1"}, {{"OMP_NUM_THREADS", "100000"}});
  EXPECT_TRUE(findings(outcome, "processors", "warning").empty()) << "the key is set";
}

TEST(DoctorCommand, Interface_IsTriedWithAConnection) {
  const Workplace here;
  finding(doctor(here, {}), "network", "ok", "127.0.0.1 (backend.interface is not set: loopback)");
  finding(doctor(here, {"-o", "backend.interface=lo"}), "network", "ok",
          "a trial connection succeeded");
  const Outcome outcome = doctor(here, {"-o", "backend.interface=nowhere0"});
  EXPECT_EQ(outcome.exit_code, 2);
  const Json one = finding(outcome, "network", "error", "nowhere0");
  EXPECT_TRUE(finding_has(one, "mend", "lo (127.0.0.1)")) << one;
}

TEST(DoctorCommand, FirewallThatDrops_IsAWarning) {
  const Workplace here;
  here.write("nft",
             "#!/bin/sh\necho 'table inet filter {\n chain input {\n'"
             "'  type filter hook input priority filter; policy drop;'\n",
             0755);
  const std::string path = here.path().string() + ":/usr/bin:/bin";
  finding(doctor(here, {"-o", "backend.interface=lo"}, {{"PATH", path}}), "network", "warning",
          "policy drop");
}

TEST(DoctorCommand, TemporaryFolderThatIsNotThere_IsAnError) {
  const Workplace here;
  const Outcome outcome = doctor(here, {}, {{"TMPDIR", "/nowhere/tmp"}});
  EXPECT_EQ(outcome.exit_code, 1);
  const Json one = finding(outcome, "folders", "error", "/nowhere/tmp (TMPDIR) is not a folder");
  EXPECT_EQ(one.at("mend"), "mkdir -p /nowhere/tmp");
}

// The findings under limits that a shell sets before.
Outcome limited(const Workplace& here, const std::string& limit) {
  return here.run("/bin/sh", {"-c", "ulimit " + limit +
                                        "; exec " COUPLER_BINARY_DIR "/bin/coupler doctor --json"});
}

TEST(DoctorCommand, OpenFiles_TooFewAreAWarning) {
  const Workplace here;
  const Json files = finding(limited(here, "-n 100"), "limits", "warning", "100 open files");
  EXPECT_TRUE(finding_has(files, "mend", "nofile")) << files;
  EXPECT_EQ(finding(limited(here, "-S -n 100"), "limits", "warning", "100 open files").at("mend"),
            "ulimit -n 4096");
}

#ifndef __SANITIZE_ADDRESS__  // its shadow memory needs more addresses than any limit
TEST(DoctorCommand, AddressSpace_ThatIsLimitedIsAWarning) {
  const Workplace here;
  finding(limited(here, "-v 50000000"), "limits", "warning", "47.7 GiB of address space");
}
#endif

TEST(DoctorCommand, MpirunThatHangs_DoesNotHoldItUp) {
  const Workplace here;
  here.write("mpirun.openmpi", "#!/bin/sh\nsleep 600\n", 0755);
  const Outcome outcome = doctor(here, {}, {{"PATH", here.path().string() + ":/usr/bin:/bin"}});
  finding(outcome, "Open MPI", "warning", "which does not answer --version");
}

TEST(DoctorCommand, Machine_IsLeftAsItWas) {
  const Workplace here;
  const std::filesystem::path folder = here.path() / "tmp";
  std::filesystem::create_directory(folder);
  doctor(here, {"-o", "checkpoint.dir=checkpoints"}, {{"TMPDIR", folder}});
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  EXPECT_FALSE(std::filesystem::exists(here.path() / "checkpoints"));
}

}  // namespace
}  // namespace coupler
