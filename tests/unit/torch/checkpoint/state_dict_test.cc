// A StateDict in a file: Accelerator::save and load_state_dict.
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <coupler/state_dict.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <variant>

#include "temporary_folder.h"

namespace coupler {
namespace {

struct Progress {
  int64_t best = 0;
  std::string name;
  void save(StateDict& state) const {
    state.set("best", best);
    state.set("name", name);
  }
  void load(const StateDict& state) {
    best = state.integer("best");
    name = state.text("name");
  }
};

class StateDictFile : public ::testing::Test {
 protected:
  std::string path() const { return (folder_.path() / "state.safetensors").string(); }

  TemporaryFolder folder_{"coupler-state-dict"};
  Accelerator accelerator_;
};

TEST_F(StateDictFile, HasEveryValueAndTensor) {
  const double infinity = std::numeric_limits<double>::infinity();
  StateDict state;
  state.set("steps", int64_t{9007199254740993});
  state.set("whole", 3.0);
  state.set("tiny", 5e-324);
  state.set("nan", std::nan(""));
  state.set("infinity", infinity);
  state.set("minus", -infinity);
  state.set("done", true);
  state.set("text", "a \"quoted\"\nline, \xC3\xA9");
  state.set("average", torch::arange(6, torch::kBFloat16).view({2, 3}).t());
  state.set("empty", torch::zeros({0, 4}));
  accelerator_.save(state, path());

  const StateDict read = load_state_dict(path());
  EXPECT_EQ(read.integer("steps"), 9007199254740993);
  EXPECT_EQ(read.number("whole"), 3.0);
  EXPECT_TRUE(std::holds_alternative<double>(read.values().at("whole")));
  EXPECT_EQ(read.number("tiny"), 5e-324);
  EXPECT_TRUE(std::isnan(read.number("nan")));
  EXPECT_EQ(read.number("infinity"), infinity);
  EXPECT_EQ(read.number("minus"), -infinity);
  EXPECT_TRUE(read.boolean("done"));
  EXPECT_EQ(read.text("text"), state.text("text"));
  EXPECT_TRUE(read.tensor("average").equal(state.tensor("average")));
  EXPECT_EQ(read.tensor("empty").sizes(), state.tensor("empty").sizes());
  EXPECT_EQ(read.values().size(), state.values().size());
  EXPECT_EQ(read.tensors().size(), state.tensors().size());
}

TEST_F(StateDictFile, HasWhatAnObjectSaves) {
  accelerator_.save(Progress{7, "seven"}, path());
  Progress progress;
  progress.load(load_state_dict(path()));
  EXPECT_EQ(progress.best, 7);
  EXPECT_EQ(progress.name, "seven");
}

TEST_F(StateDictFile, OfAModule_HasItsTensors) {
  const torch::nn::Linear linear(2, 3);
  accelerator_.save(*linear, path());
  const StateDict read = load_state_dict(path());
  EXPECT_TRUE(read.tensor("weight").equal(linear->weight));
  EXPECT_TRUE(read.tensor("bias").equal(linear->bias));
  EXPECT_TRUE(read.values().empty());
}

TEST_F(StateDictFile, WhoseValuesAreDamaged_IsAnErrorThatNamesTheFile) {
  accelerator_.save(Progress{7, "seven"}, path());
  std::ifstream in(path(), std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const size_t at = bytes.find("best");
  ASSERT_NE(at, std::string::npos);
  ASSERT_EQ(bytes[at - 3], '{');
  bytes[at - 3] = '[';
  std::ofstream(path(), std::ios::binary) << bytes;
  try {
    load_state_dict(path());
    ADD_FAILURE() << "the file was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
    EXPECT_NE(std::string(error.what()).find(path()), std::string::npos) << error.what();
  }
}

TEST_F(StateDictFile, ThatCannotBeWritten_KeepsTheOldOne) {
  accelerator_.save(Progress{7, "seven"}, path());
  StateDict wrong;
  wrong.set("quaternion", torch::zeros({2}, torch::kComplexHalf));
  EXPECT_THROW(accelerator_.save(wrong, path()), Error);
  EXPECT_EQ(load_state_dict(path()).integer("best"), 7);
  EXPECT_THROW(load_state_dict(path() + ".none"), Error);
}

}  // namespace
}  // namespace coupler
