// The digits example resumes from its checkpoints: after kills at any moment and after SIGTERM it
// ends with the same bits as an uninterrupted run; with any number of ranks under any backend;
// skipping damaged checkpoints. Also the errors if it cannot resume.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "run_program.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

const bool kFull = std::getenv("COUPLER_TEST_RESUME_FULL") != nullptr;

struct Setting {
  const char* name;
  int processes;
  Arguments options;
};

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = {
      {"alone", 1, {}},
      {"gloo_cpu", 2, {"-o", "backend.use=gloo_cpu"}},
      {"fsdp", 4, {"-o", "backend.use=fsdp", "-o", "backend.fsdp.base=gloo_cpu"}},
      {"zero2",
       2,
       {"-o", "backend.use=deepspeed_like", "-o", "backend.deepspeed_like.base=gloo_cpu", "-o",
        "backend.deepspeed_like.stage=2"}},
      {"mpi", 2, {"-o", "backend.use=mpi"}},
      {"zero1",
       4,
       {"-o", "backend.use=deepspeed_like", "-o", "backend.deepspeed_like.base=gloo_cpu", "-o",
        "backend.deepspeed_like.stage=1"}},
      {"zero3",
       4,
       {"-o", "backend.use=deepspeed_like", "-o", "backend.deepspeed_like.base=mpi", "-o",
        "backend.deepspeed_like.stage=3"}},
      {"hybrid",
       4,
       {"-o", "backend.use=fsdp", "-o", "backend.fsdp.base=gloo_cpu", "-o",
        "backend.fsdp.strategy=hybrid_shard", "-o", "backend.fsdp.group_size=2"}},
      {"offload",
       2,
       {"-o", "backend.use=fsdp", "-o", "backend.fsdp.base=gloo_cpu", "-o",
        "backend.fsdp.offload.device=nvme", "-o",
        "backend.fsdp.offload.nvme_path=" + fs::temp_directory_path().string()}},
  };
  return all;
}

Arguments launch_of(const Setting& setting, const Arguments& options, int epochs) {
  // One thread per rank: on a busy machine threads that wait for each other waste most of the time.
  Arguments arguments{"launch", "-n", std::to_string(setting.processes), "-o",
                      "launch.threads_per_process=1"};
  arguments.insert(arguments.end(), setting.options.begin(), setting.options.end());
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {DIGITS_PROGRAM, "--epochs", std::to_string(epochs)});
  return arguments;
}

// The printed final loss, which must be the same, bit for bit.
std::string loss_in(const std::string& output) {
  const size_t at = output.find("final loss: ");
  return at == std::string::npos ? "" : output.substr(at, output.find('\n', at) - at);
}

std::string uninterrupted(const Setting& setting, int epochs) {
  const Workplace here;
  const Outcome outcome = here.coupler(launch_of(setting, {}, epochs));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return loss_in(outcome.out);
}

// A job that gets a signal at a given moment. It ends even if the moment never comes.
struct Ended {
  int exit_code;
  std::string output;  // both streams
};
Ended run_until(const fs::path& folder, const Arguments& arguments, int signal,
                const std::function<bool()>& is_time) {
  const std::string log = (folder / "log").string();
  const pid_t pid = ::fork();
  if (pid == 0) {
    (void)::chdir(folder.c_str());
    const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::dup2(file, 1);
    ::dup2(file, 2);
    std::vector<char*> words;
    const std::string program = std::string(COUPLER_BINARY_DIR) + "/bin/coupler";
    words.push_back(const_cast<char*>(program.c_str()));
    for (const auto& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  int status = 0;
  const auto latest = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (is_time() || std::chrono::steady_clock::now() >= latest) {
      ::kill(pid, signal);
      ::waitpid(pid, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::ifstream in(log);
  const std::string output{std::istreambuf_iterator<char>(in), {}};
  return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), output};
}

std::function<bool()> after(std::chrono::milliseconds time) {
  return [until = std::chrono::steady_clock::now() + time] {
    return std::chrono::steady_clock::now() >= until;
  };
}

size_t entries_in(const fs::path& folder) {
  std::error_code none;
  size_t count = 0;
  for (fs::directory_iterator entry(folder, none), end; !none && entry != end; ++entry) ++count;
  return count;
}

// Kills the launcher, and with it every rank, repeatedly, until a run finishes.
void expect_same_bits_after_kills(const Setting& setting, int epochs, int kills, int most_ms) {
  const std::string expected = uninterrupted(setting, epochs);
  ASSERT_NE(expected, "");
  std::mt19937 random(5);
  std::uniform_int_distribution<int> moment(20, most_ms);
  int killed = 0;
  while (killed < kills) {
    const Workplace here;
    const Arguments arguments =
        launch_of(setting,
                  {"-o", "checkpoint.dir=saved", "-o", "checkpoint.every=25", "-o",
                   "checkpoint.total_limit=2", "-o",
                   random() % 2 == 0 ? "checkpoint.async=true" : "checkpoint.async=false"},
                  epochs);
    for (int start = 0;; ++start) {
      const bool last = killed >= kills || start > 30;
      const auto time = last ? std::chrono::seconds(60) : std::chrono::milliseconds(moment(random));
      const Ended ended = run_until(here.path(), arguments, SIGKILL, after(time));
      if (ended.exit_code == 128 + SIGKILL) {
        ++killed;
        // Ranks that outlive the kill end by themselves; until then the folder is locked.
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        continue;
      }
      ASSERT_EQ(ended.exit_code, 0) << ended.output;
      ASSERT_EQ(loss_in(ended.output), expected) << setting.name << " after " << start << " kills";
      break;
    }
  }
}

TEST(Resume, AfterKillsAtRandomMoments_EndsInTheSameBits) {
  expect_same_bits_after_kills(settings()[1], 12, kFull ? 400 : 8, 900);
  expect_same_bits_after_kills(settings()[2], 12, kFull ? 100 : 4, 1500);
}

TEST(Resume, AfterSigterm_SavesExits75_AndEndsInTheSameBits) {
  for (const size_t which : {size_t{0}, size_t{1}, size_t{4}}) {
    const Setting& setting = settings()[which];
    const std::string expected = uninterrupted(setting, 60);
    const Workplace here;
    const fs::path folder = here.path() / "saved";
    const Arguments arguments =
        launch_of(setting, {"-o", "checkpoint.dir=saved", "-o", "checkpoint.every=300"}, 60);
    int preempted = 0;
    for (int start = 0;; ++start) {
      // Signals two runs as soon as they have saved a checkpoint; the third runs to the end.
      const size_t before = entries_in(folder);
      const auto is_time = [&] { return start < 2 && entries_in(folder) > before + 1; };
      const Ended ended = run_until(here.path(), arguments, SIGTERM, is_time);
      if (ended.exit_code == 75) {
        EXPECT_NE(ended.output.find("the job received SIGTERM; its state is saved in"),
                  std::string::npos)
            << ended.output;
        ++preempted;
        continue;
      }
      ASSERT_EQ(ended.exit_code, 0) << ended.output;
      EXPECT_EQ(loss_in(ended.output), expected) << setting.name;
      break;
    }
    EXPECT_EQ(preempted, 2) << setting.name;
  }
}

TEST(Resume, OnAnyNumberOfRanksUnderAnyBackend_ComesToTheSameEnd) {
  const size_t count = kFull ? settings().size() : 5;
  for (size_t from = 0; from < count; ++from) {
    const Workplace here;
    const Outcome first = here.coupler(launch_of(
        settings()[from], {"-o", "checkpoint.dir=saved", "-o", "checkpoint.every=30"}, 2));
    ASSERT_EQ(first.exit_code, 0) << first.err;
    const double expected = std::strtod(loss_in(first.out).c_str() + 12, nullptr);
    for (size_t to = 0; to < count; ++to) {
      const Outcome second = here.coupler(
          launch_of(settings()[to], {"-o", "checkpoint.resume=saved/checkpoint_0"}, 2));
      ASSERT_EQ(second.exit_code, 0) << second.err;
      const double loss = std::strtod(loss_in(second.out).c_str() + 12, nullptr);
      EXPECT_NEAR(loss, expected, 1e-6 * expected)
          << settings()[from].name << " to " << settings()[to].name;
      if (from == to) {
        EXPECT_EQ(loss_in(second.out), loss_in(first.out)) << settings()[to].name;
      }
    }
  }
}

class Saved : public ::testing::Test {
 protected:
  Saved() {
    const Outcome outcome = run({"-o", "checkpoint.every=30"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    loss_ = loss_in(outcome.out);
  }
  Outcome run(Arguments options) const {
    options.insert(options.end(), {"-o", "checkpoint.dir=saved"});
    return here_.coupler(launch_of(settings()[1], options, 2));
  }
  fs::path file(const std::string& name) const { return here_.path() / "saved" / name; }
  static void flip_byte(const fs::path& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-100, std::ios::end);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(-100, std::ios::end);
    file.put(byte);
  }

  Workplace here_;
  std::string loss_;
};

TEST_F(Saved, DamagedOnes_ArePassedOver_WithTheReason) {
  // 88 steps: checkpoints 0 and 1 in the loop, 2 at the end.
  flip_byte(file("checkpoint_2/optimizer-00002-of-00002.safetensors"));
  fs::remove(file("checkpoint_1/manifest.json"));
  const Outcome outcome = run({});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("checkpoint_2 is skipped: "), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("optimizer-00002-of-00002.safetensors is damaged between byte"),
            std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("checkpoint_1 is skipped: "), std::string::npos) << outcome.err;
  EXPECT_EQ(loss_in(outcome.out), loss_);
}

TEST_F(Saved, OneThatWasAskedForAndIsDamaged_IsAnError) {
  flip_byte(file("checkpoint_0/model-00001-of-00002.safetensors"));
  const Outcome outcome = run({"-o", "checkpoint.resume=saved/checkpoint_0"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("model-00001-of-00002.safetensors is damaged"), std::string::npos)
      << outcome.err;
}

TEST_F(Saved, ResumeNo_BeginsAnew) {
  const Outcome outcome = run({"-o", "checkpoint.resume=no"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(file("checkpoint_3")));  // it ran all steps again
}

TEST(Resume, AFolderOfAnotherJob_IsRefused) {
  const Workplace here;
  const Arguments arguments =
      launch_of(settings()[1], {"-o", "checkpoint.dir=saved", "-o", "checkpoint.every=10"}, 100000);
  std::string log;
  std::atomic<bool> enough{false};
  std::thread other(
      [&] { run_until(here.path(), arguments, SIGKILL, [&] { return enough.load(); }); });
  while (!fs::exists(here.path() / "saved" / "checkpoint_0")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const Outcome outcome = here.coupler(
      launch_of(settings()[0], {"-o", "checkpoint.dir=saved", "-o", "checkpoint.resume=no"}, 1));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("no checkpoint was made in saved"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("process "), std::string::npos) << outcome.err;
  enough = true;
  other.join();
}

TEST(Resume, AFolderThatCannotBe_IsSaid_AndTrainingGoesOn) {
  const Workplace here;
  here.write("saved", "a file");
  const Outcome outcome = here.coupler(
      launch_of(settings()[1], {"-o", "checkpoint.dir=saved/in", "-o", "checkpoint.every=30"}, 2));
  // A failed save in the loop is only logged; at the end it is an error.
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("no checkpoint was made in saved/in"), std::string::npos)
      << outcome.err;
}

}  // namespace
}  // namespace coupler
