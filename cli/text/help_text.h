// HelpText: what `coupler COMMAND --help` prints, parsed. Completion (complete.h) and man pages
// (man_page.h) are generated from that text alone. Its layout:
//
//   usage: coupler COMMAND word [--option VALUE] PLACE…   one line per form, continued with indent
//
//   A paragraph.
//
//     --option VALUE  words: two blanks, name and value, two blanks or more, description;
//                     or the description on the next line, indented further. A value in
//                     lower case is literal: none|core
//
//   a title:
//     …more words
//
//     coupler COMMAND …   examples, which are the last block
//
// Pure functions and plain data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace coupler::cli {

// A documented word: an option, or a literal after the command's name.
struct HelpWord {
  std::vector<std::string> names;  // "-h", "--help"
  std::string value;               // "FILE"; "" if it takes none
  std::string doc;
};

struct HelpBlock {
  enum class Kind { kParagraph, kWords, kExamples } kind = Kind::kParagraph;
  std::string title;  // of kWords
  std::string text;   // of kParagraph, joined into one line
  std::vector<HelpWord> words;
  std::vector<std::string> examples;
};

// One form of the command.
struct HelpForm {
  std::string text;                   // without "coupler "
  std::vector<std::string> literals;  // after "coupler", the command first: "checkpoint", "list"
  std::vector<std::string> options;   // the named ones: "--output"
  std::vector<std::string> places;    // "SOURCE", "TARGET", in order; "--" before PROGRAM
  bool any_option = false;            // [OPTION]...: every documented option
  std::string options_of;             // "launch": also every option of that command
};

struct HelpText {
  std::vector<HelpForm> forms;
  std::vector<HelpBlock> blocks;

  // The words with that name; several if each value has its own entry, such as --via slurm.
  std::vector<const HelpWord*> find(std::string_view name) const;
};

// Throws std::invalid_argument naming the line that breaks the layout.
HelpText parse_help(std::string_view text);

}  // namespace coupler::cli
