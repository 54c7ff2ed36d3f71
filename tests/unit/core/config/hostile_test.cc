// Malicious files: deep, large, broken at every byte.
#include <random>

#include "config/toml.h"
#include "loading.h"

namespace coupler::config {
namespace {

std::string repeat(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

TEST(HostileFile, DeepArrays_AreAnErrorWithPlace) {
  EXPECT_EQ(message_of({.file = "\nx = " + repeat("[", 100000)}),
            "train.toml:2:69: nested deeper than 64 levels\n  hint: Coupler's keys never nest that "
            "deep: look for a bracket that is never closed");
  EXPECT_NE(message_of({.file = "x = " + repeat("{a=", 100000)}).find("nested deeper"),
            std::string::npos);
}

TEST(HostileFile, DeepDottedKeys_AreAnError) {
  for (const std::string& text :
       {repeat("a.", 300000) + "a = 1\n", "[" + repeat("a.", 300000) + "a]\n",
        "x = {" + repeat("a .\"b\" . ", 50000) + "a = 1}\n",
        repeat("{" + repeat("a.", 40) + "a = ", 1000)}) {
    EXPECT_NE(message_of({.file = text}).find("nested deeper than 64 levels"), std::string::npos);
  }
}

TEST(HostileFile, LargerThanTheLimit_IsAnError) {
  EXPECT_EQ(message_of({.file = "#" + std::string(kMaxTomlBytes, 'x')}),
            "train.toml: larger than 1048576 bytes\n  hint: is this a configuration file?");
}

TEST(FindDeepNesting, BracketsAndDotsInStringsAndComments_DoNotCount) {
  const std::string deep = repeat("[.", 100);
  for (const std::string& text :
       {"# " + deep + "\nx = 1", "x = \"" + deep + "\"", "x = '" + deep + "'",
        "x = \"\"\"\n" + deep + "\n\"\" " + deep + "\"\"\"\"\"", "x = '''\n'" + deep + "\n'''",
        "x = \"\\\"" + deep + "\"", repeat("[a.b.c]\nx = 1.5\n", 100),
        "x = [" + repeat("1.5, ", 100) + "]\n", "x = [\n" + repeat("[1.5],\n", 100) + "]\n"}) {
    EXPECT_FALSE(find_deep_nesting(text).has_value()) << text.substr(0, 40);
  }
}

TEST(FindDeepNesting, JustWithinTheLimit_Passes) {
  EXPECT_FALSE(find_deep_nesting("x = " + repeat("[", 64) + repeat("]", 64)).has_value());
  EXPECT_TRUE(find_deep_nesting("x = " + repeat("[", 65) + repeat("]", 65)).has_value());
}

TEST(HostileFile, BrokenTableHeaders_AreErrorsThatNameTheLine) {
  for (const std::string header : {"[]", "[=]", "[.a]", "[a.]", "[a..b]", "[[]]", "[[=]]", "[a",
                                   "[[a]", "[ # ]", "[\"\"\"a\"\"\"]", "[,]", "[@]"}) {
    const std::string message = message_of({.file = "\n" + header + "\nx = 1\n"});
    EXPECT_EQ(message.substr(0, 13), "train.toml:2:") << header << ": " << message;
    EXPECT_NE(message.find("invalid TOML"), std::string::npos) << header << ": " << message;
  }
}

// Whatever the bytes, reading gives entries or throws an Error.
void read_any(const std::string& text) {
  try {
    read_toml(text, "fuzz.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_EQ(std::string(error.what()).substr(0, 10), "fuzz.toml:");
  }
}

const std::string kSample =
    "# comment\n[backend]\nuse = \"mpi\" # more\ntimeout = 1_000.5e1\nwhen = 1979-05-27T07:32:00Z\n"
    "plugin_path = ['a', \"\"\"b\\\n  c\"\"\"]\n[backend.x]\na.\"b c\".d = { e = 0xff, f = [1, "
    "[2]] }\n"
    "[[list]]\nx = true\n[[list]]\nx = inf\n";

TEST(HostileFile, CutAtEveryByte_EndsInEntriesOrError) {
  for (size_t length = 0; length <= kSample.size(); ++length) read_any(kSample.substr(0, length));
}

TEST(HostileFile, RandomlyChangedBytes_EndInEntriesOrError) {
  std::mt19937 random(20240501);
  const std::string pieces = "\"'[]{}=.,#\n\\x0_-+:TZe \xff\xc3\x28";
  for (int round = 0; round < 5000; ++round) {
    std::string text = kSample;
    const size_t changes = random() % 6 + 1;
    for (size_t i = 0; i < changes; ++i) {
      const char piece = pieces[random() % pieces.size()];
      const size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text[at] = piece;
      } else {
        text.insert(at, 1, piece);
      }
    }
    SCOPED_TRACE(text);
    read_any(text);
  }
}

}  // namespace
}  // namespace coupler::config
