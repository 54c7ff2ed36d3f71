// Tokenizers against the results of Python's tokenizers for a table of texts, and for numbers that
// no text produces.
#include <coupler/tokenizer.h>

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
                                           "metaspace", "digits", "word-piece"),
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
      {"/model/type", "Unigram", {"'Unigram' is not supported; supported: BPE, WordPiece"}},
      {"/normalizer", {{"type", "Precompiled"}}, {"normalizer: 'Precompiled'", "NFKC"}},
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

}  // namespace
}  // namespace coupler
