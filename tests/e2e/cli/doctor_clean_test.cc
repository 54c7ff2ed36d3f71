// coupler doctor --clean removes and lists what killed jobs have left, but nothing that is in use.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/process.h"
#include "cli/process/folder_use.h"
#include "run_program.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A process that has ended.
ProcessIdentity dead_process() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const ProcessIdentity process = identity_of(child);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return process;
}

std::string name_of_left(const ProcessIdentity& process) {
  return std::to_string(process.pid) + "-" + process.started;
}

// Creates a Unix socket at path; it is listened on while the result is open.
UniqueFd listen_at(const fs::path& path) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(socket.get(), 1), 0);
  return socket;
}

std::string job_file(const fs::path& socket, const ProcessIdentity& host) {
  return "coupler job 2\n" + socket.string() + "\n0\n" + std::string(64, 'a') + "\nplain\n" +
         std::to_string(host.pid) + " " + host.started + "\n";
}

class DoctorClean : public ::testing::Test {
 protected:
  DoctorClean() {
    fs::create_directories(runtime());
    fs::permissions(runtime(), fs::perms::owner_all);
  }
  ~DoctorClean() override {
    for (const auto& path : shared_) fs::remove_all(path);
  }

  fs::path runtime() const { return here_.path() / ("coupler-" + std::to_string(::geteuid())); }

  // Open MPI's session folder.
  std::string sessions() const {
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    return "ompi." + std::string(host) + "." + std::to_string(::geteuid());
  }

  fs::path make_mpi_folder(const ProcessIdentity& launcher) {
    fs::path path = "/dev/shm/coupler-mpi-" + name_of_left(launcher);
    fs::create_directories(path / "below");
    shared_.push_back(path);
    return path;
  }

  Outcome doctor(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "doctor");
    return here_.coupler(arguments, {{"TMPDIR", here_.path()},
                                     {"OMPI_MCA_btl_vader_backing_directory", here_.path()},
                                     {"OMPI_MCA_btl_sm_backing_directory", here_.path()}});
  }

  // The entry of --clean --json for a path; null: none.
  static Json entry(const Outcome& outcome, const fs::path& path) {
    const Json report = Json::parse(outcome.out);
    for (const Json& one : report.at("leftovers")) {
      if (one.at("path") == path.string()) return one;
    }
    return nullptr;
  }

  static void expect_removed(const Outcome& outcome, const fs::path& path) {
    const Json one = entry(outcome, path);
    ASSERT_FALSE(one.is_null()) << path << "\n" << outcome.out;
    EXPECT_EQ(one.at("removed"), true) << one;
    EXPECT_EQ(one.at("failure"), "") << one;
    EXPECT_FALSE(fs::exists(fs::symlink_status(path))) << path;
  }

  static void expect_kept(const Outcome& outcome, const fs::path& path) {
    EXPECT_TRUE(entry(outcome, path).is_null()) << outcome.out;
    EXPECT_TRUE(fs::exists(fs::symlink_status(path))) << path;
  }

  const Workplace here_;
  const ProcessIdentity dead_ = dead_process();

 private:
  std::vector<fs::path> shared_;
};

TEST_F(DoctorClean, LaunchersFolder_IsRemovedOnceNobodyUsesIt) {
  const fs::path left = make_mpi_folder(dead_);
  const fs::path used = make_mpi_folder(dead_process());
  const fs::path living = make_mpi_folder(own_identity());  // this process is about to use it
  const UniqueFd use = cli::use_folder(used);
  const Outcome outcome = doctor({"--clean", "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_removed(outcome, left);
  expect_kept(outcome, used);
  expect_kept(outcome, living);
}

TEST_F(DoctorClean, StoresOfRanks_AreRemovedWithTheirHost) {
  const auto socket_of = [&](const ProcessIdentity& host) {
    return runtime() / ("store-0123456789ab-" + name_of_left(host) + "-0123456789abcdef");
  };
  const fs::path left = socket_of(dead_), living = socket_of(own_identity());
  listen_at(left);
  const UniqueFd listening = listen_at(living);
  // Of a process that is not visible here, as in another container.
  const fs::path elsewhere = socket_of(dead_process());
  const UniqueFd listening_elsewhere = listen_at(elsewhere);
  const fs::path hidden =
      here_.path() / (".coupler-store-0123456789ab-" + name_of_left(dead_) + "-0123456789abcdef");
  listen_at(hidden);
  const std::string folder = runtime().filename();
  here_.write(folder + "/job-1", job_file(left, dead_));
  here_.write(folder + "/job-2", job_file(living, own_identity()));
  here_.write(folder + "/job-3", job_file(elsewhere, dead_process()));
  here_.write(folder + "/job-4." + std::to_string(dead_.pid), "coupler job 2\n");
  here_.write(folder + "/job-5." + std::to_string(::getpid()), "coupler job 2\n");
  here_.write(folder + "/notes", "text\n");
  const Outcome outcome = doctor({"--clean", "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_removed(outcome, left);
  expect_removed(outcome, hidden);
  expect_removed(outcome, runtime() / "job-1");
  expect_removed(outcome, runtime() / ("job-4." + std::to_string(dead_.pid)));
  expect_kept(outcome, living);
  expect_kept(outcome, elsewhere);
  expect_kept(outcome, runtime() / "job-2");
  expect_kept(outcome, runtime() / "job-3");
  expect_kept(outcome, runtime() / ("job-5." + std::to_string(::getpid())));
  expect_kept(outcome, runtime() / "notes");
}

TEST_F(DoctorClean, OpenMpisOwnFiles_AreRemovedOnceNoProcessHasThem) {
  const fs::path folder = here_.path() / sessions();
  const std::string dead = "pid." + std::to_string(dead_.pid);
  const std::string living = "pid." + std::to_string(::getpid());
  for (const std::string& session : {dead, living, std::string("jf.1"), std::string("jf.2")}) {
    here_.write(sessions() + "/" + session + "/0/file", "text\n");
  }
  const std::string segment = "vader_segment." + sessions().substr(5);
  here_.write(segment + ".12340001.0", "text\n");
  here_.write(segment + ".12340001.1", "text\n");
  const UniqueFd open(::open((folder / "jf.2/0/file").c_str(), O_RDONLY | O_CLOEXEC));
  const fs::path mapped = here_.path() / (segment + ".12340001.1");
  UniqueFd file(::open(mapped.c_str(), O_RDONLY | O_CLOEXEC));
  void* const memory = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  file.reset();
  const Outcome outcome = doctor({"--clean", "--json"});
  ::munmap(memory, 4096);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_removed(outcome, folder / dead);
  expect_removed(outcome, folder / "jf.1");
  expect_removed(outcome, here_.path() / (segment + ".12340001.0"));
  expect_kept(outcome, folder / living);
  expect_kept(outcome, folder / "jf.2");
  expect_kept(outcome, mapped);
}

TEST_F(DoctorClean, FilesOfOpenMpi5_AreRemovedOnceItsProcessHasEnded) {
  const auto host_and_user = sessions().substr(5);
  const auto dot = host_and_user.rfind('.');
  const auto session_of = [&](pid_t process) {
    return "prterun." + host_and_user.substr(0, dot + 1) + std::to_string(process) +
           host_and_user.substr(dot);
  };
  const std::string dead = session_of(dead_.pid), living = session_of(::getpid());
  const std::string segment = "sm_segment." + host_and_user + ".12340001.0";
  here_.write(dead + "/1/file", "text\n");
  here_.write(living + "/1/file", "text\n");
  here_.write(segment, "text\n");
  const Outcome outcome = doctor({"--clean", "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_removed(outcome, here_.path() / dead);
  expect_removed(outcome, here_.path() / segment);
  expect_kept(outcome, here_.path() / living);
}

TEST_F(DoctorClean, Text_ListsWhatIsRemoved) {
  const fs::path left = make_mpi_folder(dead_);
  const Outcome outcome = doctor({"--clean"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_in(outcome.out, "removed  " + left.string() + ": Open MPI's files of the launcher " +
                             std::to_string(dead_.pid));
  expect_in(outcome.out, " removed, ");
}

// Even root cannot remove immutable files.
bool make_immutable(const fs::path& path, bool so) {
  const UniqueFd folder(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int flags = so ? FS_IMMUTABLE_FL : 0;
  return ::ioctl(folder.get(), FS_IOC_SETFLAGS, &flags) == 0;
}

TEST_F(DoctorClean, WhatCannotBeRemoved_IsSaid) {
  const fs::path left = make_mpi_folder(dead_);
  const bool root = ::geteuid() == 0;
  if (root && !make_immutable(left, true)) {
    GTEST_SKIP()
        << "files in /dev/shm cannot be made immutable, and root may remove any other file";
  }
  if (!root) fs::permissions(left, fs::perms::owner_read | fs::perms::owner_exec);
  const Outcome outcome = doctor({"--clean", "--json"});
  const Outcome text = doctor({"--clean"});
  if (root) make_immutable(left, false);
  fs::permissions(left, fs::perms::owner_all);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(entry(outcome, left).at("removed"), false);
  EXPECT_NE(entry(outcome, left).at("failure"), "");
  EXPECT_EQ(text.exit_code, 1);
  expect_in(text.out, "fix:  rm -rf " + left.string());
}

TEST_F(DoctorClean, WithoutClean_DoctorNamesItAndRemovesNothing) {
  // In the test's own folder, since any `coupler launch` may remove leftovers in /dev/shm.
  const fs::path left =
      runtime() / ("store-0123456789ab-" + name_of_left(dead_) + "-0123456789abcdef");
  listen_at(left);
  const Outcome outcome = doctor({"--json"});
  const Json report = Json::parse(outcome.out);
  bool said = false;
  for (const Json& one : report.at("findings")) {
    said = said || (one.at("check") == "leftovers" && one.at("level") == "note" &&
                    one.at("mend") == "coupler doctor --clean");
  }
  EXPECT_TRUE(said) << outcome.out;
  EXPECT_TRUE(fs::exists(left));
}

TEST_F(DoctorClean, Configuration_IsRefused) {
  const Outcome outcome = doctor({"--clean", "-o", "backend.use=single"});
  EXPECT_EQ(outcome.exit_code, 2);
  expect_in(outcome.err, "doctor: --clean takes no configuration");
}

}  // namespace
}  // namespace coupler
