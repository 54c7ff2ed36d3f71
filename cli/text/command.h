// The tables of the command line: a Command lists its options, arguments and subcommands. Parsing
// is here; help, man pages (pages.h) and completion (completion.cc) are derived from the same
// tables. Single-threaded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace coupler::cli {

struct Option {
  // Its names and its value as help prints them: "-h, --help", "--output FILE", "-n N". A value in
  // lower case is literal: "--bind none|core|numa". Each value may have an entry of its own.
  std::string_view spec;
  std::string_view doc;         // sentences; "" hides it
  std::string_view group = {};  // the title of the list that shows it; "": the first one
  bool required = false;
  bool more = false;  // shown only by --help-all

  std::vector<std::string> names() const;
  std::string value() const;             // "FILE"; "" if it takes none
  bool is(std::string_view name) const;  // "_" and "-" are the same in long names
};

struct Arguments;

struct Command {
  std::string_view name;
  std::string_view summary;  // in its parent's list; "" hides the command, whose words are not read
  // What follows the options, one entry for each form: "SOURCE TARGET", "[DIR]", "PROGRAM
  // [ARGUMENT]..." (all words from the first that is not an option), "-- PROGRAM [ARGUMENT]...".
  std::vector<std::string_view> forms = {};
  std::vector<Option> options = {};
  bool config = false;              // also takes --config and -o
  Command (*hands_on)() = nullptr;  // also takes that command's options, for handing them on
  std::vector<Command> subcommands = {};
  // Paragraphs. A subcommand without a description is explained on its parent's page.
  std::vector<std::string_view> description = {};
  std::vector<std::string_view> notes = {};  // after the options
  std::vector<std::string_view> examples = {};
  int (*run)(const Arguments& arguments) = nullptr;  // null if it needs a subcommand

  bool has_page() const { return !description.empty(); }
  // With --config and -o, if it takes them, --help, and --help-all if some options need it.
  std::vector<Option> all_options() const;
};

// One form, taken apart.
struct Form {
  std::vector<std::string> required, optional;  // places, in order: "SOURCE", "TARGET"
  enum class Program { kNone, kNext, kAfterDashes } program = Program::kNone;
};
std::vector<Form> forms_of(const Command& command);  // at least one

// A command line that fits its command's table.
struct Arguments {
  std::string command;  // "config check"
  struct Given {
    Option option;
    std::string value, as_written;  // as_written: the option's name
  };
  std::vector<Given> given;            // in order, without --config and -o
  std::vector<std::string> places;     // SOURCE, TARGET
  std::vector<std::string> program;    // PROGRAM and its arguments; a hidden command's words
  std::vector<std::string> handed_on;  // options of `hands_on`, as written
  config::ConfigRequest config;

  bool has(std::string_view option) const;
  // The value of an option or a place; if it is not given, `otherwise`. Throws if an option is
  // given twice, with different values.
  std::string value(std::string_view option, const std::string& otherwise = {}) const;
  std::string place(size_t index, const std::string& otherwise = {}) const;
  // A value such as 4GiB, in bytes.
  uint64_t byte_size(std::string_view option) const;

  // Throws Error(kUsage) "COMMAND: problem". hint: by default, the command's --help.
  [[noreturn]] void refuse(const std::string& problem, const std::string& subject,
                           const std::string& hint = {}) const;
};

// Reads the words after the command's name. Throws Error(kUsage) naming the wrong word, and the
// nearest known option.
Arguments read_arguments(const Command& command, const std::string& name,
                         const std::vector<std::string>& words);

// Finds the subcommand that the words name, reads the rest, and runs it or prints its help. name:
// "" for the program. Returns the exit code.
int run_command(const Command& command, std::string name, std::vector<std::string> words);

}  // namespace coupler::cli
