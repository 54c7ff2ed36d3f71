// The launcher and its guard are killed together at any moment of a job: all processes of the job
// are gone within a second, and no file is left, at the latest after the next start.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <random>
#include <thread>

#include "base/process.h"
#include "coupler_run.h"
#include "expect.h"

namespace coupler::testing_launch {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// The promise is one second; the test allows ten times as long.
constexpr auto kPromisedEnd = 10s;
constexpr int kRanks = 2;

enum class Moment { kMiddle, kStart, kEnd };

struct Kills {
  const char* name;
  std::vector<const char*> options;
  bool over_mpi;
  bool trains;  // otherwise it runs peer_job, which only uses a communicator and starts at once
  int usual;    // number of kills
};

void PrintTo(const Kills& kills, std::ostream* out) { *out << kills.name; }

// The program of a rank: a long one, or for kEnd one that ends soon.
std::string program_of(const Kills& kills, Moment moment) {
#ifdef DIGITS_PROGRAM
  if (kills.trains) {
    return fmt::format("{} --epochs {}", DIGITS_PROGRAM, moment == Moment::kEnd ? 1 : 10000);
  }
#endif
  return fmt::format("{}/bin/tests/peer_job {}", COUPLER_BINARY_DIR,
                     moment == Moment::kEnd ? "meet" : "collective");
}

// Over mpi every rank is a script with grandchildren, which its shim's guard kills. Otherwise only
// the launcher's guard could kill these, so the rank is the program itself.
std::string script_of(const Kills& kills, Moment moment) {
  const auto program = program_of(kills, moment);
  const std::string begin = "echo $$ > begun.$COUPLER_RANK; ";
  return kills.over_mpi
             ? fmt::format("sleep 60 & {}{}; echo $? > ended.$COUPLER_RANK", begin, program)
             : fmt::format("{}exec {}", begin, program);
}

std::vector<std::string> command_of(const Kills& kills, Moment moment) {
  std::vector<std::string> words = {"launch", "-n", std::to_string(kRanks)};
  for (const char* option : kills.options) {
    words.insert(words.end(), {"-o", option});
  }
  words.insert(words.end(), {"/bin/sh", "-c", script_of(kills, moment)});
  return words;
}

std::vector<pid_t> guards_of(pid_t launcher) {
  std::vector<pid_t> guards;
  std::error_code gone;  // processes may end meanwhile
  for (fs::directory_iterator entry("/proc", gone), end; !gone && entry != end;
       entry.increment(gone)) {
    const auto pid = static_cast<pid_t>(std::atol(entry->path().filename().c_str()));
    const ProcessStatus status = status_of(pid);
    if (status.parent == launcher && status.name == "coupler-guard") guards.push_back(pid);
  }
  return guards;
}

void kill_launcher_and_guard(const CouplerRun& run, bool launcher_first) {
  std::vector<pid_t> victims = guards_of(run.pid());
  victims.insert(launcher_first ? victims.begin() : victims.end(), run.pid());
  for (const pid_t victim : victims) {
    ::kill(victim, SIGKILL);
  }
}

// Returns at a random time in that moment. In kMiddle both ranks run; in kEnd one may have ended.
void await(const CouplerRun& run, const Kills& kills, Moment moment, std::mt19937& random) {
  std::chrono::microseconds most = 400ms;
  if (moment == Moment::kMiddle) {
    ASSERT_NE(run.wait_for_file("begun.1"), "") << run.folder();
    most = kills.trains ? 2000ms : 300ms;
  }
  if (moment != Moment::kStart) {
    const bool waits_for_end = moment == Moment::kEnd && kills.over_mpi;
    ASSERT_NE(run.wait_for_file(waits_for_end ? "ended.0" : "begun.0"), "") << run.folder();
  }
  if (moment == Moment::kEnd) {
    most = 100ms;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(random() % most.count()));
}

// The files in /dev/shm that name that process.
std::vector<std::string> shared_memory_named_by(pid_t launcher) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    auto name = entry.path().filename().string();
    if (name.find(fmt::format("-{}-", launcher)) != std::string::npos) names.push_back(name);
  }
  return names;
}

// Files in the run's folder, which contains TMPDIR and the stores, that the test did not create.
std::vector<std::string> files_in(const CouplerRun& run) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(run.folder())) {
    auto name = fs::relative(entry.path(), run.folder()).string();
    const auto stem = name.substr(0, name.find('.'));
    if (stem != "in" && stem != "out" && stem != "err" && stem != "begun" && stem != "pid" &&
        stem != "ended") {
      names.push_back(std::move(name));
    }
  }
  return names;
}

class DoubleKillTest : public ::testing::TestWithParam<Kills> {
 protected:
  void SetUp() override {
    if (GetParam().over_mpi && !fs::exists("/usr/bin/mpirun.openmpi")) {
      GTEST_SKIP() << "mpirun.openmpi (Debian: openmpi-bin) is not installed";
    }
  }
};

TEST_P(DoubleKillTest, LauncherAndGuardKilledAtOnce_NothingIsLeft) {
  const Kills& kills = GetParam();
  std::mt19937 random(7);
  std::vector<std::chrono::milliseconds> times;
  int left_to_next_start = 0;
  for (int i = 0; i < kill_count(kills.usual); ++i) {
    const auto moment = static_cast<Moment>(i % 3);
    CouplerRun run(command_of(kills, moment), {{"XDG_RUNTIME_DIR", ""}});
    await(run, kills, moment, random);
    ASSERT_FALSE(HasFatalFailure()) << run.wait(0s).error;
    kill_launcher_and_guard(run, i % 2 == 1);
    const auto time = run.time_until_gone(kPromisedEnd);
    ASSERT_TRUE(time) << "round " << i << ": " << fmt::format("{}", fmt::join(run.alive(), " "));
    times.push_back(*time);
    const int code = run.wait().code;
    EXPECT_TRUE(code == 128 + SIGKILL || (moment == Moment::kEnd && code == 0))
        << "round " << i << ": " << run.wait().error;
    if (moment != Moment::kStart) {  // there were shims; the last one has removed the files
      ASSERT_EQ(shared_memory_named_by(run.pid()), std::vector<std::string>{}) << "round " << i;
    }
    left_to_next_start += shared_memory_named_by(run.pid()).empty() ? 0 : 1;
    const auto next = run_coupler(launch(1, {"/bin/true"}));
    EXPECT_EQ(next.code, 0) << next.error;
    ASSERT_EQ(shared_memory_named_by(run.pid()), std::vector<std::string>{}) << "round " << i;
    ASSERT_EQ(files_in(run), std::vector<std::string>{}) << "round " << i;
  }
  std::sort(times.begin(), times.end());
  const auto quantile = [&](double part) {
    return times[static_cast<size_t>(part * static_cast<double>(times.size() - 1) + 0.5)].count();
  };
  fmt::print(
      "{}: {} kills; the last process was gone after {} ms (p50), {} ms (p99), {} ms (max); "
      "{} times the next start had something to remove\n",
      kills.name, times.size(), quantile(0.5), quantile(0.99), quantile(1), left_to_next_start);
}

INSTANTIATE_TEST_SUITE_P(
    All, DoubleKillTest,
    ::testing::Values(
        Kills{"gloo_cpu", {"backend.use=gloo_cpu"}, false, false, 1},
        Kills{"mpi", {"backend.use=mpi"}, true, false, 3},
        Kills{"shm", {"backend.use=shm"}, false, false, 1}
#ifdef DIGITS_PROGRAM
        ,
        Kills{"fsdp_over_mpi", {"backend.use=fsdp", "backend.fsdp.base=mpi"}, true, true, 1},
        Kills{"deepspeed_like_over_mpi",
              {"backend.use=deepspeed_like", "backend.deepspeed_like.base=mpi"},
              true,
              true,
              1}
#endif
        ),
    [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace coupler::testing_launch
