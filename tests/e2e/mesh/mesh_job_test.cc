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

void expect_refused_model(const std::vector<std::string>& settings, const std::string& message) {
  const Outcome outcome = run_mesh(2, "refused_models", settings, message);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(MeshJob, ModelsThatNothingDivides_AreRefusedByPrepare) {
  expect_refused_model({"backend.use=gloo_cpu", "parallel.tensor=2"},
                       "parallel.tensor is 2, but prepare cannot divide the model");
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
