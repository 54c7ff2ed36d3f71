// Errors of nccl for wrong input and wrong machines: drivers, devices, libraries, options, memory.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "nccl_job.h"

namespace backend_test {
namespace {

using Environment = std::vector<std::pair<std::string, std::string>>;

// The score and reason of probe in a new process with that environment; `before` runs first.
std::pair<int, std::string> probe(
    const Environment& environment, const std::function<void()>& before = [] {}) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    before();
    int32_t score = -1;
    std::array<char, 1024> reason{};
    load_backend()->probe(nullptr, &score, reason.data(), reason.size());
    const std::string text = std::to_string(score) + "\n" + reason.data();
    const ssize_t written = write(ends[1], text.data(), text.size());
    _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  std::array<char, 512> piece{};
  for (ssize_t n = 0; (n = read(ends[0], piece.data(), piece.size())) > 0;)
    text.append(piece.data(), static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  return {std::atoi(text.c_str()), text.substr(text.find('\n') + 1)};
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
}

TEST(NcclProbe, UsableMachine_SaysWhatWasFoundAndWhere) {
  const auto [score, reason] = probe({{"CUDA_DOUBLE_DEVICES", "4"}});
  EXPECT_GT(score, 0);
  expect_parts(reason,
               {"NCCL 2.", COUPLER_NCCL_DOUBLE "/libnccl.so.2", "CUDA runtime 13.0",
                COUPLER_NCCL_DOUBLE "/libcudart.so.13", "driver for CUDA 13.0", "4 devices"});
}

TEST(NcclProbe, NoDriver_IsAReason) {
  const auto [score, reason] = probe({{"CUDA_DOUBLE_DRIVER", "0"}});
  EXPECT_EQ(score, 0);
  expect_parts(reason, {"no NVIDIA driver was found", "CUDA runtime 13.0"});
}

TEST(NcclProbe, DriverTooOld_NamesBothVersions) {
  const auto [score, reason] = probe({{"CUDA_DOUBLE_DRIVER", "12040"}});
  EXPECT_EQ(score, 0);
  expect_parts(reason,
               {"driver is too old", "supports CUDA 12.4", "runtime is 13.0", "update the driver"});
}

TEST(NcclProbe, NoDevice_PointsAtWhatMayHideThem) {
  for (const Environment& none :
       {Environment{{"CUDA_VISIBLE_DEVICES", ""}}, Environment{{"CUDA_DOUBLE_DEVICES", "0"}}}) {
    const auto [score, reason] = probe(none);
    EXPECT_EQ(score, 0);
    expect_parts(reason, {"no CUDA device was found", "CUDA_VISIBLE_DEVICES"});
  }
}

// Opens a copy of the library before the backend looks for its own.
void open_copy(const Folder& folder, const char* name) {
  const std::string copy = folder.path + "/" + name;
  std::filesystem::copy(COUPLER_NCCL_DOUBLE "/libnccl.so.2", copy);
  std::filesystem::copy(COUPLER_NCCL_DOUBLE "/libcudart.so.13", folder.path + "/libcudart.so.13");
  if (dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) _exit(9);
}

TEST(NcclProbe, AnotherNcclLoaded_NamesBoth) {
  const Folder folder;
  const auto [score, reason] = probe({}, [&] { open_copy(folder, "libnccl.so.2"); });
  EXPECT_EQ(score, 0);
  expect_parts(reason, {"another NCCL is already loaded in this process",
                        folder.path + "/libnccl.so.2", COUPLER_NCCL_DOUBLE "/libnccl.so.2"});
}

TEST(NcclProbe, LoadedNccl_IsTheOneThatIsUsed) {
  const Folder folder;
  const auto [score, reason] = probe({}, [&] {
    open_copy(folder, "libnccl.so.2");
    setenv("COUPLER_NCCL_PATH", folder.path.c_str(), 1);
  });
  EXPECT_GT(score, 0) << reason;
  expect_parts(reason, {folder.path + "/libnccl.so.2"});
}

TEST(NcclProbe, LibraryThatIsNone_NamesTheFile) {
  for (const std::string name : {"libcudart.so.13", "libnccl.so.2"}) {
    const Folder folder;
    if (name == "libnccl.so.2")
      std::filesystem::copy(COUPLER_NCCL_DOUBLE "/libcudart.so.13",
                            folder.path + "/libcudart.so.13");
    std::ofstream(folder.path + "/" + name) << "no library";
    const auto [score, reason] = probe({{"COUPLER_NCCL_PATH", folder.path}});
    EXPECT_EQ(score, 0);
    expect_parts(reason, {"was found: " + folder.path + "/" + name, "COUPLER_NCCL_PATH"});
  }
}

// The real libraries, if installed, without a driver: probe gives a reason and does not crash.
TEST(NcclProbe, NoDoubleAndNoDriver_IsAReason) {
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "this machine has a driver";
  const auto [score, reason] = probe({{"COUPLER_NCCL_PATH", ""}});
  EXPECT_EQ(score, 0);
  EXPECT_FALSE(reason.empty());
}

TEST(NcclInput, TwoRanksOnOneGpu_ExplainsDuplicateGpu) {
  Job job = nccl_job(2);
  job.must_connect = false;
  job.environment.emplace_back("CUDA_VISIBLE_DEVICES", "5");
  expect_ranks(job, [&](int32_t, Rank& self) {
    EXPECT_EQ(self.created, DB_ERR_INVALID_ARGUMENT);
    expect_parts(self.error.text.data(),
                 {"rank 0 and rank 1 were given the same GPU (0000:15:00.0)", "Duplicate GPU",
                  "CUDA_VISIBLE_DEVICES", "gloo_cpu"});
  });
}

TEST(NcclInput, FewerGpusThanRanks_SaysHowManyThereAre) {
  Job job = nccl_job(3);
  job.must_connect = false;
  job.timeout_ns = 500'000'000;
  job.environment.emplace_back("CUDA_VISIBLE_DEVICES", "0,1");
  expect_ranks(job, [&](int32_t rank, Rank& self) {
    EXPECT_LT(self.created, 0);
    if (rank == 2)
      expect_parts(self.error.text.data(),
                   {"rank 2 needs CUDA device 2", "this process sees 2", "CUDA_VISIBLE_DEVICES=0,1",
                    "fewer GPUs than ranks", "at most 2 processes"});
  });
}

TEST(NcclInput, CpuTensor_IsRefusedWithAdvice) {
  expect_ranks(nccl_job(1), [&](int32_t, Rank& self) {
    std::vector<float> data(4, 1);
    db_op op = all_reduce(data.data(), data.data(), 4);
    op.memory = DB_MEMORY_HOST;
    EXPECT_EQ(self.run(op, true), DB_ERR_UNSUPPORTED);
    expect_parts(self.error.text.data(), {"all_reduce of f32 was given a tensor on the CPU",
                                          "CUDA tensors only", "gloo_cpu or mpi"});
    op.memory = DB_MEMORY_CUDA;
    EXPECT_EQ(self.run(op, true), DB_OK) << self.error.text.data();
  });
}

TEST(NcclInput, NoDeviceMemory_SaysWhatWasAskedAndWhatIsFree) {
  Job job = nccl_job(2);
  job.environment.emplace_back("CUDA_DOUBLE_MEMORY", "1000");
  expect_ranks(job, [&](int32_t, Rank& self) {
    std::vector<float> data(2000, 1);
    db_op op = all_reduce(data.data(), data.data(), 1000);
    op.kind = DB_ALL_TO_ALL;
    op.reduce = 0;
    EXPECT_EQ(self.run(op, true), DB_ERR_NO_MEMORY);
    expect_parts(self.error.text.data(),
                 {"all_to_all of 1000 f32", "needs 8000 bytes", "1000 are free", "not in place"});
  });
}

TEST(NcclInput, NoDeviceMemoryAtAll_EndsCreateWithWhatMayHelp) {
  Job job = nccl_job(1);
  job.must_connect = false;
  job.environment.emplace_back("CUDA_DOUBLE_MEMORY", "3");
  expect_ranks(job, [&](int32_t, Rank& self) {
    EXPECT_EQ(self.created, DB_ERR_NO_MEMORY);
    expect_parts(self.error.text.data(),
                 {"creating a communicator needs more device memory than there is", "3 are free",
                  "smaller batches", "NCCL_BUFFSIZE"});
  });
}

TEST(NcclInput, WrongOptions_AreNamed) {
  db_option unknown{};
  unknown.struct_size = sizeof unknown;
  unknown.key = "max_cta";
  unknown.type = DB_OPTION_I64;
  db_option large = unknown;
  large.key = "max_ctas";
  large.i64 = 65;
  const std::vector<std::pair<const db_option*, std::vector<std::string>>> cases = {
      {&unknown, {"unknown option 'max_cta'", "'max_ctas'", "network"}},
      {&large, {"max_ctas", "65", "64"}}};
  for (const auto& [option, parts] : cases) {
    Job job = nccl_job(1);
    job.must_connect = false;
    job.options = {option};
    expect_ranks(job, [&, &wanted = parts](int32_t, Rank& self) {
      EXPECT_LT(self.created, 0);
      expect_parts(self.error.text.data(), wanted);
    });
  }
}

}  // namespace
}  // namespace backend_test
