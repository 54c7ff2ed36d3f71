#include "cli/text/help_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <stdexcept>

#include "cli/text/words.h"

namespace coupler::cli {
namespace {

constexpr std::string_view kUsage = "usage: coupler ";
constexpr std::string_view kMoreUsage = "       coupler ";

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string_view::npos ? "" : std::string(text.substr(first));
}

size_t indent_of(std::string_view line) {
  return std::min(line.find_first_not_of(' '), line.size());
}

bool is_literal(std::string_view token) {
  return !token.empty() && token[0] != '-' &&
         std::all_of(token.begin(), token.end(), [](unsigned char c) {
           return std::islower(c) != 0 || c == '-' || c == '_' || c == '|';
         });
}

// Without backquotes and without the brackets and dots that mark optional and repeated tokens.
std::string bare(std::string token) {
  token.erase(std::remove_if(token.begin(), token.end(),
                             [](char c) { return c == '[' || c == ']' || c == '`'; }),
              token.end());
  if (token.size() > 3 && token.ends_with("...")) token.resize(token.size() - 3);
  return token;
}

HelpForm parse_form(const std::string& text) {
  HelpForm form;
  form.text = text;
  const std::vector<std::string> tokens = split(text, ' ');
  bool in_literals = true;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string token = bare(tokens[i]);
    const bool optional = tokens[i].starts_with('[');
    if (token.empty()) continue;
    if (token == "OPTION") {
      form.any_option = true;
      if (i + 3 < tokens.size() && tokens[i + 1] == "of") {
        form.any_option = false;
        form.options_of = bare(tokens[i + 3]);
        i += 3;
      }
    } else if (token == "|") {
      ++i;  // the alternative for this place
    } else if (token != "--" && token.starts_with('-')) {
      form.options.push_back(token);
      // Its value: [--option VALUE], or --option VALUE if it is required.
      const bool closed = tokens[i].find(']') != std::string::npos;
      if (!closed && i + 1 < tokens.size() && tokens[i + 1][0] != '[') ++i;
    } else if (in_literals && !optional && is_literal(token)) {
      form.literals.push_back(token);
      continue;
    } else {
      form.places.push_back(token);
    }
    in_literals = false;
  }
  return form;
}

bool is_example(std::string_view line) {
  const std::string text = trimmed(line);
  return indent_of(line) == 2 &&
         (text.starts_with("coupler ") || text.starts_with("sudo coupler "));
}

HelpWord parse_word(const std::string& line) {
  const std::string text = trimmed(line);
  const size_t gap = text.find("  ");
  HelpWord word;
  if (gap != std::string::npos) word.doc = trimmed(std::string_view(text).substr(gap));
  for (std::string name : split(text.substr(0, gap), ',')) {
    name = trimmed(name);
    const bool more = !word.names.empty() && !name.starts_with('-');
    if (more) {  // the comma belongs to the value: OP,...
      word.value += "," + name;
      continue;
    }
    const size_t blank = name.find(' ');
    word.names.push_back(name.substr(0, blank));
    if (blank != std::string::npos) word.value = name.substr(blank + 1);
  }
  return word;
}

HelpBlock parse_words(const std::vector<std::string>& lines, std::string title) {
  HelpBlock block;
  block.kind = HelpBlock::Kind::kWords;
  block.title = std::move(title);
  for (const std::string& line : lines) {
    if (indent_of(line) == 2) {
      block.words.push_back(parse_word(line));
    } else if (indent_of(line) > 2 && !block.words.empty()) {
      std::string& doc = block.words.back().doc;
      doc += (doc.empty() ? "" : " ") + trimmed(line);
    } else {
      throw std::invalid_argument(
          fmt::format("'{}' is not indented like the words around it", line));
    }
  }
  for (const HelpWord& word : block.words) {
    if (word.doc.empty())
      throw std::invalid_argument(fmt::format("'{}' has no description", word.names[0]));
  }
  return block;
}

HelpBlock parse_block(std::vector<std::string> lines) {
  HelpBlock block;
  if (is_example(lines[0])) {
    block.kind = HelpBlock::Kind::kExamples;
    for (const std::string& line : lines) block.examples.push_back(trimmed(line));
    return block;
  }
  if (indent_of(lines[0]) == 2) return parse_words(lines, "");
  if (lines.size() > 1 && lines[0].ends_with(':') && indent_of(lines[1]) == 2) {
    std::string title = lines[0].substr(0, lines[0].size() - 1);
    lines.erase(lines.begin());
    return parse_words(lines, std::move(title));
  }
  for (const std::string& line : lines) {
    if (indent_of(line) != 0)
      throw std::invalid_argument(fmt::format("'{}' is indented within a paragraph", line));
    block.text += (block.text.empty() ? "" : " ") + line;
  }
  return block;
}

}  // namespace

std::vector<const HelpWord*> HelpText::find(std::string_view name) const {
  std::vector<const HelpWord*> found;
  for (const HelpBlock& block : blocks) {
    for (const HelpWord& word : block.words) {
      if (std::find(word.names.begin(), word.names.end(), name) != word.names.end())
        found.push_back(&word);
    }
  }
  return found;
}

HelpText parse_help(std::string_view text) {
  HelpText help;
  std::vector<std::string> lines = split(text, '\n');
  size_t at = 0;
  std::vector<std::string> forms;
  for (; at < lines.size() && !lines[at].empty(); ++at) {
    const std::string& line = lines[at];
    if (line.starts_with(forms.empty() ? kUsage : kMoreUsage)) {
      forms.push_back(line.substr(kUsage.size()));
    } else if (!forms.empty() && indent_of(line) > kUsage.size()) {
      forms.back() += " " + trimmed(line);
    } else {
      throw std::invalid_argument(fmt::format("expected a usage line, found '{}'", line));
    }
  }
  for (const std::string& form : forms) help.forms.push_back(parse_form(form));
  std::vector<std::string> block;
  for (; at < lines.size(); ++at) {
    if (!lines[at].empty()) {
      block.push_back(lines[at]);
    } else if (!block.empty()) {
      help.blocks.push_back(parse_block(std::move(block)));
      block.clear();
    }
  }
  if (!block.empty()) throw std::invalid_argument("the last line has no line break");
  return help;
}

}  // namespace coupler::cli
