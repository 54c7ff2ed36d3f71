// Names on the Hub, the variables, and a cache as huggingface_hub leaves it: complete, damaged,
// half downloaded. No request is made.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "hub/model_files.h"
#include "hub/settings.h"
#include "refusal.h"
#include "temporary_folder.h"

namespace coupler::hub {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCommit = "607a30d783dfa663caf39e06633721c8d4cfcd7e";

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ModelNames, AreThoseOfTheHub) {
  for (const char* text : {"gpt2", "EleutherAI/gpt-j-6B", "Qwen/Qwen2.5-0.5B", "a/b_c.d",
                           "gpt2@refs/pr/3", "gpt2@v1.0"}) {
    EXPECT_TRUE(parse_model_name(text)) << text;
  }
  EXPECT_EQ(parse_model_name("a/b@c/d")->id, "a/b");
  EXPECT_EQ(parse_model_name("a/b@c/d")->revision, "c/d");
  EXPECT_EQ(parse_model_name("a/b")->revision, "main");
  for (const char* text : {"",
                           "/gpt2",
                           "./gpt2",
                           "../gpt2",
                           "a/b/c",
                           "a/..",
                           "../..",
                           "a//b",
                           "a--b",
                           "a..b",
                           ".a",
                           "a.",
                           "-a",
                           "a b",
                           "a\n",
                           "a/b@",
                           "a@..",
                           "a@../x",
                           "a@x/../y",
                           "a@/x",
                           "a@x y",
                           "~/gpt2",
                           "model.safetensors",
                           "out/model.bin",
                           "config.json",
                           "a@b@c",
                           "C:\\x",
                           "a%2fb"}) {
    EXPECT_FALSE(parse_model_name(text)) << text;
  }
  EXPECT_FALSE(parse_model_name(std::string(97, 'a')));
}

class Variables : public ::testing::Test {
 protected:
  Variables() {
    for (const char* name :
         {"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_HUB_OFFLINE",
          "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH",
          "HF_ENDPOINT", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "HF_HUB_ETAG_TIMEOUT", "HOME"}) {
      const char* const value = std::getenv(name);
      before_[name] = value == nullptr ? "" : value;
      ::unsetenv(name);
    }
    set("HOME", folder_.path().string());
  }
  ~Variables() override {
    for (const auto& [name, value] : before_) {
      value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  void set(const char* name, const std::string& value) const { ::setenv(name, value.c_str(), 1); }

  const TemporaryFolder folder_{"coupler-hub"};
  std::map<std::string, std::string> before_;
};

TEST_F(Variables, Cache_IsWherePythonHasIt) {
  const std::string home = folder_.path().string();
  EXPECT_EQ(hub_settings().cache, home + "/.cache/huggingface/hub");
  set("XDG_CACHE_HOME", "/xdg");
  EXPECT_EQ(hub_settings().cache, "/xdg/huggingface/hub");
  set("HF_HOME", "~/hf");
  EXPECT_EQ(hub_settings().cache, home + "/hf/hub");
  set("HUGGINGFACE_HUB_CACHE", "/old");
  EXPECT_EQ(hub_settings().cache, "/old");
  set("HF_HUB_CACHE", "$HOME/x/${HF_HOME}$NONE");
  EXPECT_EQ(hub_settings().cache, home + "/x/~/hf$NONE");
}

TEST_F(Variables, Token_IsThatOfPython) {
  EXPECT_EQ(hub_settings().token, "");
  fs::create_directories(folder_.path() / ".cache/huggingface");
  std::ofstream(folder_.path() / ".cache/huggingface/token") << "hf_file\n";
  EXPECT_EQ(hub_settings().token, "hf_file");
  set("HF_TOKEN", " hf_variable\r\n");
  EXPECT_EQ(hub_settings().token, "hf_variable");
  set("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1");
  EXPECT_EQ(hub_settings().token, "");
  ::unsetenv("HF_HUB_DISABLE_IMPLICIT_TOKEN");
  set("HF_TOKEN", "hf_secret of mine");
  const std::string refused = testing::refusal_of(ErrorCode::kConfig, [] { hub_settings(); });
  EXPECT_EQ(refused, "HF_TOKEN does not hold a token");  // and does not show it
}

TEST_F(Variables, WrongNumber_IsRefused) {
  set("HF_HUB_ETAG_TIMEOUT", "soon");
  EXPECT_EQ(testing::refusal_of(ErrorCode::kConfig, [] { hub_settings(); }),
            "HF_HUB_ETAG_TIMEOUT is 'soon'");
}

// gpt2 with two files of weights, as huggingface_hub writes it.
class CachedModel : public ::testing::Test {
 protected:
  CachedModel() {
    settings_.cache = folder_.path().string();
    settings_.endpoint = "http://127.0.0.1:9";  // nothing listens
    settings_.first_pause = std::chrono::milliseconds(1);
    settings_.offline = true;
    model_ = folder_.path() / "models--openai--gpt2";
    write(model_ / "refs/main", kCommit);
    write(model_ / "refs/refs/pr/1", kCommit);
    add("config.json", "e1", "{}");
    add("tokenizer.json", "e2", "{}");
    add("model.safetensors.index.json", "e3",
        R"({"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}})");
    add("model-1-of-2.safetensors", "e4", "one");
    add("model-2-of-2.safetensors", "e5", "two");
  }

  static void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  void add(const std::string& file, const std::string& etag, const std::string& text) const {
    write(model_ / "blobs" / etag, text);
    fs::create_directories(snapshot());
    fs::create_symlink("../../blobs/" + etag, snapshot() / file);
  }
  fs::path snapshot() const { return model_ / "snapshots" / kCommit; }
  std::string find(const std::string& name, ModelUse use = ModelUse::kWeights) const {
    return model_folder(name, use, settings_);
  }
  std::string refusal(const std::string& name, ModelUse use = ModelUse::kWeights) const {
    return testing::refusal_of(ErrorCode::kIo, [&] { find(name, use); });
  }

  const TemporaryFolder folder_{"coupler-hub"};
  HubSettings settings_;
  fs::path model_;
};

TEST_F(CachedModel, Revisions_AreFound) {
  EXPECT_EQ(find("openai/gpt2"), snapshot());
  EXPECT_EQ(find("openai/gpt2@main"), snapshot());
  EXPECT_EQ(find("openai/gpt2@refs/pr/1"), snapshot());
  EXPECT_EQ(find(std::string("openai/gpt2@") + kCommit), snapshot());
  EXPECT_EQ(find("openai/gpt2", ModelUse::kLanguageModel), snapshot());
  settings_.offline = false;  // complete: the Hub is not asked
  EXPECT_EQ(find("openai/gpt2", ModelUse::kLanguageModel), snapshot());
}

TEST_F(CachedModel, FolderOfThatName_Wins) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_.path());
  fs::create_directories("openai/gpt2");
  EXPECT_EQ(find("openai/gpt2"), "openai/gpt2");
  fs::current_path(before);
}

TEST_F(CachedModel, TextsThatAreNoNames_StayAsTheyAre) {
  EXPECT_EQ(find("/none/model"), "/none/model");
  EXPECT_EQ(find("../none"), "../none");
  EXPECT_EQ(find("none.safetensors"), "none.safetensors");
}

TEST_F(CachedModel, Offline_SaysWhatIsMissing) {
  EXPECT_EQ(refusal("gpt2"),
            "there is no folder 'gpt2', and HF_HUB_OFFLINE allows no download of "
            "the model of this name: the Hugging Face cache " +
                settings_.cache + " does not have it");
  EXPECT_TRUE(says(refusal("openai/gpt2@v2"), "models--openai--gpt2, but not its revision 'v2'"));
  EXPECT_TRUE(says(testing::message_of([&] { find("openai/gpt2@v2"); }),
                   "`hf download openai/gpt2 --revision v2`"));
  fs::remove(snapshot() / "model-2-of-2.safetensors");
  EXPECT_TRUE(
      says(refusal("openai/gpt2"), "lacks model-2-of-2.safetensors in " + snapshot().string()));
  write(model_ / "blobs/e5.incomplete", "t");
  EXPECT_TRUE(says(refusal("openai/gpt2"), ", of which a download was interrupted"));
}

TEST_F(CachedModel, DanglingLink_IsMissing) {
  fs::remove(model_ / "blobs/e4");
  EXPECT_TRUE(says(refusal("openai/gpt2"), "lacks model-1-of-2.safetensors in "));
  EXPECT_EQ(find("openai/gpt2", ModelUse::kConfig), snapshot());
}

TEST_F(CachedModel, WithoutTokenizer_IsUsableOffline) {
  fs::remove(snapshot() / "tokenizer.json");
  EXPECT_EQ(find("openai/gpt2", ModelUse::kLanguageModel), snapshot());
  EXPECT_TRUE(says(refusal("openai/gpt2", ModelUse::kTokenizer), "lacks tokenizer.json in "));
  settings_.offline = false;  // the Hub is asked, and does not answer
  EXPECT_EQ(find("openai/gpt2", ModelUse::kLanguageModel), snapshot());
}

TEST_F(CachedModel, DamagedRevision_IsRefused) {
  for (const char* text :
       {"", "abc", "../../../../etc", "607a30d783dfa663caf39e06633721c8d4cfcd7"}) {
    write(model_ / "refs/main", text);
    EXPECT_TRUE(
        says(refusal("openai/gpt2"), "should hold a commit, but has '" + std::string(text) + "'"));
  }
}

TEST_F(CachedModel, IndexThatLeavesTheFolder_IsRefused) {
  write(model_ / "blobs/e3", R"({"weight_map": {"a": "../../../../etc/passwd"}})");
  EXPECT_THROW(find("openai/gpt2"), Error);
  EXPECT_EQ(cached_model_folder("openai/gpt2", ModelUse::kConfig, settings_), snapshot());
  EXPECT_EQ(cached_model_folder("openai/gpt3", ModelUse::kConfig, settings_), "");
}

}  // namespace
}  // namespace coupler::hub
