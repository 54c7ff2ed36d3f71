// The store for a world of one, views with a prefix, and where open_job_store() connects.
#include <coupler/error.h>
#include <gtest/gtest.h>

#include <thread>

#include "config/config.h"
#include "rendezvous/job_file.h"
#include "rendezvous/process_info.h"
#include "store/store.h"

namespace coupler::store {
namespace {

using namespace std::chrono_literals;

TEST(MemoryStore, SetGetAdd_Work_WithinTheProcess) {
  MemoryStore store;
  EXPECT_EQ(store.get("key", 0s), std::nullopt);
  EXPECT_EQ(store.get("key", 10ms), std::nullopt);
  std::thread setter([&] { store.set("key", "value"); });
  EXPECT_EQ(store.get("key", 20s), "value");
  setter.join();
  EXPECT_EQ(store.add("n", 2), 2);
  EXPECT_EQ(store.add("n", -5), -3);
}

TEST(PrefixStore, Keys_AreApart_AndParentLives) {
  auto parent = std::make_shared<MemoryStore>();
  const auto a = Store::with_prefix(parent, "a");
  const auto b = Store::with_prefix(parent, "b");
  a->set("key", "1");
  EXPECT_EQ(b->get("key", 0s), std::nullopt);
  EXPECT_EQ(parent->get("a/key", 0s), "1");
  EXPECT_EQ(b->add("n", 1), 1);
  EXPECT_EQ(a->add("n", 1), 1);
}

TEST(JoinStore, WorldOfOne_NeedsNobody_Ever) {
  const auto store = rendezvous::open_job_store(rendezvous::ProcessInfo{}, config::Config{});
  store->set("key", "value");
  EXPECT_EQ(store->get("key", 0s), "value");
}

TEST(JoinStore, WorldWithoutLauncher_IsAnError_NamingTheLauncher) {
  rendezvous::ProcessInfo process;
  process.world_size = 2;
  try {
    rendezvous::open_job_store(process, config::Config{});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_NE(std::string(error.what()).find("coupler launch"), std::string::npos);
  }
}

}  // namespace
}  // namespace coupler::store
