// A rank of a training job is killed at every single disk call that it makes: the job is restarted
// automatically and ends with the same bits as an uninterrupted job. So does every training
// example.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "operation_log.h"
#include "run_program.h"

namespace coupler::testing_checkpoint {
namespace {

struct JobSetting {
  const char* name;
  std::vector<std::string> options;
};

// Asynchronous and synchronous saves; replicated and sharded models.
const JobSetting kGloo{"gloo_cpu", {"-o", "backend.use=gloo_cpu", "-o", "checkpoint.async=true"}};
const JobSetting kFsdp{"fsdp", {"-o", "backend.use=fsdp", "-o", "backend.fsdp.base=gloo_cpu"}};
const JobSetting kMpi{"mpi", {"-o", "backend.use=mpi"}};

// A program, and the output line that must be the same.
struct Program {
  std::string command;
  std::string result;
};

// 88 steps: two checkpoints in the loop and one at the end, each of which removes the one before.
const Program kDigitsProgram{DIGITS_PROGRAM " --epochs 2", "final loss: "};

bool is_every_call() { return std::getenv("COUPLER_TEST_DISK_FULL") != nullptr; }

Outcome train(const Workplace& here, const JobSetting& setting, const Program& program,
              std::map<std::string, std::string> variables) {
  std::vector<std::string> arguments{"launch",
                                     "-n",
                                     "2",
                                     "--max-restarts",
                                     "1",
                                     "-o",
                                     "launch.threads_per_process=1",
                                     "-o",
                                     "checkpoint.dir=" + (here.path() / "saved").string(),
                                     "-o",
                                     "checkpoint.every=30",
                                     "-o",
                                     "checkpoint.total_limit=1"};
  arguments.insert(arguments.end(), setting.options.begin(), setting.options.end());
  arguments.insert(
      arguments.end(),
      {"sh", "-c",
       "if [ \"$COUPLER_RANK\" = \"$FAULT_RANK\" ] && "
       "[ \"$COUPLER_RESTART_COUNT\" = 0 ]; then export LD_PRELOAD=" DISK_FAULTS "; fi; exec " +
           program.command});
  variables["DISK_FAULTS_FOLDER"] = (here.path() / "saved").string();
  return here.coupler(arguments, std::move(variables));
}

// The program's result line; "" if it is missing.
std::string result_in(const std::string& output, const Program& program) {
  const size_t at = output.find(program.result);
  return at == std::string::npos ? "" : output.substr(at, output.find('\n', at) - at);
}

// Whether other processes see a different state after the call than before it. Opening may create a
// file, but this state also occurs before the next call.
bool changes_the_folder(const Operation& call) {
  return call.name != "open" && call.name != "close" && call.name != "fsync" && call.name != "hint";
}

// If every call is tried: whether another kill leaves the same state. A call without visible effect
// leaves what was before it. A save communicates only between one file and the next, so the state
// after a call is the state before the next one to the same file.
bool repeats_a_state(const std::vector<Operation>& calls, size_t at, const std::string& when) {
  const auto same_file = [&](size_t first) {
    return first < calls.size() && calls[first - 1].path == calls[first].path;
  };
  if (when == "kill_after") return !changes_the_folder(calls[at - 1]) || same_file(at);
  return at > 1 && !changes_the_folder(calls[at - 2]) && same_file(at - 1);
}

// Kills one rank at every step-th call, starting at the fraction `from` of all calls. Returns the
// number of kills.
size_t kill_at_calls(const JobSetting& setting, const Program& program, int rank, size_t step,
                     double from = 0) {
  std::string expected;
  std::vector<Operation> log_of_calls;
  {
    const Workplace here;
    const std::string log = (here.path() / "log").string();
    const Outcome outcome = train(here, setting, program,
                                  {{"FAULT_RANK", std::to_string(rank)}, {"DISK_FAULTS_LOG", log}});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    expected = result_in(outcome.out, program);
    log_of_calls = read_log(log);
  }
  const size_t calls = log_of_calls.size();
  EXPECT_NE(expected, "") << program.command;
  EXPECT_GT(calls, 20u);
  size_t tried = 0;
  for (const std::string when : {"kill_before", "kill_after"}) {
    for (size_t at = 1 + static_cast<size_t>(from * static_cast<double>(calls)); at <= calls;
         at += step) {
      if (step == 1 && repeats_a_state(log_of_calls, at, when)) continue;
      const Workplace here;
      const Outcome outcome = train(here, setting, program,
                                    {{"FAULT_RANK", std::to_string(rank)},
                                     {"DISK_FAULTS_DO", when},
                                     {"DISK_FAULTS_AT", std::to_string(at)}});
      EXPECT_EQ(outcome.exit_code, 0) << when << " " << at << "\n" << outcome.err;
      EXPECT_EQ(result_in(outcome.out, program), expected)
          << program.command << " over " << setting.name << ", rank " << rank << ", " << when
          << " call " << at << " of " << calls << "\n"
          << outcome.err;
      EXPECT_NE(outcome.err.find("restart 1 of 1"), std::string::npos) << outcome.err;
      ++tried;
    }
  }
  std::printf("%s, rank %d: %zu kills at %zu calls\n", setting.name, rank, tried, calls);
  return tried;
}

TEST(TrainingJob, ARankKilledAtAnyCallToTheDisk_EndsInTheSameBits) {
  const size_t step = is_every_call() ? 1 : 61;
  for (const int rank : {0, 1}) {
    EXPECT_GE(kill_at_calls(kGloo, kDigitsProgram, rank, step), 2u);
    EXPECT_GE(kill_at_calls(kFsdp, kDigitsProgram, rank, step), 2u);
  }
  // As always, mpirun itself ends the other rank.
  EXPECT_GT(kill_at_calls(kMpi, kDigitsProgram, 1, is_every_call() ? 5 : 40), 1u);
}

// One kill each, after the middle of the run.
TEST(TrainingJob, EveryExample_EndsInTheSameBits) {
  const Program gpt{GPT_PROGRAM " --text " COUPLER_SOURCE_DIR
                                "/LICENSE --seq 16 --layers 1 --heads 2 --width 16 --steps 100",
                    "final loss: "};
  const Program gan{GAN_PROGRAM " --epochs 3", "distance after: "};
  const Program migration{MIGRATION_PROGRAM, "test accuracy: "};
  for (const Program& program : {gpt, gan, migration}) {
    EXPECT_EQ(kill_at_calls(kGloo, program, 0, 1000, 0.6), 2u);
  }
}

}  // namespace
}  // namespace coupler::testing_checkpoint
