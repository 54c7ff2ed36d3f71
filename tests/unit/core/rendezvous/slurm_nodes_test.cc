#include <gtest/gtest.h>

#include "rendezvous/process_info.h"

namespace coupler::rendezvous {
namespace {

TEST(SlurmNodes, First_IsThatOfTheList) {
  EXPECT_EQ(first_slurm_node(""), "");
  EXPECT_EQ(first_slurm_node("node1"), "node1");
  EXPECT_EQ(first_slurm_node("b,a"), "b");
  EXPECT_EQ(first_slurm_node("gpu[07-12,20],cpu1"), "gpu07");
  EXPECT_EQ(first_slurm_node("rack[1,3]-node[05-06].site"), "rack1-node05.site");
}

}  // namespace
}  // namespace coupler::rendezvous
