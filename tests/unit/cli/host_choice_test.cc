// Which machines of a hostfile deepspeed's options choose.
#include "cli/launch/host_choice.h"

#include "refusal.h"

namespace coupler::cli {
namespace {

const HostFile kFile = {"hosts", {{"node1", 4}, {"node2", 2}}};

std::string chosen(const HostChoice& choice) { return host_list(chosen_hosts(kFile, choice)); }

TEST(HostChoice, WithoutAChoice_IsTheWholeFile) { EXPECT_EQ(chosen({}), "node1:4,node2:2"); }

TEST(HostChoice, NumbersLimitMachinesAndSlots) {
  EXPECT_EQ(chosen({.machines = 1}), "node1:4");
  EXPECT_EQ(chosen({.slots = 2}), "node1:2,node2:2");
  EXPECT_EQ(chosen({.machines = 1, .slots = 3}), "node1:3");
}

TEST(HostChoice, IncludeAndExclude_NameMachinesAndSlots) {
  EXPECT_EQ(chosen({.include = "node2"}), "node2:2");
  EXPECT_EQ(chosen({.include = "node2@node1:0,1"}), "node2:2,node1:2");
  EXPECT_EQ(chosen({.exclude = "node1"}), "node2:2");
  EXPECT_EQ(chosen({.exclude = "node1:2,3"}), "node1:2,node2:2");
}

TEST(HostChoice, WhatTheFileDoesNotHave_IsRefused_NamingIt) {
  const struct {
    HostChoice choice;
    const char* says;
  } rows[] = {
      {{.machines = 3}, "--num_nodes 3: hosts lists only 2 machines"},
      {{.slots = 3}, "--num_gpus 3: node2 has only 2 slots in hosts"},
      {{.include = "nod1"}, "did you mean 'node1'?"},
      {{.include = "node2:2"}, "node2 has 2 slots in hosts, so there is none of number 2"},
      {{.include = "node1:x"}, "'x' is not a slot's number"},
      {{.include = "node1:1,1"}, "slot 1 of node1 occurs twice"},
      {{.include = "node1@node1"}, "--include node1@node1: node1 occurs twice"},
      {{.exclude = "node1:2@node1:3"}, "node1 occurs twice"},
      {{.include = "node1@"}, "the name of a machine is missing"},
      {{.include = "node1:2,3"}, "CUDA_VISIBLE_DEVICES=2,3 on that machine"},
      {{.exclude = "node1:0"}, "node1 is left with the devices 1,2,3"},
      {{.exclude = "node1@node2"}, "no machine is left"},
      {{.include = "node1", .exclude = "node2"}, "--include and --exclude cannot be combined"},
      {{.machines = 1, .include = "node1"}, "--num_nodes and --include cannot be combined"},
      {{.slots = 1, .exclude = "node1"}, "--num_gpus and --exclude cannot be combined"},
  };
  for (const auto& row : rows) EXPECT_SAYS(refusal([&] { chosen(row.choice); }), row.says);
}

TEST(HostChoice, WithoutAHostfile_IncludeNamesDevicesHere) {
  EXPECT_EQ(devices_here("localhost:1,3"), "1,3");
  for (const char* wrong : {"localhost", "localhost:0@node2:1", "somewhere.else:0"})
    EXPECT_SAYS(refusal([&] { devices_here(wrong); }), "only devices of this machine can be named");
}

}  // namespace
}  // namespace coupler::cli
