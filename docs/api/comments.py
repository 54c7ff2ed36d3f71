"""Doxygen's input filter: the headers have plain comments, and this makes of them what Doxygen reads. Nothing is
added: a comment before a declaration, or after it on its line, is its documentation, and one before
a run of declarations is that of all of them. The first comment of a file is the file's, and that of the class whose
name it begins with, "Accelerator: the one object ...". Lines "---- X ----" and those for
clang-format stay plain.

    comments.py HEADER
"""
import re
import sys

FULL = re.compile(r"^(\s*)// ?(.*)$")
TRAILING = re.compile(r"^(\s*)(\S.*?[;,{}]|[^/]*\w)(\s+)// (.*)$")
SECTION = re.compile(r"^-{4} ")
UNSAID = re.compile(r"= (delete|default)(\(.*\))?;\s*$|^\s*(virtual )?~\w+\(\)( override)?;\s*$")


def escaped(text):
    """What Doxygen would take for a command, a link or a tag."""
    return re.sub(r"([@\\<>#%&$\"]|^\.)", r"\\\1", text)


def lines_of(comment):
    """A comment's lines; code in it, which is indented by three or more, is set as it is."""
    out, in_code = [], False
    for text in comment:
        is_code = text.startswith("  ")
        if is_code != in_code:
            out.append("@code{.cpp}" if is_code else "@endcode")
            in_code = is_code
        out.append(text if is_code else escaped(text))
    return out + (["@endcode"] if in_code else [])


def c_comments(text):
    """/* … */ of C: the first is the file's; a section's line stays; a trailing one belongs to its line."""
    first = True

    def change(found):
        nonlocal first
        before, body = found[1], found[2]
        inside = re.sub(r"^ ?\* ?", "", body.strip("\n"), flags=re.M).strip().split("\n")
        if SECTION.match(inside[0]) or inside[0].startswith("clang-format"):
            return found[0]
        said = "\n".join(lines_of(inside))
        head = "@file\n" if first else ""
        first = False
        mark = "/**<" if before.strip() else "/**"
        return f"{before}{mark} {head}{said} */"

    text = re.sub(r"^([^\n]*?)/\*(.*?)\*/", change, text, flags=re.M | re.S)
    # The convention of these files, told once at their begin.
    return text.replace("uint64_t struct_size;\n", "uint64_t struct_size; /**< sizeof the struct, as compiled */\n")


def trailing(lines, at):
    """A comment that follows code, with the lines below it that go on with it; what comes next."""
    found = TRAILING.match(lines[at])
    column = lines[at].index("// ", len(found[1]) + len(found[2]))
    said = [found[4]]
    next_line = at + 1
    while next_line < len(lines):
        more = FULL.match(lines[next_line])
        if not more or len(more[1]) != column:
            break
        said.append(more[2])
        next_line += 1
    return [f"{found[1]}{found[2]}  ///< " + "\n///< ".join(escaped(text) for text in said)], next_line


def run_of(lines, at, indent):
    """Where the declarations end that a comment of this indentation is before, and how many they are."""
    count = 0
    while at < len(lines) and lines[at].strip():
        line = lines[at]
        own = len(line) - len(line.lstrip())
        if own < indent or (own == indent and FULL.match(line)) or re.match(r"\s*(public|private|protected):", line):
            break
        code = line.split(" // ")[0].rstrip()
        if own == indent and (code.endswith((";", "}"))):
            count += 1
        elif own > indent and not code.endswith((";", "}", "{", ",", ")")) and not FULL.match(line):
            pass
        at += 1
    return at, count


def type_of_file(comment, lines, at):
    """The line of the class that the file's comment names, where it has no comment of its own."""
    name = re.match(r"(\w+): ", comment[0])
    if not name:
        return None
    for line in range(at, len(lines)):
        if re.match(rf"(template <.*> )?(class|struct|enum class) {name[1]}\b[^;]*$", lines[line]):
            first = line - 1 if lines[line - 1].startswith("template") else line
            return None if FULL.match(lines[first - 1]) else first
    return None


def cpp(text):
    lines = [line for line in text.split("\n") if not UNSAID.search(line)]
    out, at, ends = [], 0, []
    of_class, of_file = None, []
    while at < len(lines):
        if at == of_class:
            out += of_file
        while ends and at >= ends[-1]:
            ends.pop()
            out.append("///@}")
        full = FULL.match(lines[at])
        if full and not SECTION.match(full[2]):
            indent, comment, start = len(full[1]), [], at
            while at < len(lines) and (more := FULL.match(lines[at])) and not SECTION.match(more[2]):
                comment.append(more[2])
                at += 1
            attached = at < len(lines) and lines[at].strip() and not lines[at].lstrip().startswith(("}", "#"))
            if start == 0:
                of_file = ["/// " + said for said in lines_of(comment)]
                of_class = type_of_file(comment, lines, at)
                out += ["/// @file"] + of_file
            elif attached:
                end, count = run_of(lines, at, indent)
                if count > 1:
                    out.append("///@{")
                    ends.append(end)
                out += ["/// " + said for said in lines_of(comment)]
            else:
                out += lines[start:at]
        elif TRAILING.match(lines[at]):
            more, at = trailing(lines, at)
            out += more
        else:
            out.append(lines[at])
            at += 1
    return "\n".join(out + ["///@}"] * len(ends))


text = open(sys.argv[1], encoding="utf-8").read()
print(c_comments(text) if text.startswith("/*") else cpp(text))
