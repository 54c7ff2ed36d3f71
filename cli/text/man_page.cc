#include "cli/text/man_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "cli/text/help_text.h"

namespace coupler::cli {
namespace {

// Decodes the UTF-8 code point at text[at] and moves `at` past it.
uint32_t next_code_point(std::string_view text, size_t& at) {
  const auto first = static_cast<unsigned char>(text[at++]);
  const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
  uint32_t point = more == 0 ? first : first & (0x3fU >> static_cast<unsigned>(more));
  for (int i = 0; i < more && at < text.size(); ++i)
    point = (point << 6U) | (static_cast<unsigned char>(text[at++]) & 0x3fU);
  return point;
}

// Escapes text so that roff sees no requests in it and hyphens can be copied.
std::string roff(std::string_view text) {
  std::string result = !text.empty() && (text[0] == '.' || text[0] == '\'') ? "\\&" : "";
  for (size_t at = 0; at < text.size();) {
    const uint32_t point = next_code_point(text, at);
    switch (point) {
      case '\\':
        result += "\\e";
        break;
      case '-':
        result += "\\-";
        break;
      case '\'':
        result += "\\(aq";
        break;
      case '`':
        result += "\\(ga";
        break;
      case '^':
        result += "\\(ha";
        break;
      case '~':
        result += "\\(ti";
        break;
      default:
        result += point < 0x80 ? std::string(1, static_cast<char>(point))
                               : fmt::format("\\[u{:04X}]", point);
    }
  }
  return result;
}

std::string page_name(std::string_view command) {
  std::string name = command.empty() ? "coupler" : fmt::format("coupler-{}", command);
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

std::string word_list(const HelpBlock& block) {
  std::string text;
  for (const HelpWord& word : block.words) {
    std::string names;
    for (const std::string& name : word.names)
      names += fmt::format("{}\\fB{}\\fR", names.empty() ? "" : ", ", roff(name));
    const std::string value =
        word.value.empty() ? "" : fmt::format(" \\fI{}\\fR", roff(word.value));
    text += fmt::format(".TP\n{}{}\n{}\n", names, value, roff(word.doc));
  }
  return text;
}

bool has_options(const HelpBlock& block) {
  return std::any_of(block.words.begin(), block.words.end(),
                     [](const HelpWord& word) { return word.names[0][0] == '-'; });
}

// Paragraphs before the first option are the description; later ones are notes.
std::string body(const HelpText& help) {
  std::string text = ".SH DESCRIPTION\n";
  std::string section = "DESCRIPTION";
  bool begins = true;  // at the start of a section, where a paragraph needs no request
  const auto enter = [&](const std::string& name) {
    if (section == name) return;
    section = name;
    text += fmt::format(".SH {}\n", name);
    begins = true;
  };
  for (const HelpBlock& block : help.blocks) {
    switch (block.kind) {
      case HelpBlock::Kind::kParagraph:
        if (section != "DESCRIPTION") enter("NOTES");
        text += fmt::format("{}{}\n", begins ? "" : ".PP\n", roff(block.text));
        break;
      case HelpBlock::Kind::kWords:
        if (section != "DESCRIPTION" || has_options(block)) enter("OPTIONS");
        if (!block.title.empty()) text += fmt::format(".SS {}\n", roff(block.title));
        text += word_list(block);
        break;
      case HelpBlock::Kind::kExamples:
        enter("EXAMPLES");
        text += ".nf\n";
        for (const std::string& example : block.examples) text += roff(example) + "\n";
        text += ".fi\n";
        break;
    }
    begins = false;
  }
  return text;
}

std::string page(std::string_view command, std::string_view summary, std::string_view help_text,
                 const std::string& see_also, const std::string& version) {
  const HelpText help = parse_help(help_text);
  const std::string name = page_name(command);
  std::string text =
      fmt::format(".TH {} 1 \"\" \"Coupler {}\" \"Coupler\"\n", upper(name), version);
  text += fmt::format(".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.nf\n", roff(name), roff(summary));
  for (const HelpForm& form : help.forms) text += fmt::format("coupler {}\n", roff(form.text));
  return text + ".fi\n" + body(help) + ".SH SEE ALSO\n" + see_also;
}

std::string reference(std::string_view command) {
  return fmt::format("\\fB{}\\fR(1)", roff(page_name(command)));
}

}  // namespace

std::vector<ManPage> man_pages(const std::vector<CommandHelp>& helps, const std::string& main_help,
                               const std::string& version) {
  std::string all;
  for (const CommandHelp& help : helps)
    all += fmt::format("{}{}", all.empty() ? "" : ",\n", reference(help.name));
  std::vector<ManPage> pages = {
      {"coupler.1",
       page("", "distributed training in C++ over any backend", main_help, all + "\n", version)}};
  for (const CommandHelp& help : helps) {
    pages.push_back({page_name(help.name) + ".1",
                     page(help.name, help.summary, help.text, reference("") + "\n", version)});
  }
  return pages;
}

}  // namespace coupler::cli
