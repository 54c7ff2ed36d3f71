// The base of a wrapper backend, as configured.
#include <gtest/gtest.h>

#include "config/validate.h"

namespace coupler::config {
namespace {

TEST(WrapperBase, IsTheWrappersOwn_AutoWhereItIsNotSet) {
  BackendConfig backend;
  backend.options["fsdp"] = {{"strategy", "full_shard", {}}, {"base", "mpi", {}}};
  EXPECT_EQ(wrapper_base(backend, "fsdp"), "mpi");
  ASSERT_NE(find_base(backend, "fsdp"), nullptr);
  EXPECT_EQ(find_base(backend, "fsdp")->value, OptionValue("mpi"));
  backend.options["deepspeed_like"] = {{"stage", int64_t{2}, {}}};
  for (const char* without : {"deepspeed_like", "unknown"}) {
    EXPECT_EQ(wrapper_base(backend, without), "auto");
    EXPECT_EQ(find_base(backend, without), nullptr);
  }
}

TEST(WrapperBase, EmptyOrNoText_IsAuto) {
  BackendConfig backend;
  for (const OptionValue& value : {OptionValue(""), OptionValue(int64_t{3})}) {
    backend.options["fsdp"] = {{"base", value, {}}};
    EXPECT_EQ(wrapper_base(backend, "fsdp"), "auto");
    EXPECT_NE(find_base(backend, "fsdp"), nullptr);
  }
}

}  // namespace
}  // namespace coupler::config
