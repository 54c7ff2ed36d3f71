// What a process reports about the driver, in child processes with a double of the driver.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// The probe's output with these variables.
std::string reason_with(const std::vector<std::string>& variables) {
  const std::string command =
      fmt::format("env '{}' '{}'", fmt::join(variables, "' '"), DEVICE_PROBE);
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen failed");
  std::string output;
  std::array<char, 512> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) output += part.data();
  EXPECT_EQ(::pclose(pipe), 0) << output;
  return output;
}

std::string driver() { return fmt::format("LD_LIBRARY_PATH={}", DRIVER_FOLDER); }

void expect_reason(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(CudaLibrary, VariableSaysCpu_IsNotLookedFor) {
  expect_reason(reason_with({driver(), "COUPLER_TRAINING_DEVICE=cpu"}),
                "COUPLER_TRAINING_DEVICE is cpu");
}

TEST(CudaLibrary, NoDevice_SaysWhereToLook) {
  expect_reason(reason_with({driver(), "DRIVER_DEVICES=0"}), "see CUDA_VISIBLE_DEVICES");
  expect_reason(reason_with({driver(), "DRIVER_STATUS=100"}), "see CUDA_VISIBLE_DEVICES");
}

TEST(CudaLibrary, DriverDoesNotStart_SaysItsError) {
  expect_reason(reason_with({driver(), "DRIVER_STATUS=999"}), "error 999 from cuInit");
}

// Whether LibTorch's CUDA libraries are installed depends on the machine. Without them, their
// absence is the reported reason; with them, the driver, which is too old.
TEST(CudaLibrary, DeviceThatLibTorchCannotUse_SaysWhy) {
  const std::string text = reason_with({driver(), "DRIVER_VERSION=11040"});
  const bool installed = text.find("are not all installed") == std::string::npos;
  if (installed) {
    expect_reason(text, "the NVIDIA driver is too old: it supports CUDA 11.4, LibTorch needs 13");
  } else {
    expect_reason(text, "cannot open shared object file");
  }
}

}  // namespace
