// Tokenizers against the results of Python's tokenizers for a table of texts, and for numbers that
// no text produces.
#include <coupler/tokenizer.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "fixture.h"

namespace coupler {
namespace {

class Tokenizers : public ::testing::TestWithParam<const char*> {
 protected:
  Tokenizers()
      : folder(fixture(std::string("tokenizers/") + GetParam())),
        tokenizer(Tokenizer::open(folder)),
        table(read_json(folder + "/table.json")) {}

  std::string folder;
  Tokenizer tokenizer;
  nlohmann::json table;
};

TEST_P(Tokenizers, Table_EncodesAndDecodesAsPython) {
  for (const auto& row : table) {
    const std::vector<int64_t> ids = row["ids"];
    if (row.contains("text")) {
      const std::string text = row["text"];
      EXPECT_EQ(tokenizer.encode(text), ids) << row["text"];
      EXPECT_EQ(tokenizer.encode(text, false), row["plain"].get<std::vector<int64_t>>())
          << row["text"];
    }
    EXPECT_EQ(tokenizer.decode(ids), row["decoded"].get<std::string>()) << row["ids"];
    EXPECT_EQ(tokenizer.decode(ids, false), row["with_special"].get<std::string>()) << row["ids"];
  }
  EXPECT_GT(table.size(), 80U);
}

TEST_P(Tokenizers, Stream_GivesTheWholeTextInPieces) {
  for (const auto& row : table) {
    const std::vector<int64_t> ids = row["ids"];
    TextStream stream(tokenizer);
    std::string text;
    for (const int64_t id : ids) text += stream.add(id);
    EXPECT_EQ(text + stream.finish(), tokenizer.decode(ids)) << row["ids"];
  }
}

INSTANTIATE_TEST_SUITE_P(, Tokenizers,
                         ::testing::Values("byte-level", "byte-level-prefix", "llama3", "llama2",
                                           "metaspace", "digits", "word-piece", "unigram-t5",
                                           "unigram-bytes", "gemma"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& character : name)
                             character = character == '-' ? '_' : character;
                           return name;
                         });

TEST(Tokenizer, Emoji_ComesOutOfTheStreamOnceItIsWhole) {
  const auto tokenizer = Tokenizer::open(fixture("tokenizers/byte-level"));
  const std::vector<int64_t> ids = tokenizer.encode("\U0001F9ED");
  ASSERT_GT(ids.size(), 1U);  // it has no token of its own
  TextStream stream(tokenizer);
  for (size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(stream.add(ids[i]), "");
  EXPECT_EQ(stream.add(ids.back()), "\U0001F9ED");
}

void append_utf8(std::string& text, uint32_t code) {
  const auto rest = [&](int shift) { text += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | code >> 6);
    rest(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0 | code >> 12);
    rest(6);
    rest(0);
  } else {
    text += static_cast<char>(0xF0 | code >> 18);
    rest(12);
    rest(6);
    rest(0);
  }
}

// With bytes for what the vocabulary lacks, and no normalizer that loses anything, any text
// survives.
TEST(Tokenizer, ByteFallback_DecodesToTheSameText) {
  std::mt19937 random(7);
  const auto below = [&](uint32_t count) { return static_cast<uint32_t>(random() % count); };
  for (const char* name : {"unigram-bytes", "gemma"}) {
    const auto tokenizer = Tokenizer::open(fixture(std::string("tokenizers/") + name));
    for (int round = 0; round < 200; ++round) {
      std::string text;
      for (uint32_t left = below(40); left > 0; --left) {
        constexpr uint32_t kEnds[] = {0x80, 0x500, 0x3000, 0xA000, 0xD800, 0x20000};
        const uint32_t code = below(4) == 0 ? ' ' : 1 + below(kEnds[below(6)] - 1);
        // ▁ stands for a space, and < may begin a special token or byte.
        if (code == 0x2581 || code == '<' || (code >= 0xD800 && code < 0xE000)) continue;
        append_utf8(text, code);
      }
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false)), text) << name;
      TextStream stream(tokenizer);
      std::string streamed;
      for (const int64_t id : tokenizer.encode(text, false)) streamed += stream.add(id);
      EXPECT_EQ(streamed + stream.finish(), text) << name;
    }
  }
}

TEST(Tokenizer, BytesThatAreNoUtf8_CountAsReplacementCharacters) {
  const auto tokenizer = Tokenizer::open(fixture("tokenizers/byte-level"));
  EXPECT_EQ(tokenizer.encode("a\xff\xc3z"), tokenizer.encode("a\uFFFD\uFFFDz"));
}

TEST(Tokenizer, Most_LeavesTheEndOfTheTextOut) {
  const auto tokenizer = Tokenizer::open(fixture("tokenizers/word-piece"));
  const std::vector<int64_t> all = tokenizer.encode("copies of the Work");
  const std::vector<int64_t> some = tokenizer.encode("copies of the Work", true, 4);
  ASSERT_EQ(some.size(), 4U);
  EXPECT_EQ(some[1], all[1]);
  EXPECT_EQ(some.back(), all.back());
}

TEST(Tokenizer, Names_AreFoundBothWays) {
  const auto tokenizer = Tokenizer::open(fixture("tokenizers/llama2"));
  EXPECT_EQ(tokenizer.id_of("</s>"), 2);
  EXPECT_EQ(tokenizer.token_of(2), "</s>");
  EXPECT_EQ(tokenizer.id_of("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.token_of(tokenizer.size()), std::nullopt);
}

TEST(Tokenizer, WrongInput_IsRefusedWithWhatToDo) {
  const TestFolder empty;
  expect_message([&] { Tokenizer::open(empty.path()); },
                 {"has no tokenizer.json", "save_pretrained"});
  empty.write("tokenizer.model", "x");
  expect_message([&] { Tokenizer::open(empty.path()); },
                 {"another kind of tokenizer (tokenizer.model)", "save_pretrained"});
  empty.write("tokenizer.json", "{");
  expect_message([&] { Tokenizer::open(empty.path()); }, {"tokenizer.json is not valid JSON"});

  const struct {
    const char* key;
    nlohmann::json value;
    std::vector<std::string> message;
  } cases[] = {
      {"/model/type",
       "WordLevel",
       {"'WordLevel' is not supported; supported: BPE, Unigram, WordPiece"}},
      {"/normalizer", {{"type", "Nmt"}}, {"normalizer: 'Nmt'", "NFKC", "Precompiled"}},
      {"/normalizer", {{"type", "Precompiled"}}, {"normalizer: 'precompiled_charsmap' is missing"}},
      {"/normalizer",
       {{"type", "Precompiled"}, {"precompiled_charsmap", "no base64"}},
       {"'precompiled_charsmap' is not base64"}},
      {"/normalizer",
       {{"type", "Precompiled"}, {"precompiled_charsmap", "/////w=="}},
       {"'precompiled_charsmap' has a wrong size"}},
      {"/pre_tokenizer", {{"type", "UnicodeScripts"}}, {"'UnicodeScripts'", "ByteLevel"}},
      {"/decoder", {{"type", "CTC"}}, {"decoder: 'CTC'", "Metaspace"}},
      {"/post_processor", {{"type", "Other"}}, {"post_processor: 'Other'", "TemplateProcessing"}},
      {"/model/merges/0",
       {"nobody", "knows"},
       {"merges", "'nobody", "which is not in the vocabulary"}},
      {"/model/merges/0", 5, {"'merges' has 5, which is not a pair"}},
      {"/model/vocab/twice", 7, {"'vocab' gives the id 7 to"}},
      {"/model/vocab", {{"a", "b"}}, {"'vocab' gives 'a' the id"}},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}},
       {"the pattern '(a' cannot be used"}},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Sideways"}},
       {"'behavior' is 'Sideways'", "MergedWithNext"}},
  };
  for (const auto& wrong : cases) {
    const TestFolder folder;
    folder.copy("tokenizers/byte-level");
    folder.set("tokenizer.json", wrong.key, wrong.value);
    expect_message([&] { Tokenizer::open(folder.path()); }, wrong.message);
  }
}

TEST(Tokenizer, WrongUnigram_IsRefusedWithWhatToDo) {
  const struct {
    const char* key;
    nlohmann::json value;
    std::vector<std::string> message;
  } cases[] = {
      {"/model/unk_id", 5000, {"'unk_id' is 5000, but there are 420 tokens"}},
      {"/model/unk_id", -1, {"'unk_id' is -1"}},
      {"/model/vocab/7", "x", {"'vocab' has \"x\", which is not a token and its score"}},
      {"/model/vocab/7", {"x", "y"}, {"'vocab' gives 'x' the score \"y\""}},
      {"/model/vocab", 5, {"'vocab' is not a list of tokens"}},
      {"/model/vocab", {{"a", 1}}, {"'vocab' is not a list of tokens"}},
  };
  for (const auto& wrong : cases) {
    const TestFolder folder;
    folder.copy("tokenizers/unigram-t5");
    folder.set("tokenizer.json", wrong.key, wrong.value);
    expect_message([&] { Tokenizer::open(folder.path()); }, wrong.message);
  }
  const TestFolder folder;
  folder.copy("tokenizers/unigram-t5");
  folder.set("tokenizer.json", "/model/unk_id", nullptr);
  const auto tokenizer = Tokenizer::open(folder.path());
  EXPECT_FALSE(tokenizer.encode("copies").empty());
  expect_message([&] { (void)tokenizer.encode("\u0f00"); },
                 {"a character without a token", "no 'unk_id'"});
}

// A damaged table of replacements gives other text, never a read outside of it.
TEST(Tokenizer, DamagedCharsmaps_AreReadWithinTheirBounds) {
  const nlohmann::json whole = read_json(fixture("tokenizers/unigram-t5/tokenizer.json"));
  const nlohmann::json::json_pointer key("/normalizer/normalizers/0/precompiled_charsmap");
  const std::string table = whole[key];
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    std::string damaged = table;
    for (int i = 0; i < 30; ++i)
      damaged[8 + random() % (damaged.size() - 12)] = "A/z9"[random() % 4];
    const TestFolder folder;
    nlohmann::json document = whole;
    document[key] = damaged;
    folder.write("tokenizer.json", document.dump());
    try {
      const auto tokenizer = Tokenizer::open(folder.path());
      for (const auto& row : read_json(fixture("tokenizers/unigram-t5/table.json"))) {
        if (row.contains("text")) (void)tokenizer.encode(row["text"].get<std::string>());
      }
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("precompiled_charsmap"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace coupler
