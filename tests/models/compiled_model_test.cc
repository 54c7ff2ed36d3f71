// Packages of AOTInductor: PyTorch's results from several threads, replaced weights, and errors.
#include <coupler/compiled_model.h>
#include <coupler/error.h>
#include <coupler/state_dict.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace coupler {
namespace {

namespace fs = std::filesystem;

const std::string kPackage = MODEL_FIXTURES "/compiled_model.pt2";
const std::string kOtherWeights = MODEL_FIXTURES "/compiled_weights.safetensors";

at::Tensor golden(const std::string& name) {
  static const SafeTensors file = SafeTensors::open(MODEL_FIXTURES "/compiled_model.safetensors");
  return file.tensor(name);
}

void expect_error(const std::function<void()>& action, ErrorCode code,
                  const std::vector<std::string>& parts) {
  try {
    action();
    ADD_FAILURE() << "no error, but expected " << parts[0];
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << part << "\n  in: " << error.what();
  }
}

TEST(CompiledModel, Results_ArePyTorchs_ForEveryBatchSize_InSeveralThreads) {
  const CompiledModel model(kPackage, {.runners = 2});
  EXPECT_EQ(model.num_inputs(), 2u);
  EXPECT_TRUE(model.device().is_cpu());
  EXPECT_EQ(model.metadata().at("AOTI_MACHINE"), "x86_64");
  std::vector<std::thread> threads;
  for (int64_t rows = 1; rows <= 3; ++rows) {
    threads.emplace_back([&model, rows] {
      const at::Tensor x = golden("x").slice(0, 0, 2 * rows).contiguous();
      for (int i = 0; i < 20; ++i) {
        const std::vector<at::Tensor> outputs = model.forward({x, golden("shift")});
        ASSERT_EQ(outputs.size(), 2u);
        EXPECT_TRUE(outputs[0].allclose(golden("logits").slice(0, 0, 2 * rows), 1e-5, 1e-6));
        EXPECT_TRUE(outputs[1].allclose(golden("sums").slice(0, 0, 2 * rows), 1e-5, 1e-6));
        EXPECT_FALSE(outputs[0].requires_grad());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CompiledModel, LoadedWeights_ReplaceItsOwn) {
  CompiledModel model(kPackage);
  EXPECT_EQ(model.weight_names(), (std::vector<std::string>{"first.weight", "second.weight"}));
  model.load_weights(kOtherWeights);
  EXPECT_TRUE(model.forward({golden("x"), golden("shift")})[0].allclose(golden("other_logits"),
                                                                        1e-5, 1e-6));
  expect_error([&] { model.load_weights(MODEL_FIXTURES "/compiled_model.safetensors"); },
               ErrorCode::kInvalidArgument, {"has no '", ".weight'"});
  expect_error([&] { model.load_weights("/nothing.safetensors"); }, ErrorCode::kIo, {"/nothing"});
  EXPECT_TRUE(model.forward({golden("x"), golden("shift")})[0].allclose(golden("other_logits"),
                                                                        1e-5, 1e-6));
}

TEST(CompiledModel, InputsThatItWasNotCompiledFor_AreRefused) {
  const CompiledModel model(kPackage);
  const at::Tensor x = golden("x"), shift = golden("shift");
  const auto refuse = [&](const std::vector<at::Tensor>& inputs, const std::string& part) {
    expect_error([&] { model.forward(inputs); }, ErrorCode::kInvalidArgument,
                 {part, "compiled_model.pt2"});
  };
  refuse({x}, "takes 2 tensors, but got 1");
  refuse({x, shift, shift}, "but got 3");
  refuse({x, at::Tensor()}, "input 1");
  refuse({x.to(at::kMeta), shift}, "on meta");
  refuse({x.to(at::kDouble), shift}, "Double [6, 4]");
  refuse({at::ones({6, 5}), shift}, "[6, 5]");
  refuse({x.t().contiguous().t(), shift}, "strides [1, 6]");
  EXPECT_TRUE(model.forward({x, shift})[0].allclose(golden("logits"), 1e-5, 1e-6));
}

TEST(CompiledModel, WrongFiles_AreNamed) {
  const fs::path folder =
      fs::path(::testing::TempDir()) / ("compiled_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  std::ifstream whole(kPackage, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(whole), {}};
  const std::string cut = folder / "cut.pt2";
  std::ofstream(cut, std::ios::binary) << bytes.substr(0, bytes.size() / 2);
  const auto open = [](const std::string& path, const CompiledModelOptions& options = {}) {
    return [=] { const CompiledModel model(path, options); };
  };
  expect_error(open(folder / "none.pt2"), ErrorCode::kIo, {"none.pt2", "No such file"});
  expect_error(open(cut), ErrorCode::kIo, {"cut.pt2", "package", "hint: "});
  expect_error(open(kPackage, {.name = "encoder"}), ErrorCode::kInvalidArgument,
               {"has no model 'encoder'"});
  expect_error(open(kPackage, {.runners = 0}), ErrorCode::kInvalidArgument, {"runners is 0"});
  fs::remove_all(folder);
}

}  // namespace
}  // namespace coupler
