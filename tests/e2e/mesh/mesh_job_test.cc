// What a mesh cannot be is refused by name: at the start, or when a model is prepared.
#include <gtest/gtest.h>

#include "run_program.h"

namespace coupler {
namespace {

Outcome run_mesh(int processes, const std::string& check, const std::vector<std::string>& settings,
                 const std::string& expected = "") {
  const Workplace here;
  std::vector<std::string> arguments{"launch", "-n", std::to_string(processes), "-o",
                                     "backend.timeout=10s"};
  for (const std::string& setting : settings) {
    arguments.push_back("-o");
    arguments.push_back(setting);
  }
  arguments.push_back(MESH_CHECKS);
  if (!expected.empty()) arguments.insert(arguments.end(), {"--expect", expected});
  arguments.push_back(check);
  return here.coupler(arguments);
}

void expect_refused_mesh(const std::vector<std::string>& settings,
                         const std::vector<std::string>& parts) {
  const Outcome outcome = run_mesh(2, "any_mesh_collectives", settings);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  for (const std::string& part : parts) expect_in(outcome.err, part);
}

TEST(MeshJob, SizesThatDoNotMultiplyToTheWorld_AreRefusedAtTheStart) {
  expect_refused_mesh(
      {"backend.use=gloo_cpu", "parallel.data=2", "parallel.tensor=3"},
      {"[parallel] has data 2 x tensor 3, which are 6 ranks, but the job has 2 ranks",
       "start as many processes as the sizes multiply to"});
}

TEST(MeshJob, TwoRests_AreRefusedAtTheStart) {
  expect_refused_mesh({"parallel.data=rest", "parallel.shard=rest"},
                      {"parallel.shard is \"rest\", but parallel.data is \"rest\", too"});
}

TEST(MeshJob, ShardingWithoutABackendThatShards_IsRefusedAtTheStart) {
  expect_refused_mesh({"backend.use=gloo_cpu", "parallel.shard=2"},
                      {"parallel.shard is 2, but the backend 'gloo_cpu' shards no model"});
}

TEST(MeshJob, PipelinesOverABackendThatShards_AreRefusedAtTheStart) {
  expect_refused_mesh({"backend.use=fsdp", "backend.fsdp.base=gloo_cpu", "parallel.pipeline=2"},
                      {"parallel.pipeline is 2, but the backend 'fsdp' shards models itself"});
}

TEST(MeshJob, ExpertsWithShardsOrStages_AreRefusedAtTheStart) {
  expect_refused_mesh({"backend.use=fsdp", "backend.fsdp.base=gloo_cpu", "parallel.expert=2"},
                      {"parallel.expert is 2, but the backend 'fsdp' shards models itself"});
  const Outcome outcome =
      run_mesh(4, "any_mesh_collectives",
               {"backend.use=gloo_cpu", "parallel.pipeline=2", "parallel.expert=2"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  expect_in(outcome.err, "parallel.expert is 2 and parallel.pipeline is 2");
}

void expect_refused_model(const std::vector<std::string>& settings, const std::string& message) {
  const Outcome outcome = run_mesh(2, "refused_models", settings, message);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(MeshJob, ModelsThatNothingDivides_AreRefusedByPrepare) {
  expect_refused_model({"backend.use=gloo_cpu", "parallel.tensor=2"},
                       "parallel.tensor is 2, but nothing says how the layers of the model");
  expect_refused_model({"backend.use=gloo_cpu", "parallel.expert=2"},
                       "parallel.expert is 2, but prepare cannot divide the model");
  expect_refused_model({"backend.use=gloo_cpu", "parallel.pipeline=2"},
                       "parallel.pipeline is 2, but prepare does not divide the model");
}

TEST(MeshJob, APlanThatDividesNothing_IsRefusedByPrepare) {
  expect_refused_model({"backend.use=fsdp", "backend.fsdp.base=gloo_cpu",
                        "backend.fsdp.strategy=no_shard", "parallel.shard=2"},
                       "parallel.shard is 2, but the plan of the backend 'fsdp' shards nothing");
}

void expect_refused_plan(const std::string& lines, const std::string& message) {
  SCOPED_TRACE(lines);
  const Outcome outcome = run_mesh(
      2, "refused_plan",
      {"backend.use=gloo_cpu", "parallel.tensor=2", "parallel.tensor_plan=[" + lines + "]"},
      message);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(MeshJob, PlansThatDoNotFit_AreRefusedByPrepare) {
  expect_refused_plan("'up = colwise', 'other = rowwise'",
                      "\"other = rowwise\" matches no module of the model");
  expect_refused_plan("'up = colwise', '* = rowwise'", "named by two lines that contradict");
  expect_refused_plan("'up = sideways'", "'sideways' is not a style of a layer");
  expect_refused_plan("'up = colwise/4'",
                      "'up.weight' is [6, 4], and the 6 of dimension 0 cannot be divided over 2 "
                      "ranks in each of 4 blocks");
  expect_refused_plan(
      "'words = vocab'",
      "the weight of 'words' is also that of 'tied', which the plan does not divide");
  expect_refused_plan(
      "'tied = colwise'",
      "the weight of 'tied' is also that of 'words', which the plan does not divide");
  expect_refused_plan("'words = vocab', 'tied = rowwise'", "divides in different ways");
  expect_refused_plan("'words = rowwise'", "is for linear layers");
  expect_refused_plan("'up = colwise', 'down = sequence'",
                      "\"down = sequence\" is about a part of the sequence, but "
                      "parallel.sequence is false");
}

TEST(MeshJob, SequencesThatNothingDivides_AreRefused) {
  expect_refused_mesh({"backend.use=gloo_cpu", "parallel.sequence=true"},
                      {"parallel.sequence is true, but parallel.tensor is 1",
                       "set parallel.tensor to their number"});
  const Outcome outcome =
      run_mesh(2, "refused_plan",
               {"backend.use=gloo_cpu", "parallel.tensor=2", "parallel.sequence=true",
                "parallel.tensor_plan=['up = colwise', 'down = rowwise']"},
               "no line of the tensor plan says whether 'tied' sees a part of it");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(MeshJob, OverlapOfNothing_IsRefusedAtTheStart) {
  expect_refused_mesh(
      {"backend.use=gloo_cpu", "parallel.overlap_chunks=2"},
      {"parallel.overlap_chunks is 2, but parallel.tensor is 1", "or overlap_chunks to 1"});
}

struct Job {
  int processes;
  std::vector<std::string> settings;
};

// A checkpoint of each job goes on under the next one, with the losses of one process.
void expect_goes_on_in_the_next(const std::vector<Job>& jobs, const std::string& begin,
                                const std::string& go_on) {
  for (size_t from = 0; from < jobs.size(); ++from) {
    Job first = jobs[from], second = jobs[(from + 1) % jobs.size()];
    SCOPED_TRACE(from);
    const Workplace folder;
    for (Job* job : {&first, &second})
      job->settings.push_back("checkpoint.dir=" + folder.path().string());
    Outcome outcome = run_mesh(first.processes, begin, first.settings);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    outcome = run_mesh(second.processes, go_on, second.settings);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
}

TEST(MeshJob, Checkpoints_GoOnUnderAnotherPlanOfTheMesh) {
  const std::vector<Job> jobs = {
      {2, {"backend.use=gloo_cpu", "parallel.tensor=2"}},
      {1, {}},
      {2, {"backend.use=fsdp", "backend.fsdp.base=gloo_cpu", "backend.fsdp.unit_join_below=10"}},
      {4,
       {"backend.use=fsdp", "backend.fsdp.base=gloo_cpu", "parallel.shard=2", "parallel.tensor=2",
        "backend.fsdp.unit_join_below=10"}}};
  expect_goes_on_in_the_next(jobs, "divided_begins_elsewhere", "divided_goes_on_elsewhere");
}

TEST(MeshJob, Checkpoints_GoOnWithExpertsOnOtherRanks) {
  expect_goes_on_in_the_next({{2, {"backend.use=gloo_cpu", "parallel.data=1", "parallel.expert=2"}},
                              {1, {}},
                              {4, {"backend.use=gloo_cpu", "parallel.data=2", "parallel.expert=2"}},
                              {2, {"backend.use=fsdp", "backend.fsdp.base=gloo_cpu"}}},
                             "experts_begin_elsewhere", "experts_go_on_elsewhere");
}

TEST(MeshJob, Checkpoints_GoOnWithoutThePipelineAndWithOne) {
  expect_goes_on_in_the_next({{2, {"backend.use=gloo_cpu", "parallel.pipeline=2"}},
                              {2, {"backend.use=gloo_cpu", "parallel.tensor=2"}}},
                             "staged_begins_elsewhere", "staged_goes_on_elsewhere");
}

TEST(MeshJob, ConfigExplain_DrawsTheMesh) {
  const Workplace here;
  here.write("train.toml", "[parallel]\npipeline = 2\n\n[launch]\nprocesses = 4\n");
  const Outcome outcome = here.coupler({"config", "--explain"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_in(outcome.out,
            "Mesh of 4 ranks (launch.processes):\n"
            "              data 0  data 1\n");
}

}  // namespace
}  // namespace coupler
