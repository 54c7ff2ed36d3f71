#include "cli/text/pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string_view>
#include <utility>

#include "cli/text/output.h"

namespace coupler::cli {
namespace {

constexpr size_t kMostNamed = 4;  // options in a usage line; more are "[OPTION]..."

struct List {
  std::string title;
  struct Entry {
    std::string names, value, doc;
  };
  std::vector<Entry> entries;
};

// A page, before it is laid out.
struct Page {
  std::vector<std::string> usage;  // without "coupler "
  std::vector<List> lists;         // of subcommands, then of options
};

std::string joined(const std::string& name, std::string_view rest) {
  return name.empty() || rest.empty() ? name + std::string(rest) : fmt::format("{} {}", name, rest);
}

std::string usage_of(const Command& command, const std::string& name, std::string_view form) {
  std::string options;
  if (command.options.size() > kMostNamed) {
    options = " [OPTION]...";
  } else {
    std::vector<Option> all = command.all_options();
    all.pop_back();  // --help
    for (const Option& option : all) {
      if (option.doc.empty()) continue;
      const bool repeats = option.value() == "KEY=VALUE";
      options += option.required ? fmt::format(" {}", option.spec)
                                 : fmt::format(" [{}]{}", option.spec, repeats ? "..." : "");
    }
  }
  if (command.hands_on != nullptr)
    options += fmt::format(" [OPTION of `coupler {}`]...", command.hands_on().name);
  const bool program = form.find("PROGRAM") != std::string_view::npos;
  return program ? joined(name + options, form) : joined(name, form) + options;
}

void add_usage(Page& page, const Command& command, const std::string& name) {
  if (command.run != nullptr && command.forms.empty())
    page.usage.push_back(usage_of(command, name, ""));
  for (const std::string_view form : command.forms)
    page.usage.push_back(usage_of(command, name, form));
}

void add_options(Page& page, const std::vector<Option>& options, bool all) {
  for (const Option& option : options) {
    if (option.doc.empty() || (option.more && !all)) continue;
    auto list = std::find_if(page.lists.begin(), page.lists.end(),
                             [&](const List& one) { return one.title == option.group; });
    if (list == page.lists.end()) {
      page.lists.push_back({std::string(option.group), {}});
      list = page.lists.end() - 1;
    }
    const std::string value = option.value();
    const std::string names(
        option.spec.substr(0, option.spec.size() - (value.empty() ? 0 : value.size() + 1)));
    if (std::none_of(list->entries.begin(), list->entries.end(), [&](const List::Entry& entry) {
          return entry.names == names && entry.value == value;
        }))
      list->entries.push_back({names, value, std::string(option.doc)});
  }
}

// Subcommands without a page of their own are explained on this one.
Page page_of(const Command& command, const std::string& name, bool all = false) {
  Page page;
  List subcommands{command.forms.empty() ? "" : "commands", {}};
  std::vector<Option> options = command.all_options();
  add_usage(page, command, name);
  for (const Command& sub : command.subcommands) {
    if (sub.summary.empty()) continue;
    subcommands.entries.push_back({std::string(sub.name), "", std::string(sub.summary)});
    // COMMAND in the usage stands for those with pages.
    if (command.forms.empty() || !sub.has_page()) add_usage(page, sub, joined(name, sub.name));
    if (sub.has_page()) continue;
    const std::vector<Option> more = sub.all_options();
    options.insert(options.end() - 1, more.begin(), more.end() - 1);  // before --help
  }
  add_options(page, options, all);
  if (!subcommands.entries.empty()) page.lists.insert(page.lists.begin(), subcommands);
  return page;
}

// Without line breaks within brackets.
std::string wrapped_usage(std::string usage, size_t used) {
  constexpr char kBound = '\1';
  int depth = 0;
  for (char& c : usage) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (depth > 0 && c == ' ') c = kBound;
  }
  usage = wrapped(usage, used, std::string(used + 4, ' '));
  std::replace(usage.begin(), usage.end(), kBound, ' ');
  return usage;
}

std::string list_text(const List& list) {
  constexpr size_t kWidest = 22;
  const auto head = [](const List::Entry& entry) { return joined(entry.names, entry.value); };
  size_t widest = 0;
  for (const List::Entry& entry : list.entries) {
    if (head(entry).size() <= kWidest) widest = std::max(widest, head(entry).size());
  }
  const size_t indent = 2 + widest + 2;
  std::string text = list.title.empty() ? "" : list.title + ":\n";
  for (const List::Entry& entry : list.entries) {
    const std::string name = head(entry);
    text += name.size() <= widest ? fmt::format("  {:<{}}  ", name, widest)
                                  : fmt::format("  {}\n{:{}}", name, "", indent);
    text += wrapped(entry.doc, indent, std::string(indent, ' '));
  }
  return text;
}

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
  constexpr std::pair<char, const char*> kEscapes[] = {
      {'\\', "\\e"}, {'-', "\\-"}, {'\'', "\\(aq"}, {'`', "\\(ga"}, {'^', "\\(ha"}, {'~', "\\(ti"}};
  std::string result = !text.empty() && (text[0] == '.' || text[0] == '\'') ? "\\&" : "";
  for (size_t at = 0; at < text.size();) {
    const uint32_t point = next_code_point(text, at);
    if (point >= 0x80) {
      result += fmt::format("\\[u{:04X}]", point);
      continue;
    }
    const auto c = static_cast<char>(point);
    const auto* escape = std::find_if(std::begin(kEscapes), std::end(kEscapes),
                                      [c](const auto& one) { return one.first == c; });
    result += escape == std::end(kEscapes) ? std::string(1, c) : escape->second;
  }
  return result;
}

std::string page_name(const std::string& command) {
  std::string name = command.empty() ? "coupler" : "coupler-" + command;
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string reference(const std::string& command) {
  return fmt::format("\\fB{}\\fR(1)", roff(page_name(command)));
}

std::string man_list(const List& list) {
  std::string text = list.title.empty() ? "" : fmt::format(".SS {}\n", roff(list.title));
  for (const List::Entry& entry : list.entries) {
    std::string names = roff(entry.names);
    for (size_t at = 0; (at = names.find(", ", at)) != std::string::npos; at += 8)
      names.replace(at, 2, "\\fR, \\fB");
    const std::string value =
        entry.value.empty() ? "" : fmt::format(" \\fI{}\\fR", roff(entry.value));
    text += fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", names, value, roff(entry.doc));
  }
  return text;
}

std::string man_paragraphs(const std::vector<std::string_view>& paragraphs) {
  std::string text;
  for (const std::string_view paragraph : paragraphs)
    text += fmt::format("{}{}\n", text.empty() ? "" : ".PP\n", roff(paragraph));
  return text;
}

std::string man_text(const Command& command, const std::string& name, const std::string& see_also,
                     const std::string& version) {
  std::string upper = page_name(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  std::string text = fmt::format(
      ".TH {} 1 \"\" \"Coupler {}\" \"Coupler\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.nf\n", upper,
      version, roff(page_name(name)), roff(command.summary));
  const Page page = page_of(command, name);
  for (const std::string& usage : page.usage) text += fmt::format("coupler {}\n", roff(usage));
  text += ".fi\n.SH DESCRIPTION\n" + man_paragraphs(command.description);
  bool in_options = false;
  for (const List& list : page.lists) {
    if (!in_options && list.entries[0].names[0] == '-') text += ".SH OPTIONS\n";
    in_options = list.entries[0].names[0] == '-';
    text += man_list(list);
  }
  if (!command.notes.empty()) text += ".SH NOTES\n" + man_paragraphs(command.notes);
  text += ".SH EXAMPLES\n.nf\n";
  for (const std::string_view example : command.examples) text += roff(example) + "\n";
  return text + ".fi\n.SH SEE ALSO\n" + see_also + "\n";
}

}  // namespace

std::string help_text(const Command& command, const std::string& name, bool all) {
  const Page page = page_of(command, name, all);
  std::string text;
  for (const std::string& usage : page.usage) {
    constexpr std::string_view kUsage = "usage: coupler ";
    text += text.empty() ? kUsage : "       coupler ";
    text += wrapped_usage(usage, kUsage.size());
  }
  for (const std::string_view paragraph : command.description) text += "\n" + wrapped(paragraph);
  for (const List& list : page.lists) text += "\n" + list_text(list);
  for (const std::string_view paragraph : command.notes) text += "\n" + wrapped(paragraph);
  text += "\n";
  for (const std::string_view example : command.examples) text += fmt::format("  {}\n", example);
  return text;
}

std::vector<ManPage> man_pages(const Command& program, const std::string& version) {
  std::vector<std::pair<std::string, const Command*>> commands;
  for (const Command& command : program.subcommands) {
    if (!command.has_page()) continue;
    commands.emplace_back(command.name, &command);
    for (const Command& sub : command.subcommands) {
      if (sub.has_page()) commands.emplace_back(fmt::format("{} {}", command.name, sub.name), &sub);
    }
  }
  std::string all;
  for (const auto& [name, command] : commands)
    all += fmt::format("{}{}", all.empty() ? "" : ",\n", reference(name));
  std::vector<ManPage> pages = {{"coupler.1", man_text(program, "", all, version)}};
  for (const auto& [name, command] : commands)
    pages.push_back({page_name(name) + ".1", man_text(*command, name, reference(""), version)});
  return pages;
}

}  // namespace coupler::cli
