"""Rust sources without comments, strings and tests, for checks that read declarations."""
import re

import language_rules

TEST = re.compile(r"^( *)#\[cfg\((?!not)[^\n]*\btest\b[^\n]*\]\n", re.M)
# The item below the attributes: it ends in its line, or opens a block.
ITEM = re.compile(r"^ *(?!#\[)\S[^\n]*?(?:;|\}|(\{))$", re.M)


def without_tests(text):
    """Returns the code of a file, with blanks for comments, strings and the items of tests."""
    _, code = language_rules.split_c_like(text)
    kept, at = [], 0
    for match in TEST.finditer(code):
        if match.start() < at:
            continue
        end = ITEM.search(code, match.end())
        if end and end[1]:
            end = re.compile(rf"^{match[1]}\}}", re.M).search(code, end.end())
        stop = end.end() if end else len(code)
        kept += [code[at : match.start()], re.sub(r"[^\n]", " ", code[match.start() : stop])]
        at = stop
    return "".join(kept) + code[at:]
