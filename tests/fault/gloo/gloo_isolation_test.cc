// gloo_cpu in a program that is linked to LibTorch, which exports its own gloo:: symbols. Two ranks
// train a linear regression and average its gradients over the backend, also with libgloo's
// collectives, while tensors are allocated and freed. The program replaces operator new
// (marking_operators.cc) and marks each block; delete checks the mark, so memory that crosses
// between two allocators ends the program. CMakeLists.txt also runs it with jemalloc preloaded.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "by_algorithm.h"
#include "ranks/ranks.h"

namespace backend_test {
namespace {

TEST(GlooIsolation, Preload_AsTheTestWasStarted_IsInThisProcess) {
  const char* const preload = std::getenv("LD_PRELOAD");
  if (preload == nullptr) GTEST_SKIP() << "no preloaded allocator in this run";
  EXPECT_NE(dlsym(RTLD_DEFAULT, "mallctl"), nullptr) << preload;
}

TEST(GlooIsolation, Host_LinkedToLibTorch_ExportsClashingSymbols) {
  // The reason for the isolation: if LibTorch stops exporting them, it can be removed.
  EXPECT_NE(dlsym(RTLD_DEFAULT, "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE"), nullptr);
}

class GlooIsolationByAlgorithm : public ByAlgorithm {};
INSTANTIATE_TEST_SUITE_P(, GlooIsolationByAlgorithm, ::testing::Values("auto", "gloo"),
                         algorithm_name);

TEST_P(GlooIsolationByAlgorithm, Training_InAProgramLinkedToLibTorch_Converges) {
  expect_ranks(job_of(2), [](int32_t rank, Rank& self) {
    at::set_num_threads(1);
    at::manual_seed(rank + 1);
    const at::Tensor truth = at::arange(64, at::kFloat).reshape({64, 1}) / 64;
    at::Tensor weight = at::zeros({64, 1});
    double last = 0;
    for (int step = 0; step < 300; ++step) {
      const at::Tensor x = at::randn({256, 64});
      const at::Tensor error = at::mm(x, weight) - at::mm(x, truth);
      at::Tensor gradient = at::mm(x.t(), error) * (2.0 / 256);
      db_op op = all_reduce(gradient.data_ptr<float>(), gradient.data_ptr<float>(), 64);
      op.reduce = DB_AVG;
      ASSERT_EQ(self.run(op, step % 2 == 0), DB_OK) << self.error.text.data();
      weight = weight - 0.1 * gradient;
      last = error.pow(2).mean().item<double>();
    }
    EXPECT_LT(last, 1e-6);
    // Large enough for every allocator's path for large blocks.
    at::Tensor many = at::full({5'000'000}, rank + 1, at::kFloat);
    ASSERT_EQ(
        self.run(all_reduce(many.data_ptr<float>(), many.data_ptr<float>(), 5'000'000), false),
        DB_OK);
    EXPECT_EQ(many.min().item<float>(), 3);
    EXPECT_EQ(many.max().item<float>(), 3);
  });
}

TEST_P(GlooIsolationByAlgorithm, Errors_InACollective_ComeBackAsTheyWere) {
  expect_ranks(job_of(2), [](int32_t rank, Rank& self) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(800));
      return;
    }
    float data = 1;
    db_op op = all_reduce(&data, &data, 1);
    op.timeout_ns = 200'000'000;
    EXPECT_EQ(self.run(op, true), DB_ERR_TIMEOUT) << self.error.text.data();
    EXPECT_EQ(self.error.error.failed_rank, 1) << self.error.text.data();
  });
}

TEST(GlooIsolation, Errors_OfConnecting_ComeBackAsText) {
  Job job;
  job.present = 1;
  job.timeout_ns = 200'000'000;
  job.must_connect = false;
  expect_ranks(job, [](int32_t, Rank& self) {
    EXPECT_EQ(self.created, DB_ERR_TIMEOUT) << self.error.text.data();
    db_communicator_params params{};
    params.struct_size = sizeof params;
    params.size = 2;
    params.local_size = 2;
    params.device_index = -1;
    params.default_timeout_ns = 1'000'000'000;
    params.interface_name = "nosuch0";
    const Folder folder;
    const FileStore store(folder.path);
    params.store = store.table();
    db_communicator* none = nullptr;
    EXPECT_EQ(load_backend()->create(&params, &none, self.error), DB_ERR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(self.error.text.data()).find("nosuch0"), std::string::npos)
        << self.error.text.data();
  });
}

}  // namespace
}  // namespace backend_test
