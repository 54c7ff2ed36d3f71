// A model whose state is three times as large as its job's memory limit trains with its state on a
// disk, and has the same losses as a job without a limit.
#include "memory_limit.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "run_program.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

struct Training {
  int64_t parameters = 0;
  std::vector<double> losses;
  std::string said;  // the error; "" if it succeeded
};

Training train(int processes, const std::vector<std::string>& options, const std::string& before) {
  const Workplace here;
  fs::create_directory(here.path() / "disk");
  std::string text;
  for (int i = 0; i < 400; ++i) text += "in the beginning was the word, and the word was number ";
  here.write("text.txt", text);
  std::vector<std::string> arguments{"launch", "-n", std::to_string(processes)};
  for (const std::string& option : options) {
    arguments.insert(arguments.end(), {"-o", option});
  }
  arguments.insert(arguments.end(),
                   {"sh", "-c",
                    before +
                        "exec " GPT_PROGRAM " --text text.txt --width 512 --heads 8 --seq 32 "
                        "--batch-size 1 --steps 2 --log-every 1 --layers " +
                        // A process needs about 80 MiB before it has a model.
                        std::to_string(12 * processes)});
  const Outcome outcome = here.coupler(arguments);
  Training result;
  if (outcome.exit_code != 0) {
    result.said = fmt::format("exit code {}\n{}{}", outcome.exit_code, outcome.out, outcome.err);
  }
  const std::regex line("(\\d+) parameters,|step \\d+  loss ([\\d.]+)|final loss: ([\\d.]+)");
  for (std::sregex_iterator at(outcome.out.begin(), outcome.out.end(), line), end; at != end;
       ++at) {
    if ((*at)[1].matched) result.parameters = std::stoll((*at)[1]);
    if ((*at)[2].matched) result.losses.push_back(std::stod((*at)[2]));
    if ((*at)[3].matched) result.losses.push_back(std::stod((*at)[3]));
  }
  return result;
}

const std::vector<std::string> kZero3{
    "backend.use=deepspeed_like", "backend.deepspeed_like.base=gloo_cpu",
    "backend.deepspeed_like.stage=3", "launch.threads_per_process=1", "backend.timeout=120s"};

TEST(OffloadUnderALimit, AThirdOfTheState_IsEnoughWithADisk) {
  for (const int processes : {2, 4}) {
    const Training unlimited = train(processes, kZero3, "");
    ASSERT_EQ(unlimited.said, "");
    ASSERT_GT(unlimited.parameters, 0);
    // fp32 parameters, gradients and AdamW's two moments.
    const auto state = static_cast<uint64_t>(unlimited.parameters) * 16;
    const MemoryLimit limit(state / 3);
    if (!limit.works())
      GTEST_SKIP() << "a control group with a memory limit cannot be created here";
    std::vector<std::string> options = kZero3;
    for (const std::string what : {"offload_optimizer", "offload_param"}) {
      options.push_back("backend.deepspeed_like." + what + ".device=nvme");
      options.push_back("backend.deepspeed_like." + what + ".nvme_path=disk");
    }
    const Training limited = train(processes, options, limit.enter() + "; ");
    ASSERT_EQ(limited.said, "") << processes << " ranks, " << state / 3 << " bytes";
    ASSERT_EQ(limited.losses.size(), unlimited.losses.size());
    ASSERT_EQ(limited.losses.size(), 3u);
    for (size_t i = 0; i < limited.losses.size(); ++i) {
      EXPECT_NEAR(limited.losses[i], unlimited.losses[i], 1e-6 * std::abs(unlimited.losses[i]));
    }
    EXPECT_LT(limited.losses[1], limited.losses[0]);
    // Without the disk the limit ends the job, which proves that the limit works.
    EXPECT_NE(train(processes, kZero3, limit.enter() + "; ").said, "");
  }
}

}  // namespace
}  // namespace coupler
