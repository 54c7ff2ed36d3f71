#include <algorithm>
#include <functional>

#include "folder.h"
#include "plugin/automatic.h"
#include "plugin/resolve.h"

namespace coupler::test {
namespace {

class PluginTransport : public ::testing::Test {
 protected:
  PluginTransport() {
    for (const char* name : {"mpi", "gloo_cpu", "wrapper", "composite"}) folder_.add(name);
    folder_.add("nccl_unusable", "nccl");
    backend_.plugin_path = {folder_.path()};
  }
  void set_base(const std::string& base) { backend_.options["wrapper"] = {{"base", base, {}}}; }

  Folder folder_;
  config::BackendConfig backend_;
};

TEST_F(PluginTransport, Transport_IsItself) {
  backend_.use = "gloo_cpu";
  const plugin::TransportChoice plan =
      plugin::choose_transport(backend_, plugin::MpiLaunch::kPossible);
  EXPECT_EQ(plan.use, "gloo_cpu");
  EXPECT_EQ(plan.transport, "gloo_cpu");
  EXPECT_FALSE(plan.needs_mpi_launch);
  EXPECT_TRUE(plan.overrides.empty());
}

TEST_F(PluginTransport, Auto_IsPassedOnAsAnOverride) {
  const plugin::TransportChoice plan =
      plugin::choose_transport(backend_, plugin::MpiLaunch::kInside);
  EXPECT_EQ(plan.transport, "mpi");
  EXPECT_TRUE(plan.needs_mpi_launch);
  EXPECT_EQ(plan.overrides, std::vector<std::string>{"backend.use=\"mpi\""});
}

TEST_F(PluginTransport, WrapperByPath_HasItsBasesNeeds) {
  backend_.use = folder_.path(Folder::file_name("wrapper"));
  set_base("mpi");
  const plugin::TransportChoice plan =
      plugin::choose_transport(backend_, plugin::MpiLaunch::kPossible);
  EXPECT_EQ(plan.use, backend_.use);
  EXPECT_EQ(plan.transport, "mpi");
  EXPECT_TRUE(plan.needs_mpi_launch);
  EXPECT_TRUE(plan.overrides.empty());
  set_base(folder_.path(Folder::file_name("gloo_cpu")));
  EXPECT_FALSE(plugin::choose_transport(backend_, plugin::MpiLaunch::kPossible).needs_mpi_launch);
}

TEST_F(PluginTransport, WrapperWithoutBase_GetsWhatAutoPicks) {
  backend_.use = "wrapper";
  const plugin::TransportChoice plan =
      plugin::choose_transport(backend_, plugin::MpiLaunch::kInside);
  EXPECT_EQ(plan.transport, "mpi");
  EXPECT_EQ(plan.overrides, std::vector<std::string>{"backend.wrapper.base=\"mpi\""});
}

TEST_F(PluginTransport, BaseThatNeedsABase_IsRefused) {
  backend_.use = "wrapper";
  set_base("wrapper");
  const std::string message = message_of(ErrorCode::kConfig, [&] {
    plugin::choose_transport(backend_, plugin::MpiLaunch::kPossible);
  });
  expect_text(message, "backend.wrapper.base = \"wrapper\" needs a base itself");
}

TEST_F(PluginTransport, Composite_HasATransportForEachRole) {
  backend_.use = "composite";
  const plugin::TransportChoice plan =
      plugin::choose_transport(backend_, plugin::MpiLaunch::kInside);
  EXPECT_EQ(plan.transport, "gloo_cpu and mpi");
  EXPECT_TRUE(plan.needs_mpi_launch);
  EXPECT_EQ(plan.overrides, std::vector<std::string>{"backend.composite.far=\"mpi\""});
  backend_.options["composite"] = {{"far", "gloo_cpu", {}}};
  EXPECT_FALSE(plugin::choose_transport(backend_, plugin::MpiLaunch::kPossible).needs_mpi_launch);
  EXPECT_FALSE(plugin::needs_mpi_launch(backend_));
}

TEST_F(PluginTransport, CompositeUnderAWrapper_IsTaken_AndNothingDeeper) {
  backend_.use = "wrapper";
  backend_.options["composite"] = {{"far", "mpi", {}}};
  set_base("composite");
  EXPECT_EQ(plugin::choose_transport(backend_, plugin::MpiLaunch::kInside).transport,
            "gloo_cpu and mpi");
  EXPECT_TRUE(plugin::needs_mpi_launch(backend_));
  for (const char* base : {"composite", "wrapper"}) {
    backend_.options["composite"] = {{"far", base, {}}};
    for (const char* use : {"wrapper", "composite"}) {
      backend_.use = use;
      expect_text(
          message_of(ErrorCode::kConfig,
                     [&] { plugin::choose_transport(backend_, plugin::MpiLaunch::kInside); }),
          std::string("backend.composite.far = \"") + base + "\" needs a base itself");
    }
  }
}

// Whether the launcher or a rank notices.
TEST_F(PluginTransport, CompositeOverMemoryThatItDoesNotWorkOn_IsRefusedByName) {
  backend_.use = "composite";
  const std::string device = std::string(COUPLER_FIXTURES) + "/" + Folder::file_name("nccl");
  for (const char* role : {"near", "far"}) {
    backend_.options["composite"] = {{role, device, {}}};
    const std::function<void()> users[] = {
        [&] { plugin::choose_transport(backend_, plugin::MpiLaunch::kInside); },
        [&] { plugin::needs_mpi_launch(backend_); }};
    for (const auto& user : users) {
      const std::string message = message_of(ErrorCode::kConfig, user);
      const std::string key = std::string("backend.composite.") + role;
      expect_text(message, key +
                               " = \"nccl\": it moves only a device's memory, and composite "
                               "works on host memory");
      expect_text(message, "set " + key + " to a transport for host memory");
      expect_text(message, "or backend.use to \"nccl\" alone");
    }
  }
}

// On a machine with devices, too.
TEST_F(PluginTransport, CompositeWithoutBase_GetsWhatMovesItsMemory) {
  std::filesystem::remove(folder_.path(Folder::file_name("nccl")));
  folder_.add("nccl");
  EXPECT_EQ(plugin::resolve_auto(backend_, plugin::MpiLaunch::kTooLate), "nccl");
  backend_.use = "composite";
  EXPECT_EQ(plugin::choose_transport(backend_, plugin::MpiLaunch::kTooLate).transport,
            "gloo_cpu and gloo_cpu");
}

// Doubles of all of ours, with their scores.
class AutomaticTransport : public PluginTransport {
 protected:
  AutomaticTransport() {
    for (const char* name : {"shm", "hierarchical"}) folder_.add(name);
    backend_.options["hierarchical"] = {{"near", "shm", {}}};
  }
  plugin::TransportChoice choose(plugin::Spread spread,
                                 plugin::MpiLaunch launch = plugin::MpiLaunch::kTooLate) const {
    return plugin::choose_transport(backend_, launch, /*on_host=*/true, spread);
  }
};

TEST_F(AutomaticTransport, OneMachine_IsTheTransportForOne) {
  const plugin::TransportChoice plan =
      choose(plugin::Spread::kOneMachine, plugin::MpiLaunch::kPossible);
  EXPECT_EQ(plan.use, "shm");
  EXPECT_EQ(plan.overrides, std::vector<std::string>{"backend.use=\"shm\""});
}

TEST_F(AutomaticTransport, SeveralMachinesThatRanksShare_IsAComposition) {
  const plugin::TransportChoice plan = choose(plugin::Spread::kShared);
  EXPECT_EQ(plan.use, "hierarchical");
  EXPECT_EQ(plan.transport, "shm and gloo_cpu");
  EXPECT_FALSE(plan.needs_mpi_launch);
  EXPECT_EQ(plan.overrides, (std::vector<std::string>{"backend.use=\"hierarchical\"",
                                                      "backend.hierarchical.far=\"gloo_cpu\""}));
}

TEST_F(AutomaticTransport, UnknownMachines_IsATransportForAny) {
  EXPECT_EQ(choose(plugin::Spread::kUnknown).use, "gloo_cpu");
  EXPECT_EQ(choose(plugin::Spread::kUnknown, plugin::MpiLaunch::kInside).use, "mpi");
}

TEST_F(AutomaticTransport, BaseOfAWrapper_IsChosenAlike) {
  backend_.use = "wrapper";
  EXPECT_EQ(choose(plugin::Spread::kOneMachine).transport, "shm");
  const plugin::TransportChoice plan = choose(plugin::Spread::kShared);
  EXPECT_EQ(plan.transport, "shm and gloo_cpu");
  EXPECT_EQ(plan.overrides, (std::vector<std::string>{"backend.wrapper.base=\"hierarchical\"",
                                                      "backend.hierarchical.far=\"gloo_cpu\""}));
}

// A composition is for several machines and takes no other one, and a process that exists cannot
// know how many ranks the other machines have.
TEST_F(AutomaticTransport, BaseOfAComposition_IsATransport) {
  backend_.use = "hierarchical";
  backend_.options["hierarchical"] = {{"near", "auto", {}}};
  EXPECT_EQ(choose(plugin::Spread::kShared).transport, "shm and gloo_cpu");
  EXPECT_EQ(plugin::resolve_auto(backend_, plugin::MpiLaunch::kTooLate, /*on_host=*/true,
                                 plugin::Spread::kShared),
            "gloo_cpu");
}

TEST_F(AutomaticTransport, CompositionWhoseBaseCannotBeUsed_IsPassedOver) {
  backend_.options["hierarchical"] = {{"near", "absent", {}}};
  EXPECT_EQ(choose(plugin::Spread::kShared).use, "gloo_cpu");
  const std::vector<plugin::Candidate> candidates = plugin::judge_candidates(
      plugin::probe_candidates(backend_, true), backend_,
      {.on_host = true, .spread = plugin::Spread::kShared, .compositions = true});
  const auto reason_of = [&](const std::string& name) -> std::string {
    for (const plugin::Candidate& one : candidates)
      if (one.report.name == name) return one.rejection;
    return "not there";
  };
  EXPECT_EQ(candidates.front().report.name, "gloo_cpu");
  EXPECT_EQ(reason_of("gloo_cpu"), "");
  expect_text(reason_of("hierarchical"),
              "its base near = \"absent\": backend \"absent\" was not found");
  EXPECT_EQ(reason_of("shm"), "it connects the ranks of one machine, and the job is on several");
  expect_text(reason_of("mpi"), "mpirun did not start this process");
  EXPECT_EQ(reason_of("wrapper"), "not there") << "it is never taken";
}

TEST_F(AutomaticTransport, CompositionOverADevicesMemory_IsPassedOver) {
  std::filesystem::remove(folder_.path(Folder::file_name("nccl")));
  folder_.add("nccl");
  backend_.options["hierarchical"] = {{"near", "nccl", {}}};
  const std::vector<plugin::Candidate> candidates =
      plugin::judge_candidates(plugin::probe_candidates(backend_, false), backend_,
                               {.spread = plugin::Spread::kShared, .compositions = true});
  EXPECT_EQ(candidates.front().report.name, "nccl");
  const auto passed_over =
      std::find_if(candidates.begin(), candidates.end(),
                   [](const plugin::Candidate& one) { return one.report.name == "hierarchical"; });
  ASSERT_NE(passed_over, candidates.end());
  expect_text(
      passed_over->rejection,
      "its base near = \"nccl\": it moves only a device's memory, and hierarchical works on "
      "host memory");
}

TEST_F(PluginTransport, BaseThatIsNotFound_IsNamedByItsOption) {
  backend_.use = "composite";
  backend_.options["composite"] = {{"near", "absent", {}}};
  expect_text(message_of(ErrorCode::kPlugin,
                         [&] { plugin::choose_transport(backend_, plugin::MpiLaunch::kPossible); }),
              "backend.composite.near = \"absent\": backend \"absent\" was not found");
}

TEST_F(PluginTransport, UnusableBackend_IsAnErrorWithItsReason) {
  backend_.use = "nccl";
  expect_text(message_of(ErrorCode::kPlugin,
                         [&] { plugin::choose_transport(backend_, plugin::MpiLaunch::kPossible); }),
              "cannot be used here: no CUDA device answers");
  backend_.use = "absent";
  expect_text(message_of(ErrorCode::kPlugin,
                         [&] { plugin::choose_transport(backend_, plugin::MpiLaunch::kPossible); }),
              "backend \"absent\" was not found");
}

}  // namespace
}  // namespace coupler::test
