// Embeddings against those of Python's sentence-transformers: of a small random BERT, and of the
// real all-MiniLM-L6-v2 if scripts/get-test-models has downloaded it.
#include <coupler/state_dict.h>
#include <coupler/text.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/process.h"
#include "fixture.h"

namespace coupler {
namespace {

std::vector<std::string> texts(const char* key) {
  std::vector<std::string> result;
  const nlohmann::json all = read_json(MODEL_TESTS "/texts.json");
  for (const std::string text : all.at(key)) {
    if (text.find_first_not_of(" \n") != std::string::npos) result.push_back(text);
  }
  return result;
}

at::Tensor python_embeddings(const std::string& file) {
  return SafeTensors::open(fixture(file)).tensor("embeddings");
}

TEST(SentenceEncoder, SmallBert_GivesPythonsEmbeddings) {
  for (const DeviceMap& map : {DeviceMap{{"", "cpu"}}, DeviceMap{{"", "disk"}},
                               DeviceMap{{"embeddings", "disk"}, {"encoder", "cpu"}}}) {
    const auto encoder = SentenceEncoder::open(fixture("bert"), {.device_map = map});
    EXPECT_EQ(encoder.width(), 32);
    for (const size_t batch : {1, 4, 100}) {
      EXPECT_LT(apart(encoder.encode(texts("table"), batch),
                      python_embeddings("bert/reference.safetensors")),
                1e-4)
          << map.to_json() << batch;
    }
  }
}

TEST(SentenceEncoder, NoSentences_GiveNoRows) {
  const auto encoder = SentenceEncoder::open(fixture("bert"));
  EXPECT_EQ(encoder.encode({}).sizes(), at::IntArrayRef({0, 32}));
}

TEST(SentenceEncoder, WrongFolder_IsRefusedWithWhatToDo) {
  expect_message([] { (void)SentenceEncoder::open(fixture("gpt2")); },
                 {"architecture 'gpt2' is not supported for embeddings; supported: bert"});
  const TestFolder empty;
  expect_message([&] { (void)SentenceEncoder::open(empty.path()); },
                 {"config.json cannot be read"});
  const TestFolder pooling;
  pooling.copy("bert");
  pooling.set("1_Pooling/config.json", "/pooling_mode", "lasttoken");
  expect_message([&] { (void)SentenceEncoder::open(pooling.path()); },
                 {"pooling mode 'lasttoken' is not supported", "mean, cls or max"});
  const TestFolder module;
  module.copy("bert");
  module.set("modules.json", "/2/type", "sentence_transformers.models.Dense");
  expect_message([&] { (void)SentenceEncoder::open(module.path()); },
                 {"models.Dense' is not supported"});
}

// 90 MB of weights, which are downloaded, not stored in the repository.
class MiniLm : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const named = std::getenv("COUPLER_TEST_MINILM");
    folder = named != nullptr ? named : COUPLER_SOURCE_DIR "/.deps/minilm/model";
    if (!std::filesystem::exists(folder + "/model.safetensors"))
      GTEST_SKIP() << "all-MiniLM-L6-v2 is not in " << folder
                   << ": run scripts/get-test-models to download it (83 MB)";
  }
  void expect_pythons(const SentenceEncoder& encoder, size_t batch) const {
    const std::vector<std::string> sentences = texts("sentences");
    ASSERT_EQ(sentences.size(), 100U);
    EXPECT_LT(apart(encoder.encode(sentences, batch), python_embeddings("minilm.safetensors")),
              1e-4);
  }
  std::string folder;
};

TEST_F(MiniLm, InMemory_GivesPythonsEmbeddings) {
  expect_pythons(SentenceEncoder::open(folder), 32);
}

TEST_F(MiniLm, OnTheDisk_GivesPythonsEmbeddings) {
  expect_pythons(SentenceEncoder::open(folder, {.device_map = DeviceMap{{"", "disk"}}}), 32);
}

uint64_t status_bytes(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(key, 0) == 0) return std::stoull(line.substr(key.size())) * 1024;
  }
  return 0;
}

// The next read comes from the disk, in pieces as large as the kernel likes.
void forget_pages(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  ASSERT_GE(file, 0) << path;
  EXPECT_EQ(::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), 0);
  ::close(file);
}

// 87 MiB of weights run with 64 MiB more than the process used before: max_memory is respected.
TEST_F(MiniLm, Budget64MiB_IsKept) {
  constexpr uint64_t kBudget = uint64_t{64} << 20;
  forget_pages(folder + "/model.safetensors");
  (void)SentenceEncoder::open(fixture("bert")).encode(texts("sentences"));  // libraries are warm
  (void)Tokenizer::open(folder);                  // reading it takes memory that the heap keeps
  std::ofstream("/proc/self/clear_refs") << "5";  // resets VmHWM
  const uint64_t before = resident_bytes();
  MaxMemory memory;
  memory.set("cpu", before + kBudget);
  const auto encoder =
      SentenceEncoder::open(folder, {.device_map = DeviceMap{{"", "disk"}}, .max_memory = memory});
  expect_pythons(encoder, 4);
  const uint64_t most = status_bytes("VmHWM:");
  EXPECT_LE(most, before + kBudget);
  RecordProperty("mib_above", static_cast<int>((most - before) >> 20));
}

TEST_F(MiniLm, Budget32MiB_IsRefusedWithWhatIsNeeded) {
  MaxMemory memory;
  memory.set("cpu", resident_bytes() + (uint64_t{32} << 20));
  expect_message(
      [&] {
        (void)SentenceEncoder::open(folder,
                                    {.device_map = DeviceMap{{"", "disk"}}, .max_memory = memory});
      },
      {"max_memory gives the CPU", "are needed", "embeddings.word_embeddings.weight"});
}

}  // namespace
}  // namespace coupler
