// HelpText: what `coupler COMMAND --help` prints, taken apart. That text is the one source of what
// a command takes: completion (complete.h) and man pages (man_page.h) are made of it. Its layout:
//
//   usage: coupler COMMAND word [--option VALUE] PLACE…   a line a form, continued further in
//
//   A paragraph.
//
//     --option VALUE  words: two blanks, name and value, two blanks or more, what it means,
//                     or on the next line, further in; a value in small letters is itself:
//                     none|core
//
//   a title:
//     …more words
//
//     coupler COMMAND …   examples, which are the last block
//
// Pure function, plain data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace coupler::cli {

// A word with a meaning of its own: an option, or one behind the command's name.
struct HelpWord {
  std::vector<std::string> names;  // "-h", "--help"
  std::string value;               // "FILE"; "" where it takes none
  std::string doc;
};

struct HelpBlock {
  enum class Kind { kParagraph, kWords, kExamples } kind = Kind::kParagraph;
  std::string title;  // of words
  std::string text;   // of a paragraph, on one line
  std::vector<HelpWord> words;
  std::vector<std::string> examples;
};

// One form of the command.
struct HelpForm {
  std::string text;                   // without "coupler "
  std::vector<std::string> literals;  // behind "coupler", the command first: "checkpoint", "list"
  std::vector<std::string> options;   // "--output"; those it names
  std::vector<std::string> places;    // "SOURCE", "TARGET", in their order; "--" before PROGRAM
  bool any_option = false;            // [OPTION]...: all that have a word
  std::string options_of;             // "launch": all of that command as well
};

struct HelpText {
  std::vector<HelpForm> forms;
  std::vector<HelpBlock> blocks;

  // The words of that name; several where each has a value of its own, as --via slurm.
  std::vector<const HelpWord*> find(std::string_view name) const;
};

// Throws std::invalid_argument naming the line that has another layout.
HelpText parse_help(std::string_view text);

}  // namespace coupler::cli
