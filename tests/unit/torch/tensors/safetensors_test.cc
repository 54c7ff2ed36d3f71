#include <ATen/Functions.h>
#include <coupler/error.h>
#include <coupler/state_dict.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "core/formats/safetensors_bytes.h"

namespace coupler::tensors {
namespace {

using testing::entry;
using testing::file_bytes;

const std::string kFixture =
    std::string(COUPLER_SOURCE_DIR) + "/tests/unit/core/formats/fixtures/python_0_8.safetensors";

class SafeTensorsFile : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/coupler_safetensors_XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "t.safetensors") const { return folder_ + "/" + name; }

  SafeTensors open_bytes(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary) << bytes;
    return SafeTensors::open(path());
  }

  std::string folder_;
};

template <class Function>
std::optional<Error> error_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

bool mentions(const std::optional<Error>& error, const std::string& text) {
  return error && std::string(error->what()).find(text) != std::string::npos;
}

TEST(SafeTensors_PythonFile, EveryDType_ReadsAsWritten) {
  const auto file = SafeTensors::open(kFixture);
  const std::vector<std::pair<std::string, at::ScalarType>> types = {
      {"u8", at::kByte},
      {"i8", at::kChar},
      {"i16", at::kShort},
      {"i32", at::kInt},
      {"i64", at::kLong},
      {"u16", at::kUInt16},
      {"u32", at::kUInt32},
      {"u64", at::kUInt64},
      {"f16", at::kHalf},
      {"f32", at::kFloat},
      {"bf16", at::kBFloat16},
      {"f64", at::kDouble},
      {"c64", at::kComplexFloat},
      {"f8_e4m3", at::kFloat8_e4m3fn},
      {"f8_e5m2", at::kFloat8_e5m2}};
  const at::Tensor expected = at::arange(6, at::kFloat).reshape({2, 3});
  for (const auto& [name, type] : types) {
    SCOPED_TRACE(name);
    const at::Tensor tensor = file.tensor(name);
    EXPECT_EQ(tensor.scalar_type(), type);
    EXPECT_TRUE(at::equal(at::real(tensor.to(at::kComplexFloat)), expected));
  }
  const at::Tensor odd = at::arange(6, at::kLong).remainder(2).reshape({2, 3}).to(at::kBool);
  EXPECT_TRUE(at::equal(file.tensor("bool"), odd));
}

TEST(SafeTensors_PythonFile, ScalarsEmptyTensorsOddNamesAndMetadata_AreThere) {
  const auto file = SafeTensors::open(kFixture);
  EXPECT_EQ(file.names().size(), 19u);
  EXPECT_EQ(file.tensor("scalar").item<float>(), 42.0f);
  EXPECT_EQ(file.tensor("scalar").dim(), 0);
  EXPECT_EQ(file.tensor("empty").sizes(), (at::IntArrayRef{0, 5}));
  EXPECT_TRUE(file.contains("weird name é \" \\"));
  EXPECT_FALSE(file.contains("f33"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("made by"), "make_fixtures.py");
}

TEST(SafeTensors_Tensor, UnknownName_ListsWhatThereIs) {
  const auto file = SafeTensors::open(kFixture);
  const auto error = error_of([&] { file.tensor("fc9.weight"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(mentions(error, "has no tensor 'fc9.weight'"));
  EXPECT_TRUE(mentions(error, "19 in all"));
  EXPECT_TRUE(mentions(error, "python_0_8.safetensors"));
}

TEST_F(SafeTensorsFile, Tensor_CalledTwice_SharesTheMappedMemory) {
  std::string header = "{" + entry("w", "F32", "2", 0, 8) + "}";
  while (header.size() % 8 != 0) header += ' ';
  const auto file = open_bytes(file_bytes(header, std::string(8, '\0')));
  EXPECT_EQ(file.tensor("w").data_ptr(), file.tensor("w").data_ptr());
}

TEST_F(SafeTensorsFile, Tensor_OutlivingItsFile_KeepsTheMapping) {
  at::Tensor tensor;
  {
    const auto file = open_bytes(file_bytes("{" + entry("w", "U8", "3", 0, 3) + "}", "abc"));
    tensor = file.tensor("w");
  }
  std::filesystem::remove(path());
  EXPECT_EQ(tensor[2].item<int>(), 'c');
}

TEST_F(SafeTensorsFile, Tensor_Written_LeavesTheFileAlone) {
  const auto file = open_bytes(file_bytes("{" + entry("w", "U8", "3", 0, 3) + "}", "abc"));
  file.tensor("w").fill_('z');
  EXPECT_EQ(SafeTensors::open(path()).tensor("w")[0].item<int>(), 'a');
}

TEST_F(SafeTensorsFile, Tensor_OfUnalignedBytes_IsRightAndAligned) {
  const float value = 1.5f;
  std::string header = "{" + entry("a", "U8", "1", 0, 1) + "," + entry("w", "F32", "1", 1, 5) + "}";
  while (header.size() % 8 != 0) header += ' ';
  const auto file = open_bytes(
      file_bytes(header, "x" + std::string(reinterpret_cast<const char*>(&value), sizeof value)));
  const at::Tensor tensor = file.tensor("w");
  EXPECT_EQ(tensor.item<float>(), value);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % alignof(float), 0u);
}

TEST_F(SafeTensorsFile, Tensor_OfBoolBytesOtherThanZeroAndOne_IsRefused) {
  const auto file = open_bytes(
      file_bytes("{" + entry("w", "BOOL", "3", 0, 3) + "}", std::string("\x01\x00\x07", 3)));
  const auto error = error_of([&] { file.tensor("w"); });
  EXPECT_TRUE(mentions(error, "tensor 'w': BOOL element 2 has the value 7"));
}

TEST_F(SafeTensorsFile, Tensor_OfATypeLibTorchLacks_IsUnsupported) {
  const auto file = open_bytes(file_bytes("{" + entry("w", "F6_E2M3", "4", 0, 3) + "}", "abc"));
  EXPECT_EQ(file.names(), std::vector<std::string>{"w"});
  const auto error = error_of([&] { file.tensor("w"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(mentions(error, "F6_E2M3"));
}

TEST_F(SafeTensorsFile, Open_OfWhatIsNoFile_SaysSo) {
  EXPECT_TRUE(mentions(error_of([&] { SafeTensors::open(path("none")); }), "No such file"));
  EXPECT_TRUE(mentions(error_of([&] { SafeTensors::open(folder_); }), "not a regular file"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(mentions(error_of([&] { SafeTensors::open(path("pipe")); }), "not a regular file"));
}

TEST_F(SafeTensorsFile, Open_OfABrokenFile_NamesItAndTheRule) {
  const auto error = error_of([&] { open_bytes("not a safetensors file"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kIo);
  EXPECT_TRUE(mentions(error, path()));
  EXPECT_TRUE(mentions(error_of([&] { open_bytes(""); }), "too few"));
}

}  // namespace
}  // namespace coupler::tensors
