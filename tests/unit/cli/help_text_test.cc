// The layout of help texts, and that the help of `coupler launch` documents all its options.
#include "cli/text/help_text.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "cli/commands.h"
#include "cli/launch/launch_options.h"

namespace coupler::cli {
namespace {

constexpr const char* kSample = R"(usage: coupler thing list [DIR | FILE] [--json]
       coupler thing copy FROM TO [--size SIZE]
                          [OPTION]...

Two lines
of text.

  list  says
        what is there

of one kind or another:
  -s, --size SIZE,...  how much
  --kind a|b
                       which

  coupler thing list
  coupler thing copy a b
)";

TEST(HelpText, IsTakenApart) {
  const HelpText help = parse_help(kSample);
  ASSERT_EQ(help.forms.size(), 2U);
  EXPECT_EQ(help.forms[0].literals, (std::vector<std::string>{"thing", "list"}));
  EXPECT_EQ(help.forms[0].places, (std::vector<std::string>{"DIR"}));
  EXPECT_EQ(help.forms[0].options, (std::vector<std::string>{"--json"}));
  EXPECT_FALSE(help.forms[0].any_option);
  EXPECT_EQ(help.forms[1].places, (std::vector<std::string>{"FROM", "TO"}));
  EXPECT_EQ(help.forms[1].options, (std::vector<std::string>{"--size"}));
  EXPECT_TRUE(help.forms[1].any_option);
  ASSERT_EQ(help.blocks.size(), 4U);
  EXPECT_EQ(help.blocks[0].text, "Two lines of text.");
  EXPECT_EQ(help.blocks[1].words[0].doc, "says what is there");
  EXPECT_EQ(help.blocks[2].title, "of one kind or another");
  EXPECT_EQ(help.blocks[2].words[0].names, (std::vector<std::string>{"-s", "--size"}));
  EXPECT_EQ(help.blocks[2].words[0].value, "SIZE,...");
  EXPECT_EQ(help.find("--kind").at(0)->doc, "which");
  EXPECT_EQ(help.blocks[3].examples.size(), 2U);
  EXPECT_TRUE(help.find("--nosuch").empty());
}

TEST(HelpText, OfAnotherLayout_IsAnError) {
  const std::string usage = "usage: coupler thing\n\n";
  EXPECT_THROW(parse_help("coupler thing\n"), std::invalid_argument);
  EXPECT_THROW(parse_help(usage + "  --word\n"), std::invalid_argument) << "without a description";
  EXPECT_THROW(parse_help(usage + "Text\n    further in\n"), std::invalid_argument);
  EXPECT_THROW(parse_help(usage + "  --word  means\nthis\n"), std::invalid_argument);
  EXPECT_THROW(parse_help(usage + "Text"), std::invalid_argument) << "without an end";
}

// Whether the option accepts any of these values.
bool takes_something(const LaunchWord& word) {
  for (const char* value : {"1", "core", "mpirun", "jobset", "bf16", "backend.use=single", "x"}) {
    try {
      LaunchOptions options;
      word.apply(options, value, word.name);
      return true;
    } catch (const Error&) {
      // Refused with this value, or listed only to be refused with an explanation.
    }
  }
  return false;
}

std::string with(std::string name, char from, char to) {
  std::replace(name.begin() + 2, name.end(), from, to);
  return name;
}

TEST(LaunchHelp, DocumentsWhatLaunchTakes) {
  const HelpText help = parse_help(kLaunchHelp);
  std::vector<std::string> known;
  for (const auto* table : {&launch_words(), &accelerate_words()}) {
    for (const LaunchWord& word : *table) {
      known.emplace_back(word.name);
      auto found = help.find(word.name);
      if (found.empty()) found = help.find(with(word.name, '-', '_'));
      EXPECT_EQ(found.empty(), !takes_something(word)) << word.name;
      if (!found.empty()) {
        EXPECT_EQ(found[0]->value.empty(), !word.takes_value) << word.name;
      }
    }
  }
  for (const HelpBlock& block : help.blocks) {
    for (const HelpWord& word : block.words) {
      for (const std::string& name : word.names) {
        const std::string ours = with(name, '_', '-');
        EXPECT_NE(std::find(known.begin(), known.end(), ours), known.end()) << name;
      }
    }
  }
}

}  // namespace
}  // namespace coupler::cli
