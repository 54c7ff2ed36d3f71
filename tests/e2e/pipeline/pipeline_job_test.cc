// The errors of a pipeline job that cannot start or continue. Every job ends by itself within its
// deadline.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "run_program.h"

namespace coupler {
namespace {

using Texts = std::vector<std::string>;

Outcome run(const std::string& check, const Texts& options, int processes = 3) {
  const Workplace here;
  Texts arguments{"launch", "-n", std::to_string(processes), "-o", "backend.timeout=4s"};
  for (const std::string& option : options) {
    arguments.push_back("-o");
    arguments.push_back(option);
  }
  arguments.push_back(PIPELINE_CHECKS);
  arguments.push_back(check);
  return here.coupler(arguments);
}

void expect_says(const Outcome& outcome, const Texts& parts) {
  EXPECT_NE(outcome.exit_code, 0) << outcome.out;
  for (const std::string& part : parts) {
    EXPECT_NE(outcome.err.find(part), std::string::npos) << "no '" << part << "' in\n"
                                                         << outcome.err;
  }
}

TEST(PipelineJob, NeighbourKilled_RankStageAndMicroBatchAreNamed) {
  expect_says(run("killed_neighbour", {"backend.use=gloo_cpu"}),
              {"pipeline stage 1 of 3 (rank 1), ", " of micro-batch ",
               " stage 2 (rank 2): ", "pipeline stage 0 of 3 (rank 0), ", "signal 9"});
}

// Also ranks that never communicated with it: they wait for ranks that failed because of it.
TEST(PipelineJob, RankKilled_EveryOtherNamesItAndExitsAsOneThatLostAPeer) {
  const Outcome outcome = run("killed_neighbour", {"backend.use=gloo_cpu"}, 4);
  int exited = 0;
  for (const int rank : {0, 1, 2}) {
    const std::string begin = fmt::format("rank {}: killed_neighbour FAILED: ", rank);
    const size_t at = outcome.err.find(begin);
    ASSERT_NE(at, std::string::npos) << begin << " is not in\n" << outcome.err;
    const std::string line = outcome.err.substr(at, outcome.err.find('\n', at) - at);
    EXPECT_NE(line.find("stage 3 (rank 3)"), std::string::npos) << line;
    // On a busy machine, the launcher may stop a rank that has said so before it exits.
    const std::string exit = fmt::format("then rank {} exited", rank);
    if (outcome.err.find(exit) == std::string::npos) continue;
    expect_says(outcome, {exit + " with code 4"});
    ++exited;
  }
  EXPECT_GE(exited, 1) << outcome.err;
}

TEST(PipelineJob, NeighbourThatDoesNotComeBack_EndsWithinTheTimeout) {
  expect_says(run("stopped_neighbour", {"backend.use=gloo_cpu"}),
              {"pipeline stage 1 of 3 (rank 1), ", " of micro-batch ",
               " stage 2 (rank 2): ", "timed out after 4 s"});
}

TEST(PipelineJob, LossThatThrows_OtherStagesHearWhereAndWhy) {
  expect_says(run("failing_loss", {"backend.use=gloo_cpu"}),
              {"rank 2: failing_loss FAILED: pipeline stage 2 of 3 (rank 2), forward of "
               "micro-batch 3 of 8",
               "stage 2 (rank 2): it reported: pipeline stage 2 of 3",
               "stage 1 (rank 1): it reported: rank 2 reported: pipeline stage 2 of 3"});
}

TEST(PipelineJob, LossThatThrowsInAVirtualStage_OtherStagesHearWhereAndWhy) {
  expect_says(run("failing_loss_of_virtual_stages", {"backend.use=gloo_cpu"}, 2),
              {"rank 1: failing_loss_of_virtual_stages FAILED: pipeline stage 1 of 2 (rank 1), "
               "virtual stage 1 of 2, forward of micro-batch 3 of 8",
               "stage 1 (rank 1): it reported: pipeline stage 1 of 2"});
}

TEST(PipelineJob, LossOfManyNumbers_SaysWhatItMustGive) {
  for (const char* backend : {"backend.use=gloo_cpu", "backend.use=mpi"}) {
    expect_says(run("loss_of_many_numbers", {backend}, 2),
                {"micro-batch 3 of 8", "must return one number for each micro-batch"});
  }
}

TEST(PipelineJob, ShardingBackend_IsRefusedWithTransportsNamed) {
  expect_says(
      run("just_prepared", {"backend.use=fsdp", "backend.fsdp.base=gloo_cpu"}, 2),
      {"the backend 'fsdp' shards a model's parameters itself", "set backend.use to a transport"});
}

TEST(PipelineJob, FeaturesItLacks_AreRefusedByKey) {
  for (const char* option :
       {"training.optimizer_in_backward=true", "memory.offload_activations=true",
        "memory.offload_optimizer_device=cpu", "memory.limit=1GiB"}) {
    const std::string key = std::string(option).substr(0, std::string(option).find('='));
    expect_says(run("just_prepared", {"backend.use=gloo_cpu", option}, 2), {key + " is set"});
  }
}

}  // namespace
}  // namespace coupler
