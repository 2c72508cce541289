"""Definitions of a C++ file: its functions with their lengths, and its types with their namespaces."""

import re
from collections import namedtuple

from source_rules import strip

Function = namedtuple("Function", "name first last")  # lines, from the beginning of the head to the closing brace
Type = namedtuple("Type", "name line hidden")  # the name with its namespaces; hidden: in one without a name, and so of its file

TOKEN = re.compile(r"[A-Za-z_]\w*|::|->|\S")
TYPE = re.compile(r"\b(?:struct|class|union|enum(?: class| struct)?)\b(?: alignas \(.*?\))?(?: \[ \[.*?\] \])? (\w+(?: :: \w+)*)(?: final)?(?: :(?! :).*)?$")
NAMESPACE = re.compile(r"^(?:inline )?namespace((?: \w+(?: :: (?:inline )?\w+)*)?)$")


def without_directives(text):
    """Of #if and #else both branches stay: braces must be even in each."""
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda found: "\n" * found[0].count("\n"), text, flags=re.M)
    return re.sub(r"'(?:\\.|[^'\\\n])+'", "0", text)


class Scanner:
    def __init__(self, path):
        text = without_directives(strip(path.read_text(), True))
        self.tokens, line, last = [], 1, 0
        for found in TOKEN.finditer(text):
            line += text.count("\n", last, found.start())
            last = found.start()
            self.tokens.append((found[0], line))
        self.functions, self.types, self.at = [], [], 0
        self.scope((), False)
        if self.at != len(self.tokens):
            raise ValueError(f"{path}: a brace is closed that was never opened, about line {self.tokens[self.at][1]}")

    def skip(self, opening, closing):
        """From behind an opening brace to behind its closing one; returns the line of that."""
        depth = 1
        while depth:
            token, line = self.tokens[self.at]
            depth += (token == opening) - (token == closing)
            self.at += 1
        return line

    def scope(self, names, hidden):
        """Declarations up to the closing brace of a namespace or type."""
        head = []
        while self.at < len(self.tokens) and self.tokens[self.at][0] != "}":
            token, line = self.tokens[self.at]
            self.at += 1
            if token == ";" or (token == ":" and [word for word, _ in head] in (["public"], ["protected"], ["private"])):
                head = []
            elif token == "(":
                first = self.at - 1
                self.skip("(", ")")
                head += self.tokens[first : self.at]
            elif token == "{":
                head = self.block(head, names, hidden)
            else:
                head.append((token, line))

    def block(self, head, names, hidden):
        """Notes the definition that a brace opens after this head. Returns the part of the head that still waits for its end."""
        words = [word for word, _ in head]
        text = " ".join(words)
        outside = " ".join(without_parentheses(words))
        namespace, defined = NAMESPACE.match(text), TYPE.search(outside)
        if namespace or text == 'extern ""':
            inner = namespace[1].replace(" ", "").split("::") if namespace and namespace[1] else []
            self.scope((*names, *inner), hidden or (namespace is not None and not inner))
            self.at += 1
            return []
        if defined and "=" not in words and not re.search(r"\( \)", outside):
            name = (*names, defined[1].replace(" ", ""))
            self.types.append(Type("::".join(name), head[0][1], hidden))
            if "enum" in words:
                self.skip("{", "}")
            else:
                self.scope(name, hidden)
                self.at += 1
            return [("struct", head[0][1])]  # a variable may follow, and then a semicolon
        if is_function(words):
            first = head[0][1]
            self.functions.append(Function(name_of(words), first, self.skip("{", "}")))
            return []
        self.skip("{", "}")  # an initialiser
        return head + [("{}", head[-1][1])] if head else []


def without_parentheses(words):
    """The words with only the outermost pairs of parentheses, and those empty."""
    depth = 0
    for word in words:
        depth -= word == ")"
        if depth == 0:
            yield word
        depth += word == "("


def is_function(words):
    """Whether the brace after this head opens a function's body, not an initialiser."""
    outside = list(without_parentheses(words))
    if "(" not in outside:
        return False
    if "=" in outside and "operator" not in outside:
        return False
    head = outside[outside.index(")") + 1 :]
    if ":" in head:  # members: a brace after a name opens a value, after a value or parentheses the body
        return outside[-1] in (")", "{}")
    return True


def name_of(words):
    if "operator" in words:
        at = words.index("operator")
        return "".join(words[at : words.index("(", at + 2) if words[at + 1] == "(" else words.index("(", at)])
    at = words.index("(")
    first = at - 1
    while first >= 2 and words[first - 1] == "::":
        first -= 2
    if first >= 1 and words[first - 1] == "~":
        first -= 1
    return "".join(words[first:at])
