// What other programs' settings become together, whatever their order.
#include "cli/import/config_import.h"

#include <fmt/format.h>

#include "refusal.h"

namespace coupler::cli {
namespace {

std::string setting(const Import& import, const std::string& key) {
  const std::string* value = import.draft.find(key);
  return value == nullptr ? "" : *value;
}

TEST(ConfigImport, OfMpirun_IsTheTransport_InAnyOrder) {
  const std::string hosts = "mpirun_config: {mpirun_hostfile: /h}\n";
  const struct {
    std::string type, key, use;
  } rows[] = {
      {"FSDP", "backend.fsdp.base", "\"fsdp\""},
      {"DEEPSPEED", "backend.deepspeed_like.base", "\"deepspeed_like\""},
      {"MULTI_CPU", "backend.use", "\"mpi\""},
  };
  for (const auto& row : rows) {
    const std::string type = "distributed_type: " + row.type + "\n";
    for (const std::string& text : {type + hosts, hosts + type}) {
      const Import import = import_text(text, "a.yaml");
      EXPECT_EQ(setting(import, row.key), "\"mpi\"") << text;
      EXPECT_EQ(setting(import, "backend.use"), row.use) << text;
      EXPECT_SAYS(describe(import), "mpirun_hostfile: /h -> " + row.key + " = \"mpi\"");
    }
  }
  EXPECT_EQ(setting(import_text(hosts, "a.yaml"), "backend.use"), "\"mpi\"");
  const Import none = import_text("mpirun_config: {mpirun_hostfile: null}\n", "a.yaml");
  EXPECT_EQ(setting(none, "backend.use"), "");
}

TEST(ConfigImport, OfAHostfile_AdvisesNoOtherOptionAboutMachines) {
  const std::string machines =
      "num_machines: 4\nmachine_rank: 0\nmain_process_ip: 10.0.0.1\nmain_process_port: 29500\n";
  EXPECT_SAYS(describe(import_text(machines, "a.yaml")), "coupler launch: --machines 4");
  for (const char* hosts :
       {"mpirun_config: {mpirun_hostfile: /h}\n", "deepspeed_config: {deepspeed_hostfile: /h}\n"}) {
    const std::string text = describe(import_text(machines + hosts, "a.yaml"));
    EXPECT_SAYS(text, "num_machines: 4: mpirun takes its machines from the hostfile");
    EXPECT_SAYS(text, "--via mpirun --hostfile /h");
    for (const char* option : {"--machines", "--machine-rank", "--main-address", "--main-port"})
      EXPECT_EQ(text.find(option), std::string::npos) << text;
  }
}

TEST(ConfigImport, OfSizes_MultipliesToTheRanks) {
  const std::string start = "distributed_type: FSDP\nnum_processes: ";
  const auto sizes = [](const char* replicas, const char* shards) {
    return fmt::format(
        "parallelism_config: {{parallelism_config_dp_replicate_size: {}, "
        "parallelism_config_dp_shard_size: {}}}\n",
        replicas, shards);
  };
  const Import both = import_text(start + "8\n" + sizes("2", "4"), "a.yaml");
  EXPECT_EQ(setting(both, "backend.fsdp.strategy"), "\"hybrid_shard\"");
  EXPECT_EQ(setting(both, "backend.fsdp.group_size"), "4");
  const Import copies = import_text(start + "2\n" + sizes("2", "1"), "a.yaml");
  EXPECT_EQ(setting(copies, "backend.fsdp.strategy"), "\"no_shard\"");
  const Import shards = import_text(start + "4\n" + sizes("1", "4"), "a.yaml");
  EXPECT_EQ(setting(shards, "backend.fsdp.strategy"), "\"full_shard\"");
  EXPECT_EQ(setting(shards, "backend.fsdp.group_size"), "");
  const std::string text = describe(import_text(start + "6\n" + sizes("2", "4"), "a.yaml"));
  EXPECT_SAYS(text, "multiply to 8, but num_processes is 6");
}

TEST(ConfigImport, OfTwoSettingsForOneKey_SaysWhichTakesPrecedence) {
  const Import import = import_text(
      "fsdp_config: {fsdp_sharding_strategy: NO_SHARD, fsdp_reshard_after_forward: FULL_SHARD}\n",
      "a.yaml");
  EXPECT_EQ(setting(import, "backend.fsdp.strategy"), "\"full_shard\"");
  EXPECT_SAYS(describe(import),
              "fsdp_sharding_strategy: NO_SHARD: fsdp_config.fsdp_reshard_after_forward takes");
}

TEST(ConfigImport, OfVariables_DoesNotShowTheirValues) {
  for (const char* file : {"tpu_env: [WANDB_API_KEY=hunter2]\n", "tpu_env: {KEY: hunter2}\n"}) {
    const std::string text = describe(import_text(file, "a.yaml"));
    EXPECT_SAYS(text, "tpu_env");
    EXPECT_SAYS(text, "ranks inherit");
    EXPECT_EQ(text.find("hunter2"), std::string::npos) << text;
  }
}

TEST(ConfigImport, OfDeepSpeedsLauncher_IsTheOptionThatStartsIt) {
  const auto answer = [](const std::string& name) {
    return describe(
        import_text("deepspeed_config: {deepspeed_multinode_launcher: " + name + "}\n", "a.yaml"));
  };
  EXPECT_SAYS(answer("standard"), "run coupler launch --machines there");
  EXPECT_SAYS(answer("OpenMPI"), "an option of coupler launch: --via mpirun");
  EXPECT_SAYS(answer("slurm"), "an option of coupler launch: --via slurm");
  EXPECT_SAYS(answer("pdsh"), "use coupler launch --via mpirun");
}

TEST(ConfigImport, OfWhatIsOff_SetsNothing_HoweverItIsWritten) {
  for (const char* zero : {"0", "0.0", "0.00", "false"}) {
    const std::string text =
        std::string("{\"zero_optimization\": {\"stage\": 1}, \"gradient_clipping\": ") + zero + "}";
    EXPECT_SAYS(describe(import_text(text, "ds.json")), "off; nothing to set");
  }
}

TEST(ConfigImport, OfOffloadedActivations_SetsTheirKey) {
  const std::string start = "fsdp_config: {fsdp_activation_checkpointing_offload: ";
  EXPECT_EQ(setting(import_text(start + "true}\n", "a.yaml"), "memory.offload_activations"),
            "true");
  EXPECT_EQ(setting(import_text(start + "false}\n", "a.yaml"), "memory.offload_activations"), "");
}

TEST(ConfigImport, OfAutocast_SaysWhereItApplies) {
  const char* words = "autocast applies in loops over prepared loaders and inside";
  EXPECT_SAYS(describe(import_text("fp8_config: {use_autocast_during_eval: true}\n", "a.yaml")),
              words);
  EXPECT_SAYS(describe(import_text("{\"fp16\": {\"auto_cast\": true}}", "ds.json")), words);
}

}  // namespace
}  // namespace coupler::cli
