// The tables of the command line: reading, help and man pages; and that what `coupler launch`
// documents is what it takes.
#include "cli/text/command.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "cli/launch/launch_options.h"
#include "cli/text/pages.h"
#include "refusal.h"

namespace coupler::cli {
namespace {

using Words = std::vector<std::string>;

Command thing() {
  const Option json = {"--json", "print JSON"};
  return {.name = "thing",
          .summary = "do things",
          .subcommands = {{.name = "list",
                           .summary = "say what is there",
                           .forms = {"[DIR | FILE]"},
                           .options = {json}},
                          {.name = "copy",
                           .summary = "copy what is there",
                           .forms = {"FROM TO"},
                           .options = {{"-s, --some_size SIZE,...", "how much"},
                                       {"--kind a|b", "which", "of one kind or another"},
                                       {"--secret", ""},
                                       {.spec = "--must N", .doc = "needed", .required = true},
                                       json}}},
          .description = {"Two lines of text."},
          .notes = {"A note."},
          .examples = {"coupler thing list", "coupler thing copy a b"}};
}

const Command& copy(const Command& command) { return command.subcommands[1]; }

Arguments read_copy(const Words& words) {
  const Command command = thing();
  return read_arguments(copy(command), "thing copy", words);
}

std::string refused_copy(const Words& words) {
  return refusal([&] { read_copy(words); });
}

TEST(Command, Options_AreTakenApart) {
  const Command command = thing();
  const Option& size = copy(command).options[0];
  EXPECT_EQ(size.names(), (Words{"-s", "--some_size"}));
  EXPECT_EQ(size.value(), "SIZE,...");
  EXPECT_TRUE(size.is("--some-size"));
  EXPECT_FALSE(size.is("--some"));
  const std::vector<Form> forms = forms_of(command.subcommands[0]);
  ASSERT_EQ(forms.size(), 1U);
  EXPECT_EQ(forms[0].optional, Words{"DIR"});
  EXPECT_EQ(forms_of(copy(command))[0].required, (Words{"FROM", "TO"}));
}

TEST(Words, Split_KeepsEmptyParts) {
  EXPECT_EQ(split("8,64K,", ','), (Words{"8", "64K", ""}));
  EXPECT_EQ(split("none", '|'), Words{"none"});
  EXPECT_EQ(split("", ','), Words{""});
}

TEST(Command, Words_AreRead_InEverySpelling) {
  for (const Words& words :
       {Words{"a", "b", "--some-size", "8", "--must=1"}, Words{"-s8", "a", "--must", "1", "b"},
        Words{"--some_size=8", "--must=1", "a", "b", "--some_size", "8"}}) {
    const Arguments arguments = read_copy(words);
    EXPECT_EQ(arguments.places, (Words{"a", "b"}));
    EXPECT_EQ(arguments.value("-s"), "8");
    EXPECT_EQ(arguments.value("--must"), "1");
    EXPECT_EQ(arguments.value("--kind", "a"), "a");
    EXPECT_FALSE(arguments.has("--json"));
  }
}

TEST(Command, WrongWords_AreRefused_NamingTheWord) {
  EXPECT_SAYS(refused_copy({"--jsn"}),
              "thing copy: unknown argument '--jsn'; did you mean '--json'?");
  EXPECT_SAYS(refused_copy({"--json=yes"}), "--json takes no value, but 'yes' was given");
  EXPECT_SAYS(refused_copy({"a", "b", "--must"}), "--must needs a value");
  EXPECT_SAYS(refused_copy({"a", "b", "--must", "--json"}), "--must needs a value");
  EXPECT_SAYS(refused_copy({"a", "b"}), "--must N is missing");
  EXPECT_SAYS(refused_copy({"a"}), "TO is missing after 'a'");
  EXPECT_SAYS(refused_copy({}), "FROM and TO are missing");
  EXPECT_SAYS(refused_copy({"a", "b", "c"}), "'c' is one argument too many");
  EXPECT_SAYS(refused_copy({"a", "b", "--", "c"}), "'c' is one argument too many");
  EXPECT_SAYS(refusal([] {
                read_copy({"a", "b", "--must=1", "--must=2"}).value("--must");
              }),
              "--must is given twice: '1' and '2'");
}

TEST(Command, Program_TakesTheRestOfTheLine) {
  const Command next = {.name = "run",
                        .summary = "run",
                        .forms = {"PROGRAM [ARGUMENT]..."},
                        .options = {{"-n N", "number"}}};
  EXPECT_EQ(read_arguments(next, "run", {"-n", "2", "./train", "-n", "3", "--", "x"}).program,
            (Words{"./train", "-n", "3", "--", "x"}));
  EXPECT_EQ(read_arguments(next, "run", {"-n2", "--", "-odd"}).program, Words{"-odd"});
  const Command after = {
      .name = "try", .summary = "try", .forms = {"-- PROGRAM [ARGUMENT]...", "PATH"}};
  EXPECT_EQ(read_arguments(after, "try", {"--", "./train", "x"}).program, (Words{"./train", "x"}));
  EXPECT_EQ(read_arguments(after, "try", {"file"}).places, Words{"file"});
  EXPECT_SAYS(refusal([&] {
                read_arguments(after, "try", {"file", "--", "x"});
              }),
              "'file' is one argument too many");
  EXPECT_SAYS(refusal([&] { read_arguments(after, "try", {"--"}); }),
              "no program was given\n  hint: a program comes after --: coupler try -- ./program");
}

TEST(Command, Help_ShowsTheTable) {
  EXPECT_EQ(help_text(thing(), "thing"),
            "usage: coupler thing list [DIR | FILE] [--json]\n"
            "       coupler thing copy FROM TO [OPTION]...\n"
            "\n"
            "Two lines of text.\n"
            "\n"
            "  list  say what is there\n"
            "  copy  copy what is there\n"
            "\n"
            "  --json      print JSON\n"
            "  -s, --some_size SIZE,...\n"
            "              how much\n"
            "  --must N    needed\n"
            "  -h, --help  print this help\n"
            "\n"
            "of one kind or another:\n"
            "  --kind a|b  which\n"
            "\n"
            "A note.\n"
            "\n"
            "  coupler thing list\n"
            "  coupler thing copy a b\n");
}

// Whether the option accepts any of these values.
bool takes_something(const LaunchOption& one) {
  for (const char* value : {"1", "3", "core", "node", "none", "mpirun", "slurm", "jobset", "bf16",
                            "true", "full_shard", "rank=1", "backend.use=single", "x"}) {
    try {
      LaunchOptions options;
      one.apply(options, value, one.option.names()[0]);
      return true;
    } catch (const Error&) {
      // Refused with this value, or listed only to be refused with an explanation.
    }
  }
  return false;
}

TEST(LaunchHelp, DocumentsWhatLaunchTakes) {
  const Command launch = {.name = "launch",
                          .summary = "start",
                          .forms = {"PROGRAM [ARGUMENT]..."},
                          .options = launch_options(),
                          .description = {"Text."}};
  const std::string help = help_text(launch, "launch");
  const std::string all = help_text(launch, "launch", true);
  std::string man;
  for (const ManPage& page : man_pages({.name = "coupler", .subcommands = {launch}}, "1")) {
    if (page.file == "coupler-launch.1") man = page.text;
  }
  for (const auto* table :
       {&own_launch_options(), &torchrun_options(), &deepspeed_options(), &accelerate_options()}) {
    for (const LaunchOption& one : *table) {
      const std::string spec(one.option.spec);
      const bool listed = !one.option.doc.empty();
      EXPECT_TRUE(!listed || takes_something(one)) << spec;
      EXPECT_EQ(all.find("\n  " + spec) != std::string::npos, listed) << spec;
      EXPECT_EQ(help.find("\n  " + spec) != std::string::npos, listed && !one.option.more) << spec;
      std::string name = one.option.names()[0];
      for (size_t at = 0; (at = name.find('-', at)) != std::string::npos; at += 2)
        name.insert(at, "\\");
      EXPECT_EQ(man.find("\n\\fB" + name) != std::string::npos, listed && !one.option.more) << spec;
    }
  }
}

}  // namespace
}  // namespace coupler::cli
