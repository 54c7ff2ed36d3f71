#include <coupler/error.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/config.h"

namespace coupler::config {
namespace {

struct Taken {
  ConfigRequest request;
  std::vector<std::string> left;
};

Taken take(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int argc = static_cast<int>(arguments.size());
  Taken taken;
  taken.request = take_config_arguments(argc, argv.data());
  for (int i = 0; i < argc; ++i) taken.left.emplace_back(argv[static_cast<size_t>(i)]);
  EXPECT_EQ(argv[static_cast<size_t>(argc)], nullptr);
  return taken;
}

std::string refusal_of(const std::vector<std::string>& arguments) {
  try {
    take(arguments);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  return "no exception was thrown";
}

using Texts = std::vector<std::string>;

TEST(TakeConfigArguments, AllForms_AreTakenAndTheRestIsLeftInOrder) {
  const Taken taken = take({"prog", "--epochs", "3", "--config", "a.toml", "-o", "backend.use=mpi",
                            "file", "-otraining.seed=1", "-v"});
  EXPECT_EQ(taken.left, (Texts{"prog", "--epochs", "3", "file", "-v"}));
  EXPECT_EQ(taken.request.file, "a.toml");
  EXPECT_EQ(taken.request.overrides, (Texts{"backend.use=mpi", "training.seed=1"}));
  EXPECT_EQ(take({"prog", "--config=b.toml"}).request.file, "b.toml");
}

TEST(TakeConfigArguments, BehindTwoDashes_NothingIsTaken) {
  const Taken taken = take({"prog", "-o", "a.b=1", "--", "-o", "c.d=2", "--config", "x", "--"});
  EXPECT_EQ(taken.left, (Texts{"prog", "--", "-o", "c.d=2", "--config", "x", "--"}));
  EXPECT_EQ(taken.request.overrides, Texts{"a.b=1"});
  EXPECT_FALSE(taken.request.file.has_value());
}

TEST(TakeConfigArguments, ArgumentsThatOnlyLookSimilar_AreLeft) {
  const Texts arguments = {"prog", "-output=x", "-O3", "--configure", "-o3", "-out/a.b=c", "-"};
  EXPECT_EQ(take(arguments).left, arguments);
}

TEST(TakeConfigArguments, NoArguments_GiveNothing) {
  EXPECT_EQ(take({}).left, Texts{});
  EXPECT_EQ(take({"prog"}).left, Texts{"prog"});
}

TEST(TakeConfigArguments, NameOfTheProgram_IsNeverTaken) {
  EXPECT_EQ(take({"--config", "x"}).left, (Texts{"--config", "x"}));
}

TEST(TakeConfigArguments, MissingValue_ShowsTheForm) {
  EXPECT_EQ(refusal_of({"prog", "--config"}),
            "--config: expected a file after it\n  hint: write --config train.toml");
  EXPECT_EQ(refusal_of({"prog", "-o"}),
            "-o: expected key=value after it\n  hint: write -o backend.use=auto");
  EXPECT_EQ(refusal_of({"prog", "-o", "--", "x"}),
            "-o: expected key=value after it\n  hint: write -o backend.use=auto");
  EXPECT_EQ(refusal_of({"prog", "--config="}),
            "--config: expected a file, got ''\n  hint: write --config train.toml");
}

TEST(TakeConfigArguments, TwoFiles_AreAnError) {
  EXPECT_EQ(refusal_of({"prog", "--config", "a", "--config=b"}),
            "--config is given twice: 'a' and 'b'\n  hint: name one file; single keys are set with "
            "-o");
  EXPECT_EQ(take({"prog", "--config", "a", "--config=a"}).request.file, "a");
}

}  // namespace
}  // namespace coupler::config
